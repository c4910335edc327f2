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

// An Edition is a generation of latest that may be shown to cohorts, and what it changes for the rest. It is immutable.
type Edition struct {
	of    *Generation        // nil if an earlier process has cut it
	was   *Generation        // what the rest was served
	names map[string][]*Name // of Changes, ordered by their texts

	// Changes are the resources that differ from what the rest was served, by type URL or collection and name: their content
	// in the edition. The zero digest is that of a resource that is gone.
	Changes map[string]map[string]wire.Digest

	// Large reports whether removals of a type are so many that the origin may have lost its state (LargeRemoval).
	Large bool
}

// A Difference is a resource that an edition changes.
type Difference struct {
	Key     string // type URL or collection
	Name    string
	Was, Is *wire.Resource // what the rest was served when the edition was cut, and what the edition has; nil is none
}

// Diff yields what the edition changes, in the order in which types are sent, then by key and name. Of an edition that an earlier
// process has cut, it yields nothing.
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

// differing returns the resources of a name in two states of a type: those that subscribers to the name see, but those of
// one of the sets if the resources differ only there.
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

// resource returns what a type has under a name; nil if that is nothing.
func (t *Type) resource(n *Name) (r *wire.Resource) {
	for _, kind := range kinds {
		if e := t.set(kind).Get(n); e.Present() {
			r = e.Resource
		}
	}
	return r
}

// content returns the digest of what a type has under a name; zero if that is nothing.
func (t *Type) content(n *Name) (d wire.Digest) {
	if n == nil {
		return d
	}
	if r := t.resource(n); r != nil {
		d = r.Digest
	}
	return d
}

// Editions pins editions of a source, and shows them to the readers of a view. Its methods are those of its writer.
type editions struct{ w *Writer }

// Pin cuts an edition of all that waits.
func (p editions) Pin() *Edition {
	w := p.w
	return w.pin(w.target(w.rest(), w.Generation()))
}

// PinThawed cuts an edition of what Thaw shows the rest. It changes nothing if there is nothing to thaw.
func (p editions) PinThawed() *Edition {
	w := p.w
	if !w.thaws() {
		return p.PinServed()
	}
	latest := w.Generation()
	return w.keepThawed(w.pin(func(string, *Name) *Generation { return latest }))
}

// PinThawedAs is PinThawed for a source that applies its changes only after the thaw: these are resources as they are
// then.
func (p editions) PinThawedAs(resources []Former) *Edition {
	w := p.w
	return w.keepThawed(w.PinFormer(resources))
}

// keepThawed drops from a new edition what Thaw leaves to Show: of a member that passes as first state, the state by name.
func (p editions) keepThawed(e *Edition) *Edition {
	w := p.w
	thawed, of := w.gate, *e.of
	thawed.frozen, thawed.back = time.Time{}, time.Time{}
	of.types.log = e.of.types.log.Clip()
	for key, names := range e.names {
		was, is := e.was.Type(key), e.of.Type(key)
		c := currency{w: w, was: is, is: is, by: new(txn)}
		e.names[key] = slices.DeleteFunc(names, func(n *Name) bool {
			if !thawed.differenceWaits(was, is, n) {
				return false
			}
			c.copy(ByName, was, n)
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

// pin cuts an edition of the names whose target the rest does not see. The target of each is latest.
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

// Reversed returns the edition that undoes the edition for the rest, which has been shown it.
func (e *Edition) Reversed() *Edition {
	back := &Edition{of: e.was, was: e.of, names: e.names}
	back.describe()
	return back
}

// PinServed returns what the rest is served, as an edition without changes: Show returns readers to it later.
func (p editions) PinServed() *Edition {
	w := p.w
	g := w.rest().generation()
	return &Edition{of: g, was: g, Changes: make(map[string]map[string]wire.Digest)}
}

// A made name is one that an edition has brought back.
type made struct {
	of *indexType
	n  *Name
}

// current returns a generation as it is shown now, and the names that were made for that. What was forgotten since is not in it: nothing
// says whether the origin has it still. Resources are gone whose time to live is over.
func (p editions) current(of *Generation) (_ *Generation, names []made) {
	w := p.w
	x := &w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	now, is := time.Now(), of
	for t := range of.types.since(0) {
		if !w.changeWaits(resourceType(t.URL), true) {
			continue
		}
		c := currency{w: w, now: now, was: t, is: t, by: new(txn)}
		c.forget(x.types[t.URL])
		if c.age(); c.is == t {
			continue
		}
		if is == of {
			again := *of
			again.types.log = of.types.log.Clip()
			is = &again
		}
		c.is.revision = of.Revision + 1
		is.types.put(c.is)
		names = append(names, c.made...)
	}
	return is, names
}

// releaseAll forgets names that were made, unless an entry was.
func (p editions) releaseAll(names []made) {
	w := p.w
	w.view.index.mu.Lock()
	defer w.view.index.mu.Unlock()
	for _, m := range names {
		m.of.release(m.n)
	}
}

// A currency is one type of a generation that is brought up to date.
type currency struct {
	w       *Writer
	now     time.Time
	was, is *Type // the same as long as nothing is outdated
	by      *txn
	made    []made
}

// own returns the type for writing.
func (c *currency) own() *Type {
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

// forget leaves out a wildcard set that was forgotten, and finds the present names of its resources.
func (c *currency) forget(index *indexType) {
	if c.was.source != c.w.source {
		return
	}
	if index == nil || index.era != c.was.era {
		is := c.own()
		is.Wildcard, is.Phase, is.Restored = Set{}, Unknown, false
		return
	}
	c.rename(index, func(t *Type) *Set { return &t.Wildcard })
	c.rename(index, func(t *Type) *Set { return t.Errors(Wildcard) })
}

// rename gives the entries of a set the present names.
func (c *currency) rename(index *indexType, set func(*Type) *Set) {
	var forgotten []*Entry
	for e := range set(c.was).Since(0) {
		if e.Name.released {
			forgotten = append(forgotten, e)
		}
	}
	for _, e := range forgotten { // all of them, before another one takes the id
		set(c.own()).drop(c.by, e)
	}
	for _, e := range forgotten {
		if e.Present() || e.Err != nil {
			again := *e
			again.Name = c.w.view.index.name(index, e.Name.text)
			set(c.own()).put(c.by, &again)
			c.made = append(c.made, made{index, again.Name})
		}
	}
}

// age removes resources that have expired and that the origin no longer has; of others, the origin decides how long they live.
// Resources that had expired, or whose content may not be kept, have the state of latest.
func (c *currency) age() {
	latest := c.w.Generation().Type(c.was.URL)
	for _, kind := range kinds {
		for e := range c.is.set(kind).Since(0) {
			now := latest.set(kind).Get(e.Name)
			switch expired := e.Present() && e.Expires() && !c.now.Before(e.Deadline()); {
			case !c.w.writes(kind, c.was, e.Name):
			case !cacheable(e) || e.Expired:
				c.copy(kind, latest, e.Name)
			case now == e:
			case expired && !now.Present():
				c.own().set(kind).put(c.by, &Entry{Name: e.Name, Seq: e.Seq, Expired: true})
			}
		}
	}
}

// copy replaces the state of a name in a set, with its error, by that in another type.
func (c *currency) copy(kind Kind, from *Type, n *Name) {
	for _, set := range []func(*Type) *Set{func(t *Type) *Set { return t.set(kind) }, func(t *Type) *Set { return t.Errors(kind) }} {
		was, is := set(c.is).Get(n), set(from).Get(n)
		switch is {
		case was:
		case nil:
			set(c.own()).drop(c.by, was)
		default:
			again := *is
			set(c.own()).put(c.by, &again)
		}
	}
}

// PinFormer returns an edition of what the rest is served, with resources as they were formerly. Of several formers of a
// resource, the last counts. A name that was forgotten since, because no client wanted it, stays so.
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
			restoring[f.Key] = &pinnedType{currency: currency{w: w, now: time.Now(), was: t, is: t, by: new(txn)}, index: index}
		}
		restoring[f.Key].put(f)
	}
	for key, t := range restoring {
		if t.is != t.was {
			t.is.revision = served.Revision + 1
			of.types.put(t.is)
			e.names[key] = t.differing()
		}
		for _, m := range t.made { // Show makes them again
			m.of.release(m.n)
		}
	}
	e.describe()
	return e
}

// A pinnedType is a type of the edition that PinFormer makes.
type pinnedType struct {
	currency
	index *indexType
	names []*Name
}

// put records a resource as it was.
func (t *pinnedType) put(f Former) {
	n := t.index.names[f.Name]
	if n == nil && f.Kind == Wildcard && f.Resource != nil {
		n = t.w.view.index.name(t.index, f.Name)
		t.made = append(t.made, made{t.index, n})
	}
	if n == nil || !t.w.writes(f.Kind, t.was, n) {
		return
	}
	set := t.is.set(f.Kind)
	old := set.Get(n)
	if f.Kind == ByName && old == nil {
		return // nobody wants it, or it was never answered
	}
	set = t.own().set(f.Kind)
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

// differing returns the names whose state is another one, each once.
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
