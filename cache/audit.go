package cache

import (
	"cmp"
	"iter"
	"maps"
	"slices"

	"github.com/xdstender/tender/cache/immutable"
	"github.com/xdstender/tender/cache/wire"
)

// auditPiece is how many entries or names an audit checks before it pauses, and while it holds the lock of the index;
// auditBytes is how many bytes of resources. Either takes some tens of microseconds.
const (
	auditPiece = 64
	auditBytes = 64 << 10
)

// A Fault is an inconsistency in the state of a view. No origin and no client can cause one: it is a defect of the
// relay, or damaged memory.
type Fault struct {
	Key  string // type URL or collection
	Part string // of the type: "members" (the wildcard set), "named" (the set of names), errors of either, or "interest"
	Name string // empty if it is about the part as a whole
	What string // the inconsistency: one of a few texts
}

// partInterest is the Fault.Part of the index of interest.
const partInterest = "interest"

// Audit recomputes the state that the view updates incrementally, and yields the differences (B.43): the totals of
// each set from its entries, the leaf of each resource from its bytes, the items of each entry in the table and the
// logs, and the watchers, entries and demand of each name. It changes nothing, and any number of goroutines may audit
// a view while others read and write it.
//
// Sets are immutable, so each is checked as it was at one time. Its generation stays in memory until then. After each
// piece of work, pace is called, which may wait; the audit ends if it returns false.
//
// Source: xds-relay#167, which asks for such a check.
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

	key, part      string  // what is being checked
	entries, bytes int     // checked since the last pause
	found          []Fault // not yielded yet
}

// check records a fault, if there is one.
func (a *audit) check(faulty bool, name, what string) {
	if faulty {
		a.found = append(a.found, Fault{a.key, a.part, name, what})
	}
}

// checked counts work, yields faults, pauses after each piece of work, and reports whether to continue. The caller
// holds no lock.
func (a *audit) checked(entries, bytes int) bool {
	for _, f := range a.found {
		if !a.yield(f) {
			return false
		}
	}
	a.found = a.found[:0]
	a.entries, a.bytes = a.entries+entries, a.bytes+bytes
	if a.entries < auditPiece && a.bytes < auditBytes {
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
		what, size := s.faultAt(id, e), 0
		a.check(what != "", e.Name.text, what)
		if e.Present() {
			size = e.Resource.Size()
			intact := e.Resource.Intact()
			a.check(!intact, e.Name.text, "its bytes are not those that the origin sent")
			a.check(intact && a.view.cfg.VersionSource.Leaf(resourceType(a.key), e.Resource) != e.Leaf,
				e.Name.text, "it adds to the version what its content does not say")
		}
		if !a.checked(1, size) {
			return false
		}
	}
	a.check(s.sum != derived.sum, "", "the version is not that of the resources")
	derived.sum = s.sum
	a.check(s.totals != derived, "", "the totals are not those of the resources")
	a.check(s.floor > s.last, "", "it forgot a removal that was not made yet")
	a.check(s.lastRemoval > s.last, "", "its last removal came after its last change")
	sorted := slices.IsSortedFunc(s.log, func(a, b immutable.Change[*Name, Seq]) int { return cmp.Or(cmp.Compare(a.At, b.At), -1) })
	a.check(!sorted, "", "the log is not in order")
	a.check(sorted && len(s.log) > 0 && s.log[len(s.log)-1].At > s.last, "", "the log goes beyond the last change")
	return a.checked(len(s.log)/auditPiece, 0)
}

// faultAt returns what is wrong with the entry of an id in the table; empty if nothing is.
func (s *Set) faultAt(id uint32, e *Entry) string {
	switch renewed := e.Renewed(); {
	case e.Name.id != id:
		return "it stands in the place of another name"
	case !s.log.Has(e.Name, e.Seq):
		return "the log does not have its last change"
	case renewed > 0 && !s.renewals.Has(e.Name, renewed):
		return "the log does not have its last renewal"
	case !e.Present() && e.Seq > s.lastRemoval:
		return "it was removed after the set's last removal"
	case e.Present() && e.Name.text != e.Resource.Name && !s.aliased:
		return "it is an alias, and the set knows none"
	case e.Expires() && !s.limited:
		return "it expires, and the set knows nothing that does"
	}
	return ""
}

// interest checks the watchers, entries and demand of the names of a type. It locks the index for each piece.
func (a *audit) interest(key string) bool {
	x := &a.view.index
	x.mu.Lock()
	t := x.types[key]
	if t == nil {
		x.mu.Unlock()
		return true // forgotten since
	}
	a.check(len(t.names)+len(t.freeIDs) != int(t.ids), "", "the number of names is wrong")
	a.check(len(t.wildcards) > 0 && !t.tracked && !t.queued, "", "streams want the members, and the origin was not told")
	for i, wc := range t.wildcards {
		a.check(wc.at != i || x.watches[wc.watch.id] != wc.watch, "", "a stream that has ended wants the members")
	}
	next, stop := iter.Pull(maps.Values(t.names)) // may be continued after additions and removals
	x.mu.Unlock()
	defer stop()
	for more := true; more; {
		x.mu.Lock()
		for i := 0; more && i < auditPiece; i++ {
			var n *Name
			if n, more = next(); more && x.types[key] == t {
				what := a.view.faultOf(t, n)
				a.check(what != "", n.text, what)
			}
		}
		x.mu.Unlock()
		if !a.checked(auditPiece, 0) {
			return false
		}
	}
	return true
}

// faultOf returns what is wrong with a name in the index; empty if nothing is. The index is locked, so the
// generations do not change.
func (v *View) faultOf(t *indexType, n *Name) string {
	typ := v.head.Load().Type(t.url)
	held := v.holds(t.url, n)
	switch {
	case t.names[n.text] != n:
		return "the index has another in its place"
	case n.entries != held:
		return "the number of its entries is wrong"
	case !v.index.watched(n):
		return "a stream that has ended watches it, or one watches it twice"
	case n.tracked || n.queued:
	case n.watchers != nil:
		return "streams want it, and the origin was not told"
	case held == 0:
		return "nobody needs it, and it was not forgotten"
	}
	if !v.reached(typ, t, n) {
		return "changes of the resource do not reach it"
	}
	return ""
}

// reached reports whether changes of a resource reach a name that is not its own: the ledger has the name as an
// alias, or the index has it as a name with parameters. The index is locked.
func (v *View) reached(typ *Type, t *indexType, n *Name) bool {
	if e := typ.ByName.Get(n); e.Present() && e.Resource.Name != n.text {
		views := v.writers[n.source].served
		at := slices.IndexFunc(views, func(s *served) bool { return s.view == v })
		if !slices.Contains(views[at].aliases[t.url][e.Resource.Name], n) {
			return false
		}
	}
	plain := wire.PlainName(n.text)
	return plain == n.text || slices.Contains(t.variants[plain], n)
}

// watched reports whether the watchers of a name are open watches, each once. The index is locked.
func (x *index) watched(n *Name) bool {
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
