package subscription

import (
	"errors"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// ErrOutrun is returned for a Delta client that is further behind than the view remembers removals. The server ends the
// stream. The client connects again, reports what it holds, and is sent the difference (B.11).
var ErrOutrun = errors.New("the stream has fallen too far behind, connect again")

// changes builds responses with only the changes: every Delta response, and SotW responses of types that may be
// partial. The encoder removals builds delayed removals.
type changes struct {
	writer
	limit           cache.Seq // position up to which the logs are read; new names are exempt (B.11)
	olderGeneration bool      // g is not the newest generation, see Turn
	awaited         Referrers // clusters that endpoints wait for
}

// response returns the response that is due now.
func (c *changes) response(now time.Time) (Response, error) {
	if c.wildcard != nil && c.wildcardStarted && c.Delta && c.removedUpTo < c.t.Wildcard.Floor() {
		return Response{}, ErrOutrun
	}
	all := c.wildcard != nil && c.t.Phase >= cache.Settled
	if c.out.Body == nil { // otherwise it has removals, see replaceReported
		if all && c.shareable() {
			return c.sharedMembers(), nil
		}
		c.writer = newWriter(c.visible)
	}
	sums{c.visible}.update()
	if all {
		c.answerUnsubscribed()
		c.addMembers()
	}
	if !c.out.Truncated {
		c.addNames()
	}
	c.addRest(now)
	c.nameSum.scanned = c.scannedUpTo
	return c.out, nil
}

// addRest adds renewed TTLs and errors, as far as they fit.
func (c *changes) addRest(now time.Time) {
	if !c.out.Truncated {
		c.addRenewedTTLs()
	}
	if !c.out.Truncated {
		c.addErrors(now)
	}
}

// shareable reports whether the response depends only on the client's positions in the log of the wildcard set.
func (c *changes) shareable() bool {
	if len(c.names)+len(c.initialVersions)+len(c.awaited)+c.due() > 0 || c.errors.behind(c.t) {
		return false
	}
	ownVersion := c.Delta || c.parent == nil && len(c.globs) == 0
	return ownVersion && c.sharesContent()
}

// sharesContent reports whether all clients are sent the same bytes for a resource of the wildcard set: without TTLs,
// and without dropped content.
func (v visible) sharesContent() bool {
	return (!v.sendsTTLs || v.t.Wildcard.TTLs() == 0) && !v.ttlsDue() && v.t.Wildcard.ContentDropped() == 0
}

// addMembers adds the resources of the wildcard set that changed after the client's position. It skips names that the
// client also subscribed to, which addNames handles.
func (c *changes) addMembers() {
	initial, limit := c.sendAll, c.limit
	if initial {
		limit = c.g.Seq
		c.startWildcard(limit)
	}
	if wire.HasKeys(c.TypeURL) && !c.removeFirst(limit) {
		return
	}
	c.addResent()
	c.sizeHint = c.t.Wildcard.ChangedSince(c.sentUpTo)
	for e := range c.t.Wildcard.Since(c.sentUpTo) {
		if e.Seq > limit {
			break
		}
		if c.full(e) {
			return
		}
		c.addMember(e)
		c.sentUpTo = e.Seq
	}
	c.sentUpTo = max(c.sentUpTo, limit)
	c.passRemovals(c.t, limit, c.LateRemovals())
	if initial && c.out.Body == nil && c.initialCount == 0 && len(c.resend) == 0 && !c.withholdsAny() {
		c.body() // an empty set needs a response too (R097)
		c.removeEmptyGlob()
	}
}

// removeFirst adds the removals of the wildcard set, so that they precede the resources that may need them if the response has to
// be split (B.32). It reports whether it processed all of them.
func (c *changes) removeFirst(limit cache.Seq) bool {
	for e := range c.t.Wildcard.Since(c.removedUpTo) {
		if e.Seq > limit {
			break
		}
		if c.full(nil) {
			return false
		}
		if _, named := c.find(e.Name); !named && !e.Present() {
			c.removeMember(e)
		}
		c.removedUpTo = max(c.removedUpTo, e.Seq)
	}
	return true
}

// addResent adds resources of the wildcard set that are sent again although they did not change (B.16).
func (c *changes) addResent() {
	var remaining []string
	for _, n := range c.Watch.Find(c.Key, c.resend) {
		if n == nil {
			continue
		}
		if _, named := c.find(n); named {
			continue // see addNames
		}
		switch e := c.t.Wildcard.Get(n); {
		case !e.Present() || e.Seq > c.sentUpTo || c.withheld(e):
		case c.full(e), c.awaited.delay(n.String(), e.Seq):
			remaining = append(remaining, n.String())
		case e.Resource.ContentDropped():
			remaining = append(remaining, n.String())
			c.refetchWildcard()
		default:
			c.add(e)
		}
	}
	c.resend = remaining
}

// addMember adds the resource or the removal of an entry of the wildcard set.
func (c *changes) addMember(e *cache.Entry) {
	if _, named := c.find(e.Name); named {
		return
	}
	switch {
	case !e.Present():
		if !c.LateRemovals() && e.Seq > c.removedUpTo {
			c.removeMember(e)
		}
	case c.withheld(e): // its error is sent instead
	case c.awaited.delay(e.Name.String(), e.Seq):
		c.resend = append(c.resend, e.Name.String())
	case c.holdsVersion(c.g.WildcardSource(c.Key), e):
	case e.Resource.ContentDropped():
		c.resend = append(c.resend, e.Name.String())
		c.refetchWildcard()
	default:
		c.add(e)
	}
}

// sharedMembers does the same as addMembers for clients whose state is only positions. Clients at the same positions
// get the same body, which is built once.
func (c *changes) sharedMembers() Response {
	type key struct {
		delta               bool
		wrap                wire.Wrap
		all, started        bool
		returning           bool
		sent, removed, upTo cache.Seq
	}
	type shared struct {
		out           Response
		sent, removed cache.Seq
	}
	s, g, t, limit := c.Subscription, c.g, c.t, c.limit
	if s.sendAll {
		limit = g.Seq
	}
	k := key{
		delta: s.Delta, wrap: s.wrap, all: s.sendAll, started: s.wildcardStarted, returning: s.initialCount > 0,
		sent: t.Wildcard.Align(s.sentUpTo), removed: t.Wildcard.Align(s.removedUpTo), upTo: t.Wildcard.Align(limit),
	}
	if !s.wildcardStarted {
		k.removed = 0 // not used
	}
	got := cache.Shared(t, cache.SharedChanges, k, func() any {
		moved := *s // addMembers advances the positions of the copy
		made := changes{writer: newWriter(visible{&moved, g, t}), limit: limit}
		made.addMembers()
		if made.out.Body != nil {
			made.out.Body.Join()
		}
		return &shared{made.out, moved.sentUpTo, moved.removedUpTo}
	}).(*shared)
	if s.sendAll {
		s.startWildcard(g.Seq)
	}
	if !got.out.Truncated {
		s.passRemovals(t, limit, s.LateRemovals())
	}
	if s.sentUpTo = max(s.sentUpTo, limit); got.out.Truncated {
		s.sentUpTo, s.removedUpTo = got.sent, max(s.removedUpTo, got.removed)
	}
	return got.out
}

// addNames adds the changes of names that the client subscribed to.
func (c *changes) addNames() {
	if len(c.names) == 0 {
		c.pendingNames, c.scannedUpTo = nil, c.limit
		return
	}
	if c.addPending() && c.addChanged() {
		c.scannedUpTo = max(c.scannedUpTo, c.limit)
	}
}

// addPending adds the names in pendingNames, each once. It reports whether it processed all of them.
func (c *changes) addPending() bool {
	slices.SortFunc(c.pendingNames, (*cache.Name).Compare)
	pending := slices.Compact(c.pendingNames)
	c.pendingNames = nil
	c.sizeHint = len(pending)
	for i, n := range pending {
		if e, _ := c.t.Lookup(n); c.full(e) {
			c.pendingNames = append(c.pendingNames, pending[i:]...)
			return false
		}
		c.addName(n)
	}
	return true
}

// addChanged adds the names that changed after scannedUpTo. It uses the view's hints if they cover all changes.
// Otherwise it scans all names or the logs, whichever are shorter. It reports whether it processed all of them.
func (c *changes) addChanged() bool {
	var room [8]*cache.Name
	if hinted, known := c.Watch.Hinted(c.Key, c.scannedUpTo, room[:0]); known {
		slices.Reverse(hinted) // in log order
		for _, n := range hinted {
			if e, _ := c.t.Lookup(n); c.full(e) {
				return false
			}
			c.addName(n)
		}
		return true
	}
	if c.t.Wildcard.ChangedSince(c.scannedUpTo)+c.t.ByName.ChangedSince(c.scannedUpTo) > len(c.names) {
		for i := range c.names {
			if e, _ := c.t.Lookup(c.names[i].name); c.full(e) {
				return false
			}
			c.addAt(i)
		}
		return true
	}
	for _, set := range []*cache.Set{&c.t.Wildcard, &c.t.ByName} {
		for e := range set.Since(c.scannedUpTo) {
			if c.full(e) {
				return false
			}
			c.addName(e.Name)
		}
	}
	return true
}

func (c *changes) addName(n *cache.Name) {
	if at, ok := c.find(n); ok {
		c.addAt(at)
	}
}

// addAt adds the change of the name at an index. It may add a duplicate to pendingNames, which addPending removes.
func (c *changes) addAt(at int) {
	if c.answer(&c.names[at]) {
		c.pendingNames = append(c.pendingNames, c.names[at].name)
	}
}

// answer adds the unsent change of a name. It reports whether the name must be checked again (pending), since the
// origin has not answered or its removal is delayed.
func (c *changes) answer(n *subscribed) (pending bool) {
	e, seq := c.entryOf(*n)
	switch {
	case e == nil, seq <= n.sent: // the log will have the next change
		return false
	case n.sent == 0 && c.olderGeneration:
		return true // the newest generation answers for it
	case n.sent != 0 && seq > c.limit:
		return seq <= c.scannedUpTo // scanned already, so the log will not report it again
	case n.sent != 0 && c.awaited.delay(n.name.String(), seq):
		return true
	case e.Present():
		return c.answerPresent(n, e, seq)
	default:
		return c.answerAbsent(n, e, seq)
	}
}

func (c *changes) answerPresent(n *subscribed, e *cache.Entry, seq cache.Seq) (pending bool) {
	holds := n.sent == 0 && c.holdsVersion(c.g.From(n.name), e) && !c.alwaysSent
	if !holds && e.Resource.ContentDropped() {
		c.refetch(e)
		return true
	}
	if n.sent == 0 && !holds {
		c.out.newlyRequested = c.out.newlyRequested.with(seq)
	}
	if n.sent = seq; !holds {
		if old, obsolete := c.variants.replace(n.name, e.Resource.Constraints); obsolete {
			c.removeVariant(old)
		}
		c.add(e)
	}
	return false
}

func (c *changes) answerAbsent(n *subscribed, e *cache.Entry, seq cache.Seq) (pending bool) {
	late := c.LateRemovals() && c.Delta && n.sent != 0
	if late || c.mayReappear(e, *n) || c.holdsAwaited(*n) || !c.confirmedAbsent(e) {
		return true
	}
	c.removeEntry(e, n.sent != 0)
	n.sent = seq
	delete(c.initialVersions, e.Name.String())
	delete(c.variants, n.name)
	return false
}

// holdsVersion reports whether a Delta client holds the content of an entry: its first request reported the version,
// and the version can be trusted (B.3). It uses up the report.
func (c *changes) holdsVersion(from *cache.Source, e *cache.Entry) bool {
	version, reported := c.initialVersions[e.Resource.Name]
	if !reported {
		return false
	}
	delete(c.initialVersions, e.Resource.Name)
	return e.HasVersion(version) && trust{c.visible}.trustsVersion(from, e)
}

// answerUnsubscribed answers names that a client with a wildcard unsubscribed, since the client cannot know whether the
// wildcard set has the resource (R079). A change that is due anyway is the answer.
func (c *changes) answerUnsubscribed() {
	if len(c.unsubscribeReplies) == 0 {
		return
	}
	for i, n := range c.Watch.Find(c.Key, c.unsubscribeReplies) {
		if c.full(nil) {
			c.unsubscribeReplies = c.unsubscribeReplies[i:]
			return
		}
		if n != nil {
			switch e := c.t.Wildcard.Get(n); {
			case e.Present() && (c.sendAll || e.Seq > c.sentUpTo):
				continue
			case e.Present():
				c.add(e)
				continue
			case e != nil && c.wildcardStarted && e.Seq > c.removedUpTo:
				continue
			}
		}
		c.removeResource(c.unsubscribeReplies[i])
	}
	c.unsubscribeReplies = nil
}
