package conformance_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
)

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
