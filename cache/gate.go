package cache

import (
	"container/heap"
	"iter"
	"slices"
	"time"

	"github.com/xdstender/tender/cache/immutable"
)

// A gate controls which changes of a writer's source readers see. The writer always edits the newest state (latest).
// Each view has the state that its readers see (served). While the gate is open, both are the generation of the view.
// While it is closed, latest is a separate generation, and the gate decides which names of an edit pass to which view.
// With cohorts it is always closed.
//
// A gate belongs to the writer's goroutine. Other goroutines may read latest if they hold index.mu.
type gate struct {
	w           *Writer
	latest      *ledger   // the writer's own ledger while the gate is open
	served      []*served // by cohort; that of the rest last
	ledgers     []*ledger // those of served, and latest if it is a separate one
	frozenSince time.Time // when the writer was frozen, so that no change passes; zero if it is not frozen
	rolledBack  time.Time // when readers were rolled back to an earlier generation (RollBack); zero if they are not

	restoring bool // a snapshot is being restored: all of it passes, since it is the last good state
}

// A served is the state of a writer's source that the readers of one view see.
type served struct {
	*ledger

	// withheld has the names whose state differs from that in latest. The value is true if only Show ends the
	// difference, false if a thaw does.
	withheld map[*Name]bool
	waiting  int // number of withheld names that wait for Show

	takenBack map[takenBack]struct{} // since ShowAs
}

func newGate(w *Writer) gate {
	g := gate{w: w, latest: &w.ledger}
	for _, v := range w.view.views {
		of := &w.ledger
		if v != w.view {
			l := newLedger(v)
			of = &l
		}
		g.served, g.ledgers = append(g.served, &served{ledger: of, withheld: make(map[*Name]bool)}), append(g.ledgers, of)
	}
	if w.view.cfg.Cohorts > 0 {
		latest, generation := newLedger(nil), *w.view.head.Load()
		latest.gen = &generation
		g.latest, g.ledgers = &latest, append(g.ledgers, &latest)
	}
	return g
}

// rest returns the state that clients outside the cohorts see: that of the writer's own view.
func (g *gate) rest() *served { return g.served[len(g.served)-1] }

// generation returns the newest generation of a ledger.
func (l *ledger) generation() *Generation {
	if l.gen != nil {
		return l.gen
	}
	return l.view.Generation()
}

// Generation returns the newest generation that the writer edits (latest). Readers see the generation of the view.
func (g *gate) Generation() *Generation { return g.latest.generation() }

// Frozen reports whether the writer is frozen.
func (g *gate) Frozen() bool { return !g.frozenSince.IsZero() }

// thaws reports whether Thaw has an effect: the writer is frozen or rolled back.
func (g *gate) thaws() bool { return g.Frozen() || !g.rolledBack.IsZero() }

// stages reports whether changes of some types wait for Show: there are cohorts, or readers are rolled back.
func (g *gate) stages() bool { return g.w.view.cfg.Cohorts > 0 || !g.rolledBack.IsZero() }

// branch returns a ledger with a copy of a generation, which can be edited independently of the original. The copy's
// state of other sources is never updated, and must not be read.
func (l *ledger) branch(of *Generation) *ledger {
	c := newLedger(nil)
	for key, names := range l.aliases {
		c.aliases[key] = make(map[string][]*Name)
		for resource, of := range names {
			c.aliases[key][resource] = slices.Clone(of)
		}
	}
	generation := *of
	generation.types, generation.deferred = types{}, nil
	for t := range of.types.since(0) {
		generation.types.put(c.branchType(t))
	}
	heap.Init(&c.due)
	c.gen, c.kept = &generation, len(c.due)
	return &c
}

// branchType returns a copy of a type, which can be edited independently of the original.
func (l *ledger) branchType(t *Type) *Type {
	c := *t
	c.shared = nil
	sets := []*Set{&c.Wildcard, &c.ByName}
	if t.errors != nil {
		errors := *t.errors
		c.errors = &errors
		sets = append(sets, &errors[Wildcard], &errors[ByName])
	}
	for _, s := range sets { // the original appends to the same arrays
		s.log, s.renewals, s.recentRemovals = s.log.Clip(), s.renewals.Clip(), slices.Clip(s.recentRemovals)
	}
	// The copy has timers of its own: a deadline that changes in it does not change in the original.
	by := new(immutable.Edit)
	for _, kind := range kinds {
		for e := range t.set(kind).Since(0) {
			if e.timer == nil {
				continue
			}
			entry, alarm := *e, *e.timer
			entry.timer = &alarm
			set := c.set(kind)
			set.table = set.table.Set(by, e.Name.id, &entry)
			if !alarm.queued.IsZero() {
				l.due = append(l.due, deadline{alarm.queued, t.URL, kind, e.Name})
			}
		}
	}
	return &c
}

// own yields the entries of a type that the writer edits, errors included.
func (g *gate) own(t *Type) iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		for _, kind := range kinds {
			for _, set := range []*Set{t.set(kind), t.Errors(kind)} {
				for e := range set.Since(0) {
					if g.writes(kind, t, e.Name) && !yield(e) {
						return
					}
				}
			}
		}
	}
}

// writes reports whether the writer edits the entry of a name in one of a type's sets.
func (g *gate) writes(kind Kind, t *Type, n *Name) bool {
	if kind == Wildcard {
		return t.source == g.w.source
	}
	return n.source == g.w.source
}

// holds returns the number of entries of a name in the generations of all views, and in latest behind closed gates.
// The index must be locked.
func (v *View) holds(key string, n *Name) (entries int) {
	for _, kind := range kinds {
		for _, of := range v.views {
			entries += of.Generation().Type(key).holds(kind, n)
		}
		for _, w := range v.writers {
			if t := w.Generation().Type(key); w.closed() && w.writes(kind, t, n) {
				entries += t.holds(kind, n)
			}
		}
	}
	return entries
}

// Withheld returns the number of names of a source whose newest state is withheld from the rest.
func (v *View) Withheld(source int) int { return int(v.index.sources[source].withheld.Load()) }
