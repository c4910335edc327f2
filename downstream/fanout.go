package downstream

import (
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// joinFanouts takes the fan-outs that the stream has become part of, and has the type of each see to it.
func (s *stream) joinFanouts(now time.Time) {
	for l := s.watch.TakeFanouts(); l != nil; l = l.Others {
		typeURL, _, _ := cache.SplitCollection(l.Key)
		sub := s.of(typeURL)
		if sub == nil {
			l.Done(cache.Needless, now)
			continue
		}
		sub.fanoutsDue = sub.fanoutsDue.And(l.Fanout)
	}
}

// passFanouts notes, once the client was sent what there is to send, which changes it has been told of: those are
// answered for by the answer to the newest response. If there is none, or it has come, there was nothing to
// be told of them.
func (s *subscription) passFanouts(now time.Time) {
	before := s.fanoutsDue
	s.fanoutsDue = nil
	for l := before; l != nil; l = l.Others {
		switch f := l.Fanout; {
		case !s.past(f):
			s.fanoutsDue = s.fanoutsDue.And(f)
		case s.pending:
			s.fanoutsSent = s.fanoutsSent.And(f)
		default:
			f.Done(cache.Needless, now)
		}
	}
	if s.fanoutsSent != nil && s.fanoutsSent.Others != nil {
		s.fanoutsSent = s.fanoutsSent.Open() // a client may never answer
	}
}

// past reports whether the client was told of a change as far as it is to be.
func (s *subscription) past(f *cache.Fanout) bool {
	part := s
	if f.Key != s.key {
		_, glob, _ := cache.SplitCollection(f.Key)
		if part = s.findGlob(glob); part == nil {
			return true // it is not wanted any more
		}
	}
	late := f.Change.Removed > 0 && part.LateRemovals && part.wildcard != nil
	return part.position() >= f.Seq && (!late || part.removedUpTo >= f.Seq)
}

// settle answers for the changes that the client was told of.
func (c *conversation) settle(o cache.Outcome, now time.Time) {
	for l := c.fanoutsSent; l != nil; l = l.Others {
		l.Done(o, now)
	}
	c.fanoutsSent = nil
}

// leaveFanouts is for a stream that ends and whose watch is closed.
func (s *stream) leaveFanouts(now time.Time) {
	s.joinFanouts(now)
	for _, sub := range s.subs {
		if sub.pending {
			sub.closeResponse(cache.Departed, nil, now)
		}
		sub.settle(cache.Departed, now)
		sub.fanoutsSent, sub.fanoutsDue = sub.fanoutsDue, nil
		sub.settle(cache.Departed, now)
	}
}

// ended notes that the newest response was answered by a request, or, if that is nil, never will be.
func (s *subscription) closeResponse(o cache.Outcome, r *wire.Request, now time.Time) {
	if t := s.cfg.Traces; t != nil {
		traceID, spanID := t.show(s, o, r, now)
		if o == cache.Refused {
			s.refusal.TraceID, s.refusal.SpanID = traceID, spanID
		}
	}
	s.pending, s.causedAt = false, 0
	if s.fanoutsSent != nil {
		s.settle(o, now)
	}
}

func outcomeOf(r *wire.Request) cache.Outcome {
	if r.Refused {
		return cache.Refused
	}
	return cache.Accepted
}
