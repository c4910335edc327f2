package subscription

import (
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/wire"
)

// A Poll is a subscription over REST, which is sent one complete set and ends. What the client reports it holds is the
// version in its request.
type Poll struct {
	*Subscription
	contentDropped bool // content of what it asked for was dropped, and is asked for again
}

// A Prospect is what a poll can be sent.
type Prospect int

// What a poll can be sent.
const (
	NoAnswer   Prospect = iota // nothing: the origin has not answered
	Incomplete                 // a part: the origin may yet send more
	Current                    // nothing: the client has it all, or is to keep what it has
	Due                        // all, and the client has something else
)

// Look returns what the client can be sent, and when to look again even if nothing happens. The version that the client
// reports counts only if trusts says so.
func (p *Poll) Look(g *cache.Generation, now time.Time, trusts func(fingerprint.Sum) bool) (is Prospect, again time.Time) {
	v := sets{p.visibleAt(g), now}
	if !v.answered() {
		return NoAnswer, time.Time{}
	}
	if sum := v.sum(); p.initialVersion != "" && sum.SameVersion(p.initialVersion) {
		p.holdsSet = true // what is new from now on deletes nothing else that the client has
		if trusts(sum) {
			return Current, time.Time{}
		}
	}
	if v.heldByFreeze() {
		return Current, time.Time{} // it keeps what it has
	}
	if !v.complete() {
		return Incomplete, time.Time{}
	}
	if p.contentDropped = v.refetchDropped(true); p.contentDropped {
		return Incomplete, time.Time{} // the content wakes the poll
	}
	if again = v.resolveDeadline(); now.Before(again) {
		return Incomplete, again
	}
	return Due, time.Time{}
}

// Sendable returns the generation to answer from, of the newest one: an older one while changes of the type wait for its
// minimum push interval, unless the client has the newest set already, from another relay.
func (p *Poll) Sendable(newest *cache.Generation) *cache.Generation {
	g := newest.Sendable(p.TypeURL)
	if g != newest && p.initialVersion != "" && p.visibleAt(newest).sum().SameVersion(p.initialVersion) {
		return newest
	}
	return g
}

// Skip records that the client needs no removal up to a position: it is sent complete sets.
func (p *Poll) Skip(upTo cache.Seq) {
	p.removedUpTo = upTo
	for _, glob := range p.globs {
		glob.removedUpTo = upTo
	}
	p.releaseRemovals()
}

// Deletes reports whether the client would remove what is missing, and may have it (B.7).
func (p *Poll) Deletes() bool {
	return p.FullState && p.initialVersion != "" && (!p.holdsSet || p.contentDropped)
}

// Doubts returns why the version that the client reports may prove nothing: the position at which what it sees last returned
// to former content, and the revision of the view's distrust ([cache.View.DistrustRevision]) if that concerns it; zero if
// there is none.
func (p *Poll) Doubts(g *cache.Generation) (reverted cache.Seq, distrust uint64) {
	return trust{p.visibleAt(g)}.doubts()
}

// Holds reports whether the client reported the version of a set.
func (p *Poll) Holds(sum fingerprint.Sum) bool { return sum.SameVersion(p.initialVersion) }

// Set returns all that the client asked for and that exists, and what identifies that.
func (p *Poll) Set(g *cache.Generation) ([]*wire.Resource, fingerprint.Sum) {
	set := p.visibleAt(g).collect(setBuilder{})
	return set.resources, set.sum
}

// answered reports whether the origin has ever answered for what was asked for.
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
