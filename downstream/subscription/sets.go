package subscription

import (
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
)

// resolveWait is how long the first complete set waits for names that the origin has not answered (B.7). Clients wait
// 15s.
const resolveWait = 10 * time.Second

// coldMargin is added to resolveWait for a client that may hold the missing resources, while the origin has sent
// nothing on its connection. The origin may be a relay without state, which ends the stream after resolveWait (B.8).
const coldMargin = 2 * time.Second

// sets builds complete sets. For full-state types, a response without a resource deletes it. A set is therefore not
// sent while it lacks resources that the relay may not know yet (R066, R075).
type sets struct {
	visible
	now time.Time
}

// next returns the client's complete set if it is due now. If removals are delayed and something else is new, the set
// is a union that still has the removed resources. They leave with the final set, once changes to referring resources
// were sent (B.11). If the set has to wait, next returns when to check again.
func (s sets) next(limit cache.Seq) (Response, time.Time) {
	if !s.complete() {
		return Response{}, time.Time{} // a change of phase wakes the stream
	}
	due, removed := s.due()
	again := s.mustRepeat()
	if needed := due || again || removed && !s.LateRemovals(); !needed {
		s.catchUp()
		return Response{}, s.onlyNameGoneAt()
	}
	if until, wait := s.mustWait(limit); wait {
		return Response{}, until
	}
	if !again && s.unchanged() {
		s.skip()
		return Response{}, time.Time{}
	}
	if s.refetchDropped(false) {
		s.awaitContent()
		return Response{}, time.Time{} // the arrival of the content wakes the stream
	}
	return s.build(s.LateRemovals() && removed && s.holdsSet), time.Time{}
}

// final returns the set without the removed resources, once changes to the resources that referred to them were sent.
func (s sets) final() (Response, time.Time) {
	if !s.complete() {
		return Response{}, time.Time{}
	}
	if due, removed := s.due(); due || !removed {
		return Response{}, time.Time{}
	}
	if until := s.resolveDeadline(); s.now.Before(until) {
		return Response{}, until
	}
	if s.sum() == s.setSum && !s.errors.any() {
		s.recordSet(false) // resources were added and removed before the client was sent them
		return Response{}, time.Time{}
	}
	if s.refetchDropped(false) {
		return Response{}, time.Time{}
	}
	return s.build(false), time.Time{}
}

// skip records that the client already has this set, so it is not sent.
func (s sets) skip() {
	s.holdsSet, s.setSum = true, s.sum()
	s.catchUp()
	s.recordSet(false)
}

// awaitContent sets the deadline until which dependent types wait for the set's content.
func (s sets) awaitContent() {
	if s.contentUntil.IsZero() {
		s.contentUntil = s.now.Add(s.Settings.AckWait)
	}
}

// mustRepeat reports whether the set has to be sent, even if it is the same, for TTLs or errors.
func (s sets) mustRepeat() bool {
	errorsDue := visibleErrors{s.visible}.dueWithSet()
	return ttls{s.visible}.dueWithSet() || errorsDue
}

// mustWait reports whether a set that is due has to wait, and when to check again if no event ends the wait.
func (s sets) mustWait(limit cache.Seq) (until time.Time, wait bool) {
	if s.holdsSet && s.t.Last() > limit {
		return time.Time{}, true // the client's answer for clusters ends the wait
	}
	until = s.resolveDeadline()
	return until, s.now.Before(until)
}

// complete reports whether enough is known of the wildcard set that the client subscribed to. resolveDeadline covers
// globs.
func (s sets) complete() bool {
	if len(s.OverLimit) > 0 && s.initialVersion != "" && !s.holdsSet {
		return false // the client may hold resources over a limit, and would delete them
	}
	if s.lacksAwaited() {
		return false // the view wakes the stream when it has them
	}
	if s.wildcard == nil || s.reportedThisSet() {
		return true
	}
	return s.settledEnough(s.Key) && (s.holdsSet || s.t.Wildcard.Count() > 0 || !s.report.WithholdsAll())
}

// lacksAwaited reports whether a returning client may hold resources that the set lacks and the view awaits (cache.Writer.Await).
// It is sent no set until the view has them, and keeps its resources. If the view has served the reported version, the client
// holds nothing else.
func (s sets) lacksAwaited() bool {
	if s.initialVersion == "" || s.holdsSet || (fingerprint.Sum{}).SameVersion(s.initialVersion) || !s.awaitsAny() {
		return false
	}
	if s.wildcard != nil && len(s.names)+len(s.globs) == 0 {
		return !s.reportsFormerSet(s.t)
	}
	return !s.sum().SameVersion(s.initialVersion)
}

// awaitsAny reports whether the view awaits a resource to which the client subscribed.
func (s sets) awaitsAny() bool {
	for part := range s.wildcards() {
		if s.g.Type(part.Key).Wildcard.AwaitsAny() {
			return true
		}
	}
	return slices.ContainsFunc(s.names, func(n subscribed) bool { return s.t.ByName.Awaits(n.name.String()) })
}

// due reports whether additions or updates are due to the client, and whether removals are.
func (s sets) due() (due, removed bool) {
	due, removed = s.dueMembers()
	for _, glob := range s.globs {
		of := sets{glob.visibleAt(s.g), s.now}
		d, r := of.dueMembers()
		due, removed = due || d && of.t.Phase >= cache.Settled, removed || r
	}
	for i := range s.names {
		d, r := s.dueName(&s.names[i])
		due, removed = due || d, removed || r
	}
	gone := s.onlyNameGoneAt()
	return due || !gone.IsZero() && !s.now.Before(gone), removed
}

// onlyNameGoneAt returns when an empty set is due to a returning client that subscribes to one name for which the origin
// has not answered: an origin that does not have a resource may say nothing. It is that of a returning Delta client
// (B.15), and zero for other clients. A client with several such names may hold all that an origin has lost.
func (s sets) onlyNameGoneAt() time.Time {
	if s.initialVersion == "" || s.holdsSet || s.wildcard != nil || len(s.names) != 1 || len(s.globs) > 0 {
		return time.Time{}
	}
	n := s.names[0].name
	if e, _ := s.t.Lookup(n); e != nil || s.t.Errors(cache.ByName).Get(n) != nil {
		return time.Time{}
	}
	if at := s.assumedAbsentAt(n, s.now); !at.Equal(Forever) {
		return at
	}
	return time.Time{} // the connection of the origin wakes the stream
}

// dueMembers is due for the wildcard set without the names that the client subscribed to.
func (s sets) dueMembers() (due, removed bool) {
	if s.wildcard == nil || s.sendAll {
		return s.sendAll && s.t.Phase >= cache.Settled, false
	}
	due = s.anyChangedSince(s.sentUpTo, true)
	return due, s.anyChangedSince(s.removedUpTo, false) || s.removedUpTo < s.t.Wildcard.Floor()
}

// dueName is due for one name.
func (s sets) dueName(n *subscribed) (due, removed bool) {
	e, seq := s.entryOf(*n)
	switch {
	case e == nil || seq <= n.sent:
		return false, false
	case e.Present() && unsendable(*n, e):
		s.refetch(e)
		return false, false
	case e.Present():
		return true, false
	case !s.confirmedAbsent(e), s.mayReappear(e, *n):
		return false, false
	case n.sent != 0:
		return false, true
	case !s.holdsSet:
		return true, false
	default:
		n.sent = seq // the set that the client holds omits it already
		return false, false
	}
}

// resolveDeadline returns the deadline of the wait for names that the origin has not answered. It is a bounded time
// after the request if the origin is connected. Otherwise it is Forever for a client that may hold the missing
// resources.
func (s sets) resolveDeadline() (until time.Time) {
	if until = s.globResolveDeadline(); until.Equal(Forever) {
		return Forever
	}
	for _, n := range s.names {
		if s.resolved(n) || s.holdsSet && n.sent == 0 {
			continue // a name that is new in a set that the client has does not delay the set
		}
		asked := n.name.Asked()
		if e, _ := s.t.Lookup(n.name); e.Present() && asked.Before(e.ContentDroppedAt()) {
			asked = time.Time{} // the content of that answer was dropped
		}
		wait := s.answerDeadline(s.g.From(n.name), asked, s.since)
		if wait.Equal(Forever) {
			return Forever
		}
		until = later(until, wait)
	}
	return until
}

// resolved reports whether a complete set can state the true state of a name: present, absent or an error, or the state
// that the client was sent before.
func (s sets) resolved(n subscribed) bool {
	if err := s.t.Errors(cache.ByName).Get(n.name); err != nil && !err.Err.NotFound() {
		return true
	}
	switch e, seq := s.t.Lookup(n.name); {
	case e == nil, s.mayReappear(e, n):
		return false
	case e.Present():
		return !unsendable(n, e)
	default:
		return s.confirmedAbsent(e) || seq <= n.sent || e.Prior != nil && n.sent != 0
	}
}

// answerDeadline returns the deadline of the wait for an origin's answer. The request was sent at asked, which is zero
// if it was not sent yet. The client subscribed at since.
func (s sets) answerDeadline(from *cache.Source, asked, since time.Time) time.Time {
	switch {
	case !from.Connected && s.initialVersion != "":
		return Forever
	case !from.Connected:
		return since.Add(resolveWait)
	case asked.IsZero():
		return s.now.Add(resolveWait)
	case !from.Responded && s.initialVersion != "":
		return asked.Add(resolveWait + coldMargin)
	default:
		return asked.Add(resolveWait)
	}
}

// globResolveDeadline returns the deadline of the wait for the sets of globs. It is bounded as for names, since an
// origin that does not support globs may not answer. A glob that is new in a set that the client has does not delay the
// set.
func (s sets) globResolveDeadline() (until time.Time) {
	if s.holdsSet {
		return time.Time{}
	}
	for _, glob := range s.globs {
		if s.settledEnough(glob.Key) {
			continue
		}
		from := s.g.WildcardSource(glob.Key) // the relay subscribes again on each connection
		wait := s.answerDeadline(from, later(glob.since, from.Since), glob.since)
		if wait.Equal(Forever) {
			return Forever
		}
		until = later(until, wait)
	}
	return until
}

// unchanged reports whether the client already has this set. Either its first request reported the version, which
// proves this only for a wildcard alone (R027). Or it was sent this set, and all changes since were reverted.
func (s sets) unchanged() bool {
	switch {
	case !s.holdsSet:
		reverted, distrust := trust{s.visible}.doubts()
		return s.reportedThisSet() && reverted == 0 && distrust == 0
	case s.sendAll, ttls{s.visible}.mayHaveExpired():
		return false
	}
	for _, n := range s.names {
		if e, _ := s.entryOf(n); n.sent == 0 && e.Present() && !e.Resource.ContentDropped() {
			return false // newly subscribed
		}
	}
	for _, glob := range s.globs {
		if glob.sendAll && s.g.Type(glob.Key).Wildcard.Count() > 0 {
			return false // newly subscribed
		}
	}
	return s.sum() == s.setSum
}

// reportedThisSet reports whether the client's first request reported the version of this set, so that sending it
// deletes nothing (B.3). It is false for a client that repeats the nonce of a former stream, such as MOSN, since that
// waits for a response on the new stream (R019).
func (s sets) reportedThisSet() bool {
	wildcardOnly := s.wildcard != nil && len(s.names)+len(s.globs) == 0 && !s.foreignNonce
	of, _ := schema.TypeOf(s.TypeURL)
	return s.initialVersion != "" && of.Root && wildcardOnly && (s.t.Phase >= cache.Settled || s.t.Restored) &&
		s.t.Wildcard.TTLs() == 0 && (!s.sendsTTLs || !s.t.Wildcard.Limited()) &&
		s.t.Wildcard.Sum().SameVersion(s.initialVersion)
}

// build builds a complete set and records it as sent.
func (s sets) build(union bool) (r Response) {
	if len(s.names)+len(s.globs) == 0 && s.sharesContent() && !s.errors.any() && !s.withholdsAny() {
		r = s.sharedSet(union)
	} else {
		r = s.ownSet(union)
	}
	r.newlyRequested = s.newlyRequested()
	s.holdsSet, s.contentUntil = true, time.Time{}
	s.catchUp()
	s.recordSet(union)
	return r
}

// newlyRequested returns the span of changes of names and globs that the client is sent for the first time.
func (s sets) newlyRequested() (of span) {
	for _, n := range s.names {
		if e, seq := s.entryOf(n); n.sent == 0 && e.Present() {
			of = of.with(seq)
		}
	}
	for _, glob := range s.globs {
		if glob.sendAll {
			of = of.join(span{0, s.g.Type(glob.Key).Wildcard.Last()})
		}
	}
	return of
}

// catchUp records that the client has all changes up to the generation. It leaves the positions of names unchanged.
func (s sets) catchUp() {
	s.caughtUp(s.g.Seq, s.LateRemovals())
	for _, glob := range s.globs {
		unknown := glob.sendAll && s.g.Type(glob.Key).Phase < cache.Settled
		glob.caughtUp(s.g.Seq, s.LateRemovals())
		glob.sendAll = unknown
	}
}

// recordSet records the positions of the names in the set that the client now has. Unless the set is a union, it
// records all removals too.
func (s sets) recordSet(union bool) {
	if !union {
		s.removedUpTo = s.g.Seq
		for _, glob := range s.globs {
			glob.removedUpTo = s.g.Seq
		}
	}
	for i := range s.names {
		n := &s.names[i]
		switch e, seq := s.entryOf(*n); {
		case e.Present() && unsendable(*n, e):
		case e.Present() || e != nil && s.confirmedAbsent(e) && !union:
			n.sent = seq
		case e != nil && n.sent != 0:
			s.pendingNames = append(s.pendingNames, n.name) // removed with a later set
		}
	}
}

// sharedSet returns the set with a body that all clients with the same set and wrapping share. Refers depends on
// what this client was sent before.
func (s sets) sharedSet(union bool) (r Response) {
	type key struct {
		wrap wire.Wrap
		sum  fingerprint.Sum
	}
	members := &s.t.Wildcard
	if s.setSum = members.Sum(); union {
		s.setSum = s.setSum.Add(s.removedSum())
	}
	r.Body = cache.Shared(s.t, cache.SharedSets, key{s.wrap, s.setSum}, func() any {
		b := &setBuilder{union: union} // seen is nil, since no resource occurs twice
		b.addMembers(s.visible, s.visible)
		return b.body(s.visible, s.wrap).Join()
	}).(*wire.Body)
	for e := range members.Since(s.sentUpTo) {
		if e.Present() {
			r.Refers = r.Refers.With(e.Resource)
		}
	}
	return r
}

// removedSum returns the sum of the removed resources that a union has in addition to the wildcard set.
func (s sets) removedSum() (sum fingerprint.Sum) {
	for e := range s.t.Wildcard.Since(s.removedUpTo) {
		if s.keepsInUnion(e) && !e.Prior.ContentDropped() {
			sum = sum.Add(e.Leaf)
		}
	}
	return sum
}

// ownSet returns the set of a client that subscribed to names or globs, or that is sent TTLs or errors.
func (s sets) ownSet(union bool) Response {
	b := s.collect(setBuilder{union: union})
	s.setSum = b.sum
	wrap := s.wrap
	if wrap != wire.Unwrapped && len(s.globs) > 0 {
		wrap = wire.WrapAll // otherwise the client would not learn the names (B.19)
	}
	body := b.body(s.visible, wrap)
	visibleErrors{s.visible}.addTo(body, union)
	r := Response{Body: body, Refers: b.refers}
	if s.Secret {
		r.Secrets = b.names()
	}
	return r
}

// groupedSet returns all existing resources that the client subscribed to by name, if any is due. It serves types for
// which Envoy drops resources that a response omits (B.17).
func (s sets) groupedSet(limit cache.Seq) Response {
	c := changes{writer: newWriter(s.visible), limit: limit}
	c.addNames()
	c.addRenewedTTLs()
	if due := (visibleErrors{s.visible}).dueWithSet(); !due && c.out.Body == nil {
		return Response{}
	}
	w := newWriter(s.visible)
	w.body()
	w.out.newlyRequested = c.out.newlyRequested
	for i := range s.names {
		n := &s.names[i]
		switch e, seq := s.entryOf(*n); {
		case !e.Present() || !e.Resource.HasBody():
		case e.Resource.ContentDropped():
			s.refetch(e)
			s.pendingNames = append(s.pendingNames, n.name)
			return Response{} // the arrival of the content wakes the stream
		default:
			w.add(e)
			n.sent = seq
		}
	}
	s.ttlsSentUpTo = positions{s.g.Seq, s.g.Seq}
	visibleErrors{s.visible}.addTo(w.body(), false)
	return w.out
}
