package subscription

import (
	"cmp"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fanout"
	"github.com/xdstender/tender/cache/wire"
)

// A Look is one look of a stream at what its client must be sent.
type Look struct {
	Newest *cache.Generation
	Cut    *cache.Generation // what clusters and dependent types are read from; mostly the newest
	Begun  *cache.Generation // what the stream began with, see Begins; nil if nothing older is read
	Now    time.Time

	// Muted is set while the stream may have to end without a response (B.8): errors of the relay are not sent.
	Muted bool
}

// Begins returns what a stream that was sent nothing yet begins with: the newest generation, with what other streams
// wait for until a minimum push interval has passed. Only if something waits is it not nil.
func (l *Look) Begins() *cache.Generation {
	if l.Newest.SendableRevision() < l.Newest.Revision {
		return l.Newest
	}
	return nil
}

// Of returns the generation that a type is read from.
func (l *Look) Of(s *Subscription) *cache.Generation {
	if s.followsCut() {
		return l.sendable(l.Cut, s.TypeURL)
	}
	return l.sendable(l.Newest, s.TypeURL)
}

// sendable returns the generation from which the client is sent a type, of one that the stream looks at. A client is
// never sent what is older than what its stream began with.
func (l *Look) sendable(g *cache.Generation, typeURL string) *cache.Generation {
	g = g.Sendable(typeURL)
	if l.Begun != nil && l.Begun.Revision > g.Revision {
		return l.Begun
	}
	return g
}

// removalsOf returns the generation from which removals of a type that wait for other types are read. Those of endpoints
// also wait while clusters, which may refer to them, wait for an interval.
func (l *Look) removalsOf(s *Subscription) *cache.Generation {
	g := l.sendable(l.Cut, s.TypeURL)
	if clusters := l.sendable(l.Cut, wire.ClusterType); s.TypeURL == wire.EndpointType && clusters.Revision < g.Revision {
		return clusters
	}
	return g
}

// Next returns the additions and changes that the client is to be sent, up to limit in the generation of the type. For
// names that the client asked for since, the newest generation answers. If nothing is to be sent, the response has no
// body, and until is when to look again even if nothing happens. The only error is ErrOutrun.
func (s *Subscription) Next(l *Look, limit cache.Seq) (r Response, until time.Time, err error) {
	g, newest, after := l.Of(s), l.sendable(l.Newest, s.TypeURL), s.position()
	if g == newest {
		r, until, err = s.next(l, g, limit, false)
	} else {
		asked := s.takeNewNames()
		r, until, err = s.next(l, g, limit, true)
		if s.pendingNames = append(s.pendingNames, asked...); err == nil && r.Body == nil && len(asked) > 0 {
			g = newest
			r, until, err = s.next(l, g, limit, false)
		}
	}
	r.After, r.before, r.from = after, after, g
	return r, until, err
}

// next is Next from one generation, which may be older than the newest.
func (s *Subscription) next(l *Look, g *cache.Generation, limit cache.Seq, older bool) (r Response, until time.Time, err error) {
	s.errors.muted = l.Muted
	switch v := s.visibleAt(g); {
	case s.sendsSets():
		r, until = sets{v, l.Now}.next(limit)
	case !s.Delta && s.grouped && s.wildcard == nil:
		r = sets{v, l.Now}.group(limit)
	default:
		c := changes{writer: writer{visible: v}, limit: limit, older: older}
		r, err = c.response(l.Now)
	}
	until = Earlier(until, s.errors.recheckAt)
	if r.Body == nil && err == nil && s.Delta && !s.LateRemovals {
		var again time.Time
		stale := removals{writer: writer{visible: s.visibleAt(g)}, now: l.Now}
		r, again = stale.stale()
		until = Earlier(until, again)
	}
	return r, until, err
}

// Removals returns the removals that were held back, and when to look again.
func (s *Subscription) Removals(l *Look) (r Response, until time.Time) {
	after, g := s.removedUpTo, l.removalsOf(s)
	if after == 0 {
		after = g.Seq // a subscription to names alone has no such position
	}
	v := s.visibleAt(g)
	switch {
	case s.Delta:
		late := removals{writer: newWriter(v), now: l.Now}
		if r = late.delayed(); r.Body == nil {
			r, until = late.stale()
		}
	case s.FullState:
		r, until = sets{v, l.Now}.final()
	default:
		if s.removedUpTo = v.g.Seq; s.errors.any() { // errors of resources whose removal had to wait
			w := newWriter(v)
			w.addErrors(l.Now)
			r = w.out
		}
	}
	r.After, r.before, r.from = after, s.position(), g
	return r, until
}

// NoteSent records that a response left under a nonce, and ends at an offset of the stream.
func (s *Subscription) NoteSent(r *Response, nonce string, v *cache.View, endOffset uint64, now time.Time) {
	s.counter.Sent(r.Body.Size())
	s.sending(span{r.After, s.position()}, r.newlyRequested, r.before, s.visibleAt(r.from).changedSince(v, r.After), now)
	s.sentAny, s.pending = true, true
	s.nonce, s.version, s.bytes, s.endOffset = nonce, r.Body.Version(), r.Body.Size(), endOffset
	s.sentAt, s.ackDeadline = now, now.Add(s.Settings.AckWait)
	if s.fanouts.due != nil {
		cmp.Or(s.parent, s).passFanouts(now)
	}
}

// changedSince returns when the oldest change was received that the client wants, of those after a position; zero if
// there is none. Where names are in complete sets, a change that a later one of the same name replaced does not count.
func (v visible) changedSince(of *cache.View, after cache.Seq) time.Time {
	first := v.g.Seq + 1
	if v.wildcard != nil {
		first = min(first, v.t.Wildcard.FirstAfter(after))
	}
	if v.sendsSets() {
		for _, n := range v.names {
			if _, seq := v.entryOf(n); seq > after {
				first = min(first, seq)
			}
		}
		for _, glob := range v.globs {
			first = min(first, v.g.Type(glob.Key).Wildcard.FirstAfter(after))
		}
	} else if len(v.names) > 0 {
		first = min(first, v.Watch.FirstHint(v.Key, after, v.g.Seq))
	}
	if first > v.g.Seq {
		return time.Time{}
	}
	return of.Cause(first).Received
}

// EndTurn records that the client was sent what there is to send. It returns the position up to which the subscription
// needs no hints any more.
func (s *Subscription) EndTurn(l *Look) cache.Seq {
	s.newRequest = s.newRequest && s.Waits // what has no answer by now, a change answers
	s.releaseRemovals()
	for _, glob := range s.separateGlobs() {
		glob.idle = glob.idle || !glob.At(l.Newest).Behind()
	}
	if s.fanouts.due != nil {
		s.passFanouts(l.Now)
	}
	if len(s.names) == 0 || s.sendsSets() {
		return l.Of(s).Seq // it never looks at any
	}
	return s.scannedUpTo
}

// releaseRemovals tells the view which removals the client needs no more.
func (s *Subscription) releaseRemovals() {
	if s.wildcard != nil {
		s.wildcard.Passed(s.removedUpTo)
	}
	for _, glob := range s.globs {
		if !glob.idle {
			glob.releaseRemovals()
		}
	}
}

// Reach records that the client is to be sent a change that is followed.
func (s *Subscription) Reach(f *fanout.Fanout) { s.fanouts.due = s.fanouts.due.And(f) }

// passFanouts notes which followed changes the client was sent.
func (s *Subscription) passFanouts(now time.Time) { s.fanouts.pass(s.past, s.pending, now) }

// past reports whether the client was sent a change as far as it is to be.
func (s *Subscription) past(f *fanout.Fanout) bool {
	part := s
	if f.Key != s.Key {
		_, glob, _ := cache.SplitCollection(f.Key)
		if part = s.globs.find(glob); part == nil {
			return true // it is not wanted any more
		}
	}
	late := f.Removes && part.LateRemovals && part.wildcard != nil
	at := cache.Seq(f.Position)
	return part.position() >= at && (!late || part.removedUpTo >= at)
}
