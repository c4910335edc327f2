package pending

import (
	"cmp"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// An admission is which parts of what the origin states of a type wait.
type admission struct{ changes, removals bool }

func (a admission) any() bool { return a.changes || a.removals }

// admit decides what waits of a statement, with or without removals.
func (l *List) admit(typeURL string, removes bool, now time.Time) (waits admission) {
	changes, removals := part{typeURL: typeURL}, removalsOf(typeURL)
	waits.changes = l.clock.admit(l.wake, changes, changes == removals && removes, now)
	if changes == removals {
		waits.removals = waits.changes
	} else {
		waits.removals = removes && l.clock.admit(l.wake, removals, true, now)
	}
	return waits
}

// record records a change that has passed.
func (l *List) record(set setKey, c cache.Change, now time.Time) {
	if c.Changed+c.Removed > 0 {
		l.clock.record(set.typeURL(), now)
	}
}

// cannotWait reports whether an update must pass at once: clients may be waiting for its first state, or its content expires or
// must not be kept.
func (l *List) cannotWait(set setKey, u wire.Update) bool {
	served := l.served(set)
	return served.TTLs()+served.ContentDropped() > 0 || l.w.HasFirstState(set.kind, u) ||
		slices.ContainsFunc(u.Resources, func(r *wire.Resource) bool { return r.TTL > 0 || r.DoNotCache || !r.HasBody() })
}

// removesWithError reports whether an update removes a resource, of which clients are to be sent an error: clients get both together.
func (l *List) removesWithError(set setKey, u wire.Update) bool {
	d := division{list: l, set: set}
	return len(u.Errors) > 0 && slices.ContainsFunc(u.Removed, func(name string) bool {
		return u.Fails(name) && d.entry(name).Present()
	})
}

// pace applies a response, except what must wait for an interval.
func (l *List) pace(kind cache.Kind, u wire.Update) cache.Change {
	set, now := setKey{u.TypeURL, kind}, time.Now()
	if l.clock == nil {
		l.forget(set, u)
		return l.w.Apply(kind, u)
	}
	removes := len(u.Removed) > 0
	waits := l.admit(set.typeURL(), removes, now)
	switch {
	case !waits.any():
	case l.removesWithError(set, u), removes && waits.removals && l.cannotWait(set, u):
		l.hastenAll(now)
	case l.cannotWait(set, u):
		l.hasten(set.typeURL(), now)
	default:
		return l.divide(set, u, waits)
	}
	l.forget(set, u)
	c := l.w.Apply(kind, u)
	l.record(set, c, now)
	return c
}

// divide adds what must wait to the list, and applies the rest.
func (l *List) divide(set setKey, u wire.Update, waits admission) cache.Change {
	d := division{list: l, set: set, direct: u}
	d.direct.Resources, d.direct.Removed = nil, nil
	for _, r := range u.Resources {
		d.state(r, waits.changes)
	}
	for _, name := range u.Removed {
		d.remove(name, waits.removals && !u.Fails(name))
	}
	c := l.w.Apply(set.kind, d.direct)
	l.record(set, c, time.Now())
	l.w.Await(set.kind, set.key, d.awaited, d.dropped)
	l.dropEmpty(set.typeURL())
	add(&c, d.c, 1)
	c.Reused = append(c.Reused, d.c.Reused...)
	return c
}

// A division divides one update into rows and what is applied at once.
type division struct {
	list   *List
	set    setKey
	direct wire.Update  // what does not wait
	c      cache.Change // of what waits, compared with the newest state

	awaited, dropped []string // names that the list adds, and that it adds no longer
}

// entry returns the served entry of a name; nil if there is none, which also holds for a name to which the session does not
// subscribe, or only with parameters or under an alias. What has no entry is not listed.
func (d *division) entry(name string) *cache.Entry { return d.list.entry(d.set, name) }

// state divides a resource that the origin states.
func (d *division) state(r *wire.Resource, waits bool) {
	e := d.entry(r.Name)
	if r.Refusal != nil { // the last good state remains the newest
		d.direct.Resources = append(d.direct.Resources, r)
		return
	}
	listed, isListed := d.list.row(d.set, r.Name)
	if !waits || !d.mayList(e, r) {
		if isListed && replacesRow(r) {
			if waits { // the origin takes back what waits, which the view counts as no change
				d.c.Changed, d.c.Same = d.c.Changed+1, d.c.Same-1
			}
			d.unlist(r.Name)
		}
		d.direct.Resources = append(d.direct.Resources, r)
		return
	}
	latest := listed.Resource
	if !isListed && e.Present() {
		latest = e.Resource
	}
	d.count(r, latest)
	d.list.put(d.set, r.Name, content(r))
	if !e.Present() {
		d.awaited = append(d.awaited, r.Name)
	}
}

// replacesRow reports whether a resource takes the place of the row of its name: it is accepted, and no variant for other clients
// (R121).
func replacesRow(r *wire.Resource) bool { return r.Refusal == nil && r.Variant().Matches(nil) }

// mayList reports whether a resource can wait, whose name has a served entry: it is no variant, and a change.
func (d *division) mayList(e *cache.Entry, r *wire.Resource) bool {
	known := d.set.kind == cache.Wildcard || e != nil
	return known && r.Constraints == nil && (!e.Present() || !e.Resource.SameContent(r))
}

// count counts a resource that waits. latest was the newest one of its name; nil if there was none.
func (d *division) count(r, latest *wire.Resource) {
	d.c.Seen++
	countContent(&d.c, r, latest)
}

// remove divides a removal that the origin states.
func (d *division) remove(name string, waits bool) {
	e := d.entry(name)
	listed, isListed := d.list.row(d.set, name)
	if isListed && listed.Resource != nil || !isListed && e.Present() && waits {
		d.c.Removed++
	}
	if !waits || !e.Present() {
		d.unlist(name)
		d.direct.Removed = append(d.direct.Removed, name)
		return
	}
	d.list.put(d.set, name, content(nil))
}

// unlist removes the row of a name.
func (d *division) unlist(name string) {
	if listed, ok := d.list.row(d.set, name); ok {
		if d.list.remove(d.set, name); listed.Resource != nil {
			d.dropped = append(d.dropped, name)
		}
	}
}

// forget removes the rows of all names in an update that is about to be applied.
func (l *List) forget(set setKey, u wire.Update) {
	if len(l.sets[set]) == 0 {
		return
	}
	d := division{list: l, set: set}
	for _, r := range u.Resources {
		if replacesRow(r) {
			d.unlist(r.Name)
		}
	}
	for _, name := range u.Removed {
		d.unlist(name)
	}
	l.w.Await(set.kind, set.key, nil, d.dropped)
	l.dropEmpty(set.typeURL())
}

// dropEmpty ends the waits of a type without rows.
func (l *List) dropEmpty(typeURL string) {
	if l.clock == nil {
		return
	}
	l.clock.drop(l.wake, func(w *wait) bool { return w.typeURL == typeURL && l.parts[w.part] == 0 })
}

// Step applies the rows whose wait is over, and returns when to call it again; zero if nothing waits until a time.
func (l *List) Step(now time.Time) (next time.Time) {
	if l.staged {
		next = l.expireStaged(now)
		l.reportStaged()
	}
	if l.clock == nil {
		return next
	}
	for {
		due, at := l.clock.due(l.wake, now)
		if due == nil {
			return earlier(next, at)
		}
		l.passRows(due.part)
		l.clock.end(due, now)
	}
}

// passRows applies the rows of a part.
func (l *List) passRows(p part) {
	for _, set := range l.setsOf(p.typeURL) {
		passing := make(map[string]row)
		for name, r := range l.sets[set] {
			if partOf(p.typeURL, r) == p {
				passing[name] = r
				l.remove(set, name)
			}
		}
		if len(passing) > 0 {
			l.apply(set, passing)
			l.endSystem(set)
		}
	}
}

// setsOf returns the sets of a type that have rows, in a fixed order.
func (l *List) setsOf(typeURL string) (sets []setKey) {
	for set := range l.sets {
		if set.typeURL() == typeURL {
			sets = append(sets, set)
		}
	}
	slices.SortFunc(sets, func(a, b setKey) int { return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.key, b.key)) })
	return sets
}

// apply applies rows to the view that have waited for an interval, with the cause of the oldest one.
func (l *List) apply(set setKey, rows map[string]row) {
	var copies []*cache.Name
	var from *cache.View
	for _, r := range rows {
		if r.copied != nil {
			copies, from = append(copies, r.copied.name), r.copied.from
		}
	}
	slices.SortFunc(copies, (*cache.Name).Compare)
	u := updateFrom(set, rows, l.served(set).System())
	l.w.SetCause(causeOf(rows, intervalReason))
	defer l.w.SetCause(l.cause)
	if len(copies) > 0 {
		l.w.Copy(set.kind, from.Generation(), set.key, copies)
	}
	if len(u.Resources)+len(u.Removed) > 0 {
		l.w.Apply(set.kind, u)
	}
}

// hasten ends the wait of a type for its interval, and of what depends on it.
func (l *List) hasten(typeURL string, now time.Time) {
	if l.clock == nil {
		return
	}
	l.clock.hasten(func(w *wait) bool { return dependsOn(typeURL, w.typeURL) })
	l.Step(now)
}

// hastenAll ends all waits before a removal that cannot wait: clients may be sent there what refers to the removed no longer.
func (l *List) hastenAll(now time.Time) {
	l.clock.hasten(func(*wait) bool { return true })
	l.Step(now)
}

// passAll applies all rows that wait for an interval, except those that wait for another list.
func (l *List) passAll() {
	if len(l.sets) > 0 && l.clock != nil {
		l.clock.hasten(func(w *wait) bool { return w.owner == l.wake })
		l.Step(time.Now())
	}
}

// A Kind is what a row does with a resource that clients have, or do not have.
type Kind int

// The kinds of rows.
const (
	Adds Kind = iota
	Changes
	Removes
)

// A Waiting is the rows of one type and kind.
type Waiting struct {
	TypeURL      string
	Kind         Kind
	Names        []string // sorted, without duplicates
	Since, Until time.Time
}

// Waiting returns the rows that wait for an interval, by type and kind.
func (l *List) Waiting() (all []Waiting) {
	type key struct {
		typeURL string
		kind    Kind
	}
	by := make(map[key]*Waiting)
	for set, rows := range l.sets {
		served := l.served(set)
		for name, r := range rows {
			if l.stops(set.typeURL(), r.removes()) {
				continue
			}
			of := key{set.typeURL(), Changes}
			if r.removes() {
				of.kind = Removes
			} else if served.Awaits(name) {
				of.kind = Adds
			}
			w := by[of]
			if w == nil {
				w = &Waiting{TypeURL: of.typeURL, Kind: of.kind, Since: r.since, Until: l.clock.until(l.wake, partOf(of.typeURL, r))}
				by[of] = w
			}
			if w.Names = append(w.Names, name); r.since.Before(w.Since) {
				w.Since = r.since
			}
		}
	}
	for _, w := range by {
		slices.Sort(w.Names)
		w.Names = slices.Compact(w.Names)
		all = append(all, *w)
	}
	slices.SortFunc(all, func(a, b Waiting) int {
		return cmp.Or(wire.CompareTypes(a.TypeURL, b.TypeURL), int(a.Kind-b.Kind))
	})
	return all
}

// Pass ends the wait of a type, and of what depends on it: what waits together passes together.
func (l *List) Pass(typeURL string) {
	if l.clock != nil {
		l.hasten(typeURL, time.Now())
	}
}
