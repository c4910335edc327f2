package downstream

import (
	"time"

	"github.com/xdstender/tender/cache"
)

// joinFanouts takes the fan-outs that the stream has become part of, and gives each to the subscription of its type.
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

// leaveFanouts leaves all fan-outs. The stream has ended, and its watch is closed.
func (s *stream) leaveFanouts(now time.Time) {
	s.joinFanouts(now)
	for _, sub := range s.subs {
		sub.LeaveFanouts(now)
	}
}
