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

// warmClient returns a client that has the EDS clusters a and b, and their endpoints by name or, if names is "*",
// by wildcard.
func warmClient(w *world, opts relaytest.ClientOptions, names string) *worldClient {
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

// While an origin sends changes faster than an Envoy ACKs them, the Envoy has one unanswered response per type,
// and then gets the newest state. Repeated clusters are not sent, since they would start warming again.
func TestC24_ChangesAreMergedAndRepeatsIgnored(t *testing.T) {
	t.Parallel()
	const pushes, slow = 100, time.Second
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		worldBubble(t, nil, func(w *world) {
			c := warmClient(w, relaytest.ClientOptions{Variant: v}, "a b")
			same := w.n.Message("cds", "a", 1)
			var got []string
			for i := range pushes {
				w.origin.Apply(func(tx *relaytest.Tx) {
					tx.Set(relaytest.ClusterType, "a", same, fmt.Sprint("another version ", i))
					tx.Set(relaytest.ClusterType, "b", w.n.Message("cds", "b", i+2), "")
				})
				w.sleep(slow / 10)
				got = append(got, c.received()...)
				if i%10 == 9 {
					c.ack("cds")
					got = append(got, c.received()...)
					c.ack("eds")
				}
			}
			w.sleep(time.Minute)
			got = append(got, c.received()...)
			last := fmt.Sprint("b@", pushes+1)
			if n := pushes / 10; len(got) > 2*(n+1) ||
				!slices.ContainsFunc(got, func(r string) bool { return strings.Contains(r, last) }) {
				t.Errorf("%d changes and %d ACKs caused %d responses: %q", pushes, n, len(got), got)
			}
			for _, r := range got {
				if strings.Contains(r, "a@") && !strings.HasPrefix(r, "cds {") {
					t.Errorf("got %q with the unchanged cluster a", r)
				}
			}
		})
	})
}

// If a relay loses a client or the origin while it sends a change, the other side must not stay stale. Streams of
// a broken client connection end, and their blocked response does not count as sent. Losing the origin ends no
// stream. TestC27 covers clients that do not read, and TestB8_B15_C29_… an idle relay.
func TestC28_LossInTheMiddleOfAPush(t *testing.T) {
	t.Parallel()
	const large = 512 << 10 // more than the transport buffers for a client that does not read
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
		broken := relaytest.NewClient(t, conn, relaytest.ClientOptions{Variant: v, AutoAck: true})
		stable := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
		for _, c := range []*relaytest.Client{broken, stable} {
			c.Subscribe(acmeType)
			c.WaitState(t.Context(), newest)
		}
		// until the set is confirmed; a returning SotW client would wait for the origin otherwise
		time.Sleep(10 * time.Second)
		for i := 1; i <= 3; i++ {
			broken.Pause()
			put(o, i)
			stable.WaitState(t.Context(), newest)
			o.Stop()
			if err := conn.Close(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			if n := r.Streams(); n != 1 {
				t.Errorf("got %d streams, want 1, of the connected client", n)
			}
			conn = r.Conn()
			broken.Reconnect(conn) // also ends the pause
			broken.WaitState(t.Context(), newest)
			put(o, -i)
			o.Restart()
			stable.WaitState(t.Context(), newest)
			broken.WaitState(t.Context(), newest)
		}
	})
}

// Names of a request take effect whatever its nonce is, with and without an unanswered response, in an ACK or a
// NACK.
func TestR083_C34_NamesCountWhateverTheNonce(t *testing.T) {
	t.Parallel()
	for _, nonce := range []string{"newest", "older", "none", "of another stream"} {
		for _, pending := range []bool{false, true} {
			for _, message := range []string{"", "rejected"} {
				t.Run(fmt.Sprintf("nonce %s, pending %v, %s", nonce, pending, message), func(t *testing.T) {
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
						c.Send(c34Request(v, nonces[nonce], message))
						time.Sleep(3 * time.Second)
						expectNames(t, nextResponse(t, c), typeRDS, "b")
					})
				})
			}
		}
	}
}

// c34Request returns an ACK or NACK that adds the route b to the subscription.
func c34Request(v relaytest.Variant, nonce, message string) proto.Message {
	req := newAnswer(v, &relaytest.Response{TypeURL: typeRDS, Nonce: nonce}, "", message, "a", "b")
	if delta, ok := req.(*discoverypb.DeltaDiscoveryRequest); ok {
		delta.ResourceNamesSubscribe = []string{"b"}
	}
	return req
}
