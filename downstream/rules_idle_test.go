package downstream

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// acceptRequest handles a request as the stream's receiver does.
func (s *stream) acceptRequest(r *wire.Request) (more bool, wait time.Duration) {
	return s.accept(r, s.identityIn(r))
}

// TestReceiversHandleOnlyAnswers checks that requests that are more than answers are handled in the stream's turn.
// Otherwise the stack of each receiver would grow. Large or frequent requests are handled by the receiver, so that they
// do not delay a worker.
func TestReceiversHandleOnlyAnswers(t *testing.T) {
	for _, tt := range []struct {
		name            string
		names, requests int
		byReceiver      bool
	}{
		{"request of an Envoy", 100, 1, false},
		{"full queue", 1, maxQueuedRequests, false},
		{"many names", largeRequestNames + 1, 1, true},
		{"more than the queue holds", 1, maxQueuedRequests + 1, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			view, w := cache.New(cache.Config{})
			w.SetConnected(true)
			s := newTestStream(t, view, Config{})
			s.turn.Store(turnQueued) // no worker runs the turn
			names := make([]string, tt.names)
			for i := range names {
				names[i] = benchName(i)
			}
			for range tt.requests {
				if more, _ := s.acceptRequest(&wire.Request{Delta: true, TypeURL: wire.EndpointType, Subscribe: names}); !more {
					t.Fatalf("the stream ended: %v", <-s.result)
				}
			}
			check.Equal(t, "handled by the receiver", len(s.subs) > 0, tt.byReceiver)
			s.flushTurn(true)
			if len(s.subs) != 1 || len(s.subs[0].Names()) != tt.names {
				t.Errorf("after its turn the stream has %d subscriptions, want one of %d names", len(s.subs), tt.names)
			}
			check.Equal(t, "queued requests after the turn", len(s.queued), 0)
		})
	}
}

// TestIdleClientMemory limits the memory of an idle client with two wildcards and 120 names. It is the mean of many
// clients, because the heap of the process varies too.
func TestIdleClientMemory(t *testing.T) {
	const clients = 500
	const most = 7<<10 + 640 // bytes: 2 KiB for names, 2.7 for subscriptions, 0.3 for queries about the status
	view, w := cache.New(cache.Config{})
	w.SetConnected(true)
	for _, typeURL := range []string{wire.ClusterType, wire.ListenerType} {
		w.SetPhase(typeURL, cache.Confirmed)
	}
	watch := view.Watch()
	defer watch.Close()
	named := map[string][]string{wire.ClusterType: nil, wire.EndpointType: make([]string, 100), wire.ListenerType: nil,
		wire.RouteType: make([]string, 20)}
	for typeURL, names := range named {
		u := wire.Update{TypeURL: typeURL}
		for i := range names {
			names[i] = benchName(i)
			u.Resources = append(u.Resources, benchResource(t, typeURL, i, "1"))
		}
		watch.Subscribe(typeURL, names) // resources without a subscriber are not kept
		w.TakeDemand()
		w.Apply(cache.ByName, u)
	}
	server := check.Must(New(Config{Views: oneView{view}}))
	streams := make([]*stream, clients)
	connect := func(i int) {
		s := &stream{server: server, cfg: &server.cfg, rpc: discardClient{}, delta: true, result: make(chan error, 1),
			timer: time.NewTimer(time.Hour), requestLimiter: rate.NewLimiter(rate.Inf, 1)}
		s.turn.Store(turnQueued) // no worker runs the turn
		for typeURL, names := range named {
			s.acceptRequest(&wire.Request{Delta: true, TypeURL: typeURL, Node: []byte{}, Subscribe: names})
		}
		for all, sent := false, true; sent || !all; all, sent = s.flushTurn(true) {
			for _, sub := range s.subs {
				s.acceptRequest(&wire.Request{Delta: true, TypeURL: sub.TypeURL, Nonce: sub.Nonce()})
			}
		}
		if s.ended || len(s.subs) != len(named) || s.awaitsFirstResponse() {
			t.Fatalf("client %d was not served: %d subscriptions, %d responses, ended: %v", i, len(s.subs), s.nonces, s.ended)
		}
		streams[i] = s
	}
	connect(0) // allocates what is shared
	before := liveHeap()
	for i := range streams[1:] {
		connect(1 + i)
	}
	if got := (liveHeap() - before) / (clients - 1); got > most || got < most/2 {
		t.Errorf("an idle client takes %d bytes, want at most %d and at least half of that", got, most)
	}
	for _, s := range streams {
		s.close()
	}
}

// liveHeap returns the bytes that are reachable.
func liveHeap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // twice, to empty sync.Pools
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
