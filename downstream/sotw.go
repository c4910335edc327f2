package downstream

import (
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// resolveWait is how long the first complete set is held back for names that the
// origin was asked for and has not answered (B.7). Clients wait 15s.
const resolveWait = 10 * time.Second

// coldMargin is added to it, for a client that may hold what would be missing,
// while the origin has said nothing on its connection: it may be a relay that knows
// nothing itself, and says so by ending the stream after as long (B.8).
const coldMargin = 2 * time.Second

// fullSet returns the client's complete set, if it has to be sent now: of full-
// state types a response without a resource deletes it, so nothing is sent that
// lacks what the relay merely does not know yet (R066, R075).
//
// With union, resources that are gone are still in it where something else
// is new: they leave with the next set, once what referred to them was sent
// (B.11). It returns when to look again, if waiting is all there is to do.
func (s *subscription) fullSet(g *cache.Generation, t *cache.Type, limit cache.Seq, now time.Time) (*Response, time.Time) {
	if !s.complete(t) {
		return nil, time.Time{} // a change of phase wakes the stream
	}
	owed, gone := s.due(g, t)
	again := s.mustRepeat(g, t)
	if !owed && !again && (!gone || s.LateRemovals) {
		s.caughtUp(g)
		return nil, time.Time{}
	}
	if until, held := s.heldBack(g, t, limit, now); held {
		return nil, until
	}
	if !again && s.unchanged(g, t) {
		s.holdsSet, s.setSum = true, s.visibleSum(g)
		s.caughtUp(g)
		s.noteSet(g, t, false)
		return nil, time.Time{}
	}
	if s.contentDropped(g, t) {
		s.awaitContent(now)
		return nil, time.Time{} // what comes wakes the stream
	}
	return s.set(g, t, s.LateRemovals && gone && s.holdsSet), time.Time{}
}

// repeated reports whether the set has to be sent although it may be the same: for
// how long resources live, or for what is wrong with some.
func (s *subscription) mustRepeat(g *cache.Generation, t *cache.Type) bool {
	failing := s.errorsDue(g, t)
	return s.renewalDue(g, t) || failing
}

// await notes that a set waits for content, and until when others wait for it.
func (s *subscription) awaitContent(now time.Time) {
	if s.contentUntil.IsZero() {
		s.contentUntil = now.Add(s.cfg.AckWait)
	}
}

// held reports whether a set that is due has to wait, and when to look again if no
// event ends that.
func (s *subscription) heldBack(g *cache.Generation, t *cache.Type, limit cache.Seq, now time.Time) (until time.Time, held bool) {
	if s.holdsSet && t.Last() > limit {
		return time.Time{}, true // the client's answer for clusters frees it
	}
	until = s.unresolvedUntil(g, t, now)
	return until, now.Before(until)
}

// complete reports whether enough is known of all members that the client asked for;
// what its globs stand for, unresolvedUntil waits for.
func (s *subscription) complete(t *cache.Type) bool {
	if len(s.overLimit) > 0 && s.initialVersion != "" && !s.holdsSet {
		return false // the client may hold what is over a limit, and would drop it
	}
	if s.wildcard == nil || s.reportedThisSet(t) {
		return true
	}
	return s.settledEnough(t) && (s.holdsSet || t.Wildcard.Count() > 0 || !s.report.WithholdsAll())
}

// bare reports whether the set holds something whose content was given up, and that
// the client must not lose; the origin is asked for it (R125).
func (s *subscription) contentDropped(g *cache.Generation, t *cache.Type) (bare bool) {
	for glob := range s.followed() {
		if members := g.Type(glob.key); members.Wildcard.ContentDropped() > 0 {
			glob.askMembersAgain(g, members)
			bare = true
		}
	}
	if t.ByName.ContentDropped()+t.Wildcard.ContentDropped() == 0 {
		return bare
	}
	for _, n := range s.names {
		if e, _ := s.see(t, n); e.Present() && e.Resource.Released() && e.Resource.HasBody() && n.sent != 0 {
			s.askAgain(g, e)
			bare = true
		}
	}
	return bare
}

// lacks reports whether the client, which has never had a resource, cannot be given it
// now: its content was given up.
func unsendable(n subscribed, e *cache.Entry) bool { return n.sent == 0 && e.Resource.Released() }

// finalSet returns the set without what is gone, once what referred to it was
// sent.
func (s *subscription) finalSet(g *cache.Generation, t *cache.Type, now time.Time) (*Response, time.Time) {
	if !s.complete(t) {
		return nil, time.Time{}
	}
	if owed, gone := s.due(g, t); owed || !gone {
		return nil, time.Time{}
	}
	if until := s.unresolvedUntil(g, t, now); now.Before(until) {
		return nil, until
	}
	if s.visibleSum(g) == s.setSum && !s.failures.any() {
		s.noteSet(g, t, false) // it came and went before the client saw it
		return nil, time.Time{}
	}
	if s.contentDropped(g, t) {
		return nil, time.Time{}
	}
	return s.set(g, t, false), time.Time{}
}

// enough reports whether so much is known of the members that this client can be answered (B.7): if it may hold some, all, or
// all that was last known.
func (s *subscription) settledEnough(t *cache.Type) bool {
	if s.initialVersion != "" && !s.holdsSet {
		return t.Phase == cache.Confirmed || t.Covered
	}
	return t.Phase >= cache.Settled
}

// due reports whether the client is owed resources, and whether it holds some
// that are gone.
func (s *subscription) due(h *cache.Generation, t *cache.Type) (owed, gone bool) {
	owed, gone = s.dueMembers(t)
	for _, glob := range s.globs {
		gt := h.Type(glob.key)
		o, g := glob.dueMembers(gt)
		owed, gone = owed || o && gt.Phase >= cache.Settled, gone || g
	}
	for i := range s.names {
		o, g := s.dueName(h, t, &s.names[i])
		owed, gone = owed || o, gone || g
	}
	return owed, gone
}

// dueMembers is due for all that the client did not name.
func (s *subscription) dueMembers(t *cache.Type) (owed, gone bool) {
	if s.wildcard == nil || s.sendAll {
		return s.sendAll && t.Phase >= cache.Settled, false
	}
	owed = s.anySince(&t.Wildcard, s.sentUpTo, true)
	return owed, s.anySince(&t.Wildcard, s.removedUpTo, false) || s.removedUpTo < t.Wildcard.Floor()
}

// dueName is due for one name.
func (s *subscription) dueName(g *cache.Generation, t *cache.Type, n *subscribed) (owed, gone bool) {
	e, seq := s.see(t, *n)
	switch {
	case e == nil || seq <= n.sent:
		return false, false
	case e.Present() && unsendable(*n, e):
		s.askAgain(g, e)
		return false, false
	case e.Present():
		return true, false
	case !g.Absent(e), s.mayReappear(g, e, *n):
		return false, false
	case n.sent != 0:
		return false, true
	case !s.holdsSet:
		return true, false
	default:
		n.sent = seq // new to the client, and not there: it is omitted already
		return false, false
	}
}

// anySince reports whether a member that the client did not name appeared or
// changed, or went, after p.
func (s *subscription) anySince(set *cache.Set, p cache.Seq, present bool) bool {
	for e := range set.Since(p) {
		if _, named := s.find(e.Name); !named && e.Present() == present {
			return true
		}
	}
	return false
}

// forever stands for a wait that only an event ends.
var forever = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// unresolvedUntil returns until when to wait for names that the origin has not
// answered: with the origin up, a bounded time after it was asked; with the
// origin down, without limit for a client that may hold what would be missing.
// Types that an operator declared full-state are never held back.
func (s *subscription) unresolvedUntil(g *cache.Generation, t *cache.Type, now time.Time) (until time.Time) {
	if s.neverHeldBack {
		return time.Time{}
	}
	if until = s.globsResolvedBy(g); until.Equal(forever) {
		return forever
	}
	for _, n := range s.names {
		if s.resolved(g, t, n) || s.holdsSet && n.sent == 0 {
			continue // a name that was added to a set that the client has holds nothing back
		}
		asked := n.name.Asked()
		if e, _ := t.Lookup(n.name); e.Present() && asked.Before(e.ContentDroppedAt()) {
			asked = time.Time{} // what was answered then is not here any more
		}
		wait := s.resolveBy(g, n.name, asked, now)
		if wait.Equal(forever) {
			return forever
		}
		if wait.After(until) {
			until = wait
		}
	}
	return until
}

// resolved reports whether a complete set can say what is true of a name: that it
// exists, that it does not, what is wrong with it, or what the client was told before.
func (s *subscription) resolved(g *cache.Generation, t *cache.Type, n subscribed) bool {
	if err := t.Errors(cache.ByName).Get(n.name); err != nil && !err.Err.NotFound() {
		return true
	}
	switch e, seq := t.Lookup(n.name); {
	case e == nil, s.mayReappear(g, e, n):
		return false
	case e.Present():
		return !unsendable(n, e)
	default:
		return g.Absent(e) || seq <= n.sent || e.Prior != nil && n.sent != 0
	}
}

// resolveBy returns until when to wait for the answer to a question that was asked then.
func (s *subscription) resolveBy(g *cache.Generation, n *cache.Name, asked, now time.Time) time.Time {
	from := g.From(n)
	switch {
	case !from.Connected && s.initialVersion != "":
		return forever
	case !from.Connected:
		return s.namesSince.Add(resolveWait)
	case asked.IsZero():
		return now.Add(resolveWait)
	case !from.Heard && s.initialVersion != "":
		return asked.Add(resolveWait + coldMargin)
	default:
		return asked.Add(resolveWait)
	}
}

// unchanged reports whether the client has just this set: because it said so in
// its first request, which is proof only for a wildcard alone (R027), or because
// it was sent it, and what changed since has changed back.
func (s *subscription) unchanged(g *cache.Generation, t *cache.Type) bool {
	switch {
	case !s.holdsSet:
		return s.reportedThisSet(t) && s.trustsSet(g)
	case s.sendAll, s.mayHaveExpired(g):
		return false
	}
	for _, n := range s.names {
		if e, _ := s.see(t, n); n.sent == 0 && e.Present() && !e.Resource.Released() {
			return false // just asked for
		}
	}
	for _, glob := range s.globs {
		if glob.sendAll && g.Type(glob.key).Wildcard.Count() > 0 {
			return false // likewise
		}
	}
	return s.visibleSum(g) == s.setSum
}

// saidSo reports whether the version in the client's first request is that of this
// set, so that the client can lose nothing by being sent it (B.3). A client that carries a
// nonce from stream to stream, such as MOSN, does not know of streams, and waits for the
// answer that a new one begins with (R019).
func (s *subscription) reportedThisSet(t *cache.Type) bool {
	wildcardOnly := s.wildcard != nil && len(s.names)+len(s.globs) == 0 && !s.foreignNonce
	spec := s.TypeURL == wire.ClusterType || s.TypeURL == wire.ListenerType
	return s.initialVersion != "" && spec && wildcardOnly && (t.Phase == cache.Confirmed || t.Restored) &&
		t.Wildcard.TTLs() == 0 && (!s.sendsTTLs || !t.Wildcard.Limited()) && t.Wildcard.Sum().SameVersion(s.initialVersion)
}

// set builds a complete set and records it as sent.
func (s *subscription) set(g *cache.Generation, t *cache.Type, union bool) *Response {
	var r *Response
	if len(s.names)+len(s.globs) == 0 && !union && s.sharesContent(t) && !s.failures.any() && !s.withholds(t) {
		r = s.sharedSet(t)
		s.setSum = t.Wildcard.Sum()
	} else {
		r = s.ownSet(g, t, union)
	}
	s.holdsSet, s.contentUntil = true, time.Time{}
	s.caughtUp(g)
	s.noteSet(g, t, union)
	return r
}

// told records what the client's set now says of the names, and, unless it is a
// union, of all that is gone.
func (s *subscription) noteSet(g *cache.Generation, t *cache.Type, union bool) {
	if !union {
		s.removedUpTo = g.Seq
		for _, glob := range s.globs {
			glob.removedUpTo = g.Seq
		}
	}
	for i := range s.names {
		n := &s.names[i]
		switch e, seq := s.see(t, *n); {
		case e.Present() && unsendable(*n, e):
		case e.Present() || e != nil && g.Absent(e) && !union:
			n.sent = seq
		case e != nil && n.sent != 0:
			s.pendingNames = append(s.pendingNames, n.name) // to leave with a later set
		}
	}
}

// sharedSet returns all members, as one body for every client that wants just
// them; the names of the endpoints that changed clusters need are this client's.
func (s *subscription) sharedSet(t *cache.Type) *Response {
	type key struct{ wrap wire.Wrap }
	body := t.Shared(key{s.wrap}, 0, func() any {
		b := wire.NewSotWBody(s.TypeURL, t.Wildcard.Sum().Version(t.System()), s.wrap)
		for e := range t.Wildcard.Since(0) {
			if e.Present() {
				b.Add(e.Resource, 0)
			}
		}
		return b.Join()
	}).(*wire.Body)
	r := &Response{Body: body}
	for e := range t.Wildcard.Since(s.sentUpTo) {
		if e.Present() && e.Resource.EDSName != "" {
			r.Endpoints = append(r.Endpoints, e.Resource.EDSName)
		}
	}
	return r
}

// ownSet returns the set of a client that named resources, or that is shown a
// union.
func (s *subscription) ownSet(g *cache.Generation, t *cache.Type, union bool) *Response {
	b := s.collect(g, t, setBuilder{union: union})
	s.setSum = b.sum
	wrap := s.wrap
	if wrap != wire.Bare && len(s.globs) > 0 {
		wrap = wire.WrapEveryone // or the client would not learn the names (B.19)
	}
	body := wire.NewSotWBody(s.TypeURL, b.sum.Version(t.System()), wrap)
	body.Grow(len(b.show))
	for i, r := range b.show {
		body.Add(r, b.lives[i])
	}
	s.addErrorsTo(body, g, t, union)
	reply := &Response{Body: body, Endpoints: b.eds}
	if s.Secret {
		reply.Secrets = b.names()
	}
	return reply
}

// collect adds all that the client sees.
func (s *subscription) collect(g *cache.Generation, t *cache.Type, b setBuilder) *setBuilder {
	b.sub, b.seen = s, make(map[string]struct{})
	s.collectNames(&b, g, t)
	for glob := range s.followed() {
		glob.collectMembers(&b, g.Type(glob.key))
	}
	return &b
}

// addNames adds what the client named, and in a union, or if the origin has to say so
// once more, what it was sent and that is gone.
func (s *subscription) collectNames(b *setBuilder, g *cache.Generation, t *cache.Type) {
	for _, n := range s.names {
		e, seq := s.see(t, n)
		switch keeps := n.sent != 0 && seq > n.sent && (b.union || !g.Absent(e)) && !b.sumOnly; {
		case e.Present():
			b.add(e.Resource, e, seq > n.sent)
		case e != nil && e.Prior != nil && keeps:
			b.add(e.Prior, e, false)
		}
	}
}

// hadMember reports whether the client was sent a member that is gone.
func (s *subscription) hadMember(e *cache.Entry) bool {
	return e.Seq > s.removedUpTo && e.Born() <= s.sentUpTo
}

// addMembers adds the members that the client did not name, and in a union those
// that it was sent and that are gone.
func (s *subscription) collectMembers(b *setBuilder, t *cache.Type) {
	for e := range t.Wildcard.Since(0) {
		if _, named := s.find(e.Name); named {
			continue
		}
		switch {
		case e.Present():
			if !s.withheld(t, e) {
				b.add(e.Resource, e, e.Seq > s.sentUpTo)
			}
		case b.union && e.Prior != nil && s.hadMember(e):
			b.add(e.Prior, e, false)
		}
	}
}

// A setBuilder collects a complete set, each resource once.
type setBuilder struct {
	union   bool // with what is gone, and the client was sent
	sumOnly bool // only the sum is of interest: of all that is seen, whether or not it can be sent

	sub   *subscription
	show  []*wire.Resource
	lives []time.Duration // for how long, each
	seen  map[string]struct{}
	eds   []string // endpoints that changed clusters need
	sum   cache.Sum
}

// add adds what an entry holds, or held last.
func (b *setBuilder) add(r *wire.Resource, e *cache.Entry, changed bool) {
	if _, twice := b.seen[r.Key()]; twice || r.Released() && !b.sumOnly {
		return
	}
	b.seen[r.Key()] = struct{}{}
	if b.sum = b.sum.Add(e.Leaf); b.sumOnly {
		return
	}
	b.show, b.lives = append(b.show, r), append(b.lives, b.sub.ttlOf(e))
	if changed && r.EDSName != "" {
		b.eds = append(b.eds, r.EDSName)
	}
}

// names returns the names of what the set shows.
func (b *setBuilder) names() []string {
	names := make([]string, len(b.show))
	for i, r := range b.show {
		names[i] = r.Name
	}
	return names
}

// caughtUp records that the client has everything up to the head, but for names
// that it was not told about.
func (s *subscription) caughtUp(g *cache.Generation) {
	if s.sendAll {
		s.wildcardSince = g.Seq
	}
	s.sendAll, s.sentUpTo, s.scannedUpTo, s.pendingNames = false, g.Seq, g.Seq, nil
	s.ttlsSentUpTo = positions{g.Seq, g.Seq}
	if !s.LateRemovals {
		s.removedUpTo = g.Seq
	}
	for _, glob := range s.globs {
		unknown := glob.sendAll && g.Type(glob.key).Phase < cache.Settled
		glob.caughtUp(g)
		glob.sendAll = unknown
	}
}

// group returns all that the client named and that exists, if any of it is
// due: for types of which Envoy drops what a response leaves out (B.17).
func (s *subscription) group(g *cache.Generation, t *cache.Type, limit cache.Seq, now time.Time) (*Response, error) {
	if s.wildcard != nil {
		return s.changes(g, t, limit, now)
	}
	w := s.newWriter(g, t)
	s.addNamed(w, g, limit)
	if s.addRenewals(w); !s.errorsDue(g, t) && w.result() == nil {
		return nil, nil
	}
	w = s.newWriter(g, t)
	w.ensureBody()
	for i := range s.names {
		n := &s.names[i]
		switch e, seq := s.see(t, *n); {
		case !e.Present() || !e.Resource.HasBody():
		case e.Resource.Released():
			s.askAgain(g, e)
			s.pendingNames = append(s.pendingNames, n.name)
			return nil, nil // what comes wakes the stream
		default:
			w.add(e)
			n.sent = seq
		}
	}
	s.ttlsSentUpTo = positions{g.Seq, g.Seq}
	s.addErrorsTo(w.ensureBody(), g, t, false)
	return w.result(), nil
}
