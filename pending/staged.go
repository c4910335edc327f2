package pending

import (
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// Staged counts the differences between the newest state of an origin, the state that the rest is served, and editions.
type Staged struct {
	// Names is the number of names whose newest state waits for stages.
	Names int

	// Free counts the names among them that no compared edition changes.
	Free Count

	// Of has the names that each compared edition changes, in the order of Compare.
	Of []Count
}

// A Count counts names whose newest state waits for stages.
type Count struct {
	Names int

	// Edited is the number of resources that an edition changes and whose newest content differs from it.
	Edited int

	// Behind is the number of names that an edition changes and that would still wait after it was shown to the rest.
	Behind int

	Changed time.Time // when the newest state of one of the names last changed
	Version uint64    // of the set of names and of their newest states
}

// equal reports whether two counts are the same.
func (s *Staged) equal(o *Staged) bool {
	return s.Names == o.Names && s.Free == o.Free && slices.Equal(s.Of, o.Of)
}

// A comparison compares what waits for stages with editions, none of which changes a name of another.
type comparison struct {
	editions []compared
	free     map[resourceID]struct{} // names that wait and that no edition changes
	counts   Count                   // of them
	last     Staged                  // with which report was last called
	report   func(Staged)            // nil if nobody asks
}

// A compared edition is an edition with which a list compares what waits for stages.
type compared struct {
	*Edition
	names                int                     // that the edition changes
	gone, edited, behind map[resourceID]struct{} // names of it that no longer wait; see Count
	counts               Count
}

// record records whether a name waits, and that its newest state changed unless changed is zero.
func (n *Count) record(waited, waits bool, changed time.Time) {
	switch {
	case !changed.IsZero() && (waits || waited):
		n.Changed = changed
		n.Version++
	case waits != waited:
		n.Version++
	}
}

// ReportStaged makes the list call f when what waits for stages changes. f must not block. The goroutine of the writer calls it.
func (l *List) ReportStaged(f func(Staged)) { l.comparison.report = f }

// Compare sets the editions with which the list compares what waits for stages. They must not change the same names.
func (l *List) Compare(all ...*Edition) {
	c := &l.comparison
	old := c.editions
	c.editions = nil
	for _, e := range all {
		of := compared{Edition: e}
		if at := slices.IndexFunc(old, func(o compared) bool { return o.Edition == e }); at >= 0 {
			of.counts = old[at].counts
		}
		c.editions = append(c.editions, of)
	}
	l.compareAll()
	l.reportStaged()
}

// compareAll compares all names of the editions, and all that wait.
func (l *List) compareAll() {
	if !l.staged {
		return
	}
	c := &l.comparison
	l.touched, l.names, c.free = nil, 0, make(map[resourceID]struct{})
	for i := range c.editions {
		of := &c.editions[i]
		of.gone, of.edited = make(map[resourceID]struct{}), make(map[resourceID]struct{})
		of.behind, of.names = make(map[resourceID]struct{}), 0
		for key, names := range of.Changes {
			of.names += len(names)
			for name := range names {
				l.compare(resourceID{key, name}, time.Time{})
			}
		}
	}
	for id := range l.stagedNames() {
		l.names++
		l.compare(id, time.Time{})
	}
	c.counts.Names = len(c.free)
	c.counts.Version++
}

// editionOf returns the compared edition that changes a resource; nil if there is none.
func (c *comparison) editionOf(id resourceID) *compared {
	for i := range c.editions {
		if _, changes := c.editions[i].Changes[id.key][id.name]; changes {
			return &c.editions[i]
		}
	}
	return nil
}

// compare compares what waits of one resource with the edition that changes it. changed is when its newest state changed; zero if
// it did not.
func (l *List) compare(id resourceID, changed time.Time) {
	c, waits := &l.comparison, l.isStaged(id)
	e := c.editionOf(id)
	if e == nil {
		_, waited := c.free[id]
		if c.free == nil {
			c.free = make(map[resourceID]struct{})
		}
		setMember(c.free, id, waits)
		c.counts.record(waited, waits, changed)
		c.counts.Names = len(c.free)
		return
	}
	content := e.Changes[id.key][id.name]
	pinned, n := e.name(id), l.w.View().FindName(id.key, id.name)
	newest := l.newest(id)
	edited, behind := false, false
	if !l.wasForgotten(e.Edition, id, pinned, n, newest) {
		last := newest.last()
		edited = content != digestOf(last) && l.stages(id.typeURL(), content == wire.Digest{})
		same := (pinned == nil || pinned.name == nil || pinned.name == n) && l.stages(id.typeURL(), last == nil)
		behind = e.types != nil && (edited || same && l.isBehind(e.Edition, id, pinned, newest))
	}
	setMember(e.edited, id, edited)
	setMember(e.behind, id, behind)
	_, gone := e.gone[id]
	setMember(e.gone, id, !waits)
	e.counts.record(!gone, waits, changed)
	e.counts.Names, e.counts.Edited, e.counts.Behind = e.names-len(e.gone), len(e.edited), len(e.behind)
}

// withNotFound returns the statement that a resource does not exist with the NOT_FOUND that the origin has stated of it since,
// which passes to readers without a resource.
func (id resourceID) withNotFound(s, newest cache.Statement) cache.Statement {
	if s.HasContent && s.Resource == nil && s.Err == nil && id.name != cache.WholeName(id.key) &&
		newest.HasContent && newest.Resource == nil && newest.Err != nil && newest.Err.NotFound() {
		return newest
	}
	return s
}

// isBehind reports whether a name would still wait after the edition was shown to the rest. If the edition has no state of a
// name, the rest keeps the state that it sees. If only removals of the type wait, a name without a resource waits no longer.
func (l *List) isBehind(e *Edition, id resourceID, pinned *editedName, newest states) (behind bool) {
	served, is := l.w.Generation().Type(id.key), l.shown(l.rest(), id)
	for kind := range newest {
		k := cache.Kind(kind)
		keeps := pinned == nil || !pinned.edits(k) ||
			k == cache.Wildcard && e.types[id.key].era != served.Era()
		if !keeps {
			is[kind] = overlay(is[kind], id.withNotFound(pinned.is[kind], newest[kind]))
		}
		behind = behind || !is[kind].Same(&newest[kind]) && (!keeps || served.HasLastGood(k))
	}
	return behind && (l.stages(id.typeURL(), false) || is.last() != nil)
}

// wasForgotten reports whether a resource that the edition changes was released since, because no client subscribed to it. A new
// resource of that name is not compared with the edition. n is its present Name, which may be nil.
func (l *List) wasForgotten(
	e *Edition, id resourceID, pinned *editedName, n *cache.Name, newest states,
) bool {
	served, named := l.w.Generation().Type(id.key), newest[cache.ByName].Exists()
	switch {
	case pinned == nil: // an earlier process made the edition
		return !served.HasLastGood(cache.Wildcard) && (n == nil || newest.last() == nil && !named)
	case pinned.was[cache.Wildcard].Resource != nil || pinned.is[cache.Wildcard].Resource != nil:
		return e.types[id.key].era != served.Era()
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
	var now time.Time
	if l.changes {
		if l.changes, now = false, time.Now(); l.cause.Trace != nil {
			l.cause.Trace.Waits(now)
		}
	}
	for _, id := range l.touched {
		l.compare(id, time.Time{})
	}
	for id := range l.changed {
		l.compare(id, now)
	}
	l.touched, l.changed = nil, nil
	staged := Staged{Names: l.names, Free: c.counts}
	for i := range c.editions {
		staged.Of = append(staged.Of, c.editions[i].counts)
	}
	if c.report != nil && !staged.equal(&c.last) {
		c.last = staged
		c.report(staged)
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
	l.recordRows()
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
	l.recordRows()
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
