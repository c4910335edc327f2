package faults_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	tlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
	"github.com/xdstender/tender/relay/relaytest/instance"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// startLimit is the time within which a relay serves the state of a peer.
const startLimit = 5 * time.Second

// replicaRules are the rules of all relays of a replicaTier. Only the second identity may take Secrets.
const replicaRules = `
version: 1
rules:
- name: all
  identities: [anonymous]
  secrets: ["**"]
peers: ["spiffe://example.org/ns/tender/**"]
snapshots:
  take: ["spiffe://example.org/ns/tender/**"]
  secrets: ["spiffe://example.org/ns/tender/sa/trusted"]
`

// A replicaTier has the certificates of relays that are peers, behind one link to their origin.
type replicaTier struct {
	t             *testing.T
	ca            *certs.CA
	link          *proxy.Proxy // to the origin
	caFile, authz string
	dir           string
	addresses     []string // of peers
	started       int
}

// newReplicaTier returns a tier without relays, for an origin at an address.
func newReplicaTier(t *testing.T, origin string) *replicaTier {
	t.Helper()
	r := &replicaTier{t: t, ca: certs.NewCA(t), link: proxy.New(t, origin), dir: t.TempDir()}
	r.caFile = certs.WriteFile(t, r.dir, "ca.pem", r.ca.PEM)
	r.authz = certs.WriteFile(t, r.dir, "authz.yaml", []byte(replicaRules))
	return r
}

// start starts a relay of the tier, with the last part of its identity. It becomes a peer of those that start later.
func (r *replicaTier) start(identity string, env ...string) *instance.Relay {
	r.t.Helper()
	leaf := certs.Leaf{URI: "spiffe://example.org/ns/tender/sa/" + identity, Names: []string{"127.0.0.1"}}
	cert, key := r.ca.Sign(leaf).Write(r.t, r.t.TempDir())
	r.started++
	peers := "off"
	if len(r.addresses) > 0 {
		peers = strings.Join(r.addresses, ",")
	} else {
		peers = proxy.Refused(r.t)
	}
	relay := instance.Start(r.t, instance.Options{Env: append(env,
		"TENDER_ORIGIN="+r.link.Addr(), fmt.Sprint("TENDER_NODE_ID=tender/replica-", r.started),
		"TENDER_TLS_LISTEN=127.0.0.1:0", "TENDER_ADMIN_LISTEN=127.0.0.1:0,0.0.0.0:0", "TENDER_SECRETS=loopback",
		"TENDER_TLS_CERT="+cert, "TENDER_TLS_KEY="+key, "TENDER_TLS_CLIENT_CA="+r.caFile, "TENDER_AUTHZ="+r.authz,
		"TENDER_PEERS="+peers, "TENDER_PEERS_TLS_CA="+r.caFile, "TENDER_PEERS_TLS_CERT="+cert, "TENDER_PEERS_TLS_KEY="+key,
	)})
	for _, a := range relay.AdminAddrs() {
		if tcp := a.(*net.TCPAddr); !tcp.IP.IsLoopback() {
			r.addresses = append(r.addresses, fmt.Sprint("127.0.0.1:", tcp.Port))
		}
	}
	return relay
}

// cut makes the origin unreachable.
func (r *replicaTier) cut() {
	r.link.Set(proxy.Link{Refuse: true})
	r.link.Cut()
}

// liar adds a peer that says that it has views, and gives its state by a function. It returns the number of requests.
func (r *replicaTier) liar(give http.HandlerFunc) *atomic.Int64 {
	r.t.Helper()
	asked := new(atomic.Int64)
	leaf := certs.Leaf{URI: "spiffe://example.org/ns/tender/sa/liar", Names: []string{"127.0.0.1"}}
	cert, key := r.ca.Sign(leaf).Write(r.t, r.t.TempDir())
	config, err := (&cli.TLSFlags{Cert: cert, Key: key}).Config()
	if err != nil {
		r.t.Fatal(err)
	}
	instance := fmt.Sprint("liar-", len(r.addresses))
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		asked.Add(1)
		if req.URL.Path == admin.SnapshotPath {
			give(w, req)
			return
		}
		views := make([]admin.TierView, 10) // more than others: it is asked first
		_ = json.NewEncoder(w).Encode(admin.TierSummary{Instance: instance, NodeID: instance, Views: views})
	}))
	s.TLS = config
	s.StartTLS()
	r.t.Cleanup(s.Close)
	r.addresses = append(r.addresses, s.Listener.Addr().String())
	return asked
}

// client returns a client of a relay, which subscribes as an Envoy does.
func (r *replicaTier) client(relay *instance.Relay, id string) *relaytest.Client {
	c := relaytest.NewClient(r.t, connect(r.t, relay.Target), relaytest.ClientOptions{AutoAck: true, Node: relaytest.EnvoyNode(id)})
	subscribe(c)
	return c
}

// statusOf returns the status of a relay.
func statusOf(t *testing.T, r *instance.Relay) (s admin.Status) {
	t.Helper()
	if err := json.Unmarshal(getAdmin(t, r, "/api/v1/status"), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// getAdmin returns a page of the plaintext admin address of a relay.
func getAdmin(t *testing.T, r *instance.Relay, path string) []byte {
	t.Helper()
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://" + r.AdminAddrs()[0].String() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %d %s %v", path, resp.StatusCode, text, err)
	}
	return text
}

// post sends a command to the plaintext admin address of a relay.
func post(t *testing.T, r *instance.Relay, path, args string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Post("http://"+r.AdminAddrs()[0].String()+path, "application/json", strings.NewReader(args))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("POST %s: %d %s %v", path, resp.StatusCode, text, err)
	}
}

// versions returns the versions of the clusters that a Delta client received.
func versions(c *relaytest.Client) map[string]string {
	all := make(map[string]string)
	for name, e := range c.State()[relaytest.ClusterType] {
		all[name] = e.Version
	}
	return all
}

// TestB42_ReplicaBeginsWithTheStateOfAPeer: while the origin is unreachable, a relay without a state serves that of a peer
// within 5 s of its start, with its versions and its decisions. Peers that give garbage, too much, an old state or that of
// another origin, or that hang, delay it no longer. When the origin returns, the relay follows it.
func TestB42_ReplicaBeginsWithTheStateOfAPeer(t *testing.T) {
	t.Parallel()
	plane := newControlPlane(t)
	tier := newReplicaTier(t, plane.addr)
	first := tier.start("first")
	before := tier.client(first, "before")
	served(t, 1000, before)
	post(t, first, "/api/v1/freeze", `{"reason": "careful"}`)
	tier.cut()

	good := tier.addresses
	tier.addresses = nil
	for _, give := range []http.HandlerFunc{
		func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") },
		func(w http.ResponseWriter, _ *http.Request) {
			for err := error(nil); err == nil; {
				_, err = w.Write(make([]byte, 1<<20))
			}
		},
		func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(archive(t, "x.snapshot", []byte("tender snapshot\n")))
		},
		func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) },
	} {
		tier.liar(give)
	}
	tier.addresses = append(tier.addresses, good...)
	began := time.Now()
	second := tier.start("second")
	after := tier.client(second, "after")
	served(t, 1000, after)
	if took := time.Since(began); took > startLimit {
		t.Errorf("clients were served after %v, want %v at most", took, startLimit)
	}
	if got, want := fmt.Sprint(versions(after)), fmt.Sprint(versions(before)); got != want {
		t.Errorf("versions %s, want those of the peer: %s", got, want)
	}
	status := statusOf(t, second)
	if s := status.Relay.Taken; s == nil || s.From != good[0] || s.NodeID != "tender/replica-1" || s.Views == 0 || s.AgeSeconds <= 0 || s.AgeSeconds > 60 {
		t.Errorf("status has %+v, want the state of %s", s, good[0])
	}
	if o := status.Origins[0]; !status.Relay.Ready || !o.Frozen || o.Freeze.Reason != "careful" {
		t.Errorf("the relay is %+v with %+v, want a ready one with the freeze of the peer", status.Relay, o)
	}

	tier.link.Set(proxy.Link{})
	post(t, second, "/api/v1/thaw", `{}`)
	plane.change(2000)
	served(t, 2000, after)
}

// archive returns a tar archive with one file.
func archive(t *testing.T, name string, content []byte) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(content))})
	_, writeErr := w.Write(content)
	if err := errors.Join(err, writeErr, w.Close()); err != nil {
		t.Error(err)
	}
	return out.Bytes()
}

// TestB42_ReplicaIsRolledBackAsItsPeer: the replica serves the generation to which an operator rolled its peer back, until a
// thaw.
func TestB42_ReplicaIsRolledBackAsItsPeer(t *testing.T) {
	t.Parallel()
	plane := newControlPlane(t)
	tier := newReplicaTier(t, plane.addr)
	first := tier.start("first", "TENDER_COLD_WAIT=200ms") // its sets are confirmed then
	before := tier.client(first, "before")
	served(t, 1000, before)
	has := func(c *relaytest.Client, service ...string) {
		t.Helper()
		want := relaytest.DigestOf(relaytest.Cluster("c1", service...))
		c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Digest(relaytest.ClusterType, "c1") == want })
	}
	// kept waits until n generations are complete: the newest has had no change for more than a second.
	kept := func(n int) (generations []admin.Generation) {
		t.Helper()
		look := time.NewTicker(10 * time.Millisecond)
		defer look.Stop()
		end := time.Now().Add(relaytest.Patience)
		for ; len(generations) < n || time.Since(generations[0].Since) < 1500*time.Millisecond; <-look.C {
			var all admin.Generations
			if err := json.Unmarshal(getAdmin(t, first, "/api/v1/generations"), &all); err != nil || time.Now().After(end) {
				t.Fatalf("generations %+v, error %v, want %d", all, err, n)
			}
			for _, v := range all.Views {
				if !v.Shared {
					generations = v.Generations
				}
			}
		}
		return generations
	}
	kept(1)
	plane.Put(relaytest.Cluster("c1", "bad"))
	has(before, "bad")
	good := kept(2)[1].Generation
	post(t, first, "/api/v1/rollback", fmt.Sprintf(`{"to": %q, "reason": "bad"}`, good))
	has(before)
	tier.cut()

	second := tier.start("second")
	after := tier.client(second, "after")
	served(t, 1000, after)
	has(after)
	if o := statusOf(t, second).Origins[0]; o.Freeze == nil || o.Freeze.Rollback == nil || o.Freeze.Reason != "bad" {
		t.Errorf("the freeze is %+v, want the rollback of the peer", o.Freeze)
	}
	tier.link.Set(proxy.Link{})
	post(t, second, "/api/v1/thaw", `{}`)
	has(after, "bad")
}

// TestB42_ReplicaAsksNoPeerWhileTheOriginIsThere: a relay whose origin answers begins without a state.
func TestB42_ReplicaAsksNoPeerWhileTheOriginIsThere(t *testing.T) {
	t.Parallel()
	tier := newReplicaTier(t, newControlPlane(t).addr)
	asked := tier.liar(func(http.ResponseWriter, *http.Request) {})
	r := tier.start("first")
	served(t, 1000, tier.client(r, "client"))
	if n := asked.Load(); n != 0 {
		t.Errorf("the peer was asked %d times, want never", n)
	}
	if s := statusOf(t, r).Relay.Taken; s != nil {
		t.Errorf("status has %+v, want no state of a peer", s)
	}
}

// TestB42_OriginReturnsWhileAPeerIsAsked: the origin has the newer state, and the relay does not wait for the peer.
func TestB42_OriginReturnsWhileAPeerIsAsked(t *testing.T) {
	t.Parallel()
	tier := newReplicaTier(t, newControlPlane(t).addr)
	tier.cut()
	ended := make(chan struct{})
	asked := tier.liar(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		tier.link.Set(proxy.Link{})
		<-r.Context().Done()
		close(ended)
	})
	r := tier.start("first")
	served(t, 1000, tier.client(r, "client"))
	<-ended
	if s := statusOf(t, r).Relay.Taken; s != nil || asked.Load() == 0 {
		t.Errorf("status has %+v after %d requests, want no state of the peer that was asked", s, asked.Load())
	}
}

// TestB36_PeersTakeSecretsOnlyByPermission: the state that a relay gives has Secrets for a peer whose identity the rules
// list for them, and for no other.
func TestB36_PeersTakeSecretsOnlyByPermission(t *testing.T) {
	t.Parallel()
	origin := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	origin.Put(relaytest.Cluster("a"), &tlspb.Secret{Name: "s", Type: &tlspb.Secret_ValidationContext{
		ValidationContext: &tlspb.CertificateValidationContext{MatchTypedSubjectAltNames: nil},
	}})
	tier := newReplicaTier(t, origin.Addr())
	ask := func(r *instance.Relay) *relaytest.Client {
		c := relaytest.NewClient(t, connect(t, r.Target), relaytest.ClientOptions{AutoAck: true})
		c.Subscribe(relaytest.SecretType, "s")
		c.Subscribe(relaytest.ClusterType)
		return c
	}
	first := tier.start("first")
	ask(first).WaitState(t.Context(), func(s relaytest.State) bool {
		return s.Has(relaytest.SecretType, "s") && s.Has(relaytest.ClusterType, "a")
	})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + first.AdminAddrs()[0].String() + admin.SnapshotPath)
	if err != nil {
		t.Fatal(err)
	}
	if _ = resp.Body.Close(); resp.StatusCode != http.StatusForbidden {
		t.Errorf("a client of this host without a certificate got %d, want %d", resp.StatusCode, http.StatusForbidden)
	}
	tier.cut()
	tier.addresses = tier.addresses[:1]
	trusted := ask(tier.start("trusted"))
	tier.addresses = tier.addresses[:1]
	other := ask(tier.start("other"))
	trusted.WaitState(t.Context(), func(s relaytest.State) bool {
		return s.Has(relaytest.SecretType, "s") && s.Has(relaytest.ClusterType, "a")
	})
	other.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(relaytest.ClusterType, "a") })
	if other.State().Has(relaytest.SecretType, "s") {
		t.Error("a peer without the permission took a Secret")
	}
}
