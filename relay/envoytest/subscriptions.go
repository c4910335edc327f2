package envoytest

import (
	"context"
	"maps"
	"sync"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
)

// subscriptions holds the types that each stream of a control plane has requested, and counts the messages of all streams.
type subscriptions struct {
	mu     sync.Mutex
	all    map[subscribed]struct{} // guarded by mu
	counts map[string]Messages     // guarded by mu; by type URL
}

// Messages has the numbers of requests and responses of a type.
type Messages struct{ Requests, Responses int }

// Messages returns the numbers of messages of a type so far, over all streams and restarts.
func (c *ControlPlane) Messages(typeURL string) Messages {
	c.open.mu.Lock()
	defer c.open.mu.Unlock()
	return c.open.counts[typeURL]
}

// A subscribed is one type of one stream. Delta and SotW streams are numbered separately.
type subscribed struct {
	delta   bool
	stream  int64
	typeURL string
}

// count returns the number of requested types, summed over all streams.
func (s *subscriptions) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all)
}

// callbacks returns the callbacks for a new server. It drops the streams of the previous server.
func (s *subscriptions) callbacks() serverv3.Callbacks {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[subscribed]struct{})
	s.all = all
	if s.counts == nil {
		s.counts = make(map[string]Messages)
	}
	requested := func(delta bool, stream int64, typeURL string) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		all[subscribed{delta, stream, typeURL}] = struct{}{}
		n := s.counts[typeURL]
		n.Requests++
		s.counts[typeURL] = n
		return nil
	}
	answered := func(typeURL string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		n := s.counts[typeURL]
		n.Responses++
		s.counts[typeURL] = n
	}
	remove := func(delta bool, stream int64) {
		s.mu.Lock()
		defer s.mu.Unlock()
		maps.DeleteFunc(all, func(of subscribed, _ struct{}) bool { return of.delta == delta && of.stream == stream })
	}
	return serverv3.CallbackFuncs{
		StreamRequestFunc: func(stream int64, r *discoverypb.DiscoveryRequest) error {
			return requested(false, stream, r.GetTypeUrl())
		},
		StreamDeltaRequestFunc: func(stream int64, r *discoverypb.DeltaDiscoveryRequest) error {
			return requested(true, stream, r.GetTypeUrl())
		},
		StreamResponseFunc: func(_ context.Context, _ int64, _ *discoverypb.DiscoveryRequest, r *discoverypb.DiscoveryResponse) {
			answered(r.GetTypeUrl())
		},
		StreamDeltaResponseFunc: func(_ int64, _ *discoverypb.DeltaDiscoveryRequest, r *discoverypb.DeltaDiscoveryResponse) {
			answered(r.GetTypeUrl())
		},
		StreamClosedFunc:      func(stream int64, _ *corepb.Node) { remove(false, stream) },
		DeltaStreamClosedFunc: func(stream int64, _ *corepb.Node) { remove(true, stream) },
	}
}
