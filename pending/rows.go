package pending

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// row returns the row of a name.
func (l *List) row(set setKey, name string) (r row, listed bool) {
	r, listed = l.sets[set][name]
	return r, listed
}

// staging returns what waits for stages. During a freeze, it is what did when the freeze began: no command of a rollout shows
// what the origin has stated since.
func (l *List) staging() staging {
	if l.beforeFreeze != nil {
		return *l.beforeFreeze
	}
	return staging{l.sets, l.systems, l.expires}
}

// isStaged reports whether a change of a name waits for stages.
func (l *List) isStaged(id resourceID) bool {
	for kind := range (states{}) {
		if r, listed := l.staging().rows[setKey{id.key, cache.Kind(kind)}][id.name]; listed && l.stages(id.typeURL(), r.removes()) {
			return true
		}
	}
	return false
}

// touch makes the list compare a resource again.
func (l *List) touch(id resourceID) {
	if l.staged {
		l.touched = append(l.touched, id)
	}
}

// countStaged makes the list compare a name again, whose row changes until the returned function is called, and counts whether it
// waits for stages.
func (l *List) countStaged(id resourceID) func() {
	if !l.staged || l.beforeFreeze != nil {
		return func() {}
	}
	was := l.isStaged(id)
	return func() {
		switch l.touch(id); {
		case was && !l.isStaged(id):
			l.names--
		case !was && l.isStaged(id):
			l.names++
		}
	}
}

// put adds a row, or replaces that of its name, whose cause remains: since then, clients lack the newest state.
func (l *List) put(set setKey, name string, r row) {
	defer l.countStaged(resourceID{set.key, name})()
	if r.Resource != nil && r.Resource.DoNotCache { // clients make the relay request it again
		r.Resource = r.Resource.DropContent()
	}
	rows := l.sets[set]
	if rows == nil {
		rows = make(map[string]row)
		l.sets[set] = rows
	}
	r.cause, r.since = l.cause, time.Now()
	if r.cause.Received.IsZero() {
		r.cause.Received = r.since
	}
	if old, ok := rows[name]; ok {
		r.cause, r.since = old.cause, old.since
		l.count(set, old, -1)
		l.recordAlias(set, name, old, false)
	}
	rows[name] = r
	if !r.Deadline.IsZero() && l.stages(set.typeURL(), r.removes()) {
		l.expires = earlier(l.expires, r.Deadline)
	}
	l.count(set, r, 1)
	l.recordAlias(set, name, r, true)
	l.recordRows()
}

// remove removes a row.
func (l *List) remove(set setKey, name string) {
	old, ok := l.row(set, name)
	if !ok {
		return
	}
	defer l.countStaged(resourceID{set.key, name})()
	l.count(set, old, -1)
	l.recordAlias(set, name, old, false)
	if delete(l.sets[set], name); len(l.sets[set]) == 0 {
		delete(l.sets, set)
	}
	l.recordRows()
}

// drop removes the row of a name that is forgotten, also if it waited for stages when a freeze began.
func (l *List) drop(set setKey, name string) {
	if l.remove(set, name); l.beforeFreeze != nil {
		l.dropKept(set, name)
	}
}

// dropKept drops a row that waited for stages when a freeze began.
func (l *List) dropKept(set setKey, name string) {
	id := resourceID{set.key, name}
	was := l.isStaged(id)
	if delete(l.beforeFreeze.rows[set], name); was && !l.isStaged(id) {
		l.names--
	}
	l.touch(id)
	l.recordRows()
}

// count adds n to the number of rows of a part. It is kept, since each response asks which parts have rows.
func (l *List) count(set setKey, of row, n int) {
	p := partOf(set.typeURL(), of)
	if l.parts[p] += n; l.parts[p] == 0 {
		delete(l.parts, p)
	}
}

// recordAlias records that a row was added, or is about to be removed, if it has a resource of another name.
func (l *List) recordAlias(set setKey, name string, r row, added bool) {
	if r.Resource == nil || l.aliases == nil || r.Resource.Name == name {
		return
	}
	of := l.aliases[set][r.Resource.Name]
	switch {
	case !added:
		if delete(of, name); len(of) == 0 {
			delete(l.aliases[set], r.Resource.Name)
		}
	case of == nil:
		if l.aliases[set] == nil {
			l.aliases[set] = make(map[string]map[string]bool)
		}
		l.aliases[set][r.Resource.Name] = map[string]bool{name: true}
	default:
		of[name] = true
	}
}

// recordChange records that the newest state of a name has changed, which waits for stages.
func (l *List) recordChange(id resourceID, removes bool) {
	if l.Frozen() || !l.stages(id.typeURL(), removes) {
		return
	}
	if l.changed == nil {
		l.changed = make(map[resourceID]struct{})
	}
	l.changes, l.changed[id] = true, struct{}{}
}

// overlay returns what two statements state of a name together, of which the second is newer.
func overlay(old, newer cache.Statement) cache.Statement {
	switch {
	case !newer.HasContent && newer.HasError:
		old.HasError, old.Err = true, newer.Err
		return old
	case !newer.HasContent:
		return old
	case !newer.HasError:
		newer.HasError, newer.Err = old.HasError, old.Err
	}
	newer.Name = old.Name
	return newer
}

// state lists a statement of a name. The row keeps what the statement does not have.
func (l *List) state(set setKey, s cache.Statement) {
	r, listed := l.row(set, s.Name)
	is := overlay(r.Statement, s)
	if !listed || !is.Same(&r.Statement) {
		l.recordChange(resourceID{set.key, s.Name}, is.HasContent && is.Resource == nil)
	}
	r.Statement, r.restored = is, false
	l.put(set, s.Name, r)
}

// end ends that part of a row that a statement has, since it was applied.
func (l *List) end(set setKey, s cache.Statement) {
	r, listed := l.row(set, s.Name)
	if !listed {
		return
	}
	switch kept := r.Statement; {
	case s.HasContent && s.HasError:
		r.Statement = cache.Statement{}
	case s.HasContent:
		r.Statement = cache.Statement{HasError: kept.HasError, Err: kept.Err}
	case s.HasError:
		r.HasError, r.Err = false, nil
	}
	if r.Exists() {
		l.put(set, s.Name, r)
	} else {
		l.remove(set, s.Name)
	}
}

// countRows returns the number of rows that wait for an operator or for stages, or of the others.
func (l *List) countRows(stopped bool) (n int) {
	for p, rows := range l.parts {
		if l.stops(p.typeURL, p.removals) == stopped {
			n += rows
		}
	}
	return n
}

// Len returns the number of rows that wait for an interval.
func (l *List) Len() int { return l.countRows(false) }

// Empty reports whether there is no row.
func (l *List) Empty() bool { return len(l.parts) == 0 }

// CountTypes adds the numbers of rows by type.
func (l *List) CountTypes(to map[string]int) {
	for p, n := range l.parts {
		to[p.typeURL] += n
	}
}

// inOrder yields changes in the order in which clients may be sent them: additions and changes in the order of types, then
// removals in reverse order. Those of the last type, and of one whose resources exclude one another, are together.
func inOrder[T any](bySet map[setKey][]T, removes func(setKey, T) bool) iter.Seq2[setKey, []T] {
	order := slices.SortedFunc(maps.Keys(bySet), setKey.compare)
	return func(yield func(setKey, []T) bool) {
		together := func(set setKey) bool {
			return wire.HasKeys(set.typeURL()) || set.typeURL() == order[len(order)-1].typeURL()
		}
		for _, set := range order {
			some := bySet[set]
			if !together(set) {
				some = slices.DeleteFunc(slices.Clone(some), func(of T) bool { return removes(set, of) })
			}
			if len(some) > 0 && !yield(set, some) {
				return
			}
		}
		for _, set := range slices.Backward(order) {
			if together(set) {
				continue
			}
			some := slices.DeleteFunc(slices.Clone(bySet[set]), func(of T) bool { return !removes(set, of) })
			if len(some) > 0 && !yield(set, some) {
				return
			}
		}
	}
}

// sortStatements sorts statements by name, removals last.
func sortStatements(all []cache.Statement) {
	removal := func(s cache.Statement) int {
		if s.Resource == nil {
			return 1
		}
		return 0
	}
	slices.SortFunc(all, func(a, b cache.Statement) int {
		return cmp.Or(removal(a)-removal(b), cmp.Compare(a.Name, b.Name))
	})
}

// updateFrom returns a response that has the rows, except copies.
func updateFrom(set setKey, rows map[string]row, system string) wire.Update {
	u := wire.Update{TypeURL: set.key, SystemVersion: system}
	for name, r := range rows {
		switch {
		case r.copied != nil:
		case r.Resource != nil:
			u.Resources = append(u.Resources, r.Resource)
		default:
			u.Removed = append(u.Removed, name)
		}
	}
	slices.SortFunc(u.Resources, func(a, b *wire.Resource) int { return strings.Compare(a.Name, b.Name) })
	slices.Sort(u.Removed)
	return u
}

// causeOf returns the cause of the oldest of some rows that pass, and records in its trace why it has waited.
func causeOf(rows map[string]row, reason string) cache.Cause {
	var oldest Delay
	for _, r := range rows {
		oldest = oldest.Oldest(Delay{r.cause, r.since, reason})
	}
	return oldest.End(time.Now())
}

// Newest returns the names that wait, with their newest states. It does not include what waits for stages alone.
func (l *List) Newest() []cache.Former {
	return l.states(func(set setKey, r row) bool { return l.isCommanded() || !l.stages(set.typeURL(), r.removes()) })
}

// Listed returns all names that wait, with their newest states.
func (l *List) Listed() []cache.Former { return l.states(func(setKey, row) bool { return true }) }

// states returns the names of the rows that match, with their newest states.
func (l *List) states(match func(setKey, row) bool) (all []cache.Former) {
	for set, rows := range l.sets {
		for name, r := range rows {
			if (r.HasContent || r.copied != nil) && match(set, r) {
				all = append(all, cache.Former{Key: set.key, Kind: set.kind, Name: name, Resource: r.resource(set), Deadline: r.Deadline})
			}
		}
	}
	return all
}

// Get returns what the list states of a name of a set: a resource, or nil if it was removed. It returns false if the list does
// not state it: then the view has its newest state.
func (l *List) Get(kind cache.Kind, key, name string) (r *wire.Resource, listed bool) {
	set := setKey{key, kind}
	if len(l.sets[set]) == 0 {
		return nil, false
	}
	of, listed := l.row(set, name)
	return of.resource(setKey{key, kind}), listed && of.HasContent
}

// GetStaged is Get for what waits for stages.
func (l *List) GetStaged(kind cache.Kind, key, name string) (r *wire.Resource, listed bool) {
	set := setKey{key, kind}
	of, listed := l.staging().rows[set][name]
	if !listed || !of.HasContent || !l.stages(set.typeURL(), of.removes()) {
		return nil, false
	}
	return of.resource(set), true
}

// Added yields the members of a set that the list adds, and that clients are not sent yet.
func (l *List) Added(key string) iter.Seq2[string, *wire.Resource] {
	return func(yield func(string, *wire.Resource) bool) {
		set := setKey{key, cache.Wildcard}
		for name, r := range l.sets[set] {
			if r.resource(set) != nil && !l.entry(set, name).Present() && !yield(name, r.Resource) {
				return
			}
		}
	}
}

// Removed returns the number of members of a set that the list removes, and that clients have.
func (l *List) Removed(key string) (n int) {
	set := setKey{key, cache.Wildcard}
	for name, r := range l.sets[set] {
		if r.HasContent && r.removes() && l.entry(set, name).Present() {
			n++
		}
	}
	return n
}

// Names yields the type and the name of each row.
func (l *List) Names() iter.Seq2[string, string] {
	return func(yield func(typeURL, name string) bool) {
		for set, rows := range l.sets {
			for name := range rows {
				if !yield(set.typeURL(), name) {
					return
				}
			}
		}
	}
}
