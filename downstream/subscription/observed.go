package subscription

import (
	"slices"

	"github.com/xdstender/tender/cache"
)

// A Change is what a view changed of a type or a collection between two positions: a part of an edition.
type Change struct {
	Key         string    // type URL or collection
	After, UpTo cache.Seq // the changes are after the one position, and up to the other
	Names       []string  // of what changed, sorted
}

// Refuses reports whether a refusal of the client stands.
func (s At) Refuses() bool { return s.standingRefusal() != nil }

// AcceptedAll reports whether the client has answered all that it was sent. A client that was sent nothing must not have
// to be: it reported that it holds just what there is.
func (s At) AcceptedAll() bool {
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

// Answer returns what became of a change at the client, and whether the client subscribes to any of it: by the wildcard or
// the glob, or by a name. What the client has accepted and was sent later does not count.
func (s At) Answer(c *Change) (state ResourceState, wants bool) {
	part := s
	if _, glob, is := cache.SplitCollection(c.Key); is {
		of := s.globs.find(glob)
		if of == nil {
			return NotSent, false
		}
		part = of.At(s.g)
	}
	unsent := part.wildcard != nil && part.owesMembers(c)
	wants, owesNames := part.owesNames(c)
	wants, unsent = wants || part.wildcard != nil, unsent || owesNames
	switch {
	case !wants:
		return NotSent, false
	case s.refused(c):
		return Refused, true
	case unsent:
		return NotSent, true
	case s.unanswered(c.After, c.UpTo):
		return Sent, true
	default:
		return Accepted, true
	}
}

// owesMembers reports whether the client was not sent all that a change did to the wildcard set.
func (s At) owesMembers(c *Change) bool {
	set := &s.t.Wildcard
	return set.FirstAfter(s.sentUpTo) <= c.UpTo || s.removedUpTo < c.UpTo && set.LastRemoval() > s.removedUpTo
}

// nameCost is how many times more it takes to find a name of a change among those of the client than the other way around:
// it needs a lock.
const nameCost = 8

// owesNames reports whether the client subscribes to any of the names of a change, and whether it was not sent one of them.
func (s At) owesNames(c *Change) (wants, owes bool) {
	if nameCost*len(c.Names) < len(s.names) {
		for _, text := range c.Names {
			if at, named := s.find(s.Watch.View().FindName(s.Key, text)); named {
				wants, owes = true, owes || s.owesChange(s.names[at], c)
			}
		}
		return wants, owes
	}
	for _, n := range s.names {
		if _, is := slices.BinarySearch(c.Names, n.name.String()); is {
			wants, owes = true, owes || s.owesChange(n, c)
		}
	}
	return wants, owes
}

// owesChange reports whether the client was not sent what a change did to a name. If the name changed again later, any
// state since the change began counts.
func (s At) owesChange(n subscribed, c *Change) bool {
	e, seq := s.entryOf(n)
	if e == nil || seq <= n.sent {
		return false
	}
	return seq > c.After && (seq <= c.UpTo || n.sent <= c.After)
}

// refused reports whether a refusal that counts is of a response with any of a change.
func (s At) refused(c *Change) bool {
	if s.refusal == nil {
		return false // as with nearly all
	}
	for r := range s.refusals() {
		if r.Of(c.After, c.UpTo) {
			return true
		}
	}
	return false
}
