package subscription

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fanout"
	"github.com/xdstender/tender/cache/wire"
)

// ApplyRequest applies a request: its subscription changes and its answer to a response. It returns whether the client
// rejected a response, and how many bytes of the stream the client has read according to this request.
func (s *Subscription) ApplyRequest(r *wire.Request, now time.Time) (read uint64, rejected bool) {
	if i := s.earlier.find(r); i >= 0 {
		read = s.earlier.list[i].endOffset
	}
	c := requestUpdate{s, !s.started, now}
	s.started = true
	if !c.first {
		rejected = c.acknowledge(r)
	}
	s.newRequest = s.newRequest || c.first || !s.Repeats(r)
	if s.Delta {
		c.delta(r)
	} else {
		c.sotw(r)
	}
	if !s.pending {
		read = max(read, s.endOffset)
	}
	return read, rejected
}

// Grant subscribes to names and globs that were denied before.
func (s *Subscription) Grant(texts []string, now time.Time) {
	c := requestUpdate{s, false, now}
	names, globs := splitGlobs(texts)
	if len(names) > 0 {
		c.subscribe(names)
	}
	c.subscribeGlobs(globs)
}

// Revoke ends the subscriptions that are not allowed any more, and returns their names and globs. It sends no removals,
// since the resources still exist.
func (s *Subscription) Revoke(allowed func(text string) bool) (texts []string) {
	if s.wildcard != nil && !allowed(wire.Wildcard) {
		s.unsubscribeAll()
		texts = append(texts, wire.Wildcard)
	}
	for _, glob := range s.globs {
		if !allowed(glob.glob) {
			texts = append(texts, glob.glob)
		}
	}
	s.globs.drop(texts)
	s.nameSum.known = false
	gone := s.remove(func(n *cache.Name) bool { return !allowed(n.String()) })
	for _, n := range gone {
		texts = append(texts, n.String())
		delete(s.variants, n)
		delete(s.errors.unreachableSent, n)
		delete(s.initialVersions, n.String())
	}
	s.Watch.Unsubscribe(s.Key, gone)
	return texts
}

// acknowledge treats the request as the answer to the response whose nonce it carries. Only error_detail makes it a
// NACK (R029). A nonce of another stream is ignored (R019). An older nonce of this stream answers that response, and
// shortens the wait for the answer to the newest (B.14).
func (c requestUpdate) acknowledge(r *wire.Request) (rejected bool) {
	newest := c.answersNewest(r, c.Delta)
	if newest || r.Nonce != "" {
		c.recordAnswer(r, newest)
	}
	switch {
	case newest:
	case r.Nonce == "":
		return false
	case !c.Delta && c.pending:
		c.ackDeadline = Earlier(c.ackDeadline, c.sentAt.Add(staleWait))
	}
	return r.Rejected
}

// recordAnswer records the answer to the newest response or to another one.
func (c requestUpdate) recordAnswer(r *wire.Request, newest bool) {
	c.nackedAny = c.nackedAny || r.Rejected
	earlier := c.earlier.find(r)
	if earlier < 0 && !newest && !r.Rejected {
		return
	}
	first := c.countAnswer(earlier, newest, r.Rejected)
	var traceID, spanID string
	if first {
		traceID, spanID = c.endAnswered(r, earlier, newest)
	}
	switch {
	case r.Rejected:
		c.recordRejection(r, earlier, newest, traceID, spanID)
	case first && newest:
		c.accept(c.now)
	case first:
		c.acceptEarlier(earlier, c.now)
	}
	if first && newest {
		c.causedAt = 0
	}
}

// endAnswered ends the response that a request answers, and those before it. It returns the span of the response.
func (c requestUpdate) endAnswered(r *wire.Request, earlier int, newest bool) (traceID, spanID string) {
	outcome := fanout.Accepted
	if r.Rejected {
		outcome = fanout.Rejected
	}
	switch {
	case earlier >= 0:
		c.endEarlier(earlier, fanout.Superseded, outcome, c.now)
		return c.end(&c.earlier.list[earlier], outcome, outcome, r, c.now)
	case newest:
		c.endEarlier(c.earlier.len(), fanout.Superseded, outcome, c.now)
		return c.closeResponse(outcome, r, c.now)
	default: // its response is unknown
		return "", ""
	}
}

// recordRejection records a NACK of an earlier response, of the newest or of an unknown one, with the span of the response.
func (c requestUpdate) recordRejection(r *wire.Request, earlier int, newest bool, traceID, spanID string) {
	removedSince := false
	if earlier >= 0 {
		removedSince = c.rejectEarlier(earlier, r, c.sendsSets(), c.now)
	} else {
		removedSince = c.reject(r, newest, c.position(), c.sendsSets(), c.now)
	}
	if traceID != "" {
		c.rejection.TraceID, c.rejection.SpanID = traceID, spanID
	}
	if removedSince {
		c.repeatRejected(c.Watch.Generation())
	}
}

// repeatRejected schedules rejected resources again, once, after removals of the type: what was removed may have excluded them (B.11).
func (s *Subscription) repeatRejected(g *cache.Generation) {
	if len(s.rejected) == 0 {
		return
	}
	whole := cmp.Or(s.parent, s)
	whole.repeat(g.Type(whole.Key))
	for _, glob := range whole.globs {
		glob.repeat(g.Type(glob.Key))
		glob.idle = glob.idle && len(glob.resend) == 0
	}
	s.rejected = nil
}

// repeat schedules the rejected resources among those of one subscription.
func (s *Subscription) repeat(t *cache.Type) {
	texts := slices.Sorted(maps.Keys(s.rejected))
	for i, n := range s.Watch.Find(s.Key, texts) {
		if n == nil {
			continue
		}
		if at, named := s.find(n); named {
			if e, seq := t.Lookup(n); e.Present() && seq == s.names[at].sent { // otherwise its change is due anyway
				s.names[at].sent, s.pendingNames = 0, append(s.pendingNames, n)
			}
		} else if s.wildcard != nil {
			s.resend = append(s.resend, texts[i])
		}
	}
}

// delta applies a DeltaDiscoveryRequest: subscribe first, then unsubscribe (B.22).
func (c requestUpdate) delta(r *wire.Request) {
	if c.first {
		c.initialVersions, c.initialCount, c.reportedAt = r.InitialVersions, len(r.InitialVersions), MomentOf(c.now)
		legacy := len(r.Subscribe)+len(r.Unsubscribe) == 0 && c.legacyWildcard
		if legacy || slices.Contains(r.Subscribe, wire.Wildcard) {
			c.reportMembers(r.Subscribe)
		}
		if legacy && !c.explicit {
			c.subscribeAll()
		}
	}
	if len(r.Subscribe) > 0 {
		names, globs := splitGlobs(r.Subscribe)
		c.subscribe(names)
		c.subscribeGlobs(globs)
	}
	if len(r.Unsubscribe) > 0 {
		c.unsubscribe(c.globs.drop(r.Unsubscribe))
	}
	if c.first {
		c.findUnanswered()
		c.reportNames()
		c.addRecentlyRemoved()
		c.addDistrusted()
	}
}

// subscribe adds names, and the wildcard if it is among them.
func (c requestUpdate) subscribe(texts []string) {
	wasExplicit := c.explicit
	c.explicit = true
	if slices.Contains(texts, wire.Wildcard) {
		switch {
		case c.wildcard == nil:
			c.subscribeAll()
		case wasExplicit: // named again, so it needs another answer (R084)
			c.repeatAll()
			c.errors.wildcardAsked = true
			for text := range c.initialVersions {
				c.initialVersions[text] = "" // no version: the client may have dropped the resource
			}
		}
		texts = without(texts, wire.Wildcard)
	}
	if texts = c.withoutEmpty(texts); len(texts) == 0 {
		return
	}
	if !c.first {
		for _, text := range texts {
			delete(c.initialVersions, text) // the client may have dropped the resource (R084)
		}
	}
	c.since, c.ackDeadline = c.now, c.now // the client reads the stream, so the next response need not wait for an ACK
	if len(c.unsubscribeReplies) > 0 {
		again := make(map[string]struct{}, len(texts))
		for _, text := range texts {
			again[text] = struct{}{}
		}
		c.unsubscribeReplies = slices.DeleteFunc(c.unsubscribeReplies, func(t string) bool { _, is := again[t]; return is })
	}
	added := c.Watch.Subscribe(c.Key, texts)
	slices.SortFunc(added, (*cache.Name).Compare)
	added = slices.Compact(added)
	if len(c.names) > 0 {
		c.Watch.RefetchStale(c.Key, slices.DeleteFunc(slices.Clone(added), func(n *cache.Name) bool {
			_, had := c.find(n)
			return !had
		}))
	}
	c.mergeNames(added, true)
}

// mergeNames subscribes to sorted names. With renew, names that were subscribed already need an answer too.
func (c requestUpdate) mergeNames(names []*cache.Name, renew bool) {
	t, before := c.Watch.Generation().Type(c.Key), len(c.pendingNames)
	c.nameSum.known = false
	c.pendingNames = c.merge(names, renew, c.pendingNames)
	for _, n := range c.pendingNames[before:] {
		c.errors.nameRequested(t, n)
	}
}

// withoutEmpty removes the empty name, which no resource of a known type has (B.22). Some clients unsubscribe from all
// names by listing only the empty one.
func (c requestUpdate) withoutEmpty(texts []string) []string {
	if !wire.Known(c.TypeURL) {
		return texts
	}
	return without(texts, "")
}

// unsubscribe removes names, and the wildcard if it is among them.
func (c requestUpdate) unsubscribe(texts []string) {
	if slices.Contains(texts, wire.Wildcard) {
		c.explicit = true // "*" was named, so an empty list no longer means the wildcard (B.22)
		c.unsubscribeAll()
	}
	removed := make(map[*cache.Name]struct{})
	t := c.Watch.Generation().Type(c.Key)
	var replies []string // the resources' own names
	for i, n := range c.Watch.Find(c.Key, texts) {
		at, ok := c.find(n)
		if !ok {
			at, ok = c.findAlias(t, texts[i], removed)
		}
		if !ok {
			continue // not subscribed, which is allowed (R078)
		}
		name := c.names[at].name
		if _, seen := removed[name]; seen {
			continue
		}
		removed[name] = struct{}{}
		c.errors.nameRequested(t, name) // under a wildcard, the error of the resource in the set applies now
		if c.wildcard != nil {
			replies = append(replies, resourceName(t, name, texts[i]))
		}
	}
	c.Watch.Unsubscribe(c.Key, c.remove(func(n *cache.Name) bool { _, is := removed[n]; return is }))
	maps.DeleteFunc(c.variants, func(n *cache.Name, _ []byte) bool { _, is := removed[n]; return is })
	for n := range removed {
		delete(c.rejected, n.String())
	}
	if len(c.names)+len(c.globs) == 0 && c.wildcard == nil {
		c.rejected = nil
	}
	for _, text := range replies {
		if !c.namesAlias(t, text) {
			c.unsubscribeReplies = append(c.unsubscribeReplies, text)
			delete(c.initialVersions, text)
		}
	}
}

// resourceName returns the name of the resource that a name, perhaps an alias, refers to; text if that is unknown.
func resourceName(t *cache.Type, n *cache.Name, text string) string {
	if e, _ := t.Lookup(n); e.Present() {
		return e.Resource.Name
	}
	return text
}

// sotw replaces the subscription by the names that a DiscoveryRequest lists (R076). The newest request defines it,
// regardless of its nonce (R036).
func (c requestUpdate) sotw(r *wire.Request) {
	if c.first {
		c.initialVersion, c.foreignNonce = r.Version, r.Nonce != ""
	} else if c.Repeats(r) {
		return
	}
	c.namesSum = r.NamesSum
	if r.Nonce == "" {
		c.ackDeadline = c.now // not an answer: the next response need not wait for an ACK
	}
	all := slices.Contains(r.Subscribe, wire.Wildcard)
	if len(r.Subscribe) > 0 {
		c.explicit = true
	} else if !c.explicit && c.legacyWildcard {
		all = true
	}
	names := without(r.Subscribe, wire.Wildcard)
	if all {
		if c.first && c.initialVersion != "" && c.FullState && len(names) == 0 {
			// A returning client that subscribes to the wildcard alone holds a set and reports the version of it.
			c.report = c.Watch.Report(c.Key, cache.Wildcard, []string{cache.AllNames}, 1)
		}
		c.subscribeAll()
	} else {
		c.unsubscribeAll()
	}
	c.updateFullState()
	c.replaceNames(c.replaceGlobs(c.withoutEmpty(names)))
}

// updateFullState decides whether SotW responses of a type that the protocol does not define hold the complete set.
// They do while the client subscribes to the wildcard: it can only learn of a removal from a set without the resource
// (B.17).
func (c requestUpdate) updateFullState() {
	whole := c.wildcard != nil
	if wire.Known(c.TypeURL) || c.FullState == whole {
		return
	}
	c.FullState = whole
	for _, glob := range c.globs {
		glob.FullState, glob.idle = whole, false
	}
	for _, n := range c.names {
		c.pendingNames = append(c.pendingNames, n.name) // their hints may be dropped, since complete sets need none
	}
}

// replaceNames replaces the names of the subscription by texts. Names that it had keep their positions. A name that was
// removed and is added again needs an answer again (R044).
func (c requestUpdate) replaceNames(texts []string) {
	wanted := c.Watch.Subscribe(c.Key, texts)
	slices.SortFunc(wanted, (*cache.Name).Compare)
	wanted = slices.Compact(wanted)
	gone := c.remove(func(n *cache.Name) bool {
		_, keep := slices.BinarySearchFunc(wanted, n, (*cache.Name).Compare)
		return !keep
	})
	for _, n := range gone {
		delete(c.variants, n)
		delete(c.errors.unreachableSent, n)
	}
	c.Watch.Unsubscribe(c.Key, gone)
	if len(wanted) > len(c.names) {
		c.since = c.now
	}
	c.mergeNames(wanted, false)
}

// subscribeGlobs adds globs. A glob that is named again gets another full answer (R084).
func (c requestUpdate) subscribeGlobs(globs []string) {
	added := make(map[string]*Subscription)
	for _, text := range globs {
		if c.globs.find(text) == nil {
			added[text] = c.newGlob(text, c.now)
		}
	}
	c.moveInitialVersions(added)
	for _, text := range globs {
		if glob := c.globs.find(text); !c.first { // only the first request reports what the client holds
			glob.repeatAll()
			glob.initialVersions, glob.initialCount, glob.idle = nil, 0, false
		}
		c.ackDeadline = c.now // the next response need not wait for an ACK, see subscribe
	}
}

// replaceGlobs replaces the globs of the subscription by those among texts, and returns the other texts.
func (c requestUpdate) replaceGlobs(texts []string) (rest []string) {
	rest, globs := splitGlobs(texts)
	slices.Sort(globs)
	globs = slices.Compact(globs)
	c.globs = slices.DeleteFunc(c.globs, func(glob *Subscription) bool {
		_, listed := slices.BinarySearch(globs, glob.glob)
		if !listed {
			glob.Close()
		}
		return !listed
	})
	for _, text := range globs {
		if c.globs.find(text) == nil {
			c.newGlob(text, c.now)
		}
	}
	return rest
}
