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

// A gate stands between the newest state of a writer's source (latest) and what readers see (served). The writer
// always edits latest. While the gate is open, both are one generation, that of the view. While it is closed, latest
// is a generation beside it, and the gate decides which names of an edit pass to served.
//
// A gate belongs to the writer's goroutine. Other goroutines may read latest if they hold index.mu.
type gate struct {
	w        *Writer
	latest   *ledger            // the writer's own while the gate is open
	ledgers  []*ledger          // that of served and, if it is another one, latest
	why      Reason             // it is closed; empty while it is open
	withheld map[*Name]struct{} // whose state in served differs from that in latest
}

func newGate(w *Writer) gate { return gate{w: w, latest: &w.ledger, ledgers: []*ledger{&w.ledger}} }

// A Reason is why a gate withholds changes.
type Reason string

// Frozen is the reason of a gate that Freeze closed.
const Frozen Reason = "frozen"

// closed reports whether latest and served are two generations.
func (g *gate) closed() bool { return g.latest != &g.w.ledger }

// generationOf returns the newest generation of a ledger.
func (g *gate) generationOf(l *ledger) *Generation { return cmp.Or(l.gen, g.w.view.Generation()) }

// Generation returns the newest generation that the writer writes (latest). Readers see the view's.
func (g *gate) Generation() *Generation { return g.generationOf(g.latest) }

// Frozen reports whether the writer is frozen.
func (g *gate) Frozen() bool { return g.why == Frozen }

// Freeze closes the gate: until Thaw, readers see the state of now. Generation follows the source, and nothing else changes for
// the writer. Freeze copies what the writer holds except the resources. Of changes made meanwhile only the last one of each
// name is kept. Freeze has no effect on a frozen writer.
//
// These changes pass a closed gate. First state: the first answer for a name, also that it does not exist, and new
// members until their set is confirmed. Uncacheable state: content that may not be kept (R125) and the answer that an alias stands for
// nothing (B.20), since clients have the origin asked again for these. Times to live, since clients measure them
// themselves: a resource lives for as long as the source says of its name, and after the source has removed it for as long as it said
// last (R107). The state of the source itself. And names that nobody subscribes to any more are forgotten.
func (g *gate) Freeze() {
	if g.closed() {
		return
	}
	w, x := g.w, &g.w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	served := *w.view.head.Load()
	served.ownSource(w.source).Frozen = time.Now()
	w.view.head.Store(&served)
	g.latest, g.why, g.withheld = w.branch(&served), Frozen, make(map[*Name]struct{})
	g.ledgers = []*ledger{&w.ledger, g.latest}
	for t := range served.types.since(0) {
		for e := range g.own(t) {
			e.Name.entries++
		}
	}
}

// Thaw shows readers latest, and opens the gate. Readers learn the merged difference: the last state of each name, however often it
// has changed. Thaw has no effect on a writer that is not frozen.
func (g *gate) Thaw() {
	if g.closed() {
		g.show(g.Generation())
		g.open()
	}
}

// branch returns a ledger with a copy of a generation that can be edited beside the original. The state of other sources stays
// in it as it is now, and is not read.
func (l *ledger) branch(of *Generation) *ledger {
	c := newLedger()
	for key, names := range l.aliases {
		c.aliases[key] = make(map[string][]*Name)
		for resource, of := range names {
			c.aliases[key][resource] = slices.Clone(of)
		}
	}
	generation := *of
	generation.types = types{}
	for t := range of.types.since(0) {
		generation.types.put(c.branchType(t))
	}
	heap.Init(&c.due)
	c.gen, c.kept = &generation, len(c.due)
	return &c
}

// branchType returns a copy of a type that can be edited beside the original.
func (l *ledger) branchType(t *Type) *Type {
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

// own yields the entries of a type that the writer edits, errors included.
func (g *gate) own(t *Type) iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		for _, kind := range kinds {
			for _, set := range []*Set{t.set(kind), t.Errors(kind)} {
				for e := range set.Since(0) {
					if g.writes(kind, t, e.Name) && !yield(e) {
						return
					}
				}
			}
		}
	}
}

// writes reports whether the writer edits the entry of a name in one of a type's sets.
func (g *gate) writes(kind Kind, t *Type, n *Name) bool {
	if kind == Wildcard {
		return t.source == g.w.source
	}
	return n.source == g.w.source
}

// holds returns how many entries of a name there are, in the served generation and in those behind closed gates. The index
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

// passEdit stores an edit, and returns the edit of what readers see; nil if nothing passes.
func (g *gate) passEdit(ed *edit) *edit {
	w := g.w
	if ed.ledger == &w.ledger {
		return ed
	}
	for _, tomb := range ed.ledger.tombstones[ed.typ.URL] { // no reader needs tombstones of latest: show compares
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
	*s.gen.ownSource(w.source) = source
	g.passNames(s, ed, append(names, s.txn.noted...))
	return s
}

// passNames shows readers what passes of an edit of latest.
func (g *gate) passNames(ed, latest *edit, names []*Name) {
	t := latest.typ
	for _, n := range names {
		for _, kind := range kinds {
			if g.writes(kind, t, n) {
				copying{ed.of(kind), latest.gen, t}.pass(n)
			}
		}
	}
	if t.source == g.w.source && t.Phase > ed.typ.Phase {
		ed.typ.Phase, ed.typ.Restored, ed.dirty = t.Phase, t.Restored, true
		if !t.hasWholeError() {
			ed.clearWholeError()
		}
	}
	g.withhold(ed, t, names)
	for _, kind := range kinds {
		of, is := ed.of(kind), t.set(kind)
		if of.set.system == "" || of.set.sum == is.sum {
			of.set.system = is.system
		}
		of.compact()
	}
}

// asServed returns what readers see of the state that latest has of a source: what they hold may come from elsewhere (Target).
func (s Source) asServed(latest Source) Source {
	latest.Frozen = s.Frozen
	if latest.Target != s.Target {
		latest.Target = ""
	}
	return latest
}

// setSource records the state of the source in all generations. The index must be locked.
func (g *gate) setSource(as Source, reconnected bool) {
	w := g.w
	for _, l := range g.ledgers {
		generation := *g.generationOf(l)
		if from := generation.ownSource(w.source); g.closed() && l == &w.ledger {
			*from = from.asServed(as)
		} else {
			*from = as
		}
		if reconnected {
			generation.originChanges++
		}
		if l.gen == nil {
			w.view.head.Store(&generation)
		} else {
			l.gen = &generation
		}
	}
}

// pass shows readers the state of a name in latest, as far as it passes the gate.
func (to copying) pass(n *Name) {
	seen, is := to.set.Get(n), to.t.set(to.kind).Get(n)
	switch {
	case to.admits(n, is):
		to.show(n)
	case !seen.Present() || !is.Present():
	case seen.Resource.Key() == is.Resource.Key() && to.w.view.cfg.VersionSource.same(seen.Resource, is.Resource) &&
		to.typ.Errors(to.kind).Get(n) == nil:
		to.entry(is) // which changes no content
	case !seen.Deadline().Equal(is.Deadline()):
		again := *seen
		to.renew(&again, is.Deadline())
		to.setAlarm(&again)
		to.set.put(to.txn, &again)
	}
}

// admits reports whether a name passes the closed gate: readers see nothing of it, or
// nothing that may be kept. The entry is that of latest; nil is none.
func (to copying) admits(n *Name, is *Entry) bool {
	if to.kind == Wildcard {
		return to.admitsMember(to.set.Get(n))
	}
	failing, fails := to.typ.Errors(ByName).Get(n) != nil, to.t.Errors(ByName).Get(n) != nil
	switch seen, _ := to.typ.Lookup(n); {
	case seen == nil:
		return !failing && to.set.Get(n) == nil
	case is != nil && !is.Present() && !to.set.Get(n).Present() && !failing && !fails:
		return true // the origin repeats that there is none
	default:
		return seen.Expired || !cacheable(seen)
	}
}

// admitsMember is admits for an entry of the wildcard set that readers see.
func (to copying) admitsMember(seen *Entry) bool {
	return !seen.Present() && to.typ.Phase < Confirmed && !to.typ.Restored || !cacheable(seen)
}

// cacheable reports whether an entry may be shown for longer than a moment.
func cacheable(e *Entry) bool {
	return !e.Present() || !e.Resource.DoNotCache && !e.Resource.Unresolved() && !e.Resource.ContentDropped()
}

// withhold records which of names, all of one type, differ between the edit of what readers see and latest.
func (g *gate) withhold(ed *edit, latest *Type, names []*Name) {
	for _, n := range names {
		if g.agrees(ed.typ, latest, n) {
			delete(g.withheld, n)
			ed.index.release(n)
		} else {
			g.withheld[n] = struct{}{}
		}
	}
	g.w.view.index.sources[g.w.source].withheld.Store(int64(len(g.withheld)))
}

// agrees reports whether readers see the state of a name that the source has.
func (g *gate) agrees(served, t *Type, n *Name) bool {
	for _, kind := range kinds {
		if !g.writes(kind, t, n) {
			continue
		}
		seen, is := served.set(kind).Get(n), t.set(kind).Get(n)
		shown, err := served.Errors(kind).Get(n), t.Errors(kind).Get(n)
		switch {
		case seen.Present() != is.Present(), kind == ByName && (seen == nil) != (is == nil), (shown == nil) != (err == nil):
			return false
		case is.Present() && (seen.Resource.Key() != is.Resource.Key() || !g.w.view.cfg.VersionSource.same(seen.Resource, is.Resource)):
			return false
		case err != nil && !err.Err.Same(shown.Err):
			return false
		}
	}
	return true
}

// Withheld returns of how many names readers do not see the newest state of a source that is
// frozen.
func (v *View) Withheld(source int) int { return int(v.index.sources[source].withheld.Load()) }

// show shows readers what the writer writes of a generation. Additions and changes come first, in the order in which
// types are sent, then removals in reverse, so that no resource refers to one that was removed before (B.11).
func (g *gate) show(generation *Generation) {
	differ := g.differ(generation)
	order := slices.SortedFunc(maps.Keys(differ), func(a, b string) int {
		return cmp.Or(wire.Rank(resourceType(a))-wire.Rank(resourceType(b)), cmp.Compare(a, b))
	})
	for _, key := range order {
		g.showType(generation.Type(key), generation, differ[key], true)
	}
	for _, key := range slices.Backward(order) {
		g.showType(generation.Type(key), generation, differ[key], false)
	}
}

// differ returns, by type URL or collection, the names whose state differs between a generation and what readers see.
func (g *gate) differ(generation *Generation) map[string][]*Name {
	differ := make(map[string][]*Name)
	for t := range generation.types.since(0) {
		served, names := g.w.view.Generation().Type(t.URL), make(map[*Name]struct{})
		for _, of := range []*Type{served, t} {
			for e := range g.own(of) {
				if !g.agrees(served, t, e.Name) {
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

// showType shows readers names of a type as a generation has them: those that are present there, or the others.
func (g *gate) showType(t *Type, generation *Generation, names []*Name, present bool) {
	w := g.w
	ed := w.beginOn(&w.ledger, t.URL)
	for _, kind := range kinds {
		to, set := copying{ed.of(kind), generation, t}, t.set(kind)
		slices.SortFunc(names, func(a, b *Name) int {
			return cmp.Or(cmp.Compare(set.Get(a).seq(), set.Get(b).seq()), a.Compare(b))
		})
		for _, n := range names {
			if g.writes(kind, t, n) && set.Get(n).Present() == present {
				to.showThawed(n)
			}
		}
		to.set.system = set.system
		to.compact()
	}
	if t.source == w.source && !t.hasWholeError() {
		ed.clearWholeError()
	}
	g.withhold(ed, g.Generation().Type(t.URL), names)
	w.publish(ed)
}

// showThawed is show, but also removes a resource of which the source has not repeated since it was
// lost that it does not exist: on the next connection, nobody would ask.
func (to copying) showThawed(n *Name) {
	old, e := to.set.Get(n), to.t.set(to.kind).Get(n)
	if to.kind == ByName && e != nil && !e.Present() && (!e.Expired || old == nil) && (!old.Present() || to.from.From(n).Connected) {
		to.putAbsent(n, old)
		to.unalias(old)
		if !old.Present() { // that makes it no more certain
			again := *to.set.Get(n)
			again.epoch, again.Expired = e.epoch, e.Expired
			to.set.put(to.txn, &again)
		}
	}
	to.show(n)
}

// show shows readers the whole state of a name.
func (to copying) show(n *Name) {
	was, is, err := to.set.Get(n).seq(), to.t.set(to.kind).Get(n), to.t.Errors(to.kind).Get(n)
	recovered := err == nil && to.typ.Errors(to.kind).Get(n) != nil && !is.Present()
	switch {
	case is != nil:
		to.entry(is)
	case to.kind == Wildcard:
		to.removeMember(n)
	}
	if !recovered {
		to.error(n.text, err)
		return
	}
	if to.clearError(n); to.set.Get(n).seq() == was {
		to.announceAbsence(n)
	}
}

// open makes served the one generation. All readers are woken: there may be state that they could not be sent before (Source.Frozen),
// whether or not anything has changed.
func (g *gate) open() {
	w, x := g.w, &g.w.view.index
	x.mu.Lock()
	latest := g.latest.gen
	*g = newGate(w)
	for t := range latest.types.since(0) {
		for e := range g.own(t) {
			e.Name.entries--
			x.types[t.URL].release(e.Name)
		}
	}
	x.sources[w.source].withheld.Store(0)
	served := *w.view.head.Load()
	from := served.ownSource(w.source)
	from.Frozen, from.Target = time.Time{}, latest.sources[w.source].Target
	wakes := x.all(nil)
	w.view.head.Store(&served)
	x.mu.Unlock()
	for _, watch := range wakes {
		watch.wake()
	}
}
