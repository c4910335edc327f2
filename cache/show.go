package cache

import (
	"cmp"
	"slices"
	"time"
)

// Show shows the readers of a cohort's view the waiting changes as they are in an edition. All other state remains
// unchanged; if the writer is frozen, that includes changes that would pass otherwise. Show has no effect if an earlier
// process made the edition.
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

// Freeze closes the gate: until Thaw, readers see the present state. The writer's Generation continues to change.
// Freeze copies the state of the writer except the resources. Of the changes until Thaw, only the last one of each name
// is kept. Freeze has no effect on a frozen writer.
//
// The present state is that of returning clients, too, whatever they report. Freeze wakes all readers, since a removal
// that waited for the source may be sent now (Generation.Absent, Generation.SetFrozen).
//
// The following changes pass a closed gate:
//
//   - first state: the first response for a name, even that it does not exist, and new members until their set is
//     confirmed;
//   - uncacheable state: content that may not be cached (R125), and the response that an alias names no resource
//     (B.20), since clients make the relay request these again;
//   - TTLs, which clients measure themselves: a resource expires after the TTL of the source, even if the source has
//     removed it meanwhile (R107);
//   - the connection state of the source;
//   - the removal of names without subscribers.
func (g *gate) Freeze() {
	if g.Frozen() {
		return
	}
	x := &g.w.view.index
	x.mu.Lock()
	g.close()
	g.frozenSince = time.Now()
	g.setSource(g.w.Source(), false)
	wakes := x.openWatches()
	x.mu.Unlock()
	for _, watch := range wakes {
		watch.wake()
	}
}

// close separates latest from the served generations, unless the gate is closed already. The index must be locked.
func (g *gate) close() {
	if g.w.closed() {
		return
	}
	original := g.w.view.Generation()
	g.latest = g.w.fork(original)
	g.branches = append(g.branches, g.latest)
	for t := range original.types.since(0) {
		for e := range g.writtenEntries(t) {
			e.Name.entries++
		}
	}
}

// RollBack shows readers an edition of an earlier generation (PinFormer) until Thaw. Until then, changes of the types
// for which Config.Waits is true wait, as with cohorts, and so do removals of endpoints and Secrets. All other changes
// pass. RollBack ends a freeze, and sets Source.RolledBack to since. The edition is nil if the view was restored from a
// snapshot of the earlier generation.
//
// A returning client is served the same state as others, even if it received newer resources from another relay.
func (g *gate) RollBack(e *Edition, since time.Time) {
	x := &g.w.view.index
	x.mu.Lock()
	g.close()
	g.frozenSince, g.rolledBack = time.Time{}, since
	g.setSource(g.w.Source(), false)
	wakes := x.openWatches() // views that copy from this one follow its source
	x.mu.Unlock()
	for _, watch := range wakes {
		watch.wake()
	}
	if e != nil {
		g.w.Show(g.w.view.cfg.Cohorts, e)
	}
}

// Thaw ends Freeze and RollBack: it shows readers latest, except changes that wait for a cohort, and opens the gate.
// Readers see only the last state of each name. Thaw has no effect if the writer is neither frozen nor rolled back.
func (g *gate) Thaw() {
	if !g.canThaw() {
		return
	}
	g.frozenSince, g.rolledBack = time.Time{}, time.Time{}
	for _, s := range g.served {
		g.show(s, g.targetOf(s, s.generation()))
		if g.w.view.cfg.Cohorts > 0 {
			g.passWithheld(s)
		}
	}
	g.open()
	g.w.reportWaiting()
}

// open ends a freeze. Without cohorts, it merges latest and served into one generation. It wakes all readers, since views that
// copy from this one follow its source: otherwise they would stay frozen until the next change.
func (g *gate) open() {
	w, x := g.w, &g.w.view.index
	x.mu.Lock()
	latest := g.latest.gen
	if w.view.cfg.Cohorts == 0 {
		*g = newGate(w)
		for t := range latest.types.since(0) {
			for e := range g.writtenEntries(t) {
				e.Name.entries--
				x.types[t.URL].release(e.Name)
			}
		}
		x.sources[w.source].withheld.Store(0)
	}
	g.setSource(latest.sources[w.source], false)
	wakes := x.openWatches()
	x.mu.Unlock()
	for _, watch := range wakes {
		watch.wake()
	}
}

// passWithheld shows readers the withheld changes that pass now.
func (g *gate) passWithheld(s *served) {
	for t := range g.Generation().types.since(0) {
		ed := g.w.beginOn(s.branch, t.URL)
		names := s.withheldOf(ed.index)
		g.passFrom(ed, g.Generation(), t, names)
		g.withhold(s, ed, t, names)
		g.w.publish(ed)
	}
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
