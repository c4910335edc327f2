package conformance_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/relay/relaytest"
)

// endsUnserved fails the test unless the stream ends UNAVAILABLE without a response.
func (c *orderClient) endsUnserved() {
	c.w.t.Helper()
	if err := c.WaitEnd(c.w.t.Context()); status.Code(err) != codes.Unavailable {
		c.w.t.Fatalf("%v: stream ended with %v, want UNAVAILABLE", c.Client, err)
	}
	if got := c.heard(); len(got) > 0 {
		c.w.t.Fatalf("%v: got %q before the end, want nothing", c.Client, got)
	}
}

// TestR066_EmptySetOnlyIfTheOriginIsEmpty: a set without resources deletes all that
// a client has, so it is sent when the origin has said so, and never because the
// relay knows nothing.
func TestR066_EmptySetOnlyIfTheOriginIsEmpty(t *testing.T) {
	t.Parallel()
	for _, short := range []string{"lds", "cds"} {
		for _, names := range []string{"", "a"} {
			t.Run(short+" cold "+names, func(t *testing.T) {
				orderBubble(t, nil, func(w *orderWorld) {
					w.stop()
					w.envoy(relaytest.SotW).subscribe(short, names).endsUnserved()
					w.envoy(relaytest.SotW).returns(relaytest.SotW, short, names, "").endsUnserved()
				})
			})
			t.Run(short+" silent "+names, func(t *testing.T) {
				orderBubble(t, nil, func(w *orderWorld) {
					w.manual()
					c := w.envoy(relaytest.SotW).subscribe(short, names)
					w.pass(9 * time.Second)
					c.expect()
				})
			})
			t.Run(short+" empty "+names, func(t *testing.T) {
				orderBubble(t, nil, func(w *orderWorld) {
					c := w.envoy(relaytest.SotW).subscribe(short, names)
					returning := w.envoy(relaytest.SotW).returns(relaytest.SotW, short, names, "")
					w.settle()
					c.hears(short + " {}")
					if names == "" { // the origin may have just been started (H04)
						returning.expect()
						w.pass(9 * time.Minute)
						returning.expect()
						w.pass(2 * time.Minute) // with a second look at the origin
					}
					returning.hears(short + " {}")
				})
			})
		}
		t.Run(short+" warm, origin down", func(t *testing.T) {
			orderBubble(t, nil, func(w *orderWorld) {
				w.change(short+" a@1", short+" b@1")
				w.ready(relaytest.SotW).subscribe(short, "a")
				w.pass(time.Second)
				w.stop()
				w.pass(time.Second)
				w.envoy(relaytest.SotW).subscribe(short, "b").endsUnserved()
			})
		})
	}
}

// TestR068_DeadOriginRemovesNothing: whatever an outage does to the relay, no client
// hears of a removal: not those that stay, nor those that come back, nor those that
// hold what this relay never knew.
func TestR068_DeadOriginRemovesNothing(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.change("cds a@1", "cds b@1", "lds l@1", "eds a@1")
			open := func() *orderClient {
				return w.ready(v).subscribe("cds", "").subscribe("lds", "l").subscribe("eds", "a")
			}
			stays, leaves := open(), open()
			w.settle()
			stays.heard()
			leaves.heard()
			w.stop()
			w.pass(3 * time.Minute)
			leaves.Reconnect(w.relay.Conn())
			w.pass(3 * time.Minute)
			for _, c := range []*orderClient{stays, leaves} {
				for _, got := range c.heard() {
					if got != orderForm(v, "lds l@1") && got != orderForm(v, "eds a@1") { // names are answered (B.3)
						t.Errorf("%v: got %q while the origin was down", c.Client, got)
					}
				}
				if !c.State().SameContent(w.origin.Resources(), relaytest.ClusterType) {
					t.Errorf("%v: holds %v", c.Client, c.State())
				}
			}
			w.restart()
			stays.expect()
			leaves.expect()
		})
	})
}

// TestR068_UnknownToADisconnectedRelay: what a returning client holds, and a relay
// without its origin does not know, may have come to be meanwhile. The removal waits
// until the origin is back and has had time to say so.
func TestR068_UnknownToADisconnectedRelay(t *testing.T) {
	t.Parallel()
	orderBubble(t, nil, func(w *orderWorld) {
		w.change("cds a@1")
		w.ready(relaytest.Delta).subscribe("cds", "")
		w.settle()
		w.stop()
		w.change("cds young@1") // while the relay could not hear it
		c := w.envoy(relaytest.Delta).returns(relaytest.Delta, "cds", "", "a young old")
		c.hears("cds a@1")
		w.pass(3 * time.Minute)
		c.expect()
		w.restart()
		c.hears("cds young@1", "cds -old")
	})
}

// TestB8_R134_ColdRelayWithoutOriginGivesUp: after the cold wait, without a response, so
// that a client that has another server goes there.
func TestB8_R134_ColdRelayWithoutOriginGivesUp(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		env  []string
		wait time.Duration
	}{
		"default": {nil, 10 * time.Second},
		"2s":      {[]string{"TENDER_COLD_WAIT=2s"}, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			orderVariants(t, func(t *testing.T, v relaytest.Variant) {
				orderBubble(t, tt.env, func(w *orderWorld) {
					w.stop()
					c := w.envoy(v).subscribe("cds", "").subscribe("eds", "a")
					began := time.Now()
					c.endsUnserved()
					if got := time.Since(began); got < tt.wait || got > tt.wait+time.Second {
						t.Errorf("gave up after %v, want %v", got, tt.wait)
					}
				})
			})
		})
	}
}

// TestB8_NothingThatIsAskedForIsKnown: a relay that knows something else is as cold
// to a client as one that knows nothing.
func TestB8_NothingThatIsAskedForIsKnown(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.change("lds a@1")
			w.ready(v).subscribe("lds", "a")
			w.settle()
			w.stop()
			w.envoy(v).subscribe("lds", "b").subscribe("cds", "").endsUnserved()
		})
	})
}

// TestB8_ShortOutageIsNotCold: the wait is counted from the loss of the origin, so a
// stream that waits for an answer outlives a reconnect.
func TestB8_ShortOutageIsNotCold(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.origin.Change(func(b *relaytest.Behaviour) { b.SilentOnMissing = true })
			c := w.envoy(v).subscribe("rds", "late")
			w.pass(time.Minute)
			w.stop()
			w.pass(2 * time.Second)
			w.restart()
			w.change("rds late@1")
			c.hears(orderForm(v, "rds late@1"))
		})
	})
}

// TestB8_ServedStreamLives: a stream that was served, or can be, outlives any outage;
// a type that cannot be answered stays silent on it.
func TestB8_ServedStreamLives(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.change("cds a@1", "eds a@1", "rds r@1")
			w.ready(v).subscribe("cds", "")
			served := w.envoy(v).subscribe("cds", "")
			w.settle()
			served.hears(orderForm(v, "cds a@1"))
			w.stop()
			w.pass(3 * time.Minute)
			fresh := w.envoy(v).subscribe("cds", "") // stale is served, for ever
			fresh.hears(orderForm(v, "cds a@1"))
			for _, c := range []*orderClient{served, fresh} {
				c.subscribe("eds", "a").subscribe("rds", "")
			}
			w.pass(3 * time.Minute)
			served.expect()
			fresh.expect()
			w.restart()
			for _, c := range []*orderClient{served, fresh} {
				c.hears(orderForm(v, "eds a@1"))
			}
		})
	})
}
