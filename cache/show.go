package cache

import (
	"cmp"
	"slices"
)

// Show shows the readers of a cohort's view the waiting changes as they are in an edition. All other state remains
// unchanged. Show has no effect if an earlier process made the edition.
func (w *Writer) Show(cohort int, e *Edition) {
	if e.generation != nil {
		w.recordWithdrawn(w.served[cohort], w.showWaiting(cohort, e.generation))
	}
}

// ShowAs is Show for the state that the readers of another cohort's view are served. Resources whose change an earlier
// edition had withdrawn are sent again: a client that rejected a response may still have the withdrawn content.
func (w *Writer) ShowAs(cohort, of int) {
	w.resendWithdrawn(w.served[cohort], w.showWaiting(cohort, w.served[of].generation()))
}

// showWaiting shows a cohort the waiting changes as they are in a generation. It returns the names that differed, by
// type URL or collection.
func (w *Writer) showWaiting(cohort int, generation *Generation) (differ map[string][]*Name) {
	s := w.served[cohort]
	generation, created := w.refresh(generation)
	differ = w.show(s, w.targetOf(s, generation))
	w.releaseNames(created)
	if s == w.servedToRest() {
		w.compareAll()
	}
	w.reportWaiting()
	return differ
}

// recordWithdrawn records the changes that were withdrawn when an edition was shown, given the names that it changed. A
// promotion clears the record.
func (w *Writer) recordWithdrawn(s *served, changed map[string][]*Name) {
	if s == w.servedToRest() {
		for _, s := range w.served {
			s.withdrawn = nil
		}
		return
	}
	for key, names := range changed {
		shown, rest := s.generation().Type(key), w.servedToRest().generation().Type(key)
		for _, n := range names {
			for _, kind := range kinds {
				if shown.set(kind).Get(n) == nil || !w.agrees(shown, rest, n) {
					continue
				}
				if s.withdrawn == nil {
					s.withdrawn = make(map[withdrawnChange]struct{})
				}
				s.withdrawn[withdrawnChange{key, n.text, kind}] = struct{}{}
			}
		}
	}
}

// resendWithdrawn resends the recorded resources, except those that have just changed.
func (w *Writer) resendWithdrawn(s *served, changed map[string][]*Name) {
	for t := range s.withdrawn {
		if !slices.ContainsFunc(changed[t.key], func(n *Name) bool { return n.text == t.text }) {
			w.resend(s, t)
		}
	}
	s.withdrawn = nil
}

// resend gives a resource, or its removal, a new position, so that streams send it although it has not changed.
func (w *Writer) resend(s *served, t withdrawnChange) {
	ed := w.beginOn(s.branch, t.key)
	n, to := w.view.index.name(ed.index, t.text), ed.editSet(t.kind)
	switch {
	case to.set.Get(n) != nil:
		to.resendEntry(n)
	case t.kind == Wildcard && ed.typ.hasLastGood(Wildcard): // the tombstone was dropped
		to.resendAbsence(n)
	default:
		ed.index.release(n)
	}
	to.compact()
	w.publish(ed)
}

// show shows the readers of a view the state of each name of the writer's source in its target. Additions and changes
// are shown first, in the order in which types are sent, then removals in reverse order, so that no resource refers to
// a removed one (B.11). The last type is changed in one generation. It returns the names that differed, by type URL or
// collection.
func (g *gate) show(s *served, to target) (differ map[string][]*Name) {
	differ = g.differingNames(s, to)
	order := inOrder(differ)
	last := len(order) - 1
	for i, key := range order {
		g.showType(s, key, to, differ[key], true, i == last)
	}
	for _, key := range slices.Backward(order[:max(last, 0)]) {
		g.showType(s, key, to, differ[key], false, true)
	}
	return differ
}

// showFrom shows readers the state of a name in its target, to.from. State that passes the gate is taken from latest.
func (to setCopier) showFrom(latest *Generation, n *Name) {
	if to.from == latest || to.t.states(to.kind, n) {
		to.showThawed(n)
	}
	if to.from != latest {
		setCopier{to.setEdit, latest, latest.Type(to.typ.URL)}.pass(n) // TTLs and first responses
	}
}

// showType shows the readers of a view the state of names of a type in their targets: of the names that are present
// there, of those that are absent, or of both.
func (g *gate) showType(s *served, key string, target target, names []*Name, present, absent bool) {
	ed := g.w.beginOn(s.branch, key)
	of := target(key, nil).Type(key)
	var shown []*Name
	if present {
		shown = g.showNames(ed, target, names, true)
	}
	if of.source == g.w.source && !of.hasWholeError() {
		ed.clearWholeError()
	}
	if absent {
		g.showNames(ed, target, names, false)
		shown = names // present names were shown before
	}
	for _, kind := range kinds {
		to := ed.editSet(kind)
		to.set.system = of.set(kind).system
		to.compact()
	}
	g.withhold(s, ed, g.Generation().Type(key), shown) // last, since it releases names without entries
	g.w.publish(ed)
}

// showNames shows the names of a type that are present in their targets, or with present false, those that are absent.
// It returns the names that it has shown.
func (g *gate) showNames(ed *edit, target target, names []*Name, present bool) (shown []*Name) {
	key, latest := ed.typ.URL, g.Generation()
	to := target(key, nil).Type(key)
	for _, kind := range kinds {
		slices.SortFunc(names, func(a, b *Name) int {
			return cmp.Or(cmp.Compare(to.set(kind).Get(a).seq(), to.set(kind).Get(b).seq()), a.Compare(b))
		})
		for _, n := range names {
			from := target(key, n)
			t := from.Type(key)
			forgotten := kind == ByName && !latest.Type(key).states(ByName, n)
			if !g.writes(kind, t, n) || t.set(kind).Get(n).Present() != present || forgotten {
				continue
			}
			shown = append(shown, n)
			setCopier{ed.editSet(kind), from, t}.showFrom(latest, n)
		}
	}
	return shown
}
