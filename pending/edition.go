package pending

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/wire"
)

// An Edition has the state of some names of a view after a change of them, which may be shown to cohorts, and before it. It is a
// copy of rows, and immutable.
type Edition struct {
	types map[string]*editedType // by type URL or collection; nil if an earlier process made the edition

	// Changes has the content in the edition of the resources that differ from those that the rest was served, by type URL
	// or collection and name. The digest of a removed resource is zero.
	Changes map[string]map[string]wire.Digest

	// Large reports whether the edition removes so many resources of a type that the origin may have lost its state
	// ([cache.LargeRemoval]).
	Large bool
}

// Names are names of resources, by type URL or collection.
type Names map[string]map[string]struct{}

// Add adds a name.
func (n Names) Add(key, name string) {
	if n[key] == nil {
		n[key] = make(map[string]struct{})
	}
	n[key][name] = struct{}{}
}

// Has reports whether there is a name.
func (n Names) Has(key, name string) bool {
	_, has := n[key][name]
	return has
}

// An editedType has the names of a type or collection that an edition changes.
type editedType struct {
	era     uint64       // of the wildcard set
	size    int          // number of resources that the rest was served
	was, is [2]string    // versions of the origin's responses, by Kind
	names   []editedName // ordered by their texts
}

// An editedName has the states of a name before and after an edition.
type editedName struct {
	text    string
	name    *cache.Name // nil if the rest had no such name
	members bool        // Show changes the wildcard set, which is no incomplete first state
	was, is states
}

// edits reports whether Show changes a set to the state of the name in the edition.
func (n *editedName) edits(kind cache.Kind) bool {
	return n.is[kind].Exists() && (kind == cache.ByName || n.members)
}

// A Difference is a change of a resource by an edition.
type Difference struct {
	Key     string // type URL or collection
	Name    string
	Was, Is *wire.Resource // as served to the rest when the edition was made, and as in the edition; nil is none
}

// Diff yields the changes of the edition in the order in which types are sent, then by key and name. It yields nothing
// if an earlier process made the edition.
func (e *Edition) Diff() iter.Seq[Difference] {
	return func(yield func(Difference) bool) {
		for _, key := range e.keys() {
			for _, n := range e.types[key].names {
				was, is := n.resources()
				if n.changes() && !yield(Difference{key, n.text, was, is}) {
					return
				}
			}
		}
	}
}

// Shows reports whether the edition has states that Show shows. It may be nil.
func (e *Edition) Shows() bool { return e != nil && len(e.types) > 0 }

// keys returns the type URLs and collections of the edition in the order in which types are sent.
func (e *Edition) keys() []string {
	return slices.SortedFunc(maps.Keys(e.types), func(a, b string) int { return setKey{key: a}.compare(setKey{key: b}) })
}

// resources returns the resources of a name before and after the edition, as subscribers to the name see them. If these
// are equal, it returns the resources of the set in which they differ.
func (n *editedName) resources() (was, is *wire.Resource) {
	for kind := range n.was {
		if before, after := n.was[kind].Resource, n.is[kind].Resource; !sameContent(before, after) {
			was, is = before, after
		}
	}
	before, after := n.was.last(), n.is.last()
	if was == nil && is == nil || !sameContent(before, after) {
		return before, after
	}
	return was, is
}

// sameContent reports whether two resources, or nil, have the same content.
func sameContent(a, b *wire.Resource) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.SameContent(b)
}

// last returns the resource of a name that its subscribers see; nil if there is none, also because its TTL has ended.
func (of *states) last() *wire.Resource {
	for _, kind := range []cache.Kind{cache.ByName, cache.Wildcard} {
		if s := &of[kind]; s.Resource != nil && !s.Expired() {
			return s.Resource
		}
	}
	return nil
}

// same reports whether readers see no difference between two states of a name.
func (of *states) same(o *states) bool {
	return of[cache.Wildcard].Same(&o[cache.Wildcard]) && of[cache.ByName].Same(&o[cache.ByName])
}

// changes reports whether the edition changes the state of a name.
func (n *editedName) changes() bool { return !n.was.same(&n.is) }

// digestOf returns the digest of a resource; zero for nil.
func digestOf(r *wire.Resource) (d wire.Digest) {
	if r != nil {
		d = r.Digest
	}
	return d
}

// newEdition returns an edition without names.
func newEdition() *Edition {
	return &Edition{types: make(map[string]*editedType), Changes: make(map[string]map[string]wire.Digest)}
}

// edit returns the part of the edition for a type; one of what the rest is served if there is none.
func (e *Edition) edit(served *cache.Type, key string) *editedType {
	if e.types[key] == nil {
		system := [2]string{served.Wildcard.System(), served.ByName.System()}
		size := max(served.Wildcard.Count(), served.ByName.Count())
		e.types[key] = &editedType{era: served.Era(), size: size, was: system, is: system}
	}
	return e.types[key]
}

// describe sorts the names, and fills in Changes and Large.
func (e *Edition) describe() {
	e.Changes = make(map[string]map[string]wire.Digest, len(e.types))
	for key, t := range e.types {
		if len(t.names) == 0 {
			delete(e.types, key)
			continue
		}
		t.names = append(make([]editedName, 0, len(t.names)), t.names...)
		slices.SortFunc(t.names, func(a, b editedName) int { return strings.Compare(a.text, b.text) })
		changes := make(map[string]wire.Digest, len(t.names))
		for _, n := range t.names {
			changes[n.text] = digestOf(n.is.last())
		}
		e.Changes[key] = changes
		removed, added := t.count()
		e.Large = e.Large || cache.LargeRemoval(setKey{key: key}.typeURL(), removed, t.size, added)
	}
}

// count returns how many resources the edition removes and adds.
func (t *editedType) count() (removed, added int) {
	for _, n := range t.names {
		switch existed, exists := n.was.last() != nil, n.is.last() != nil; {
		case existed && !exists:
			removed++
		case !existed && exists:
			added++
		}
	}
	return removed, added
}

// name returns a name as the edition changes it; nil if it does not change the resource, or if an earlier process made the
// edition.
func (e *Edition) name(id resourceID) *editedName {
	if e.types[id.key] == nil {
		return nil
	}
	names := e.types[id.key].names
	at, found := slices.BinarySearchFunc(names, id.name, func(n editedName, text string) int {
		return strings.Compare(n.text, text)
	})
	if !found {
		return nil
	}
	return &names[at]
}

// Reversed returns the edition that undoes the edition after it was shown to the rest.
func (e *Edition) Reversed() *Edition {
	reversed := newEdition()
	for key, t := range e.types {
		removed, added := t.count()
		of := &editedType{era: t.era, size: t.size + added - removed, was: t.is, is: t.was}
		for _, n := range t.names {
			of.names = append(of.names, editedName{n.text, n.name, n.members, n.is, n.was})
		}
		reversed.types[key] = of
	}
	reversed.describe()
	return reversed
}

// shown returns the states of a name that the readers of a cohort's view, or of the rest, see.
func (l *List) shown(cohort int, id resourceID) (of states) {
	for kind := range of {
		of[kind] = l.w.Shown(cohort, cache.Kind(kind), id.key, id.name)
	}
	return of
}

// editedName returns a name in the states that the rest is served.
func (l *List) editedName(id resourceID) *editedName {
	was, members := l.shown(l.rest(), id), l.w.Generation().Type(id.key).HasLastGood(cache.Wildcard)
	return &editedName{id.name, l.w.View().FindName(id.key, id.name), members, was, was}
}

// newest returns the states of a name in what the rest is served, overlaid by what waits for stages.
func (l *List) newest(id resourceID) states { return l.overlaid(id, l.staging().rows) }

// overlaid returns the states of a name in what the rest is served, overlaid by rows.
func (l *List) overlaid(id resourceID, rows map[setKey]map[string]row) states {
	of := l.shown(l.rest(), id)
	for kind := range of {
		if r, listed := rows[setKey{id.key, cache.Kind(kind)}][id.name]; listed {
			of[kind] = overlay(of[kind], r.Statement)
		}
	}
	return of
}

// stagedNames yields the names that wait for stages, once each.
func (l *List) stagedNames() iter.Seq[resourceID] {
	return func(yield func(resourceID) bool) {
		rows := l.staging().rows
		for set, of := range rows {
			for name, r := range of {
				if !l.stages(set.typeURL(), r.removes()) {
					continue
				}
				if _, both := rows[setKey{set.key, cache.Wildcard}][name]; both && set.kind == cache.ByName {
					continue
				}
				if !yield(resourceID{set.key, name}) {
					return
				}
			}
		}
	}
}

// Pin makes an edition of all changes that wait for stages.
func (l *List) Pin() *Edition { return l.pin(l.stagedNames()) }

// PinNames makes an edition of those changes that wait for stages and that are of some names.
func (l *List) PinNames(of Names) *Edition {
	return l.pin(func(yield func(resourceID) bool) {
		for key, names := range of {
			for name := range names {
				if id := (resourceID{key, name}); l.isStaged(id) && !yield(id) {
					return
				}
			}
		}
	})
}

// pin makes an edition of the newest states of names.
func (l *List) pin(names iter.Seq[resourceID]) *Edition {
	e, served := newEdition(), l.w.Generation()
	for id := range names {
		n := l.editedName(id)
		if n.is = l.newest(id); n.changes() {
			t := e.edit(served.Type(id.key), id.key)
			t.names = append(t.names, *n)
		}
	}
	for key, t := range e.types {
		for kind := range t.is {
			t.is[kind] = cmp.Or(l.staging().systems[setKey{key, cache.Kind(kind)}], t.is[kind])
		}
	}
	e.describe()
	return e
}

// PinServed makes an edition of the state that the rest is served of the names of another edition, which is about to be
// shown: then Show can return readers to it. It lists no changes.
func (l *List) PinServed(of *Edition) *Edition {
	e := newEdition()
	if of == nil {
		return e
	}
	for key, t := range of.types {
		served := e.edit(l.w.Generation().Type(key), key)
		for _, n := range t.names {
			served.names = append(served.names, *l.editedName(resourceID{key, n.text}))
		}
	}
	return e
}

// PinFormer makes an edition of the former state of some resources. If there are several formers of a resource, the last
// one is used. It ignores names that were released since.
func (l *List) PinFormer(formers []cache.Former) *Edition { return l.pinStates(formers, false) }

// PinStates makes an edition of states of some resources. It may have the first responses for names.
func (l *List) PinStates(all []cache.Former) *Edition { return l.pinStates(all, true) }

// pinStates is PinFormer, or with first, PinStates.
func (l *List) pinStates(formers []cache.Former, first bool) *Edition {
	e, served := newEdition(), l.w.Generation()
	seen := make(map[resourceID]*editedName)
	for _, f := range formers {
		if known, _ := l.w.View().HasType(f.Key); !known {
			continue // the type or collection was removed
		}
		id := resourceID{f.Key, f.Name}
		n := seen[id]
		if n == nil {
			n = l.editedName(id)
			seen[id] = n
		}
		if l.mayHave(n, f, first) {
			n.is[f.Kind] = cache.Statement{
				Name: f.Name, HasContent: true, Resource: f.Resource, Deadline: f.Deadline, HasError: true, Err: n.was[f.Kind].Err,
			}
		}
	}
	for id, n := range seen {
		if n.changes() {
			t := e.edit(served.Type(id.key), id.key)
			t.names = append(t.names, *n)
		}
	}
	e.describe()
	return e
}

// mayHave reports whether an edition may have a state of a name. first reports that it may have the first response for it.
func (l *List) mayHave(n *editedName, f cache.Former, first bool) bool {
	if f.Kind == cache.Wildcard {
		return n.was[cache.Wildcard].Exists()
	}
	// Otherwise no client subscribes to it, or the origin never responded.
	return n.name != nil && (n.was[cache.ByName].HasContent || first && l.w.Subscribed(n.name))
}

// PinThawed makes an edition of the state of resources after a thaw. It leaves out changes that wait for stages after that: if
// only the first state of a member passes, it has that.
func (l *List) PinThawed(resources []cache.Former) *Edition {
	e, served := l.PinStates(resources), l.w.Generation()
	for key, t := range e.types {
		hasLastGood := served.Type(key).HasLastGood(cache.Wildcard)
		kept := t.names[:0]
		for _, n := range t.names {
			waits := l.stages(setKey{key: key}.typeURL(), n.is.last() == nil)
			if waits && (hasLastGood || !n.is[cache.ByName].Same(&n.was[cache.ByName])) {
				if n.is[cache.ByName] = n.was[cache.ByName]; hasLastGood || !n.changes() {
					continue
				}
			}
			kept = append(kept, n)
		}
		t.names = kept
	}
	e.describe()
	return e
}

// A Replaced is a change of a resource that an edition made for the rest of a view.
type Replaced struct {
	Difference
	Set fingerprint.Sum // of the wildcard set without a removed resource; zero if the edition has the resource
}

// Replaced returns the changes of an edition that the rest was just shown. It omits resources that cannot be restored
// later, because they have a TTL or their content may not be kept.
func (l *List) Replaced(e *Edition) (all []Replaced) {
	shown := l.w.Generation()
	for d := range e.Diff() {
		r := Replaced{Difference: d}
		if d.Is == nil {
			r.Set = shown.Type(d.Key).Wildcard.Sum()
		}
		if d.Was == nil || d.Was.TTL == 0 && !d.Was.DoNotCache && !d.Was.ContentDropped() {
			all = append(all, r)
		}
	}
	return all
}

// PinReverted makes an edition that reverts changes of another view in this one, which was made after them. A change
// applies if the rest is served the content to which it changed the resource. If it removed the resource, subscribers
// to the name get it back, and the wildcard set if it is equal to that of the other view.
func (l *List) PinReverted(changes []Replaced) *Edition {
	served := l.w.Generation()
	var formers []cache.Former
	for _, r := range changes {
		t, n := served.Type(r.Key), l.w.View().FindName(r.Key, r.Name)
		for _, kind := range []cache.Kind{cache.Wildcard, cache.ByName} {
			if r.isIn(t, kind, n) {
				formers = append(formers, cache.Former{Key: r.Key, Kind: kind, Name: r.Name, Resource: r.Was})
			}
		}
	}
	return l.PinFormer(formers)
}

// isIn reports whether a set of a type has the state to which the change of another view set a resource. n is its name, nil if
// there is none.
func (r *Replaced) isIn(t *cache.Type, kind cache.Kind, n *cache.Name) bool {
	var now *wire.Resource
	if n != nil {
		if e := t.Set(kind).Get(n); e.Present() {
			now = e.Resource
		}
	}
	switch {
	case r.Is != nil:
		return now != nil && now.Digest == r.Is.Digest
	case kind == cache.ByName:
		return now == nil
	default:
		return now == nil && t.HasLastGood(cache.Wildcard) && t.Wildcard.Sum() == r.Set
	}
}
