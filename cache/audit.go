package cache

import (
	"cmp"
	"iter"
	"maps"
	"slices"

	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/immutable"
	"github.com/xdstender/tender/cache/wire"
)

// An audit pauses after auditBatch entries or names, or after auditBytes bytes of resources. It checks at most
// auditBatch names while it holds the lock of the index. Either limit is reached after some tens of microseconds.
const (
	auditBatch = 64
	auditBytes = 64 << 10
)

// A Fault is an inconsistency in the state of a view. No origin and no client can cause one: it is a defect of the
// relay, or damaged memory.
type Fault struct {
	Key     string // type URL or collection
	Part    string // "members" (the wildcard set), "named" (the set of names), errors of either, or "interest"
	Name    string // of the resource; empty for a fault of the whole part
	Problem string // description of the inconsistency, a constant text
}

// partInterest is the Fault.Part for subscriptions in the index.
const partInterest = "interest"

// Audit recomputes the state that the view updates incrementally, and yields the differences (B.43):
//
//   - the totals of each set, from its entries;
//   - the leaf of each resource, from its bytes;
//   - the items of each entry in the table and the logs;
//   - the watchers, entries and demand of each name.
//
// It changes nothing. Any number of goroutines may audit a view while others read and write it.
//
// Sets are immutable, so an audit checks one consistent version of each. That version stays in memory until the set
// is checked. Audit calls pace after each batch. pace may block; the audit ends if it returns false.
//
// Source: xds-relay#167, which requests such a check.
func (v *View) Audit(pace func() bool) iter.Seq[Fault] {
	return func(yield func(Fault) bool) {
		a := &audit{view: v, pace: pace, yield: yield}
		v.index.mu.Lock()
		keys := slices.Collect(maps.Keys(v.index.types))
		v.index.mu.Unlock()
		for _, key := range keys {
			t := v.Generation().Type(key)
			for _, part := range t.parts() {
				if a.key, a.part = key, part.name; !a.set(part.set) {
					return
				}
			}
			if a.part = partInterest; !a.interest(key) {
				return
			}
		}
	}
}

// An audit is one pass over a view.
type audit struct {
	view  *View
	pace  func() bool
	yield func(Fault) bool

	key, part      string  // of the set that is being checked
	entries, bytes int     // checked since the last pause
	found          []Fault // not yielded yet
}

// record records a fault of a name, or of the whole part if the name is empty. It does nothing unless faulty is true.
func (a *audit) record(faulty bool, name, problem string) {
	if faulty {
		a.found = append(a.found, Fault{a.key, a.part, name, problem})
	}
}

// advance adds to the work since the last pause, yields the recorded faults, and pauses after each batch. It reports
// whether to continue. The caller must hold no lock, because pace may block.
func (a *audit) advance(entries, bytes int) bool {
	for _, f := range a.found {
		if !a.yield(f) {
			return false
		}
	}
	a.found = a.found[:0]
	a.entries, a.bytes = a.entries+entries, a.bytes+bytes
	if a.entries < auditBatch && a.bytes < auditBytes {
		return true
	}
	a.entries, a.bytes = 0, 0
	return a.pace()
}

// A part is one of a type's sets.
type part struct {
	name string
	set  *Set
}

// parts returns a type's sets.
func (t *Type) parts() []part {
	return []part{
		{"members", &t.Wildcard}, {"named", &t.ByName},
		{"errors of members", t.Errors(Wildcard)}, {"errors of named", t.Errors(ByName)},
	}
}

// set checks one set of a type.
func (a *audit) set(s *Set) bool {
	if s.table.Empty() && len(s.log) == 0 {
		return true
	}
	var derived totals
	for id, e := range s.table.All() {
		derived.replace(nil, e)
		problem, size := s.entryFault(id, e), 0
		a.record(problem != "", e.Name.text, problem)
		if e.Present() {
			size = e.Resource.Size()
			intact := e.Resource.Intact()
			a.record(!intact, e.Name.text, "content does not match its digest")
			a.record(intact && fingerprint.Leaf(resourceType(a.key), e.Resource) != e.Leaf,
				e.Name.text, "leaf of the version does not match the content")
		}
		if !a.advance(1, size) {
			return false
		}
	}
	a.record(s.sum != derived.sum, "", "version does not match the resources")
	derived.sum = s.sum
	a.record(s.totals != derived, "", "totals do not match the resources")
	a.record(s.floor > s.last, "", "floor is after the last change")
	a.record(s.lastRemoval > s.last, "", "last removal is after the last change")
	sorted := slices.IsSortedFunc(s.log, func(a, b immutable.Change[*Name, Seq]) int {
		return cmp.Or(cmp.Compare(a.At, b.At), -1)
	})
	a.record(!sorted, "", "log is not sorted")
	a.record(sorted && len(s.log) > 0 && s.log[len(s.log)-1].At > s.last, "", "log has items after the last change")
	return a.advance(len(s.log)/auditBatch, 0)
}

// entryFault returns the problem with the entry at an id of the table; empty if there is none.
func (s *Set) entryFault(id uint32, e *Entry) string {
	switch renewed := e.Renewed(); {
	case e.Name.id != id:
		return "entry is stored under the id of another name"
	case !s.log.Has(e.Name, e.Seq):
		return "last change is missing from the log"
	case renewed > 0 && !s.renewals.Has(e.Name, renewed):
		return "last renewal is missing from the log"
	case !e.Present() && e.Seq > s.lastRemoval:
		return "removal is after the last removal of the set"
	case e.Present() && e.Name.text != e.Resource.Name && !s.aliased:
		return "entry is an alias, but the set is not marked as aliased"
	case e.Expires() && !s.limited:
		return "entry has a TTL, but the set is not marked as limited"
	}
	return ""
}

// interest checks the watchers, entries and demand of the names of a type. It holds the lock of the index during each
// batch.
func (a *audit) interest(key string) bool {
	x := &a.view.index
	x.mu.Lock()
	t := x.types[key]
	if t == nil {
		x.mu.Unlock()
		return true // the type was removed after Audit listed it
	}
	a.record(len(t.names)+len(t.freeIDs) != int(t.ids), "", "number of names does not match the allocated ids")
	a.record(len(t.wildcards) > 0 && !t.tracked && !t.queued, "", "wildcard has subscribers, but no upstream subscription")
	for i, wc := range t.wildcards {
		a.record(wc.at != i || x.watches[wc.watch.id] != wc.watch, "", "wildcard has the subscription of a closed watch")
	}
	checked := 0
	for _, n := range t.names { // the loop stays valid if names are added or removed between batches
		if x.types[key] == t {
			problem := a.view.nameFault(t, n)
			a.record(problem != "", n.text, problem)
		}
		if checked++; checked%auditBatch > 0 {
			continue
		}
		x.mu.Unlock()
		if !a.advance(auditBatch, 0) {
			return false
		}
		x.mu.Lock()
	}
	x.mu.Unlock()
	return a.advance(checked%auditBatch, 0)
}

// nameFault returns the problem with a name in the index; empty if there is none. The index must be locked, so that
// the generations do not change.
func (v *View) nameFault(t *indexType, n *Name) string {
	typ := v.current.Load().Type(t.url)
	entries := v.countEntries(t.url, n)
	switch {
	case t.names[n.text] != n:
		return "index has another Name of the same text"
	case n.entries != entries:
		return "number of entries does not match the sets"
	case !v.index.watchersOpen(n):
		return "watchers contain a closed watch or a duplicate"
	case n.tracked || n.queued:
	case n.watchers != nil:
		return "name has subscribers, but no upstream subscription"
	case entries == 0:
		return "unused name was not removed"
	}
	if !v.reachesName(typ, t, n) {
		return "alias or variant is missing from the index"
	}
	return ""
}

// reachesName reports whether changes of a resource are applied to a name that differs from the name of the resource.
// An alias must be in the branch, and a name with parameters in the index. The index must be locked.
func (v *View) reachesName(typ *Type, t *indexType, n *Name) bool {
	if e := typ.ByName.Get(n); e.Present() && e.Resource.Name != n.text {
		branches := v.writers[n.source].branches
		at := slices.IndexFunc(branches, func(b *branch) bool { return b.view == v })
		if !slices.Contains(branches[at].aliases[t.url][e.Resource.Name], n) {
			return false
		}
	}
	plain := wire.PlainName(n.text)
	return plain == n.text || slices.Contains(t.variants[plain], n)
}

// watchersOpen reports whether the watchers of a name are open watches without duplicates. The index must be locked.
func (x *index) watchersOpen(n *Name) bool {
	if n.watchers == nil {
		return true
	}
	for i, id := range n.watchers.ids {
		if i > 0 && id <= n.watchers.ids[i-1] || int(id) >= len(x.watches) || x.watches[id] == nil {
			return false
		}
	}
	return true
}
