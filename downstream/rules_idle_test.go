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

// receives takes a request as the stream's receiver does.
func (s *stream) acceptRequest(r *wire.Request) (more bool, wait time.Duration) {
	return s.receiver().accept(r, s.identification().identityIn(r))
}

// TestReceiversHandleAnswersOnly: what asks for something is handled when it is the
// stream's turn, or the stack of each receiver would grow and stay large; but one who asks
// for very much holds up no worker, and neither does one who asks very often.
func TestReceiversHandleOnlyAnswers(t *testing.T) {
	for _, tt := range []struct {
		name            string
		names, requests int
		byReceiver      bool
	}{
		{"as an Envoy", 100, 1, false},
		{"as many as may wait", 1, maxQueuedRequests, false},
		{"with many names", largeRequestNames + 1, 1, true},
		{"many at once", 1, maxQueuedRequests + 1, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			view, w := cache.New(cache.Config{})
			w.SetConnected(true)
			s := newTestStream(t, view, Config{})
			s.turn.Store(turnQueued) // no worker comes
			names := make([]string, tt.names)
			for i := range names {
				names[i] = benchName(i)
			}
			for range tt.requests {
				if more, _ := s.acceptRequest(&wire.Request{Delta: true, TypeURL: wire.EndpointType, Subscribe: names}); !more {
					t.Fatalf("the stream ended: %v", <-s.result)
				}
			}
			check.Equal(t, "the receiver handles it", len(s.subs) > 0, tt.byReceiver)
			s.flushTurn(true)
			if len(s.subs) != 1 || len(s.subs[0].Names()) != tt.names {
				t.Errorf("after its turn the stream has %d subscriptions, want one of %d names", len(s.subs), tt.names)
			}
			check.Equal(t, "requests wait after the turn", len(s.queued), 0)
		})
	}
}

// TestAnIdleClientTakesLittle: a client with two wildcards and 120 names takes no more
// memory than its names and four subscriptions need, once it has been served.
func TestIdleClientMemory(t *testing.T) {
	const clients, most = 1000, 7<<10 + 640 // bytes; 2 KiB are names, 2.7 subscriptions, 0.3 for who asks how it stands; the mean of many, as the heap of the process varies too
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
		watch.Subscribe(typeURL, names) // what nobody asked for is not kept
		w.TakeDemand()
		w.Apply(cache.ByName, u)
	}
	server := check.Must(New(Config{Views: oneView{view}}))
	streams := make([]*stream, clients)
	connect := func(i int) {
		s := &stream{server: server, cfg: &server.cfg, rpc: discardClient{}, delta: true, result: make(chan error, 1),
			timer: time.NewTimer(time.Hour), requestLimiter: rate.NewLimiter(rate.Inf, 1)}
		s.turn.Store(turnQueued) // no worker comes
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
	connect(0) // what is there once
	before := liveHeap()
	for i := range streams[1:] {
		connect(1 + i)
	}
	if got := (liveHeap() - before) / (clients - 1); got > most {
		t.Errorf("an idle client takes %d bytes, want at most %d", got, most)
	}
	for _, s := range streams {
		s.close()
	}
}

// liveHeap returns the bytes that are reachable.
func liveHeap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what a pool held
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
