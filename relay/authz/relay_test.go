package authz_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
)

const (
	web   = "spiffe://example.org/ns/shop/sa/web"
	other = "spiffe://example.org/ns/other/sa/web"
	guest = "spiffe://example.org/guest"
)

// tenants allows each namespace the cluster of the same name and its own Secrets.
const tenants = `
- name: tenants
  identities: ["spiffe://example.org/ns/{ns}/sa/*"]
  node: {cluster: ["{ns}"]}
  types: [cds, eds]
  secrets: ["{ns}/*"]
  xdstp: ["xdstp://example.org/*/{ns}/*"]
`

// TestB37_Nodes checks that a client with a forbidden Node is refused at its first request, on each kind of stream and
// by REST.
func TestB37_Nodes(t *testing.T) {
	t.Parallel()
	m := newMesh(t, tenants, "TENDER_LRS=aggregate")
	m.origin.Put(relaytest.Cluster("a"))
	good := m.client(web, "shop", relaytest.ClientOptions{})
	good.Subscribe(relaytest.ClusterType)
	m.has(good, relaytest.ClusterType, "a")

	for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
		c := m.client(web, "other", relaytest.ClientOptions{Variant: v})
		c.Subscribe(relaytest.ClusterType)
		m.refused(c, `"spiffe://example.org/ns/shop/sa/web" may not be node "node-other": its cluster is "other", and rule "tenants" has "{ns}"`)
		c = m.client(guest, "shop", relaytest.ClientOptions{Variant: v})
		c.Subscribe(relaytest.ClusterType)
		m.refused(c, `"spiffe://example.org/guest" may not be node "node-shop": no rule is about it`)
		c = m.client("", "shop", relaytest.ClientOptions{Variant: v})
		c.Subscribe(relaytest.ClusterType)
		m.refused(c, "a client without a certificate (anonymous) may not be")
		c = m.client(web, "shop", relaytest.ClientOptions{Variant: v})
		c.Subscribe(relaytest.ListenerType)
		m.refused(c, `may not have the type "`+relaytest.ListenerType+`": the rules ["tenants"] allow ["cds" "eds"]`)
	}
	loads, err := lrspb.NewLoadReportingServiceClient(m.dial(web)).StreamLoadStats(m.within())
	if err == nil {
		if err = loads.Send(&lrspb.LoadStatsRequest{Node: nodeOf("other"), ClusterStats: []*endpointpb.ClusterStats{}}); err == nil {
			_, err = loads.Recv()
		}
	}
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("load report stream closed with %v, want PERMISSION_DENIED", err)
	}
	if code, body := m.poll(other, "clusters", `{"node": {"id": "x", "cluster": "shop"}}`); code != http.StatusForbidden || !strings.Contains(body, `may not be node \"x\"`) {
		t.Errorf("poll: got %d %s, want 403", code, body)
	}
	stats := m.Stats()
	if d := stats.Refused; d[guard.DeniedIdentity] != 4 || d[guard.DeniedNode] != 4 || d[guard.DeniedType] != 2 || stats.Ended[guard.EndedDenied] != 9 {
		t.Errorf("denied: %v, streams closed: %d, want 4 identities, 4 nodes, 2 types and 9 streams", d, stats.Ended[guard.EndedDenied])
	}
	if n := len(m.origin.State().Streams); n != 1 {
		t.Errorf("the relay opened %d upstream streams, want 1, for the authorized client", n)
	}
	m.logs("client not authorized")
}

// poll sends a REST request as a client with a SPIFFE ID, and returns the status and the body of the response.
func (m *mesh) poll(id, path, body string) (code int, answer string) {
	m.t.Helper()
	return m.pollFor(id, path, body, "")
}

// pollFor is poll with a timeout for the relay in milliseconds (X-Envoy-Expected-Rq-Timeout-Ms).
func (m *mesh) pollFor(id, path, body, wait string) (code int, answer string) {
	m.t.Helper()
	transport := &http.Transport{
		TLSClientConfig: m.tls(certs.Leaf{URI: id}),
		DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return m.DialREST(ctx) },
	}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(m.t.Context(), http.MethodPost, "https://127.0.0.1/v3/discovery:"+path, strings.NewReader(body))
	if err != nil {
		m.t.Fatal(err)
	}
	req.Header.Set("X-Envoy-Expected-Rq-Timeout-Ms", wait)
	resp, err := (&http.Client{Transport: transport, Timeout: relaytest.Patience}).Do(req)
	if err != nil {
		m.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		m.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// TestB36_SecretsByName checks that a client receives only the Secrets that a rule allows. A subscription to another
// Secret is ignored on an aggregated stream, and closes a stream of Secrets. The relay does not request the other
// Secrets from the origin, and logs each Secret that it sends.
func TestB36_SecretsByName(t *testing.T) {
	t.Parallel()
	m := newMesh(t, tenants)
	m.put("shop/key", "1")
	m.put("other/key", "1")
	m.origin.Put(relaytest.Cluster("a"))
	for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
		c := m.client(web, "shop", relaytest.ClientOptions{Variant: v})
		c.Subscribe(relaytest.SecretType, "other/key", "shop/key", "*", "xdstp://example.org/envoy.extensions.transport_sockets.tls.v3.Secret/shop/*")
		c.Subscribe(relaytest.ClusterType)
		m.has(c, relaytest.SecretType, "shop/key")
		m.has(c, relaytest.ClusterType, "a")
		if names := c.State().Names(relaytest.SecretType); len(names) != 1 {
			t.Errorf("%v: the client received the Secrets %q, want only shop/key", v, names)
		}

		alone := m.client(web, "shop", relaytest.ClientOptions{Variant: v, TypeURL: relaytest.SecretType})
		alone.Subscribe(relaytest.SecretType, "shop/key")
		m.has(alone, relaytest.SecretType, "shop/key")
		alone.Subscribe(relaytest.SecretType, "shop/key", "other/key")
		m.refused(alone, `may not have the Secret "other/key": the rules ["tenants"] do not list it under secrets`)
	}
	if code, body := m.poll(web, "secrets", `{"node": {"id": "x", "cluster": "shop"}, "resource_names": ["shop/key"]}`); code != http.StatusOK || !strings.Contains(body, "hush 1") {
		t.Errorf("poll: got %d %s, want the Secret", code, body)
	}
	if code, _ := m.poll(web, "secrets", `{"node": {"id": "x", "cluster": "shop"}, "resource_names": ["other/key"]}`); code != http.StatusForbidden {
		t.Errorf("poll for another Secret: got %d, want 403", code)
	}
	if asked := m.asked(); asked != "shop/key" {
		t.Errorf("the relay requested the Secrets %q, want only shop/key", asked)
	}
	if n := m.Stats().Refused[guard.DeniedSecret]; n != 9 {
		t.Errorf("%d names of Secrets denied, want 9: 3 on each of 2 aggregated streams, 1 on each of 2 others, and 1 by a poll", n)
	}
	log := m.Log.String()
	if n := strings.Count(log, `msg="secret sent" node=node-shop group="user_agent_name=envoy" identity="\"`+web+`\"" name=shop/key`); n != 4 {
		t.Errorf("the log contains %d Secrets on streams, want 4:\n%s", n, log)
	}
	if strings.Contains(log, "hush") {
		t.Error("the log contains the content of a Secret")
	}
}

// TestB36_SecretsUnderOtherTypeURLs checks that the rules about Secrets apply to each type URL with the message name of
// a Secret, by name and by wildcard. Control planes resolve types by the message name. The relay refuses a Secret that
// the origin sends for another type.
func TestB36_SecretsUnderOtherTypeURLs(t *testing.T) {
	t.Parallel()
	const disguise = "type.googleapis.com/acme.Harmless"
	m := newMesh(t, "- {name: shops, identities: [\"spiffe://example.org/ns/{ns}/sa/*\"], secrets: [\"{ns}/*\"]}\n- {name: anybody, identities: [anonymous]}\n")
	m.origin.Put(relaytest.Cluster("a"))
	urls := []string{
		"types.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", "example.org/x/envoy.extensions.transport_sockets.tls.v3.Secret",
		"type.googleapis.com/envoy.extensions.transport_sockets.tls.v4alpha.Secret", "type.googleapis.com/envoy.api.v2.auth.Secret",
	}
	for _, url := range urls {
		m.origin.Put(relaytest.Opaque(url, "shop/key", []byte("hush")), relaytest.Opaque(url, "other/key", []byte("hush")))
	}
	m.origin.Apply(func(tx *relaytest.Tx) {
		tx.Set(disguise, "shop/key", relaytest.Opaque(relaytest.SecretType, "shop/key", []byte("hush")), "1")
	})
	for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
		c := m.client("", "guest", relaytest.ClientOptions{Variant: v})
		for _, url := range urls {
			c.Subscribe(url, "shop/key", "*")
		}
		c.Subscribe(disguise, "shop/key")
		c.Subscribe(relaytest.ClusterType)
		m.has(c, relaytest.ClusterType, "a")
		everything := m.client("", "guest", relaytest.ClientOptions{Variant: v})
		for _, url := range urls {
			everything.Subscribe(url)
		}
		everything.Subscribe(relaytest.ClusterType)
		m.has(everything, relaytest.ClusterType, "a")
		web := m.client(web, "shop", relaytest.ClientOptions{Variant: v})
		for _, url := range urls {
			web.Subscribe(url, "shop/key", "other/key")
			m.has(web, url, "shop/key")
			if names := web.State().Names(url); len(names) != 1 {
				t.Errorf("%v: with a rule for shop/key, the client received %q of %s", v, names, url)
			}
		}
		for _, url := range append(urls, disguise) {
			if names := append(c.State().Names(url), everything.State().Names(url)...); len(names) > 0 {
				t.Errorf("%v: clients without a rule for Secrets received %q of %s", v, names, url)
			}
		}
	}
	if log := m.Log.String(); strings.Contains(log, "hush") {
		t.Error("the log contains the content of a Secret")
	}
}

// TestB36_WhoIsServedSecrets checks which clients receive Secrets for each value of TENDER_SECRETS.
func TestB36_WhoIsServedSecrets(t *testing.T) {
	t.Parallel()
	const plain = tenants + "- {name: plain, identities: [anonymous], secrets: [\"shop/*\"]}\n"
	tests := []struct {
		secrets, rules, id, name string
		why                      string // part of the error; empty if the Secret is sent
	}{
		{relay.SecretsMTLS, "", "", "shop/key", "Secrets are for clients that show a certificate (TENDER_SECRETS=mtls)"},
		{relay.SecretsMTLS, "", web, "shop/key", "there are no rules (TENDER_AUTHZ)"},
		{relay.SecretsMTLS, plain, "", "shop/key", "Secrets are for clients that show a certificate"},
		{relay.SecretsMTLS, plain, web, "shop/key", ""},
		{relay.SecretsLoopback, "", "", "shop/key", ""},
		{relay.SecretsLoopback, "", "", "*", "Secrets can only be requested by name"},
		{relay.SecretsLoopback, plain, "", "shop/key", ""},
		{relay.SecretsLoopback, plain, "", "other/key", `the rules ["plain"] do not list it under secrets`},
		{relay.SecretsLoopback, plain, web, "other/key", `the rules ["tenants"] do not list it under secrets`},
		{relay.SecretsOff, plain, web, "shop/key", "Secrets are not served (TENDER_SECRETS=off)"},
	}
	type setup struct{ secrets, rules string }
	running := map[setup]*mesh{}
	for _, tt := range tests {
		m := running[setup{tt.secrets, tt.rules}]
		if m == nil {
			m = newMesh(t, tt.rules, "TENDER_SECRETS="+tt.secrets)
			m.put("shop/key", "1")
			running[setup{tt.secrets, tt.rules}] = m
		}
		c := m.client(tt.id, "shop", relaytest.ClientOptions{TypeURL: relaytest.SecretType})
		c.Subscribe(relaytest.SecretType, tt.name)
		if tt.why == "" {
			m.has(c, relaytest.SecretType, tt.name)
		} else {
			m.refused(c, tt.why)
		}
	}
}

// TestB23_RulesMatchXDSTPNames checks that rules restrict xdstp names, which all node groups share.
func TestB23_RulesMatchXDSTPNames(t *testing.T) {
	t.Parallel()
	const prefix = "xdstp://example.org/envoy.config.endpoint.v3.ClusterLoadAssignment/"
	m := newMesh(t, tenants)
	for _, name := range []string{"shop/a", "other/a"} {
		m.origin.Put(relaytest.Opaque(relaytest.EndpointType, prefix+name, nil))
	}
	c := m.client(web, "shop", relaytest.ClientOptions{})
	c.Subscribe(relaytest.EndpointType, prefix+"other/a", prefix+"other/*", prefix+"shop/a")
	m.has(c, relaytest.EndpointType, prefix+"shop/a")
	if names := c.State().Names(relaytest.EndpointType); len(names) != 1 || m.Stats().Refused[guard.DeniedName] != 2 {
		t.Errorf("the client received %q, denied: %v, want one name received and two denied", names, m.Stats().Refused)
	}
	alone := m.client(web, "shop", relaytest.ClientOptions{TypeURL: relaytest.EndpointType})
	alone.Subscribe(relaytest.EndpointType, prefix+"other/a")
	m.refused(alone, "do not list it under xdstp")
}

// TestB36_RulesThatChange checks that new rules apply to open streams. Clients no longer receive resources that are no
// longer allowed, and receive newly allowed ones. The stream of a client whose Node is no longer allowed is closed. An
// invalid file changes nothing.
func TestB36_RulesThatChange(t *testing.T) { synctest.Test(t, testRulesThatChange) }

func testRulesThatChange(t *testing.T) {
	rule := func(secrets string) string {
		return "- {name: shop, identities: [\"" + web + "\"], secrets: [" + secrets + "]}\n"
	}
	both := "- {name: other, identities: [\"" + other + "\"]}\n"
	m := newMeshInMemory(t, rule("a, b")+both)
	for _, name := range []string{"a", "b", "c"} {
		m.put(name, "1")
	}
	var streams []*relaytest.Client
	for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
		c := m.client(web, "shop", relaytest.ClientOptions{Variant: v})
		c.Subscribe(relaytest.SecretType, "a", "b", "c")
		m.has(c, relaytest.SecretType, "a", "b")
		streams = append(streams, c)
	}
	alone := m.client(web, "shop", relaytest.ClientOptions{TypeURL: relaytest.SecretType})
	alone.Subscribe(relaytest.SecretType, "b")
	m.has(alone, relaytest.SecretType, "b")
	gone := m.client(other, "other", relaytest.ClientOptions{})
	gone.Subscribe(relaytest.ClusterType)

	m.rule("- {name: shop}\n")
	m.logs(`authz.yaml:3:3: rule \"shop\" has no identities`)
	m.rule(rule("a, c"))
	m.refused(gone, "no rule is about it")
	m.refused(alone, `may not have the Secret "b"`)
	for _, c := range streams {
		m.has(c, relaytest.SecretType, "a", "b", "c")
		before := c.State()
		m.put("b", "2")
		m.put("a", c.String())
		c.WaitState(m.within(), func(s relaytest.State) bool {
			return s.Digest(relaytest.SecretType, "a") != before.Digest(relaytest.SecretType, "a")
		})
		if c.State().Digest(relaytest.SecretType, "b") != before.Digest(relaytest.SecretType, "b") {
			t.Errorf("%v received a new version of b, which is no longer allowed", c)
		}
	}
}
