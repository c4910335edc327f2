package rollout

import (
	"context"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/pending"
)

// cutEditions pins pending changes as the next editions of parts and resets all counts of the editions before.
func (c *Controller) cutEditions(ctx context.Context, now time.Time, cuts map[*part]*component) {
	large := make(map[*part]bool)
	changed := make(map[*part]time.Time)
	for _, s := range c.tracker.joined() {
		pinned := make(map[*part]*pending.Edition)
		s.control.Edit(ctx, func(l *pending.List) {
			for p, of := range cuts {
				if of.waits[s] != nil {
					pinned[p] = l.PinNames(of.waits[s])
				}
			}
		})
		for p, e := range pinned {
			s.set(p, p.machine.newest+1, e)
			large[p] = large[p] || e.Large
			if at := s.changed(p); at.After(changed[p]) {
				changed[p] = at
			}
		}
	}
	for p, of := range cuts {
		p.bundled = of.bundled
		c.beginEdition(p, p.machine.Cut(now, changed[p], large[p]), large[p])
	}
	c.compareLatest(ctx)
	for p := range cuts {
		c.rejectRepeated(p, now)
	}
}

// changed returns when the newest state of what a part is about to have in a section changed last.
func (s *Section) changed(p *part) time.Time {
	if at := s.countOf(p).Changed; !at.IsZero() {
		return at
	}
	return s.waiting.Load().Free.Changed
}

// beginEdition resets all counts of the edition before.
func (c *Controller) beginEdition(p *part, number Edition, large bool) {
	p.edition = summarize(c.changesOf(p, number))
	p.edition.large = large
	p.checks.reset()
	p.judgement = Judgement{}
	p.observation = observation{cohorts: newCohorts(c.cfg.Stages)}
	c.tracker.resetSignals(p)
}

// changesOf returns the changes of an edition.
func (c *Controller) changesOf(p *part, number Edition) Changes {
	all := make(Changes)
	for _, s := range c.tracker.joined() {
		if s.changedBy(p, number) {
			all[s.Key] = s.edition(p, number).Changes
		}
	}
	return all
}

// dropUnusedEditions drops editions that no step can serve, compare or undo. Undo needs only the changes of the last
// good, so its resources are dropped.
func (c *Controller) dropUnusedEditions() {
	for _, s := range c.tracker.joined() {
		for p, of := range s.of {
			if !slices.Contains(c.parts, p) {
				c.tracker.mu.Lock()
				delete(s.of, p)
				c.tracker.mu.Unlock()
				continue
			}
			m := p.machine.State()
			for e, pinned := range of.editions {
				switch {
				case e == m.Edition && m.Phase != Current, m.Previous != nil && e == *m.Previous:
				case e == m.LastGood:
					if pinned.Shows() {
						of.editions[e] = &pending.Edition{Changes: pinned.Changes}
					}
				case !slices.Contains(p.served[:], e):
					delete(of.editions, e)
				}
			}
		}
	}
}

// compareLatest makes the writers compare latest with the editions of all open parts.
func (c *Controller) compareLatest(ctx context.Context) {
	for _, s := range c.tracker.joined() {
		var with []comparedEdition
		var editions []*pending.Edition
		for _, p := range c.parts {
			e := s.edition(p, p.machine.edition)
			if p.machine.phase != Current && e != nil && len(e.Changes) > 0 {
				with, editions = append(with, comparedEdition{p, e}), append(editions, e)
			}
		}
		if !slices.Equal(s.compared, with) {
			s.compared = with
			s.control.Edit(ctx, func(l *pending.List) { l.Compare(editions...) })
		}
	}
}

// A move is a cohort whose edition of a part changes.
type move struct {
	*part
	cohort        int
	before, after Edition
}

// moves returns the moves of a part, the rest first: a promotion changes only the rest, and after a rollback all cohorts
// share the state of the rest. It also returns the number of cohorts of clients by withdrawn edition.
func (c *Controller) moves(p *part) (all []move, withdrawn map[Edition]int) {
	rest := c.cfg.rest()
	withdrawn = make(map[Edition]int)
	for _, cohort := range c.cfg.cohorts() {
		before, after := p.served[cohort], p.machine.Serves(cohort)
		if before == after {
			continue
		}
		if cohort <= rest && (before > after || before != p.served[rest]) { // the edition after does not contain the one before
			withdrawn[before] = max(withdrawn[before], cohort+1)
		}
		all = append(all, move{p, cohort, before, after})
	}
	return all, withdrawn
}

// serve serves each cohort the editions that the machines select, and returns whether an edition of a cohort has
// changed. The rest comes first.
func (c *Controller) serve(ctx context.Context, now time.Time) (changed bool) {
	rest, recorded := c.cfg.rest(), false
	var moves []move
	good := make(map[*part]Edition) // that the rest was served
	for _, p := range c.parts {
		of, withdrawn := c.moves(p)
		good[p], moves = p.served[rest], append(moves, of...)
		recorded = c.recordWithdrawn(now, p, withdrawn) || recorded
	}
	if recorded || slices.ContainsFunc(c.tracker.joined(), func(s *Section) bool { return !s.distrusts }) {
		c.distrust()
	}
	c.addAcceptedClients(moves)
	c.tracker.setReached(c.parts, func(p *part, cohort int) bool { // before a client can answer
		return p.served[cohort] != good[p] || p.machine.Serves(cohort) != p.machine.lastGood
	})
	for _, cohort := range c.cfg.cohorts() {
		of := slices.DeleteFunc(slices.Clone(moves), func(m move) bool { return m.cohort != cohort })
		if cohort == rest {
			c.serveRest(ctx, of)
		} else {
			c.serveCohort(ctx, cohort, of)
		}
		for _, m := range of {
			m.served[cohort] = m.after
		}
	}
	c.serveSpared(ctx, moves)
	c.tracker.setReached(c.parts, func(p *part, cohort int) bool { return p.served[cohort] != p.machine.lastGood })
	c.retire()
	c.dropUnusedEditions()
	c.compareLatest(ctx)
	if recorded {
		c.cfg.Decided(ctx)
	}
	return len(moves) > 0
}

// addAcceptedClients registers the clients of parts whose edition is about to be served to a cohort of clients.
func (c *Controller) addAcceptedClients(moves []move) {
	var of []*part
	for _, m := range moves {
		if m.after != m.machine.lastGood && m.cohort <= c.cfg.rest() && !slices.Contains(of, m.part) {
			of = append(of, m.part)
		}
	}
	if len(of) > 0 {
		c.tracker.addAcceptedClients(of)
	}
}

// serveRest serves the rest other editions, all at once. It keeps what Undo needs of those that it promotes.
func (c *Controller) serveRest(ctx context.Context, moves []move) {
	if len(moves) == 0 {
		return
	}
	c.promotions++
	for _, m := range moves {
		if m.promoted = make(promotion); m.promotes() {
			m.promotedAt = c.promotions
		}
	}
	sections := c.tracker.joined()
	slices.SortFunc(sections, (*Section).compare)
	for _, s := range sections {
		var all []*pending.Edition
		of := make(map[*part]*pending.Edition)
		for _, m := range moves {
			if e := s.edition(m.part, m.after); e != nil {
				of[m.part], all = e, append(all, e)
				c.judging.trials.recordGood(e.Changes)
			}
		}
		if len(all) > 0 {
			s.control.Edit(ctx, func(l *pending.List) { s.showRest(l, moves, of, all) })
		}
	}
}

// promotes reports whether a move of the rest is a promotion. Otherwise Undo rejects the edition before.
func (m *move) promotes() bool { return m.after > m.before }

// showRest shows the rest the editions of parts.
func (s *Section) showRest(l *pending.List, moves []move, of map[*part]*pending.Edition, all []*pending.Edition) {
	for _, m := range moves {
		if e := of[m.part]; e != nil && m.promotes() {
			s.set(m.part, m.before, l.PinServed(e))
		}
	}
	l.Show(s.view.Cohorts(), all...)
	for _, m := range moves {
		if e := of[m.part]; e != nil && m.promotes() {
			m.promoted.add(s.Key.Shared, l.Replaced(e))
		}
	}
}

// serveCohort serves a cohort other editions of parts, all at once, or the state of the rest of those whose edition is the
// last good.
func (c *Controller) serveCohort(ctx context.Context, cohort int, moves []move) {
	number := c.cfg.ViewOf(cohort)
	for _, s := range c.tracker.joined() {
		begun := make(map[*part]*pending.Edition)
		var ended []*part
		for _, m := range moves {
			switch e := s.edition(m.part, m.after); {
			case m.after != m.machine.lastGood && e.Shows():
				begun[m.part] = e
			case s.edition(m.part, m.before).Shows(): // else it was unavailable, missing at the cut, or of an earlier process
				ended = append(ended, m.part)
			}
		}
		if len(begun)+len(ended) == 0 {
			continue
		}
		view, shown := s.view.Cohort(number), c.shownBeside(s, moves, cohort)
		for p, e := range begun {
			shown = append(shown, e)
			s.setChanges(p, cohort, e, view.Generation().Seq, math.MaxInt64)
		}
		s.control.Edit(ctx, func(l *pending.List) {
			after := view.Generation().Seq
			if len(ended) > 0 {
				l.ShowAsRest(number, shown...)
			} else {
				l.Show(number, shown...)
			}
			for p, e := range begun {
				s.setChanges(p, cohort, e, after, view.Generation().Seq)
			}
		})
		for _, p := range ended {
			s.setChanges(p, cohort, nil, 0, 0)
		}
	}
}

// shownBeside returns the editions that a cohort is served in a section of parts that do not move.
func (c *Controller) shownBeside(s *Section, moves []move, cohort int) (all []*pending.Edition) {
	for _, p := range c.parts {
		number, shows := p.shows(cohort)
		moved := slices.ContainsFunc(moves, func(m move) bool { return m.part == p })
		if e := s.edition(p, number); shows && !moved && e.Shows() {
			all = append(all, e)
		}
	}
	return all
}

// serveSpared sends the cohorts from which an edition was withdrawn the changes of other parts again that a client
// rejected together with it. Only then do answers tell whether the client accepts these.
func (c *Controller) serveSpared(ctx context.Context, moves []move) {
	withdrawn := make(map[int]bool)
	for _, m := range moves {
		withdrawn[m.cohort] = withdrawn[m.cohort] || m.before > m.after || m.after == m.machine.lastGood
	}
	for _, p := range c.parts {
		for cohort := range c.cfg.Stages {
			number, shows := p.shows(cohort)
			if !shows || !c.tracker.takeSpared(p, cohort, withdrawn[cohort]) {
				continue
			}
			for _, s := range c.tracker.joined() {
				e, view := s.edition(p, number), s.view.Cohort(cohort)
				if !e.Shows() {
					continue
				}
				s.control.Edit(ctx, func(l *pending.List) {
					after := view.Generation().Seq
					s.setChanges(p, cohort, e, after, math.MaxInt64)
					l.Resend(cohort, e)
					s.setChanges(p, cohort, e, after, view.Generation().Seq)
				})
			}
		}
	}
}

// setChanges records the changes of an edition for the clients of a cohort: these are sent from generations after the
// sequence number after, up to upTo. A nil edition has no changes.
func (s *Section) setChanges(p *part, cohort int, e *pending.Edition, after, upTo cache.Seq) {
	var shown shownChanges
	if e != nil {
		for key, names := range e.Changes {
			shown.changes = append(shown.changes, downstream.Change{
				Key: key, After: after, UpTo: upTo, Names: slices.Sorted(maps.Keys(names)),
			})
			shown.names = append(shown.names, newNameSet(names))
		}
	}
	s.c.tracker.mu.Lock()
	defer s.c.tracker.mu.Unlock()
	of := s.of[p]
	if e == nil {
		of.withdrawn[cohort] = of.shown[cohort]
	}
	of.shown[cohort] = shown
}
