package cache

import (
	"container/heap"
	"iter"
	"slices"
	"time"

	"github.com/xdstender/tender/cache/immutable"
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
	frozen  time.Time // since when nothing passes; zero if only what waits does not
	back    time.Time // since when readers are shown an earlier generation (RollBack); zero if they are not

	restoring bool // everything passes: it is the last good
}

// A served is what the readers of one view see of a writer's source.
type served struct {
	*ledger
	withheld map[*Name]bool // whose state differs from that in latest, and whether only Show ends that
	waiting  int            // of withheld, those for which it does

	takenBack map[takenBack]struct{} // since ShowAs
}

func newGate(w *Writer) gate {
	g := gate{w: w, latest: &w.ledger}
	for _, v := range w.view.views {
		of := &w.ledger
		if v != w.view {
			l := newLedger(v)
			of = &l
		}
		g.served, g.ledgers = append(g.served, &served{ledger: of, withheld: make(map[*Name]bool)}), append(g.ledgers, of)
	}
	if w.view.cfg.Cohorts > 0 {
		latest, generation := newLedger(nil), *w.view.head.Load()
		latest.gen = &generation
		g.latest, g.ledgers = &latest, append(g.ledgers, &latest)
	}
	return g
}

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
func (g *gate) Frozen() bool { return !g.frozen.IsZero() }

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
	x := &g.w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	g.close()
	g.frozen = time.Now()
	g.setSource(g.w.Source(), false)
}

// close makes latest and served two generations, unless they are already. The index must be locked.
func (g *gate) close() {
	if g.closed() {
		return
	}
	of := g.w.view.Generation()
	g.latest = g.w.branch(of)
	g.ledgers = append(g.ledgers, g.latest)
	for t := range of.types.since(0) {
		for e := range g.own(t) {
			e.Name.entries++
		}
	}
}

// RollBack shows readers an edition of an earlier generation (PinFormer), and closes the gate to changes of the types that
// Config.Waits reports, as if there were cohorts, until Thaw: all other changes pass, and removals of endpoints and Secrets
// wait. It ends a freeze. Source.RolledBack is since. A nil edition is for a writer whose view was restored from a snapshot of
// the earlier generation.
//
// A returning client is served what others are served, also if it had newer resources from elsewhere: unlike a freeze, a
// rollback takes these away.
func (g *gate) RollBack(e *Edition, since time.Time) {
	x := &g.w.view.index
	x.mu.Lock()
	var wakes []*Watch
	if g.Frozen() {
		wakes = x.all(nil) // there may be state that they could not be sent while the source was frozen
	}
	g.close()
	g.frozen, g.back = time.Time{}, since
	g.setSource(g.w.Source(), false)
	x.mu.Unlock()
	if e != nil {
		g.w.Show(g.w.view.cfg.Cohorts, e)
	}
	for _, watch := range wakes {
		watch.wake()
	}
}

// stages reports whether changes of some types wait for Show: there are cohorts, or readers are shown an earlier generation.
func (g *gate) stages() bool { return g.w.view.cfg.Cohorts > 0 || !g.back.IsZero() }

// Thaw shows readers latest, but for what waits for a cohort, and opens the gate: it ends Freeze and RollBack. Readers learn
// the merged difference: the last state of each name, however often it has changed. Thaw has no effect on an open gate.
func (g *gate) Thaw() {
	if !g.Frozen() && g.back.IsZero() {
		return
	}
	g.frozen, g.back = time.Time{}, time.Time{}
	for _, s := range g.served {
		g.show(s, g.target(s, s.generation()))
		if g.w.view.cfg.Cohorts > 0 {
			g.passWithheld(s)
		}
	}
	g.open()
	g.w.reportWaiting()
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
	generation.types, generation.deferred = types{}, nil
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
		s.log, s.renewals, s.recentRemovals = s.log.Clip(), s.renewals.Clip(), slices.Clip(s.recentRemovals)
	}
	// A deadline that is moved here is not moved there.
	by := new(immutable.Edit)
	for _, kind := range kinds {
		for e := range t.set(kind).Since(0) {
			if e.timer == nil {
				continue
			}
			again, alarm := *e, *e.timer
			again.timer = &alarm
			set := c.set(kind)
			set.table = set.table.Set(by, e.Name.id, &again)
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

// withhold records which of names, all of one type, differ between the edit of what readers see and latest.
func (g *gate) withhold(s *served, ed *edit, latest *Type, names []*Name) {
	for _, n := range names {
		if s.withheld[n] {
			s.waiting--
		}
		if g.agrees(ed.typ, latest, n) {
			delete(s.withheld, n)
			ed.index.release(n)
			continue
		}
		waits := g.differenceWaits(ed.typ, latest, n)
		if s.withheld[n] = waits; waits {
			s.waiting++
		}
	}
	if s == g.rest() {
		g.w.view.index.sources[g.w.source].withheld.Store(int64(len(s.withheld)))
	}
}

// agrees reports whether readers see the state of a name that the source has.
func (g *gate) agrees(served, t *Type, n *Name) bool {
	return !slices.ContainsFunc(kinds[:], func(kind Kind) bool { return !g.agreesOn(kind, served, t, n) })
}

// agreesOn is agrees for one of the sets of the type.
func (g *gate) agreesOn(kind Kind, served, t *Type, n *Name) bool {
	if !g.writes(kind, t, n) {
		return true
	}
	seen, is := served.set(kind).Get(n), t.set(kind).Get(n)
	shown, err := served.Errors(kind).Get(n), t.Errors(kind).Get(n)
	switch {
	case seen.Present() != is.Present(), kind == ByName && (seen == nil) != (is == nil), (shown == nil) != (err == nil):
		return false
	case is.Present() && (seen.Resource.Key() != is.Resource.Key() || !g.w.view.cfg.VersionSource.Same(seen.Resource, is.Resource)):
		return false
	default:
		return err == nil || err.Err.Same(shown.Err)
	}
}

// Withheld returns of how many names the rest does not see the newest state of a source.
func (v *View) Withheld(source int) int { return int(v.index.sources[source].withheld.Load()) }

// open ends a freeze, and makes served the one generation, unless there are cohorts. All readers are woken: there may be state that
// they could not be sent before (Source.Frozen), whether or not anything has changed.
func (g *gate) open() {
	w, x := g.w, &g.w.view.index
	x.mu.Lock()
	latest := g.latest.gen
	if w.view.cfg.Cohorts == 0 {
		*g = newGate(w)
		for t := range latest.types.since(0) {
			for e := range g.own(t) {
				e.Name.entries--
				x.types[t.URL].release(e.Name)
			}
		}
		x.sources[w.source].withheld.Store(0)
	}
	g.setSource(latest.sources[w.source], false)
	wakes := x.all(nil)
	x.mu.Unlock()
	for _, watch := range wakes {
		watch.wake()
	}
}
