package subscription

import (
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/wire"
)

// resolveWait is how long the first complete set waits for names that the origin was asked for and has not answered
// (B.7). Clients wait 15s.
const resolveWait = 10 * time.Second

// coldMargin is added to it for a client that may hold what would be missing, while the origin has sent nothing on its
// connection: it may be a relay that knows nothing itself, and ends the stream after as long (B.8).
const coldMargin = 2 * time.Second

// sets make complete sets. Of full-state types, a response without a resource deletes it, so nothing is sent that lacks
// what the relay merely does not know yet (R066, R075).
type sets struct {
	visible
	now time.Time
}

// next returns the client's complete set, if it has to be sent now. Where removals wait, resources that are gone are
// still in it if something else is new: they leave with the next set, once what referred to them was sent (B.11). It
// returns when to look again, if waiting is all there is to do.
func (s sets) next(limit cache.Seq) (Response, time.Time) {
	if !s.complete() {
		return Response{}, time.Time{} // a change of phase wakes the stream
	}
	due, gone := s.due()
	again := s.mustRepeat()
	if needed := due || again || gone && !s.LateRemovals; !needed {
		s.catchUp()
		return Response{}, time.Time{}
	}
	if until, held := s.mustWait(limit); held {
		return Response{}, until
	}
	if !again && s.unchanged() {
		s.skip()
		return Response{}, time.Time{}
	}
	if s.refetchDropped(false) {
		s.awaitContent()
		return Response{}, time.Time{} // the content wakes the stream
	}
	return s.build(s.LateRemovals && gone && s.holdsSet), time.Time{}
}

// final returns the set without what is gone, once what referred to it was sent.
func (s sets) final() (Response, time.Time) {
	if !s.complete() {
		return Response{}, time.Time{}
	}
	if due, gone := s.due(); due || !gone {
		return Response{}, time.Time{}
	}
	if until := s.resolveDeadline(); s.now.Before(until) {
		return Response{}, until
	}
	if s.sum() == s.setSum && !s.errors.any() {
		s.recordSet(false) // it came and went before the client saw it
		return Response{}, time.Time{}
	}
	if s.refetchDropped(false) {
		return Response{}, time.Time{}
	}
	return s.build(false), time.Time{}
}

// skip records that the client has just this set, so it is not sent.
func (s sets) skip() {
	s.holdsSet, s.setSum = true, s.sum()
	s.catchUp()
	s.recordSet(false)
}

// awaitContent notes until when dependent types wait for the set's content.
func (s sets) awaitContent() {
	if s.contentUntil.IsZero() {
		s.contentUntil = s.now.Add(s.Settings.AckWait)
	}
}

// mustRepeat reports whether the set has to be sent although it may be the same: for TTLs or errors.
func (s sets) mustRepeat() bool {
	errorsDue := visibleErrors{s.visible}.dueWithSet()
	return ttls{s.visible}.dueWithSet() || errorsDue
}

// heldBack reports whether a set that is due has to wait, and when to look again if no event ends that.
func (s sets) mustWait(limit cache.Seq) (until time.Time, held bool) {
	if s.holdsSet && s.t.Last() > limit {
		return time.Time{}, true // the client's answer for clusters frees it
	}
	until = s.resolveDeadline()
	return until, s.now.Before(until)
}

// complete reports whether enough is known of the wildcard set that the client asked for. unresolvedUntil waits for
// what globs stand for.
func (s sets) complete() bool {
	if len(s.OverLimit) > 0 && s.initialVersion != "" && !s.holdsSet {
		return false // the client may hold what is over a limit, and would drop it
	}
	if s.heldByFreeze() {
		return false // the thaw wakes the stream
	}
	if s.wildcard == nil || s.reportedThisSet() {
		return true
	}
	return s.settledEnough(s.t) && (s.holdsSet || s.t.Wildcard.Count() > 0 || !s.report.WithholdsAll())
}

// heldByFreeze reports whether a returning client is sent no set until its origin is thawed: the set may lack what the
// client has from elsewhere, since it came to be after the freeze (B.7). A version that readers of this view have seen
// shows that the client has nothing of that kind.
func (s sets) heldByFreeze() bool {
	if s.initialVersion == "" || s.holdsSet || (fingerprint.Sum{}).SameVersion(s.initialVersion) || !s.mayLackNewer() {
		return false
	}
	if s.wildcard != nil && len(s.names)+len(s.globs) == 0 {
		return !s.t.Wildcard.Showed(s.initialVersion)
	}
	return !s.sum().SameVersion(s.initialVersion)
}

// mayLackNewer reports whether the set may lack what came to be after an origin was frozen. Of names, these are absent.
func (s sets) mayLackNewer() bool {
	for part := range s.wildcards() {
		if !s.g.WildcardSource(part.Key).Frozen.IsZero() {
			return true
		}
	}
	return !s.neverWaits && slices.ContainsFunc(s.names, func(n subscribed) bool {
		e, _ := s.entryOf(n)
		return e != nil && !e.Present() && !s.g.From(n.name).Frozen.IsZero()
	})
}

// due reports whether resources are due to the client, and whether it holds some that are gone.
func (s sets) due() (due, gone bool) {
	due, gone = s.dueMembers()
	for _, glob := range s.globs {
		of := sets{glob.visibleAt(s.g), s.now}
		d, g := of.dueMembers()
		due, gone = due || d && of.t.Phase >= cache.Settled, gone || g
	}
	for i := range s.names {
		d, g := s.dueName(&s.names[i])
		due, gone = due || d, gone || g
	}
	return due, gone
}

// dueMembers is due for all that the client did not name.
func (s sets) dueMembers() (due, gone bool) {
	if s.wildcard == nil || s.sendAll {
		return s.sendAll && s.t.Phase >= cache.Settled, false
	}
	due = s.anyChangedSince(s.sentUpTo, true)
	return due, s.anyChangedSince(s.removedUpTo, false) || s.removedUpTo < s.t.Wildcard.Floor()
}

// dueName is due for one name.
func (s sets) dueName(n *subscribed) (due, gone bool) {
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
		n.sent = seq // new to the client, and absent: the set omits it already
		return false, false
	}
}

// unresolvedUntil returns until when to wait for names that the origin has not answered: a bounded time after it was
// asked, if it is connected; otherwise without limit for a client that may hold what would be missing. Types that an
// operator declared full-state never wait.
func (s sets) resolveDeadline() (until time.Time) {
	if s.neverWaits {
		return time.Time{}
	}
	if until = s.globResolveDeadline(); until.Equal(Forever) {
		return Forever
	}
	for _, n := range s.names {
		if s.resolved(n) || s.holdsSet && n.sent == 0 {
			continue // nothing waits for a name that is new in a set that the client has
		}
		asked := n.name.Asked()
		if e, _ := s.t.Lookup(n.name); e.Present() && asked.Before(e.ContentDroppedAt()) {
			asked = time.Time{} // the content that was the answer then was dropped
		}
		wait := s.answerDeadline(s.g.From(n.name), asked, s.since)
		if wait.Equal(Forever) {
			return Forever
		}
		until = later(until, wait)
	}
	return until
}

// resolved reports whether a complete set can say what is true of a name: that it exists, that it does not, what its
// error is, or what the client was sent before.
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

// resolvedBy returns until when to wait for the answer to a request that was sent to an origin then. The client
// subscribed at since.
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

// unresolvedGlobsUntil returns until when a set waits for what its globs stand for, as it does for names: an origin may
// know nothing of globs, and not answer. Nothing waits for a glob that is new in a set that the client has.
func (s sets) globResolveDeadline() (until time.Time) {
	if s.holdsSet {
		return time.Time{}
	}
	for _, glob := range s.globs {
		if s.settledEnough(s.g.Type(glob.Key)) {
			continue
		}
		from := s.g.WildcardSource(glob.Key) // which is asked again on each connection
		wait := s.answerDeadline(from, later(glob.since, from.Since), glob.since)
		if wait.Equal(Forever) {
			return Forever
		}
		until = later(until, wait)
	}
	return until
}

// unchanged reports whether the client has just this set: because its first request says so, which is proof only for a
// wildcard alone (R027), or because it was sent it, and what changed since has changed back.
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
			return false // just asked for
		}
	}
	for _, glob := range s.globs {
		if glob.sendAll && s.g.Type(glob.Key).Wildcard.Count() > 0 {
			return false // just asked for
		}
	}
	return s.sum() == s.setSum
}

// reportedThisSet reports whether the version in the client's first request is that of this set, so that the client
// loses nothing if it is sent it (B.3). A client that carries a nonce from stream to stream, such as MOSN, does not know
// of streams, and waits for the answer that a new one begins with (R019).
func (s sets) reportedThisSet() bool {
	wildcardOnly := s.wildcard != nil && len(s.names)+len(s.globs) == 0 && !s.foreignNonce
	spec := s.TypeURL == wire.ClusterType || s.TypeURL == wire.ListenerType
	return s.initialVersion != "" && spec && wildcardOnly && (s.t.Phase == cache.Confirmed || s.t.Restored) &&
		s.t.Wildcard.TTLs() == 0 && (!s.sendsTTLs || !s.t.Wildcard.Limited()) && s.t.Wildcard.Sum().SameVersion(s.initialVersion)
}

// build builds a complete set and records it as sent.
func (s sets) build(union bool) (r Response) {
	if len(s.names)+len(s.globs) == 0 && s.sharesContent() && !s.errors.any() && !s.withholdsAny() {
		r = s.shared(union)
	} else {
		r = s.own(union)
	}
	r.newlyRequested = s.newlyRequested()
	s.holdsSet, s.contentUntil = true, time.Time{}
	s.catchUp()
	s.recordSet(union)
	return r
}

// asked returns when what the client was not sent before changed: names, and what globs stand for.
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

// catchUp records that the client has everything up to the generation, except names that it was not sent.
func (s sets) catchUp() {
	s.caughtUp(s.g.Seq, s.LateRemovals)
	for _, glob := range s.globs {
		unknown := glob.sendAll && s.g.Type(glob.Key).Phase < cache.Settled
		glob.caughtUp(s.g.Seq, s.LateRemovals)
		glob.sendAll = unknown
	}
}

// recordSet records what the client's set now says of the names and, unless it is a union, of all that is gone.
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

// shared returns the set as one body for every client that is sent just that, in this form. The endpoints that changed clusters need are
// this client's.
func (s sets) shared(union bool) (r Response) {
	type key struct {
		wrap wire.Wrap
		sum  fingerprint.Sum
	}
	members := &s.t.Wildcard
	if s.setSum = members.Sum(); union {
		s.setSum = s.setSum.Add(s.removedSum())
	}
	r.Body = cache.Shared(s.t, cache.SharedSets, key{s.wrap, s.setSum}, func() any {
		b := &setBuilder{union: union} // no resource is in it twice
		b.addMembers(s.visible, s.visible)
		return b.body(s.visible, s.wrap).Join()
	}).(*wire.Body)
	for e := range members.Since(s.sentUpTo) {
		if e.Present() && e.Resource.EDSName != "" {
			r.Endpoints = append(r.Endpoints, e.Resource.EDSName)
		}
	}
	return r
}

// removedSum identifies what a union has beside the wildcard set.
func (s sets) removedSum() (sum fingerprint.Sum) {
	for e := range s.t.Wildcard.Since(s.removedUpTo) {
		if s.keepsInUnion(e) && !e.Prior.ContentDropped() {
			sum = sum.Add(e.Leaf)
		}
	}
	return sum
}

// own returns the set of a client that named resources, or that is sent TTLs or errors with it.
func (s sets) own(union bool) Response {
	b := s.collect(setBuilder{union: union})
	s.setSum = b.sum
	wrap := s.wrap
	if wrap != wire.Unwrapped && len(s.globs) > 0 {
		wrap = wire.WrapAll // or the client would not learn the names (B.19)
	}
	body := b.body(s.visible, wrap)
	visibleErrors{s.visible}.addTo(body, union)
	r := Response{Body: body, Endpoints: b.endpoints}
	if s.Secret {
		r.Secrets = b.names()
	}
	return r
}

// group returns all that the client named and that exists, if any of it is due: for types of which Envoy drops what a
// response omits (B.17).
func (s sets) group(limit cache.Seq) Response {
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
			return Response{} // the content wakes the stream
		default:
			w.add(e)
			n.sent = seq
		}
	}
	s.ttlsSentUpTo = positions{s.g.Seq, s.g.Seq}
	visibleErrors{s.visible}.addTo(w.body(), false)
	return w.out
}
