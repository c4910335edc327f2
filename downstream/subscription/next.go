package subscription

import (
	"cmp"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fanout"
	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
)

// A Turn is one pass of a stream over its subscriptions. It holds the generations that the stream reads.
type Turn struct {
	Newest *cache.Generation
	Cut    *cache.Generation // clusters and dependent types are read from it; usually the newest
	Now    time.Time

	// Awaited are the clusters that endpoints wait for. It is set before endpoints are sent.
	Awaited Referrers

	// Muted is set while the stream may have to end without a response (B.8). The relay's own errors are not sent.
	Muted bool
}

// GenerationFor returns the generation that a type is read from.
func (turn *Turn) GenerationFor(s *Subscription) *cache.Generation {
	if s.Order.InvolvesClusters() {
		return turn.Cut
	}
	return turn.Newest
}

// UnsentReferrers returns the clusters with changes that the client was not sent and may be sent, and that refer to endpoints.
func (turn *Turn) UnsentReferrers(cds *Subscription) Referrers {
	return cds.At(turn.Newest).unsentReferrers()
}

// awaitedBy returns the clusters that changes of a type wait for.
func (turn *Turn) awaitedBy(order schema.Order) Referrers {
	if order == schema.Endpoints {
		return turn.Awaited
	}
	return nil
}

// Next returns the additions and changes that are due to the client, up to limit in the generation of the type. Names
// that the client subscribed to since are read from the newest generation. If nothing is due, the response has no body,
// and until is when to check again even without an event. The only error is ErrOutrun.
func (s *Subscription) Next(turn *Turn, limit cache.Seq) (r Response, until time.Time, err error) {
	g, newest, after := turn.GenerationFor(s), turn.Newest, s.position()
	if g == newest {
		r, until, err = s.next(turn, g, limit, false)
	} else {
		asked := s.takeNewNames()
		r, until, err = s.next(turn, g, limit, true)
		if s.pendingNames = append(s.pendingNames, asked...); err == nil && r.Body == nil && len(asked) > 0 {
			g = newest
			r, until, err = s.next(turn, g, limit, false)
		}
	}
	r.After, r.before, r.from = after, after, g
	return r, until, err
}

// next does the work of Next with one generation, which may be older than the newest.
func (s *Subscription) next(
	turn *Turn, g *cache.Generation, limit cache.Seq, older bool,
) (r Response, until time.Time, err error) {
	s.errors.muted = turn.Muted
	switch v := s.visibleAt(g); {
	case s.sendsSets():
		r, until = sets{v, turn.Now}.next(limit)
	case !s.Delta && s.grouped && s.wildcard == nil:
		r = sets{v, turn.Now}.groupedSet(limit)
	default:
		reported := removals{writer: writer{visible: v}, now: turn.Now}
		if until = reported.replaceReported(); !until.IsZero() {
			return Response{Waits: true}, until, nil
		}
		if r = reported.out; r.Truncated {
			break // the other removals precede the additions, too (B.32)
		}
		c := changes{writer: reported.writer, limit: limit, olderGeneration: older, awaited: turn.awaitedBy(s.Order)}
		r, err = c.response(turn.Now)
	}
	until = Earlier(until, s.errors.recheckAt)
	if r.Body == nil && err == nil && s.Delta && !s.LateRemovals() {
		var again time.Time
		stale := removals{writer: newWriter(s.visibleAt(g)), now: turn.Now}
		r, again = stale.stale()
		until = Earlier(until, again)
	}
	return r, until, err
}

// Removals returns the delayed removals, and when to check again.
func (s *Subscription) Removals(turn *Turn) (r Response, until time.Time) {
	after, g := s.removedUpTo, turn.Cut
	if after == 0 {
		after = g.Seq // a subscription to names alone has no such position
	}
	v := s.visibleAt(g)
	switch {
	case s.Delta:
		late := removals{writer: newWriter(v), now: turn.Now}
		if r = late.delayed(); r.Body == nil {
			r, until = late.stale()
		}
	case s.FullState:
		r, until = sets{v, turn.Now}.final()
	default:
		if s.removedUpTo = v.g.Seq; s.errors.any() { // errors of resources whose removal was delayed
			w := newWriter(v)
			w.addErrors(turn.Now)
			r = w.out
		}
	}
	r.After, r.before, r.from = after, s.position(), g
	return r, until
}

// RecordSent records that a response was sent under a nonce. endOffset is the number of bytes on the stream up to its
// end.
func (s *Subscription) RecordSent(r *Response, nonce string, v *cache.View, endOffset uint64, now time.Time) {
	s.counter.Sent(r.Body.Size())
	if s.rejected.forget(r.has); r.has.removes() {
		s.repeatRejected(r.from)
	}
	received := s.visibleAt(r.from).changedSince(v, r.After)
	if forgotten := s.recordSending(span{r.After, s.position()}, r.newlyRequested, r.before, received, now); forgotten != nil {
		forgotten.fanouts = nil // the next response has them
		s.end(forgotten, fanout.Superseded, fanout.NotNeeded, nil, now)
	}
	s.sentAny, s.pending, s.has = true, true, r.has
	s.nonce, s.version, s.bytes, s.endOffset = nonce, r.Body.Version(), r.Body.Size(), endOffset
	s.sentAt, s.ackDeadline = now, now.Add(s.Settings.AckWait)
	if s.fanouts.due != nil {
		cmp.Or(s.parent, s).markFanoutsSent(now)
	}
}

// changedSince returns when the oldest change after a position was received that concerns the client; zero if there is
// none. For names in complete sets, only the newest change of each name counts.
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

// EndTurn records that the client was sent everything that was due. It returns the position up to which the
// subscription needs no more hints.
func (s *Subscription) EndTurn(turn *Turn) cache.Seq {
	s.newRequest = s.newRequest && s.WaitsForClusters // from now on, only a change causes a response
	s.releaseRemovals()
	for _, glob := range s.separateGlobs() {
		glob.idle = glob.idle || !glob.At(turn.Newest).Behind()
	}
	if s.fanouts.due != nil {
		s.markFanoutsSent(turn.Now)
	}
	if len(s.names) == 0 || s.sendsSets() {
		return turn.GenerationFor(s).Seq // it uses no hints
	}
	return s.scannedUpTo
}

// releaseRemovals reports to the view the position up to which the client needs no more removals.
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

// TrackFanout records that a tracked change is due to the client.
func (s *Subscription) TrackFanout(f *fanout.Fanout) { s.fanouts.due = s.fanouts.due.And(f) }

// TraceParent returns the trace of the oldest tracked change that is due to the client; empty if it is not sampled.
func (s *Subscription) TraceParent() string {
	if oldest := cmp.Or(s.parent, s).fanouts.due.Oldest(); oldest != nil && oldest.Span.Sampled() {
		return oldest.Span.Context()
	}
	return ""
}

// markFanoutsSent records which tracked changes the client was sent.
func (s *Subscription) markFanoutsSent(now time.Time) {
	s.fanouts.markSent(s.wasSentChange, s.pending, now)
}

// wasSentChange reports whether the client was sent the part of a change that concerns it.
func (s *Subscription) wasSentChange(f *fanout.Fanout) bool {
	part := s
	if f.Key != s.Key {
		_, glob, _ := cache.SplitCollection(f.Key)
		if part = s.globs.find(glob); part == nil {
			return true // the client has unsubscribed
		}
	}
	late := f.Removes && part.LateRemovals() && part.wildcard != nil
	at := cache.Seq(f.Position)
	return part.position() >= at && (!late || part.removedUpTo >= at)
}

// A Poll is a subscription over REST, which ends after one complete set. The version in its request reports the set
// that the client holds.
type Poll struct {
	*Subscription
	contentDropped bool // content of subscribed resources was dropped, and was requested again
}

// A PollState is the possible answer to a poll.
type PollState int

// The states of a poll.
const (
	NoAnswer   PollState = iota // the origin has not answered
	Incomplete                  // only a part is known: the origin may send more
	Current                     // the client has the set, or must keep its resources
	Due                         // the set is complete, and the client has another one
)

// Check returns the state of the poll, and when to check again even without an event. trusts reports whether the
// version that the client reported can be trusted.
func (p *Poll) Check(
	g *cache.Generation, now time.Time, trusts func(fingerprint.Sum) bool,
) (state PollState, again time.Time) {
	v := sets{p.visibleAt(g), now}
	if !v.answered() {
		return NoAnswer, time.Time{}
	}
	if sum := v.sum(); p.initialVersion != "" && sum.SameVersion(p.initialVersion) {
		p.holdsSet = true // later sets delete only resources that were removed
		if trusts(sum) {
			return Current, time.Time{}
		}
	}
	if v.lacksAwaited() {
		return Current, time.Time{} // the client keeps its resources
	}
	if !v.complete() {
		return Incomplete, time.Time{}
	}
	if p.contentDropped = v.refetchDropped(true); p.contentDropped {
		return Incomplete, time.Time{} // the arrival of the content wakes the poll
	}
	if again = v.resolveDeadline(); now.Before(again) {
		return Incomplete, again
	}
	return Due, time.Time{}
}

// Skip records that the client needs no removals up to a position, since it is sent complete sets.
func (p *Poll) Skip(upTo cache.Seq) {
	p.removedUpTo = upTo
	for _, glob := range p.globs {
		glob.removedUpTo = upTo
	}
	p.releaseRemovals()
}

// Deletes reports whether the client may hold resources that an incomplete set lacks, and would delete them (B.7).
func (p *Poll) Deletes() bool {
	return p.FullState && p.initialVersion != "" && (!p.holdsSet || p.contentDropped)
}

// Doubts returns why the version that the client reported may not be trusted. The position tells when a visible
// resource last returned to former content. The revision is that of [cache.View.Distrust] if any resource was part of a
// rejected edition. Both are zero if the version can be trusted.
func (p *Poll) Doubts(g *cache.Generation) (reverted cache.Seq, distrust uint64) {
	return trust{p.visibleAt(g)}.doubts()
}

// Holds reports whether the client reported the version of a set.
func (p *Poll) Holds(sum fingerprint.Sum) bool { return sum.SameVersion(p.initialVersion) }

// Set returns all existing resources that the client subscribed to, and their sum.
func (p *Poll) Set(g *cache.Generation) ([]*wire.Resource, fingerprint.Sum) {
	set := p.visibleAt(g).collect(setBuilder{})
	return set.resources, set.sum
}

// answered reports whether the origin has ever answered for any part of the subscription.
func (s sets) answered() bool {
	for part := range s.wildcards() {
		if s.g.Type(part.Key).Phase < cache.Settled {
			return false
		}
	}
	return s.wildcard != nil || len(s.names) == 0 || slices.ContainsFunc(s.names, func(n subscribed) bool {
		e, _ := s.t.Lookup(n.name)
		return e != nil || s.t.Errors(cache.ByName).Get(n.name) != nil
	})
}
