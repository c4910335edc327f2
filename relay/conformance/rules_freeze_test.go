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

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
)

// operate has a relay carry out a command.
func operate[A, R any](t testing.TB, r *running, command string, args A) (answer R) {
	t.Helper()
	code, text := post(t, r, command, args)
	if err := json.Unmarshal([]byte(text), &answer); err != nil || code != http.StatusOK {
		t.Fatalf("%s: %d %s, %v", command, code, text, err)
	}
	return answer
}

// post returns what a relay answers to a command.
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
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/api/v1/"+command, bytes.NewReader(body))
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

// TestFreeze_Clients: clients of a frozen relay are told nothing of what changes, and those
// that come find what there was; thawed, each is told the difference, in the order of types.
func TestFreeze_Clients(t *testing.T) {
	t.Parallel()
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		worldBubble(t, []string{operated}, func(w *world) {
			w.change("cds a@1", "cds b@1", "lds l@1")
			c := w.autoClient(v).subscribe("cds", "").subscribe("lds", "")
			w.settle()
			c.expect(formatFor(v, "cds a@1 b@1"), formatFor(v, "lds l@1"))
			if f := operate[admin.FreezeScope, admin.Freezes](w.t, w.relay, "freeze", admin.FreezeScope{}); !f.Origins[0].Frozen || f.Origins[0].Views == 0 {
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
			if view.FrozenAt.IsZero() || view.Withheld != 4 {
				t.Errorf("frozen at %v, %d names withheld; want a time, and 4", view.FrozenAt, view.Withheld)
			}
			if frozen := metricsOf(w.t, w.relay)["tender_origin_frozen default"]; frozen != 1 {
				t.Errorf("tender_origin_frozen = %v, want 1", frozen)
			}
			if f := operate[admin.FreezeScope, admin.Freezes](w.t, w.relay, "thaw", admin.FreezeScope{}); f.Origins[0].Frozen || f.Origins[0].Withheld != 4 {
				t.Errorf("thaw: %+v, want it thawed, and 4 names that were withheld", f)
			}
			if frozen, ok := metricsOf(w.t, w.relay)["tender_origin_frozen default"]; !ok || frozen != 0 {
				t.Errorf("thawed, tender_origin_frozen = %v (there is one: %t), want 0", frozen, ok)
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

// TestFreeze_NewGroup: a group whose first client comes while the relay is frozen has
// nothing that could be kept: it is told what there is, and no change of that. Those who come
// back to a group that all had left find what there was.
func TestFreeze_NewGroup(t *testing.T) {
	t.Parallel()
	worldBubble(t, []string{"TENDER_NODE_GROUP_BY=cluster", operated}, func(w *world) {
		w.change("cds a@1")
		node := func(cluster string) relaytest.ClientOptions {
			opts := relaytest.ClientOptions{AutoAck: true, Variant: relaytest.Delta}
			opts.Node = relaytest.EnvoyNode("x")
			opts.Node.Cluster = cluster
			return opts
		}
		old := w.dial(node("old")).subscribe("cds", "")
		w.settle()
		old.expect("cds a@1")
		operate[admin.FreezeScope, admin.Freezes](w.t, w.relay, "freeze", admin.FreezeScope{Origin: "default"})
		w.change("cds a@2")
		w.settle()
		fresh := w.dial(node("new")).subscribe("cds", "")
		w.settle()
		fresh.expect("cds a@2")
		w.change("cds a@3")
		w.settle()
		old.expect()
		fresh.expect()
		old.Close()
		w.sleep(48 * time.Hour)
		old = w.dial(node("old")).subscribe("cds", "")
		w.settle()
		old.expect("cds a@1")
		operate[admin.FreezeScope, admin.Freezes](w.t, w.relay, "thaw", admin.FreezeScope{})
		w.settle()
		old.expect("cds a@3")
		fresh.expect("cds a@3")
	})
}

// orderFrozen freezes one relay of two. Of the clusters, "a" is there, and "gone" was removed before.
func orderFrozen(t *testing.T, f func(w *world, other *running)) {
	t.Helper()
	worldBubble(t, []string{operated}, func(w *world) {
		other := start(w.t, w.origin, "TENDER_NODE_ID=tender/other")
		w.change("cds a@1", "cds gone@1", "lds l@1", "rds r@1")
		for _, r := range []*running{w.relay, other} {
			first := w.dialAt(r, relaytest.ClientOptions{Variant: relaytest.Delta, AutoAck: true})
			first.subscribe("cds", "").subscribe("lds", "").subscribe("rds", "r")
			named := w.dialAt(r, relaytest.ClientOptions{Variant: relaytest.SotW, AutoAck: true, Node: relaytest.EnvoyNode("named")})
			named.subscribe("cds", "a gone")
		}
		w.settle()
		w.change("cds -gone")
		w.settle()
		operate[admin.FreezeScope, admin.Freezes](w.t, w.relay, "freeze", admin.FreezeScope{})
		f(w, other)
	})
}

// TestB7_FrozenKeepsWhatClientsHave: a client comes to a frozen relay from one that is not. What came to be since the
// freeze it keeps, also what had been removed before, and what waits for clusters waits with them. A client that has
// nothing is served what was frozen. Thawed, all have the same.
func TestB7_FrozenKeepsWhatClientsHave(t *testing.T) {
	t.Parallel()
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		orderFrozen(t, func(w *world, other *running) {
			w.change("cds young@1", "cds gone@2", "lds young@1", "rds r@2")
			w.settle()
			c := w.dialAt(other, relaytest.ClientOptions{Variant: v, AutoAck: true})
			c.subscribe("cds", "").subscribe("lds", "").subscribe("rds", "r")
			w.settle()
			before := c.State()
			c.Reconnect(w.relay.Conn())
			w.sleep(3 * time.Hour)
			for _, short := range []string{"cds", "lds"} {
				if diff := cmp.Diff(before[typeURLs[short]], c.State()[typeURLs[short]]); diff != "" {
					w.t.Errorf("%s: a client that came to a frozen relay (-had +has):\n%s", short, diff)
				}
			}
			if now := c.State().Digest(relaytest.RouteType, "r"); v == relaytest.SotW && now != before.Digest(relaytest.RouteType, "r") {
				w.t.Error("its clusters stayed, and a route went back")
			}
			late := w.autoClient(v).subscribe("cds", "").subscribe("lds", "")
			w.settle()
			late.expect(formatFor(v, "cds a@1"), formatFor(v, "lds l@1"))
			operate[admin.FreezeScope, admin.Freezes](w.t, w.relay, "thaw", admin.FreezeScope{})
			w.change("cds a@2", "lds l@2")
			w.settle()
			for _, typeURL := range []string{relaytest.ClusterType, relaytest.ListenerType} {
				if diff := cmp.Diff(late.State()[typeURL], c.State()[typeURL]); diff != "" || len(c.State()[typeURL]) < 2 {
					w.t.Errorf("thawed, the clients differ (-late +moved):\n%s", diff)
				}
			}
		})
	})
}

// TestB7_FrozenKeepsNames: so it is for what clients ask for by name. Of who does not hold it, the name is absent.
func TestB7_FrozenKeepsNames(t *testing.T) {
	t.Parallel()
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		orderFrozen(t, func(w *world, _ *running) {
			w.change("cds gone@2")
			w.settle()
			c := w.manualClient(v).subscribeHolding(v, "cds", "a gone", "gone")
			late := w.autoClient(v).subscribe("cds", "a gone")
			w.sleep(3 * time.Hour)
			late.expect(formatFor(v, "cds a@1 -gone"))
			if v == relaytest.Delta {
				c.expectAndAck("cds a@1")
			}
			c.expect()
			operate[admin.FreezeScope, admin.Freezes](w.t, w.relay, "thaw", admin.FreezeScope{})
			w.settle()
			want := map[relaytest.Variant]string{relaytest.Delta: "cds gone@2", relaytest.SotW: "cds {a@1 gone@2}"}[v]
			c.expect(want)
			late.expect(want)
		})
	})
}

// TestB7_FrozenServesItsOwn: a client whose version clients of the frozen relay have seen has nothing from elsewhere,
// and is served what was frozen. So is one that holds an empty set.
func TestB7_FrozenServesItsOwn(t *testing.T) {
	t.Parallel()
	worldBubble(t, []string{operated}, func(w *world) {
		w.change("cds a@1", "cds b@1")
		c := w.autoClient(relaytest.SotW).subscribe("cds", "")
		w.settle()
		c.Close()
		w.change("cds a@2", "cds -b")
		w.settle()
		operate[admin.FreezeScope, admin.Freezes](w.t, w.relay, "freeze", admin.FreezeScope{})
		w.change("cds young@1")
		c.ackPending()
		c.Reconnect(w.relay.Conn())
		w.settle()
		c.expect("cds {a@2}")
		empty := w.manualClient(relaytest.SotW)
		empty.Send(&discoverypb.DiscoveryRequest{
			Node: relaytest.EnvoyNode("empty"), TypeUrl: relaytest.ClusterType, ResourceNames: []string{"a", "b"}, VersionInfo: "r1.AAAAAAAAAAAAAAAAAAAAAA",
		})
		empty.expect("cds {a@2}")
	})
}

// TestB7_FrozenKeepsWhatPollsHave: so it is for polls, which are told that nothing has changed.
func TestB7_FrozenKeepsWhatPollsHave(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		r := start(t, o, operated)
		c := restPoller(t, r, false)
		o.Put(relaytest.Cluster("a"))
		shown := c.poll("clusters", "", "").expectNames("a")
		time.Sleep(time.Minute) // until that is confirmed
		o.Put(relaytest.Cluster("b"))
		frozen := c.poll("clusters", "", shown).expectNames("a", "b")
		operate[admin.FreezeScope, admin.Freezes](t, r, "freeze", admin.FreezeScope{})
		c.poll("clusters", "", frozen).expectNotModified()
		c.poll("clusters", "", "r1.of-another-set").expectNotModified()
		c.poll("clusters", "", shown).expectNames("a", "b")
		c.poll("clusters", "", "").expectNames("a", "b")
		operate[admin.FreezeScope, admin.Freezes](t, r, "thaw", admin.FreezeScope{})
		c.poll("clusters", "", "r1.of-another-set").expectNames("a", "b")
	})
}

// TestFreeze_Returning: what a returning client holds, and a frozen view has not, may have come
// to be since the freeze. The removal waits for the thaw.
func TestFreeze_Returning(t *testing.T) {
	t.Parallel()
	worldBubble(t, []string{operated}, func(w *world) {
		w.change("cds a@1")
		w.autoClient(relaytest.Delta).subscribe("cds", "")
		w.settle()
		operate[admin.FreezeScope, admin.Freezes](w.t, w.relay, "freeze", admin.FreezeScope{})
		w.change("cds young@1")
		c := w.manualClient(relaytest.Delta).subscribeHolding(relaytest.Delta, "cds", "", "a young old")
		c.expectAndAck("cds a@1")
		w.sleep(3 * time.Minute)
		c.expect()
		operate[admin.FreezeScope, admin.Freezes](w.t, w.relay, "thaw", admin.FreezeScope{})
		c.expectAndAck("cds young@1")
		c.expectAndAck("cds -old")
	})
}
