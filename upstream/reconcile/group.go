package reconcile

import (
	"cmp"
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

// updateCounts updates the numbers of changes that wait.
func (g *Group) updateCounts() {
	var now [reasons]int
	for s := range g.withRemovals {
		for _, change := range s.byName {
			now[slices.Index(Reasons[:], s.reason(change.state))]++
		}
		now[slices.Index(Reasons[:], Replacement)] += len(s.waiting)
	}
	for i, n := range now {
		g.cfg.Counts.pending[i].Add(int64(n - g.pending[i]))
	}
	g.pending = now
}

// HasRemovals reports whether changes are pending or were dropped.
func (g *Group) HasRemovals() bool { return len(g.withRemovals) > 0 }

// Dropped returns the number of changes that operators dropped, as of the last decision.
func (g *Group) Dropped() int { return g.pending[slices.Index(Reasons[:], Dropped)] }

// referrersFirst returns the sets with pending or dropped changes. Resources that refer to others come first: these
// others can be removed only after them.
func (g *Group) referrersFirst() []*Set {
	return slices.SortedFunc(maps.Keys(g.withRemovals), func(a, b *Set) int {
		return cmp.Or(wire.CompareTypes(b.TypeURL, a.TypeURL), cmp.Compare(a.pattern, b.pattern))
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
		s.awaitAdditions()
		next = Earlier(Earlier(next, s.decisionDue(now)), Earlier(s.logHeld(now), s.unitsDue(now)))
		if len(s.byName)+len(s.waiting) == 0 {
			delete(g.withRemovals, s)
		}
	}
	g.updateCounts()
	return next
}

// Operate executes a command of an operator, and returns the holds to which it applies. The names whose removal it decides
// count as mentioned.
func (g *Group) Operate(c Command, now time.Time) (chosen []Hold) {
	sets := g.referrersFirst()
	if c.Do == List {
		slices.Reverse(sets) // the order in which xDS sends types
	}
	decided := make(map[*Set]names)
	for _, s := range sets {
		holds := c.choose(s.holds(now))
		chosen = append(chosen, holds...)
		for _, h := range holds {
			for _, name := range h.Names {
				of := decided[s]
				put(&of, name, struct{}{})
				decided[s] = of
			}
		}
	}
	if !c.changesNothing() {
		g.execute(&c, sets, decided, now)
		g.Decide(now)
	}
	return chosen
}

// execute executes a command on the names of sets that it concerns. The sets are in the order in which resources are removed: what
// grows passes before, in the opposite one, so that no resource reaches clients before one that it names.
func (g *Group) execute(c *Command, sets []*Set, decided map[*Set]names, now time.Time) {
	for _, s := range slices.Backward(sets) {
		grows := make(names)
		for name := range decided[s] {
			change := s.byName[name]
			if !change.isHeldUpdate() { // otherwise the origin may have removed the resource since it stated the update
				s.markMentioned(name)
			}
			if c.Do == Pass && change.growth != 0 && change.replacement != nil {
				grows[name] = struct{}{}
				delete(decided[s], name)
			}
		}
		if len(grows) > 0 {
			s.pass(grows, now)
		}
	}
	for _, s := range sets {
		switch {
		case len(decided[s]) == 0:
		case c.Do == Pass:
			s.pass(decided[s], now)
		default:
			s.drop(decided[s], c.By, now)
		}
	}
}
