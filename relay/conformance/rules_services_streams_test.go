package conformance_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
)

// TestB26_AMixedFleetSharesTheOrigin: whoever asks, on whatever kind of stream, the
// origin is asked once, and each change reaches all.
func TestB26_AMixedFleetSharesTheOrigin(t *testing.T) {
	t.Parallel()
	orderBubble(t, nil, func(w *orderWorld) {
		w.change("cds a@1", "eds a@1")
		fleet := map[relaytest.Variant][]*orderClient{}
		for _, v := range []relaytest.Variant{relaytest.SotW, relaytest.Delta} {
			for range 3 {
				fleet[v] = append(fleet[v], w.stream(v, "cds").subscribe("cds", ""), w.envoy(v).subscribe("cds", ""))
			}
			eds := w.stream(v, "eds").subscribe("eds", "a")
			w.pass(time.Second)
			eds.hears(orderForm(v, "eds a@1"))
		}
		told := func(response string) {
			t.Helper()
			for v, clients := range fleet {
				for _, c := range clients {
					c.hears(orderForm(v, response))
				}
			}
		}
		told("cds a@1")
		w.change("cds a@2")
		told("cds a@2")

		s := w.origin.State()
		if s.Connections != 1 || len(s.Streams) != 1 {
			t.Errorf("the origin sees %d connections and %d streams, want one of each", s.Connections, len(s.Streams))
		}
		for typeURL, names := range map[string][]string{relaytest.ClusterType: {"*"}, relaytest.EndpointType: {"a"}} {
			if got := s.Names(typeURL); !slices.Equal(got, names) {
				t.Errorf("the relay subscribes to %q of %s, want %q", got, typeURL, names)
			}
			asked := slices.DeleteFunc(s.Requests(typeURL), func(r relaytest.Request) bool { return r.Message.GetResponseNonce() != "" })
			if len(asked) != 1 {
				t.Errorf("the origin was asked for %s %d times, want once: %v", typeURL, len(asked), asked)
			}
		}
	})
}

// TestB26_ARefusalOnOneStreamCrossesNothing: not to the other streams of the same
// client, of the same type or another, and not to the origin.
func TestB26_ARefusalOnOneStreamCrossesNothing(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.change("cds a@1", "rds r@1")
			refuses, accepts, routes := w.stream(v, "cds"), w.stream(v, "cds"), w.stream(v, "rds")
			refuses.subscribe("cds", "")
			accepts.subscribe("cds", "")
			routes.subscribe("rds", "r")
			w.pass(time.Second)
			refuses.expect(orderForm(v, "cds a@1"))
			accepts.hears(orderForm(v, "cds a@1"))
			routes.hears(orderForm(v, "rds r@1"))

			refuses.nack("cds")
			w.pass(time.Minute)
			refuses.expect() // nothing is sent again
			accepts.expect()
			routes.expect()
			w.change("cds a@2", "rds r@2")
			refuses.hears(orderForm(v, "cds a@2"))
			accepts.hears(orderForm(v, "cds a@2"))
			routes.hears(orderForm(v, "rds r@2"))
			if n := w.origin.State().Type(relaytest.ClusterType).NACKs; n != 0 {
				t.Errorf("%d refusals reached the origin", n)
			}
		})
	})
}

// TestB26_StreamsDoNotWaitForOneAnother: a route that needs clusters waits for them
// on the aggregated stream that both are on (B.11), and cannot where they are on
// two; nor do the removals of clusters wait for it.
func TestB26_StreamsDoNotWaitForOneAnother(t *testing.T) {
	t.Parallel()
	orderBubble(t, nil, func(w *orderWorld) {
		const v = relaytest.Delta
		w.change("cds old@1", "rds r@1")
		clusters, routes := w.stream(v, "cds").subscribe("cds", ""), w.stream(v, "rds").subscribe("rds", "r")
		w.pass(time.Second)
		both := w.envoy(v).subscribe("cds", "").subscribe("rds", "r")
		clusters.hears("cds old@1")
		routes.hears("rds r@1")
		both.hears("cds old@1", "rds r@1")

		w.change("cds new@1")
		clusters.expect("cds new@1")
		both.expect("cds new@1")
		w.change("cds newer@1", "cds -old", "rds r@2") // the clusters are not answered yet
		routes.expect("rds r@2")
		both.expect()
		clusters.ack("cds")
		both.ack("cds")
		clusters.hears("cds newer@1")
		both.expect("cds newer@1", "rds r@2")
		clusters.hears("cds -old") // although the route is not answered
	})
}

// TestB17_TypesOnStreamsOfTheirOwn: which types an empty first request fetches
// whole, and what the response to one change of two names holds, is as on an
// aggregated stream.
func TestB17_TypesOnStreamsOfTheirOwn(t *testing.T) {
	t.Parallel()
	legacy := []string{"cds", "lds", "srds", "vhds"}
	full := []string{"cds", "lds", "srds"}
	grouped := []string{"sds", "rtds", "ecds"} // for Envoy
	servicesEach(t, func(w *orderWorld, v relaytest.Variant, short string) {
		w.change(short+" a@1", short+" b@1")
		for i, node := range []string{"envoy", "grpc"} {
			opts := relaytest.ClientOptions{Variant: v, TypeURL: orderTypes[short]}
			whole := slices.Contains(full, short)
			if node == "grpc" {
				opts.Node = relaytest.GRPCNode(node)
			} else {
				whole = whole || slices.Contains(grouped, short)
			}
			empty, named := w.dial(opts).subscribe(short, ""), w.dial(opts).subscribe(short, "a b")
			w.pass(time.Second)
			a := fmt.Sprint(" a@", i+1)
			named.hears(orderForm(v, short+a+" b@1"))
			if slices.Contains(legacy, short) {
				empty.hears(orderForm(v, short+a+" b@1"))
			} else {
				empty.expect()
			}
			a = fmt.Sprint(" a@", i+2)
			w.change(short + a)
			if v == relaytest.SotW && whole {
				named.hears(orderForm(v, short+a+" b@1"))
			} else {
				named.hears(orderForm(v, short+a))
			}
			empty.Close()
		}
	})
}

// TestC03_ANonceOfADeadStream: on a new stream of one type it means nothing, and
// the request that carries it is answered.
func TestC03_ANonceOfADeadStream(t *testing.T) {
	t.Parallel()
	servicesEach(t, func(w *orderWorld, v relaytest.Variant, short string) {
		w.change(short + " a@1")
		c := w.stream(v, short)
		c.Send(streamRequest(v, orderTypes[short], "77", "a"))
		w.pass(time.Second)
		c.hears(orderForm(v, short+" a@1"))
	})
}

// TestC04_TheEndpointsOfAChangedCluster: an Envoy whose endpoints come without ADS
// opens a new stream for a cluster that changed, and waits for an answer on it. It
// gets one though the endpoints are as they were, and the old stream is not
// bothered.
func TestC04_TheEndpointsOfAChangedCluster(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.change("cds a@1", "eds a@1")
			clusters, before := w.stream(v, "cds").subscribe("cds", ""), w.stream(v, "eds").subscribe("eds", "a")
			w.pass(time.Second)
			clusters.hears(orderForm(v, "cds a@1"))
			before.hears(orderForm(v, "eds a@1"))
			w.change("cds a@2")
			clusters.hears(orderForm(v, "cds a@2"))
			w.stream(v, "eds").subscribe("eds", "a").hears(orderForm(v, "eds a@1"))
			before.expect()
		})
	})
}

// TestB35_AStreamForEachCluster: an Envoy may open hundreds of streams of endpoints
// on one connection. Each gets its own, the origin sees one stream, and what they
// give up is given up there.
func TestB35_AStreamForEachCluster(t *testing.T) {
	t.Parallel()
	const clusters = 300
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, []string{"TENDER_LINGER=1s"}, func(w *orderWorld) {
			var names, changes []string
			for i := range clusters {
				names = append(names, fmt.Sprintf("c%03d", i))
				changes = append(changes, "eds "+names[i]+"@1")
			}
			w.change(changes...)
			conn := w.relay.Conn()
			var streams []*relaytest.LightClient
			for _, name := range names {
				c := relaytest.NewLightClient(w.t, conn, relaytest.LightOptions{Variant: v, TypeURL: orderTypes["eds"]})
				c.Subscribe(orderTypes["eds"], name)
				streams = append(streams, c)
			}
			w.pass(time.Second)
			w.change("eds c007@2")
			for i, c := range streams {
				responses := 1
				if i == 7 {
					responses = 2
				}
				if got := c.Counts(); !c.State().Has(orderTypes["eds"], names[i]) || got.Responses != responses {
					t.Errorf("the stream of %s has %v after %d responses", names[i], c.State().Names(orderTypes["eds"]), got.Responses)
				}
			}
			if s := w.origin.State(); len(s.Streams) != 1 || !s.Subscribed(orderTypes["eds"], names...) {
				t.Errorf("the origin sees %d streams that want %v", len(s.Streams), s.Names(orderTypes["eds"]))
			}
			for _, c := range streams[1:] {
				c.Close()
			}
			w.pass(time.Minute)
			if s := w.origin.State(); !s.Subscribed(orderTypes["eds"], names[0]) {
				t.Errorf("the relay still subscribes to %v, want %s alone", s.Names(orderTypes["eds"]), names[0])
			}
		})
	})
}

// TestB8_AStreamOfOneTypeIsColdByItself: an aggregated stream lives on if one of its
// types is known; of two streams, the one of which nothing is known ends, unserved.
func TestB8_AStreamOfOneTypeIsColdByItself(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.change("cds a@1", "eds a@1")
			w.ready(v).subscribe("cds", "")
			w.settle()
			w.stop()
			both := w.envoy(v).subscribe("cds", "").subscribe("eds", "a")
			both.hears(orderForm(v, "cds a@1"))
			clusters := w.stream(v, "cds").subscribe("cds", "")
			clusters.hears(orderForm(v, "cds a@1"))
			w.stream(v, "eds").subscribe("eds", "a").endsUnserved()
			w.restart()
			both.hears(orderForm(v, "eds a@1"))
			w.change("cds a@2")
			both.hears(orderForm(v, "cds a@2"), orderForm(v, "eds a@1")) // B.16
			clusters.hears(orderForm(v, "cds a@2"))
		})
	})
}
