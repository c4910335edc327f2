package reconcile

import (
	"cmp"
	"log/slog"
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

// Staying returns how many resources are there although the origin seems to have removed them.
func (g *Group) Staying() (n int) {
	for s := range g.busy {
		n += len(s.byName)
	}
	return n
}

// Busy reports whether there is anything to decide.
func (g *Group) Busy() bool { return len(g.busy) > 0 }

// Counts returns the counts of the group, which others may share.
func (g *Group) Counts() *Counts { return g.cfg.Counts }

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
		look = s.due(now) || look
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
		next = Earlier(next, s.alarm(s.TypeURL, g.cfg.Logger, now))
		if len(s.byName) == 0 {
			delete(g.busy, s)
		}
	}
	g.count()
	return next
}

// Holds returns what waits, and what was discarded.
func (g *Group) Holds(now time.Time) (holds []Hold) {
	for _, s := range slices.Backward(g.inOrder()) {
		holds = append(holds, s.list(now)...)
	}
	return holds
}

// list returns the holds of a set.
func (s *Set) list(now time.Time) []Hold {
	holds := s.holds(s.TypeURL, s.undecidedUntil(now))
	for i := range holds {
		holds[i].Reported = s.group.cfg.Reported
	}
	return holds
}

// undecidedUntil returns when the suspects of a set are decided: when it is complete, and nothing that is held
// needs them.
func (s *Set) undecidedUntil(now time.Time) (until time.Time) {
	until, ok := s.content.Complete()
	if !ok {
		return time.Time{}
	}
	for _, needer := range needers[s.TypeURL] {
		for o := range s.group.sets[needer] {
			_, doubted := o.doubts(now)
			until = later(until, later(o.until, doubted))
		}
	}
	return until
}

// Release carries out the removals of a choice, and returns which.
func (g *Group) Release(of HoldChoice, now time.Time) (released []Hold) {
	return g.operate(of, now, func(s *Set) {
		v := s.release(of.Discarded)
		g.cfg.Logger.Warn("an operator released removals: the resources are removed",
			slog.String("type_url", s.TypeURL), slog.Int("removed", s.remove(&v)))
	})
}

// Discard keeps the resources whose removal waits, and returns which.
func (g *Group) Discard(of HoldChoice, now time.Time) (discarded []Hold) {
	of.Discarded = false
	return g.operate(of, now, func(s *Set) {
		n := s.discard()
		g.cfg.Counts.Discarded.Add(int64(n))
		g.cfg.Logger.Warn("an operator discarded removals: the resources stay until the origin mentions them",
			slog.String("type_url", s.TypeURL), slog.Int("kept", n))
	})
}

// operate has an operator decide on the holds of a choice, of which there is no doubt then.
func (g *Group) operate(of HoldChoice, now time.Time, decide func(*Set)) (chosen []Hold) {
	for _, s := range g.inOrder() {
		holds := of.among(s.list(now))
		if len(holds) == 0 {
			continue
		}
		for _, h := range holds {
			for _, name := range h.Names {
				s.unmentioned.mention(name)
			}
		}
		decide(s)
		chosen = append(chosen, holds...)
	}
	g.Decide(now)
	return chosen
}
