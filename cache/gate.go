package cache

import (
	"cmp"
	"container/heap"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// A gate stands between what a writer's source says (latest) and what readers see of it (served). The
// writer always edits latest. While the gate is open, both are one head, that of the view. While it is
// closed, latest is a head beside it, and the gate decides which names of an edit pass to served.
//
// A gate belongs to the writer's goroutine. Other goroutines may read latest if they hold index.mu.
type gate struct {
	latest   *ledger            // the writer's own while the gate is open
	ledgers  []*ledger          // that of served and, if it is another one, latest
	why      Reason             // it is closed; empty while it is open
	withheld map[*Name]struct{} // of which served is not what latest has
}

// A Reason says why a gate withholds changes.
type Reason string

// Frozen is the reason of a gate that Freeze closed.
const Frozen Reason = "frozen"

// closed reports whether latest and served are two heads.
func (w *Writer) closed() bool { return w.gate.latest != &w.ledger }

// headOf returns the newest head of a ledger.
func (w *Writer) headOf(l *ledger) *Generation { return cmp.Or(l.head, w.view.Generation()) }

// Generation returns the newest version of what the writer writes (latest). Readers see the view's head.
func (w *Writer) Generation() *Generation { return w.headOf(w.gate.latest) }

// Frozen reports whether the writer is frozen.
func (w *Writer) Frozen() bool { return w.gate.why == Frozen }

// Freeze closes the gate: until Thaw, readers see what there was. Generation follows the source, and for the writer nothing else is
// different. It copies what the writer holds except the resources. Of changes made meanwhile only the last one of each
// name is kept. Freeze has no effect on a frozen writer.
//
// These changes pass all the same. First state: the first answer for a name, also that it does not exist, and new
// members until their set is confirmed. Uncacheable state: content that may not be kept (R125) and the answer that an alias means
// nothing (B.20), since clients have the origin asked again for these. How long a resource lives, since clients measure it
// themselves: it lives for as long as the source says of its name, and after the source has removed it for as long as it said
// last (R107). How the source itself stands. And what nobody wants any more is forgotten.
func (w *Writer) Freeze() {
	if w.closed() {
		return
	}
	x := &w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	served := *w.view.head.Load()
	w.from(&served).Frozen = time.Now()
	w.view.head.Store(&served)
	latest := w.branch(&served)
	w.gate = gate{latest: latest, ledgers: []*ledger{&w.ledger, latest}, why: Frozen, withheld: make(map[*Name]struct{})}
	for t := range served.types.since(0) {
		for e := range w.own(t) {
			e.Name.entries++
		}
	}
}

// Thaw shows readers latest, and opens the gate. Readers learn the merged difference: what each name is now, however often it
// has changed. Thaw has no effect on a writer that is not frozen.
func (w *Writer) Thaw() {
	if w.closed() {
		w.show(w.Generation())
		w.open()
	}
}

// branch returns a ledger with a copy of a head that can be edited beside the original. What other writers write stays
// in it as it is now, and nobody looks at that.
func (w *Writer) branch(of *Generation) *ledger {
	l := newLedger()
	for key, names := range w.aliases {
		l.aliases[key] = make(map[string][]*Name)
		for resource, of := range names {
			l.aliases[key][resource] = slices.Clone(of)
		}
	}
	generation := *of
	generation.types = types{}
	for t := range of.types.since(0) {
		generation.types.put(l.branch(t))
	}
	heap.Init(&l.due)
	l.head, l.kept = &generation, len(l.due)
	return &l
}

// branch returns a copy of a type that can be edited beside the original.
func (l *ledger) branch(t *Type) *Type {
	c := *t
	c.shared = nil
	sets := []*Set{&c.Wildcard, &c.ByName}
	if t.errors != nil {
		errors := *t.errors
		c.errors = &errors
		sets = append(sets, &errors[Wildcard], &errors[ByName])
	}
	for _, s := range sets { // whose arrays the original appends to
		s.log, s.renewals, s.burials = slices.Clip(s.log), slices.Clip(s.renewals), slices.Clip(s.burials)
	}
	// A deadline that is moved here is not moved there.
	by := new(edit)
	for _, kind := range kinds {
		for e := range t.set(kind).Since(0) {
			if e.alarm == nil {
				continue
			}
			again, alarm := *e, *e.alarm
			again.alarm = &alarm
			set := c.set(kind)
			set.table = set.table.set(by, e.Name.id, &again)
			if !alarm.queued.IsZero() {
				l.due = append(l.due, deadline{alarm.queued, t.URL, kind, e.Name})
			}
		}
	}
	return &c
}

// own yields the entries of a type that are the writer's, errors included.
func (w *Writer) own(t *Type) iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		for _, kind := range kinds {
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

// writes reports whether the writer edits what one of a type's sets holds of a name.
func (w *Writer) writes(kind Kind, t *Type, n *Name) bool {
	if kind == Wildcard {
		return t.source == w.source
	}
	return n.source == w.source
}

// holds returns how many entries of a name there are, in what readers see and in what closed gates have beside it. The index
// must be locked.
func (v *View) holds(key string, n *Name) (entries int) {
	for _, kind := range kinds {
		entries += v.Generation().Type(key).holds(kind, n)
		for _, w := range v.writers {
			if t := w.Generation().Type(key); w.closed() && w.writes(kind, t, n) {
				entries += t.holds(kind, n)
			}
		}
	}
	return entries
}

// gated reports whether the edit is of what readers see, and the gate is closed.
func (a *apply) gated() bool { return a.ledger != a.w.gate.latest }

// heads yields the edit and, if the gate is closed, that of what readers see. It is for what is done to both, since it
// does not come from the source.
func (a *apply) heads() iter.Seq[*apply] {
	return func(yield func(*apply) bool) {
		if yield(a) && a.w.closed() {
			s := a.through()
			s.edit.noting = true
			yield(s)
		}
	}
}

// through returns the edit of what readers see that belongs to one of latest.
func (a *apply) through() *apply {
	if a.served == nil {
		a.served = a.w.edit(a.typ.URL, &a.w.ledger)
	}
	return a.served
}

// pass stores what was edited, and returns the edit of what readers see; nil if nothing passes.
func (w *Writer) pass(a *apply) *apply {
	if a.ledger == &w.ledger {
		return a
	}
	for _, t := range a.ledger.tombs[a.typ.URL] { // nobody has to be told what was removed: show compares
		if e := a.typ.Wildcard.Get(t.name); e != nil && !e.Present() {
			a.typ.Wildcard.drop(a.edit, e)
			t.name.entries--
		}
	}
	delete(a.ledger.tombs, a.typ.URL)
	a.ledger.head = a.head
	names, shown := a.edit.noted, w.view.Generation()
	source := shown.sources[w.source].through(a.head.sources[w.source])
	if a.served == nil && len(names) == 0 && shown.sources[w.source] == source && shown.Type(a.typ.URL).Phase >= a.typ.Phase {
		return nil
	}
	s := a.through()
	*w.from(s.head) = source
	s.follow(a, append(names, s.edit.noted...))
	return s
}

// follow has readers see of names what passes of an edit of latest.
func (a *apply) follow(latest *apply, names []*Name) {
	a.pokes |= latest.pokes
	w, t := a.w, latest.typ
	for _, n := range names {
		for _, kind := range kinds {
			if w.writes(kind, t, n) {
				a.pass(kind, latest, n)
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
	for _, kind := range kinds {
		if set, is := a.set(kind), t.set(kind); set.system == "" || set.sum == is.sum {
			set.system = is.system
		}
		a.compact(kind)
	}
}

// through returns how readers see a source that stands as latest has it: what they hold may come from elsewhere (Target).
func (s Source) through(latest Source) Source {
	latest.Frozen = s.Frozen
	if latest.Target != s.Target {
		latest.Target = ""
	}
	return latest
}

// stand has all heads say how the source stands. The index must be locked.
func (w *Writer) stand(as Source, turned bool) {
	for _, l := range w.gate.ledgers {
		generation := *w.headOf(l)
		if from := w.from(&generation); w.closed() && l == &w.ledger {
			*from = from.through(as)
		} else {
			*from = as
		}
		if turned {
			generation.turns++
		}
		if l.head == nil {
			w.view.head.Store(&generation)
		} else {
			l.head = &generation
		}
	}
}

// pass shows readers what the source says of a name, as far as that is not withheld.
func (a *apply) pass(kind Kind, latest *apply, n *Name) {
	set, t := a.set(kind), latest.typ
	seen, is := set.Get(n), t.set(kind).Get(n)
	switch {
	case a.admits(kind, n, is, t.Errors(kind).Get(n) != nil):
		a.show(kind, latest.head, n)
	case !seen.Present() || !is.Present():
	case seen.Resource.Key() == is.Resource.Key() && a.w.view.cfg.VersionSource.same(seen.Resource, is.Resource) &&
		a.typ.Errors(kind).Get(n) == nil:
		a.copy(kind, set, latest.head, is) // which is no change of content
	case !seen.Deadline().Equal(is.Deadline()):
		again := *seen
		a.renew(kind, &again, is.Deadline())
		a.limit(kind, &again)
		set.put(a.edit, &again)
	}
}

// admits reports whether what the source says of a name passes the closed gate: nothing was known of it, or
// nothing that could be kept. The entry is what the source says, nil if it says nothing; fails is whether it
// says that something is wrong. Which types wait is to be decided here, too.
func (a *apply) admits(kind Kind, n *Name, is *Entry, fails bool) bool {
	if kind == Wildcard {
		return a.admitsMember(a.typ.Wildcard.Get(n))
	}
	failing := a.typ.Errors(ByName).Get(n) != nil
	switch seen, _ := a.typ.Lookup(n); {
	case seen == nil:
		return !failing && a.typ.ByName.Get(n) == nil
	case is != nil && !is.Present() && !a.typ.ByName.Get(n).Present() && !failing && !fails:
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

// withhold notes of which names, all of one type, readers see something else than latest has, after an edit of what they see.
func (w *Writer) withhold(a *apply, latest *Type, names []*Name) {
	for _, n := range names {
		if w.agrees(a.typ, latest, n) {
			delete(w.gate.withheld, n)
			a.index.release(n)
		} else {
			w.gate.withheld[n] = struct{}{}
		}
	}
	w.view.index.sources[w.source].withheld.Store(int64(len(w.gate.withheld)))
}

// agrees reports whether readers see of a name what the source says.
func (w *Writer) agrees(served, t *Type, n *Name) bool {
	for _, kind := range kinds {
		if !w.writes(kind, t, n) {
			continue
		}
		seen, is := served.set(kind).Get(n), t.set(kind).Get(n)
		wrong, err := served.Errors(kind).Get(n), t.Errors(kind).Get(n)
		switch {
		case seen.Present() != is.Present(), kind == ByName && (seen == nil) != (is == nil), (wrong == nil) != (err == nil):
			return false
		case is.Present() && (seen.Resource.Key() != is.Resource.Key() || !w.view.cfg.VersionSource.same(seen.Resource, is.Resource)):
			return false
		case err != nil && !err.Err.Same(wrong.Err):
			return false
		}
	}
	return true
}

// Withheld returns of how many names readers see something else than a source, which is
// frozen, says by now.
func (v *View) Withheld(source int) int { return int(v.index.sources[source].withheld.Load()) }

// show has readers see what a head has of what the writer writes. Additions and changes come first, in the order in which
// types are sent, then removals in reverse: so nothing that a reader has refers to what it is told is gone (B.11).
func (w *Writer) show(generation *Generation) {
	differ := w.differ(generation)
	order := slices.SortedFunc(maps.Keys(differ), func(a, b string) int {
		return cmp.Or(wire.Rank(resourceType(a))-wire.Rank(resourceType(b)), cmp.Compare(a, b))
	})
	for _, key := range order {
		w.showType(generation.Type(key), generation, differ[key], true)
	}
	for _, key := range slices.Backward(order) {
		w.showType(generation.Type(key), generation, differ[key], false)
	}
}

// differ returns by type URL or collection the names of which readers see something else than a head has.
func (w *Writer) differ(generation *Generation) map[string][]*Name {
	differ := make(map[string][]*Name)
	for t := range generation.types.since(0) {
		served, names := w.view.Generation().Type(t.URL), make(map[*Name]struct{})
		for _, of := range []*Type{served, t} {
			for e := range w.own(of) {
				if !w.agrees(served, t, e.Name) {
					names[e.Name] = struct{}{}
				}
			}
		}
		if len(names) > 0 {
			differ[t.URL] = slices.Collect(maps.Keys(names))
		}
	}
	return differ
}

// showType shows readers what a head has of names of a type: those that are present there, or the others.
func (w *Writer) showType(t *Type, generation *Generation, names []*Name, present bool) {
	a := w.beginOn(&w.ledger, t.URL)
	for _, kind := range kinds {
		set := t.set(kind)
		slices.SortFunc(names, func(a, b *Name) int {
			return cmp.Or(cmp.Compare(set.Get(a).seq(), set.Get(b).seq()), a.Compare(b))
		})
		for _, n := range names {
			if w.writes(kind, t, n) && set.Get(n).Present() == present {
				a.showFinally(kind, generation, n)
			}
		}
		a.set(kind).system = set.system
		a.compact(kind)
	}
	if t.source == w.source && !t.failsWhole() {
		a.succeedWhole()
	}
	w.withhold(a, w.Generation().Type(t.URL), names)
	w.publish(a)
}

// showFinally is show, but what the head says does not exist is removed even if the source has not said so again since it
// was lost: on the next connection, nobody would ask.
func (a *apply) showFinally(kind Kind, from *Generation, n *Name) {
	set := a.set(kind)
	old, e := set.Get(n), from.Type(a.typ.URL).set(kind).Get(n)
	if kind == ByName && e != nil && !e.Present() && (!e.Expired || old == nil) && (!old.Present() || from.From(n).Connected) {
		a.absent(set, n, old)
		a.unalias(old)
		if !old.Present() { // it is no more certain for that
			again := *set.Get(n)
			again.epoch, again.Expired = e.epoch, e.Expired
			set.put(a.edit, &again)
		}
	}
	a.show(kind, from, n)
}

// show shows readers all that a head has of a name.
func (a *apply) show(kind Kind, from *Generation, n *Name) {
	t, set := from.Type(a.typ.URL), a.set(kind)
	was, is, err := set.Get(n).seq(), t.set(kind).Get(n), t.Errors(kind).Get(n)
	recovered := err == nil && a.typ.Errors(kind).Get(n) != nil && !is.Present()
	switch {
	case is != nil:
		a.copy(kind, set, from, is)
	case kind == Wildcard:
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

// open makes served the one head. All readers are woken: there may be what they could not be told before (Source.Frozen),
// whatever has changed.
func (w *Writer) open() {
	x := &w.view.index
	x.mu.Lock()
	latest := w.gate.latest.head
	w.gate = gate{latest: &w.ledger, ledgers: []*ledger{&w.ledger}}
	for t := range latest.types.since(0) {
		for e := range w.own(t) {
			e.Name.entries--
			x.types[t.URL].release(e.Name)
		}
	}
	x.sources[w.source].withheld.Store(0)
	served := *w.view.head.Load()
	from := w.from(&served)
	from.Frozen, from.Target = time.Time{}, latest.sources[w.source].Target
	wakes := x.all(nil)
	w.view.head.Store(&served)
	x.mu.Unlock()
	for _, watch := range wakes {
		watch.wake()
	}
}
