package reconcile

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// Config says how a group decides.
type Config struct {
	// Hold is how long removals that are too many to be believed are held (B.15).
	Hold time.Duration

	// HoldExplicit holds them also if the origin states them when it has stated all of the set.
	HoldExplicit bool

	// ColdWait is how long a set has to be without a new name to be complete.
	ColdWait time.Duration

	// Reported says that the sets are what returning clients report (Hold.Reported).
	Reported bool

	Counts *Counts
	Logger *slog.Logger
}

// A Group is the sets of a view, or of a directory. What is held of one type keeps what it refers to.
type Group struct {
	// Untrusted says that what the origin was told is held is in doubt: its content was not compared yet.
	Untrusted bool

	cfg     Config
	sets    map[string]map[*Set]struct{} // by type URL
	busy    map[*Set]struct{}            // those with something to decide
	holding int                          // what of Counts.Holding is of this group
}

// NewGroup returns a group without sets.
func NewGroup(cfg Config) *Group {
	return &Group{cfg: cfg, sets: make(map[string]map[*Set]struct{}), busy: make(map[*Set]struct{})}
}

// NewSet returns a set of resources of a type. Whole is the name by which an origin is asked for all of it,
// empty if it is asked for each name.
func (g *Group) NewSet(typeURL, whole string, content Content) *Set {
	s := &Set{TypeURL: typeURL, whole: whole, content: content, group: g}
	if g.sets[typeURL] == nil {
		g.sets[typeURL] = make(map[*Set]struct{})
	}
	g.sets[typeURL][s] = struct{}{}
	return s
}

// Drop takes out a set.
func (g *Group) Drop(s *Set) {
	s.Reset()
	delete(g.busy, s)
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
		n += s.staying()
	}
	return n
}

// Busy reports whether there is anything to decide.
func (g *Group) Busy() bool { return len(g.busy) > 0 }

// Counts returns the counts of the group, which others may share.
func (g *Group) Counts() *Counts { return g.cfg.Counts }

// Holding returns how many removals are held.
func (g *Group) Holding() int { return g.holding }

func (g *Group) noteBusy(s *Set) {
	if !s.none() {
		g.busy[s] = struct{}{}
	}
	g.count()
}

// count counts what is held, in the group and in its Counts.
func (g *Group) count() {
	n := 0
	for s := range g.busy {
		n += len(s.held)
	}
	g.cfg.Counts.Holding.Add(int64(n - g.holding))
	g.holding = n
}

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
		look = s.removals.due(now) || look
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
		if s.none() {
			delete(g.busy, s)
		}
	}
	g.count()
	return next
}

// needed returns whether a name of a set is needed by what stays, and with doubtful, also by what may be gone
// and may be held then: such a resource is served, and what it refers to must be.
func (g *Group) needed(s *Set, doubtful bool, now time.Time) func(name string) bool {
	var found names // made when it is called first: most responses remove nothing
	return func(name string) bool {
		if found == nil {
			found = make(names)
			if by := g.staying(s.TypeURL, doubtful, now); len(by) > 0 {
				found = references(by, s.content.Names())
			}
		}
		_, is := found[name]
		return is
	}
}

// staying returns the resources that may need those of a type, and that are there although the origin seems to
// have removed them, or with doubtful, may have.
func (g *Group) staying(typeURL string, doubtful bool, now time.Time) (resources []*wire.Resource) {
	for _, needer := range needers[typeURL] {
		for s := range g.sets[needer] {
			staying := make(names)
			for name := range s.names {
				staying[name] = struct{}{}
			}
			if doubtful {
				doubted, _ := s.doubts(now)
				maps.Copy(staying, doubted)
			}
			for name := range staying {
				if r := s.content.Get(name); r != nil {
					resources = append(resources, r)
				}
			}
		}
	}
	return resources
}

// doubts returns the members of a set that may be gone, and until when that is not known at the latest.
func (s *Set) doubts(now time.Time) (names, time.Time) {
	if s.whole == "" {
		return nil, time.Time{}
	}
	return s.unmentioned.doubts(!s.group.Untrusted, now)
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
		s.remove(&v, slog.LevelWarn, "an operator released removals: the resources are removed")
	})
}

// Discard keeps the resources whose removal waits, and returns which.
func (g *Group) Discard(of HoldChoice, now time.Time) (discarded []Hold) {
	of.Discarded = false
	return g.operate(of, now, func(s *Set) {
		n := len(s.suspects) + len(s.held)
		s.discard()
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
