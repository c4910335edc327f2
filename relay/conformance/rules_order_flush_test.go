package conformance_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
)

// TestR100_CoalescedTypesLeaveInOrder: changes of all types that are due together
// leave clusters first and virtual hosts late, in whatever order the origin made
// them.
func TestR100_CoalescedTypesLeaveInOrder(t *testing.T) { orderVariants(t, orderCoalesced) }

// TestC13_TypesNeverLeaveInRandomOrder is R100 several times: a server that
// leaves the order to chance does not pass it.
func TestC13_TypesNeverLeaveInRandomOrder(t *testing.T) {
	for range 5 {
		orderVariants(t, orderCoalesced)
	}
}

func orderCoalesced(t *testing.T, v relaytest.Variant) {
	orderBubble(t, nil, func(w *orderWorld) {
		wire := []string{"cds", "eds", "leds", "sds", "ecds", "rtds", "lds", "srds", "rds", "vhds", "acme"}
		w.ready(v).subscribe("rds", "another") // so that all is asked of the origin at once, below
		w.pass(time.Second)
		c := w.envoy(v)
		for _, short := range slices.Backward(wire) { // the order of asking does not count
			w.change(short + " x@1")
			c.subscribe(short, "x")
		}
		w.pass(time.Second)
		if got := c.heard(); len(got) != len(wire) {
			t.Fatalf("first responses: got %q, want one of each type", got)
		}
		for _, short := range slices.Backward(wire) { // each is a response of the origin
			w.change(short + " x@2")
		}
		c.expect() // what is un-ACKed holds its type back
		w.pass(5 * time.Second)
		var want []string
		for _, short := range wire {
			want = append(want, orderForm(v, short+" x@2"))
		}
		c.expect(want...)
	})
}

// TestR101_RemovalsOfClustersComeLast: a cluster and its endpoints go only after
// the routes that stop using them were sent, endpoints first.
func TestR101_RemovalsOfClustersComeLast(t *testing.T) {
	t.Run("delta", func(t *testing.T) {
		orderBubble(t, nil, func(w *orderWorld) {
			c := orderSwap(w, relaytest.Delta)
			c.expect("cds new@1", "eds new@1") // the routes wait for their answer
			c.ack("cds", "eds")
			c.expect() // and so do the removals
			c.ack("rds")
			c.expect("rds r@2", "eds -old", "cds -old")
		})
	})
	t.Run("sotw", func(t *testing.T) {
		orderBubble(t, nil, func(w *orderWorld) {
			c := orderSwap(w, relaytest.SotW)
			c.expect("cds {new@1 old@1}", "eds {new@1}")
			c.ack("cds", "eds")
			c.expect()
			c.ack("rds")
			c.expect("rds {r@2}", "cds {new@1}")
		})
	})
}

// orderSwap returns a client that has not answered for its routes, when the origin
// replaces a cluster by another.
func orderSwap(w *orderWorld, v relaytest.Variant) *orderClient {
	w.t.Helper()
	w.change("cds old@1", "eds old@1", "rds r@1")
	c := w.envoy(v).subscribe("cds", "").subscribe("eds", "*")
	w.settle()
	c.hears(orderForm(v, "cds old@1"), orderForm(v, "eds old@1"))
	c.subscribe("rds", "r")
	w.pass(time.Second)
	c.expect(orderForm(v, "rds r@1"))
	w.change("cds new@1", "cds -old", "eds new@1", "eds -old", "rds r@2")
	return c
}

// TestR102_StalledTypeHoldsNoOtherBack: a client that refuses its clusters, or never
// answers for them, still gets its endpoints.
func TestR102_StalledTypeHoldsNoOtherBack(t *testing.T) {
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		for _, refuse := range []bool{false, true} {
			orderBubble(t, nil, func(w *orderWorld) {
				w.change("cds c@1", "eds c@1", "rds r@1")
				c := w.envoy(v).subscribe("cds", "")
				w.settle()
				c.expect(orderForm(v, "cds c@1"))
				if refuse {
					c.nack("cds")
				}
				c.subscribe("eds", "c").subscribe("rds", "r")
				w.pass(time.Second)
				c.hears(orderForm(v, "eds c@1"), orderForm(v, "rds r@1"))
				for rev := 2; rev < 5; rev++ {
					w.change("eds c@" + strconv.Itoa(rev))
					c.hears(orderForm(v, "eds c@"+strconv.Itoa(rev)))
				}
			})
		}
	})
}

// TestR103_OriginsOrderIsKept: a client that keeps up sees changes in the order in
// which the origin made them, whatever their types.
func TestR103_OriginsOrderIsKept(t *testing.T) {
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.change("cds c@1", "rds r@1", "lds l@1")
			c := w.ready(v).subscribe("cds", "").subscribe("rds", "r").subscribe("lds", "")
			w.settle()
			c.heard()
			script := []string{"cds c@2", "rds r@2", "cds c@3", "lds l@2", "rds r@3", "cds c@4", "rds r@4", "lds l@3"}
			var want []string
			for _, change := range script {
				w.change(change)
				want = append(want, orderForm(v, change))
			}
			c.expect(want...)
		})
	})
}
