package reconcile

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// Drop takes out a set.
func (g *Group) Drop(s *Set) {
	delete(g.busy, s)
	g.count()
	if delete(g.sets[s.TypeURL], s); len(g.sets[s.TypeURL]) == 0 {
		delete(g.sets, s.TypeURL)
	}
}

// Close forgets all that is held.
func (g *Group) Close() {
	clear(g.busy)
	g.count()
}

// count counts what is held, in the group and in its Counts.
func (g *Group) count() {
	n, breaks := 0, 0
	for s := range g.busy {
		n += s.count(held)
		breaks += s.count(breaking)
	}
	g.cfg.Counts.Holding.Add(int64(n - g.holding))
	g.holding = n
	if breaks != g.listed {
		g.broken, g.listed = g.listBroken(), breaks
	}
}

// listBroken returns the changes that are held since they break clients, as they are sent.
func (g *Group) listBroken() (all []Hold) {
	sets := g.inOrder()
	slices.Reverse(sets)
	for _, s := range sets {
		if s.count(breaking) > 0 {
			all = append(all, slices.DeleteFunc(s.holds(time.Time{}), func(h Hold) bool { return !h.Broken || h.Discarded })...)
		}
	}
	return all
}

// Broken returns the changes that are held since they break clients. The slice is never modified.
func (g *Group) Broken() []Hold { return g.broken }

// Busy reports whether there are resources that the origin seems to have removed.
func (g *Group) Busy() bool { return len(g.busy) > 0 }

// Holding returns how many removals are held.
func (g *Group) Holding() int { return g.holding }

// inOrder returns the sets with something to decide. What refers to others goes first.
func (g *Group) inOrder() []*Set {
	return slices.SortedFunc(maps.Keys(g.busy), func(a, b *Set) int {
		return cmp.Or(wire.Rank(b.TypeURL)-wire.Rank(a.TypeURL), cmp.Compare(b.TypeURL, a.TypeURL), cmp.Compare(a.whole, b.whole))
	})
}

// Look begins second looks at what has been held for long enough, and reports whether there are any: then the
// origin is to be asked for everything.
func (g *Group) Look(now time.Time) (look bool) {
	for s := range g.busy {
		look = s.startSecondLook(now) || look
	}
	return look
}

// Decide decides what can be decided, and returns when to decide again.
func (g *Group) Decide(now time.Time) (next time.Time) {
	for again := true; again; { // something may have waited for what was removed
		again = false
		for _, s := range g.inOrder() {
			again = s.decide(now) || again
		}
	}
	for s := range g.busy {
		if at, _ := s.content.Complete(); now.Before(at) {
			next = Earlier(next, at)
		}
		next = Earlier(next, s.alarm(now))
		if len(s.byName) == 0 {
			delete(g.busy, s)
		}
	}
	g.count()
	return next
}

// Operate carries out a command of an operator, and returns the holds that it is about. What is decided is in no doubt
// any more.
func (g *Group) Operate(c Command, now time.Time) (chosen []Hold) {
	sets := g.inOrder()
	if c.Do == List {
		slices.Reverse(sets) // as they are sent
	}
	for _, s := range sets {
		holds := c.among(s.holds(now))
		chosen = append(chosen, holds...)
		if c.Do == List || len(holds) == 0 {
			continue
		}
		for _, h := range holds {
			for _, name := range h.Names {
				s.mention(name)
			}
		}
		if c.Do == Release {
			s.release(c.Discarded)
		} else {
			s.discard()
		}
	}
	if c.Do != List {
		g.Decide(now)
	}
	return chosen
}
