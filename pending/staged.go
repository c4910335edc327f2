package pending

import (
	"maps"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// Staged counts the differences between the newest state of an origin, the state that the rest is served, and an edition.
type Staged struct {
	// Names is the number of names whose newest state waits for stages.
	Names int

	// Edited is the number of resources that the edition changes and whose newest content differs from the edition.
	Edited int

	// Behind is the number of names that would still wait after the edition was shown to the rest. It equals Names if there
	// is no edition.
	Behind int

	Changed time.Time // when the newest state of a name that waits last changed
}

// A comparison compares what waits for stages with an edition.
type comparison struct {
	edition *Edition                // nil if there is none
	edited  map[resourceID]struct{} // see Staged.Edited
	behind  map[resourceID]struct{} // see Staged.Behind
	changed time.Time               // see Staged.Changed
	last    Staged                  // with which report was last called
	report  func(Staged)            // nil if nobody asks
}

// ReportStaged makes the list call f when what waits for stages changes. f must not block. The goroutine of the writer calls it.
func (l *List) ReportStaged(f func(Staged)) { l.comparison.report = f }

// Compare sets the edition with which the list compares what waits for stages; nil means none.
func (l *List) Compare(e *Edition) {
	l.comparison.edition = e
	l.compareAll()
	l.reportStaged()
}

// compareAll compares all names of the edition, and all that wait.
func (l *List) compareAll() {
	if !l.staged {
		return
	}
	c := &l.comparison
	l.touched, l.names, c.edited, c.behind = nil, 0, make(map[resourceID]struct{}), make(map[resourceID]struct{})
	if e := l.comparison.edition; e != nil {
		for key, names := range e.Changes {
			for name := range names {
				l.compare(resourceID{key, name})
			}
		}
	}
	for id := range l.stagedNames() {
		l.names++
		l.compare(id)
	}
}

// compare compares what waits of one resource with the edition.
func (l *List) compare(id resourceID) {
	c := &l.comparison
	e := c.edition
	if e == nil {
		return
	}
	content, changes := e.Changes[id.key][id.name]
	pinned, n := e.name(id), l.w.View().FindName(id.key, id.name)
	newest := l.newest(id)
	if changes && l.wasForgotten(id, pinned, n, newest) {
		delete(c.edited, id)
		delete(c.behind, id)
		return
	}
	last := newest.last()
	edited := changes && content != digestOf(last) && l.stages(id.typeURL(), content == wire.Digest{})
	same := (pinned == nil || pinned.name == nil || pinned.name == n) && l.stages(id.typeURL(), last == nil)
	setMember(c.edited, id, edited)
	setMember(c.behind, id, e.types != nil && (edited || same && l.isBehind(id, pinned, newest)))
}

// isBehind reports whether a name would still wait after the edition was shown to the rest. If the edition has no state of a
// name, the rest keeps the state that it sees.
func (l *List) isBehind(id resourceID, pinned *editedName, newest states) bool {
	served, shown := l.w.Generation().Type(id.key), l.shown(l.rest(), id)
	for kind := range newest {
		k := cache.Kind(kind)
		keeps := pinned == nil || !pinned.edits(k) ||
			k == cache.Wildcard && l.comparison.edition.types[id.key].era != served.Era()
		is := shown[kind]
		if !keeps {
			is = overlay(is, pinned.is[kind])
		}
		if !is.Same(&newest[kind]) && (!keeps || served.HasLastGood(k)) {
			return true
		}
	}
	return false
}

// wasForgotten reports whether a resource that the edition changes was released since, because no client subscribed to it. A new
// resource of that name is not compared with the edition. n is its present Name, which may be nil.
func (l *List) wasForgotten(id resourceID, pinned *editedName, n *cache.Name, newest states) bool {
	served, named := l.w.Generation().Type(id.key), newest[cache.ByName].Exists()
	switch {
	case pinned == nil: // an earlier process made the edition
		return !served.HasLastGood(cache.Wildcard) && (n == nil || newest.last() == nil && !named)
	case pinned.was[cache.Wildcard].Resource != nil || pinned.is[cache.Wildcard].Resource != nil:
		return l.comparison.edition.types[id.key].era != served.Era()
	}
	return n == nil || n != pinned.name || !named
}

// setMember adds a resource to a set or removes it from the set.
func setMember(in map[resourceID]struct{}, id resourceID, present bool) {
	if present {
		in[id] = struct{}{}
	} else {
		delete(in, id)
	}
}

// endSystem gives a set of which nothing waits any longer the version of the newest response.
func (l *List) endSystem(set setKey) {
	system, waits := l.systems[set]
	if !waits || len(l.sets[set]) > 0 {
		return
	}
	if delete(l.systems, set); l.served(set).System() != system {
		l.w.Restate(set.kind, set.key, system, nil)
	}
}

// endShown gives sets of which nothing waits any longer the version of the newest response, and the source its address.
func (l *List) endShown() {
	for set := range l.systems {
		l.endSystem(set)
	}
	if l.target != nil && l.countRows(true) == 0 {
		l.w.SetTarget(*l.target)
	}
}

// dropServed drops the rows of names whose newest state readers see. Some statements have no effect: an error that ends had not
// passed.
func (l *List) dropServed(names []resourceID) {
	if l.Frozen() {
		return
	}
	dropped := false
	for _, id := range names {
		for kind := range (states{}) {
			set := setKey{id.key, cache.Kind(kind)}
			r, listed := l.row(set, id.name)
			if !listed || r.copied != nil || !l.stages(set.typeURL(), r.removes()) {
				continue
			}
			served := l.w.Shown(l.rest(), set.kind, set.key, id.name)
			if newest := overlay(served, r.Statement); newest.Same(&served) {
				l.remove(set, id.name)
				dropped = true
			}
		}
	}
	if dropped {
		l.endShown()
	}
}

// passFirst applies the rows of names that readers were shown, if they lose nothing by them any longer.
func (l *List) passFirst(cohort int, shown map[resourceID]bool) {
	bySet := make(map[setKey][]cache.Statement)
	for id := range shown {
		for kind := range (states{}) {
			set := setKey{id.key, cache.Kind(kind)}
			r, listed := l.staging().rows[set][id.name]
			is := l.w.Shown(cohort, set.kind, set.key, id.name)
			if s := overlay(is, r.Statement); listed && !s.Same(&is) {
				s.Name = id.name
				bySet[set] = append(bySet[set], s)
			}
		}
	}
	for set, some := range inOrder(bySet, func(_ setKey, s cache.Statement) bool { return s.Resource == nil }) {
		sortStatements(some)
		if cohort != l.rest() {
			l.w.RestateCohortFirst(cohort, set.kind, set.key, some)
		} else if !l.Frozen() {
			l.w.RestateFirst(set.kind, set.key, some, newest{l, set, new(cache.Change)})
		}
	}
}

// touchEdited makes the list compare the names again whose state for the rest has changed, and returns those of them that have a
// row by name which waits for stages.
func (l *List) touchEdited() (named map[resourceID]bool) {
	for _, of := range l.w.TakeEdited() {
		id := resourceID{of.Key, of.Name}
		l.touch(id)
		r, listed := l.row(setKey{id.key, cache.ByName}, id.name)
		if listed && r.copied == nil && l.stages(id.typeURL(), r.removes()) {
			if named == nil {
				named = make(map[resourceID]bool)
			}
			named[id] = true
		}
	}
	return named
}

// reportStaged reports the numbers of what waits for stages, if they have changed, and that a change waits to its trace.
func (l *List) reportStaged() {
	if !l.staged {
		return
	}
	c := &l.comparison
	l.passFirst(l.rest(), l.touchEdited()) // the wildcard set may have the content of a row by name now
	l.touchEdited()
	l.dropServed(l.touched)
	for _, id := range l.touched {
		l.compare(id)
	}
	l.touched = nil
	if l.changes {
		if l.changes, c.changed = false, time.Now(); l.cause.Trace != nil {
			l.cause.Trace.Waits(c.changed)
		}
	}
	now := Staged{Names: l.names, Edited: len(c.edited), Behind: len(c.behind), Changed: c.changed}
	if c.edition == nil {
		now.Behind = now.Names
	}
	if now != c.last && c.report != nil {
		c.last = now
		c.report(now)
	}
}

// recordStopped records the number of rows that wait for an operator, or of names that wait for stages.
func (l *List) recordStopped() {
	l.reportStaged()
	if l.staged && !l.isCommanded() {
		l.w.RecordWithheld(l.names)
	} else {
		l.w.RecordWithheld(l.countRows(true))
	}
}

// serve lists the newest state of a name that the rest is about to be shown another state of, or ends its row if it is the same.
func (l *List) serve(set setKey, s cache.Statement) {
	served := l.w.Shown(l.rest(), set.kind, set.key, s.Name)
	r, _ := l.row(set, s.Name)
	if newest := overlay(served, r.Statement); newest.Same(&s) {
		l.remove(set, s.Name)
	} else {
		l.put(set, s.Name, row{Statement: newest})
	}
	if l.beforeFreeze == nil {
		return
	}
	rows := l.beforeFreeze.rows
	r = rows[set][s.Name]
	newest := overlay(served, r.Statement)
	switch {
	case newest.Same(&s):
		delete(rows[set], s.Name)
	case rows[set] == nil:
		rows[set] = map[string]row{s.Name: {Statement: newest}}
	default:
		r.Statement = newest
		rows[set][s.Name] = r
	}
	l.beforeFreeze.expires = earlier(l.beforeFreeze.expires, newest.Deadline)
	l.touch(resourceID{set.key, s.Name})
}

// keepStaged keeps what waits for stages when a freeze begins.
func (l *List) keepStaged() {
	if !l.staged {
		return
	}
	kept := staging{make(map[setKey]map[string]row, len(l.sets)), maps.Clone(l.systems), l.expires}
	for set, rows := range l.sets {
		of := maps.Clone(rows)
		maps.DeleteFunc(of, func(_ string, r row) bool { return !l.stages(set.typeURL(), r.removes()) })
		kept.rows[set] = of
	}
	l.beforeFreeze = &kept
}

// expireStaged ends the rows that wait for stages and whose TTL has ended, which never waits. It returns when the next one ends;
// zero if none has a TTL.
func (l *List) expireStaged(now time.Time) (next time.Time) {
	switch {
	case l.beforeFreeze != nil:
		return l.expireKept(now)
	case l.Frozen():
		return time.Time{}
	case l.expires.IsZero() || now.Before(l.expires):
		return l.expires
	}
	for set, rows := range l.sets {
		var ended []cache.Statement
		for name, r := range rows {
			switch {
			case r.Deadline.IsZero() || !l.stages(set.typeURL(), r.removes()):
			case now.Before(r.Deadline):
				next = earlier(next, r.Deadline)
			default:
				l.end(set, cache.Statement{Name: name, HasContent: true})
				ended = append(ended, cache.Ended(name))
			}
		}
		if len(ended) > 0 {
			l.w.Restate(set.kind, set.key, "", ended)
		}
	}
	l.expires = next
	l.endShown()
	l.recordStopped()
	return next
}

// expireKept is expireStaged during a freeze, of what waited for stages when it began.
func (l *List) expireKept(now time.Time) (next time.Time) {
	kept := l.beforeFreeze
	if kept.expires.IsZero() || now.Before(kept.expires) {
		return kept.expires
	}
	for set, rows := range kept.rows {
		for name, r := range rows {
			switch {
			case r.Deadline.IsZero():
			case now.Before(r.Deadline):
				next = earlier(next, r.Deadline)
			default:
				l.dropKept(set, name)
			}
		}
	}
	kept.expires = next
	l.recordStopped()
	return next
}
