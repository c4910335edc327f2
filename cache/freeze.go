package cache

import (
	"cmp"
	"container/heap"
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// An aside is what a frozen writer keeps up to date in place of what readers see. It
// belongs to the writer's goroutine; where it stands for names, the index counts it.
type aside struct {
	ledger

	// head is what readers would see. Of what other writers write it holds what was
	// there when the writer was frozen, and nobody looks at that.
	head *Head

	// withheld are the names of which readers see something else, by type URL or
	// collection.
	withheld map[string]map[*Name]struct{}
	names    int // in withheld
}

// Head returns the newest version of what the writer writes: that which readers see,
// unless the writer is frozen.
func (w *Writer) Head() *Head {
	if w.aside != nil {
		return w.aside.head
	}
	return w.view.Head()
}

// Frozen reports whether the writer is frozen.
func (w *Writer) Frozen() bool { return w.aside != nil }

// Freeze keeps what the writer's source changes from readers until Thaw. Head goes on
// following the source, and for the writer nothing is different; readers, also those
// that come anew, see what there was. It costs a look at everything that the view holds, and
// changes made meanwhile are kept once, however often they are made. A writer that is
// frozen already stays so.
//
// What the view does not know is no change and is shown when it comes, once: the first
// answer for a name, be it that there is none, and members that are new, until their set is
// confirmed. So are content that may not be kept (R125) and the word that an alias means nothing
// (B.20), for whoever asks for these has the origin asked again.
//
// How long a resource lives cannot be frozen, since clients measure it themselves: it
// lives for as long as the source says of its name, whatever is to take its place, and if
// the source has removed it, for as long as it last said (R107). Nor can how the source
// itself stands. What nobody wants any more is forgotten as ever.
func (w *Writer) Freeze() {
	if w.aside != nil {
		return
	}
	x := &w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	shown := *w.view.head.Load()
	w.from(&shown).Frozen = time.Now()
	w.view.head.Store(&shown)

	f := &aside{ledger: newLedger(), withheld: make(map[string]map[*Name]struct{})}
	for key, names := range w.aliases {
		f.aliases[key] = make(map[string][]*Name)
		for resource, of := range names {
			f.aliases[key][resource] = slices.Clone(of)
		}
	}
	head := shown
	head.types = types{}
	for t := range shown.types.since(0) {
		head.types.put(f.fork(t))
	}
	f.head, f.kept, w.aside = &head, len(f.due), f
	heap.Init(&f.due)
	for t := range head.types.since(0) {
		for e := range w.own(t) {
			e.Name.aside++
		}
	}
}

// fork returns a copy of a type that can be changed beside the original.
func (f *aside) fork(t *Type) *Type {
	c := *t
	c.shared = nil
	sets := []*Set{&c.Members, &c.Named}
	if t.errors != nil {
		errors := *t.errors
		c.errors = &errors
		sets = append(sets, &errors[Members], &errors[Named])
	}
	for _, s := range sets { // whose arrays the original appends to
		s.log, s.renewals, s.burials = slices.Clip(s.log), slices.Clip(s.renewals), slices.Clip(s.burials)
	}
	// A deadline that is moved here is not moved there.
	by := new(edit)
	for _, kind := range []Kind{Members, Named} {
		for e := range t.set(kind).Since(0) {
			if e.alarm == nil {
				continue
			}
			again, alarm := *e, *e.alarm
			again.alarm = &alarm
			set := c.set(kind)
			set.table = set.table.set(by, e.Name.id, &again)
			if !alarm.queued.IsZero() {
				f.due = append(f.due, deadline{alarm.queued, t.URL, kind, e.Name})
			}
		}
	}
	return &c
}

// own yields the entries of a type that are the writer's, errors included.
func (w *Writer) own(t *Type) func(func(*Entry) bool) {
	return func(yield func(*Entry) bool) {
		for _, kind := range []Kind{Members, Named} {
			for _, set := range []*Set{t.set(kind), t.Errors(kind)} {
				for e := range set.Since(0) {
					if w.writes(kind, t, e.Name) && !yield(e) {
						return
					}
				}
			}
		}
	}
}

// writes reports whether it is the writer that says what one of a type's sets holds of a
// name.
func (w *Writer) writes(kind Kind, t *Type, n *Name) bool {
	if kind == Members {
		return t.source == w.source
	}
	return n.source == w.source
}

// aside reports whether what is being changed is not what readers see.
func (a *apply) aside() bool { return a.ledger != &a.w.ledger }

// count counts an entry of a name that came to be, or one that is gone.
func (a *apply) count(n *Name, by int) {
	if a.aside() {
		n.aside += by
	} else {
		n.entries += by
	}
}

// beginAside is begin for what is kept aside.
func (w *Writer) beginAside(key string) *apply {
	w.view.index.mu.Lock()
	a := w.edit(key, w.aside.head, &w.aside.ledger)
	a.edit.noting = true
	return a
}

// publishAside is publish for what is kept aside, of which it shows readers what they
// are to see all the same. Nobody has to be told what was removed: Thaw compares.
func (w *Writer) publishAside(a *apply) {
	x, f := &w.view.index, w.aside
	for _, t := range f.tombs[a.typ.URL] {
		if e := a.typ.Members.Get(t.name); e != nil && !e.Present() {
			a.typ.Members.drop(a.edit, e)
			a.count(t.name, -1)
		}
	}
	delete(f.tombs, a.typ.URL)
	f.head = a.head
	x.mu.Unlock()
	x.poke(a.pokes)
	w.pass(a.typ.URL, a.edit.noted)
}

// standAside has what is kept aside say how the source stands. The index must be locked.
func (w *Writer) standAside(as Source) {
	head := *w.aside.head
	*w.from(&head) = as
	w.aside.head = &head
}

// setTargetAside is SetTarget for what is kept aside. The index must be locked.
func (w *Writer) setTargetAside(target string) {
	head := *w.aside.head
	w.from(&head).Target = target
	w.aside.head = &head
}

// forgetAside is Forget for what is kept aside.
func (w *Writer) forgetAside(typeURL string, names []*Name) {
	a := w.beginAside(typeURL)
	for _, n := range names {
		a.forget(n)
	}
	a.typ.Named.compact()
	w.publish(a)
}

// forgetMembersAside is ForgetMembers for what is kept aside.
func (w *Writer) forgetMembersAside(key string) {
	a := w.beginAside(key)
	a.forgetMembers()
	_, _, is := SplitCollection(key)
	if is = is && len(a.index.names) == 0; is {
		a.head.types.drop(key)
		delete(a.ledger.aliases, key)
	}
	w.publish(a)
	if is {
		a = w.beginShown(key)
		w.forgetCollection(a)
		w.publish(a)
	}
}

// pass shows readers what of a change that was kept aside is not to be withheld.
func (w *Writer) pass(key string, names []*Name) {
	from := w.aside.head
	t := from.Type(key)
	source := from.sources[w.source]
	shown := w.view.Head()
	source.Target = shown.sources[w.source].Target // of what readers see: SetTarget
	if was := shown.Type(key); len(names) == 0 && shown.sources[w.source] == source && was.Phase >= t.Phase {
		return
	}
	a := w.beginShown(key)
	*w.from(a.head) = source
	for _, n := range names {
		for _, kind := range []Kind{Members, Named} {
			if w.writes(kind, t, n) {
				a.pass(kind, from, n)
			}
		}
	}
	if t.source == w.source && t.Phase > a.typ.Phase {
		a.typ.Phase, a.typ.Restored, a.dirty = t.Phase, t.Restored, true
		if !t.failsWhole() {
			a.succeedWhole()
		}
	}
	w.withhold(a, t, names)
	for _, n := range names {
		a.index.release(n)
	}
	a.compact(Members)
	a.compact(Named)
	w.publish(a)
}

// pass shows readers what the source says of a name, as far as that is not withheld.
func (a *apply) pass(kind Kind, from *Head, n *Name) {
	set, t := a.set(kind), from.Type(a.typ.URL)
	seen, is := set.Get(n), t.set(kind).Get(n)
	switch {
	case a.admits(kind, n, is, t.Errors(kind).Get(n) != nil):
		a.show(kind, from, n)
	case !seen.Present() || !is.Present():
	case seen.Resource.Key() == is.Resource.Key() && a.w.view.cfg.VersionSource.same(seen.Resource, is.Resource) &&
		a.typ.Errors(kind).Get(n) == nil:
		a.copy(kind, set, from, is) // which is no change of content
	case !seen.Deadline().Equal(is.Deadline()):
		again := *seen
		a.renew(kind, &again, is.Deadline())
		a.limit(kind, &again)
		set.put(a.edit, &again)
	}
}

// admits reports whether readers are shown what the source says of a name, now that it
// is frozen: whether nothing was known of it, or nothing that could be kept. The entry is
// what the source says, nil if it says nothing; fails is whether it says that something is
// wrong.
func (a *apply) admits(kind Kind, n *Name, is *Entry, fails bool) bool {
	if kind == Members {
		return a.admitsMember(a.typ.Members.Get(n))
	}
	failing := a.typ.Errors(Named).Get(n) != nil
	switch seen, _ := a.typ.Lookup(n); {
	case seen == nil:
		return !failing && a.typ.Named.Get(n) == nil
	case is != nil && !is.Present() && !a.typ.Named.Get(n).Present() && !failing && !fails:
		return true // it is said once more that there is none
	default:
		return seen.Expired || !keeps(seen)
	}
}

// admitsMember is admits for a member, of which readers see an entry; nil is none.
func (a *apply) admitsMember(seen *Entry) bool {
	return !seen.Present() && a.typ.Phase < Confirmed && !a.typ.Restored || !keeps(seen)
}

// keeps reports whether an entry can go on being shown.
func keeps(e *Entry) bool {
	return !e.Present() || !e.Resource.DoNotCache && !e.Resource.Unresolved() && !e.Resource.Released()
}

// show shows readers all that the source says of a name, which the caller releases.
func (a *apply) show(kind Kind, from *Head, n *Name) {
	t, set := from.Type(a.typ.URL), a.set(kind)
	was, is, err := set.Get(n).seq(), t.set(kind).Get(n), t.Errors(kind).Get(n)
	recovered := err == nil && a.typ.Errors(kind).Get(n) != nil && !is.Present()
	switch {
	case is != nil:
		a.copy(kind, set, from, is)
	case kind == Members:
		a.goneMember(set, n)
	}
	if !recovered {
		a.copyError(kind, n.text, err)
		return
	}
	if a.succeed(kind, n); set.Get(n).seq() == was {
		a.settle(kind, set, n)
	}
}

// withhold notes of which names readers see something else than the source says, and,
// where that is none, takes over what else it says of the type.
func (w *Writer) withhold(a *apply, t *Type, names []*Name) {
	f, key := w.aside, a.typ.URL
	of := f.withheld[key]
	if of == nil {
		of = make(map[*Name]struct{})
		f.withheld[key] = of
	}
	f.names -= len(of)
	for _, n := range names {
		if w.agrees(a.typ, t, n) {
			delete(of, n)
		} else {
			of[n] = struct{}{}
		}
	}
	f.names += len(of)
	if len(of) == 0 {
		delete(f.withheld, key)
	}
	a.systemOf(t, len(of) == 0)
	w.view.index.sources[w.source].withheld.Store(int64(f.names))
}

// agrees reports whether readers see of a name what the source says.
func (w *Writer) agrees(shown, t *Type, n *Name) bool {
	for _, kind := range []Kind{Members, Named} {
		if !w.writes(kind, t, n) {
			continue
		}
		seen, is := shown.set(kind).Get(n), t.set(kind).Get(n)
		wrong, err := shown.Errors(kind).Get(n), t.Errors(kind).Get(n)
		switch {
		case seen.Present() != is.Present(), kind == Named && (seen == nil) != (is == nil), (wrong == nil) != (err == nil):
			return false
		case is.Present() && (seen.Resource.Key() != is.Resource.Key() || !w.view.cfg.VersionSource.same(seen.Resource, is.Resource)):
			return false
		case err != nil && !err.Err.Same(wrong.Err):
			return false
		}
	}
	return true
}

// systemOf takes over the origin's own versions of a type, where readers see all that
// they stand for, or have seen none.
func (a *apply) systemOf(t *Type, all bool) {
	for _, kind := range []Kind{Members, Named} {
		if set := a.set(kind); all || set.system == "" {
			set.system = t.set(kind).system
		}
	}
}

// Withheld returns of how many names readers see something else than a source, which is
// frozen, says by now.
func (v *View) Withheld(source int) int { return int(v.index.sources[source].withheld.Load()) }

// Thaw shows readers what Freeze has kept from them: of each name what it is now, however
// often it has changed. What is new or changed comes first, in the order in which types are sent, and
// then what is gone, in reverse: so nothing that a reader has refers to what it is told
// is gone (B.11). A writer that is not frozen stays so.
func (w *Writer) Thaw() {
	f := w.aside
	if f == nil {
		return
	}
	w.aside = nil
	order := slices.SortedFunc(maps.Keys(f.withheld), func(a, b string) int {
		return cmp.Or(wire.Rank(resourceType(a))-wire.Rank(resourceType(b)), cmp.Compare(a, b))
	})
	for _, key := range order {
		w.unveil(f, key, func(kind Kind, n *Name) bool { return f.head.Type(key).set(kind).Get(n).Present() })
	}
	for _, key := range slices.Backward(order) {
		w.unveil(f, key, func(kind Kind, n *Name) bool { return !f.head.Type(key).set(kind).Get(n).Present() })
	}
	w.discard(f)
}

// unveil shows readers what was withheld of the names of a type that are due.
func (w *Writer) unveil(f *aside, key string, due func(Kind, *Name) bool) {
	a, t := w.beginShown(key), f.head.Type(key)
	for _, kind := range []Kind{Members, Named} {
		set := t.set(kind)
		inOrder := slices.SortedFunc(maps.Keys(f.withheld[key]), func(a, b *Name) int {
			return cmp.Or(cmp.Compare(set.Get(a).seq(), set.Get(b).seq()), a.Compare(b))
		})
		for _, n := range inOrder {
			if w.writes(kind, t, n) && due(kind, n) {
				a.unveil(kind, f.head, n)
				a.index.release(n)
			}
		}
	}
	if t.source == w.source && !t.failsWhole() {
		a.succeedWhole()
	}
	a.systemOf(t, true)
	a.compact(Members)
	a.compact(Named)
	w.publish(a)
}

// unveil shows readers what the source says of a name. What it removed is removed even if
// it has not said so again since it was lost: on the next connection, nobody would ask.
func (a *apply) unveil(kind Kind, from *Head, n *Name) {
	set := a.set(kind)
	old, e := set.Get(n), from.Type(a.typ.URL).set(kind).Get(n)
	if kind == Named && e != nil && !e.Present() && !e.Expired && (!old.Present() || from.From(n).Connected) {
		a.absent(set, n, old)
		a.unalias(old)
		if !old.Present() { // it is no more certain for that
			again := *set.Get(n)
			again.epoch = e.epoch
			set.put(a.edit, &again)
		}
	}
	a.show(kind, from, n)
}

// discard drops what was kept aside. All readers are woken: there may be what they could
// not be told before (Source.Frozen), whatever has changed.
func (w *Writer) discard(f *aside) {
	x := &w.view.index
	x.mu.Lock()
	for t := range f.head.types.since(0) {
		for e := range w.own(t) {
			e.Name.aside--
			x.types[t.URL].release(e.Name)
		}
	}
	x.sources[w.source].withheld.Store(0)
	shown := *w.view.head.Load()
	from := w.from(&shown)
	from.Frozen, from.Target = time.Time{}, f.head.sources[w.source].Target
	wakes := x.all(nil)
	w.view.head.Store(&shown)
	x.mu.Unlock()
	for _, watch := range wakes {
		watch.wake()
	}
}
