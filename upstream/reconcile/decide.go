package reconcile

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// decide applies the removals that need not wait, and holds large ones. It reports whether the content has changed.
func (s *Set) decide(now time.Time) (changed bool) {
	maps.DeleteFunc(s.byName, func(name string, _ removal) bool { return s.content.Get(name) == nil })
	if s.count(held) == 0 {
		s.heldUntil = time.Time{}
	}
	changed = s.applyUsable(now)
	if len(s.byName) == 0 || s.Querying() || !s.Confirmed(now) {
		return changed
	}
	f := s.newFilter(now)
	n := s.applyRemovals(f.holdBreaking(f.takeApplicable()))
	if n > 0 {
		s.group.cfg.Logger.Info("resources removed", slog.String("type_url", s.TypeURL), slog.Int("removed", n))
	}
	return n > 0 || changed
}

// takeApplicable returns the removals of a complete set to apply: the held ones that the second look has confirmed, and
// the suspected ones. If the suspected ones are so many that the origin may have lost its state, they become held
// instead. Removals of resources to which retained resources refer, or may refer, stay recorded.
func (f filter) takeApplicable() (u wire.Update) {
	s, additions := f.set, f.set.lastAdded+len(f.set.newNames)
	s.moveTo(&u, func(name string, change removal) bool {
		confirmed := s.secondLook && (change.explicit || change.inferredIn == s.secondLooks)
		return change.state == held && confirmed && !f.needed(name)
	})
	// If removals are held already, further ones are held, too: otherwise a large removal could pass in small parts.
	hold := s.alwaysHold || s.count(held) > 0 ||
		cache.LargeRemoval(s.TypeURL, s.count(suspected), s.content.Count()-additions, additions)
	s.alwaysHold = false
	if !hold {
		s.moveTo(&u, func(name string, change removal) bool {
			return change.state == suspected && !f.mayBeNeeded(name)
		})
	} else if n := s.changeState(suspected, held); n > 0 {
		cfg := &s.group.cfg
		s.startHold(f.now, cfg.HoldTime)
		cfg.Counts.HeldTotal.Add(int64(n))
		cfg.Logger.Error("removals held: origin may have lost resources",
			slog.String("type_url", s.TypeURL), slog.Int("held", s.count(held)), slog.Duration("hold", cfg.HoldTime))
	}
	return u
}

// applyRemovals applies decided removals and returns their number.
func (s *Set) applyRemovals(u wire.Update) (n int) {
	if n = len(u.Removed) + len(u.Resources); n > 0 {
		s.apply(u)
		s.group.cfg.Counts.AppliedTotal.Add(int64(n))
	}
	return n
}

// release applies the pending changes, or with ofDiscarded the discarded ones.
func (s *Set) release(ofDiscarded bool) {
	var u wire.Update
	s.moveTo(&u, func(_ string, change removal) bool { return (change.state == discarded) == ofDiscarded })
	s.group.cfg.Logger.Warn("operator released held changes",
		slog.String("type_url", s.TypeURL), slog.Int("changes", s.applyRemovals(u)))
}

// discard makes all pending changes discarded: the resources stay.
func (s *Set) discard() {
	n := s.changeState(held, discarded) + s.changeState(suspected, discarded) + s.changeState(breaking, discarded)
	s.group.cfg.Counts.DiscardedTotal.Add(int64(n))
	s.group.cfg.Logger.Warn("operator discarded held changes",
		slog.String("type_url", s.TypeURL), slog.Int("kept", n))
}

// logHeld logs held changes every alarmInterval, and returns when to decide again.
func (s *Set) logHeld(now time.Time) (next time.Time) {
	n := s.count(held)
	if s.count(breaking) > 0 {
		next = s.breakingChecked.until
		if !now.Before(s.breakingAlarmAt) {
			s.breakingAlarmAt = now.Add(alarmInterval)
			s.group.cfg.Logger.LogAttrs(context.Background(), slog.LevelWarn,
				"changes still held: use tender release or tender discard", s.breakingAttrs(s.TypeURL)...)
		}
	}
	if n == 0 {
		return next
	}
	if !now.Before(s.alarmAt) {
		s.alarmAt = now.Add(alarmInterval)
		s.group.cfg.Logger.Warn("removals still held: use tender release or tender discard",
			slog.String("type_url", s.TypeURL), slog.Int("held", n), slog.Time("since", s.heldSince))
	}
	next = Earlier(next, s.alarmAt)
	if !s.secondLook {
		next = Earlier(next, s.heldUntil)
	}
	return next
}

// holds returns the pending and the discarded changes, one hold per state.
func (s *Set) holds(now time.Time) []Hold {
	const discardedBreaking = breaking + 1 // discarded changes that would break clients
	holds := []Hold{
		held:              {Since: s.heldSince, Until: s.heldUntil},
		suspected:         {Until: s.decisionTime(now), Unconfirmed: true},
		discarded:         {Discarded: true},
		breaking:          {Breaking: true},
		discardedBreaking: {Breaking: true, Discarded: true},
	}
	if s.secondLook {
		holds[held].Until = time.Time{}
	}
	for _, name := range slices.Sorted(maps.Keys(s.byName)) {
		change := s.byName[name]
		in := change.state
		if in == discarded && change.breakReason != "" {
			in = discardedBreaking
		}
		h := &holds[in]
		h.TypeURL, h.Reported = s.TypeURL, s.group.cfg.Reported
		h.Names = append(h.Names, name)
		if h.Breaking {
			h.Reasons, h.Since = append(h.Reasons, change.breakReason), Earlier(h.Since, change.breakingSince)
		}
	}
	return slices.DeleteFunc(holds, func(h Hold) bool { return len(h.Names) == 0 })
}

// decisionTime returns when suspected removals are decided: when the set is complete, and no retained resource can
// refer to their resources any more. It is zero if the time is not known.
func (s *Set) decisionTime(now time.Time) (until time.Time) {
	until, ok := s.content.CompleteAt()
	if !ok {
		return time.Time{}
	}
	for _, referrer := range referrers[s.TypeURL] {
		for o := range s.group.sets[referrer] {
			_, verified := o.possiblyRemoved(now)
			until = later(until, later(o.heldUntil, verified))
		}
	}
	return until
}
