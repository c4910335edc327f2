package cache

import (
	"cmp"
	"maps"
	"slices"

	"github.com/xdstender/tender/cache/wire"
)

// passEdit stores an edit, and returns the edits of the generations that readers see, without views to which no change
// passes. The slice is valid until the next call.
func (g *gate) passEdit(ed *edit) []*edit {
	w := g.w
	w.passed = w.passed[:0]
	if ed.branch != g.latest || !g.w.closed() {
		w.passed = append(w.passed, ed)
		return w.passed
	}
	for _, tomb := range ed.branch.tombstones[ed.typ.URL] { // no reader needs the tombstones of latest
		if e := ed.typ.Wildcard.Get(tomb.name); e != nil && !e.Present() {
			ed.typ.Wildcard.drop(ed.txn, e)
			tomb.name.entries--
		}
	}
	delete(ed.branch.tombstones, ed.typ.URL)
	ed.branch.gen = ed.gen
	for i := range g.served {
		if s := g.passTo(i, ed); s != nil {
			w.passed = append(w.passed, s)
		}
	}
	return w.passed
}

// passTo returns the edit of one view's generation with the changes of an edit of latest that pass the gate; nil if
// none passes.
func (g *gate) passTo(i int, ed *edit) *edit {
	w, s := g.w, g.served[i]
	names, shown := ed.txn.touched, s.view.Generation()
	begun, typ := ed.served != nil && ed.served[i] != nil, shown.Type(ed.typ.URL)
	if !begun && shown.sources[w.source] == g.servedSource(s, shown, ed.gen) && !g.completes(typ, ed.typ) {
		unchanged := &edit{w: w, branch: s.branch, gen: shown, typ: typ, index: ed.index}
		if !g.passesAny(unchanged, ed.typ, names) && !g.renames(typ, ed.typ) { // the usual case for changes that wait
			g.withhold(s, unchanged, ed.typ, names)
			return nil
		}
	}
	to := ed.servedEdit(i)
	g.passNames(s, to, ed, append(names[:len(names):len(names)], to.txn.touched...))
	*to.gen.mutableSource(w.source) = g.servedSource(s, shown, ed.gen)
	return to
}

// passNames applies those changes of an edit of latest that pass the gate to an edit of what readers see.
func (g *gate) passNames(s *served, ed, latest *edit, names []*Name) {
	t := latest.typ
	for _, n := range names {
		for _, kind := range kinds {
			if g.writes(kind, t, n) {
				ed.editSet(kind).pass(t, n)
			}
		}
	}
	if t.source == g.w.source && g.completes(ed.typ, t) {
		names = append(names, s.withheldOf(ed.index)...)
		if ed.typ.Presumed, ed.wildcardChanged = t.Presumed, true; t.Phase > ed.typ.Phase && !t.hasWholeError() {
			ed.clearWholeError()
		}
		ed.typ.Phase, ed.typ.Restored = t.Phase, t.Restored
	}
	g.withhold(s, ed, t, names)
	for _, kind := range kinds {
		to, newest := ed.editSet(kind), t.Set(kind)
		if to.set.system == "" || to.set.sum == newest.sum {
			to.set.system = newest.system
		}
		to.compact()
	}
}

// withheldOf returns the withheld names of a type.
func (s *served) withheldOf(t *indexType) (names []*Name) {
	for n, held := range s.withheld {
		if held.typ == t {
			names = append(names, n)
		}
	}
	return names
}

// completes reports whether the wildcard set of a type is more complete in latest than in the generation that readers
// see.
func (g *gate) completes(served, t *Type) bool {
	return t.Phase > served.Phase || t.Phase == served.Phase && t.Presumed && !served.Presumed
}

// servedSource returns the state of the writer's source that readers see. Target is empty if it has changed while
// changes are withheld: the resources that readers have may come from another address.
func (g *gate) servedSource(s *served, shown, latest *Generation) Source {
	old, source := shown.sources[g.w.source], latest.sources[g.w.source]
	if source.Target != old.Target && len(s.withheld) > 0 {
		source.Target = ""
	}
	return source
}

// setSource records the state of the source in all generations. The index must be locked.
func (g *gate) setSource(state Source, reconnected bool) {
	w := g.w
	latest := *g.Generation()
	*latest.mutableSource(w.source) = state
	if reconnected {
		latest.originChanges++
	}
	for _, s := range g.served {
		if s.branch == g.latest {
			continue
		}
		generation := *s.view.Generation()
		*generation.mutableSource(w.source) = g.servedSource(s, &generation, &latest)
		if reconnected {
			generation.originChanges++
		}
		s.view.current.Store(&generation)
	}
	if g.latest.gen == nil {
		w.view.current.Store(&latest)
	} else {
		g.latest.gen = &latest
	}
}

// A passage is the part of a name's newest state that passes the gate.
type passage int

const (
	passNothing passage = iota
	passDeadline
	passAll
)

// passes returns the part of a name's state in latest that passes the gate to a set that readers see.
func (to setEdit) passes(latest *Type, n *Name) passage {
	shown, newest := to.set.Get(n), latest.state(to.kind, n)
	nothing := newest.entry == nil && newest.err == nil && to.typ.Errors(to.kind).Get(n) == nil
	switch {
	case nothing && (to.kind == ByName || !shown.Present()):
		return passNothing
	case to.w.restoring, !to.waits(shown, newest.entry),
		response{setEdit: to}.admitsFirst(n, newest.statement(to.kind, n.text)):
		return passAll
	case shown.Present() && newest.entry.Present() && !shown.Deadline().Equal(newest.entry.Deadline()):
		return passDeadline
	}
	return passNothing
}

// pass applies the part of a name's state in latest that passes the gate.
func (to setEdit) pass(latest *Type, n *Name) {
	newest := latest.state(to.kind, n)
	switch re := (response{setEdit: to}); to.passes(latest, n) {
	case passAll:
		re.restate(n, newest.statement(to.kind, n.text))
	case passDeadline:
		re.renewShown(n, newest.entry.Deadline())
	}
}

// passesAny reports whether any change of names in an edit of latest passes to the edit of the generation that readers
// see. It changes neither edit.
func (g *gate) passesAny(served *edit, latest *Type, names []*Name) bool {
	return slices.ContainsFunc(names, func(n *Name) bool {
		return slices.ContainsFunc(kinds[:], func(kind Kind) bool {
			return g.writes(kind, latest, n) && served.editSet(kind).passes(latest, n) != passNothing
		})
	})
}

// renames reports whether a set in latest has the content that readers see, in another version of the origin.
func (g *gate) renames(served, latest *Type) bool {
	return slices.ContainsFunc(kinds[:], func(kind Kind) bool {
		shown, newest := served.Set(kind), latest.Set(kind)
		written := kind == ByName || latest.source == g.w.source
		return written && shown.sum == newest.sum && shown.system != newest.system
	})
}

// waits reports whether the change of an entry that readers see waits until Show.
func (to setEdit) waits(shown, newest *Entry) bool {
	return to.typ.hasLastGood(to.kind) && to.w.changeWaits(resourceType(to.typ.URL), shown.Present() && !newest.Present())
}

// differenceWaits reports whether the difference between the state of a name that readers see and latest remains until
// Show.
func (g *gate) differenceWaits(served, latest *Type, n *Name) bool {
	if !g.changeWaits(resourceType(cmp.Or(served.URL, latest.URL)), !latest.present(n)) {
		return false
	}
	return slices.ContainsFunc(kinds[:], func(kind Kind) bool {
		return served.hasLastGood(kind) && !g.agreesOn(kind, served, latest, n)
	})
}

// changeWaits reports whether a change of a type, or a removal, waits until Show.
func (g *gate) changeWaits(typeURL string, removal bool) bool {
	return g.staging() && (g.w.view.cfg.Waits(typeURL) || removal && wire.NeverOld(typeURL))
}

// present reports whether a resource of a name, which may be nil, exists in either set.
func (t *Type) present(n *Name) bool {
	return n != nil && (t.Wildcard.Get(n).Present() || t.ByName.Get(n).Present())
}

// differing returns, by type URL or collection, the names whose state differs between what the readers of a view see and
// another generation: latest, or that of another view, whose withheld names are those of other. The index must be locked.
func (g *gate) differing(s *served, from *Generation, other *served) map[string][]*Name {
	differ := make(map[string][]*Name)
	for _, of := range []*served{s, other} {
		for n, held := range of.withheld {
			if of == other && other != s {
				if _, both := s.withheld[n]; both {
					continue
				}
			}
			if key := held.typ.url; !g.agrees(s.generation().Type(key), from.Type(key), n) {
				differ[key] = append(differ[key], n)
			}
		}
		if s == other {
			break
		}
	}
	return differ
}

// states reports whether one of the type's sets has state of a name. If it has none, readers keep the first state that
// they were sent.
func (t *Type) states(kind Kind, n *Name) bool {
	if kind == Wildcard {
		return t.hasLastGood(Wildcard)
	}
	return t.ByName.Get(n) != nil || t.Errors(ByName).Get(n) != nil
}

// inOrder returns the type URLs and collections of a map in the order in which types are sent.
func inOrder[T any](of map[string]T) []string {
	return slices.SortedFunc(maps.Keys(of), func(a, b string) int {
		return cmp.Or(wire.Rank(resourceType(a))-wire.Rank(resourceType(b)), cmp.Compare(a, b))
	})
}

// withhold records which names of a type differ between the generation that readers see, of which ed is an edit, and
// latest.
func (g *gate) withhold(s *served, ed *edit, latest *Type, names []*Name) {
	for _, n := range names {
		if s.withheld[n].waits {
			s.waiting--
		}
		if g.agrees(ed.typ, latest, n) {
			delete(s.withheld, n)
			ed.index.release(n)
			continue
		}
		waits := g.differenceWaits(ed.typ, latest, n)
		if s.withheld[n] = (withheldName{ed.index, waits}); waits {
			s.waiting++
		}
	}
	if s == g.servedToRest() {
		g.w.view.index.sources[g.w.source].withheld.Store(int64(len(s.withheld)))
	}
}

// agrees reports whether readers see the newest state of a name.
func (g *gate) agrees(served, t *Type, n *Name) bool {
	return !slices.ContainsFunc(kinds[:], func(kind Kind) bool { return !g.agreesOn(kind, served, t, n) })
}

// agreesOn is agrees for one of the sets of the type.
func (g *gate) agreesOn(kind Kind, served, t *Type, n *Name) bool {
	if !g.writes(kind, t, n) {
		return true
	}
	shown, newest := served.Set(kind).Get(n), t.Set(kind).Get(n)
	shownErr, err := served.Errors(kind).Get(n), t.Errors(kind).Get(n)
	switch {
	case shown.Present() != newest.Present(), kind == ByName && (shown == nil) != (newest == nil),
		(shownErr == nil) != (err == nil):
		return false
	case newest.Present() && (shown.Resource.Key() != newest.Resource.Key() ||
		!shown.Resource.SameContent(newest.Resource)):
		return false
	default:
		return err == nil || err.Err.Same(shownErr.Err)
	}
}
