package cache

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// Show shows the readers of a cohort's view an edition: its names as they are in the edition, all others as the rest sees
// them. It leaves out wildcard sets that were dropped since, because the origin may have removed their resources, and
// names without subscribers. Show has no effect if an earlier process made the edition.
func (w *Writer) Show(cohort int, e *Edition) {
	if e.types == nil {
		return
	}
	s := w.served[cohort]
	w.recordWithdrawn(s, w.show(s, w.statesIn(s, e)))
}

// ShowAs shows the readers of a cohort's view the state that the readers of another cohort's view are served. Resources
// whose change an earlier edition had withdrawn are sent again: a client that rejected a response may still have the
// withdrawn content.
func (w *Writer) ShowAs(cohort, of int) {
	s := w.served[cohort]
	w.resendWithdrawn(s, w.show(s, w.statesAs(s, w.served[of])))
}

// shownStates are the states of names of one type that are about to be shown.
type shownStates struct {
	systems [2]string           // versions of the origin's responses, by Kind
	names   map[string][2]state // by Kind
}

// stateOf returns the states of the names of a type in which the readers of a view see other state than in t.
func (w *Writer) stateOf(s *served, t *Type, names []*Name) *shownStates {
	to := &shownStates{[2]string{t.Wildcard.system, t.ByName.system}, make(map[string][2]state, len(names))}
	for _, n := range names {
		w.addState(s, to, t.URL, n.text, w.statesOf(t, n))
	}
	return to
}

// statesAs returns the states of the names in which the readers of a view see other state than those of another view.
func (w *Writer) statesAs(s, of *served) map[string]*shownStates {
	w.view.index.mu.Lock()
	defer w.view.index.mu.Unlock()
	all := make(map[string]*shownStates)
	for key, names := range w.differing(s, of.generation(), of) {
		all[key] = w.stateOf(s, of.generation().Type(key), names)
	}
	return all
}

// statesIn returns the states of the names in which the readers of a view see other state than in an edition.
func (w *Writer) statesIn(s *served, e *Edition) map[string]*shownStates {
	all := w.statesAs(s, w.servedToRest())
	w.view.index.mu.Lock()
	defer w.view.index.mu.Unlock()
	for key, pinned := range e.types {
		if w.view.index.types[key] == nil {
			continue
		}
		to := all[key]
		if to == nil {
			to = &shownStates{names: make(map[string][2]state, len(pinned.names))}
			all[key] = to
		}
		to.systems = pinned.is
		dropped := pinned.era != w.view.index.types[key].era
		for _, n := range pinned.names {
			of, asRest := n.is, to.names[n.text]
			if dropped || !of[Wildcard].exists {
				of[Wildcard] = asRest[Wildcard]
			}
			if n.name == nil || n.name.released || !of[ByName].exists {
				of[ByName] = asRest[ByName]
			}
			delete(to.names, n.text)
			w.addState(s, to, key, n.text, of)
		}
	}
	return all
}

// addState adds the state of a name to those to show, unless readers have it. The index must be locked.
func (w *Writer) addState(s *served, to *shownStates, key, text string, of [2]state) {
	n := w.view.index.types[key].find(text)
	shown, latest := s.generation().Type(key), w.Generation().Type(key)
	for _, kind := range kinds {
		of[kind] = w.currentState(of[kind], latest, kind, n)
	}
	// If only removals of the type wait, the state decides whether the resource exists. Its content passes.
	existed, exists := shown.present(n), lastResource(of) != nil
	removalWaits := w.changeWaits(resourceType(key), true) && !latest.present(n)
	switch {
	case w.changeWaits(resourceType(key), false), removalWaits && exists != existed:
	case n == nil, removalWaits && exists:
		return
	default:
		of = w.statesOf(latest, n)
	}
	if n == nil || !latest.states(ByName, n) {
		of[ByName] = state{} // the name was forgotten
	}
	if of = shown.without(of, n); of[Wildcard].exists || of[ByName].exists {
		to.names[text] = of
	}
}

// without returns those states of a name that readers of the type do not see yet.
func (t *Type) without(of [2]state, n *Name) [2]state {
	for _, kind := range kinds {
		if of[kind].sameAs(kind, t.state(kind, n)) {
			of[kind] = state{}
		}
	}
	return of
}

// currentState returns the state of a name, as readers may be shown it now. Resources that had expired when the state was
// read, or whose content may not be cached, get the state of latest, and all others its TTL, which may have ended.
func (w *Writer) currentState(s state, latest *Type, kind Kind, n *Name) state {
	newest := latest.state(kind, n)
	switch {
	case s.entry == nil:
		return s
	case s.entry.Expired || !cacheable(s.entry):
		return newest
	case s.entry.Present() && newest.entry.Present() && !s.entry.Deadline().Equal(newest.entry.Deadline()):
		renewed := *s.entry
		renewed.setDeadline(newest.entry.Deadline())
		s.entry = &renewed
	}
	if s.entry.Expires() && !time.Now().Before(s.entry.Deadline()) {
		s.entry = &Entry{Name: n, Expired: true}
	}
	return s
}

// show shows readers the states of names. Additions and changes are shown first, in the order in which types are sent, then
// removals in reverse order, so that no resource refers to a removed one (B.11). The last type, and one whose resources
// exclude one another, is changed in one generation. It returns the names, by type URL or collection.
func (w *Writer) show(s *served, all map[string]*shownStates) (shown map[string][]*Name) {
	maps.DeleteFunc(all, func(_ string, of *shownStates) bool { return len(of.names) == 0 })
	shown = make(map[string][]*Name)
	order := inOrder(all)
	together := func(key string) bool {
		return key == order[len(order)-1] || wire.HasKeys(resourceType(key))
	}
	for _, key := range order {
		w.showType(s, key, all[key], shown, true, together(key))
	}
	for _, key := range slices.Backward(order) {
		if !together(key) {
			w.showType(s, key, all[key], shown, false, true)
		}
	}
	if s == w.servedToRest() {
		w.compareAll()
	}
	w.reportWaiting()
	return shown
}

// showType shows readers those states of a type in which a resource exists, those in which it does not, or both. It adds
// their names to shown.
func (w *Writer) showType(s *served, key string, of *shownStates, shown map[string][]*Name, present, absent bool) {
	ed, latest := w.beginOn(s.branch, key), w.Generation()
	for _, kind := range kinds {
		names := slices.SortedFunc(maps.Keys(of.names), func(a, b string) int {
			return cmp.Or(compareRemovals(of.names[a][kind], of.names[b][kind]), cmp.Compare(a, b))
		})
		re := newResponse(ed.editSet(kind), nil)
		for _, text := range names {
			state := of.names[text][kind]
			if exists := state.entry.Present(); state.exists && (exists && !present || !exists && !absent) {
				continue
			}
			n := re.restatable(text)
			if n == nil {
				continue
			}
			if state.exists {
				re.restate(n, state.statement(kind, text))
			}
			re.pass(latest.Type(key), n) // TTLs and first responses
			shown[key] = append(shown[key], n)
		}
		re.set.system = of.systems[kind]
		re.compact()
	}
	w.withhold(s, ed, latest.Type(key), shown[key]) // last, since it releases names without entries
	w.publish(ed)
}

// compareRemovals orders states of resources before those in which they do not exist.
func compareRemovals(a, b state) int {
	switch exists := a.entry.Present(); {
	case exists == b.entry.Present():
		return 0
	case exists:
		return -1
	}
	return 1
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
				if shown.Set(kind).Get(n) == nil || !w.agrees(shown, rest, n) {
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
