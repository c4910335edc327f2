package downstream

import (
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// A reply is a response in the making, and what follows from it.
type Response struct {
	Body *wire.Body
	// eds names the ClusterLoadAssignments that clusters in the response need
	// anew (B.16).
	Endpoints []string
	// cut is set if the response was full before the changes were.
	Cut bool
	// secrets names the Secrets in the response.
	Secrets []string
}

// A writer collects what one response holds.
type writer struct {
	sub     *subscription
	head    *cache.Generation
	typ     *cache.Type
	reply   Response
	about   int                 // how many resources there may be, if that is known
	emitted map[string]struct{} // what was said something of, kept only where that may happen twice
}

func (s *subscription) newWriter(g *cache.Generation, t *cache.Type) *writer {
	w := &writer{sub: s, head: g, typ: t}
	if t.ByName.Aliased() || len(s.resend) > 0 || s.ttlsDue(t) || s.failures.behind(t) {
		w.emitted = make(map[string]struct{})
	}
	return w
}

// begin makes sure that there is a response, be it empty.
func (w *writer) ensureBody() *wire.Body {
	if w.reply.Body == nil {
		w.reply.Body = w.sub.newBody(w.head, w.typ)
		w.reply.Body.Grow(w.about)
	}
	return w.reply.Body
}

// twice reports whether something was said already of what has a key, and notes that
// something is now.
func (w *writer) alreadyEmitted(key string) bool {
	if w.emitted == nil {
		return false
	}
	_, twice := w.emitted[key]
	w.emitted[key] = struct{}{}
	return twice
}

func (w *writer) add(e *cache.Entry) {
	r := e.Resource
	if !w.sub.delta && !r.HasBody() || w.alreadyEmitted(r.Key()) {
		return // SotW has no way to say that an alias is not known
	}
	w.ensureBody().Add(r, w.sub.ttlOf(e))
	if w.sub.Secret {
		w.reply.Secrets = append(w.reply.Secrets, r.Name)
	}
	if r.EDSName != "" {
		w.reply.Endpoints = append(w.reply.Endpoints, r.EDSName)
	}
}

// remove tells a Delta client that a resource is gone; a SotW client learns it
// from what refers to the resource (R067).
func (w *writer) remove(name string) {
	name = wire.PlainName(name)
	if w.sub.delta && !w.sub.visibleElsewhere(w.head, name) && !w.alreadyEmitted(name) {
		w.ensureBody().Remove(name)
	}
}

// lose is remove, unless the client sees the resource by another name too (R092).
func (w *writer) removeUnlessAliased(name string) {
	if !w.sub.seesByAlias(w.typ, name) {
		w.remove(name)
	}
}

// loseMember is lose for a member that is gone.
func (w *writer) removeMember(e *cache.Entry) {
	if r := e.Prior; r != nil && r.Constraints != nil {
		w.removeVariant(r.Variant())
		return
	}
	w.removeUnlessAliased(e.Name.String())
}

// gone tells a Delta client that what an entry stands for is gone: by the name that it
// asked for, or, if it had the resource, by that under which it knows it. One that
// returns and says that it holds the resource is told by both (R086).
func (w *writer) removeEntry(e *cache.Entry, had bool) {
	r := e.Prior
	switch {
	case !w.sub.delta:
	case r == nil || !had:
		w.remove(e.Name.String())
		if r == nil || r.Constraints != nil || r.Name == e.Name.String() {
			return
		}
		if _, holds := w.sub.initialVersions[r.Name]; holds {
			delete(w.sub.initialVersions, r.Name)
			w.removeUnlessAliased(r.Name)
		}
	case r.Constraints == nil:
		w.removeUnlessAliased(r.Name)
	default:
		w.removeVariant(r.Variant())
	}
}

// goneVariant tells a Delta client that one variant of a resource is gone, unless it is
// told of that very one otherwise.
func (w *writer) removeVariant(v wire.Variant) {
	if w.sub.delta && !w.alreadyEmitted(v.Key()) {
		w.ensureBody().RemoveVariant(v)
	}
}

// sees reports whether the client sees a resource of which one name that it has is
// gone: as a member, or by another name.
func (s *subscription) seesByAlias(t *cache.Type, resource string) bool {
	if !t.ByName.Aliased() {
		return false
	}
	if s.wildcard != nil {
		if n := s.watch.Find(s.key, []string{resource})[0]; n != nil && t.Wildcard.Get(n).Present() {
			return true
		}
	}
	return s.namedByAlias(t, resource)
}

// maxResponseBytes is what a response that can be cut never exceeds, unless by a
// single resource: gRPC clients take no more than 4 MiB by default (B.32).
const maxResponseBytes = 3_500_000

// full reports whether the response should end before this entry, which may be
// nil, and the rest follow in the next one (B.32).
func (w *writer) full(next *cache.Entry) bool {
	if w.reply.Body == nil || w.reply.Cut {
		return w.reply.Cut
	}
	size, more := w.reply.Body.Size(), 0
	if next.Present() {
		more = next.Resource.Size()
	}
	w.reply.Cut = size >= w.sub.cfg.ResponseBytes || size+more > maxResponseBytes && w.reply.Body.Len() > 0
	return w.reply.Cut
}

// result returns the response, nil if there is nothing to say.
func (w *writer) result() *Response {
	if w.reply.Body == nil {
		return nil
	}
	return &w.reply
}

func (s *subscription) newBody(g *cache.Generation, t *cache.Type) *wire.Body {
	if s.delta {
		return wire.NewDeltaBody(s.TypeURL, t.System())
	}
	whole := s
	if s.parent != nil {
		whole = s.parent // the version is of all that the client sees of the type
	}
	return wire.NewSotWBody(s.TypeURL, whole.visibleSum(g).Version(t.System()), s.wrap)
}

// changes returns what the client must be told now of a type whose responses
// hold only what changed: every Delta type, and the partial SotW ones. It reads
// the logs up to limit; what was just asked for is exempt from the limit (B.11).
// Removals that may have to wait are left to removals.
func (s *subscription) changes(g *cache.Generation, t *cache.Type, limit cache.Seq, now time.Time) (*Response, error) {
	if s.wildcard != nil && s.wildcardStarted && s.delta && s.removedUpTo < t.Wildcard.Floor() {
		return nil, errOutrun
	}
	all := s.wildcard != nil && t.Phase >= cache.Settled
	if all && s.shareable(t) {
		return s.sharedMembers(g, t, limit), nil
	}
	w := s.newWriter(g, t)
	if all {
		s.answerUnsubscribed(w)
		s.addMembers(w, g, limit)
	}
	if !w.reply.Cut {
		s.addNamed(w, g, limit)
	}
	if !w.reply.Cut {
		s.addRenewals(w)
	}
	if !w.reply.Cut {
		s.addErrors(w, now)
	}
	return w.result(), nil
}

// shareable reports whether what the client is owed depends only on its
// positions in the log of the members.
func (s *subscription) shareable(t *cache.Type) bool {
	if len(s.names)+len(s.pendingNames)+len(s.initialVersions)+len(s.resend)+len(s.unsubscribeReplies) > 0 || s.failures.behind(t) {
		return false
	}
	ownVersion := s.delta || s.parent == nil && len(s.globs) == 0
	return ownVersion && s.sharesContent(t)
}

// sharesContent reports whether the client is sent members as every other: not with
// what is left of their lives, and not only when the origin is asked for them again.
func (s *subscription) sharesContent(t *cache.Type) bool {
	return (!s.sendsTTLs || t.Wildcard.TTLs() == 0) && !s.ttlsDue(t) && t.Wildcard.ContentDropped() == 0
}

// members adds the members that changed after the client's position. It skips
// those that the client also named: named answers for them.
func (s *subscription) addMembers(w *writer, g *cache.Generation, limit cache.Seq) {
	initial := s.sendAll
	if s.sendAll {
		limit = g.Seq
		s.startWildcard(g)
	}
	s.resendMembers(w)
	w.about = w.typ.Wildcard.ChangedSince(s.sentUpTo)
	for e := range w.typ.Wildcard.Since(s.sentUpTo) {
		if e.Seq > limit {
			break
		}
		if w.full(e) {
			return
		}
		s.addMember(w, g, e)
		s.sentUpTo = e.Seq
	}
	s.sentUpTo = max(s.sentUpTo, limit)
	s.passRemovals(w.typ, limit)
	if initial && w.reply.Body == nil && s.initialCount == 0 && len(s.resend) == 0 && !s.withholds(w.typ) {
		w.ensureBody() // an empty set is an answer too (R097)
		s.removeEmptyGlob(w)
	}
}

// resend adds members that are sent again although they did not change (B.16).
func (s *subscription) resendMembers(w *writer) {
	var still []string
	for _, n := range s.watch.Find(s.key, s.resend) {
		if n == nil {
			continue
		}
		switch e := w.typ.Wildcard.Get(n); {
		case !e.Present() || e.Seq > s.sentUpTo:
		case w.full(e):
			still = append(still, n.String())
		case e.Resource.Released():
			still = append(still, n.String())
			s.askMembersAgain(w.head, w.typ)
		default:
			w.add(e)
		}
	}
	s.resend = still
}

// askAgain has the origin asked once more for what an entry holds, since it did not
// allow to keep the content (R125).
func (s *subscription) askAgain(g *cache.Generation, e *cache.Entry) {
	if g.From(e.Name).Connected {
		s.watch.AskAgain(s.key, e.Name, e.ContentDroppedAt())
	}
}

// askMembersAgain is askAgain for all members.
func (s *subscription) askMembersAgain(g *cache.Generation, t *cache.Type) {
	if g.WildcardSource(s.key).Connected {
		s.watch.AskAgain(s.key, nil, t.Wildcard.LastContentDrop())
	}
}

// begin records that the members begin to be sent. What went before is nothing to
// a client that did not have them; one that asked for them anew is still owed
// the removals.
func (s *subscription) startWildcard(g *cache.Generation) {
	s.wildcardSince = g.Seq
	if s.sendAll = false; !s.wildcardStarted {
		s.wildcardStarted, s.removedUpTo = true, g.Seq
	}
}

func (s *subscription) addMember(w *writer, g *cache.Generation, e *cache.Entry) {
	if _, named := s.find(e.Name); named {
		return
	}
	switch {
	case !e.Present():
		if !s.LateRemovals && e.Seq > s.removedUpTo {
			w.removeMember(e)
		}
	case s.withheld(w.typ, e): // why it is not sent is told instead
	case s.holdsVersion(g.WildcardSource(s.key), e):
	case e.Resource.Released():
		s.resend = append(s.resend, e.Name.String())
		s.askMembersAgain(g, w.typ)
	default:
		w.add(e)
	}
}

// sharedMembers is members for clients whose state is nothing but positions. All
// that are at the same one get the same body, built once.
func (s *subscription) sharedMembers(g *cache.Generation, t *cache.Type, limit cache.Seq) *Response {
	type key struct {
		delta               bool
		wrap                wire.Wrap
		fresh, begun        bool
		returning           bool
		sent, removed, upTo cache.Seq
	}
	type shared struct {
		reply *Response
		sent  cache.Seq
	}
	if s.sendAll {
		limit = g.Seq
	}
	k := key{
		delta: s.delta, wrap: s.wrap, fresh: s.sendAll, begun: s.wildcardStarted, returning: s.initialCount > 0,
		sent: t.Wildcard.Align(s.sentUpTo), removed: t.Wildcard.Align(s.removedUpTo), upTo: t.Wildcard.Align(limit),
	}
	if !s.wildcardStarted {
		k.removed = 0 // not looked at
	}
	slot := 1 + int(k.sent%(cache.SharedSlots-1)) // the first one is for complete sets
	got := t.Shared(k, slot, func() any {
		c := *s // positions move in a copy
		w := c.newWriter(g, t)
		c.addMembers(w, g, limit)
		r := w.result()
		if r != nil {
			r.Body.Join()
		}
		return shared{r, c.sentUpTo}
	}).(shared)
	cut := got.reply != nil && got.reply.Cut
	if s.sendAll {
		s.startWildcard(g)
	}
	if !cut {
		s.passRemovals(t, limit)
	}
	if s.sentUpTo = max(s.sentUpTo, limit); cut {
		s.sentUpTo = got.sent
	}
	return got.reply
}

// passRemovals records that the client was told of the members up to limit: of their
// removals too, if those do not wait, or if there were none.
func (s *subscription) passRemovals(t *cache.Type, limit cache.Seq) {
	if !s.LateRemovals || t.Wildcard.LastRemoval() <= s.removedUpTo {
		s.removedUpTo = max(s.removedUpTo, limit)
	}
}

// named adds what the client named and was not told.
func (s *subscription) addNamed(w *writer, g *cache.Generation, limit cache.Seq) {
	if len(s.names) == 0 {
		s.pendingNames, s.scannedUpTo = nil, limit
		return
	}
	if s.addPending(w, g, limit) && s.addChanged(w, g, limit) {
		s.scannedUpTo = max(s.scannedUpTo, limit)
	}
}

// owed answers for the names that are owed an answer, each once however often it
// was asked for. It reports whether it came to the end.
func (s *subscription) addPending(w *writer, g *cache.Generation, limit cache.Seq) bool {
	slices.SortFunc(s.pendingNames, (*cache.Name).Compare)
	owing := slices.Compact(s.pendingNames)
	s.pendingNames = nil
	w.about = len(owing)
	for i, n := range owing {
		if e, _ := w.typ.Lookup(n); w.full(e) {
			s.pendingNames = append(s.pendingNames, owing[i:]...)
			return false
		}
		s.answerName(w, g, n, limit)
	}
	return true
}

// changed answers for the names of which something was said since the last look: those
// that the wake-up was about, if that is known; else it goes through all names or through
// what was said, whichever is less. It reports whether it came to the end.
func (s *subscription) addChanged(w *writer, g *cache.Generation, limit cache.Seq) bool {
	var room [8]*cache.Name
	if hinted, known := s.watch.Hinted(s.key, s.scannedUpTo, room[:0]); known {
		slices.Reverse(hinted) // as the logs have it: in the order in which it was said
		return s.answerNames(w, g, hinted, limit)
	}
	t := w.typ
	if t.Wildcard.ChangedSince(s.scannedUpTo)+t.ByName.ChangedSince(s.scannedUpTo) > len(s.names) {
		for i := range s.names {
			if e, _ := t.Lookup(s.names[i].name); w.full(e) {
				return false
			}
			s.answerOrOwe(w, g, &s.names[i], limit)
		}
		return true
	}
	for _, set := range []*cache.Set{&t.Wildcard, &t.ByName} {
		for e := range set.Since(s.scannedUpTo) {
			if w.full(e) {
				return false
			}
			s.answerName(w, g, e.Name, limit)
		}
	}
	return true
}

// followedTo returns up to where the subscription needs no hints any more.
func (s *subscription) followedTo(g *cache.Generation) cache.Seq {
	if len(s.names) == 0 || !s.delta && s.FullState {
		return g.Seq // it never looks at any
	}
	return s.scannedUpTo
}

func (s *subscription) answerNames(w *writer, g *cache.Generation, names []*cache.Name, limit cache.Seq) bool {
	for _, n := range names {
		if e, _ := w.typ.Lookup(n); w.full(e) {
			return false
		}
		s.answerName(w, g, n, limit)
	}
	return true
}

func (s *subscription) answerName(w *writer, g *cache.Generation, n *cache.Name, limit cache.Seq) {
	if at, ok := s.find(n); ok {
		s.answerOrOwe(w, g, &s.names[at], limit)
	}
}

// answerOrOwe may owe a name that is owed already; owed sees to that.
func (s *subscription) answerOrOwe(w *writer, g *cache.Generation, n *subscribed, limit cache.Seq) {
	if s.answer(w, g, n, limit) {
		s.pendingNames = append(s.pendingNames, n.name)
	}
}

// answer tells the client what it does not know of one name, and reports whether
// that is owed still: because the origin has not said, or because a removal has
// its time later.
func (s *subscription) answer(w *writer, g *cache.Generation, n *subscribed, limit cache.Seq) (owed bool) {
	e, seq := s.see(w.typ, *n)
	switch {
	case e == nil, seq <= n.sent: // the log tells when there is something to say
		return false
	case n.sent == 0 && s.olderGeneration:
		return true // the newest head answers for it
	case n.sent != 0 && seq > limit:
		return seq <= w.sub.scannedUpTo // the log will not tell of it again
	case e.Present():
		return s.answerPresent(w, g, n, e, seq)
	default:
		return s.answerAbsent(w, g, n, e, seq)
	}
}

func (s *subscription) answerPresent(w *writer, g *cache.Generation, n *subscribed, e *cache.Entry, seq cache.Seq) (owed bool) {
	held := n.sent == 0 && s.holdsVersion(g.From(n.name), e) && !s.alwaysSent
	if !held && e.Resource.Released() {
		s.askAgain(g, e)
		return true
	}
	if n.sent = seq; !held {
		s.switchVariant(w, n.name, e.Resource.Constraints)
		w.add(e)
	}
	return false
}

// vary notes which variant of a resource the client is sent, and has it drop the one
// that it had: of those that its parameters match there is only one (R122).
func (s *subscription) switchVariant(w *writer, n *cache.Name, constraints []byte) {
	had := s.variants[n]
	if constraints == nil {
		delete(s.variants, n)
	} else {
		if s.variants == nil {
			s.variants = make(map[*cache.Name][]byte)
		}
		s.variants[n] = constraints
	}
	if gone := (wire.Variant{Name: wire.PlainName(n.String()), Constraints: had}); had != nil && !s.hasVariant(gone) {
		w.removeVariant(gone)
	}
}

// shown reports whether the client has a variant of a resource, by whatever parameters.
func (s *subscription) hasVariant(v wire.Variant) bool {
	for n, constraints := range s.variants {
		if string(constraints) == string(v.Constraints) && wire.PlainName(n.String()) == v.Name {
			return true
		}
	}
	return false
}

func (s *subscription) answerAbsent(w *writer, g *cache.Generation, n *subscribed, e *cache.Entry, seq cache.Seq) (owed bool) {
	late := s.LateRemovals && s.delta && n.sent != 0
	if late || s.mayReappear(g, e, *n) || !g.Absent(e) {
		return true
	}
	w.removeEntry(e, n.sent != 0)
	n.sent = seq
	delete(s.initialVersions, e.Name.String())
	delete(s.variants, n.name)
	return false
}

// holds reports whether a Delta client holds this very content: it said so in its
// first request, which counts once, and the version can be trusted (B.3).
func (s *subscription) holdsVersion(from *cache.Source, e *cache.Entry) bool {
	version, said := s.initialVersions[e.Resource.Name]
	if !said {
		return false
	}
	delete(s.initialVersions, e.Resource.Name)
	return e.HasVersion(version) && s.trustsResource(from, e)
}

// answerLet answers names that a client with a wildcard unsubscribed: it cannot
// know whether the resource is still its own (R079). Of members that it is told
// of anyway, what it is told then is the answer.
func (s *subscription) answerUnsubscribed(w *writer) {
	if len(s.unsubscribeReplies) == 0 {
		return
	}
	for i, n := range s.watch.Find(s.key, s.unsubscribeReplies) {
		if w.full(nil) {
			s.unsubscribeReplies = s.unsubscribeReplies[i:]
			return
		}
		if n != nil {
			switch e := w.typ.Wildcard.Get(n); {
			case e.Present() && (s.sendAll || e.Seq > s.sentUpTo):
				continue
			case e.Present():
				w.add(e)
				continue
			case e != nil && s.wildcardStarted && e.Seq > s.removedUpTo:
				continue
			}
		}
		w.remove(s.unsubscribeReplies[i])
	}
	s.unsubscribeReplies = nil
}

// visibleSum identifies all that the client sees of the type (B.2).
func (s *subscription) visibleSum(g *cache.Generation) (sum cache.Sum) {
	t := g.Type(s.key)
	if len(s.globs) > 0 && (s.wildcard != nil || len(s.names) > 0) {
		return s.collect(g, t, setBuilder{sumOnly: true}).sum // what is seen twice counts once
	}
	for _, glob := range s.globs { // no two of which match the same
		sum = sum.Add(glob.membersSum(g.Type(glob.key)))
	}
	if s.wildcard != nil {
		sum = sum.Add(s.membersSum(t))
	}
	var seen map[string]struct{}
	if t.ByName.Aliased() {
		seen = make(map[string]struct{})
	}
	for _, n := range s.names {
		e, _ := s.see(t, n)
		sum = sum.Sub(s.memberLeaf(t, n.name)) // the named view of it counts
		switch {
		case !e.Present():
		case seen == nil:
			sum = sum.Add(e.Leaf)
		default:
			sum = sum.Add(s.aliasedLeaf(t, e, seen))
		}
	}
	return sum
}

// membersSum identifies the members that the client sees.
func (s *subscription) membersSum(t *cache.Type) cache.Sum {
	sum := t.Wildcard.Sum()
	for e := range s.withheldMembers(t) {
		sum = sum.Sub(e.Leaf)
	}
	return sum
}

// aliasedLeaf returns what an entry that stands for a resource adds to the sum: nothing
// if another one did already, and not what it adds as a member too (R092).
func (s *subscription) aliasedLeaf(t *cache.Type, e *cache.Entry, seen map[string]struct{}) (leaf cache.Sum) {
	r := e.Resource
	if _, twice := seen[r.Key()]; twice {
		return leaf
	}
	seen[r.Key()] = struct{}{}
	if r.Name == e.Name.String() || s.wildcard == nil {
		return e.Leaf
	}
	own := s.watch.Find(s.key, []string{r.Name})[0]
	if _, named := s.find(own); named {
		return e.Leaf
	}
	return e.Leaf.Sub(s.memberLeaf(t, own))
}

// memberLeaf returns what the client sees of a member in the sum of the members.
func (s *subscription) memberLeaf(t *cache.Type, n *cache.Name) (leaf cache.Sum) {
	if s.wildcard == nil || n == nil {
		return leaf
	}
	if m := t.Wildcard.Get(n); m.Present() && !s.withheld(t, m) {
		return m.Leaf
	}
	return leaf
}
