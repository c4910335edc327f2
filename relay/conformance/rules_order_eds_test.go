package conformance_test

import (
	"testing"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
)

// orderWarm returns a client that holds the EDS clusters a and b, with endpoints
// asked for by name or, if names is "*", by wildcard.
func orderWarm(w *orderWorld, opts relaytest.ClientOptions, names string) *orderClient {
	w.t.Helper()
	w.change("cds a@1", "cds b@1", "eds a@1", "eds b@1", "lds l@1", "rds r@1")
	c := w.dial(opts).subscribe("cds", "")
	w.settle()
	c.hears(orderForm(opts.Variant, "cds a@1 b@1"))
	c.subscribe("eds", names)
	w.settle()
	c.heard()
	for _, r := range c.read {
		c.Ack(r)
	}
	c.expect()
	return c
}

// TestR098_ChangedClusterIsFollowedByItsEndpoints: an Envoy warms a changed cluster
// until it gets endpoints, changed or not; so they follow, and only those of this
// cluster.
func TestR098_ChangedClusterIsFollowedByItsEndpoints(t *testing.T) {
	for name, names := range map[string]string{"named": "a b", "wildcard": "*"} {
		t.Run(name, func(t *testing.T) {
			orderVariants(t, func(t *testing.T, v relaytest.Variant) {
				orderBubble(t, nil, func(w *orderWorld) {
					c := orderWarm(w, relaytest.ClientOptions{Variant: v}, names)
					w.change("cds a@2")
					clusters := orderForm(v, "cds a@2")
					if v == relaytest.SotW {
						clusters = "cds {a@2 b@1}"
					}
					c.hears(clusters, orderForm(v, "eds a@1"))
					w.pass(time.Minute)
					c.expect()
				})
			})
		})
	}
}

// TestC04_WarmingClusterGetsItsEndpoints: the endpoints follow even where those that
// were sent last are not answered yet, and a request that repeats the names, as
// Envoys make while they warm, is an answer and no question.
func TestC04_WarmingClusterGetsItsEndpoints(t *testing.T) {
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			c := orderWarm(w, relaytest.ClientOptions{Variant: v}, "a b")
			w.change("eds a@2")
			c.expect(orderForm(v, "eds a@2")) // not answered
			w.change("cds a@2")
			clusters := orderForm(v, "cds a@2")
			if v == relaytest.SotW {
				clusters = "cds {a@2 b@1}"
			}
			c.expect(clusters)
			c.ack("eds")
			c.expect(orderForm(v, "eds a@2"))
			if v == relaytest.SotW {
				c.subscribe("eds", "a b") // as an ACK
			} else {
				c.ack("eds")
			}
			c.expect()
			w.pass(time.Minute)
			c.expect()
		})
	})
}

// TestB16_EndpointsFollowOnce: endpoints that changed together with their cluster
// are sent once, after it.
func TestB16_EndpointsFollowOnce(t *testing.T) {
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			c := orderWarm(w, relaytest.ClientOptions{Variant: v}, "a b")
			w.change("cds a@2", "cds b@2")
			c.expect(orderForm(v, "cds a@2 b@2"), orderForm(v, "eds a@1 b@1"))
			w.change("eds a@3", "cds a@3") // both wait for answers
			c.ack("eds")
			c.expect(orderForm(v, "eds a@3"))
			c.ack("cds")
			clusters := orderForm(v, "cds a@3")
			if v == relaytest.SotW {
				clusters = "cds {a@3 b@2}"
			}
			c.expect(clusters)
			c.ack("eds", "cds")
			c.expect(orderForm(v, "eds a@3"))
		})
	})
}

// TestB16_ByServiceName: the endpoints of a cluster are those of its EDS service
// name, where it has one.
func TestB16_ByServiceName(t *testing.T) {
	orderBubble(t, nil, func(w *orderWorld) {
		w.origin.Put(relaytest.Cluster("shop", "shop.svc"), relaytest.StaticCluster("static", "127.0.0.1:1"))
		w.change("eds shop.svc@1", "eds shop@1", "eds static@1")
		c := w.ready(relaytest.Delta).subscribe("cds", "").subscribe("eds", "shop shop.svc static")
		w.settle()
		c.heard()
		changed := relaytest.Cluster("shop", "shop.svc")
		changed.AltStatName = "changed"
		w.origin.Put(changed)
		c.expect("cds shop@?", "eds shop.svc@1")
		w.origin.Put(relaytest.StaticCluster("static", "127.0.0.1:2"))
		c.expect("cds static@?")
	})
}

// TestB16_OffWhereItServesNobody: endpoints do not follow for gRPC clients, which
// do not warm, nor where they are switched off.
func TestB16_OffWhereItServesNobody(t *testing.T) {
	for _, tt := range []struct {
		name string
		env  []string
		opts relaytest.ClientOptions
	}{
		{"grpc delta", nil, relaytest.ClientOptions{Node: relaytest.GRPCNode("g")}},
		{"grpc sotw", nil, relaytest.ClientOptions{Variant: relaytest.SotW, Node: relaytest.GRPCNode("g")}},
		{"switched off", []string{"TENDER_EDS_AFTER_CDS=off"}, relaytest.ClientOptions{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			orderBubble(t, tt.env, func(w *orderWorld) {
				c := orderWarm(w, tt.opts, "a b")
				w.change("cds a@2", "cds b@2")
				c.hears(orderForm(tt.opts.Variant, "cds a@2 b@2"))
				w.pass(time.Minute)
				c.expect()
			})
		})
	}
}

// TestR099_ChangedListenerNeedsNoRoutes: a warming listener gets its routes only if
// they changed.
func TestR099_ChangedListenerNeedsNoRoutes(t *testing.T) {
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.change("lds l@1", "rds routes@1")
			c := w.ready(v).subscribe("lds", "").subscribe("rds", "routes")
			w.settle()
			c.heard()
			w.change("lds l@2")
			c.expect(orderForm(v, "lds l@2"))
			w.pass(time.Minute)
			c.expect()
		})
	})
}
