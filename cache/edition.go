package cache

import (
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/wire"
)

// An Edition has the state of some names of a source after a change of them, which may be shown to cohorts, and before it.
// It is immutable.
type Edition struct {
	types map[string]*pinnedType // by type URL or collection; nil if an earlier process made the edition

	// Changes has the content in the edition of the resources that differ from those that the rest was served, by type URL
	// or collection and name. The digest of a removed resource is zero.
	Changes map[string]map[string]wire.Digest

	// Large reports whether the edition removes so many resources of a type that the origin may have lost its state
	// (LargeRemoval).
	Large bool
}

// A pinnedType has the names of a type or collection that an edition changes.
type pinnedType struct {
	era     uint64       // of the wildcard set
	size    int          // number of resources that the rest was served
	was, is [2]string    // versions of the origin's responses, by Kind
	names   []pinnedName // ordered by their texts
}

// A pinnedName is the state of a name in both sets of its type, by Kind, before and after an edition.
type pinnedName struct {
	text    string
	name    *Name // nil if the rest had no such name
	was, is [2]state
}

// A resourceID identifies a resource by texts, because its Name may be released and created again while an edition is
// open.
type resourceID struct{ key, name string }

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
		for _, key := range inOrder(e.types) {
			for _, n := range e.types[key].names {
				was, is := n.resources()
				if n.changes() && !yield(Difference{key, n.text, was, is}) {
					return
				}
			}
		}
	}
}

// resources returns the resources of a name before and after the edition, as subscribers to the name see them. If these
// are equal, it returns the resources of the set in which they differ.
func (n *pinnedName) resources() (was, is *wire.Resource) {
	for _, kind := range kinds {
		if before, after := n.was[kind].resource(), n.is[kind].resource(); !sameContent(before, after) {
			was, is = before, after
		}
	}
	before, after := lastResource(n.was), lastResource(n.is)
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

// resource returns the resource of a name in a type; nil if there is none.
func (t *Type) resource(n *Name) (r *wire.Resource) {
	for _, kind := range kinds {
		if e := t.Set(kind).Get(n); e.Present() {
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
	return digestOf(t.resource(n))
}

// digestOf returns the digest of a resource; zero for nil.
func digestOf(r *wire.Resource) (d wire.Digest) {
	if r != nil {
		d = r.Digest
	}
	return d
}

// newEdition returns an edition without names.
func newEdition() *Edition {
	return &Edition{types: make(map[string]*pinnedType), Changes: make(map[string]map[string]wire.Digest)}
}

// pin returns the part of the edition for a type, which the rest is served; a new one if there is none.
func (e *Edition) pin(key string, served, latest *Type) *pinnedType {
	if e.types[key] == nil {
		system := [2]string{served.Wildcard.system, served.ByName.system}
		e.types[key] = &pinnedType{
			era: latest.era, size: max(served.Wildcard.Count(), served.ByName.Count()), was: system, is: system,
		}
	}
	return e.types[key]
}

// Pin makes an edition of all waiting changes.
func (w *Writer) Pin() *Edition {
	w.view.index.mu.Lock()
	defer w.view.index.mu.Unlock()
	e, s := newEdition(), w.servedToRest()
	for key, names := range w.differing(s, w.Generation(), s) {
		served, latest := s.generation().Type(key), w.Generation().Type(key)
		t := e.pin(key, served, latest)
		t.is = [2]string{latest.Wildcard.system, latest.ByName.system}
		t.names = make([]pinnedName, 0, len(names))
		for _, n := range names {
			t.names = append(t.names, pinnedName{n.text, n, w.pinnedStates(served, n), w.pinnedStates(latest, n)})
		}
	}
	e.describe()
	return e
}

// describe sorts the names, and fills in Changes and Large.
func (e *Edition) describe() {
	e.Changes = make(map[string]map[string]wire.Digest, len(e.types))
	for key, t := range e.types {
		if len(t.names) == 0 {
			delete(e.types, key)
			continue
		}
		slices.SortFunc(t.names, func(a, b pinnedName) int { return strings.Compare(a.text, b.text) })
		changes := make(map[string]wire.Digest, len(t.names))
		for _, n := range t.names {
			changes[n.text] = digestOf(lastResource(n.is))
		}
		e.Changes[key] = changes
		removed, added := t.count()
		e.Large = e.Large || LargeRemoval(resourceType(key), removed, t.size, added)
	}
}

// count returns how many resources the edition removes and adds.
func (t *pinnedType) count() (removed, added int) {
	for _, n := range t.names {
		switch existed, exists := lastResource(n.was) != nil, lastResource(n.is) != nil; {
		case existed && !exists:
			removed++
		case !existed && exists:
			added++
		}
	}
	return removed, added
}

// Reversed returns the edition that undoes the edition after it was shown to the rest.
func (e *Edition) Reversed() *Edition {
	reversed := newEdition()
	for key, t := range e.types {
		removed, added := t.count()
		of := &pinnedType{era: t.era, size: t.size + added - removed, was: t.is, is: t.was}
		for _, n := range t.names {
			of.names = append(of.names, pinnedName{n.text, n.name, n.is, n.was})
		}
		reversed.types[key] = of
	}
	reversed.describe()
	return reversed
}

// PinServed makes an edition of the state that the rest is served of the names of another edition, which is about to be
// shown: then Show can return readers to it. It lists no changes.
func (w *Writer) PinServed(of *Edition) *Edition {
	e := newEdition()
	if of == nil {
		return e
	}
	x := &w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	for key, t := range of.types {
		served := w.servedToRest().generation().Type(key)
		pinned := e.pin(key, served, w.Generation().Type(key))
		for _, n := range t.names {
			pinned.names = append(pinned.names, *w.pinnedName(served, x.types[key], n.text))
		}
	}
	return e
}

// A Former is a resource as it was served before it changed.
type Former struct {
	Key      string // type URL or collection
	Kind     Kind
	Name     string
	Resource *wire.Resource // nil if it did not exist
	Deadline time.Time      // expiry; zero is never
}

// entry returns the former as an entry; nil if the resource did not exist in the wildcard set.
func (f *Former) entry(n *Name) *Entry {
	if f.Resource == nil && f.Kind == Wildcard {
		return nil
	}
	e := &Entry{Name: n, Resource: f.Resource}
	e.setDeadline(f.Deadline)
	return e
}

// PinFormer makes an edition of the former state of some resources. If there are several formers of a resource, the last
// one is used. It ignores names that were released since.
func (w *Writer) PinFormer(formers []Former) *Edition { return w.pinStates(formers, false) }

// PinStates makes an edition of states of some resources. It may have the first responses for names.
func (w *Writer) PinStates(states []Former) *Edition { return w.pinStates(states, true) }

// pinStates is PinFormer, or with first, PinStates.
func (w *Writer) pinStates(formers []Former, first bool) *Edition {
	x := &w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	e, served := newEdition(), w.servedToRest().generation()
	seen := make(map[resourceID]*pinnedName)
	for _, f := range formers {
		index, t := x.types[f.Key], served.types.get(f.Key)
		if t == nil || index == nil {
			continue // the type or collection was removed
		}
		id := resourceID{f.Key, f.Name}
		pinned := seen[id]
		if pinned == nil {
			pinned = w.pinnedName(t, index, f.Name)
			seen[id] = pinned
		}
		if pinned.mayHave(w, t, f, first) {
			exists := f.Kind == ByName || t.hasLastGood(Wildcard)
			pinned.is[f.Kind] = state{f.entry(pinned.name), pinned.was[f.Kind].err, exists}
		}
	}
	for id, n := range seen {
		if !n.changes() {
			continue
		}
		t := e.pin(id.key, served.Type(id.key), served.Type(id.key))
		t.names = append(t.names, *n)
	}
	e.describe()
	return e
}

// pinnedStates is statesOf for an edition, which does not change members of an incomplete first state.
func (w *Writer) pinnedStates(t *Type, n *Name) [2]state {
	all := w.statesOf(t, n)
	all[Wildcard].exists = all[Wildcard].exists && t.hasLastGood(Wildcard)
	return all
}

// pinnedName returns a name in the state that the rest is served.
func (w *Writer) pinnedName(served *Type, index *indexType, text string) *pinnedName {
	n := &pinnedName{text: text, name: index.find(text)}
	if n.name != nil {
		n.was = w.pinnedStates(served, n.name)
	} else if served.source == w.source {
		n.was[Wildcard].exists = served.hasLastGood(Wildcard)
	}
	n.is = n.was
	return n
}

// mayHave reports whether the edition may have a state of a name. first reports that it may have the first response for it.
func (n *pinnedName) mayHave(w *Writer, served *Type, f Former, first bool) bool {
	switch {
	case f.Kind == Wildcard:
		return served.source == w.source
	case n.name == nil || n.name.source != w.source:
		return false
	}
	return n.was[ByName].entry != nil || first && n.name.tracked // else no client subscribes to it, or the origin never responded
}

// changes reports whether the edition changes the state of a name.
func (n *pinnedName) changes() bool {
	return !n.is[Wildcard].sameAs(Wildcard, n.was[Wildcard]) || !n.is[ByName].sameAs(ByName, n.was[ByName])
}

// PinThawed makes an edition of changes that wait in front of the writer, given as the state of resources after them. It
// leaves out those that wait for Show after that: if only the first state of a member passes, it has that.
func (w *Writer) PinThawed(resources []Former) *Edition {
	e, served := w.PinStates(resources), w.servedToRest().generation()
	for key, t := range e.types {
		hasLastGood := served.Type(key).hasLastGood(Wildcard)
		kept := t.names[:0]
		for _, n := range t.names {
			waits := w.changeWaits(resourceType(key), lastResource(n.is) == nil)
			if waits && (hasLastGood || !n.is[ByName].sameAs(ByName, n.was[ByName])) {
				if n.is[ByName] = n.was[ByName]; hasLastGood || !n.changes() {
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
		now = resourceOf(t.Set(kind).Get(n))
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
