package subscription

import (
	"iter"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/tier"
)

// A TypeStatus is the state of a stream's subscription to one resource type.
type TypeStatus struct {
	TypeURL  string
	Wildcard bool
	Names    int // that the client subscribed to
	Globs    []string

	// State is [Subscription.String]; set only in the status of a single client.
	State string

	// Nonce, Version and SentAt describe the newest response; all zero before the first. Pending reports that the client
	// has not answered it.
	Nonce, Version string
	SentAt         time.Time
	Pending        bool

	// Accepted is the last version that the client accepted, at AcceptedAt.
	Accepted   string
	AcceptedAt time.Time

	// Sync says whether the client has what is served to it.
	Sync Sync

	// Lag is how long the client has lacked the oldest change that it was sent or that is due, and that it has not
	// accepted; zero if there is none. UnacceptedSince is the time of that change.
	Lag             time.Duration
	UnacceptedSince time.Time

	// Rejection is the newest active NACK, or the newest if none is active; nil if the client never rejected a response.
	// Rejected reports that it is active: the client has accepted nothing later, or a rejected change is still current.
	Rejection *Rejection
	Rejected  bool
}

// Status returns the state of the subscription.
func (s AtGeneration) Status(now time.Time) TypeStatus {
	t := TypeStatus{
		TypeURL: s.TypeURL, Wildcard: s.wildcard != nil, Names: len(s.names), Globs: s.globs.names(),
		Nonce: s.nonce, Version: s.version, SentAt: s.sentAt, Pending: s.pending,
		Accepted: s.ackedVersion, AcceptedAt: s.ackedAt.Time(),
		Rejection: s.Rejection(),
	}
	lacked := s.lacks()
	if t.UnacceptedSince = s.lackedSince(lacked); !t.UnacceptedSince.IsZero() {
		t.Lag = max(now.Sub(t.UnacceptedSince), 0)
	}
	if active := s.activeRejection(); active != nil {
		t.Rejection, t.Rejected = active, true
	}
	switch {
	case t.Rejected:
		t.Sync = tier.Rejecting
	case t.Pending || lacked.due || !t.UnacceptedSince.IsZero():
		t.Sync = tier.Behind
	case lacked.unknown || s.ReturningUnserved():
		t.Sync = tier.Unknown
	default:
		t.Sync = tier.InSync
	}
	return t
}

// Resources returns the state of the resources that the client subscribed to: first by name, then by wildcard and
// globs.
func (s AtGeneration) Resources() (out []ResourceStatus) {
	for _, n := range s.names {
		out = append(out, s.named(n))
	}
	for part := range s.wildcards() {
		v := part.At(s.g)
		for e := range v.t.Wildcard.Since(0) {
			if _, named := v.find(e.Name); !named && (e.Present() || e.Seq > v.removedUpTo) {
				out = append(out, v.member(e))
			}
		}
	}
	return out
}

// Rejected yields the resources whose current content the client rejects.
func (s AtGeneration) Rejected(yield func(ResourceStatus) bool) {
	if s.Rejection() == nil {
		return
	}
	for _, n := range s.names {
		if r := s.named(n); r.Rejection != nil && r.Entry.Present() && !yield(r) {
			return
		}
	}
	for w := range s.wildcards() {
		part := w.At(s.g)
		for r := range s.rejections() {
			for m := range part.rejectedMembers(r) {
				if m.Entry.Present() && !yield(m) {
					return
				}
			}
		}
	}
}

// Resource returns the state of one resource, and whether the client subscribed to it.
func (s AtGeneration) Resource(name string) (r ResourceStatus, asked bool) {
	if at, ok := s.find(s.Watch.Find(s.Key, []string{name})[0]); ok {
		return s.named(s.names[at]), true
	}
	for part := range s.wildcards() {
		n := s.Watch.Find(part.Key, []string{name})[0]
		if n == nil {
			continue
		}
		v := part.At(s.g)
		if e := v.t.Wildcard.Get(n); e.Present() {
			return v.member(e), true
		}
	}
	return r, false
}

// activeRejection returns the newest active rejection, nil if there is none.
func (s AtGeneration) activeRejection() *Rejection {
	if r := s.Rejection(); r != nil && r.At.After(s.ackedAt.Time()) {
		return r
	}
	for r := range s.rejections() {
		if slices.ContainsFunc(s.names, func(n subscribed) bool { return s.named(n).Rejection == r }) || s.rejectedMember(r) {
			return r
		}
	}
	return nil
}

// rejectedMember reports whether a resource of a wildcard set is unchanged since the client rejected it.
func (s AtGeneration) rejectedMember(r *Rejection) bool {
	for w := range s.wildcards() {
		for range w.At(s.g).rejectedMembers(r) {
			return true
		}
	}
	return false
}

// rejectedMembers yields the resources of the wildcard set that are unchanged since the client rejected them.
func (s AtGeneration) rejectedMembers(r *Rejection) iter.Seq[ResourceStatus] {
	return func(yield func(ResourceStatus) bool) {
		for e := range s.t.Wildcard.Since(r.after) {
			if e.Seq > r.upTo {
				return
			}
			if _, named := s.find(e.Name); named {
				continue
			}
			if m := s.member(e); m.Rejection == r && !yield(m) {
				return
			}
		}
	}
}

// named returns the state of a resource that the client subscribed to by name.
func (s AtGeneration) named(n subscribed) ResourceStatus {
	e, seq := s.entryOf(n)
	if e == nil {
		e = &cache.Entry{Name: n.name}
	}
	return s.stateOf(e, seq, n.sent != 0 && seq <= n.sent, func() Holding { return s.sentName(e, n) })
}

// member returns the state of a resource of the wildcard set.
func (s AtGeneration) member(e *cache.Entry) ResourceStatus {
	upTo := s.sentUpTo
	if !e.Present() {
		upTo = s.removedUpTo
	}
	started := s.wildcardStarted || s.sendsSets() // complete sets do not set wildcardStarted
	sent := started && !s.sendAll && e.Seq <= upTo
	return s.stateOf(e, e.Seq, sent, func() Holding { return s.sentMember(e, started, upTo) })
}

// stateOf returns the state of an entry that changed at a position. sent reports whether the client was sent it. If
// not, before returns what it was sent.
func (s AtGeneration) stateOf(e *cache.Entry, changed cache.Seq, sent bool, before func() Holding) ResourceStatus {
	r := ResourceStatus{TypeURL: s.TypeURL, Entry: e}
	if r.SentVersion = s.current(e); sent {
		r.State, r.Rejection = s.answerOf(changed)
	} else {
		r.SentVersion = before()
	}
	r.AcceptedVersion = s.accepted(&r, changed)
	return r
}

// answerOf returns the client's answer to a change that it was sent, and the rejection if it rejected it. A rejected
// response may also have had changes of newly requested names. If their span may have others, which the client accepted
// before, only the last answer counts; see mayHaveRejected.
func (s AtGeneration) answerOf(changed cache.Seq) (ResourceState, *Rejection) {
	of := span{changed - 1, changed}
	for rejection := range s.rejections() {
		last := rejection == s.Rejection() && rejection.At.After(s.ackedAt.Time())
		if of.overlaps(rejection.span) || (last || of == rejection.newlyRequested) && of.overlaps(rejection.newlyRequested) {
			return Rejected, rejection
		}
	}
	if s.awaitsAnswerFor(of.after, of.upTo) {
		return Sent, nil
	}
	return Accepted, nil
}

// A Change is the part of an edition that concerns one type or collection: the changes between two positions.
type Change struct {
	Key         string    // type URL or collection
	After, UpTo cache.Seq // changes at positions p: After < p <= UpTo
	Names       []string  // of changed resources, sorted
}

// HasActiveRejection reports whether a rejection of the client is active, see [TypeStatus.Rejected].
func (s AtGeneration) HasActiveRejection() bool { return s.activeRejection() != nil }

// AcceptedAll reports whether the client has answered the newest response. For a client that was sent nothing, it
// reports whether nothing is due: the client reported that it holds the current state.
func (s AtGeneration) AcceptedAll() bool {
	if s.pending || s.sentAny {
		return !s.pending
	}
	for part := range s.wildcards() {
		if part.sendAll {
			return false
		}
	}
	return !slices.ContainsFunc(s.names, func(n subscribed) bool { return n.sent == 0 })
}

// AwaitsAnswer reports whether the client has not answered a response.
func (s AtGeneration) AwaitsAnswer() bool { return s.pending }

// Answer returns the state of a change at the client, and whether the client subscribes to any of it, by the wildcard,
// the glob or a name. It ignores later changes of the same resources.
func (s AtGeneration) Answer(c *Change) (state ResourceState, wants bool) {
	part := s
	if _, glob, is := cache.SplitCollection(c.Key); is {
		of := s.globs.find(glob)
		if of == nil {
			return NotSent, false
		}
		part = of.At(s.g)
	}
	unsent := part.wildcard != nil && part.membersUnsent(c)
	wants, namesUnsent := part.namesUnsent(c)
	wants, unsent = wants || part.wildcard != nil, unsent || namesUnsent
	switch {
	case !wants:
		return NotSent, false
	case s.rejected(c):
		return Rejected, true
	case unsent:
		return NotSent, true
	case s.awaitsAnswerFor(c.After, c.UpTo):
		return Sent, true
	default:
		return Accepted, true
	}
}

// membersUnsent reports whether the client was not sent all changes of the wildcard set.
func (s AtGeneration) membersUnsent(c *Change) bool {
	set := &s.t.Wildcard
	return set.FirstAfter(s.sentUpTo) <= c.UpTo || s.removedUpTo < c.UpTo && set.LastRemoval() > s.removedUpTo
}

// nameCost is the relative cost of finding a name of a change among those of the client, which needs a lock, to finding
// a name of the client in the change.
const nameCost = 8

// namesUnsent reports whether the client subscribes to any name of a change (wants), and whether it was not sent one of
// them.
func (s AtGeneration) namesUnsent(c *Change) (wants, unsent bool) {
	if nameCost*len(c.Names) < len(s.names) {
		for _, text := range c.Names {
			if at, named := s.find(s.Watch.View().FindName(s.Key, text)); named {
				wants, unsent = true, unsent || s.changeUnsent(s.names[at], c)
			}
		}
		return wants, unsent
	}
	for _, n := range s.names {
		if _, is := slices.BinarySearch(c.Names, n.name.String()); is {
			wants, unsent = true, unsent || s.changeUnsent(n, c)
		}
	}
	return wants, unsent
}

// changeUnsent reports whether the client was not sent a change of a name. If the name changed again later, any state
// since the change began counts as sent.
func (s AtGeneration) changeUnsent(n subscribed, c *Change) bool {
	e, seq := s.entryOf(n)
	if e == nil || seq <= n.sent {
		return false
	}
	return seq > c.After && (seq <= c.UpTo || n.sent <= c.After)
}

// rejected reports whether the client rejected a response with any part of a change, and the rejection may be active.
func (s AtGeneration) rejected(c *Change) bool {
	if s.rejection == nil {
		return false // usual, so skip the iterator
	}
	for r := range s.rejections() {
		if r.HasChange(c.After, c.UpTo) {
			return true
		}
	}
	return false
}
