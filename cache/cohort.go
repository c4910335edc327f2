package cache

import (
	"slices"
)

// follow applies an edit of the rest to the cohorts, and returns all edits to publish. The slice is valid until the next call.
func (w *Writer) follow(ed *edit) []*edit {
	w.passed = append(w.passed[:0], ed)
	if len(w.branches) == 1 {
		return w.passed
	}
	if ed.branch != w.rest() {
		w.settle(ed, w.rest().generation().Type(ed.typ.URL), ed.txn.touched)
		return w.passed
	}
	for _, n := range ed.txn.touched {
		w.edited = append(w.edited, Edited{ed.typ.URL, n.text})
	}
	for i := range w.cohorts() {
		if to := w.followIn(i, ed); to != nil {
			w.passed = append(w.passed, to)
		}
	}
	return w.passed
}

// followIn returns the edit with which a cohort follows an edit of the rest; nil if it changes nothing.
func (w *Writer) followIn(i int, ed *edit) *edit {
	b, touched := w.branches[i], ed.txn.touched
	begun, from := ed.cohorts != nil && ed.cohorts[i] != nil, w.sourceIn(b, ed.gen.sources[w.source])
	shown := b.generation()
	if !begun && len(touched) == 0 && from == shown.sources[w.source] && !w.differsAsSet(shown.Type(ed.typ.URL), ed.typ) {
		return nil
	}
	before, was := w.rest().generation().Type(ed.typ.URL), shown.Type(ed.typ.URL)
	to := ed.cohortEdit(i)
	if touched = append(touched[:len(touched):len(touched)], to.txn.touched...); ed.typ.source == w.source {
		to.wildcardChanged = to.wildcardChanged || w.differsAsSet(to.typ, ed.typ)
		to.typ.Phase, to.typ.Restored, to.typ.Presumed = ed.typ.Phase, ed.typ.Restored, ed.typ.Presumed
	}
	for _, n := range touched {
		to.followName(ed.typ, n, was, before)
	}
	w.settle(to, ed.typ, touched)
	for _, kind := range kinds {
		to.editSet(kind).followVersion(ed.typ.Set(kind))
	}
	*to.gen.mutableSource(w.source) = from
	return to
}

// followName gives a name of a cohort the state that the rest has. was and before are what the cohort and the rest saw.
func (ed *edit) followName(rest *Type, n *Name, was, before *Type) {
	for _, kind := range kinds {
		if of := ed.editSet(kind); ed.w.writes(kind, rest, n) {
			of.follow(rest, n, !was.agreesOn(kind, before, n) || of.hides(rest, n))
		}
	}
}

// followVersion gives a cohort's set the version that the set of the rest has of the same content.
func (to setEdit) followVersion(rest *Set) {
	if to.set.system == "" || to.set.sum == rest.sum {
		to.set.system = rest.system
	}
	to.compact()
}

// differsAsSet reports whether the sets of a type that readers of a cohort see are known in another way than those of the rest:
// how complete they are, or the version of the origin in which they have the same content.
func (w *Writer) differsAsSet(shown, rest *Type) bool {
	if rest.source == w.source &&
		(shown.Phase != rest.Phase || shown.Restored != rest.Restored || shown.Presumed != rest.Presumed) {
		return true
	}
	return slices.ContainsFunc(kinds[:], func(kind Kind) bool {
		a, b := shown.Set(kind), rest.Set(kind)
		return (kind == ByName || rest.source == w.source) && a.sum == b.sum && a.system != b.system
	})
}

// follow gives a name of a cohort's set the state that the rest has. If the two differed before, readers keep another state that
// they were shown; for a type that does not wait, this was a removal, and the resource is back.
func (to setEdit) follow(rest *Type, n *Name, differed bool) {
	newest := rest.statement(to.kind, n, n.text)
	nothing := newest.entry == nil && newest.Err == nil && to.typ.Errors(to.kind).Get(n) == nil
	keeps := differed && !to.w.restoring && to.typ.HasLastGood(to.kind) && to.w.view.Waits(resourceType(to.typ.URL))
	switch shown := to.set.Get(n); {
	case keeps, nothing && (to.kind == ByName || !shown.Present()):
	case newest.dropsContentOf(shown): // restated, it would be kept for another uncachedTTL
		to.dropContent(shown)
	default:
		response{setEdit: to}.restate(n, newest)
	}
}

// hides reports whether readers of a cohort see a member that they were shown in place of the first state of a name that the rest
// has by name: to them, it is a change.
func (to setEdit) hides(rest *Type, n *Name) bool {
	if to.kind == Wildcard || to.branch.apart[n] == nil || to.set.Get(n) != nil {
		return false
	}
	return !response{setEdit: to}.admitsFirst(n, rest.statement(to.kind, n, n.text))
}

// dropsContentOf reports whether a statement has the content of an entry, which it has dropped since.
func (s *Statement) dropsContentOf(shown *Entry) bool {
	return s.Resource != nil && s.Resource.ContentDropped() && shown.hasContentOf(s.Resource) && !shown.Resource.ContentDropped()
}

// settle records in which of these names of a type a cohort differs from the rest, after an edit of the cohort.
func (w *Writer) settle(ed *edit, rest *Type, names []*Name) {
	for _, n := range names {
		if w.agree(ed.typ, rest, n) {
			delete(ed.branch.apart, n)
			ed.index.release(n)
		} else {
			ed.branch.apart[n] = ed.index
		}
	}
}

// agree reports whether readers of two versions of a type see the same state of a name.
func (w *Writer) agree(a, b *Type, n *Name) bool {
	return !slices.ContainsFunc(kinds[:], func(kind Kind) bool { return w.writes(kind, b, n) && !a.agreesOn(kind, b, n) })
}

// agreesOn is agree for one of the sets of the type.
func (t *Type) agreesOn(kind Kind, o *Type, n *Name) bool {
	a, b := t.statement(kind, n, n.text), o.statement(kind, n, n.text)
	return a.Same(&b)
}

// Apart returns, by type URL or collection, the names in which a cohort differs from the rest.
func (w *Writer) Apart(cohort int) map[string][]string {
	w.view.index.mu.Lock()
	defer w.view.index.mu.Unlock()
	all := make(map[string][]string)
	for n, t := range w.branches[cohort].apart {
		all[t.url] = append(all[t.url], n.text)
	}
	return all
}

// An Edited resource is one whose state the rest sees has changed.
type Edited struct{ Key, Name string }

// TakeEdited returns what was edited since the last call, in a view with cohorts. It may have duplicates.
func (w *Writer) TakeEdited() []Edited {
	all := w.edited
	w.edited = nil
	return all
}
