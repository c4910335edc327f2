package cache

import (
	"iter"
	"time"
)

// A branch is one series of generations that a writer makes: those of a view, or those of latest behind a closed gate.
// It holds the state that the writer needs in addition to the newest generation to make the next one.
type branch struct {
	view               *View                  // nil for latest behind a closed gate
	gen                *Generation            // the newest generation; nil if it is the generation of view
	tombstones         map[string][]tombstone // by type URL or collection, oldest first
	due                deadlines
	dueAfterCompaction int // length of due after outdated items were last dropped

	// aliases has the other names under which the set of names stores a resource, by type URL and resource name.
	// Guarded by index.mu.
	aliases map[string]map[string][]*Name
}

func newBranch(view *View) branch {
	return branch{view: view, tombstones: make(map[string][]tombstone), aliases: make(map[string]map[string][]*Name)}
}

// A tombstone is a removal from the wildcard set that some streams may not have sent yet.
type tombstone struct {
	name *Name
	seq  Seq
	at   time.Time
}

// generation returns the newest generation of a branch.
func (b *branch) generation() *Generation {
	if b.gen != nil {
		return b.gen
	}
	return b.view.Generation()
}

// A gate controls which changes of a writer's source are visible to readers. The writer always edits the newest state
// (latest). Each view has the state that its readers see (served). Without cohorts, the gate is open: both are the
// generation of the view. With cohorts it is closed: latest is a separate generation, and the gate decides which names of
// an edit pass to which view.
//
// "The rest" are the clients in no cohort. A gate belongs to the writer's goroutine. Other goroutines may read latest
// while they hold index.mu.
type gate struct {
	w        *Writer
	latest   *branch   // &w.branch while the gate is open
	served   []*served // by cohort; that of the rest last
	branches []*branch // those of served, and latest if it is separate

	restoring bool // a snapshot is being restored: all of it passes, since it is the last good state
}

// A served is the state of a writer's source that the readers of one view see.
type served struct {
	*branch

	withheld map[*Name]withheldName // names whose state differs from that in latest
	waiting  int                    // number of withheld names that wait for Show

	withdrawn map[withdrawnChange]struct{} // changes withdrawn since the last ShowAs; see recordWithdrawn
}

// A withheldName is a difference between latest and what readers see.
type withheldName struct {
	typ   *indexType
	waits bool // only Show ends it
}

// A withdrawnChange is a change of the preceding edition that the next edition does not have: the resource has the
// state of the rest again.
type withdrawnChange struct {
	key, text string
	kind      Kind
}

func newGate(w *Writer) gate {
	g := gate{w: w, latest: &w.branch}
	for _, v := range w.view.views {
		b := &w.branch
		if v != w.view {
			created := newBranch(v)
			b = &created
		}
		g.served = append(g.served, &served{branch: b, withheld: make(map[*Name]withheldName)})
		g.branches = append(g.branches, b)
	}
	if w.view.cfg.Cohorts > 0 {
		latest, generation := newBranch(nil), *w.view.current.Load()
		latest.gen = &generation
		g.latest, g.branches = &latest, append(g.branches, &latest)
	}
	return g
}

// closed reports whether the gate is closed: latest is another generation than those that readers see.
func (w *Writer) closed() bool { return w.latest != &w.branch }

// servedToRest returns the state that the rest sees: that of the writer's view.
func (g *gate) servedToRest() *served { return g.served[len(g.served)-1] }

// Generation returns the newest generation that the writer edits (latest). Readers see the generation of the view.
func (g *gate) Generation() *Generation { return g.latest.generation() }

// staging reports whether changes of some types wait for Show.
func (g *gate) staging() bool { return g.w.view.cfg.Cohorts > 0 }

// writtenEntries yields the entries of a type that belong to the source of the writer, including errors.
func (g *gate) writtenEntries(t *Type) iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		for _, kind := range kinds {
			for _, set := range []*Set{t.Set(kind), t.Errors(kind)} {
				for e := range set.Since(0) {
					if g.writes(kind, t, e.Name) && !yield(e) {
						return
					}
				}
			}
		}
	}
}

// writes reports whether the entry of a name in one of a type's sets belongs to the source of the writer.
func (g *gate) writes(kind Kind, t *Type, n *Name) bool {
	if kind == Wildcard {
		return t.source == g.w.source
	}
	return n.source == g.w.source
}

// countEntries returns the number of entries of a name in the generations of all views, and in latest behind closed
// gates. The index must be locked.
func (v *View) countEntries(key string, n *Name) (entries int) {
	for _, kind := range kinds {
		for _, of := range v.views {
			entries += of.Generation().Type(key).countEntries(kind, n)
		}
		for _, w := range v.writers {
			if t := w.Generation().Type(key); w.closed() && w.writes(kind, t, n) {
				entries += t.countEntries(kind, n)
			}
		}
	}
	return entries
}

// Withheld returns the number of names of a source whose newest state is withheld from the rest.
func (v *View) Withheld(source int) int {
	from := v.index.sources[source]
	return int(from.withheld.Load() + from.listed.Load())
}

// RecordListed records the number of names whose newest state an operator withholds in front of the writer.
func (w *Writer) RecordListed(n int) { w.view.index.sources[w.source].listed.Store(int64(n)) }
