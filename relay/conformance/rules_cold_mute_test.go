package conformance_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/relay/relaytest"
)

// mute makes the origin one that takes streams, says nothing on them, and ends each
// after a while: so does a relay that knows nothing itself, and a proxy before a
// control plane that is gone.
func (w *orderWorld) mute(after time.Duration) {
	w.manual()
	for range w.origin.State().Streams {
		w.origin.Accept(w.t.Context()) // from before
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	// Ended by the cleanup.
	go func() {
		defer close(ended)
		for known := len(w.origin.State().Streams); ; known++ {
			for len(w.origin.State().Streams) == known {
				if !oddSleep(ctx, 10*time.Millisecond) {
					return
				}
			}
			s := w.origin.Accept(ctx)
			if !oddSleep(ctx, after) {
				return
			}
			s.Close(status.New(codes.Unavailable, "nothing is known here"))
		}
	}()
	w.t.Cleanup(func() { cancel(); <-ended })
}

// oddSleep lets time pass in a bubble, and reports whether ctx has not ended.
func oddSleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// B.7, B.8: an origin that takes streams and ends them in silence is no origin that
// was asked: what it does not mention is not missing, however often it comes back.
func TestB7_MuteOriginRemovesNothing(t *testing.T) {
	orderBubble(t, nil, func(w *orderWorld) {
		w.change("lds a@1")
		w.ready(relaytest.SotW).subscribe("lds", "a")
		w.settle()
		w.stop()
		w.mute(10 * time.Second)
		w.restart()
		c := w.envoy(relaytest.SotW).returns(relaytest.SotW, "lds", "a other", "")
		w.pass(3 * time.Minute)
		c.expect()
	})
}

// B.8: such an origin does not prolong the wait of a client that nothing is known
// for: one silent stream, and then the cold wait.
func TestB8_MuteOriginIsGivenUp(t *testing.T) {
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.mute(5 * time.Second)
			c := w.envoy(v).subscribe("cds", "")
			began := time.Now()
			c.endsUnserved()
			if got, most := time.Since(began), 5*time.Second+10*time.Second+6*time.Second; got > most {
				t.Errorf("gave up after %v, want at most %v", got, most)
			}
		})
	})
}
