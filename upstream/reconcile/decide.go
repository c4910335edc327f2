package reconcile

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
)

// decide applies the changes that wait no longer, and holds large removals. It reports whether the content has changed.
func (s *Set) decide(now time.Time) (changed bool) {
	maps.DeleteFunc(s.byName, func(name string, change removal) bool {
		return s.content.Get(name) == nil && !s.mayAdd(change)
	})
	maps.DeleteFunc(s.missing, func(name string, _ absence) bool { return s.content.Get(name) == nil })
	if s.count(held) == 0 {
		s.heldUntil, s.large = time.Time{}, false
	}
	changed = s.applyWaiting(now)
	changed = s.applyUsable(now) || changed
	if len(s.byName) == 0 || s.Querying() {
		return changed
	}
	if s.count(held) > 0 && !s.large && !s.few() {
		s.hold(0, now) // more are missing since, so that a second look does not suffice
	}
	f := s.newFilter(now)
	n := f.applyDecided(f.holdGrowth(f.holdBreaking(f.holdRequired(f.takeApplicable()))))
	if n > 0 {
		s.group.cfg.Logger.Info("resources removed", slog.String("type_url", s.TypeURL), slog.Int("removed", n))
	}
	return n > 0 || changed
}

// applyWaiting applies the removals that waited for their units, and the growth whose time is over. It reports whether there were
// any.
func (s *Set) applyWaiting(now time.Time) (applied bool) {
	var decided wire.Update
	f := s.newFilter(now)
	s.forgetUnstated(f.confirmed)
	growthEnds := f.growthEnds()
	f.moveTo(&decided, func(name string, change removal) bool { return change.state == blocked || growthEnds(name, change) })
	n := f.applyDecided(f.holdBreaking(decided))
	if n > 0 {
		s.group.cfg.Logger.Info("waiting changes applied", slog.String("type_url", s.TypeURL), slog.Int("changes", n))
	}
	return n > 0
}

// applyDecided applies decided changes, and the units that they complete, and returns the number of changes. Of these, it
// counts the removals as applied. Removals that are part of a unit that waits are recorded again.
func (f *filter) applyDecided(u wire.Update) (n int) {
	u = f.withoutBlocked(f.joinUnits(u))
	f.set.group.cfg.Counts.AppliedTotal.Add(int64(len(u.Removed)))
	if n = len(u.Removed) + len(u.Resources); n > 0 {
		f.apply(u)
	}
	return n
}

// applyUsable applies the held changes that no longer break clients, and reports whether there were any.
func (s *Set) applyUsable(now time.Time) (applied bool) {
	if s.count(breaking) == 0 || s.breakingChecked.valid(s.group, now) {
		return false
	}
	var u wire.Update
	f := s.newFilter(now)
	f.moveTo(&u, func(name string, change removal) bool {
		switch {
		case change.state != breaking:
			return false
		case change.replacement == nil:
			return f.removalBreaks(name) == ""
		default:
			return f.updateBreaks(change.replacement, s.content.Get(name)) == ""
		}
	})
	n := len(u.Resources) + len(u.Removed)
	if n > 0 {
		f.applyDecided(f.holdGrowth(u))
		s.group.cfg.Logger.Info("held changes applied: they no longer break clients",
			slog.String("type_url", s.TypeURL), slog.Int("changes", n))
	}
	s.breakingChecked = s.group.validity(now)
	return n > 0
}

// takeApplicable returns the removals to apply: the held ones that the second look has confirmed, and the suspected ones
// for which the origin had time. If the suspected ones are so many that the origin may have lost its state, they become
// held instead. Removals of resources to which retained resources refer, or may refer, stay recorded.
func (f *filter) takeApplicable() (u wire.Update) {
	s := f.set
	f.moveTo(&u, func(name string, change removal) bool {
		return change.state == held && f.confirms(name, change) && !f.needed(name)
	})
	ready := func(name string, change removal) bool { return change.state == suspected && f.ready(name) }
	if !s.contains(ready) {
		return u
	}
	// If removals are held already, further ones are held, too: otherwise a large removal could pass in small parts.
	hold := s.alwaysHold || s.count(held) > 0 || s.added().large(s.TypeURL, s.count(suspected), s.content.Count())
	s.alwaysHold = false
	if !hold || s.few() && s.allAsked() {
		f.moveTo(&u, func(name string, change removal) bool { return ready(name, change) && !f.mayBeNeeded(name) })
	} else if n := s.changeState(suspected, held); n > 0 {
		s.hold(n, f.now)
	}
	return u
}

// allAsked reports whether the origin was asked for the resources of all pending removals: that is a second look.
func (s *Set) allAsked() bool {
	return !s.contains(func(_ string, change removal) bool { return !change.asked && !change.isHeldUpdate() })
}

// ready reports whether the origin has had time to state the resource of a suspected removal: the set is complete, or
// consecutive streams of one server have lacked it for ColdWait.
func (f *filter) ready(name string) bool { return f.confirmed || f.reached(f.set.readyAt(name)) }

// readyAt returns when consecutive streams of one server will have lacked a name for ColdWait, and the origin has answered
// on this one. It is zero if it depends on the origin.
func (s *Set) readyAt(name string) time.Time {
	p := &s.Progress
	a, known := s.missing[name]
	if !known || !a.since.Before(s.began) || !p.responded() || p.growing() {
		return time.Time{}
	}
	return later(a.since.Add(s.group.cfg.ColdWait), p.answeredAt())
}

// confirms reports whether the second look confirms a held removal: the whole set is known, and lacks the resource.
func (f *filter) confirms(name string, change removal) bool {
	s := f.set
	if !s.secondLook || !change.explicit && change.inferredIn != s.secondLooks {
		return false
	}
	return f.confirmed || f.reached(s.confirmedAt(name))
}

// confirmedAt returns when the second look confirms the removal of a few resources, if the stream lives so long: once
// the origin was silent for confirmSilence, or has answered, and the resource was missing for twice ColdWait. It is zero
// for larger removals, which are confirmed by a complete set.
func (s *Set) confirmedAt(name string) time.Time {
	switch a, known := s.missing[name]; {
	case !s.few() || !s.secondLook:
		return time.Time{}
	case !s.Progress.responded():
		return s.began.Add(confirmSilence - s.silence)
	case !known || s.Progress.growing():
		return time.Time{}
	default:
		return later(a.since.Add(2*s.group.cfg.ColdWait), s.Progress.answeredAt())
	}
}

// hold starts the hold of n further removals. A few are held until they are missing for as long as a set takes to become
// complete.
func (s *Set) hold(n int, now time.Time) {
	s.large = !s.few()
	cfg, hold := &s.group.cfg, s.holdTime()
	if !s.large {
		for name := range s.byName {
			if a, known := s.missing[name]; known {
				hold = min(hold, max(a.since.Add(cfg.ColdWait).Sub(now), 0))
			}
		}
	}
	s.startHold(now, hold)
	cfg.Counts.HeldTotal.Add(int64(n))
	attrs := []slog.Attr{slog.String("type_url", s.TypeURL), slog.Int("held", s.count(held)), slog.Duration("hold", hold)}
	if !s.large {
		cfg.Logger.LogAttrs(context.Background(), slog.LevelInfo, "removals held until new streams confirm them", attrs...)
		return
	}
	cfg.Logger.LogAttrs(context.Background(), slog.LevelError, "removals held: origin may have lost resources", attrs...)
}

// pass applies changes at once, also those of units that wait. Names of additions that wait are among the names.
func (s *Set) pass(chosen names, now time.Time) {
	var u wire.Update
	f := s.newFilter(now)
	f.moveTo(&u, func(name string, _ removal) bool { return has(chosen, name) })
	n := len(u.Removed) + len(u.Resources)
	s.group.cfg.Counts.AppliedTotal.Add(int64(len(u.Removed)))
	passed := slices.Clone(u.Resources)
	for _, name := range slices.Sorted(maps.Keys(chosen)) {
		if w, waits := s.waiting[name]; waits {
			passed, n = append(passed, w.resource), n+1
			f.moveTo(&u, f.excludedByDropped(w.resource))
		}
	}
	u, _ = f.joinUnits(u)
	for _, r := range passed { // operators need not wait
		if w, waits := s.waiting[r.Name]; waits && w.resource == r {
			delete(s.waiting, r.Name)
			f.passWaiting(r.Name, w)
			u.Resources = append(u.Resources, r)
		}
	}
	f.apply(u)
	s.group.cfg.Logger.Warn("operator passed pending changes", slog.String("type_url", s.TypeURL), slog.Int("changes", n))
}

// drop makes changes dropped: the resources stay.
func (s *Set) drop(chosen names, by string, now time.Time) {
	n, updates := 0, 0
	for name := range chosen {
		change, pending := s.byName[name]
		if !pending {
			continue
		}
		if n++; change.replacement != nil {
			updates++
		}
		change.state, change.since, change.by = dropped, now, by
		s.byName[name] = change
	}
	s.group.cfg.Counts.DroppedTotal.Add(int64(n - updates))
	s.group.cfg.Logger.Warn("operator dropped pending changes",
		slog.String("type_url", s.TypeURL), slog.Int("kept", n))
}

// logHeld logs held changes every alarmInterval, and their end, and returns when to decide again.
func (s *Set) logHeld(now time.Time) (next time.Time) {
	log, typeURL := s.group.cfg.Logger, slog.String("type_url", s.TypeURL)
	n := s.count(breaking)
	if next = s.breakingAlarm.log(n, now, func() {
		log.LogAttrs(context.Background(), slog.LevelWarn, "changes still held: use tender pass or tender drop", s.heldAttrs(breaking)...)
	}, func() {
		log.Info("changes no longer held", typeURL)
	}); n > 0 {
		next = Earlier(next, s.breakingChecked.until)
	}
	n = s.count(grown)
	next = Earlier(next, s.grownAlarm.log(n, now, func() {
		log.LogAttrs(context.Background(), slog.LevelWarn, "growth still held: use tender pass or tender drop", s.heldAttrs(grown)...)
	}, func() {
		log.Info("growth no longer held", typeURL)
	}))
	n = s.count(required)
	next = Earlier(next, s.requiredAlarm.log(n, now, func() {
		log.Warn("removals of required resources still wait: use tender pass or tender drop", typeURL, slog.Int("required", n))
	}, func() {
		log.Info("removals of required resources no longer wait", typeURL)
	}))
	n = s.count(held)
	next = Earlier(next, s.heldAlarm.log(n, now, func() {
		log.Warn("removals still held: use tender pass or tender drop", typeURL, slog.Int("held", n), slog.Time("since", s.heldSince))
	}, func() {
		log.Info("removals no longer held", typeURL)
	}))
	if n > 0 && !s.secondLook && !s.group.Undecided(now) {
		next = Earlier(next, s.heldUntil)
	}
	return next
}

// Undecided reports whether suspected removals will be decided on their stream. A new stream without versions would
// forget them, and the origin would not state them again.
func (g *Group) Undecided(now time.Time) bool {
	for s := range g.withRemovals {
		if at, connected := s.content.CompleteAt(); !connected || !now.Before(at) {
			continue
		}
		f := s.newFilter(now)
		if s.contains(func(name string, change removal) bool { return change.state == suspected && !f.ready(name) }) {
			return true
		}
	}
	return false
}

// decisionDue returns when a decision is due, unless the origin or an operator decides before; zero for never.
func (s *Set) decisionDue(now time.Time) (next time.Time) {
	due := func(at time.Time) {
		if now.Before(at) {
			next = Earlier(next, at)
		}
	}
	at, connected := s.content.CompleteAt()
	if due(at); !connected {
		return next
	}
	for name, change := range s.byName {
		switch change.state {
		case suspected:
			due(s.readyAt(name))
		case held:
			due(s.confirmedAt(name))
		case grown:
			due(s.growthUntil(change.since))
		}
	}
	return next
}

// A holdKey is what the changes of one hold have in common.
type holdKey struct {
	state    state // waits for an addition that waits
	detailed bool  // has details
	kind     Kind
	by       string
}

// keyOf returns the key of a change of a name.
func (s *Set) keyOf(name string, change removal) holdKey {
	key := holdKey{state: change.state, detailed: change.detail != "", kind: Removal, by: change.by}
	switch {
	case change.replacement == nil:
	case s.content.Get(name) == nil:
		key.kind = Addition
	default:
		key.kind = Update
	}
	return key
}

// holds returns the pending and the dropped changes, in the order of their states.
func (s *Set) holds(now time.Time) (all []Hold) {
	byKey := make(map[holdKey]*Hold)
	add := func(key holdKey, name string, is *wire.Resource, since time.Time, detail string) {
		h := byKey[key]
		if h == nil {
			h = s.newHold(key, now)
			byKey[key] = h
		}
		h.Changes = append(h.Changes, Change{s.content.Get(name), is})
		if h.Names = append(h.Names, name); key.state != held && !since.IsZero() {
			h.Since = Earlier(h.Since, since)
		}
		if key.detailed {
			h.Details = append(h.Details, detail)
		}
	}
	kept := s.namedByKept()
	for _, name := range slices.Sorted(maps.Keys(s.byName)) {
		change := s.byName[name].shown(has(kept, name))
		add(s.keyOf(name, change), name, change.replacement, change.since, change.detail)
	}
	for _, name := range slices.Sorted(maps.Keys(s.waiting)) {
		key := holdKey{state: waits, kind: Addition}
		if s.content.Get(name) != nil {
			key.kind = Update
		}
		add(key, name, s.waiting[name].resource, s.waiting[name].since, "")
	}
	for _, key := range slices.SortedFunc(maps.Keys(byKey), holdKey.compare) {
		if h := byKey[key]; key.state == grown {
			h.Until = s.growthUntil(h.Since)
			if added := s.oldestAddition(); key.kind == Removal && !added.IsZero() {
				h.Until = s.growthUntil(added)
			}
		}
		all = append(all, *byKey[key])
	}
	return all
}

// shown returns a change as operators see it. kept means that what refers to its resource stays until an operator decides.
func (c removal) shown(kept bool) removal {
	if kept && (c.state == suspected || c.state == held) {
		c.detail = "a resource refers to it, which stays until an operator decides"
	}
	return c
}

// compare orders keys by state.
func (k holdKey) compare(o holdKey) int {
	detailedLast := 0
	switch {
	case k.detailed && !o.detailed:
		detailedLast = 1
	case o.detailed && !k.detailed:
		detailedLast = -1
	}
	return cmp.Or(cmp.Compare(k.state, o.state), detailedLast, cmp.Compare(k.kind, o.kind), cmp.Compare(k.by, o.by))
}

// newHold returns a hold without names.
func (s *Set) newHold(key holdKey, now time.Time) *Hold {
	h := &Hold{TypeURL: s.TypeURL, Reason: s.reason(key.state), Kind: key.kind, By: key.by, Reported: s.group.cfg.Reported}
	switch key.state {
	case held:
		h.Since = s.heldSince
		if h.ByOperator = key.detailed; !h.ByOperator && !s.secondLook {
			h.Until = s.heldUntil
		}
	case required:
		h.ByOperator = true
	case suspected:
		if h.ByOperator = key.detailed; !h.ByOperator {
			h.Until = s.decisionTime(now)
		}
	case blocked, waits:
		h.Until = s.unitsDue(now)
	}
	return h
}

// decisionTime returns when suspected removals are decided: when the set is complete, and no retained resource can
// refer to their resources any more. If only the latter is awaited, it returns when the next decision about such resources is due;
// zero if only the origin or an operator decides about these.
func (s *Set) decisionTime(now time.Time) (until time.Time) {
	until, ok := s.content.CompleteAt()
	if !ok {
		return time.Time{}
	}
	var next time.Time
	for _, referrer := range schema.ReferrersOf(s.TypeURL) {
		for o := range s.group.sets[referrer] {
			if keepsReferents(s.TypeURL) {
				_, verified := o.possiblyRemoved(now)
				until = later(until, later(o.heldUntil, verified))
			}
			next = Earlier(next, Earlier(o.decisionDue(now), o.unitsDue(now)))
		}
	}
	if !now.After(until) {
		return until
	}
	f := s.newFilter(now)
	isNeeded := func(name string, change removal) bool { return change.state == suspected && f.needed(name) }
	if next = Earlier(next, s.decisionDue(now)); next.IsZero() && !s.contains(isNeeded) {
		return now // the next decision is under way
	}
	return next
}

// namedByKept returns the names of pending changes to which resources refer that stay until an operator decides: their removal was
// dropped, or they are required.
func (s *Set) namedByKept() names {
	var referrers []*wire.Resource
	for _, typeURL := range referrersOf(s.TypeURL) {
		for o := range s.group.sets[typeURL] {
			for name, change := range o.byName {
				if r := o.content.Get(name); r != nil && (change.state == required || change.state == dropped) {
					referrers = append(referrers, r)
				}
			}
		}
	}
	return references(referrers, maps.Keys(s.byName))
}
