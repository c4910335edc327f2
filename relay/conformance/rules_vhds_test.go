package conformance_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/relay/relaytest"
)

// vhdsBubble runs f in a world whose origin has virtual hosts on demand: its wildcard
// has rc/base alone, and for a host that it does not know it says so.
func vhdsBubble(t *testing.T, f func(w *world)) {
	t.Helper()
	worldBubble(t, nil, func(w *world) {
		w.onDemand()
		w.change("vhds rc/base@1", "vhds rc/web@1=rc/a.example=rc/b.example")
		f(w)
	})
}

// onDemand has the origin's wildcard of virtual hosts hold rc/base alone, and the origin
// say of hosts that it does not know that they mean nothing.
func (w *world) onDemand() {
	host := func(typeURL, name string) bool { return typeURL == relaytest.VirtualHostType && name != "rc/base" }
	w.origin.Change(func(b *relaytest.Behaviour) { b.NamedOnly, b.Unresolved = host, host })
}

// asked returns how often the origin was asked for a name.
func (w *world) subscriptions(short, name string) (n int) {
	for _, r := range w.origin.State().Requests(typeURLs[short]) {
		if slices.Contains(r.Message.GetResourceNamesSubscribe(), name) {
			n++
		}
	}
	return n
}

// In SotW aliases count too: a resource is in a response once, however often it was
// asked for, and nothing is said again for it.
func TestR092_AliasesInSotW(t *testing.T) {
	t.Parallel()
	for _, short := range []string{"cds", "lds", "rds", "eds", "acme"} {
		for _, names := range []string{"one", "one two", "real one", "* one", "* one real two"} {
			whole := completeFor(relaytest.SotW, short, names)
			worldBubble(t, nil, func(w *world) {
				w.change(short+" real@1=one=two", short+" other@1")
				c := w.manualClient(relaytest.SotW).subscribe(short, names+" other")
				w.settle()
				for len(c.received()) > 0 {
					c.ackAll()
				}
				if got, want := c.w.describe(c.last[typeURLs[short]]), short+" {other@1 real@1}"; whole && got != want {
					t.Errorf("%s %q: was told %q, want %q", short, names, got, want)
				}
				plain := w.manualClient(relaytest.SotW).subscribe(short, "real other")
				w.sleep(time.Second)
				plain.receiveAll()
				if got, want := c.last[typeURLs[short]].Version, plain.last[typeURLs[short]].Version; got != want {
					t.Errorf("%s %q: got version %q, and %q for the same set by other names", short, names, got, want)
				}
				w.sleep(time.Hour)
				c.expect()
				w.change(short + " other@2")
				if whole {
					c.expectAndAck(short + " {other@2 real@1}")
				} else {
					c.expectAndAck(short + " {other@2}")
				}
				w.change(short + " real@2=one=two")
				want := short + " {real@2}"
				if whole {
					want = short + " {other@2 real@2}"
				}
				if !strings.HasPrefix(names, "*") {
					c.expectAndAck(want)
				}
				// A wildcard beside names comes on two streams, without an order between them.
				w.sleep(time.Hour)
				for len(c.received()) > 0 {
					c.ackAll()
				}
				if got := c.w.describe(c.last[typeURLs[short]]); got != want {
					t.Errorf("%s %q: was told %q last, want %q", short, names, got, want)
				}
			})
		}
	}
}

// That a host means nothing is passed on as the origin says it, to who asks within 5s
// too, and then the origin is asked again when somebody asks (B.20).
func TestR095_UnknownHosts(t *testing.T) {
	t.Parallel()
	vhdsBubble(t, func(w *world) {
		first := w.manualClient(relaytest.Delta).subscribe("vhds", "rc/nope")
		w.sleep(time.Second)
		first.expectAndAck("vhds rc/nope?")
		w.sleep(3 * time.Second)
		second := w.manualClient(relaytest.Delta).subscribe("vhds", "rc/nope")
		second.expectAndAck("vhds rc/nope?")
		if n := w.subscriptions("vhds", "rc/nope"); n != 1 {
			t.Errorf("the origin was asked %d times within 5s, want once", n)
		}
		w.sleep(time.Hour)
		first.expect()
		second.expect()
		if n := w.subscriptions("vhds", "rc/nope"); n != 1 {
			t.Errorf("the origin was asked %d times though nobody asked again, want once", n)
		}
		third := w.manualClient(relaytest.Delta).subscribe("vhds", "rc/nope")
		w.sleep(time.Second)
		third.expectAndAck("vhds rc/nope?")
		if n := w.subscriptions("vhds", "rc/nope"); n != 2 {
			t.Errorf("the origin was asked %d times, want again after 5s", n)
		}
		w.sleep(time.Minute)
		first.expect() // it has been told that before
		again := &discoverypb.DeltaDiscoveryRequest{TypeUrl: typeURLs["vhds"], ResourceNamesSubscribe: []string{"rc/nope"}}
		first.Send(again)
		w.sleep(time.Second)
		first.expectAndAck("vhds rc/nope?")
		if n := w.subscriptions("vhds", "rc/nope"); n != 3 {
			t.Errorf("the origin was asked %d times, want again for one who has asked before", n)
		}

		// Once it means something, all are told.
		w.change("vhds rc/new@1=rc/nope")
		for _, c := range []*worldClient{first, second, third} {
			c.expectAndAck("vhds rc/new@1=rc/nope")
		}
		w.manualClient(relaytest.Delta).subscribe("vhds", "rc/nope").expectAndAck("vhds rc/new@1=rc/nope")
		if n := w.subscriptions("vhds", "rc/nope"); n != 3 {
			t.Errorf("the origin was asked %d times, want no more", n)
		}
	})
}
