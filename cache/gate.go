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
func (w *Writer) generationOf(l *ledger) *Generation { return cmp.Or(l.gen, w.view.Generation()) }

// Generation returns the newest version of what the writer writes (latest). Readers see the view's head.
func (w *Writer) Generation() *Generation { return w.generationOf(w.gate.latest) }

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
	l.gen, l.kept = &generation, len(l.due)
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
		s.log, s.renewals, s.recentRemovals = slices.Clip(s.log), slices.Clip(s.renewals), slices.Clip(s.recentRemovals)
	}
	// A deadline that is moved here is not moved there.
	by := new(txn)
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
func (ed *edit) behindGate() bool { return ed.ledger != ed.w.gate.latest }

// heads yields the edit and, if the gate is closed, that of what readers see. It is for what is done to both, since it
// does not come from the source.
func (ed *edit) edits() iter.Seq[*edit] {
	return func(yield func(*edit) bool) {
		if yield(ed) && ed.w.closed() {
			s := ed.servedEdit()
			s.txn.noting = true
			yield(s)
		}
	}
}

// through returns the edit of what readers see that belongs to one of latest.
func (ed *edit) servedEdit() *edit {
	if ed.served == nil {
		ed.served = ed.w.beginLocked(ed.typ.URL, &ed.w.ledger)
	}
	return ed.served
}

// pass stores what was edited, and returns the edit of what readers see; nil if nothing passes.
func (w *Writer) passEdit(ed *edit) *edit {
	if ed.ledger == &w.ledger {
		return ed
	}
	for _, tomb := range ed.ledger.tombstones[ed.typ.URL] { // nobody has to be told what was removed: show compares
		if e := ed.typ.Wildcard.Get(tomb.name); e != nil && !e.Present() {
			ed.typ.Wildcard.drop(ed.txn, e)
			tomb.name.entries--
		}
	}
	delete(ed.ledger.tombstones, ed.typ.URL)
	ed.ledger.gen = ed.gen
	names, shown := ed.txn.noted, w.view.Generation()
	source := shown.sources[w.source].asServed(ed.gen.sources[w.source])
	if ed.served == nil && len(names) == 0 && shown.sources[w.source] == source && shown.Type(ed.typ.URL).Phase >= ed.typ.Phase {
		return nil
	}
	s := ed.servedEdit()
	*w.from(s.gen) = source
	s.passNames(ed, append(names, s.txn.noted...))
	return s
}

// follow has readers see of names what passes of an edit of latest.
func (ed *edit) passNames(latest *edit, names []*Name) {
	ed.pokes |= latest.pokes
	w, t := ed.w, latest.typ
	for _, n := range names {
		for _, kind := range kinds {
			if w.writes(kind, t, n) {
				ed.passName(kind, latest, n)
			}
		}
	}
	if t.source == w.source && t.Phase > ed.typ.Phase {
		ed.typ.Phase, ed.typ.Restored, ed.dirty = t.Phase, t.Restored, true
		if !t.hasWholeError() {
			ed.clearWholeError()
		}
	}
	w.withhold(ed, t, names)
	for _, kind := range kinds {
		if set, is := ed.set(kind), t.set(kind); set.system == "" || set.sum == is.sum {
			set.system = is.system
		}
		ed.compact(kind)
	}
}

// through returns how readers see a source that stands as latest has it: what they hold may come from elsewhere (Target).
func (s Source) asServed(latest Source) Source {
	latest.Frozen = s.Frozen
	if latest.Target != s.Target {
		latest.Target = ""
	}
	return latest
}

// stand has all heads say how the source stands. The index must be locked.
func (w *Writer) setSource(as Source, turned bool) {
	for _, l := range w.gate.ledgers {
		generation := *w.generationOf(l)
		if from := w.from(&generation); w.closed() && l == &w.ledger {
			*from = from.asServed(as)
		} else {
			*from = as
		}
		if turned {
			generation.originChanges++
		}
		if l.gen == nil {
			w.view.head.Store(&generation)
		} else {
			l.gen = &generation
		}
	}
}

// pass shows readers what the source says of a name, as far as that is not withheld.
func (ed *edit) passName(kind Kind, latest *edit, n *Name) {
	set, t := ed.set(kind), latest.typ
	seen, is := set.Get(n), t.set(kind).Get(n)
	switch {
	case ed.admitsName(kind, n, is, t.Errors(kind).Get(n) != nil):
		ed.showName(kind, latest.gen, n)
	case !seen.Present() || !is.Present():
	case seen.Resource.Key() == is.Resource.Key() && ed.w.view.cfg.VersionSource.same(seen.Resource, is.Resource) &&
		ed.typ.Errors(kind).Get(n) == nil:
		ed.copyEntry(kind, set, latest.gen, is) // which is no change of content
	case !seen.Deadline().Equal(is.Deadline()):
		again := *seen
		ed.renew(kind, &again, is.Deadline())
		ed.setAlarm(kind, &again)
		set.put(ed.txn, &again)
	}
}

// admits reports whether what the source says of a name passes the closed gate: nothing was known of it, or
// nothing that could be kept. The entry is what the source says, nil if it says nothing; fails is whether it
// says that something is wrong. Which types wait is to be decided here, too.
func (ed *edit) admitsName(kind Kind, n *Name, is *Entry, fails bool) bool {
	if kind == Wildcard {
		return ed.admitsMember(ed.typ.Wildcard.Get(n))
	}
	failing := ed.typ.Errors(ByName).Get(n) != nil
	switch seen, _ := ed.typ.Lookup(n); {
	case seen == nil:
		return !failing && ed.typ.ByName.Get(n) == nil
	case is != nil && !is.Present() && !ed.typ.ByName.Get(n).Present() && !failing && !fails:
		return true // it is said once more that there is none
	default:
		return seen.Expired || !cacheable(seen)
	}
}

// admitsMember is admits for a member, of which readers see an entry; nil is none.
func (ed *edit) admitsMember(seen *Entry) bool {
	return !seen.Present() && ed.typ.Phase < Confirmed && !ed.typ.Restored || !cacheable(seen)
}

// keeps reports whether an entry can go on being shown.
func cacheable(e *Entry) bool {
	return !e.Present() || !e.Resource.DoNotCache && !e.Resource.Unresolved() && !e.Resource.ContentDropped()
}

// withhold notes of which names, all of one type, readers see something else than latest has, after an edit of what they see.
func (w *Writer) withhold(ed *edit, latest *Type, names []*Name) {
	for _, n := range names {
		if w.agrees(ed.typ, latest, n) {
			delete(w.gate.withheld, n)
			ed.index.release(n)
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
	ed := w.beginOn(&w.ledger, t.URL)
	for _, kind := range kinds {
		set := t.set(kind)
		slices.SortFunc(names, func(a, b *Name) int {
			return cmp.Or(cmp.Compare(set.Get(a).seq(), set.Get(b).seq()), a.Compare(b))
		})
		for _, n := range names {
			if w.writes(kind, t, n) && set.Get(n).Present() == present {
				ed.showThawed(kind, generation, n)
			}
		}
		ed.set(kind).system = set.system
		ed.compact(kind)
	}
	if t.source == w.source && !t.hasWholeError() {
		ed.clearWholeError()
	}
	w.withhold(ed, w.Generation().Type(t.URL), names)
	w.publish(ed)
}

// showFinally is show, but what the head says does not exist is removed even if the source has not said so again since it
// was lost: on the next connection, nobody would ask.
func (ed *edit) showThawed(kind Kind, from *Generation, n *Name) {
	set := ed.set(kind)
	old, e := set.Get(n), from.Type(ed.typ.URL).set(kind).Get(n)
	if kind == ByName && e != nil && !e.Present() && (!e.Expired || old == nil) && (!old.Present() || from.From(n).Connected) {
		ed.putAbsent(set, n, old)
		ed.unalias(old)
		if !old.Present() { // it is no more certain for that
			again := *set.Get(n)
			again.epoch, again.Expired = e.epoch, e.Expired
			set.put(ed.txn, &again)
		}
	}
	ed.showName(kind, from, n)
}

// show shows readers all that a head has of a name.
func (ed *edit) showName(kind Kind, from *Generation, n *Name) {
	t, set := from.Type(ed.typ.URL), ed.set(kind)
	was, is, err := set.Get(n).seq(), t.set(kind).Get(n), t.Errors(kind).Get(n)
	recovered := err == nil && ed.typ.Errors(kind).Get(n) != nil && !is.Present()
	switch {
	case is != nil:
		ed.copyEntry(kind, set, from, is)
	case kind == Wildcard:
		ed.removeMember(set, n)
	}
	if !recovered {
		ed.copyError(kind, n.text, err)
		return
	}
	if ed.clearError(kind, n); set.Get(n).seq() == was {
		ed.announceAbsence(kind, set, n)
	}
}

// open makes served the one head. All readers are woken: there may be what they could not be told before (Source.Frozen),
// whatever has changed.
func (w *Writer) open() {
	x := &w.view.index
	x.mu.Lock()
	latest := w.gate.latest.gen
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
