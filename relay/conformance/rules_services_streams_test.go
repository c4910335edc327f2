package conformance_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
)

// Legacy wildcards, and the resources in the response to a change of one of two names, are the same on streams of
// one type as on aggregated streams.
func TestB17_TypesOnSingleTypeStreams(t *testing.T) {
	t.Parallel()
	legacy := []string{"cds", "lds", "srds", "vhds"}
	full := []string{"cds", "lds", "srds"}
	grouped := []string{"sds", "rtds", "ecds"} // complete sets for Envoy
	servicesEach(t, func(w *world, v relaytest.Variant, short string) {
		w.change(short+" a@1", short+" b@1")
		for i, node := range []string{"envoy", "grpc"} {
			opts := relaytest.ClientOptions{Variant: v, TypeURL: typeURLs[short]}
			complete := slices.Contains(full, short)
			if node == "grpc" {
				opts.Node = relaytest.GRPCNode(node)
			} else {
				complete = complete || slices.Contains(grouped, short)
			}
			empty, named := w.dial(opts).subscribe(short, ""), w.dial(opts).subscribe(short, "a b")
			w.sleep(time.Second)
			a := fmt.Sprint(" a@", i+1)
			named.expectAndAck(formatFor(v, short+a+" b@1"))
			if slices.Contains(legacy, short) {
				empty.expectAndAck(formatFor(v, short+a+" b@1"))
			} else {
				empty.expect()
			}
			a = fmt.Sprint(" a@", i+2)
			w.change(short + a)
			if v == relaytest.SotW && complete {
				named.expectAndAck(formatFor(v, short+a+" b@1"))
			} else {
				named.expectAndAck(formatFor(v, short+a))
			}
			empty.Close()
		}
	})
}

// A nonce of an ended stream has no meaning on a new stream of one type, and the request with it is answered.
func TestC03_NonceOfAnEndedStream(t *testing.T) {
	t.Parallel()
	servicesEach(t, func(w *world, v relaytest.Variant, short string) {
		w.change(short + " a@1")
		c := w.stream(v, short)
		c.Send(newRequest(v, typeURLs[short], "77", "a"))
		w.sleep(time.Second)
		c.expectAndAck(formatFor(v, short+" a@1"))
	})
}

// An Envoy may open hundreds of endpoint streams on one connection. Each gets its own resources. The origin sees
// one stream, on which names are unsubscribed when the client does.
func TestB35_AStreamForEachCluster(t *testing.T) {
	t.Parallel()
	const clusters = 300
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		worldBubble(t, []string{"TENDER_LINGER=1s"}, func(w *world) {
			var names, changes []string
			for i := range clusters {
				names = append(names, fmt.Sprintf("c%03d", i))
				changes = append(changes, "eds "+names[i]+"@1")
			}
			w.change(changes...)
			conn := w.relay.Conn()
			var streams []*relaytest.LightClient
			for _, name := range names {
				c := relaytest.NewLightClient(w.t, conn, relaytest.LightOptions{Variant: v, TypeURL: typeURLs["eds"]})
				c.Subscribe(typeURLs["eds"], name)
				streams = append(streams, c)
			}
			w.sleep(time.Second)
			w.change("eds c007@2")
			for i, c := range streams {
				responses := 1
				if i == 7 {
					responses = 2
				}
				if got := c.Counts(); !c.State().Has(typeURLs["eds"], names[i]) || got.Responses != responses {
					t.Errorf("the stream of %s has %v after %d responses", names[i], c.State().Names(typeURLs["eds"]), got.Responses)
				}
			}
			if s := w.origin.State(); len(s.Streams) != 1 || !s.Subscribed(typeURLs["eds"], names...) {
				t.Errorf("the origin has %d streams with the subscriptions %v", len(s.Streams), s.Names(typeURLs["eds"]))
			}
			for _, c := range streams[1:] {
				c.Close()
			}
			w.sleep(time.Minute)
			if s := w.origin.State(); !s.Subscribed(typeURLs["eds"], names[0]) {
				t.Errorf("the relay still subscribes to %v, want only %s", s.Names(typeURLs["eds"]), names[0])
			}
		})
	})
}
