package cache

import (
	"time"
)

// A branch is one series of generations that a writer makes: those of one view. It holds the state that the writer needs in
// addition to the newest generation to make the next one.
//
// The writer edits the view of the rest, the clients in no cohort. The views of cohorts follow it name by name, except in
// names in which they differ, because readers were shown another state of these (Writer.RestateCohort).
type branch struct {
	view               *View
	tombstones         map[string][]tombstone // by type URL or collection, oldest first
	due                deadlines
	dueAfterCompaction int // length of due after outdated items were last dropped

	// aliases has the other names under which the set of names stores a resource, by type URL and resource name.
	// Guarded by index.mu.
	aliases map[string]map[string][]*Name

	apart map[*Name]*indexType // names whose state differs from that of the rest; nil for the rest
}

func newBranch(view *View) *branch {
	return &branch{view: view, tombstones: make(map[string][]tombstone), aliases: make(map[string]map[string][]*Name)}
}

// A tombstone is a removal from the wildcard set that some streams may not have sent yet.
type tombstone struct {
	name *Name
	seq  Seq
	at   time.Time
}

// generation returns the newest generation of a branch.
func (b *branch) generation() *Generation { return b.view.Generation() }

// rest returns the branch that the writer edits, which the cohorts follow.
func (w *Writer) rest() *branch { return w.branches[len(w.branches)-1] }

// cohorts returns the branches of the cohorts.
func (w *Writer) cohorts() []*branch { return w.branches[:len(w.branches)-1] }

// writes reports whether the entry of a name in one of a type's sets belongs to the source of the writer.
func (w *Writer) writes(kind Kind, t *Type, n *Name) bool {
	if kind == Wildcard {
		return t.source == w.source
	}
	return n.source == w.source
}

// countEntries returns the number of entries of a name in the generations of all views. The index must be locked.
func (v *View) countEntries(key string, n *Name) (entries int) {
	for _, kind := range kinds {
		for _, of := range v.views {
			entries += of.Generation().Type(key).countEntries(kind, n)
		}
	}
	return entries
}

// Withheld returns the number of names of a source whose newest state is withheld from the rest.
func (v *View) Withheld(source int) int { return int(v.index.sources[source].withheld.Load()) }

// RecordWithheld records the number of names whose newest state is withheld from the rest, in front of the writer.
func (w *Writer) RecordWithheld(n int) { w.view.index.sources[w.source].withheld.Store(int64(n)) }

// sourceIn returns the state of the source as the readers of a branch see it. It has no target if that has changed while the
// branch differs from the rest: the resources that readers have may come from another address.
func (w *Writer) sourceIn(b *branch, state Source) Source {
	if old := b.generation().sources[w.source]; len(b.apart) > 0 && state.Target != old.Target {
		state.Target = ""
	}
	return state
}

// setSource records the state of the source in all generations. The index must be locked.
func (w *Writer) setSource(state Source, reconnected bool) {
	for _, b := range w.branches {
		generation := *b.generation()
		*generation.mutableSource(w.source) = w.sourceIn(b, state)
		if reconnected {
			generation.originChanges++
		}
		b.view.current.Store(&generation)
	}
}
