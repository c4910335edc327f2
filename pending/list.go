package pending

import (
	"cmp"
	"sync/atomic"
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

	// Of what waits for stages.
	names      int                          // number of names
	touched    []resourceID                 // names whose rows, or whose state for the rest, have changed; with duplicates
	changes    bool                         // a newest state has changed since the last report
	changed    map[resourceID]struct{}      // the names whose newest states have; nil if there are none
	expires    time.Time                    // when the next TTL ends; zero is never
	comparison comparison                   // with editions
	withdrawn  map[withdrawnChange]struct{} // since ShowAsRest; see recordWithdrawn

	published published
}

// A published is what goroutines other than that of the writer may read of a list.
type published struct {
	revision atomic.Uint64 // of the rows
	any      atomic.Bool   // there is a row
	closed   chan struct{} // closed by Close
	last     stored        // what the list had when it was closed
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

// compare compares sets by the order in which their types are sent.
func (k setKey) compare(o setKey) int {
	return cmp.Or(wire.CompareTypes(k.typeURL(), o.typeURL()), cmp.Compare(k.key, o.key), cmp.Compare(k.kind, o.kind))
}

// A resourceID identifies a resource by texts, because its Name may be released and created again while an edition is open.
type resourceID struct{ key, name string }

// typeURL returns the type of the resource.
func (id resourceID) typeURL() string { return setKey{key: id.key}.typeURL() }

// The states of a name are what both sets of a type have of it, by Kind. A set without state of the name is not changed.
type states [2]cache.Statement

// A row is the newest state of one name of a set, which clients are not sent yet. If it waits for an interval, the name is that
// of the resource, and stands for all names of it.
type row struct {
	cache.Statement         // without a name
	copied          *copied // nil unless the state is copied from another view
	cause           cache.Cause
	since           time.Time // when it began to wait
	restored        bool      // a snapshot had it, and the origin has not stated the name since
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

// A staging is what waits until it is shown to cohorts and to the rest, in a view with cohorts ([cache.Config.Cohorts]).
type staging struct {
	rows    map[setKey]map[string]row
	systems map[setKey]string // versions of responses, of sets with rows
	expires time.Time         // when the next TTL of a row ends; zero is never
}

// A stop is that changes wait for an operator or for stages. The zero value is that they do not.
type stop struct {
	frozen     time.Time // since when all changes wait; zero if they do not
	rolledBack time.Time // since when clients have an earlier state, and changes of some types wait; zero if they do not
	staged     bool      // the view has cohorts: changes of some types wait until they are shown

	beforeFreeze *staging // what waited for stages when the origin was frozen; nil if it is not frozen, or not staged

	systems map[setKey]string                     // versions of responses, of sets with rows that are stopped
	aliases map[setKey]map[string]map[string]bool // names of the rows that have a resource of another name, by that name
	target  *string                               // the newest address of the origin; nil if that of the source is
}

// newStop returns a stop without a command of an operator.
func newStop(staged bool) stop {
	s := stop{staged: staged}
	if staged {
		s.begin()
	}
	return s
}

// begin makes room for rows that are stopped.
func (s *stop) begin() {
	if s.systems == nil {
		s.systems, s.aliases = make(map[setKey]string), make(map[setKey]map[string]map[string]bool)
	}
}

// New returns the list in front of a writer. Without a clock, nothing waits for an interval.
func New(w *cache.Writer, clock *Clock) *List {
	return &List{
		w: w, clock: clock, wake: make(owner, 1), sets: make(map[setKey]map[string]row), parts: make(map[part]int),
		stop: newStop(w.View().Cohorts() > 0), published: published{closed: make(chan struct{})},
	}
}

// Writer returns the writer of the list.
func (l *List) Writer() *cache.Writer { return l.w }

// Wake returns a channel that receives when Step must be called.
func (l *List) Wake() <-chan struct{} { return l.wake }

// recordRows records that the rows have changed.
func (l *List) recordRows() {
	l.published.revision.Add(1)
	l.published.any.Store(len(l.parts) > 0 || l.beforeFreeze != nil && len(l.beforeFreeze.rows) > 0)
}

// partOf returns the part to which a row belongs.
func partOf(typeURL string, r row) part {
	if r.removes() {
		return removalsOf(typeURL)
	}
	return part{typeURL: typeURL}
}

// isStopped reports whether changes may wait for an operator or for stages.
func (s *stop) isStopped() bool { return s.staged || s.isCommanded() }

// isCommanded reports whether changes wait for an operator.
func (s *stop) isCommanded() bool { return s.Frozen() || !s.rolledBack.IsZero() }

// Frozen reports whether an operator has frozen the origin.
func (s *stop) Frozen() bool { return !s.frozen.IsZero() }

// stops reports whether changes of a type, or its removals, wait for an operator or for stages.
func (l *List) stops(typeURL string, removal bool) bool {
	return l.Frozen() || (l.staged || !l.rolledBack.IsZero()) && l.ofStages(typeURL, removal)
}

// stopsRow reports whether a row waits for an operator or for stages.
func (l *List) stopsRow(set setKey, r row) bool { return l.stops(set.typeURL(), r.removes()) }

// rest returns the number that stands for the clients in no cohort.
func (l *List) rest() int { return l.w.View().Cohorts() }

// stages reports whether changes of a type, or its removals, reach cohorts first.
func (l *List) stages(typeURL string, removal bool) bool {
	return l.staged && l.ofStages(typeURL, removal)
}

// ofStages reports whether changes of a type, or its removals, are part of a rollout and of a rollback.
func (l *List) ofStages(typeURL string, removal bool) bool {
	return l.w.View().Waits(typeURL) || removal && wire.NeverOld(typeURL)
}

// stagesRow reports whether a row of a set, which is the last good state or one by name, waits for stages.
func (l *List) stagesRow(set setKey, r row) bool {
	return l.stages(set.typeURL(), r.removes()) && l.w.Generation().Type(set.key).HasLastGood(set.kind)
}

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
