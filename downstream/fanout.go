package downstream

import (
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
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
		sub.reaching = sub.reaching.And(l.Fanout)
	}
}

// passFanouts moves the fan-outs of changes that were sent to those that the answer to the newest response completes. If
// that was answered, or there is none, the client did not need the change.
func (s *subscription) passFanouts(now time.Time) {
	before := s.reaching
	s.reaching = nil
	for l := before; l != nil; l = l.Others {
		switch f := l.Fanout; {
		case !s.past(f):
			s.reaching = s.reaching.And(f)
		case s.pending:
			s.reached = s.reached.And(f)
		default:
			f.Done(cache.Needless, now)
		}
	}
	if s.reached != nil && s.reached.Others != nil {
		s.reached = s.reached.Open() // a client may never answer
	}
}

// past reports whether all of a change that the client needs was sent.
func (s *subscription) past(f *cache.Fanout) bool {
	part := s
	if f.Key != s.key {
		_, glob, _ := cache.SplitCollection(f.Key)
		if part = s.findGlob(glob); part == nil {
			return true // it is not wanted any more
		}
	}
	late := f.Change.Removed > 0 && part.lateRemovals && part.wildcard != nil
	return part.position() >= f.Seq && (!late || part.removed >= f.Seq)
}

// settle completes the fan-outs that wait for the answer to the newest response.
func (c *conversation) settle(o cache.Outcome, now time.Time) {
	for l := c.reached; l != nil; l = l.Others {
		l.Done(o, now)
	}
	c.reached = nil
}

// leaveFanouts completes all fan-outs of a stream that ends. Its watch must be closed.
func (s *stream) leaveFanouts(now time.Time) {
	s.joinFanouts(now)
	for _, sub := range s.subs {
		if sub.pending {
			sub.ended(cache.Departed, nil, now)
		}
		sub.settle(cache.Departed, now)
		sub.reached, sub.reaching = sub.reaching, nil
		sub.settle(cache.Departed, now)
	}
}

// ended records the outcome of the newest response: answered by a request, or, if that is nil, never.
func (s *subscription) ended(o cache.Outcome, r *wire.Request, now time.Time) {
	if t := s.cfg.Traces; t != nil {
		traceID, spanID := t.show(s, o, r, now)
		if o == cache.Refused {
			s.refusal.TraceID, s.refusal.SpanID = traceID, spanID
		}
	}
	s.pending, s.caused = false, 0
	if s.reached != nil {
		s.settle(o, now)
	}
}

func outcomeOf(r *wire.Request) cache.Outcome {
	if r.Refused {
		return cache.Refused
	}
	return cache.Accepted
}
