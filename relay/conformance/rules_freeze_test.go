package conformance_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
)

// operate runs an operator's command on a relay, and returns the decoded result.
func operate[A, R any](t testing.TB, r *running, command string, args A) (answer R) {
	t.Helper()
	code, text := post(t, r, command, args)
	if err := json.Unmarshal([]byte(text), &answer); err != nil || code != http.StatusOK {
		t.Fatalf("%s: %d %s, %v", command, code, text, err)
	}
	return answer
}

// freeze runs the command freeze on a relay.
func (r *running) freeze(args admin.FreezeScope) admin.Freezes {
	r.t.Helper()
	return operate[admin.FreezeScope, admin.Freezes](r.t, r, "freeze", args)
}

// thaw runs the command thaw on all origins of a relay.
func (r *running) thaw() admin.Freezes {
	r.t.Helper()
	return operate[admin.FreezeScope, admin.Freezes](r.t, r, "thaw", admin.FreezeScope{})
}

// post sends an operator's command to a relay.
func post(t testing.TB, r *running, command string, args any) (code int, text string) {
	t.Helper()
	body, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return r.DialAdmin(ctx) },
	}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/api/v1/"+command,
		bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s: %s, %v", command, resp.Status, err)
	}
	return resp.StatusCode, string(answer)
}

// Clients of a frozen relay receive no changes, and new clients receive the frozen resources. After the thaw, each
// client receives the differences, in the order of types.
func TestFreeze_Clients(t *testing.T) {
	t.Parallel()
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		worldBubble(t, []string{operated}, func(w *world) {
			w.change("cds a@1", "cds b@1", "lds l@1")
			c := w.autoClient(v).subscribe("cds", "").subscribe("lds", "")
			w.settle()
			c.expect(formatFor(v, "cds a@1 b@1"), formatFor(v, "lds l@1"))
			if f := w.relay.freeze(admin.FreezeScope{}); !f.Origins[0].Frozen || f.Origins[0].Views == 0 {
				t.Errorf("freeze: %+v, want the origin and its views frozen", f)
			}
			w.change("lds l@2")
			w.change("cds a@2", "cds c@2", "cds -b")
			w.change("cds a@3")
			w.settle()
			c.expect()
			late := w.autoClient(v).subscribe("cds", "")
			w.settle()
			late.expect(formatFor(v, "cds a@1 b@1"))
			view := statusOf(w.t, w.relay).Views[0]
			if view.FrozenAt.IsZero() || view.Pending != 4 {
				t.Errorf("frozen at %v with %d pending names, want a time and 4 names", view.FrozenAt, view.Pending)
			}
			if frozen := metricsOf(w.t, w.relay)["tender_origin_frozen default"]; frozen != 1 {
				t.Errorf("tender_origin_frozen = %v, want 1", frozen)
			}
			if f := w.relay.thaw(); f.Origins[0].Frozen || f.Origins[0].Pending != 4 {
				t.Errorf("thaw: %+v, want it thawed with 4 pending names", f)
			}
			if frozen, ok := metricsOf(w.t, w.relay)["tender_origin_frozen default"]; !ok || frozen != 0 {
				t.Errorf("after the thaw, tender_origin_frozen = %v (present: %t), want 0", frozen, ok)
			}
			w.settle()
			if v == relaytest.Delta {
				c.expect("cds a@3 c@2", "lds l@2", "cds -b")
			} else {
				c.expect(formatFor(v, "cds a@3 b@1 c@2"), formatFor(v, "lds l@2"), formatFor(v, "cds a@3 c@2"))
			}
		})
	})
}

// frozenBubble runs f with a frozen relay and another relay of the same origin. The cluster a exists, and the
// cluster gone was removed before the freeze.
func frozenBubble(t *testing.T, f func(w *world, other *running)) {
	t.Helper()
	worldBubble(t, []string{operated}, func(w *world) {
		other := start(w.t, w.origin, "TENDER_NODE_ID=tender/other")
		w.change("cds a@1", "cds gone@1", "lds l@1", "rds r@1")
		for _, r := range []*running{w.relay, other} {
			first := w.dialAt(r, relaytest.ClientOptions{Variant: relaytest.Delta, AutoAck: true})
			first.subscribe("cds", "").subscribe("lds", "").subscribe("rds", "r")
			named := w.dialAt(r, relaytest.ClientOptions{Variant: relaytest.SotW, AutoAck: true,
				Node: relaytest.EnvoyNode("named")})
			named.subscribe("cds", "a gone")
		}
		w.settle()
		w.change("cds -gone")
		w.settle()
		w.relay.freeze(admin.FreezeScope{})
		f(w, other)
	})
}

// A client that moves from another relay to a frozen one is served the frozen state as a new client is, by wildcard and
// by name: newer resources are removed, and newer content is replaced. So it is while the origin is down. After the
// thaw, it has what the other relay serves.
func TestB7_FrozenRelayServesItsStateToAll(t *testing.T) {
	t.Parallel()
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		frozenBubble(t, func(w *world, other *running) {
			w.change("cds young@1", "cds gone@2", "lds young@1", "rds r@2")
			w.settle()
			subscribed := func(at *running) (clients []*relaytest.Client) {
				for _, names := range []string{"", "a gone"} {
					c := w.dialAt(at, relaytest.ClientOptions{Variant: v, AutoAck: true})
					clients = append(clients, c.subscribe("cds", names).subscribe("lds", "").subscribe("rds", "r").Client)
				}
				w.settle()
				return clients
			}
			moved, newest := subscribed(other), subscribed(other)
			w.stop()
			w.settle()
			for _, c := range moved {
				c.Reconnect(w.relay.Conn())
			}
			w.settle()
			expect := func(when string, want []*relaytest.Client) {
				t.Helper()
				for i, c := range moved {
					for _, short := range []string{"cds", "lds", "rds"} {
						got := c.State()[typeURLs[short]]
						if diff := cmp.Diff(want[i].State()[typeURLs[short]], got); diff != "" || len(got) == 0 {
							w.t.Errorf("%s, client %d of %d: %s differ (-want +moved):\n%s", when, i, len(moved), short, diff)
						}
					}
				}
			}
			expect("frozen", subscribed(w.relay))
			w.restart()
			w.settle()
			expect("connected again", subscribed(w.relay))
			w.relay.thaw()
			w.settle()
			expect("thawed", newest)
		})
	})
}

// A polling client with an unknown version gets the frozen set.
func TestB7_FrozenRelayServesItsStateToPolls(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		r := start(t, o, operated)
		c := restPoller(t, r, false)
		o.Put(relaytest.Cluster("a"))
		first := c.poll("clusters", "", "").expectNames("a")
		time.Sleep(time.Minute) // until the sets are confirmed
		o.Put(relaytest.Cluster("b"))
		frozen := c.poll("clusters", "", first).expectNames("a", "b")
		r.freeze(admin.FreezeScope{})
		c.poll("clusters", "", frozen).expectNotModified()
		c.poll("clusters", "", "r1.of-another-set").expectNames("a", "b")
		o.Put(relaytest.Cluster("young"))
		sleep(time.Second)
		c.poll("clusters", "", first).expectNames("a", "b")
		c.poll("clusters", "", "").expectNames("a", "b")
		r.thaw()
		c.poll("clusters", "", "r1.of-another-set").expectNames("a", "b", "young")
	})
}
