package subscription

import (
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/wire"
)

// A Poll is a subscription over REST, which ends after one complete set. The version in its request reports the set
// that the client holds.
type Poll struct {
	*Subscription
	contentDropped bool // content of subscribed resources was dropped, and was requested again
}

// A PollState is the possible answer to a poll.
type PollState int

// The states of a poll.
const (
	NoAnswer   PollState = iota // the origin has not answered
	Incomplete                  // only a part is known: the origin may send more
	Current                     // the client has the set, or must keep its resources
	Due                         // the set is complete, and the client has another one
)

// Check returns the state of the poll, and when to check again even without an event. trusts reports whether the
// version that the client reported can be trusted.
func (p *Poll) Check(
	g *cache.Generation, now time.Time, trusts func(fingerprint.Sum) bool,
) (state PollState, again time.Time) {
	v := sets{p.visibleAt(g), now}
	if !v.answered() {
		return NoAnswer, time.Time{}
	}
	if sum := v.sum(); p.initialVersion != "" && sum.SameVersion(p.initialVersion) {
		p.holdsSet = true // later sets delete only resources that were removed
		if trusts(sum) {
			return Current, time.Time{}
		}
	}
	if v.heldByFreeze() {
		return Current, time.Time{} // the client keeps its resources
	}
	if !v.complete() {
		return Incomplete, time.Time{}
	}
	if p.contentDropped = v.refetchDropped(true); p.contentDropped {
		return Incomplete, time.Time{} // the arrival of the content wakes the poll
	}
	if again = v.resolveDeadline(); now.Before(again) {
		return Incomplete, again
	}
	return Due, time.Time{}
}

// Sendable returns the generation to answer from. It is older than the newest while changes of the type wait for its
// minimum push interval, unless the client already has the newest set, from another relay.
func (p *Poll) Sendable(newest *cache.Generation) *cache.Generation {
	g := newest.Sendable(p.TypeURL)
	if g != newest && p.initialVersion != "" && p.visibleAt(newest).sum().SameVersion(p.initialVersion) {
		return newest
	}
	return g
}

// Skip records that the client needs no removals up to a position, since it is sent complete sets.
func (p *Poll) Skip(upTo cache.Seq) {
	p.removedUpTo = upTo
	for _, glob := range p.globs {
		glob.removedUpTo = upTo
	}
	p.releaseRemovals()
}

// Deletes reports whether the client may hold resources that an incomplete set lacks, and would delete them (B.7).
func (p *Poll) Deletes() bool {
	return p.FullState && p.initialVersion != "" && (!p.holdsSet || p.contentDropped)
}

// Doubts returns why the version that the client reported may not be trusted. The position tells when a visible
// resource last returned to former content. The revision is that of [cache.View.Distrust] if any resource was part of a
// rejected edition. Both are zero if the version can be trusted.
func (p *Poll) Doubts(g *cache.Generation) (reverted cache.Seq, distrust uint64) {
	return trust{p.visibleAt(g)}.doubts()
}

// Holds reports whether the client reported the version of a set.
func (p *Poll) Holds(sum fingerprint.Sum) bool { return sum.SameVersion(p.initialVersion) }

// Set returns all existing resources that the client subscribed to, and their sum.
func (p *Poll) Set(g *cache.Generation) ([]*wire.Resource, fingerprint.Sum) {
	set := p.visibleAt(g).collect(setBuilder{})
	return set.resources, set.sum
}

// answered reports whether the origin has ever answered for any part of the subscription.
func (s sets) answered() bool {
	for part := range s.wildcards() {
		if s.g.Type(part.Key).Phase < cache.Settled {
			return false
		}
	}
	return s.wildcard != nil || len(s.names) == 0 || slices.ContainsFunc(s.names, func(n subscribed) bool {
		e, _ := s.t.Lookup(n.name)
		return e != nil || s.t.Errors(cache.ByName).Get(n.name) != nil
	})
}
