package cache

import (
	"cmp"
	"slices"
	"time"
)

// Show shows the readers of a cohort's view what waits as it is in an edition. All else stays as it is, and so does what would pass
// while the writer is frozen. Of an edition that an earlier process has cut, it shows nothing.
func (p editions) Show(cohort int, e *Edition) {
	w := p.w
	if e.of != nil {
		w.noteTakenBack(w.served[cohort], w.showWaiting(cohort, e.of))
	}
}

// ShowAs is Show for what the readers of another cohort's view are served. What the editions shown before it took back counts as
// changed once more: a client that refused a response keeps what it had before, and only one with the last good state is left.
func (p editions) ShowAs(cohort, of int) {
	w := p.w
	w.announceTakenBack(w.served[cohort], w.showWaiting(cohort, w.served[of].generation()))
}

// showWaiting returns, by type URL or collection, the names that differed.
func (p editions) showWaiting(cohort int, of *Generation) (differ map[string][]*Name) {
	w := p.w
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
func (p editions) noteTakenBack(s *served, changed map[string][]*Name) {
	w := p.w
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
func (p editions) announceTakenBack(s *served, changed map[string][]*Name) {
	w := p.w
	for t := range s.takenBack {
		if !slices.ContainsFunc(changed[t.key], func(n *Name) bool { return n.text == t.text }) {
			w.announce(s, t)
		}
	}
	s.takenBack = nil
}

// announce has readers be sent a resource, or its removal, although nothing about it has changed.
func (p editions) announce(s *served, t takenBack) {
	w := p.w
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
	if g.w.closed() {
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

// Thaw shows readers latest, but for what waits for a cohort, and opens the gate: it ends Freeze and RollBack. Readers learn
// the merged difference: the last state of each name, however often it has changed. Thaw has no effect if the gate is neither frozen
// nor rolled back.
func (g *gate) Thaw() {
	if !g.thaws() {
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

// passWithheld shows readers what passes now of what was withheld.
func (g *gate) passWithheld(s *served) {
	for t := range g.Generation().types.since(0) {
		ed := g.w.beginOn(s.ledger, t.URL)
		names := s.withheldOf(ed.index)
		g.passFrom(ed, g.Generation(), t, names)
		g.withhold(s, ed, t, names)
		g.w.publish(ed)
	}
}

// show shows the readers of a view what the writer writes, each name as its target has it. Additions and changes come first, in
// the order in which types are sent, then removals in reverse, so that no resource refers to one that was removed before (B.11).
// The last type is changed at once. It returns, by type URL or collection, the names that differed.
func (g *gate) show(s *served, to target) (differ map[string][]*Name) {
	differ = g.differ(s, to)
	order := inOrder(differ)
	last := len(order) - 1
	for i, key := range order {
		g.showType(s, key, to, differ[key], true, i == last)
	}
	for _, key := range slices.Backward(order[:max(last, 0)]) {
		g.showType(s, key, to, differ[key], false, true)
	}
	return differ
}

// showFrom shows readers a name as its target has it, which is from. What passes, they see of latest.
func (to copying) showFrom(latest *Generation, n *Name) {
	if to.from == latest || to.t.states(to.kind, n) {
		to.showThawed(n)
	}
	if to.from != latest {
		copying{to.setEdit, latest, latest.Type(to.typ.URL)}.pass(n) // how long it lives, and first answers
	}
}

// showType shows the readers of a view names of a type as their targets have them: first those that are present there, then the
// others, or only one of these.
func (g *gate) showType(s *served, key string, target target, names []*Name, present, absent bool) {
	ed := g.w.beginOn(s.ledger, key)
	of := target(key, nil).Type(key)
	var shown []*Name
	if present {
		shown = g.showNames(ed, target, names, true)
	}
	if of.source == g.w.source && !of.hasWholeError() {
		ed.clearWholeError()
	}
	if absent {
		g.showNames(ed, target, names, false)
		shown = names // all of them have been shown now
	}
	for _, kind := range kinds {
		to := ed.of(kind)
		to.set.system = of.set(kind).system
		to.compact()
	}
	g.withhold(s, ed, g.Generation().Type(key), shown) // releases a name that is in no set: of others, one may be made for them
	g.w.publish(ed)
}

// showNames shows the names of a type that are present in their targets, or those that are not. It returns those that it has shown.
func (g *gate) showNames(ed *edit, target target, names []*Name, present bool) (shown []*Name) {
	key, latest := ed.typ.URL, g.Generation()
	of := target(key, nil).Type(key)
	for _, kind := range kinds {
		slices.SortFunc(names, func(a, b *Name) int {
			return cmp.Or(cmp.Compare(of.set(kind).Get(a).seq(), of.set(kind).Get(b).seq()), a.Compare(b))
		})
		for _, n := range names {
			from := target(key, n)
			t := from.Type(key)
			forgotten := kind == ByName && !latest.Type(key).states(ByName, n)
			if !g.writes(kind, t, n) || t.set(kind).Get(n).Present() != present || forgotten {
				continue
			}
			shown = append(shown, n)
			copying{ed.of(kind), from, t}.showFrom(latest, n)
		}
	}
	return shown
}
