package subscription

import (
	"slices"

	"github.com/xdstender/tender/cache"
)

// A Change is the part of an edition that concerns one type or collection: the changes between two positions.
type Change struct {
	Key         string    // type URL or collection
	After, UpTo cache.Seq // changes at positions p: After < p <= UpTo
	Names       []string  // of changed resources, sorted
}

// HasActiveRefusal reports whether a refusal of the client is active, see [TypeStatus.Refused].
func (s AtGeneration) HasActiveRefusal() bool { return s.activeRefusal() != nil }

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
	case s.refused(c):
		return Refused, true
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

// refused reports whether the client rejected a response with any part of a change, and the refusal may be active.
func (s AtGeneration) refused(c *Change) bool {
	if s.refusal == nil {
		return false // usual, so skip the iterator
	}
	for r := range s.refusals() {
		if r.HasChange(c.After, c.UpTo) {
			return true
		}
	}
	return false
}
