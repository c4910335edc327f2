package conformance_test

import (
	"slices"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
)

// returnsAll has an Envoy come back that uses the EDS cluster a, listener l and route r.
func (c *orderClient) returnsAll(v relaytest.Variant) *orderClient {
	return c.returns(v, "cds", "", "a").returns(v, "eds", "a", "a").returns(v, "lds", "", "l").returns(v, "rds", "r", "r")
}

// orderMoved has the origin move the route r to a new cluster, while nobody asks.
func orderMoved(w *orderWorld) {
	w.change("cds a@1", "cds new@1", "eds a@1", "eds new@1", "lds l@1", "rds r@2")
}

// TestH16_ReturningClientOnANewView: the view of a client's group is new when it returns,
// and its route has moved to a new cluster meanwhile. Everything arrives in order, though the
// set of clusters is known last.
func TestH16_ReturningClientOnANewView(t *testing.T) {
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			orderMoved(w)
			c := w.envoy(v).returnsAll(v)
			var got []string
			for range 20 {
				w.pass(500 * time.Millisecond)
				got = append(got, c.behavesAsEnvoy("a")...)
			}
			checkOrder(t, got, orderForm(v, "cds a@1 new@1"), orderForm(v, "eds new@1"),
				orderForm(v, "lds l@1"), orderForm(v, "rds r@2"))
		})
	})
}

// TestH16_NewClientOnANewView: a client that holds nothing and asks for everything at once
// gets no route before the clusters.
func TestH16_NewClientOnANewView(t *testing.T) {
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			orderMoved(w)
			c := w.envoy(v).subscribe("rds", "r").subscribe("lds", "")
			c.hears(orderForm(v, "rds r@2")) // clusters were not asked for
			c = w.envoy(v).subscribe("cds", "").subscribe("rds", "r")
			c.expect()
			w.pass(150 * time.Millisecond)
			c.hears(orderForm(v, "cds a@1 new@1"), orderForm(v, "rds r@2"))
		})
	})
}

// TestH16_WaitForClustersEnds: an origin that never answers for clusters keeps nobody from
// routes for longer than TENDER_COLD_WAIT.
func TestH16_WaitForClustersEnds(t *testing.T) {
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, []string{"TENDER_COLD_WAIT=20s"}, func(w *orderWorld) {
			w.manual()
			c := w.envoy(v).returns(v, "cds", "", "a").returns(v, "rds", "r", "r")
			s := w.accept()
			w.pass(time.Second)
			w.say(s, "rds r@1")
			w.pass(18900 * time.Millisecond)
			c.expect()
			w.pass(100 * time.Millisecond)
			c.hears(orderForm(v, "rds r@1"))
			w.say(s, "rds r@2")
			c.hears(orderForm(v, "rds r@2"))
		})
	})
}

// TestH16_WithoutTheWildcardNothingWaits: who names clusters gets them as they come.
func TestH16_WithoutTheWildcardNothingWaits(t *testing.T) {
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.manual()
			c := w.envoy(v).subscribe("cds", "a").subscribe("rds", "r")
			s := w.accept()
			w.pass(time.Second)
			w.say(s, "rds r@1")
			c.hears(orderForm(v, "rds r@1"))
		})
	})
}

// TestH16_PrewarmedViewIsKnownBeforeItIsAsked: with TENDER_PREWARM a client of the group
// that asks for something else has the relay learn the clusters, and the next one is
// served at once, in order.
func TestH16_PrewarmedViewIsKnownBeforeItIsAsked(t *testing.T) {
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, []string{"TENDER_PREWARM=cds,lds"}, func(w *orderWorld) {
			orderMoved(w)
			w.ready(v).subscribe("rds", "r").subscribe("eds", "a new")
			w.settle()
			c := w.envoy(v).returnsAll(v)
			got := c.heard()
			if want := orderForm(v, "cds a@1 new@1"); !slices.Contains(got, want) {
				t.Fatalf("got %q, want %q at once", got, want)
			}
			for _, r := range c.read {
				if r.TypeURL == relaytest.ClusterType {
					c.Subscribe(relaytest.EndpointType, "new")
				}
				c.Ack(r)
			}
			checkOrder(t, append(got, c.heard()...), orderForm(v, "cds a@1 new@1"), orderForm(v, "eds new@1"),
				orderForm(v, "lds l@1"), orderForm(v, "rds r@2"))
		})
	})
}
