package conformance_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
)

// orderWarm returns a client that holds the EDS clusters a and b, with endpoints
// asked for by name or, if names is "*", by wildcard.
func orderWarm(w *world, opts relaytest.ClientOptions, names string) *worldClient {
	w.t.Helper()
	w.change("cds a@1", "cds b@1", "eds a@1", "eds b@1", "lds l@1", "rds r@1")
	c := w.dial(opts).subscribe("cds", "")
	w.settle()
	c.expectAndAck(formatFor(opts.Variant, "cds a@1 b@1"))
	c.subscribe("eds", names)
	w.settle()
	c.received()
	for _, r := range c.batch {
		c.Ack(r)
	}
	c.expect()
	return c
}

// An origin that pushes faster than an Envoy applies, and repeats clusters that have
// not changed: the Envoy has one response of a type to answer at a time, gets what is
// newest then, and nothing for what was repeated, or it would warm for ever.
func TestC24_PushesAreMergedAndRepeatsAreNone(t *testing.T) {
	t.Parallel()
	const pushes, slow = 100, time.Second
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		worldBubble(t, nil, func(w *world) {
			c := orderWarm(w, relaytest.ClientOptions{Variant: v}, "a b")
			same := w.message("cds", "a", 1)
			var said []string
			for i := range pushes {
				w.origin.Apply(func(tx *relaytest.Tx) {
					tx.Set(relaytest.ClusterType, "a", same, fmt.Sprint("another version ", i))
					tx.Set(relaytest.ClusterType, "b", w.message("cds", "b", i+2), "")
				})
				w.sleep(slow / 10)
				said = append(said, c.received()...)
				if i%10 == 9 {
					c.ack("cds")
					said = append(said, c.received()...)
					c.ack("eds")
				}
			}
			w.sleep(time.Minute)
			said = append(said, c.received()...)
			last := fmt.Sprint("b@", pushes+1)
			if n := pushes / 10; len(said) > 2*(n+1) || !slices.ContainsFunc(said, func(r string) bool { return strings.Contains(r, last) }) {
				t.Errorf("%d pushes to an Envoy that answered %d times made %d responses: %q", pushes, n, len(said), said)
			}
			for _, r := range said {
				if strings.Contains(r, "a@") && !strings.HasPrefix(r, "cds {") {
					t.Errorf("%q has a, which did not change", r)
				}
			}
		})
	})
}

// A relay that loses one side in the middle of a push must not leave the other one
// stale: the streams of a client whose connection breaks under a send end, nothing of
// that send counts as sent, and the loss of the origin ends no stream. (TestC27 has
// clients that do not read, TestB8_B15_C29_… the loss of the origin at rest.)
func TestC28_LossInTheMiddleOfAPush(t *testing.T) {
	t.Parallel()
	const large = 512 << 10 // more than fits on the way to a client that does not read
	put := func(o *relaytest.Origin, i int) {
		o.Apply(func(tx *relaytest.Tx) {
			for _, name := range []string{"a", "b"} {
				tx.Set(acmeType, name, relaytest.Opaque(acmeType, name, fmt.Append(make([]byte, large), i)), fmt.Sprint(i))
			}
		})
	}
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		put(o, 0)
		r := startMuted(t, o)
		r.DialOptions = append(r.DialOptions, grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10))
		newest := func(s relaytest.State) bool { return s.SameContent(o.Resources(), acmeType) }
		conn := r.Conn()
		breaks := relaytest.NewClient(t, conn, relaytest.ClientOptions{Variant: v, AutoAck: true})
		stays := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
		for _, c := range []*relaytest.Client{breaks, stays} {
			c.Subscribe(acmeType)
			c.WaitState(t.Context(), newest)
		}
		time.Sleep(10 * time.Second) // until the set is confirmed: without that, a SotW client that returns would wait for the origin
		for i := 1; i <= 3; i++ {
			breaks.Pause()
			put(o, i)
			stays.WaitState(t.Context(), newest)
			o.Stop()
			if err := conn.Close(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			if n := r.Streams(); n != 1 {
				t.Errorf("%d streams, want the one whose client is there", n)
			}
			conn = r.Conn()
			breaks.Reconnect(conn) // which resumes
			breaks.WaitState(t.Context(), newest)
			put(o, -i)
			o.Restart()
			stays.WaitState(t.Context(), newest)
			breaks.WaitState(t.Context(), newest)
		}
	})
}

// No request's names are dropped, whatever its nonce is and whatever else it says:
// with a response on its way or without, with an ACK or a refusal.
func TestR083_C34_NamesCountWhateverTheNonce(t *testing.T) {
	t.Parallel()
	for _, nonce := range []string{"newest", "older", "none", "of another stream"} {
		for _, pending := range []bool{false, true} {
			for _, refusal := range []string{"", "refused"} {
				t.Run(fmt.Sprintf("nonce %s, pending %v, %s", nonce, pending, refusal), func(t *testing.T) {
					originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
						o.Put(domainRoute("a", "1"), domainRoute("b", "1"))
						c := start(t, o).Client(relaytest.ClientOptions{Variant: v})
						c.Subscribe(typeRDS, "a")
						older := recvAndAck(t, c, typeRDS, "a")
						o.Put(domainRoute("a", "2"))
						newest := c.Recv(t.Context())
						if !pending {
							c.Ack(newest)
						}
						nonces := map[string]string{"newest": newest.Nonce, "older": older.Nonce, "of another stream": "4711"}
						c.Send(c34Request(v, nonces[nonce], refusal))
						time.Sleep(3 * time.Second)
						expectNames(t, nextResponse(t, c), typeRDS, "b")
					})
				})
			}
		}
	}
}

// c34Request adds the route b to a, in an answer or what looks like one.
func c34Request(v relaytest.Variant, nonce, refusal string) proto.Message {
	req := newAnswer(v, &relaytest.Response{TypeURL: typeRDS, Nonce: nonce}, "", refusal, "a", "b")
	if delta, ok := req.(*discoverypb.DeltaDiscoveryRequest); ok {
		delta.ResourceNamesSubscribe = []string{"b"}
	}
	return req
}
