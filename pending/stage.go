package pending

import (
	"slices"

	"github.com/xdstender/tender/cache"
)

// A withdrawnChange is a change of the preceding edition that the next edition does not have: the resource has the state of the
// rest again.
type withdrawnChange struct {
	cohort int
	set    setKey
	name   string
}

// A showing is what readers of a view are about to be shown.
type showing struct {
	systems map[string][2]string // versions of the origin's responses, by type URL or collection and by Kind
	states  map[resourceID]states
}

// Show shows the readers of a cohort's view editions, none of which changes a name of another: their names as they are in the
// editions, all others as the rest sees them. The number of cohorts stands for the rest. It leaves out wildcard sets that were
// dropped since, because the origin may have removed their resources, and names without subscribers. An edition that an earlier
// process made has no effect.
func (l *List) Show(cohort int, all ...*Edition) {
	if !slices.ContainsFunc(all, func(e *Edition) bool { return e.types != nil }) {
		return
	}
	shown := l.show(cohort, l.statesIn(cohort, all))
	l.passFirst(cohort, shown)
	if cohort == l.rest() {
		l.withdrawn = nil
		l.endShown()
		if l.beforeFreeze != nil {
			l.compareAll()
		}
	} else {
		l.recordWithdrawn(cohort, shown)
	}
	l.recordStopped()
}

// ShowAsRest shows the readers of a cohort's view the state that the rest is served, except for editions that it is still shown.
// Resources whose change an earlier edition had withdrawn are sent again: a client that rejected a response may still have the
// withdrawn content.
func (l *List) ShowAsRest(cohort int, except ...*Edition) {
	shown := l.show(cohort, l.statesIn(cohort, except))
	l.passFirst(cohort, shown)
	for of := range l.withdrawn {
		if of.cohort != cohort {
			continue
		}
		if !shown[resourceID{of.set.key, of.name}] {
			l.w.Resend(cohort, of.set.kind, of.set.key, of.name)
		}
		delete(l.withdrawn, of)
	}
}

// statesAsRest returns the states of the names in which the readers of a view see other state than the rest.
func (l *List) statesAsRest(cohort int) showing {
	to := showing{make(map[string][2]string), make(map[resourceID]states)}
	if cohort == l.rest() {
		return to
	}
	for key, names := range l.w.Apart(cohort) {
		t := l.w.Generation().Type(key)
		to.systems[key] = [2]string{t.Wildcard.System(), t.ByName.System()}
		for _, name := range names {
			id := resourceID{key, name}
			l.add(cohort, to, id, l.shown(l.rest(), id))
		}
	}
	return to
}

// statesIn returns the states of the names in which the readers of a view see other state than in editions.
func (l *List) statesIn(cohort int, all []*Edition) showing {
	to := l.statesAsRest(cohort)
	for _, e := range all {
		for key, t := range e.types {
			if known, _ := l.w.View().HasType(key); known {
				to.systems[key] = t.is
				l.addEdited(cohort, to, key, t)
			}
		}
	}
	return to
}

// addEdited adds the states of a type or collection in an edition to those to show, which are as those of the rest.
func (l *List) addEdited(cohort int, to showing, key string, t *editedType) {
	dropped := t.era != l.w.Generation().Type(key).Era()
	for _, n := range t.names {
		id := resourceID{key, n.text}
		of, asRest := n.is, to.states[id]
		if dropped || !n.edits(cache.Wildcard) {
			of[cache.Wildcard] = asRest[cache.Wildcard]
		}
		if n.name == nil || n.name != l.w.View().FindName(key, n.text) || !of[cache.ByName].Exists() {
			of[cache.ByName] = asRest[cache.ByName]
		}
		delete(to.states, id)
		l.add(cohort, to, id, of)
	}
}

// Resend makes the readers of a cohort's view receive the names of an edition again that they are shown.
func (l *List) Resend(cohort int, e *Edition) {
	for key, t := range e.types {
		for _, n := range t.names {
			for kind := range n.is {
				if n.edits(cache.Kind(kind)) {
					l.w.Resend(cohort, cache.Kind(kind), key, n.text)
				}
			}
		}
	}
}

// add adds the states of a name to those to show, unless readers have them.
func (l *List) add(cohort int, to showing, id resourceID, of states) {
	known := l.w.View().FindName(id.key, id.name) != nil
	shown, newest, stated := l.shown(cohort, id), l.newest(id), l.overlaid(id, l.sets)
	for kind := range of {
		of[kind] = id.withNotFound(current(of[kind], newest[kind], stated[kind]), newest[kind])
	}
	// If only removals of the type wait, the state decides whether the resource exists. Its content passes, and so does the
	// error of a resource that does not exist.
	existed, exists := shown.last() != nil, of.last() != nil
	removalWaits := l.stages(id.typeURL(), true) && newest.last() == nil
	switch {
	case l.stages(id.typeURL(), false):
	case removalWaits && exists:
		if existed {
			return
		}
	case !known:
		return
	default:
		of = newest
	}
	if !known || !newest[cache.ByName].Exists() {
		of[cache.ByName] = cache.Statement{} // the name was forgotten
	}
	if of = shown.without(of); of.exist() {
		to.states[id] = of
	}
}

// exist reports whether a set has state of the name.
func (of *states) exist() bool { return of[cache.Wildcard].Exists() || of[cache.ByName].Exists() }

// without returns those statements that change what readers see.
func (shown *states) without(of states) states {
	for kind := range of {
		if is := overlay(shown[kind], of[kind]); is.Same(&shown[kind]) {
			of[kind] = cache.Statement{}
		}
	}
	return of
}

// current returns a statement of a name, as readers may be shown it now. Resources that had expired when the statement was made,
// or whose content may not be cached, get the newest state, and all others the TTL that was stated last, also during a freeze:
// it may have ended.
func current(s, newest, stated cache.Statement) cache.Statement {
	switch {
	case !s.HasContent:
	case s.Resource == nil && s.Expired(), !s.Cacheable():
		return newest
	case s.Resource != nil && stated.Resource != nil:
		s.Deadline = stated.Deadline
	}
	if s.Expired() {
		s.Resource = nil
	}
	return s
}

// show shows readers the states of names, in the order of Thaw, and returns the names.
func (l *List) show(cohort int, to showing) (shown map[resourceID]bool) {
	bySet := make(map[setKey][]cache.Statement)
	shown = make(map[resourceID]bool, len(to.states))
	for id, of := range to.states {
		shown[id] = true
		for kind, s := range of {
			if s.Name = id.name; s.Exists() {
				set := setKey{id.key, cache.Kind(kind)}
				bySet[set] = append(bySet[set], s)
			}
		}
	}
	for set, some := range inOrder(bySet, func(_ setKey, s cache.Statement) bool { return s.Resource == nil }) {
		sortStatements(some)
		if cohort == l.rest() {
			for _, s := range some {
				l.serve(set, s)
			}
		}
		l.w.RestateCohort(cohort, set.kind, set.key, to.systems[set.key][set.kind], some)
	}
	return shown
}

// recordWithdrawn records the changes that were withdrawn when a cohort was shown an edition, given the names that it changed.
func (l *List) recordWithdrawn(cohort int, shown map[resourceID]bool) {
	g := l.w.View().Cohort(cohort).Generation()
	for id := range shown {
		n, of, rest := l.w.View().FindName(id.key, id.name), l.shown(cohort, id), l.shown(l.rest(), id)
		for kind := range of {
			set := setKey{id.key, cache.Kind(kind)}
			if n == nil || g.Type(id.key).Set(set.kind).Get(n) == nil || !of.same(&rest) {
				continue
			}
			if l.withdrawn == nil {
				l.withdrawn = make(map[withdrawnChange]struct{})
			}
			l.withdrawn[withdrawnChange{cohort, set, id.name}] = struct{}{}
		}
	}
}
