package cache

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/wire"
)

// An Edition is a generation of latest that may be shown to cohorts, with its changes for the rest. It is immutable.
type Edition struct {
	generation *Generation        // the generation of the edition; nil if an earlier process made the edition
	served     *Generation        // the generation that the rest was served when the edition was made
	names      map[string][]*Name // of Changes, ordered by their texts

	// Changes has the content in the edition of the resources that differ from those that the rest was served, by type URL
	// or collection and name. The digest of a removed resource is zero.
	Changes map[string]map[string]wire.Digest

	// Large reports whether the edition removes so many resources of a type that the origin may have lost its state
	// (LargeRemoval).
	Large bool
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
		for _, key := range inOrder(e.names) {
			for _, n := range e.names[key] {
				was, is := differing(n, e.served.Type(key), e.generation.Type(key))
				if !yield(Difference{key, n.text, was, is}) {
					return
				}
			}
		}
	}
}

// differing returns the resources of a name in two states of a type, as subscribers to the name see them. If these are
// equal, it returns the resources of the set in which they differ.
func differing(n *Name, a, b *Type) (former, present *wire.Resource) {
	for _, kind := range kinds {
		before, after := a.set(kind).Get(n), b.set(kind).Get(n)
		if before.Present() != after.Present() || before.Present() && !before.Resource.SameContent(after.Resource) {
			former, present = resourceOf(before), resourceOf(after)
		}
	}
	before, after := a.resource(n), b.resource(n)
	if former == nil && present == nil || before == nil || after == nil || !before.SameContent(after) {
		return before, after
	}
	return former, present
}

// resource returns the resource of a name in a type; nil if there is none.
func (t *Type) resource(n *Name) (r *wire.Resource) {
	for _, kind := range kinds {
		if e := t.set(kind).Get(n); e.Present() {
			r = e.Resource
		}
	}
	return r
}

// content returns the digest of the resource of a name in a type; zero if there is none.
func (t *Type) content(n *Name) (d wire.Digest) {
	if n == nil {
		return d
	}
	if r := t.resource(n); r != nil {
		d = r.Digest
	}
	return d
}

// Pin makes an edition of all waiting changes.
func (w *Writer) Pin() *Edition {
	return w.pin(w.targetOf(w.servedToRest(), w.Generation()))
}

// PinStates makes an edition of the generation that the rest is served, with other states of some names. It may have the first
// responses for names.
func (w *Writer) PinStates(states []Former) *Edition { return w.pinStates(states, true) }

// PinThawed makes an edition of changes that wait in front of the writer, given as the state of resources after them. It
// leaves out those that wait for Show after that.
func (w *Writer) PinThawed(resources []Former) *Edition {
	return w.dropWaiting(w.PinStates(resources))
}

// dropWaiting drops from a new edition the changes that wait for Show. If only the
// entry of a name in the wildcard set passes, as first state, it keeps that entry.
func (w *Writer) dropWaiting(e *Edition) *Edition {
	of := *e.generation
	of.types.log = e.generation.types.log.Clip()
	for key, names := range e.names {
		served, pinned := e.served.Type(key), e.generation.Type(key)
		c := refreshedType{w: w, original: pinned, refreshed: pinned, by: new(txn)}
		e.names[key] = slices.DeleteFunc(names, func(n *Name) bool {
			if !w.differenceWaits(served, pinned, n) {
				return false
			}
			c.copyState(ByName, served, n)
			return served.hasLastGood(Wildcard) || w.agreesOn(Wildcard, served, pinned, n)
		})
		if c.refreshed != pinned {
			c.refreshed.revision = of.Revision + 1
			of.types.put(c.refreshed)
		}
	}
	e.generation = &of
	maps.DeleteFunc(e.names, func(_ string, names []*Name) bool { return len(names) == 0 })
	e.describe()
	return e
}

// pin makes an edition of the names whose state differs between the rest and their target, which is latest.
func (w *Writer) pin(to target) *Edition {
	s := w.servedToRest()
	e := &Edition{generation: w.Generation(), served: s.generation(), names: w.differingNames(s, to)}
	e.describe()
	return e
}

// describe fills in Changes and Large.
func (e *Edition) describe() {
	e.Changes = make(map[string]map[string]wire.Digest, len(e.names))
	for key, names := range e.names {
		slices.SortFunc(names, func(a, b *Name) int { return strings.Compare(a.text, b.text) })
		t, served := e.generation.Type(key), e.served.Type(key)
		changes := make(map[string]wire.Digest, len(names))
		removed, added := 0, 0
		for _, n := range names {
			content := t.content(n)
			changes[n.text] = content
			switch existed := served.present(n); {
			case existed && content == (wire.Digest{}):
				removed++
			case !existed && content != (wire.Digest{}):
				added++
			}
		}
		e.Changes[key] = changes
		size := max(served.Wildcard.Count(), served.ByName.Count())
		e.Large = e.Large || LargeRemoval(resourceType(key), removed, size, added)
	}
}

// Reversed returns the edition that undoes the edition after it was shown to the rest.
func (e *Edition) Reversed() *Edition {
	reversed := &Edition{generation: e.served, served: e.generation, names: e.names}
	reversed.describe()
	return reversed
}

// PinServed makes an edition of the generation that the rest is served, without changes. Show can return readers to it
// later.
func (w *Writer) PinServed() *Edition {
	g := w.servedToRest().generation()
	return &Edition{generation: g, served: g, Changes: make(map[string]map[string]wire.Digest)}
}

// A createdName is a Name that was created for an edition because the former Name of that text was released.
type createdName struct {
	typ  *indexType
	name *Name
}

// refresh returns a generation as it would be shown now, and the names that were created for it. It leaves out wildcard
// sets that were dropped since, because the origin may have removed their resources, and resources whose TTL has ended.
func (w *Writer) refresh(original *Generation) (_ *Generation, names []createdName) {
	x := &w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	now, refreshed := time.Now(), original
	for t := range original.types.since(0) {
		if !w.changeWaits(resourceType(t.URL), true) {
			continue
		}
		c := refreshedType{w: w, now: now, original: t, refreshed: t, by: new(txn)}
		c.dropForgotten(x.types[t.URL])
		if c.applyLifetimes(); c.refreshed == t {
			continue
		}
		if refreshed == original {
			copied := *original
			copied.types.log = original.types.log.Clip()
			refreshed = &copied
		}
		c.refreshed.revision = original.Revision + 1
		refreshed.types.put(c.refreshed)
		names = append(names, c.created...)
	}
	return refreshed, names
}

// releaseNames releases created names without an entry.
func (w *Writer) releaseNames(names []createdName) {
	w.view.index.mu.Lock()
	defer w.view.index.mu.Unlock()
	for _, m := range names {
		m.typ.release(m.name)
	}
}

// A refreshedType is a type of a generation that is changed before readers are shown it.
type refreshedType struct {
	w                   *Writer
	now                 time.Time
	original, refreshed *Type // equal until the first change
	by                  *txn
	created             []createdName
}

// writable returns a copy of the type that may be changed.
func (c *refreshedType) writable() *Type {
	if c.refreshed == c.original {
		copied, errors := *c.original, *cmp.Or(c.original.errors, noErrors)
		copied.errors = &errors
		for _, s := range []*Set{&copied.Wildcard, &copied.ByName, &errors[Wildcard], &errors[ByName]} {
			s.log, s.renewals = s.log.Clip(), s.renewals.Clip()
		}
		c.refreshed = &copied
	}
	return c.refreshed
}

// dropForgotten empties the wildcard set if it was dropped since. Otherwise it replaces released names of its entries.
func (c *refreshedType) dropForgotten(index *indexType) {
	if c.original.source != c.w.source {
		return
	}
	if index == nil || index.era != c.original.era {
		t := c.writable()
		t.Wildcard, t.Phase, t.Restored = Set{}, Unknown, false
		return
	}
	c.renewNames(index, func(t *Type) *Set { return &t.Wildcard })
	c.renewNames(index, func(t *Type) *Set { return t.Errors(Wildcard) })
}

// renewNames replaces released names of a set by new ones.
func (c *refreshedType) renewNames(index *indexType, set func(*Type) *Set) {
	var forgotten []*Entry
	for e := range set(c.original).Since(0) {
		if e.Name.released {
			forgotten = append(forgotten, e)
		}
	}
	for _, e := range forgotten { // drop all before new names are created, which may reuse the ids
		set(c.writable()).drop(c.by, e)
	}
	for _, e := range forgotten {
		if e.Present() || e.Err != nil {
			copied := *e
			copied.Name = c.w.view.index.name(index, e.Name.text)
			set(c.writable()).put(c.by, &copied)
			c.created = append(c.created, createdName{index, copied.Name})
		}
	}
}

// applyLifetimes removes resources that have expired and are absent in latest. Resources that had expired when the
// edition was made, or whose content may not be cached, get the state of latest.
func (c *refreshedType) applyLifetimes() {
	latest := c.w.Generation().Type(c.original.URL)
	for _, kind := range kinds {
		for e := range c.refreshed.set(kind).Since(0) {
			now := latest.set(kind).Get(e.Name)
			switch expired := e.Present() && e.Expires() && !c.now.Before(e.Deadline()); {
			case !c.w.writes(kind, c.original, e.Name):
			case !cacheable(e) || e.Expired:
				c.copyState(kind, latest, e.Name)
			case now == e:
			case expired && !now.Present():
				c.writable().set(kind).put(c.by, &Entry{Name: e.Name, Seq: e.Seq, Expired: true})
			}
		}
	}
}

// copyState replaces the entry and the error of a name in a set by those of another version of the type.
func (c *refreshedType) copyState(kind Kind, from *Type, n *Name) {
	sets := []func(*Type) *Set{
		func(t *Type) *Set { return t.set(kind) },
		func(t *Type) *Set { return t.Errors(kind) },
	}
	for _, set := range sets {
		old, updated := set(c.refreshed).Get(n), set(from).Get(n)
		switch updated {
		case old:
		case nil:
			set(c.writable()).drop(c.by, old)
		default:
			copied := *updated
			set(c.writable()).put(c.by, &copied)
		}
	}
}

// PinFormer makes an edition of the generation that the rest is served, with the former state of some resources. If
// there are several formers of a resource, the last one is used. It ignores names that were released since.
func (w *Writer) PinFormer(formers []Former) *Edition { return w.pinStates(formers, false) }

// pinStates is PinFormer for states that may also be the first responses for names.
func (w *Writer) pinStates(formers []Former, first bool) *Edition {
	x := &w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	served := w.servedToRest().generation()
	of := *served
	of.types.log = served.types.log.Clip()
	e := &Edition{generation: &of, served: served, names: make(map[string][]*Name)}
	restoring := make(map[string]*pinnedType)
	for _, f := range formers {
		index := x.types[f.Key]
		if served.types.get(f.Key) == nil || index == nil {
			continue // the type or collection was removed
		}
		if restoring[f.Key] == nil {
			t := served.Type(f.Key)
			restoring[f.Key] = &pinnedType{
				refreshedType: refreshedType{w: w, now: time.Now(), original: t, refreshed: t, by: new(txn)},
				index:         index, first: first,
			}
		}
		restoring[f.Key].put(f)
	}
	for key, t := range restoring {
		if t.refreshed != t.original {
			t.refreshed.revision = served.Revision + 1
			of.types.put(t.refreshed)
			e.names[key] = t.differing()
		}
		for _, m := range t.created { // Show creates them again
			m.typ.release(m.name)
		}
	}
	e.describe()
	return e
}

// A pinnedType is a type of an edition that PinFormer makes.
type pinnedType struct {
	refreshedType
	index *indexType
	names []*Name
	first bool // whether it may have the first response for a name
}

// put sets the former state of a resource.
func (t *pinnedType) put(f Former) {
	n := t.index.names[f.Name]
	if n == nil && f.Kind == Wildcard && f.Resource != nil {
		n = t.w.view.index.name(t.index, f.Name)
		t.created = append(t.created, createdName{t.index, n})
	}
	if n == nil || !t.w.writes(f.Kind, t.original, n) {
		return
	}
	set := t.refreshed.set(f.Kind)
	old := set.Get(n)
	if f.Kind == ByName && old == nil && !t.mayAdd(n) {
		return // no client subscribes to it, or the origin never responded
	}
	set = t.writable().set(f.Kind)
	t.names = append(t.names, n)
	switch {
	case f.Resource != nil:
		leaf := fingerprint.Leaf(resourceType(f.Key), f.Resource)
		e := &Entry{Name: n, Seq: set.last + 1, Resource: f.Resource, Leaf: leaf}
		e.setDeadline(f.Deadline)
		set.put(t.by, e)
	case f.Kind == ByName:
		set.put(t.by, &Entry{Name: n, Seq: set.last + 1})
	case old != nil:
		set.drop(t.by, old)
	}
}

// mayAdd reports whether the edition may have the first response for a name.
func (t *pinnedType) mayAdd(n *Name) bool { return t.first && n.tracked }

// differing returns the names whose state has changed, without duplicates.
func (t *pinnedType) differing() (names []*Name) {
	seen := make(map[*Name]struct{})
	for _, n := range t.names {
		if _, repeated := seen[n]; !repeated && !t.w.agrees(t.original, t.refreshed, n) {
			names = append(names, n)
		}
		seen[n] = struct{}{}
	}
	return names
}

// A Former is a resource as it was served before it changed.
type Former struct {
	Key      string // type URL or collection
	Kind     Kind
	Name     string
	Resource *wire.Resource // nil if it did not exist
	Deadline time.Time      // expiry; zero is never
}

// A Replaced is a change of a resource that an edition made for the rest of a view.
type Replaced struct {
	Difference
	Set fingerprint.Sum // of the wildcard set without a removed resource; zero if the edition has the resource
}

// Replaced returns the changes of an edition that the rest was just shown. It omits resources that cannot be restored
// later, because they have a TTL or their content may not be kept.
func (w *Writer) Replaced(e *Edition) (all []Replaced) {
	shown := w.servedToRest().generation()
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
func (w *Writer) PinReverted(changes []Replaced) *Edition {
	served := w.servedToRest().generation()
	var formers []Former
	for _, r := range changes {
		t, n := served.Type(r.Key), w.view.FindName(r.Key, r.Name)
		for _, kind := range kinds {
			if t.isReplaced(kind, n, r) {
				formers = append(formers, Former{Key: r.Key, Kind: kind, Name: r.Name, Resource: r.Was})
			}
		}
	}
	return w.PinFormer(formers)
}

// isReplaced reports whether a set of the type has the state to which a change of another view set a resource. n is its
// name, nil if there is none.
func (t *Type) isReplaced(kind Kind, n *Name, r Replaced) bool {
	var now *wire.Resource
	if n != nil {
		now = resourceOf(t.set(kind).Get(n))
	}
	switch {
	case r.Is != nil:
		return now != nil && now.Digest == r.Is.Digest
	case kind == ByName:
		return now == nil
	default:
		return now == nil && t.hasLastGood(Wildcard) && t.Wildcard.Sum() == r.Set
	}
}
