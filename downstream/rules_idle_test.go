package downstream

import (
	"testing"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// TestReceiversHandleAnswersOnly: what asks for something is handled when it is the
// stream's turn, or the stack of each receiver would grow and stay large; but one who asks
// for very much holds up no worker, and neither does one who asks very often.
func TestReceiversHandleAnswersOnly(t *testing.T) {
	for _, tt := range []struct {
		name            string
		names, requests int
		byReceiver      bool
	}{
		{"as an Envoy", 100, 1, false},
		{"as many as may wait", 1, maxWaiting, false},
		{"with many names", manyNames + 1, 1, true},
		{"many at once", 1, maxWaiting + 1, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			view, w := cache.New(cache.Config{})
			w.SetConnected(true)
			s := newTestStream(t, view, Config{})
			s.turn.Store(queued) // no worker comes
			names := make([]string, tt.names)
			for i := range names {
				names[i] = benchName(i)
			}
			for range tt.requests {
				if more, _ := s.received(&wire.Request{Delta: true, TypeURL: wire.EndpointType, Subscribe: names}, nil); !more {
					t.Fatalf("the stream ended: %v", <-s.over)
				}
			}
			if got := len(s.subs) > 0; got != tt.byReceiver {
				t.Errorf("handled by the receiver: %v, want %v", got, tt.byReceiver)
			}
			s.flushed(true)
			if len(s.subs) != 1 || len(s.subs[0].names) != tt.names {
				t.Errorf("after its turn the stream has %d subscriptions, want one of %d names", len(s.subs), tt.names)
			}
			if got := len(s.waiting); got != 0 {
				t.Errorf("%d requests wait after the turn", got)
			}
		})
	}
}
