package cache

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// An Edition is a generation of latest that may be shown to cohorts, with its changes for the rest. It is immutable.
type Edition struct {
	of    *Generation        // nil if an earlier process made the edition
	was   *Generation        // the generation that the rest was served
	names map[string][]*Name // of Changes, ordered by their texts

	// Changes has the content in the edition of the resources that differ from those that the rest was served, by type URL
	// or collection and name. The digest of a removed resource is zero.
	Changes map[string]map[string]wire.Digest

	// Large reports whether removals of a type are so many that the origin may have lost its state (LargeRemoval).
	Large bool
}

// A Difference is a change of a resource by an edition.
type Difference struct {
	Key     string // type URL or collection
	Name    string
	Was, Is *wire.Resource // as served to the rest when the edition was made, and as in the edition; nil is none
}

// Diff yields the changes of the edition in the order in which types are sent, then by key and name. It yields nothing if an
// earlier process made the edition.
func (e *Edition) Diff() iter.Seq[Difference] {
	return func(yield func(Difference) bool) {
		for _, key := range inOrder(e.names) {
			for _, n := range e.names[key] {
				was, is := differing(n, e.was.Type(key), e.of.Type(key))
				if !yield(Difference{key, n.text, was, is}) {
					return
				}
			}
		}
	}
}

// differing returns the resources of a name in two states of a type, as subscribers to the name see them. If these are equal,
// it returns those of the set in which they differ.
func differing(n *Name, a, b *Type) (was, is *wire.Resource) {
	for _, kind := range kinds {
		before, after := a.set(kind).Get(n), b.set(kind).Get(n)
		if before.Present() != after.Present() || before.Present() && !before.Resource.SameContent(after.Resource) {
			was, is = resourceOf(before), resourceOf(after)
		}
	}
	if before, after := a.resource(n), b.resource(n); was == nil && is == nil || before == nil || after == nil || !before.SameContent(after) {
		return before, after
	}
	return was, is
}

func resourceOf(e *Entry) *wire.Resource {
	if e == nil {
		return nil
	}
	return e.Resource
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

// editions makes editions of a source, and shows them to the readers of views. Its methods are methods of the writer.
type editions struct{ w *Writer }

// Pin makes an edition of all changes that wait.
func (p editions) Pin() *Edition {
	w := p.w
	return w.pin(w.target(w.rest(), w.Generation()))
}

// PinThawed makes an edition of the changes that Thaw would show the rest. It has none if there is nothing to thaw.
func (p editions) PinThawed() *Edition {
	w := p.w
	if !w.thaws() {
		return p.PinServed()
	}
	latest := w.Generation()
	return w.keepThawed(w.pin(func(string, *Name) *Generation { return latest }))
}

// PinThawedAs is PinThawed for a source that applies its changes only after the thaw. The resources are given as they will
// be then.
func (p editions) PinThawedAs(resources []Former) *Edition {
	w := p.w
	return w.keepThawed(w.PinFormer(resources))
}

// keepThawed drops from a new edition the changes that Thaw does not show, since they wait for Show. If only the entry of a
// name in the wildcard set passes, as first state, it keeps that one.
func (p editions) keepThawed(e *Edition) *Edition {
	w := p.w
	thawed, of := w.gate, *e.of
	thawed.frozenSince, thawed.rolledBack = time.Time{}, time.Time{}
	of.types.log = e.of.types.log.Clip()
	for key, names := range e.names {
		was, is := e.was.Type(key), e.of.Type(key)
		c := refreshedType{w: w, was: is, is: is, by: new(txn)}
		e.names[key] = slices.DeleteFunc(names, func(n *Name) bool {
			if !thawed.differenceWaits(was, is, n) {
				return false
			}
			c.copyState(ByName, was, n)
			return was.hasLastGood(Wildcard) || thawed.agreesOn(Wildcard, was, is, n)
		})
		if c.is != is {
			c.is.revision = of.Revision + 1
			of.types.put(c.is)
		}
	}
	e.of = &of
	maps.DeleteFunc(e.names, func(_ string, names []*Name) bool { return len(names) == 0 })
	e.describe()
	return e
}

// pin makes an edition of the names whose state differs between the rest and their target, which is latest.
func (p editions) pin(to target) *Edition {
	w := p.w
	s := w.rest()
	e := &Edition{of: w.Generation(), was: s.generation(), names: w.differ(s, to)}
	e.describe()
	return e
}

// describe fills in Changes and Large.
func (e *Edition) describe() {
	e.Changes = make(map[string]map[string]wire.Digest, len(e.names))
	for key, names := range e.names {
		slices.SortFunc(names, func(a, b *Name) int { return strings.Compare(a.text, b.text) })
		t, was := e.of.Type(key), e.was.Type(key)
		changes := make(map[string]wire.Digest, len(names))
		removed, added := 0, 0
		for _, n := range names {
			is := t.content(n)
			changes[n.text] = is
			switch before := was.present(n); {
			case before && is == (wire.Digest{}):
				removed++
			case !before && is != (wire.Digest{}):
				added++
			}
		}
		e.Changes[key] = changes
		e.Large = e.Large || LargeRemoval(resourceType(key), removed, max(was.Wildcard.Count(), was.ByName.Count()), added)
	}
}

// Reversed returns the edition that undoes the edition after the rest was shown it.
func (e *Edition) Reversed() *Edition {
	back := &Edition{of: e.was, was: e.of, names: e.names}
	back.describe()
	return back
}

// PinServed makes an edition without changes of the generation that the rest is served. Show can return readers to it later.
func (p editions) PinServed() *Edition {
	w := p.w
	g := w.rest().generation()
	return &Edition{of: g, was: g, Changes: make(map[string]map[string]wire.Digest)}
}

// A createdName is a name that was created again for an edition.
type createdName struct {
	of *indexType
	n  *Name
}

// refresh returns a generation as it would be shown now, and the names that were created for it. Sets that were forgotten
// since are not in it, as the origin may no longer have their resources. Nor are resources whose TTL has ended.
func (p editions) refresh(of *Generation) (_ *Generation, names []createdName) {
	w := p.w
	x := &w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	now, is := time.Now(), of
	for t := range of.types.since(0) {
		if !w.changeWaits(resourceType(t.URL), true) {
			continue
		}
		c := refreshedType{w: w, now: now, was: t, is: t, by: new(txn)}
		c.dropForgotten(x.types[t.URL])
		if c.applyLifetimes(); c.is == t {
			continue
		}
		if is == of {
			again := *of
			again.types.log = of.types.log.Clip()
			is = &again
		}
		c.is.revision = of.Revision + 1
		is.types.put(c.is)
		names = append(names, c.created...)
	}
	return is, names
}

// releaseNames releases created names without an entry.
func (p editions) releaseNames(names []createdName) {
	w := p.w
	w.view.index.mu.Lock()
	defer w.view.index.mu.Unlock()
	for _, m := range names {
		m.of.release(m.n)
	}
}

// A refreshedType is one type of a generation that refresh brings up to date.
type refreshedType struct {
	w       *Writer
	now     time.Time
	was, is *Type // equal until the first change
	by      *txn
	created []createdName
}

// writable returns a copy of the type that may be changed.
func (c *refreshedType) writable() *Type {
	if c.is == c.was {
		again, errors := *c.was, *cmp.Or(c.was.errors, noErrors)
		again.errors = &errors
		for _, s := range []*Set{&again.Wildcard, &again.ByName, &errors[Wildcard], &errors[ByName]} {
			s.log, s.renewals = s.log.Clip(), s.renewals.Clip()
		}
		c.is = &again
	}
	return c.is
}

// dropForgotten empties the wildcard set if it was forgotten since; otherwise it renews the names of its entries.
func (c *refreshedType) dropForgotten(index *indexType) {
	if c.was.source != c.w.source {
		return
	}
	if index == nil || index.era != c.was.era {
		is := c.writable()
		is.Wildcard, is.Phase, is.Restored = Set{}, Unknown, false
		return
	}
	c.renewNames(index, func(t *Type) *Set { return &t.Wildcard })
	c.renewNames(index, func(t *Type) *Set { return t.Errors(Wildcard) })
}

// renewNames replaces released names of a set by new ones.
func (c *refreshedType) renewNames(index *indexType, set func(*Type) *Set) {
	var forgotten []*Entry
	for e := range set(c.was).Since(0) {
		if e.Name.released {
			forgotten = append(forgotten, e)
		}
	}
	for _, e := range forgotten { // before a new name reuses an id
		set(c.writable()).drop(c.by, e)
	}
	for _, e := range forgotten {
		if e.Present() || e.Err != nil {
			again := *e
			again.Name = c.w.view.index.name(index, e.Name.text)
			set(c.writable()).put(c.by, &again)
			c.created = append(c.created, createdName{index, again.Name})
		}
	}
}

// applyLifetimes removes resources that have expired and that the origin no longer has. Resources that had expired when the
// edition was made, or whose content may not be kept, get the state of latest.
func (c *refreshedType) applyLifetimes() {
	latest := c.w.Generation().Type(c.was.URL)
	for _, kind := range kinds {
		for e := range c.is.set(kind).Since(0) {
			now := latest.set(kind).Get(e.Name)
			switch expired := e.Present() && e.Expires() && !c.now.Before(e.Deadline()); {
			case !c.w.writes(kind, c.was, e.Name):
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
	for _, set := range []func(*Type) *Set{func(t *Type) *Set { return t.set(kind) }, func(t *Type) *Set { return t.Errors(kind) }} {
		was, is := set(c.is).Get(n), set(from).Get(n)
		switch is {
		case was:
		case nil:
			set(c.writable()).drop(c.by, was)
		default:
			again := *is
			set(c.writable()).put(c.by, &again)
		}
	}
}

// PinFormer makes an edition of the generation that the rest is served, with the former state of some resources. If there are
// several formers of a resource, the last one counts. Names that were forgotten since, without subscribers, are left out.
func (p editions) PinFormer(formers []Former) *Edition {
	w := p.w
	x := &w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	served := w.rest().generation()
	of := *served
	of.types.log = served.types.log.Clip()
	e := &Edition{of: &of, was: served, names: make(map[string][]*Name)}
	restoring := make(map[string]*pinnedType)
	for _, f := range formers {
		index := x.types[f.Key]
		if served.types.get(f.Key) == nil || index == nil {
			continue // the type or collection was forgotten
		}
		if restoring[f.Key] == nil {
			t := served.Type(f.Key)
			restoring[f.Key] = &pinnedType{refreshedType: refreshedType{w: w, now: time.Now(), was: t, is: t, by: new(txn)}, index: index}
		}
		restoring[f.Key].put(f)
	}
	for key, t := range restoring {
		if t.is != t.was {
			t.is.revision = served.Revision + 1
			of.types.put(t.is)
			e.names[key] = t.differing()
		}
		for _, m := range t.created { // Show creates them again
			m.of.release(m.n)
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
}

// put sets the former state of a resource.
func (t *pinnedType) put(f Former) {
	n := t.index.names[f.Name]
	if n == nil && f.Kind == Wildcard && f.Resource != nil {
		n = t.w.view.index.name(t.index, f.Name)
		t.created = append(t.created, createdName{t.index, n})
	}
	if n == nil || !t.w.writes(f.Kind, t.was, n) {
		return
	}
	set := t.is.set(f.Kind)
	old := set.Get(n)
	if f.Kind == ByName && old == nil {
		return // no client subscribes to it, or the origin never answered
	}
	set = t.writable().set(f.Kind)
	t.names = append(t.names, n)
	switch {
	case f.Resource != nil:
		e := &Entry{Name: n, Seq: set.last + 1, Resource: f.Resource, Leaf: t.w.view.cfg.VersionSource.Leaf(resourceType(f.Key), f.Resource)}
		e.setDeadline(f.Deadline)
		set.put(t.by, e)
	case f.Kind == ByName:
		set.put(t.by, &Entry{Name: n, Seq: set.last + 1})
	case old != nil:
		set.drop(t.by, old)
	}
}

// differing returns the names whose state has changed, each once.
func (t *pinnedType) differing() (names []*Name) {
	seen := make(map[*Name]struct{})
	for _, n := range t.names {
		if _, again := seen[n]; !again && !t.w.agrees(t.was, t.is, n) {
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
