package pending

import (
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
	stop
}

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

// A row is the newest state of one name of a set, which clients are not sent yet. If it waits for an interval, the name is that
// of the resource, and stands for all names of it.
type row struct {
	cache.Statement         // without a name
	copied          *copied // nil unless the state is copied from another view
	cause           cache.Cause
	since           time.Time // when it began to wait
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
	return r.Resource == nil
}

// resource returns the newest resource of a row of a set; nil if there is none, also because its TTL has ended.
func (r row) resource(set setKey) *wire.Resource {
	switch {
	case r.copied != nil:
		return r.copied.resource(set)
	case !r.Deadline.IsZero() && !time.Now().Before(r.Deadline):
		return nil
	}
	return r.Resource
}

// resource returns the newest resource of a copied state; nil if there is none.
func (c *copied) resource(set setKey) *wire.Resource {
	if e := c.from.Generation().Type(set.key).Set(set.kind).Get(c.name); e.Present() {
		return e.Resource
	}
	return nil
}

// content returns a row with a resource, or with a removal for nil.
func content(r *wire.Resource) row {
	return row{Statement: cache.Statement{HasContent: true, Resource: r}}
}

// A stop is the command of an operator that changes wait. The zero value is none.
type stop struct {
	frozen     time.Time // since when all changes wait; zero if they do not
	rolledBack time.Time // since when clients have an earlier state, and changes of some types wait; zero if they do not

	systems map[setKey]string                     // versions of responses, of sets with rows that wait for an operator
	aliases map[setKey]map[string]map[string]bool // names of the rows that have a resource of another name, by that name
	target  *string                               // the newest address of the origin; nil if that of the source is
}

// New returns the list in front of a writer. Without a clock, nothing waits for an interval.
func New(w *cache.Writer, clock *Clock) *List {
	return &List{
		w: w, clock: clock, wake: make(owner, 1), sets: make(map[setKey]map[string]row), parts: make(map[part]int),
	}
}

// Writer returns the writer of the list.
func (l *List) Writer() *cache.Writer { return l.w }

// Wake returns a channel that receives when Step must be called.
func (l *List) Wake() <-chan struct{} { return l.wake }

// partOf returns the part to which a row belongs.
func partOf(typeURL string, r row) part {
	if r.removes() {
		return removalsOf(typeURL)
	}
	return part{typeURL: typeURL}
}

// isStopped reports whether changes wait for an operator.
func (l *List) isStopped() bool { return l.Frozen() || !l.rolledBack.IsZero() }

// Frozen reports whether an operator has frozen the origin.
func (l *List) Frozen() bool { return !l.frozen.IsZero() }

// stops reports whether changes of a type, or its removals, wait for an operator.
func (l *List) stops(typeURL string, removal bool) bool {
	if l.rolledBack.IsZero() {
		return l.Frozen()
	}
	return l.w.View().Waits(typeURL) || removal && wire.NeverOld(typeURL)
}

// stopsRow reports whether a row waits for an operator.
func (l *List) stopsRow(set setKey, r row) bool { return l.stops(set.typeURL(), r.removes()) }

// served returns a set as clients are sent it.
func (l *List) served(set setKey) *cache.Set { return l.w.Generation().Type(set.key).Set(set.kind) }

// entry returns the served entry of a name; nil if there is none.
func (l *List) entry(set setKey, name string) *cache.Entry {
	n := l.w.View().FindName(set.key, name)
	if n == nil {
		return nil
	}
	return l.served(set).Get(n)
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
		l.recordAlias(set, name, old, false)
	}
	rows[name] = r
	l.count(set, r, 1)
	l.recordAlias(set, name, r, true)
}

// remove removes a row.
func (l *List) remove(set setKey, name string) {
	old, ok := l.row(set, name)
	if !ok {
		return
	}
	l.count(set, old, -1)
	l.recordAlias(set, name, old, false)
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

// countRows returns the number of rows that wait for an operator, or of the others.
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

// recordStopped records the number of rows that wait for an operator.
func (l *List) recordStopped() { l.w.RecordListed(l.countRows(true)) }

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

// Newest returns all names that wait, with their newest states.
func (l *List) Newest() []cache.Former { return l.states(func(setKey, row) bool { return true }) }

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
