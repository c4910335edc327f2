package conformance_test

import (
	"testing"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
)

// orderServed returns a client that was sent, and accepted, one cluster c, one
// listener l and one route r. By name if named.
func orderServed(w *orderWorld, v relaytest.Variant, named bool) *orderClient {
	w.t.Helper()
	w.change("cds c@1", "lds l@1", "rds r@1")
	c := w.envoy(v)
	if named {
		c.subscribe("cds", "c new").subscribe("lds", "l")
	} else {
		c.subscribe("cds", "").subscribe("lds", "")
	}
	c.subscribe("rds", "r")
	w.settle()
	c.heard()
	for _, r := range c.read {
		c.Ack(r)
	}
	w.pass(time.Minute)
	c.expect()
	return c
}

// TestB11_3_OtherTypesSwapInOneResponse: only clusters and endpoints split what is
// added from what is removed. A new listener may need the old one's address.
func TestB11_3_OtherTypesSwapInOneResponse(t *testing.T) {
	orderBubble(t, nil, func(w *orderWorld) {
		c := orderServed(w, relaytest.Delta, false)
		w.change("lds m@1", "lds -l")
		c.hears("lds m@1 -l")
		w.change("cds d@1", "cds -c")
		c.hears("cds d@1")
		c.hears("cds -c")
	})
}

// TestB11_4_UnionFirst: a SotW client whose set both gains and loses clusters gets
// all of them first, and then the set without what is gone, by wildcard or by
// name.
func TestB11_4_UnionFirst(t *testing.T) {
	for name, named := range map[string]bool{"wildcard": false, "named": true} {
		t.Run(name, func(t *testing.T) {
			orderBubble(t, nil, func(w *orderWorld) {
				c := orderServed(w, relaytest.SotW, named)
				w.change("cds new@1", "cds -c")
				c.expect("cds {c@1 new@1}")
				w.pass(time.Second)
				c.expect()
				c.ack("cds")
				c.hears("cds {new@1}")
				w.pass(time.Minute)
				c.expect()
			})
		})
	}
}

// TestB11_4_OnlyRemovalsNeedNoUnion: a set that only shrinks is sent once.
func TestB11_4_OnlyRemovalsNeedNoUnion(t *testing.T) {
	orderBubble(t, nil, func(w *orderWorld) {
		w.change("cds c@1", "cds d@1")
		c := w.envoy(relaytest.SotW).subscribe("cds", "")
		w.settle()
		c.hears("cds {c@1 d@1}")
		w.change("cds -d")
		c.hears("cds {c@1}")
		w.pass(time.Minute)
		c.expect()
	})
}

// TestB11_5_DependentsStayBehindClusters: while a client has not answered for
// clusters and more of them are due, listeners and routes of that time are not
// sent; its answer, or the end of the wait for it, frees them.
func TestB11_5_DependentsStayBehindClusters(t *testing.T) {
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		for name, answers := range map[string]bool{"answer": true, "no answer": false} {
			t.Run(name, func(t *testing.T) {
				orderBubble(t, nil, func(w *orderWorld) {
					c := orderServed(w, v, false)
					w.change("cds c@2")
					c.expect(orderForm(v, "cds c@2"))
					w.change("cds c@3", "rds r@2", "lds l@2")
					c.expect()
					if answers {
						c.ack("cds")
					} else {
						w.pass(4900 * time.Millisecond)
						c.expect()
						w.pass(100 * time.Millisecond)
					}
					c.expect(orderForm(v, "cds c@3"), orderForm(v, "lds l@2"), orderForm(v, "rds r@2"))
				})
			})
		}
	})
}

// TestB11_5_ChangesFromBeforeAreSent: what the origin said of routes before the
// clusters that are due is not held back.
func TestB11_5_ChangesFromBeforeAreSent(t *testing.T) {
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			c := orderServed(w, v, false)
			w.change("cds c@2")
			c.expect(orderForm(v, "cds c@2"))
			w.change("rds r@2") // nothing of clusters is due yet
			c.hears(orderForm(v, "rds r@2"))
			w.change("cds c@3", "rds r@3")
			c.expect()
		})
	})
}

// TestB11_5_JustRequestedNamesAreExempt: a route that a client asks for is
// answered although clusters are due, and the changes that wait go on waiting.
func TestB11_5_JustRequestedNamesAreExempt(t *testing.T) {
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.change("rds s@1")
			c := orderServed(w, v, false)
			w.change("cds c@2")
			c.expect(orderForm(v, "cds c@2"))
			w.change("cds c@3", "rds r@2")
			c.expect()
			c.subscribe("rds", "s")
			w.pass(time.Second)
			c.hears(orderForm(v, "rds s@1"))
			c.ack("cds")
			c.expect(orderForm(v, "cds c@3"), orderForm(v, "rds r@2"))
		})
	})
}

// TestB11_6_WithoutAnswerRemovalsWaitForTheAckWait: the removal that follows new
// clusters waits for their answer, but not for ever: clients may lawfully never
// answer.
func TestB11_6_WithoutAnswerRemovalsWaitForTheAckWait(t *testing.T) {
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		for name, named := range map[string]bool{"wildcard": false, "named": true} {
			t.Run(name, func(t *testing.T) {
				orderBubble(t, nil, func(w *orderWorld) {
					c := orderServed(w, v, named)
					w.change("cds new@1", "cds -c")
					first, last := "cds new@1", "cds -c"
					if v == relaytest.SotW {
						first, last = "cds {c@1 new@1}", "cds {new@1}"
					}
					c.expect(first)
					w.pass(4900 * time.Millisecond)
					c.expect()
					w.pass(100 * time.Millisecond)
					c.expect(last)
				})
			})
		}
	})
}

// TestB11_7_AcknowledgementShowsNothingEarly: a request is answered from the same
// cut as a change: the answer for routes does not let newer routes past the
// clusters.
func TestB11_7_AcknowledgementShowsNothingEarly(t *testing.T) {
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			c := orderServed(w, v, false)
			w.change("rds r@2")
			w.change("lds l@2")
			c.expect(orderForm(v, "rds r@2"), orderForm(v, "lds l@2"))
			w.change("cds c@2")
			c.expect(orderForm(v, "cds c@2"))
			w.change("cds c@3", "rds r@3", "lds l@3")
			c.ack("rds", "lds")
			c.expect()
			c.ack("cds")
			c.expect(orderForm(v, "cds c@3"), orderForm(v, "lds l@3"), orderForm(v, "rds r@3"))
		})
	})
}

// TestB11_8_NothingWaitsForWhatTheOriginHasNotSent: a removal with nothing before it
// goes at once, and a route to a cluster that the origin never sent goes too.
func TestB11_8_NothingWaitsForWhatTheOriginHasNotSent(t *testing.T) {
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			c := orderServed(w, v, false)
			c.subscribe("eds", "c") // warming: no endpoints exist
			w.pass(time.Second)
			c.heard()
			w.change("rds r@7") // leads to a cluster that nobody knows
			c.hears(orderForm(v, "rds r@7"))
			w.change("cds -c")
			c.hears(orderForm(v, "cds -c"))
		})
	})
}

// TestB12_CancelledChangesAreNotSent: a cluster that came and went while the client
// had something to answer is not mentioned.
func TestB12_CancelledChangesAreNotSent(t *testing.T) {
	orderBubble(t, nil, func(w *orderWorld) {
		c := orderServed(w, relaytest.SotW, false)
		w.change("cds c@2")
		c.expect("cds {c@2}")
		w.change("cds d@1")
		w.change("cds -d")
		c.ack("cds")
		w.pass(time.Minute)
		c.expect()
	})
}
