package conformance_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
)

// getJSON decodes the relay's response to a GET of an operator.
func getJSON[T any](t testing.TB, r *running, path string) (answer T) {
	t.Helper()
	code, text := httpGet(t, r.DialAdmin, path)
	if err := json.Unmarshal([]byte(text), &answer); err != nil || code != http.StatusOK {
		t.Fatalf("GET %s: %d %s", path, code, text)
	}
	return answer
}

// rejecting returns a Reject function for responses that contain a resource.
func rejecting(name, words string) func(*relaytest.Response) error {
	return func(r *relaytest.Response) error {
		for _, res := range r.Resources {
			if res.Name == name {
				return errors.New(words)
			}
		}
		return nil
	}
}

// oneAfterOther returns clients that have subscribed to all clusters, in a bubble. Their streams are numbered in
// this order.
func oneAfterOther(r *running, options ...relaytest.ClientOptions) (clients []*relaytest.Client) {
	r.t.Helper()
	for _, o := range options {
		c := r.Client(o)
		synctest.Wait()
		c.Subscribe(relaytest.ClusterType)
		synctest.Wait()
		clients = append(clients, c)
	}
	return clients
}

// B.30: a NACK whose error has the code OK is a NACK, and is reported with the code UNKNOWN.
func TestB30_ANACKWithoutACode(t *testing.T) {
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(relaytest.Cluster("a"))
		r := start(t, o, operated)
		c := r.Client(relaytest.ClientOptions{})
		c.Subscribe(relaytest.ClusterType)
		response := c.Recv(t.Context())
		c.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: relaytest.ClusterType, ResponseNonce: response.Nonce,
			ErrorDetail: &statuspb.Status{Message: "no such filter"}})
		synctest.Wait()
		nack := getJSON[admin.Clients](t, r, "/api/v1/clients").Clients[0].Types[0].Rejection
		if nack == nil || nack.Code != "UNKNOWN" || nack.Detail != "no such filter" {
			t.Errorf("got the NACK %+v, want UNKNOWN: no such filter", nack)
		}
	})
}

// B.30: operators see stale clients with their lag, NACKs, and the clients that have a resource.
func TestB30_TheFleetByJSON(t *testing.T) {
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(relaytest.Cluster("a"), relaytest.Cluster("b"))
		r := start(t, o, operated)
		clients := oneAfterOther(r,
			relaytest.ClientOptions{AutoAck: true, Node: inZone("z", relaytest.EnvoyNode("good"))},
			relaytest.ClientOptions{AutoAck: true, Node: relaytest.EnvoyNode("bad"), Variant: relaytest.SotW,
				Reject: rejecting("a", "no such filter")},
			relaytest.ClientOptions{Node: relaytest.EnvoyNode("slow")},
		)
		clients[0].Subscribe(relaytest.EndpointType, "b")
		time.Sleep(3 * time.Second) // virtual time

		all := getJSON[admin.Clients](t, r, "/api/v1/clients?sort=number")
		if got := all.Totals; got.Streams != 3 || got.Matching != 3 || got.Lagging != 2 || got.Rejecting != 1 ||
			got.LagSeconds != 3 || got.InSync != 1 || got.Unknown != 0 {
			t.Errorf("got the totals %+v, want 3 streams: 2 of them stale for 3s, one of these with a NACK, and one in sync", got)
		}
		if len(all.Types) != 2 || all.Types[1].Name != "eds" || all.Types[1].Clients != 1 || all.Types[0].Name != "cds" ||
			all.Types[0].Clients != 3 || all.Types[0].Lagging != 2 || all.Types[0].Rejecting != 1 {
			t.Errorf("got the types %+v, want cds with 3 clients, 2 of them stale and one with a NACK, and eds with one client",
				all.Types)
		}
		good, bad := all.Clients[0], all.Clients[1]
		if good.NodeID != "good" || good.Cluster != "edge" || good.UserAgent != "envoy/1.36.0" || good.Variant != "delta" ||
			good.Types[0].Nonce == "" || good.Types[0].Pending || good.Types[0].AcceptedAt.IsZero() || good.LagSeconds != 0 {
			t.Errorf("client without NACKs: %+v", good)
		}
		nack := bad.Types[0].Rejection
		if bad.Variant != "sotw" || !bad.Rejecting || nack == nil || nack.Detail != "no such filter" ||
			nack.Code != "INVALID_ARGUMENT" || nack.Version != bad.Types[0].Version {
			t.Errorf("client with a NACK: %+v, NACK %+v", bad, nack)
		}
		for query, want := range map[string]string{
			"rejected=true": "bad", "node=oo": "good", "type=eds": "good", "type=eds&rejected=true": "", "group=other": "",
			"stalled=true": "", "id=good": "good", "id=oo": "", "cluster=edge": "bad slow good", "cluster=other": "", "zone=z": "good",
			"sync=rejecting": "bad", "sync=behind": "slow", "sync=in-sync": "good", "sync=unknown": "", "sync=behind&type=eds": "",
			"sort=lag": "bad slow good", "sort=number&totals=false": "good bad slow", "sort=number&totals=false&type=eds": "good",
		} {
			var ids []string
			for page := (admin.Clients{Next: " "}); page.Next != ""; {
				page = getJSON[admin.Clients](t, r,
					"/api/v1/clients?limit=1&"+query+"&after="+url.QueryEscape(strings.TrimSpace(page.Next)))
				for _, c := range page.Clients {
					ids = append(ids, c.NodeID)
				}
			}
			if got := strings.Join(ids, " "); got != want {
				t.Errorf("clients?%s, in pages of one: got %q, want %q", query, got, want)
			}
		}

		_, metrics := httpGet(t, r.DialAdmin, "/metrics")
		for _, line := range []string{`tender_client_lag_seconds\{.*type="cds".*\} 3`,
			`tender_client_lagging\{.*type="cds".*\} 2`, `tender_client_rejecting\{.*type="cds".*\} 1`} {
			if !regexp.MustCompile("(?m)^" + line + "$").MatchString(metrics) {
				t.Errorf("metrics lack %s:\n%s", line, metrics)
			}
		}

		d := getJSON[admin.ClientDetail](t, r, fmt.Sprintf("/api/v1/clients/%d?limit=1", bad.Number))
		if d.States["rejected"] != 2 || len(d.Resources) != 1 || d.Resources[0].Name != "a" ||
			d.Resources[0].State != "rejected" || !strings.Contains(string(d.Node), "envoy") {
			t.Errorf("client with a NACK: %+v", d)
		}
		d = getJSON[admin.ClientDetail](t, r, fmt.Sprintf("/api/v1/clients/%d?limit=1&after=%s", bad.Number, d.Next))
		if len(d.Resources) != 1 || d.Resources[0].Name != "b" || d.Next != "" {
			t.Errorf("second page of its resources: %+v", d)
		}

		a := getJSON[admin.ResourceDetail](t, r, "/api/v1/resources?type=cds&name=a")
		if a.States["accepted"] != 1 || a.States["rejected"] != 1 || a.States["sent"] != 1 || a.Holders[0].NodeID != "bad" ||
			a.Holders[0].Rejection.Detail != "no such filter" {
			t.Errorf("clients with cluster a: %+v", a)
		}
		if body := string(a.Bodies[a.Resources[0].SHA256]); !strings.Contains(body, `"connect_timeout":"5s"`) &&
			!strings.Contains(body, `"connect_timeout": "5s"`) {
			t.Errorf("body of cluster a: %s", body)
		}
		list := getJSON[admin.Resources](t, r, "/api/v1/resources?type=cds&contains=b")
		if list.Total != 1 || list.Resources[0].Name != "b" || !list.Resources[0].Exists ||
			list.Resources[0].AskedAs != "*" || list.Resources[0].Origin != "default" {
			t.Errorf("clusters whose name contains b: %+v", list)
		}
		for path, want := range map[string]int{
			"resources?type=cds&name=nobody": 404, "clients/99": 404, "clients?after=x": 400,
			"resources?type=cds&after=%25": 400, "resources?type=eds&name=b": 200,
		} {
			if code, text := httpGet(t, r.DialAdmin, "/api/v1/"+path); code != want {
				t.Errorf("GET %s: got %d %s, want %d", path, code, text, want)
			}
		}
	})
}

// inZone returns a Node in a zone.
func inZone(zone string, n *corepb.Node) *corepb.Node {
	n.Locality = &corepb.Locality{Zone: zone}
	return n
}

// The versions that a client was sent and accepted follow from its positions and the history. Without a history, a
// former version is not known.
func TestB30_VersionsOfAClient(t *testing.T) {
	for _, env := range []string{"TENDER_HISTORY=2", "TENDER_HISTORY=off"} {
		originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
			put := func(revision string) {
				o.Apply(func(tx *relaytest.Tx) {
					changed := relaytest.Cluster("a")
					changed.AltStatName = revision
					tx.Set(relaytest.ClusterType, "a", changed, revision)
				})
				time.Sleep(time.Second) // virtual time; the history has the change
			}
			o.Put(relaytest.Cluster("b"))
			put("1")
			r := start(t, o, operated, env)
			c := r.Client(relaytest.ClientOptions{Variant: v})
			c.Subscribe(relaytest.ClusterType, "*")
			c.Ack(c.Recv(t.Context()))
			time.Sleep(time.Second)
			versions := func() (of admin.ClientResource, differing int) {
				all := getJSON[admin.Clients](t, r, "/api/v1/clients")
				path := fmt.Sprintf("/api/v1/clients/%d?state=", all.Clients[0].Number)
				return getJSON[admin.ClientDetail](t, r, path).Resources[0],
					len(getJSON[admin.ClientDetail](t, r, path+"not_accepted").Resources)
			}
			first, differing := versions()
			if first.Version == "" || first.Sent.Version != first.Version || first.Accepted != first.Sent || !first.Sent.Known || differing != 0 {
				t.Errorf("after the first ACK: %+v, %d differ; want one known version", first, differing)
			}
			put("2")
			known := admin.ClientVersion{Known: true, Version: first.Version}
			if env == "TENDER_HISTORY=off" {
				known = admin.ClientVersion{}
			}
			second, differing := versions()
			if second.State != "sent" || second.Sent.Version != second.Version || second.Version == first.Version || second.Accepted != known || differing != 1 {
				t.Errorf("%s, after a change: %+v, %d differ; want the new version sent and %+v accepted", env, second, differing, known)
			}
		})
	}
}

// The history has diffs of resources, but not of Secrets. With TENDER_HISTORY=off there is none.
func TestB30_HistoryByJSON(t *testing.T) {
	for _, env := range []string{"TENDER_HISTORY=2", "TENDER_HISTORY=off"} {
		originBubble(t, func(t *testing.T, o *relaytest.Origin) {
			o.Put(relaytest.Cluster("a"))
			r := start(t, o, operated, env)
			c := r.Client(relaytest.ClientOptions{AutoAck: true})
			c.Subscribe(relaytest.ClusterType, "*")
			for _, name := range []string{"one", "two", "three"} {
				time.Sleep(time.Second) // virtual time
				changed := relaytest.Cluster("a")
				changed.AltStatName = name
				o.Put(changed)
			}
			time.Sleep(time.Second)
			o.Remove(relaytest.ClusterType, "a")
			time.Sleep(time.Second)
			if env == "TENDER_HISTORY=off" {
				if code, text := httpGet(t, r.DialAdmin, "/api/v1/history?type=cds&name=a"); code != http.StatusNotFound ||
					!strings.Contains(text, "TENDER_HISTORY is off") {
					t.Errorf("without a history: got %d %s, want 404 with the variable", code, text)
				}
				return
			}
			h := getJSON[admin.History](t, r, "/api/v1/history?type=cds&name=a")
			if len(h.Changes) != 2 || h.Changes[0].Change != "removed" || h.Changes[0].SHA256 != "" ||
				h.Changes[1].Change != "changed" {
				t.Fatalf("got the last changes %+v, want a change and then a removal", h.Changes)
			}
			before := h.Changes[1]
			if !strings.Contains(before.Diff, "-alt_stat_name: two\n+alt_stat_name: three\n") || before.AskedAs != "*" ||
				before.BytesBefore == 0 || before.Version == "" || h.Changes[0].At.Sub(before.At) != time.Second {
				t.Errorf("last change: %+v", before)
			}
			if !strings.Contains(h.Changes[0].Diff, "-name: a\n") {
				t.Errorf("removal: %s", h.Changes[0].Diff)
			}
			for path, want := range map[string]int{"type=cds&name=nobody": 404, "type=sds&name=a": 404, "type=cds": 400,
				"name=a": 400, "type=cds&name=a&group=x": 404, "type=cds&name=a&limit=0": 200} {
				if code, text := httpGet(t, r.DialAdmin, "/api/v1/history?"+path); code != want {
					t.Errorf("GET history?%s: got %d %s, want %d", path, code, text, want)
				}
			}
		})
	}
}

// B.36: operators see neither the content of a Secret nor a client's error message for it.
func TestB36_SecretsAreNotShown(t *testing.T) {
	const key = "correct horse battery staple"
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(&tlspb.Secret{Name: "s", Type: &tlspb.Secret_GenericSecret{GenericSecret: &tlspb.GenericSecret{
			Secret: &corepb.DataSource{Specifier: &corepb.DataSource_InlineString{InlineString: key}},
		}}})
		r := start(t, o, operated)
		c := r.Client(relaytest.ClientOptions{AutoAck: true, Reject: rejecting("s", "cannot parse "+key)})
		c.Subscribe(relaytest.SecretType, "s")
		synctest.Wait()
		for _, path := range []string{"clients", "clients/1", "resources?type=sds", "resources?type=sds&name=s",
			"resources?type=sds&name=s&format=yaml"} {
			if code, text := httpGet(t, r.DialAdmin, "/api/v1/"+path); code != http.StatusOK ||
				strings.Contains(text, "horse") || strings.Contains(path, "sds") && !strings.Contains(text, `"sha256"`) {
				t.Errorf("GET %s: %d %s", path, code, text)
			}
		}
		if got := getJSON[admin.ClientDetail](t, r, "/api/v1/clients/1").Identity; !strings.Contains(got,
			"without a certificate") {
			t.Errorf("identity of a client without a certificate: %q", got)
		}
		if got := getJSON[admin.ClientDetail](t, r, "/api/v1/clients/1").Types[0].Rejection; got == nil ||
			got.Detail != fmt.Sprintf("%d bytes that may quote a Secret are not shown", len("cannot parse ")+len(key)) {
			t.Errorf("NACK of a Secret: got %+v, want only the length of its message", got)
		}
	})
}
