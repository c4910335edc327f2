package cache

import (
	"container/heap"
	"iter"
	"slices"
	"time"
)

// A gate stands between the newest state of a writer's source (latest) and what the readers of each view see (served). The
// writer always edits latest. While the gate is open, both are one generation, that of the view. While it is closed, latest
// is a generation beside those of the views, and the gate decides which names of an edit pass to which of them. With cohorts it
// is always closed.
//
// A gate belongs to the writer's goroutine. Other goroutines may read latest if they hold index.mu.
type gate struct {
	w       *Writer
	latest  *ledger   // the writer's own while the gate is open
	served  []*served // by cohort; that of the rest last
	ledgers []*ledger // those of served and, if it is another one, latest
	why     Reason    // nothing passes; empty if only what waits does not
}

// A served is what the readers of one view see of a writer's source.
type served struct {
	*ledger
	withheld map[*Name]struct{} // whose state differs from that in latest
}

func newGate(w *Writer) gate {
	g := gate{w: w, latest: &w.ledger}
	for _, v := range w.view.views {
		of := &w.ledger
		if v != w.view {
			l := newLedger(v)
			of = &l
		}
		g.served, g.ledgers = append(g.served, &served{of, make(map[*Name]struct{})}), append(g.ledgers, of)
	}
	if w.view.cfg.Cohorts > 0 {
		latest, generation := newLedger(nil), *w.view.head.Load()
		latest.gen = &generation
		g.latest, g.ledgers = &latest, append(g.ledgers, &latest)
	}
	return g
}

// A Reason is why a gate withholds changes.
type Reason string

// Frozen is the reason of a gate that Freeze closed.
const Frozen Reason = "frozen"

// closed reports whether latest and served are several generations.
func (g *gate) closed() bool { return g.latest != &g.w.ledger }

// rest returns what the readers of the writer's own view see.
func (g *gate) rest() *served { return g.served[len(g.served)-1] }

// generation returns the newest generation of a ledger.
func (l *ledger) generation() *Generation {
	if l.gen != nil {
		return l.gen
	}
	return l.view.Generation()
}

// Generation returns the newest generation that the writer writes (latest). Readers see the view's.
func (g *gate) Generation() *Generation { return g.latest.generation() }

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
	if g.Frozen() {
		return
	}
	w, x := g.w, &g.w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	g.setFrozen(time.Now())
	g.why = Frozen
	if g.closed() {
		return
	}
	of := w.view.Generation()
	g.latest = w.branch(of)
	g.ledgers = []*ledger{&w.ledger, g.latest}
	for t := range of.types.since(0) {
		for e := range g.own(t) {
			e.Name.entries++
		}
	}
}

// setFrozen records in what readers see since when the writer is frozen; zero if it is not. The index must be locked.
func (g *gate) setFrozen(since time.Time) {
	for _, s := range g.served {
		generation := *s.view.head.Load()
		generation.ownSource(g.w.source).Frozen = since
		s.view.head.Store(&generation)
	}
}

// Thaw shows readers latest, but for what waits, and opens the gate. Readers learn the merged difference: the last state of each
// name, however often it has changed. Thaw has no effect on a writer that is not frozen.
func (g *gate) Thaw() {
	if !g.Frozen() {
		return
	}
	g.why = ""
	for _, s := range g.served {
		g.show(s, g.target(s.generation()))
	}
	g.open()
}

// branch returns a ledger with a copy of a generation that can be edited beside the original. The state of other sources stays
// in it as it is now, and is not read.
func (l *ledger) branch(of *Generation) *ledger {
	c := newLedger(nil)
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

// holds returns how many entries of a name there are, in what readers see and in latest behind closed gates. The index
// must be locked.
func (v *View) holds(key string, n *Name) (entries int) {
	for _, kind := range kinds {
		for _, of := range v.views {
			entries += of.Generation().Type(key).holds(kind, n)
		}
		for _, w := range v.writers {
			if t := w.Generation().Type(key); w.closed() && w.writes(kind, t, n) {
				entries += t.holds(kind, n)
			}
		}
	}
	return entries
}

// passEdit stores an edit, and returns the edits of what readers see; those of views to which nothing passes are left out. The slice is
// valid until the next call.
func (g *gate) passEdit(ed *edit) []*edit {
	w := g.w
	w.passed = w.passed[:0]
	if ed.ledger != g.latest || !g.closed() {
		w.passed = append(w.passed, ed)
		return w.passed
	}
	for _, tomb := range ed.ledger.tombstones[ed.typ.URL] { // no reader needs tombstones of latest: show compares
		if e := ed.typ.Wildcard.Get(tomb.name); e != nil && !e.Present() {
			ed.typ.Wildcard.drop(ed.txn, e)
			tomb.name.entries--
		}
	}
	delete(ed.ledger.tombstones, ed.typ.URL)
	ed.ledger.gen = ed.gen
	for i := range g.served {
		if s := g.passTo(i, ed); s != nil {
			w.passed = append(w.passed, s)
		}
	}
	return w.passed
}

// passTo returns the edit of what the readers of one view see of an edit of latest; nil if nothing passes.
func (g *gate) passTo(i int, ed *edit) *edit {
	w, s := g.w, g.served[i]
	names, shown := ed.txn.noted, s.view.Generation()
	began := ed.served != nil && ed.served[i] != nil
	if !began && len(names) == 0 && shown.sources[w.source] == g.asServed(s, shown, ed.gen) && shown.Type(ed.typ.URL).Phase >= ed.typ.Phase {
		return nil
	}
	to := ed.servedEdit(i)
	g.passNames(s, to, ed, append(names[:len(names):len(names)], to.txn.noted...))
	*to.gen.ownSource(w.source) = g.asServed(s, shown, ed.gen)
	return to
}

// passNames shows readers what passes of an edit of latest.
func (g *gate) passNames(s *served, ed, latest *edit, names []*Name) {
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
	g.withhold(s, ed, t, names)
	for _, kind := range kinds {
		of, is := ed.of(kind), t.set(kind)
		if of.set.system == "" || of.set.sum == is.sum {
			of.set.system = is.system
		}
		of.compact()
	}
}

// asServed returns what readers see of the state that latest has of the writer's source: what they hold may come from elsewhere
// (Target).
func (g *gate) asServed(s *served, shown, latest *Generation) Source {
	was, is := shown.sources[g.w.source], latest.sources[g.w.source]
	is.Frozen = was.Frozen
	if is.Target != was.Target && (g.Frozen() || len(s.withheld) > 0) {
		is.Target = ""
	}
	return is
}

// setSource records the state of the source in all generations. The index must be locked.
func (g *gate) setSource(as Source, reconnected bool) {
	w := g.w
	latest := *g.Generation()
	*latest.ownSource(w.source) = as
	if reconnected {
		latest.originChanges++
	}
	for _, s := range g.served {
		if s.ledger == g.latest {
			continue
		}
		generation := *s.view.Generation()
		*generation.ownSource(w.source) = g.asServed(s, &generation, &latest)
		if reconnected {
			generation.originChanges++
		}
		s.view.head.Store(&generation)
	}
	if g.latest.gen == nil {
		w.view.head.Store(&latest)
	} else {
		g.latest.gen = &latest
	}
}

// pass shows readers the state of a name in latest, as far as it passes the gate.
func (to copying) pass(n *Name) {
	seen, is := to.set.Get(n), to.t.set(to.kind).Get(n)
	switch {
	case !to.w.Frozen() && !to.waits(seen, is), to.admits(n, is):
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

// waits reports whether a change from what readers see waits until Show.
func (to copying) waits(seen, is *Entry) bool {
	typeURL := resourceType(to.typ.URL)
	if to.kind == Wildcard && to.typ.Phase < Confirmed && !to.typ.Restored {
		return false // there is no last good
	}
	return to.w.view.cfg.Waits(typeURL) || removalWaits(typeURL) && seen.Present() && !is.Present()
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
func (g *gate) withhold(s *served, ed *edit, latest *Type, names []*Name) {
	for _, n := range names {
		if g.agrees(ed.typ, latest, n) {
			delete(s.withheld, n)
			ed.index.release(n)
		} else {
			s.withheld[n] = struct{}{}
		}
	}
	if s == g.rest() {
		g.w.view.index.sources[g.w.source].withheld.Store(int64(len(s.withheld)))
	}
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

// Withheld returns of how many names the rest does not see the newest state of a source.
func (v *View) Withheld(source int) int { return int(v.index.sources[source].withheld.Load()) }

// open ends a freeze, and makes served the one generation, unless there are cohorts. All readers are woken: there may be state that
// they could not be sent before (Source.Frozen), whether or not anything has changed.
func (g *gate) open() {
	w, x := g.w, &g.w.view.index
	x.mu.Lock()
	g.setFrozen(time.Time{})
	if latest := g.latest.gen; w.view.cfg.Cohorts == 0 {
		*g = newGate(w)
		for t := range latest.types.since(0) {
			for e := range g.own(t) {
				e.Name.entries--
				x.types[t.URL].release(e.Name)
			}
		}
		x.sources[w.source].withheld.Store(0)
		served := *w.view.head.Load()
		served.ownSource(w.source).Target = latest.sources[w.source].Target
		w.view.head.Store(&served)
	} else {
		g.setSource(latest.sources[w.source], false)
	}
	wakes := x.all(nil)
	x.mu.Unlock()
	for _, watch := range wakes {
		watch.wake()
	}
}
