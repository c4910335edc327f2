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

// decide carries out permitted removals and holds large ones. It returns whether the content has changed.
func (s *Set) decide(now time.Time) (removed bool) {
	maps.DeleteFunc(s.byName, func(name string, _ removal) bool { return s.content.Get(name) == nil })
	if s.count(held) == 0 {
		s.until = time.Time{}
	}
	mended := s.releaseUsable(now)
	if len(s.byName) == 0 || s.Asking() || !s.Confirmed(now) {
		return mended
	}
	l := s.look(now)
	n := s.remove(l.withhold(l.judge()))
	if n > 0 {
		s.group.cfg.Logger.Info("removed resources that the origin no longer has",
			slog.String("type_url", s.TypeURL), slog.Int("removed", n))
	}
	return n > 0 || mended
}

// judge decides about the suspected and held removals of a complete set, and returns those to carry out: those that the second
// look has confirmed, and the suspected ones, unless they are so many that they must be held. Resources to which a held resource
// refers stay, and those to which it may refer stay suspect.
func (l look) judge() (u wire.Update) {
	s, additions := l.set, l.set.added+len(l.set.fresh)
	s.takeOut(&u, func(name string, as removal) bool {
		return as.state == held && s.secondLook && (as.stated || as.inferredIn == s.secondLooks) && !l.needed(name)
	})
	// Removals that are held already count, too: otherwise a large removal could pass in small parts.
	hold := s.unproven || s.count(held) > 0 || cache.LargeRemoval(s.TypeURL, s.count(suspected), s.content.Count()-additions, additions)
	s.unproven = false
	if !hold {
		s.takeOut(&u, func(name string, as removal) bool { return as.state == suspected && !l.mayBeNeeded(name) })
	} else if n := s.changeState(suspected, held); n > 0 {
		s.startHold(l.now, s.group.cfg.Hold)
		s.group.cfg.Counts.Held.Add(int64(n))
		s.group.cfg.Logger.Error("the origin may have lost resources: their removal is held back",
			slog.String("type_url", s.TypeURL), slog.Int("held", s.count(held)), slog.Duration("hold", s.group.cfg.Hold))
	}
	return u
}

// remove carries out removals and returns their number.
func (s *Set) remove(u wire.Update) (n int) {
	if n = len(u.Removed) + len(u.Resources); n > 0 {
		s.apply(u)
		s.group.cfg.Counts.Applied.Add(int64(n))
	}
	return n
}

// release carries out the pending removals, or the ones that an operator discarded.
func (s *Set) release(discarded bool) {
	var u wire.Update
	s.takeOut(&u, func(_ string, as removal) bool { return (as.state == kept) == discarded })
	s.group.cfg.Logger.Warn("an operator released held changes: clients receive them",
		slog.String("type_url", s.TypeURL), slog.Int("changes", s.remove(u)))
}

// discard keeps the resources whose change is pending.
func (s *Set) discard() {
	n := s.changeState(held, kept) + s.changeState(suspected, kept) + s.changeState(breaking, kept)
	s.group.cfg.Counts.Discarded.Add(int64(n))
	s.group.cfg.Logger.Warn("an operator discarded held changes: the resources stay until the origin changes them again",
		slog.String("type_url", s.TypeURL), slog.Int("kept", n))
}

// alarm logs held changes every alarmEvery and returns the time of the next call.
func (s *Set) alarm(now time.Time) (next time.Time) {
	n := s.count(held)
	if s.count(breaking) > 0 {
		next = s.checkedAsOf.until
		if !now.Before(s.brokenAlarmAt) {
			s.brokenAlarmAt = now.Add(alarmEvery)
			s.group.cfg.Logger.LogAttrs(context.Background(), slog.LevelWarn,
				"changes are still held: tender release sends them, tender discard keeps the resources", s.breakingAttrs(s.TypeURL)...)
		}
	}
	if n == 0 {
		return next
	}
	if !now.Before(s.alarmAt) {
		s.alarmAt = now.Add(alarmEvery)
		s.group.cfg.Logger.Warn("removals are still held back: tender release carries them out, tender discard keeps the resources",
			slog.String("type_url", s.TypeURL), slog.Int("held", n), slog.Time("since", s.since))
	}
	next = Earlier(next, s.alarmAt)
	if !s.secondLook {
		next = Earlier(next, s.until)
	}
	return next
}

// holds returns the pending changes and the ones that an operator discarded.
func (s *Set) holds(now time.Time) []Hold {
	const keptBroken = breaking + 1
	holds := []Hold{
		held:       {Since: s.since, Until: s.until},
		suspected:  {Until: s.decisionTime(now), Unconfirmed: true},
		kept:       {Discarded: true},
		breaking:   {Broken: true},
		keptBroken: {Broken: true, Discarded: true},
	}
	if s.secondLook {
		holds[held].Until = time.Time{}
	}
	for _, name := range slices.Sorted(maps.Keys(s.byName)) {
		as := s.byName[name]
		if as.state == kept && as.breakReason != "" {
			as.state = keptBroken
		}
		h := &holds[as.state]
		h.TypeURL, h.Reported = s.TypeURL, s.group.cfg.Reported
		h.Names = append(h.Names, name)
		if h.Broken {
			h.Reasons, h.Since = append(h.Reasons, as.breakReason), Earlier(h.Since, as.at)
		}
	}
	return slices.DeleteFunc(holds, func(h Hold) bool { return len(h.Names) == 0 })
}

// decisionTime returns the time of the decision on suspected removals: the set is complete and no held resource needs
// them.
func (s *Set) decisionTime(now time.Time) (until time.Time) {
	until, ok := s.content.Complete()
	if !ok {
		return time.Time{}
	}
	for _, needer := range needers[s.TypeURL] {
		for o := range s.group.sets[needer] {
			_, doubted := o.doubtful(now)
			until = later(until, later(o.until, doubted))
		}
	}
	return until
}
