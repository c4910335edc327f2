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

// inOrder returns the type URLs and collections of a map in the order in which types are sent.
func inOrder[T any](of map[string]T) []string {
	return slices.SortedFunc(maps.Keys(of), func(a, b string) int {
		return cmp.Or(wire.Rank(resourceType(a))-wire.Rank(resourceType(b)), cmp.Compare(a, b))
	})
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

// Pin cuts an edition of all that waits.
func (w *Writer) Pin() *Edition { return w.pin(w.target(w.rest(), w.Generation())) }

// PinThawed cuts an edition of what Thaw shows the rest. It changes nothing if the gate is open.
func (w *Writer) PinThawed() *Edition {
	latest := w.Generation()
	return w.keepThawed(w.pin(func(string, *Name) *Generation { return latest }))
}

// PinThawedAs is PinThawed for a source that applies its changes only after the thaw: these are resources as they are
// then.
func (w *Writer) PinThawedAs(resources []Former) *Edition {
	return w.keepThawed(w.PinFormer(resources))
}

// keepThawed drops from a new edition what Thaw leaves to Show.
func (w *Writer) keepThawed(e *Edition) *Edition {
	thawed := w.gate
	thawed.frozen, thawed.back = time.Time{}, time.Time{}
	for key, names := range e.names {
		was, is := e.was.Type(key), e.of.Type(key)
		e.names[key] = slices.DeleteFunc(names, func(n *Name) bool { return thawed.differenceWaits(was, is, n) })
	}
	maps.DeleteFunc(e.names, func(_ string, names []*Name) bool { return len(names) == 0 })
	e.describe()
	return e
}

// pin cuts an edition of the names whose target the rest does not see. The target of each is latest.
func (w *Writer) pin(to target) *Edition {
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
func (w *Writer) PinServed() *Edition {
	g := w.rest().generation()
	return &Edition{of: g, was: g, Changes: make(map[string]map[string]wire.Digest)}
}

// Show shows the readers of a cohort's view what waits as it is in an edition. All else stays as it is, and so does what would pass
// while the writer is frozen. Of an edition that an earlier process has cut, it shows nothing.
func (w *Writer) Show(cohort int, e *Edition) {
	if e.of != nil {
		w.noteTakenBack(w.served[cohort], w.showWaiting(cohort, e.of))
	}
}

// ShowAs is Show for what the readers of another cohort's view are served. What the editions shown before it took back counts as
// changed once more: a client that refused a response keeps what it had before, and only one with the last good state is left.
func (w *Writer) ShowAs(cohort, of int) {
	w.announceTakenBack(w.served[cohort], w.showWaiting(cohort, w.served[of].generation()))
}

// showWaiting returns, by type URL or collection, the names that differed.
func (w *Writer) showWaiting(cohort int, of *Generation) (differ map[string][]*Name) {
	s := w.served[cohort]
	of, made := w.current(of)
	differ = w.show(s, w.target(s, of))
	w.releaseAll(made)
	if s == w.rest() {
		w.compareAll()
	}
	w.reportWaiting()
	return differ
}

// A takenBack is a name in one of the sets of a type that an edition returned to what the rest sees, from what the edition before it had.
type takenBack struct {
	key, text string
	kind      Kind
}

// noteTakenBack notes what an edition that was just shown took back, given the names that it changed. Of a promotion, nothing is left.
func (w *Writer) noteTakenBack(s *served, changed map[string][]*Name) {
	if s == w.rest() {
		for _, s := range w.served {
			s.takenBack = nil
		}
		return
	}
	for key, names := range changed {
		shown, rest := s.generation().Type(key), w.rest().generation().Type(key)
		for _, n := range names {
			for _, kind := range kinds {
				if shown.set(kind).Get(n) == nil || !w.agrees(shown, rest, n) {
					continue
				}
				if s.takenBack == nil {
					s.takenBack = make(map[takenBack]struct{})
				}
				s.takenBack[takenBack{key, n.text, kind}] = struct{}{}
			}
		}
	}
}

// announceTakenBack gives what editions took back a new position, but for the names that have just changed.
func (w *Writer) announceTakenBack(s *served, changed map[string][]*Name) {
	for t := range s.takenBack {
		if !slices.ContainsFunc(changed[t.key], func(n *Name) bool { return n.text == t.text }) {
			w.announce(s, t)
		}
	}
	s.takenBack = nil
}

// announce has readers be sent a resource, or its removal, although nothing about it has changed.
func (w *Writer) announce(s *served, t takenBack) {
	ed := w.beginOn(s.ledger, t.key)
	n, to := w.view.index.name(ed.index, t.text), ed.of(t.kind)
	switch {
	case to.set.Get(n) != nil:
		to.announceAgain(n)
	case t.kind == Wildcard && ed.typ.hasLastGood(Wildcard): // the removal was forgotten
		to.announceAbsence(n)
	default:
		ed.index.release(n)
	}
	to.compact()
	w.publish(ed)
}

// A made name is one that an edition has brought back.
type made struct {
	of *indexType
	n  *Name
}

// current returns a generation as it is shown now, and the names that were made for that. What was forgotten since is not in it: nothing
// says whether the origin has it still. Resources are gone whose time to live is over.
func (w *Writer) current(of *Generation) (_ *Generation, names []made) {
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
func (w *Writer) releaseAll(names []made) {
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

// age has resources be gone that have expired, and that the origin does not have any more: of others it says how long they live. Content
// that may not be kept is that of latest.
func (c *currency) age() {
	latest := c.w.Generation().Type(c.was.URL)
	for _, kind := range kinds {
		for e := range c.is.set(kind).Since(0) {
			now := latest.set(kind).Get(e.Name)
			switch expired := e.Present() && e.Expires() && !c.now.Before(e.Deadline()); {
			case !c.w.writes(kind, c.was, e.Name) || now == e:
			case !cacheable(e) && now != nil:
				again := *now
				c.own().set(kind).put(c.by, &again)
			case !cacheable(e):
				c.own().set(kind).drop(c.by, e)
			case expired && !now.Present():
				c.own().set(kind).put(c.by, &Entry{Name: e.Name, Seq: e.Seq, Expired: true})
			}
		}
	}
}
