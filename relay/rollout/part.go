package rollout

import (
	"context"
	"slices"
	"time"
)

// maxOpenParts is the maximum number of parts with an edition that is in progress or was rejected, and of parts whose
// promotion can be undone.
const maxOpenParts = 64

// A part is what belongs together: pending changes that are connected by references, with the state of their rollout.
// Parts have no resources in common. The goroutine of Run owns it, except what tracker.mu guards.
type part struct {
	number     int // unique in the process
	machine    *Machine
	served     [maxCohorts]Edition // the edition that each cohort is served
	edition    summary             // summary of the machine's edition
	promoted   promotion           // what Undo may have to revert in sections that join later
	promotedAt int                 // number of its promotion, which parts may share; zero without one
	checks     checks
	judgement  Judgement // about the machine's edition; zero before
	follows    following
	observation

	facts       Facts
	due         time.Time // when the machine has its next step; zero if only an event is a reason
	phase       Phase     // of the machine after the last evaluation
	status      *Status   // as published last; nil before
	tried       stamp     // when its changes last were connected to other parts, which have to end first
	triedAt     time.Time // the time of that
	blockedBy   string    // the name of one of these parts; empty without one
	joinedSince time.Time // time of the oldest change that waits for its end; zero without one
	bundled     int       // component.bundled of its edition

	// Guarded by tracker.mu.
	signals    *Signals         // signals of the edition; nil before the first edition
	reached    int              // number of cohorts that are served another edition than the rest
	left       int              // number of cohorts that were, before it became less
	leftAt     time.Time        // the time of that
	rejections []Rejection      // rejections of the edition; at most MaxRejections
	spared     [MaxStages]spare // whether a client of the cohort rejected its changes together with those of another part
}

// newPart returns a part without an edition.
func (c *Controller) newPart() *part {
	c.numbers++
	p := &part{number: c.numbers, machine: NewMachine(c.cfg.Config)}
	p.cohorts = newCohorts(c.cfg.Stages)
	p.checks = checks{check: c.cfg.Check, log: c.cfg.Logger, results: c.results, ended: c.ended}
	return p
}

// shows returns the edition that a cohort is served in addition to what the rest is; false without one.
func (p *part) shows(cohort int) (e Edition, shows bool) {
	e = p.served[cohort]
	return e, e != p.machine.lastGood
}

// isServed reports whether any cohort is served another edition than the rest.
func (p *part) isServed() bool {
	return slices.ContainsFunc(p.machine.cfg.cohorts(), func(cohort int) bool { return p.served[cohort] != p.machine.lastGood })
}

// A stamp tells whether the graph of pending changes may have changed.
type stamp struct{ phases, members, versions uint64 }

// stamp returns the present stamp. all also counts changes of names that editions have.
func (c *Controller) stamp(all bool) stamp {
	sections, members := c.tracker.members()
	now := stamp{phases: c.phases, members: members}
	for _, s := range sections {
		w := s.waiting.Load()
		now.versions += w.Free.Version
		for _, of := range w.Of {
			if all {
				now.versions += of.Version
			}
		}
	}
	return now
}

// partFacts returns the facts of a part that has an edition. common has those of all parts.
func (c *Controller) partFacts(p *part, sections []*Section, common Facts, now time.Time) Facts {
	f, settled := common, true
	f.Verdict, f.Evidence, f.Judgement = p.checks.verdict, p.evidence, p.judgement
	for _, s := range sections {
		w := s.countOf(p)
		if s.unavailable || w.Names == 0 && !s.changedBy(p, p.machine.edition) {
			continue
		}
		settled = settled && s.unsettledSince.IsZero()
		f.Differs = f.Differs || w.Names > 0
		f.Edited = f.Edited || w.Edited > 0
		f.Behind = f.Behind || w.Behind > 0
		if w.Changed.After(f.Changed) {
			f.Changed = w.Changed
		}
	}
	f.Complete = settled && len(sections) > 0
	f.HaltReason = c.tracker.haltReason(p, now.Sub(p.machine.entered).Round(time.Second))
	return f
}

// freeFacts returns the facts of the changes that no part has. What is connected to an open part does not count.
func (c *Controller) freeFacts(sections []*Section, common Facts) Facts {
	f, settled := common, true
	if c.partitioned == c.stamp(false) {
		f.Complete = true
		return f
	}
	waits := false
	for _, s := range sections {
		w := s.waiting.Load()
		waits = waits || w.Free.Names > 0
		if s.unavailable || w.Free.Names == 0 {
			continue
		}
		settled, f.Differs = settled && s.unsettledSince.IsZero(), true
		if w.Free.Changed.After(f.Changed) {
			f.Changed = w.Free.Changed
		}
	}
	if !waits && c.free.machine.phase == Current {
		c.free.machine.pendingSince, c.excess = time.Time{}, 0 // the origin reverted what waited for the end of a part
	}
	f.Complete = settled && len(sections) > 0
	return f
}

// cut pins pending changes as the next editions of parts. It returns false if it made none: the changes of each part are
// connected to other parts, which have to end first. One graph serves all of them, since it has all that waits.
func (c *Controller) cut(ctx context.Context, now time.Time, of ...*part) (cut bool) {
	at := c.stamp(true)
	of = slices.DeleteFunc(of, func(p *part) bool { return p.tried == at || p.waitsForRetry(now) })
	if len(of) == 0 {
		return false
	}
	all, cuts := c.partition(ctx, c.available()), make(map[*part]*component)
	for _, p := range of {
		if p.machine.phase != Gathering {
			continue // its changes are in the edition of one before
		}
		whole := join(slices.DeleteFunc(slices.Clone(all), func(of *component) bool { return !slices.Contains(of.parts, p) }))
		if p.blockedBy = whole.blocks(p); p.blockedBy != "" {
			p.tried, p.triedAt = at, now
			continue
		}
		for _, other := range whole.parts {
			if other != p {
				p.absorb(other)
			}
		}
		whole.bundled = p.bundled
		cuts[p] = whole
	}
	if len(cuts) > 0 {
		c.cutEditions(ctx, now, cuts)
	}
	return len(cuts) > 0
}

// waitsForRetry reports whether the changes of a part were connected to another one a moment ago.
func (p *part) waitsForRetry(now time.Time) bool {
	until := p.triedAt.Add(quietTime)
	if p.blockedBy == "" || !now.Before(until) {
		return false
	}
	p.due = until
	return true
}

// absorb makes a part have also the changes that another one gathers, and what an operator has overruled for these.
func (p *part) absorb(other *part) {
	p.machine.absorb(other.machine)
	p.bundled = max(p.bundled, other.bundled)
	p.follows.answered = append(p.follows.answered, other.follows.answered...)
	p.follows.had = append(p.follows.had, other.follows.had...)
}

// cutFree makes parts of the changes that no part has, and of those that belong to a promoted one.
func (c *Controller) cutFree(ctx context.Context, now time.Time) {
	gathered := c.free.machine
	began, room := time.Now(), maxOpenParts
	for _, p := range c.parts {
		if p.machine.phase != Current {
			room--
		}
	}
	room = max(room, 0) // an undo reopens as many parts as were promoted, beside those that are open
	var free []*component
	c.joined = make(map[resourceName]*part)
	for _, of := range c.partition(ctx, c.available()) {
		open := slices.DeleteFunc(slices.Clone(of.parts), func(p *part) bool { return p.machine.phase == Current })
		if len(open) == 0 {
			free = append(free, of)
		} else if of.exceeds(open) {
			c.addJoined(of, open[0])
			for _, p := range open {
				p.joinedSince = earlier(p.joinedSince, gathered.pendingSince)
			}
		}
	}
	free = joinByParts(free)
	c.excess = 0
	if room == 0 {
		c.excess = len(free) // these wait for the end of a part
	}
	if len(free) > room {
		last := join(free[max(room-1, 0):])
		last.bundled = len(free) - room + 1
		free = append(free[:max(room-1, 0)], last)[:room]
	}
	cuts := make(map[*part]*component)
	for _, of := range free {
		p := c.carrier(of)
		p.machine.gather(gathered)
		cuts[p] = of
	}
	c.cutEditions(ctx, now, cuts)
	outcomes := gathered.outcomes
	c.free = c.newPart()
	if c.free.machine.outcomes = outcomes; c.excess > 0 {
		c.free.machine.pendingSince = gathered.pendingSince
	}
	if at := c.stamp(false); !c.changedSince(began) {
		c.partitioned = at
	}
}

// addJoined records that the changes of a component wait for the end of a part.
func (c *Controller) addJoined(of *component, p *part) {
	for _, keys := range of.waits {
		for key, names := range keys {
			for name := range names {
				c.joined[nameOf(key, name)] = p
			}
		}
	}
}

// changedSince reports whether a change that no part has arrived at a time or later.
func (c *Controller) changedSince(at time.Time) bool {
	return slices.ContainsFunc(c.tracker.joined(), func(s *Section) bool { return !s.waiting.Load().Free.Changed.Before(at) })
}

// carrier returns the part that a component without an open part continues: of the promoted parts to which it belongs, the
// last one, or a new one. The promotions of the others can no longer be undone.
func (c *Controller) carrier(of *component) (carrier *part) {
	for _, p := range of.parts {
		if carrier == nil || p.promotedAt > carrier.promotedAt {
			carrier = p
		}
	}
	for _, p := range of.parts {
		if p != carrier {
			p.machine.dissolve()
		}
	}
	if carrier == nil {
		carrier = c.newPart()
		c.addPart(carrier)
	}
	return carrier
}

// addPart adds a part to those of the controller.
func (c *Controller) addPart(p *part) {
	c.parts = append(c.parts, p)
	c.tracker.setParts(c.parts)
}

// retire removes the parts that have nothing to serve or to undo, and of the promoted ones the oldest above the limit.
func (c *Controller) retire() {
	var ended, promoted []*part
	for _, p := range c.parts {
		if p.phase != p.machine.phase {
			p.phase = p.machine.phase
			c.phases++
		}
		if p.phase != Current || p.isServed() {
			continue
		}
		if !p.joinedSince.IsZero() {
			c.free.machine.pendingSince, p.joinedSince = earlier(c.free.machine.pendingSince, p.joinedSince), time.Time{}
		}
		if p.machine.previous == nil {
			ended = append(ended, p)
		} else {
			promoted = append(promoted, p)
		}
	}
	slices.SortFunc(promoted, func(a, b *part) int { return b.promotedAt - a.promotedAt })
	ended = append(ended, promoted[min(len(promoted), maxOpenParts):]...)
	if len(ended) == 0 {
		return
	}
	for _, p := range ended {
		c.publishPart(p)
		c.outcomes.add(p.machine.outcomes)
	}
	c.parts = slices.DeleteFunc(c.parts, func(p *part) bool { return slices.Contains(ended, p) })
	c.phases++
	c.tracker.setParts(c.parts)
}
