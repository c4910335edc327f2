package reconcile

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// Drop removes a set from the group.
func (g *Group) Drop(s *Set) {
	delete(g.withRemovals, s)
	g.updateCounts()
	if delete(g.sets[s.TypeURL], s); len(g.sets[s.TypeURL]) == 0 {
		delete(g.sets, s.TypeURL)
	}
}

// Close subtracts the held changes of the group from its Counts. The group must not be used afterwards.
func (g *Group) Close() {
	clear(g.withRemovals)
	g.updateCounts()
}

// updateCounts updates HeldRemovals, BreakingHolds and Counts.HeldNow.
func (g *Group) updateCounts() {
	heldRemovals, breakingChanges := 0, 0
	for s := range g.withRemovals {
		heldRemovals += s.count(held)
		breakingChanges += s.count(breaking)
	}
	g.cfg.Counts.HeldNow.Add(int64(heldRemovals - g.heldRemovals))
	g.heldRemovals = heldRemovals
	if breakingChanges != g.breakingCount {
		g.breakingHolds, g.breakingCount = g.listBreaking(), breakingChanges
	}
}

// listBreaking returns the held changes that would break clients, in the order in which xDS sends types.
func (g *Group) listBreaking() (all []Hold) {
	for _, s := range slices.Backward(g.referrersFirst()) {
		if s.count(breaking) > 0 {
			notHeld := func(h Hold) bool { return !h.Breaking || h.Discarded }
			all = append(all, slices.DeleteFunc(s.holds(time.Time{}), notHeld)...)
		}
	}
	return all
}

// BreakingHolds returns the held changes that would break clients. The slice is never modified.
func (g *Group) BreakingHolds() []Hold { return g.breakingHolds }

// HasRemovals reports whether changes are pending or were discarded.
func (g *Group) HasRemovals() bool { return len(g.withRemovals) > 0 }

// HeldRemovals returns the number of held removals, without the changes that would break clients.
func (g *Group) HeldRemovals() int { return g.heldRemovals }

// referrersFirst returns the sets with pending or discarded changes. Resources that refer to others come first: these
// others can be removed only after them.
func (g *Group) referrersFirst() []*Set {
	return slices.SortedFunc(maps.Keys(g.withRemovals), func(a, b *Set) int {
		return cmp.Or(wire.Rank(b.TypeURL)-wire.Rank(a.TypeURL),
			cmp.Compare(b.TypeURL, a.TypeURL), cmp.Compare(a.pattern, b.pattern))
	})
}

// StartSecondLooks starts the second looks whose hold time is over, and reports whether there are any. The caller then
// requests all resources from the origin again.
func (g *Group) StartSecondLooks(now time.Time) (started bool) {
	if g.Undecided(now) {
		return false
	}
	for s := range g.withRemovals {
		started = s.startSecondLook(now) || started
	}
	return started
}

// Decide makes all decisions that are possible, and returns when to call it again; zero for never.
func (g *Group) Decide(now time.Time) (next time.Time) {
	for changed := true; changed; { // other removals may have waited for the removed resources
		changed = false
		for _, s := range g.referrersFirst() {
			changed = s.decide(now) || changed
		}
	}
	for s := range g.withRemovals {
		next = Earlier(Earlier(next, s.decisionDue(now)), Earlier(s.logHeld(now), s.unitsDue(now)))
		if len(s.byName)+len(s.waiting) == 0 {
			delete(g.withRemovals, s)
		}
	}
	g.updateCounts()
	return next
}

// Waiting yields the type and the name of each addition that waits for the removal of resources that exclude it (B.11).
func (g *Group) Waiting() iter.Seq2[string, string] {
	return func(yield func(typeURL, name string) bool) {
		for s := range g.withRemovals {
			for name := range s.waiting {
				if !yield(s.TypeURL, name) {
					return
				}
			}
		}
	}
}

// Operate executes a command of an operator, and returns the holds to which it applies. The names that it decides count
// as mentioned.
func (g *Group) Operate(c Command, now time.Time) (chosen []Hold) {
	sets := g.referrersFirst()
	if c.Do == List {
		slices.Reverse(sets) // the order in which xDS sends types
	}
	for _, s := range sets {
		holds := c.matching(s.holds(now))
		chosen = append(chosen, holds...)
		if c.Do == List || len(holds) == 0 {
			continue
		}
		for _, h := range holds {
			for _, name := range h.Names {
				s.markMentioned(name)
			}
		}
		if c.Do == Release {
			s.release(c.Discarded, now)
		} else {
			s.discard()
		}
	}
	if c.Do != List {
		g.Decide(now)
	}
	return chosen
}
