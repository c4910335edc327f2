package downstream

import (
	"time"

	"github.com/xdstender/tender/cache"
)

// joinFanouts hands the fan-outs that the stream has joined since the last call to their subscriptions.
func (s *stream) joinFanouts(now time.Time) {
	for l := s.watch.TakeFanouts(); l != nil; l = l.Others {
		typeURL, _, _ := cache.SplitCollection(l.Key)
		sub := s.of(typeURL)
		if sub == nil {
			l.Done(cache.Needless, now)
			continue
		}
		sub.Reach(l.Fanout)
	}
}

// leaveFanouts completes all fan-outs of a stream that ends. Its watch must be closed.
func (s *stream) leaveFanouts(now time.Time) {
	s.joinFanouts(now)
	for _, sub := range s.subs {
		sub.LeaveFanouts(now)
	}
}
