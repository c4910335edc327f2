package downstream

import (
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// staleWait bounds how long an answer is deferred because a request carried an
// older nonce than the one that is out (B.14).
const staleWait = 3 * time.Second

// A subscription is what one stream wants of one type, and how far it was
// served. It does no I/O and starts no goroutine.
//
// What is wanted (wildcard, names) and what was sent (positions) stay apart: a
// response never changes what the client subscribed to (C08).
type subscription struct {
	Traits
	*conversation
	*client
	key       string    // of the type in the cache: its URL, or a collection
	wrap      wire.Wrap // SotW: which resources go in their Resource message (B.19)
	sendsTTLs bool      // the client is told how long resources live (R104)

	// Globs are subscriptions to collections, which share the conversation of the
	// type; parent is the type's own, nil for itself (R132).
	globs    []*subscription // sorted by glob
	parent   *subscription
	glob     string
	idle     bool // of a glob that is served apart: there is nothing to tell, unless it changes
	nextPart int  // of the type's own: which of it and of globs comes next, see inTurn

	// What the client wants.
	started    bool // a request has come
	explicit   bool // a name was given, so an empty list no longer means all (R051)
	wildcard   *cache.WildcardWatch
	names      []subscribed // sorted by name
	namesSum   uint64       // of the SotW list that names was made from
	namesSince time.Time    // when names were last added

	// What the client holds, as it said in its first request.
	initialVersion  string            // SotW: version_info
	foreignNonce    bool              // SotW: the request carried a nonce, so the client takes this stream for another
	initialVersions map[string]string // Delta: initial_resource_versions not yet accounted for
	initialCount    int               // how many they were

	// Delta: names in known of which the origin has said nothing yet, see forgottenNames.
	unansweredNames map[*cache.Name]struct{}

	// How far the client was served. Wildcard subscriptions have two positions,
	// since removals may stay behind changes; names have one each, and scanned is
	// up to where the logs were searched for them.
	sendAll            bool // the members are to be sent, all of them
	wildcardStarted    bool // some were sent since the client subscribed to all
	sentUpTo           cache.Seq
	removedUpTo        cache.Seq
	scannedUpTo        cache.Seq
	pendingNames       []*cache.Name // names that need a look whatever the logs say
	resend             []string      // members to send although unchanged (B.16)
	unsubscribeReplies []string      // names unsubscribed under a wildcard, to be answered (R079)
	ttlsSentUpTo       positions     // up to where the client was told how long resources live
	wildcardSince      cache.Seq     // when the members began to be sent, the last time
	failures           failures
	denied             map[string]struct{}    // what the client asked for and may not have
	overLimit          map[string]struct{}    // what it asked for and that is over a limit
	variants           map[*cache.Name][]byte // constraints of what the client was sent of a name
	holdsSet           bool                   // SotW: the client holds a complete set that this stream knows
	setSum             cache.Sum              // SotW: what is in that set
	contentUntil       time.Time              // SotW: until when dependent types wait for a set whose content is asked for again

	report *cache.Report // what the view knows of what the client holds; nil if that withholds nothing
}

// A conversation is what was said of one type and answered: what all subscriptions to
// the type on a stream have in common.
type conversation struct {
	sentAny          bool   // some response was sent
	nackedAny        bool   // some response was refused, the newest or an older one
	newRequest       bool   // the client has asked for something since the last look
	olderGeneration  bool   // an older head than the newest is being read (see barrier)
	waitsForClusters bool   // at the last look, all of the type waited for clusters or their endpoints
	nonce            string // of the newest response
	version          string // its version
	bytes            int    // of its body
	pending          bool   // it is not answered yet
	endOffset        uint64 // bytes on the stream up to the end of it
	sentAt           time.Time
	ackDeadline      time.Time // when waiting for the answer ends (B.12)
	counter          *tally    // where the stream counts; nil: nowhere

	// Changes that the client is to be told of (reaching), and those that it was told of and has not
	// answered (reached), of those that are followed.
	fanoutsDue, fanoutsSent *cache.Fanouts

	// Responses before the newest that the client has not accepted; nil if there is none, as nearly always.
	earlier *earlierResponses

	// For who asks how the stream stands. Each stream has these for each type: they are small.
	causedAt     moment    // when the oldest change was received that it holds; 0: none caused it
	behindSince  moment    // since when the client lacks something of it
	sentAfter    cache.Seq // it holds what changed after that, or what the client refused before
	ackedVersion string    // the version that it accepted last
	ackedAt      moment
	refusal      *Refusal // the newest
}

// A subscribed name, and when what the client was told of it was current: 0 if it
// is owed an answer.
type subscribed struct {
	name *cache.Name
	sent cache.Seq
}

// request takes a request's subscription changes and its answer to a response.
// It reports whether the client refused one.
func (s *subscription) request(r *wire.Request, now time.Time) (refused bool) {
	first := !s.started
	s.started = true
	if !first {
		refused = s.acknowledge(r, now)
	}
	s.newRequest = s.newRequest || first || !s.repeats(r)
	if s.delta {
		s.requestDelta(r, first, now)
	} else {
		s.requestSotW(r, first, now)
	}
	return refused
}

// repeats reports whether the request changes no names: in SotW, it lists just those
// that the one before did.
func (s *subscription) repeats(r *wire.Request) bool {
	if s.delta {
		return s.started && len(r.Subscribe)+len(r.Unsubscribe) == 0
	}
	return s.started && r.NamesSum == s.namesSum
}

// acknowledge takes the request as the answer to the response whose nonce it
// carries. Only error_detail makes it a NACK (R029). A nonce of another stream
// means nothing (R019); an older one of this stream answers that response, and shortens the wait for the
// newer response's answer (B.14).
func (s *subscription) acknowledge(r *wire.Request, now time.Time) (refused bool) {
	answers := s.answersNewest(r)
	s.noteAnswerTo(r, answers, now)
	switch {
	case answers:
	case r.Nonce == "":
		return false
	default:
		if !s.delta && s.pending {
			s.ackDeadline = earlier(s.ackDeadline, s.sentAt.Add(staleWait))
		}
		return r.Refused
	}
	s.closeResponse(outcomeOf(r), r, now)
	return r.Refused
}

// note records the answer, to the newest response or to an earlier one.
func (s *subscription) noteAnswerTo(r *wire.Request, answers bool, now time.Time) {
	refuses := r.Refused && (answers || r.Nonce != "")
	s.nackedAny = s.nackedAny || refuses
	if earlier := s.earlier.find(r); earlier >= 0 {
		s.counter.answered(r.Refused)
		s.noteEarlierAnswer(earlier, r, now)
	} else if answers || refuses {
		s.counter.answered(r.Refused)
		s.noteAnswer(r, now)
	}
}

// answers reports whether the request answers the newest response: by its nonce,
// or, of a SotW client that sends none, by an error or the version alone.
func (s *subscription) answersNewest(r *wire.Request) bool {
	if r.Nonce != "" {
		return r.Nonce == s.nonce
	}
	return !s.delta && s.pending && (r.Refused || r.Version != "" && r.Version == s.version)
}

// requestDelta changes the subscription as a DeltaDiscoveryRequest says:
// subscribe first, then unsubscribe (B.22).
func (s *subscription) requestDelta(r *wire.Request, first bool, now time.Time) {
	if first {
		s.initialVersions, s.initialCount = r.InitialVersions, len(r.InitialVersions)
		if slices.Contains(r.Subscribe, wire.Wildcard) || len(r.Subscribe)+len(r.Unsubscribe) == 0 && s.legacyWildcard {
			s.reportMembers(r.Subscribe)
		}
		if len(r.Subscribe) == 0 && len(r.Unsubscribe) == 0 && !s.explicit && s.legacyWildcard {
			s.subscribeAll()
		}
	}
	if len(r.Subscribe) > 0 {
		names, globs := splitGlobs(r.Subscribe)
		s.subscribe(names, first, now)
		s.addGlobs(globs, first, now)
	}
	if len(r.Unsubscribe) > 0 {
		s.unsubscribe(s.dropGlobs(r.Unsubscribe))
	}
	if first {
		s.unansweredNames = s.namesWithoutAnswer()
		s.reportNames()
		s.addRecentlyRemoved()
	}
}

func (s *subscription) subscribe(texts []string, first bool, now time.Time) {
	wasExplicit := s.explicit
	s.explicit = true
	if i := slices.Index(texts, wire.Wildcard); i >= 0 {
		switch {
		case s.wildcard == nil:
			s.subscribeAll()
		case wasExplicit:
			s.sendAll, s.sentUpTo, s.failures.wildcardAsked = true, 0, true // named again: answered again (R084)
			for text := range s.initialVersions {
				s.initialVersions[text] = "" // no version: it may have forgotten what it had
			}
		}
		texts = without(texts, wire.Wildcard)
	}
	if texts = s.withoutEmpty(texts); len(texts) == 0 {
		return
	}
	if !first {
		for _, text := range texts {
			delete(s.initialVersions, text) // what it said it had, it may have forgotten (R084)
		}
	}
	s.namesSince, s.ackDeadline = now, now // who asks for more reads: what it asks for waits for no answer
	if len(s.unsubscribeReplies) > 0 {
		again := make(map[string]struct{}, len(texts))
		for _, text := range texts {
			again[text] = struct{}{}
		}
		s.unsubscribeReplies = slices.DeleteFunc(s.unsubscribeReplies, func(t string) bool { _, is := again[t]; return is })
	}
	added := s.watch.Subscribe(s.key, texts)
	slices.SortFunc(added, (*cache.Name).Compare)
	added = slices.Compact(added)
	if len(s.names) > 0 {
		s.watch.Renew(s.key, slices.DeleteFunc(slices.Clone(added), func(n *cache.Name) bool {
			_, had := s.find(n)
			return !had
		}))
	}
	s.mergeNames(added, true)
}

func (s *subscription) unsubscribe(texts []string) {
	if slices.Contains(texts, wire.Wildcard) {
		s.explicit = true // "*" was spoken of, so the legacy meaning is gone (B.22)
		s.unsubscribeAll()
	}
	gone := make(map[*cache.Name]struct{})
	t := s.watch.Generation().Type(s.key)
	var let []string // by their own names
	for i, n := range s.watch.Find(s.key, texts) {
		at, ok := s.find(n)
		if !ok {
			at, ok = s.findAlias(texts[i], gone)
		}
		if !ok {
			continue // not subscribed: harmless (R078)
		}
		name := s.names[at].name
		if _, twice := gone[name]; twice {
			continue
		}
		gone[name] = struct{}{}
		s.failures.nameRequested(t, name) // under a wildcard, what is wrong with the member concerns it now
		if s.wildcard != nil {
			let = append(let, realName(t, name, texts[i]))
		}
	}
	s.names = slices.DeleteFunc(s.names, func(n subscribed) bool { _, is := gone[n.name]; return is })
	maps.DeleteFunc(s.variants, func(n *cache.Name, _ []byte) bool { _, is := gone[n]; return is })
	s.watch.Unsubscribe(s.key, slices.Collect(maps.Keys(gone)))
	for _, text := range let {
		if !s.namedByAlias(t, text) {
			s.unsubscribeReplies = append(s.unsubscribeReplies, text)
			delete(s.initialVersions, text)
		}
	}
}

// realName returns what the resource is called that a name stands for; the text if that
// is not known.
func realName(t *cache.Type, n *cache.Name, text string) string {
	if e, _ := t.Lookup(n); e.Present() {
		return e.Resource.Name
	}
	return text
}

// reaches reports whether a name that the client subscribed to stands for a resource,
// be it an alias (R092).
func (s *subscription) namedByAlias(t *cache.Type, resource string) bool {
	return t.ByName.Aliased() && slices.ContainsFunc(s.names, func(n subscribed) bool {
		e, _ := t.Lookup(n.name)
		return e.Present() && e.Resource.Name == resource
	})
}

// requestSotW changes the subscription to exactly what a DiscoveryRequest lists
// (R076): the newest request defines it, whatever its nonce (R036).
func (s *subscription) requestSotW(r *wire.Request, first bool, now time.Time) {
	if first {
		s.initialVersion, s.foreignNonce = r.Version, r.Nonce != ""
	} else if s.repeats(r) {
		return
	}
	s.namesSum = r.NamesSum
	if r.Nonce == "" {
		s.ackDeadline = now // spontaneous: see add
	}
	all := slices.Contains(r.Subscribe, wire.Wildcard)
	if len(r.Subscribe) > 0 {
		s.explicit = true
	} else if !s.explicit && s.legacyWildcard {
		all = true
	}
	if all {
		s.reportVersion(r, first)
		s.subscribeAll()
	} else {
		s.unsubscribeAll()
	}
	s.updateFullState()
	s.replaceNames(s.replaceGlobs(s.withoutEmpty(without(r.Subscribe, wire.Wildcard)), now), now)
}

// reportVersion has the view know that a returning SotW client, which asks for all and nothing beside, holds a set, of which it
// reports the version.
func (s *subscription) reportVersion(r *wire.Request, first bool) {
	if first && s.initialVersion != "" && s.FullState && len(without(r.Subscribe, wire.Wildcard)) == 0 {
		s.report = s.watch.Report(s.key, cache.Wildcard, []string{cache.AllNames}, 1)
	}
}

// sendWhole decides whether SotW responses of a type that the protocol does not define hold
// the complete set: while the client asks for all resources. A client that knows no names can
// only learn from what a response lacks that a resource was removed (B.17).
func (s *subscription) updateFullState() {
	whole := s.wildcard != nil
	if wire.Known(s.TypeURL) || s.neverHeldBack || s.FullState == whole {
		return
	}
	s.FullState = whole
	for _, glob := range s.globs {
		glob.FullState, glob.idle = whole, false
	}
	for _, n := range s.names {
		s.pendingNames = append(s.pendingNames, n.name) // hints at them may be gone: complete sets need none
	}
}

// replace makes texts the names of the subscription. Those that it had keep
// what they were sent; those that left and come back are owed again (R044).
func (s *subscription) replaceNames(texts []string, now time.Time) {
	wanted := s.watch.Subscribe(s.key, texts)
	slices.SortFunc(wanted, (*cache.Name).Compare)
	wanted = slices.Compact(wanted)
	var gone []*cache.Name
	s.names = slices.DeleteFunc(s.names, func(n subscribed) bool {
		_, keep := slices.BinarySearchFunc(wanted, n.name, (*cache.Name).Compare)
		if !keep {
			gone = append(gone, n.name)
			delete(s.variants, n.name)
			delete(s.failures.unreachableSent, n.name)
		}
		return !keep
	})
	s.watch.Unsubscribe(s.key, gone)
	if len(wanted) > len(s.names) {
		s.namesSince = now
	}
	s.mergeNames(wanted, false)
}

// merge adds sorted names to the sorted ones. With renew, those already there are
// owed an answer too.
func (s *subscription) mergeNames(names []*cache.Name, renew bool) {
	t := s.watch.Generation().Type(s.key)
	merged := make([]subscribed, 0, len(s.names)+len(names))
	s.pendingNames = slices.Grow(s.pendingNames, len(names))
	old := s.names
	for _, n := range names {
		for len(old) > 0 && old[0].name.Compare(n) < 0 {
			merged, old = append(merged, old[0]), old[1:]
		}
		here, had := subscribed{name: n}, len(old) > 0 && old[0].name == n
		if had {
			if !renew {
				here = old[0]
			}
			old = old[1:]
		}
		merged = append(merged, here)
		if !had || renew {
			s.pendingNames = append(s.pendingNames, n)
			s.failures.nameRequested(t, n)
		}
	}
	s.names = append(merged, old...)
}

// find returns where a name stands among the subscribed.
func (s *subscription) find(n *cache.Name) (at int, ok bool) {
	if n == nil {
		return 0, false
	}
	const few = 64
	if len(s.names) <= few { // which are looked through sooner than their numbers are found
		at = slices.IndexFunc(s.names, func(have subscribed) bool { return have.name == n })
		return max(at, 0), at >= 0
	}
	return slices.BinarySearchFunc(s.names, n, func(have subscribed, n *cache.Name) int { return have.name.Compare(n) })
}

// findAlias returns where the name stands by which the client subscribed to a
// resource that has the text as its name, or as an alias (R077).
func (s *subscription) findAlias(text string, gone map[*cache.Name]struct{}) (at int, ok bool) {
	t := s.watch.Generation().Type(s.key)
	if !t.ByName.Aliased() {
		return 0, false
	}
	for i, n := range s.names {
		if _, is := gone[n.name]; is {
			continue
		}
		e, _ := t.Lookup(n.name)
		if e.Present() && (e.Resource.Name == text || slices.Contains(e.Resource.Aliases, text)) {
			return i, true
		}
	}
	return 0, false
}

func (s *subscription) subscribeAll() {
	if s.wildcard == nil {
		s.wildcard = s.watch.SubscribeAll(s.key)
		s.sendAll, s.wildcardStarted, s.sentUpTo, s.removedUpTo = true, false, 0, 0
		s.failures.wildcardAsked = true
	}
}

func (s *subscription) unsubscribeAll() {
	if s.wildcard != nil {
		s.watch.UnsubscribeAll(s.wildcard)
		s.wildcard, s.sendAll, s.initialVersions, s.unsubscribeReplies, s.resend = nil, false, nil, nil, nil
		s.closeReport()
	}
}

func (s *subscription) closeReport() {
	s.report.Close()
	s.report = nil
}

// close gives up all interest.
func (s *subscription) close() {
	for _, glob := range s.globs {
		glob.close()
	}
	s.unsubscribeAll()
	s.closeReport()
	gone := make([]*cache.Name, len(s.names))
	for i, n := range s.names {
		gone[i] = n.name
	}
	s.watch.Unsubscribe(s.key, gone)
	s.names = nil
}

// responded records that a response of that version left under a nonce, and that
// it ends that many bytes into the stream.
func (s *subscription) responded(nonce string, body *wire.Body, through uint64, now time.Time) {
	s.sentAny = true
	s.nonce, s.version, s.bytes, s.pending, s.endOffset = nonce, body.Version(), body.Size(), true, through
	s.sentAt, s.ackDeadline = now, now.Add(s.cfg.AckWait)
}

// blocked reports whether the newest response still waits for its answer. The
// wait is bounded, since clients may lawfully never answer (R038).
func (s *subscription) blocked(now time.Time) bool { return s.pending && now.Before(s.ackDeadline) }

// overtakenFrom returns when types that refer to what the client was not sent yet may be
// sent all the same: not while a response is un-ACKed, or a set waits for content. A
// zero time is now.
func (s *subscription) overtakenAt(now time.Time) (at time.Time) {
	if s.blocked(now) {
		at = s.ackDeadline
	}
	if now.Before(s.contentUntil) && s.contentUntil.After(at) {
		at = s.contentUntil
	}
	return at
}

// behind reports whether there may be something to tell the client.
func (s *subscription) behind(t *cache.Type) bool {
	return s.wildcard != nil && (t.Wildcard.Last() > min(s.sentUpTo, s.removedUpTo) || len(s.initialVersions) > 0) ||
		len(s.names) > 0 && t.Last() > s.scannedUpTo ||
		s.sendAll || len(s.pendingNames)+len(s.resend)+len(s.unsubscribeReplies) > 0 ||
		s.ttlsDue(t) || s.failures.behind(t) || s.globsBehind()
}

// globsBehind is behind for the globs whose members are in the complete set.
func (s *subscription) globsBehind() bool {
	return !s.delta && s.FullState && slices.ContainsFunc(s.globs, func(glob *subscription) bool {
		return glob.behind(s.watch.Generation().Type(glob.key))
	})
}

// answerable reports whether something is known that the client could be told.
func (s *subscription) answerable(g *cache.Generation) bool {
	t := g.Type(s.key)
	return s.wildcard != nil && t.Phase >= cache.Settled && (s.delta || !s.FullState || t.Wildcard.ContentDropped() == 0) ||
		slices.ContainsFunc(s.globs, func(glob *subscription) bool { return glob.answerable(g) }) ||
		slices.ContainsFunc(s.names, func(n subscribed) bool {
			e, _ := t.Lookup(n.name)
			return e.Present() && !e.Resource.Released() || t.Errors(cache.ByName).Get(n.name) != nil
		})
}

// sources yields how the origins stand that answer for what the client asked for, some
// more than once.
func (s *subscription) sources(g *cache.Generation) func(func(*cache.Source) bool) {
	return func(yield func(*cache.Source) bool) {
		for glob := range s.followed() {
			if !yield(g.WildcardSource(glob.key)) {
				return
			}
		}
		for _, n := range s.names {
			if !yield(g.From(n.name)) {
				return
			}
		}
	}
}

// passed records which removals the client needs no more.
func (s *subscription) releaseRemovals() {
	if s.wildcard != nil {
		s.wildcard.Passed(s.removedUpTo)
	}
	for _, glob := range s.globs {
		if !glob.idle {
			glob.releaseRemovals()
		}
	}
}

// pass records that the client needs no removal up to p.
func (s *subscription) skipRemovals(p cache.Seq) {
	s.removedUpTo = p
	for _, glob := range s.globs {
		glob.removedUpTo = p
	}
	s.releaseRemovals()
}

// unsentAdditions returns whether resources were added or changed that the client
// was not sent, and the position up to which it was.
func (s *subscription) unsentAdditions(t *cache.Type) (unsent bool, upTo cache.Seq) {
	upTo = s.scannedUpTo
	if s.wildcard != nil {
		upTo = s.sentUpTo
		unsent = s.anySince(&t.Wildcard, s.sentUpTo, true)
	}
	if len(s.names) == 0 {
		return unsent, upTo
	}
	for _, n := range s.names {
		e, seq := s.see(t, n)
		unsent = unsent || e.Present() && seq > n.sent
	}
	return unsent, min(upTo, s.scannedUpTo)
}

func without(texts []string, text string) []string {
	if !slices.Contains(texts, text) {
		return texts
	}
	return slices.DeleteFunc(slices.Clone(texts), func(t string) bool { return t == text })
}

// real leaves out the empty name, which no resource of a known type has (B.22): some
// clients give up all names by listing only that one.
func (s *subscription) withoutEmpty(texts []string) []string {
	if !wire.Known(s.TypeURL) {
		return texts
	}
	return without(texts, "")
}

// earlier returns the earlier of two times; a zero time is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
