package pending

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// A List stands in front of the writer of a view, and holds the changes that wait. Only the goroutine that owns the writer may
// use it.
type List struct {
	w     *cache.Writer
	clock *Clock // nil: nothing waits
	wake  owner
	sets  map[setKey]map[string]row // by name; without empty maps
	parts map[part]int              // numbers of rows; without zeros
	cause cache.Cause               // of subsequent changes
}

// intervalReason is why rows wait.
const intervalReason = "interval"

// A setKey identifies a set of the view.
type setKey struct {
	key  string // type URL or collection
	kind cache.Kind
}

// typeURL returns the type of the resources in the set.
func (k setKey) typeURL() string {
	typeURL, _, _ := cache.SplitCollection(k.key)
	return typeURL
}

// A row is the newest state of one name of a set, which clients are not sent yet.
type row struct {
	resource *wire.Resource // nil if the origin removed it, and for copies
	copied   *copied        // nil unless the state is copied from another view
	cause    cache.Cause
	since    time.Time // when it began to wait
}

// A copied state is that of a name in another view. It is read when it passes, so that no older one is ever copied.
type copied struct {
	from    *cache.View
	name    *cache.Name // in the other view
	removes bool        // the other view removed it
}

// removes reports whether the row is a removal.
func (r row) removes() bool {
	if r.copied != nil {
		return r.copied.removes
	}
	return r.resource == nil
}

// New returns the list in front of a writer. Without a clock, nothing waits.
func New(w *cache.Writer, clock *Clock) *List {
	return &List{
		w: w, clock: clock, wake: make(owner, 1), sets: make(map[setKey]map[string]row), parts: make(map[part]int),
	}
}

// Writer returns the writer of the list.
func (l *List) Writer() *cache.Writer { return l.w }

// Wake returns a channel that receives when Step must be called.
func (l *List) Wake() <-chan struct{} { return l.wake }

// SetCause sets the cause of the next changes. A change that waits keeps the cause with which it was stated.
func (l *List) SetCause(c cache.Cause) {
	l.cause = c
	l.w.SetCause(c)
}

// Apply applies a response of the origin to a set, like [cache.Writer.Apply], except what must wait. The returned change counts
// what waits, too.
func (l *List) Apply(kind cache.Kind, u wire.Update) cache.Change {
	if l.clock == nil {
		return l.w.Apply(kind, u)
	}
	set, now := setKey{u.TypeURL, kind}, time.Now()
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
	d := division{list: l, set: set, served: l.served(set)}
	return len(u.Errors) > 0 && slices.ContainsFunc(u.Removed, func(name string) bool {
		return u.Fails(name) && d.entry(name).Present()
	})
}

// served returns a set as clients are sent it.
func (l *List) served(set setKey) *cache.Set {
	t := l.w.Generation().Type(set.key)
	if set.kind == cache.ByName {
		return &t.ByName
	}
	return &t.Wildcard
}

// divide adds what must wait to the list, and applies the rest.
func (l *List) divide(set setKey, u wire.Update, waits admission) cache.Change {
	d := division{list: l, set: set, served: l.served(set), direct: u}
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
	c.Seen, c.Changed, c.New, c.Removed = c.Seen+d.c.Seen, c.Changed+d.c.Changed, c.New+d.c.New, c.Removed+d.c.Removed
	c.Same, c.Reused = c.Same+d.c.Same, append(c.Reused, d.c.Reused...)
	return c
}

// A division divides one update into rows and what is applied at once.
type division struct {
	list   *List
	set    setKey
	served *cache.Set
	direct wire.Update  // what does not wait
	c      cache.Change // of what waits, compared with the newest state

	awaited, dropped []string // names that the list adds, and that it adds no longer
}

// entry returns the served entry of a name; nil if there is none, which also holds for a name to which the session does not
// subscribe, or only with parameters or under an alias. What has no entry is not listed.
func (d *division) entry(name string) *cache.Entry {
	n := d.list.w.View().FindName(d.set.key, name)
	if n == nil {
		return nil
	}
	return d.served.Get(n)
}

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
	latest := listed.resource
	if !isListed && e.Present() {
		latest = e.Resource
	}
	d.count(r, latest)
	d.list.put(d.set, r.Name, row{resource: r})
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
	switch d.c.Seen++; {
	case latest == nil:
		d.c.Changed, d.c.New = d.c.Changed+1, d.c.New+1
	case !latest.SameContent(r):
		d.c.Changed++
		if r.OriginVersion != "" && r.OriginVersion == latest.OriginVersion && r.Digest != latest.Digest {
			d.c.Reused = append(d.c.Reused, r.Name)
		}
	case latest.OriginVersion == r.OriginVersion:
		d.c.Same++
	}
}

// remove divides a removal that the origin states.
func (d *division) remove(name string, waits bool) {
	e := d.entry(name)
	listed, isListed := d.list.row(d.set, name)
	if isListed && listed.resource != nil || !isListed && e.Present() && waits {
		d.c.Removed++
	}
	if !waits || !e.Present() {
		d.unlist(name)
		d.direct.Removed = append(d.direct.Removed, name)
		return
	}
	d.list.put(d.set, name, row{})
}

// unlist removes the row of a name.
func (d *division) unlist(name string) {
	if listed, ok := d.list.row(d.set, name); ok {
		if d.list.remove(d.set, name); listed.resource != nil {
			d.dropped = append(d.dropped, name)
		}
	}
}

// row returns the row of a name.
func (l *List) row(set setKey, name string) (r row, listed bool) {
	r, listed = l.sets[set][name]
	return r, listed
}

// put adds a row, or replaces that of its name, whose cause remains: since then, clients lack the newest state.
func (l *List) put(set setKey, name string, r row) {
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
	}
	rows[name] = r
	l.count(set, r, 1)
}

// remove removes a row.
func (l *List) remove(set setKey, name string) {
	old, ok := l.row(set, name)
	if !ok {
		return
	}
	l.count(set, old, -1)
	if delete(l.sets[set], name); len(l.sets[set]) == 0 {
		delete(l.sets, set)
	}
}

// count adds n to the number of rows of a part. It is kept, since each response asks which parts have rows.
func (l *List) count(set setKey, of row, n int) {
	p := partOf(set.typeURL(), of)
	if l.parts[p] += n; l.parts[p] == 0 {
		delete(l.parts, p)
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
	l.clock.drop(l.wake, func(w *wait) bool { return w.typeURL == typeURL && l.parts[w.part] == 0 })
}

// partOf returns the part to which a row belongs.
func partOf(typeURL string, r row) part {
	if r.removes() {
		return removalsOf(typeURL)
	}
	return part{typeURL: typeURL}
}

// Step applies the rows whose wait is over, and returns when to call it again; zero if nothing waits.
func (l *List) Step(now time.Time) (next time.Time) {
	if l.clock == nil {
		return time.Time{}
	}
	for {
		due, next := l.clock.due(l.wake, now)
		if due == nil {
			return next
		}
		l.pass(due.part)
		l.clock.end(due, now)
	}
}

// pass applies the rows of a part.
func (l *List) pass(p part) {
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

// apply applies rows to the view, with the cause of the oldest one.
func (l *List) apply(set setKey, rows map[string]row) {
	u := wire.Update{TypeURL: set.key, SystemVersion: l.served(set).System()}
	var first row
	var copies []*cache.Name
	var from *cache.View
	for name, r := range rows {
		if first.since.IsZero() || r.cause.Received.Before(first.cause.Received) {
			first = r
		}
		switch {
		case r.copied != nil:
			copies, from = append(copies, r.copied.name), r.copied.from
		case r.resource != nil:
			u.Resources = append(u.Resources, r.resource)
		default:
			u.Removed = append(u.Removed, name)
		}
	}
	slices.SortFunc(u.Resources, func(a, b *wire.Resource) int { return strings.Compare(a.Name, b.Name) })
	slices.Sort(u.Removed)
	slices.SortFunc(copies, (*cache.Name).Compare)
	if first.cause.Trace != nil {
		first.cause.Trace.Waited(intervalReason, first.since, time.Now())
	}
	l.w.SetCause(first.cause)
	defer l.w.SetCause(l.cause)
	if len(copies) > 0 {
		l.w.Copy(set.kind, from.Generation(), set.key, copies)
	}
	if len(u.Resources)+len(u.Removed) > 0 {
		l.w.Apply(set.kind, u)
	}
}

func (l *List) hasten(typeURL string, now time.Time) {
	l.clock.hasten(func(w *wait) bool { return dependsOn(typeURL, w.typeURL) })
	l.Step(now)
}

// hastenAll ends all waits before a removal that cannot wait: clients may be sent there what refers to the removed no longer.
func (l *List) hastenAll(now time.Time) {
	l.clock.hasten(func(*wait) bool { return true })
	l.Step(now)
}

// passAll applies all rows, except those that wait for another list.
func (l *List) passAll() {
	if len(l.sets) > 0 {
		l.clock.hasten(func(w *wait) bool { return w.owner == l.wake })
		l.Step(time.Now())
	}
}

// SetConnected records whether the connection to the origin is open, like [cache.Writer.SetConnected]. What waits passes first.
func (l *List) SetConnected(up bool) {
	l.passAll()
	l.w.SetConnected(up)
}

// SetSource records the state of the source, like [cache.Writer.SetSource]. If it is a new connection, what waits passes first.
func (l *List) SetSource(state cache.Source) {
	if old := l.w.Source(); old.Connected != state.Connected || old.Since != state.Since {
		l.passAll()
	}
	l.w.SetSource(state)
}

// SetPhase records the phase of a wildcard set, like [cache.Writer.SetPhase]. A change of phase ends the wait of the type, and of
// what depends on it.
func (l *List) SetPhase(key string, p cache.Phase) {
	if len(l.sets) > 0 && l.w.Generation().Type(key).Phase != p {
		l.hasten(setKey{key: key}.typeURL(), time.Now())
	}
	l.w.SetPhase(key, p)
}

// SetPresumed records that a settled wildcard set is presumed complete, like [cache.Writer.SetPresumed]. It ends waits as SetPhase
// does.
func (l *List) SetPresumed(key string) {
	if len(l.sets) > 0 {
		l.hasten(setKey{key: key}.typeURL(), time.Now())
	}
	l.w.SetPresumed(key)
}

// Forget ends the subscription to names, like [cache.Writer.Forget], and drops their rows.
func (l *List) Forget(typeURL string, names []*cache.Name) (kept []*cache.Name) {
	kept = l.w.Forget(typeURL, names)
	set := setKey{typeURL, cache.ByName}
	if len(l.sets[set]) == 0 {
		return kept
	}
	for _, n := range names {
		if !slices.Contains(kept, n) {
			l.remove(set, n.String())
		}
	}
	l.dropEmpty(typeURL)
	return kept
}

// ForgetWildcard empties a wildcard set or a collection without subscribers, like [cache.Writer.ForgetWildcard], and drops its
// rows.
func (l *List) ForgetWildcard(key string) bool {
	if !l.w.ForgetWildcard(key) {
		return false
	}
	if set := (setKey{key, cache.Wildcard}); len(l.sets[set]) > 0 {
		for name := range l.sets[set] {
			l.remove(set, name)
		}
		l.dropEmpty(set.typeURL())
	}
	return true
}

// Close drops all rows. Nothing in another list waits for this one any longer.
func (l *List) Close() {
	clear(l.sets)
	clear(l.parts)
	if l.clock != nil {
		l.clock.drop(l.wake, func(*wait) bool { return true })
	}
}

// Get returns what the list states of a name of a set: a resource, or nil if it was removed. It returns false if the list does
// not state it: then the view has its newest state.
func (l *List) Get(kind cache.Kind, key, name string) (r *wire.Resource, listed bool) {
	of, listed := l.row(setKey{key, kind}, name)
	return of.resource, listed
}

// Rows yields the names of a set that the list states, with their resources; nil for a removal.
func (l *List) Rows(kind cache.Kind, key string) iter.Seq2[string, *wire.Resource] {
	return func(yield func(string, *wire.Resource) bool) {
		for name, r := range l.sets[setKey{key, kind}] {
			if !yield(name, r.resource) {
				return
			}
		}
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

// Waiting returns all rows, by type and kind.
func (l *List) Waiting() (all []Waiting) {
	type key struct {
		typeURL string
		kind    Kind
	}
	by := make(map[key]*Waiting)
	for set, rows := range l.sets {
		served := l.served(set)
		for name, r := range rows {
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
		return cmp.Or(wire.Rank(a.TypeURL)-wire.Rank(b.TypeURL), cmp.Compare(a.TypeURL, b.TypeURL), int(a.Kind-b.Kind))
	})
	return all
}

// Pass ends the wait of a type, and of what depends on it: what waits together passes together.
func (l *List) Pass(typeURL string) {
	if l.clock != nil {
		l.hasten(typeURL, time.Now())
	}
}

// Len returns the number of rows.
func (l *List) Len() (n int) {
	for _, rows := range l.parts {
		n += rows
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
