package subscription

import (
	"errors"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// ErrOutrun is returned for a Delta client that is further behind than the view remembers removals. It has to connect
// again, report what it holds, and be sent the difference (B.11).
var ErrOutrun = errors.New("the stream has fallen too far behind, connect again")

// changes make responses that hold only what changed: every Delta response, and SotW responses of types that may be
// partial. Removals that may have to wait are left to removals.
type changes struct {
	writer
	limit cache.Seq // up to where the logs are read; what was just asked for is exempt (B.11)
	older bool      // the generation is not the newest, see Look
}

// response returns what the client must be sent now.
func (c *changes) response(now time.Time) (Response, error) {
	if c.wildcard != nil && c.wildcardStarted && c.Delta && c.removedUpTo < c.t.Wildcard.Floor() {
		return Response{}, ErrOutrun
	}
	all := c.wildcard != nil && c.t.Phase >= cache.Settled
	if all && c.shareable() {
		return c.sharedMembers(), nil
	}
	c.writer = newWriter(c.visible)
	sums{c.visible}.update()
	if all {
		c.answerUnsubscribed()
		c.addMembers()
	}
	if !c.out.Cut {
		c.addNames()
	}
	if !c.out.Cut {
		c.addRenewedTTLs()
	}
	if !c.out.Cut {
		c.addErrors(now)
	}
	c.nameSum.scanned = c.scannedUpTo
	return c.out, nil
}

// shareable reports whether what is due depends only on the client's positions in the log of the wildcard set.
func (c *changes) shareable() bool {
	if len(c.names)+len(c.initialVersions)+c.due() > 0 || c.errors.behind(c.t) {
		return false
	}
	ownVersion := c.Delta || c.parent == nil && len(c.globs) == 0
	return ownVersion && c.sharesContent()
}

// sharesContent reports whether the client is sent the resources of the wildcard set as every other: without TTLs, and
// without asking the origin for content again.
func (v visible) sharesContent() bool {
	return (!v.sendsTTLs || v.t.Wildcard.TTLs() == 0) && !v.ttlsDue() && v.t.Wildcard.ContentDropped() == 0
}

// addMembers adds the resources of the wildcard set that changed after the client's position. It skips those that the
// client also named: addNames answers for them.
func (c *changes) addMembers() {
	initial, limit := c.sendAll, c.limit
	if initial {
		limit = c.g.Seq
		c.startWildcard(limit)
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
	c.passRemovals(c.t, limit, c.LateRemovals)
	if initial && c.out.Body == nil && c.initialCount == 0 && len(c.resend) == 0 && !c.withholdsAny() {
		c.body() // an empty set is an answer too (R097)
		c.removeEmptyGlob()
	}
}

// addResent adds resources of the wildcard set that are sent again although they did not change (B.16).
func (c *changes) addResent() {
	var still []string
	for _, n := range c.Watch.Find(c.Key, c.resend) {
		if n == nil {
			continue
		}
		switch e := c.t.Wildcard.Get(n); {
		case !e.Present() || e.Seq > c.sentUpTo:
		case c.full(e):
			still = append(still, n.String())
		case e.Resource.ContentDropped():
			still = append(still, n.String())
			c.refetchWildcard()
		default:
			c.add(e)
		}
	}
	c.resend = still
}

// addMember adds what an entry of the wildcard set says.
func (c *changes) addMember(e *cache.Entry) {
	if _, named := c.find(e.Name); named {
		return
	}
	switch {
	case !e.Present():
		if !c.LateRemovals && e.Seq > c.removedUpTo {
			c.removeMember(e)
		}
	case c.withheld(e): // its error is sent instead
	case c.holdsVersion(c.g.WildcardSource(c.Key), e):
	case e.Resource.ContentDropped():
		c.resend = append(c.resend, e.Name.String())
		c.refetchWildcard()
	default:
		c.add(e)
	}
}

// sharedMembers is addMembers for clients whose state is nothing but positions. All that are at the same ones get the
// same body, built once.
func (c *changes) sharedMembers() Response {
	type key struct {
		delta               bool
		wrap                wire.Wrap
		all, started        bool
		returning           bool
		sent, removed, upTo cache.Seq
	}
	type shared struct {
		out  Response
		sent cache.Seq
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
		k.removed = 0 // not looked at
	}
	got := cache.Shared(t, cache.SharedChanges, k, func() any {
		moved := *s // positions move in a copy
		made := changes{writer: newWriter(visible{&moved, g, t}), limit: limit}
		made.addMembers()
		if made.out.Body != nil {
			made.out.Body.Join()
		}
		return &shared{made.out, moved.sentUpTo}
	}).(*shared)
	if s.sendAll {
		s.startWildcard(g.Seq)
	}
	if !got.out.Cut {
		s.passRemovals(t, limit, s.LateRemovals)
	}
	if s.sentUpTo = max(s.sentUpTo, limit); got.out.Cut {
		s.sentUpTo = got.sent
	}
	return got.out
}

// addNames adds what the client named and was not sent.
func (c *changes) addNames() {
	if len(c.names) == 0 {
		c.pendingNames, c.scannedUpTo = nil, c.limit
		return
	}
	if c.addPending() && c.addChanged() {
		c.scannedUpTo = max(c.scannedUpTo, c.limit)
	}
}

// addPending answers for the names that need a look, each once however often it was asked for. It reports whether it
// came to the end.
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

// addChanged answers for the names that changed since the last look: those that the hints name, if they are known.
// Otherwise it goes through all names or through the logs, whichever is shorter. It reports whether it came to the end.
func (c *changes) addChanged() bool {
	var room [8]*cache.Name
	if hinted, known := c.Watch.Hinted(c.Key, c.scannedUpTo, room[:0]); known {
		slices.Reverse(hinted) // in the order of the logs
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

// addAt answers for one of the names. It may have one looked at again that already is: addPending removes duplicates.
func (c *changes) addAt(at int) {
	if c.answer(&c.names[at]) {
		c.pendingNames = append(c.pendingNames, c.names[at].name)
	}
}

// answer adds what the client does not have of one name. It reports whether the name needs another look: because the
// origin has not answered, or because a removal comes later.
func (c *changes) answer(n *subscribed) (pending bool) {
	e, seq := c.entryOf(*n)
	switch {
	case e == nil, seq <= n.sent: // the log tells when it changes
		return false
	case n.sent == 0 && c.older:
		return true // the newest generation answers for it
	case n.sent != 0 && seq > c.limit:
		return seq <= c.scannedUpTo // the log will not tell it again
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
		if old, gone := c.variants.replace(n.name, e.Resource.Constraints); gone {
			c.removeVariant(old)
		}
		c.add(e)
	}
	return false
}

func (c *changes) answerAbsent(n *subscribed, e *cache.Entry, seq cache.Seq) (pending bool) {
	late := c.LateRemovals && c.Delta && n.sent != 0
	if late || c.mayReappear(e, *n) || c.mayPostdateFreeze(*n) || !c.confirmedAbsent(e) {
		return true
	}
	c.removeEntry(e, n.sent != 0)
	n.sent = seq
	delete(c.initialVersions, e.Name.String())
	delete(c.variants, n.name)
	return false
}

// holdsVersion reports whether a Delta client holds this very content: its first request says so, which counts once,
// and the version can be trusted (B.3).
func (c *changes) holdsVersion(from *cache.Source, e *cache.Entry) bool {
	version, reported := c.initialVersions[e.Resource.Name]
	if !reported {
		return false
	}
	delete(c.initialVersions, e.Resource.Name)
	return e.HasVersion(version) && trust{c.visible}.trustsVersion(from, e)
}

// answerUnsubscribed answers names that a client with a wildcard unsubscribed: the client cannot know whether it keeps
// the resource (R079). If the resource is sent or removed anyway, that is the answer.
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
