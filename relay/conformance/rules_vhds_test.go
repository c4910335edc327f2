package conformance_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
)

// onDemand makes the origin serve virtual hosts on demand. Its wildcard contains only rc/base, and it reports
// unknown hosts as aliases without a resource.
func (w *world) onDemand() {
	w.play("has virtual hosts on demand")
}

// subscriptions returns how often the relay has subscribed to a name at the origin.
func (w *world) subscriptions(short, name string) (n int) {
	for _, r := range w.origin.State().Requests(typeURLs[short]) {
		if slices.Contains(r.Message.GetResourceNamesSubscribe(), name) {
			n++
		}
	}
	return n
}

// A SotW client may subscribe to a resource by several aliases. A response contains it once, and further aliases
// cause no response.
func TestR092_AliasesInSotW(t *testing.T) {
	t.Parallel()
	for _, short := range []string{"cds", "lds", "rds", "eds", "acme"} {
		for _, names := range []string{"one", "one two", "real one", "* one", "* one real two"} {
			isComplete := completeFor(relaytest.SotW, short, names)
			worldBubble(t, nil, func(w *world) {
				w.change(short+" real@1=one=two", short+" other@1")
				c := w.manualClient(relaytest.SotW).subscribe(short, names+" other")
				w.settle()
				for len(c.received()) > 0 {
					c.ackBatch()
				}
				if got, want := c.w.n.Describe(c.last[typeURLs[short]]), short+" {other@1 real@1}"; isComplete && got != want {
					t.Errorf("%s %q: got %q, want %q", short, names, got, want)
				}
				plain := w.manualClient(relaytest.SotW).subscribe(short, "real other")
				w.sleep(time.Second)
				plain.receiveAll()
				if got, want := c.last[typeURLs[short]].Version, plain.last[typeURLs[short]].Version; got != want {
					t.Errorf("%s %q: got version %q, want %q as for the same set by other names", short, names, got, want)
				}
				w.sleep(settled)
				c.expect()
				w.change(short + " other@2")
				if isComplete {
					c.expectAndAck(short + " {other@2 real@1}")
				} else {
					c.expectAndAck(short + " {other@2}")
				}
				w.change(short + " real@2=one=two")
				want := short + " {real@2}"
				if isComplete {
					want = short + " {other@2 real@2}"
				}
				if !strings.HasPrefix(names, "*") {
					c.expectAndAck(want)
				}
				// A wildcard and names use two origin streams, whose order is not defined.
				w.sleep(settled)
				for len(c.received()) > 0 {
					c.ackBatch()
				}
				if got := c.w.n.Describe(c.last[typeURLs[short]]); got != want {
					t.Errorf("%s %q: last response %q, want %q", short, names, got, want)
				}
			})
		}
	}
}
