package cache

import (
	"iter"
	"maps"
	"slices"
	"sort"

	"github.com/xdstender/tender/cache/wire"
)

// auditPiece is how many entries or names an audit looks at before it pauses, and under
// one hold of the index's lock; auditBytes is how many bytes of resources. Either takes
// some tens of microseconds.
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

// partInterest is the index of interest.
const partInterest = "interest"

// Audit derives again the state that the view keeps up to date change by change, and yields the differences (B.43):
// the sum and the counts of each set from its entries, the leaf of each resource from its bytes, the place of each
// entry in the table and in the logs, and the watchers, entries and demand of each name. It changes nothing, and any
// number of goroutines may audit a view while others read and write it.
//
// Sets are immutable, so each is checked as it was at one time, however long that takes; replaced generations stay in
// memory until then. After each piece of work pace is called, which may wait; the audit ends if it returns false.
//
// Source: xds-relay#167, which asks for such a check.
func (v *View) Audit(pace func() bool) iter.Seq[Fault] {
	return func(yield func(Fault) bool) {
		a := &audit{view: v, pace: pace, yield: yield}
		for _, key := range a.keys() {
			t := v.Generation().Type(key)
			for _, part := range t.parts() {
				if !a.set(key, part.name, part.set) {
					return
				}
			}
			if !a.interest(key) {
				return
			}
		}
	}
}

// An audit is one look at a view.
type audit struct {
	view  *View
	pace  func() bool
	yield func(Fault) bool

	entries, bytes int // checked since the last pause
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

// holds returns in how many sets of a kind, that of errors included, a name has an entry.
func (t *Type) holds(kind Kind, n *Name) (entries int) {
	for _, set := range []*Set{t.set(kind), t.Errors(kind)} {
		if set.Get(n) != nil {
			entries++
		}
	}
	return entries
}

// keys returns the types and collections that somebody has watched, or the origin spoken of.
func (a *audit) keys() []string {
	x := &a.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Collect(maps.Keys(x.types))
}

// looked counts work done, pauses after each piece, and reports whether to go on.
func (a *audit) looked(entries, bytes int) bool {
	a.entries, a.bytes = a.entries+entries, a.bytes+bytes
	if a.entries < auditPiece && a.bytes < auditBytes {
		return true
	}
	a.entries, a.bytes = 0, 0
	return a.pace()
}

// set looks at one set of a type.
func (a *audit) set(key, part string, s *Set) bool {
	if s.table.root == nil && len(s.log) == 0 {
		return true
	}
	derived := Set{}
	for id, e := range s.table.all() {
		derived.live++
		derived.account(nil, e)
		if what := s.faultAt(id, e); what != "" {
			if !a.yield(Fault{key, part, e.Name.text, what}) {
				return false
			}
		}
		size := 0
		if e.Present() {
			size = e.Resource.Size()
			if what := a.view.cfg.VersionSource.faultIn(resourceType(key), e); what != "" && !a.yield(Fault{key, part, e.Name.text, what}) {
				return false
			}
		}
		if !a.looked(1, size) {
			return false
		}
	}
	for _, what := range append(s.faultsBeside(&derived), ordered(s.log, s.last)...) {
		if !a.yield(Fault{key, part, "", what}) {
			return false
		}
	}
	return a.looked(len(s.log)/auditPiece, 0)
}

// faultAt returns what is wrong with an entry that stands in the table under an id.
func (s *Set) faultAt(id uint32, e *Entry) string {
	switch renewed := e.Renewed(); {
	case e.Name.id != id:
		return "it stands in the place of another name"
	case !logs(s.log, e.Name, e.Seq):
		return "the log does not have its last change"
	case renewed > 0 && !logs(s.renewals, e.Name, renewed):
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

// faultIn returns what is wrong with the resource of an entry.
func (src VersionSource) faultIn(typeURL string, e *Entry) string {
	switch {
	case !e.Resource.Intact():
		return "its bytes are not those that the origin sent"
	case src.leaf(typeURL, e.Resource) != e.Leaf:
		return "it adds to the version what its content does not say"
	}
	return ""
}

// faultsBeside returns in what the set differs from one that has the same entries.
func (s *Set) faultsBeside(derived *Set) (faults []string) {
	for _, f := range []struct {
		what string
		is   bool
	}{
		{"the version is not that of the resources", s.sum != derived.sum},
		{"the number of resources is wrong", s.count != derived.count},
		{"the number of bytes is wrong", s.bytes != derived.bytes},
		{"the number of entries is wrong", s.live != derived.live},
		{"the number of resources that expire is wrong", s.ttls != derived.ttls},
		{"the number of resources whose content was dropped is wrong", s.contentDropped != derived.contentDropped},
		{"it forgot a removal that was not made yet", s.floor > s.last},
		{"its last removal came after its last change", s.lastRemoval > s.last},
	} {
		if f.is {
			faults = append(faults, f.what)
		}
	}
	return faults
}

// ordered returns what is wrong with the order of a log.
func ordered(log []logged, last Seq) (faults []string) {
	before := Seq(0)
	for _, l := range log {
		if l.seq <= before {
			return []string{"the log is not in order"}
		}
		before = l.seq
	}
	if before > last {
		return []string{"the log goes beyond the last change"}
	}
	return nil
}

// logs reports whether a log that is in order has a name at a position.
func logs(log []logged, n *Name, seq Seq) bool {
	at := sort.Search(len(log), func(i int) bool { return log[i].seq >= seq })
	return at < len(log) && log[at] == logged{n, seq}
}

// interest looks at who watches, holds and demands the names of a type. The index is
// locked for each piece.
func (a *audit) interest(key string) bool {
	x := &a.view.index
	x.mu.Lock()
	t := x.types[key]
	if t == nil {
		x.mu.Unlock()
		return true // forgotten since
	}
	next, stop := iter.Pull(maps.Values(t.names)) // which goes on, whatever comes or goes meanwhile
	x.mu.Unlock()
	defer func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		stop()
	}()
	for first, more := true, true; more; first = false {
		var faults []Fault
		x.mu.Lock()
		if x.types[key] != t {
			more = false
		} else if first {
			faults = x.faultsOf(t)
		}
		for i := 0; more && i < auditPiece; i++ {
			n, ok := next()
			if more = ok; !ok {
				break
			}
			if what := a.view.faultOf(t, n); what != "" {
				faults = append(faults, Fault{key, partInterest, n.text, what})
			}
		}
		x.mu.Unlock()
		for _, f := range faults {
			if !a.yield(f) {
				return false
			}
		}
		if !a.looked(auditPiece, 0) {
			return false
		}
	}
	return true
}

// faultsOf returns what is wrong with the index of a type as a whole. It is locked.
func (x *index) faultsOf(t *indexType) (faults []Fault) {
	fault := func(what string) { faults = append(faults, Fault{t.url, partInterest, "", what}) }
	if len(t.names)+len(t.freeIDs) != int(t.ids) {
		fault("the number of names is wrong")
	}
	if len(t.wildcards) > 0 && !t.tracked && !t.queued {
		fault("streams want the members, and the origin was not told")
	}
	for i, wc := range t.wildcards {
		if wc.at != i || x.watches[wc.watch.id] != wc.watch {
			fault("a stream that has ended wants the members")
			break
		}
	}
	return faults
}

// faultOf returns what is wrong with a name in the index, which is locked: what the view
// holds does not change meanwhile.
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
	case len(n.watchers) > 0:
		return "streams want it, and the origin was not told"
	case held == 0:
		return "nobody needs it, and it was not forgotten"
	}
	if !v.reached(typ, t, n) {
		return "changes of the resource do not reach it"
	}
	return ""
}

// reached reports whether a name that is not the resource's own is known as such: as an
// alias of it, or as a name with parameters. The index is locked.
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

// watched reports whether those who watch a name are streams, each once. The index is locked.
func (x *index) watched(n *Name) bool {
	for i, id := range n.watchers {
		if i > 0 && id <= n.watchers[i-1] || int(id) >= len(x.watches) || x.watches[id] == nil {
			return false
		}
	}
	return true
}

// all yields the entries of a table with the ids under which they stand.
func (t table) all() iter.Seq2[uint32, *Entry] {
	return func(yield func(uint32, *Entry) bool) {
		if t.root != nil {
			t.root.all(t.depth, 0, yield)
		}
	}
}

func (n *node) all(level int, id uint32, yield func(uint32, *Entry) bool) bool {
	for at := range uint32(fanout) {
		below := id<<fanoutBits | at
		switch {
		case level == 0 && n.entries[at] != nil:
			if !yield(below, n.entries[at]) {
				return false
			}
		case level > 0 && n.children[at] != nil:
			if !n.children[at].all(level-1, below, yield) {
				return false
			}
		}
	}
	return true
}
