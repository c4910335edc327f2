package relay

import (
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/relay/snapshot"
)

// Views distrust the versions that clients report for resources that a rollback changed, until an hour after the thaw. A
// client may have rejected an update, applied a part of it, and still report the former versions. With rollouts, their
// controllers do this instead.

// A rollbackDistrust makes views distrust the versions that clients report for resources that a rollback changed.
type rollbackDistrust struct{ *groups }

func (g *groups) rollbackDistrust() rollbackDistrust { return rollbackDistrust{g} }

// addRejected makes views distrust the versions that clients report for the resources that a rollback of an origin changes.
func (g rollbackDistrust) addRejected(origin int, e *rollout.Rejected) {
	g.mu.Lock()
	defer g.mu.Unlock()
	left := g.decisions.rejected[origin]
	if n := len(left); n > 0 && left[n-1].Ended.IsZero() {
		e.Changes = mergeChanges(left[n-1].Changes, e.Changes)
		left = left[:n-1]
	}
	g.decisions.rejected[origin] = append(slices.Clip(left), e)
	g.updateAll(origin)
}

// mergeChanges returns the changes of two editions. If both change a resource, the second one counts.
func mergeChanges(a, b rollout.Changes) rollout.Changes {
	all := make(rollout.Changes)
	for _, of := range []rollout.Changes{a, b} {
		for part, types := range of {
			if all[part] == nil {
				all[part] = make(map[string]map[string]wire.Digest)
			}
			for key, names := range types {
				if all[part][key] == nil {
					all[part][key] = make(map[string]wire.Digest)
				}
				maps.Copy(all[part][key], names)
			}
		}
	}
	return all
}

// resume continues the distrust that an earlier process recorded. If the rollback has ended, the distrust ends an
// hour from now.
func (g rollbackDistrust) resume() {
	if g.rollouts != nil {
		return
	}
	for i, left := range g.decisions.rejected {
		if f := g.decisions.frozen[i]; len(left) > 0 && (f == nil || f.Rollback == nil) {
			g.scheduleEnd(i)
		}
	}
}

// scheduleEnd ends the distrust of the rollbacks of an origin after [rollout.DistrustFor].
func (g rollbackDistrust) scheduleEnd(origin int) {
	if g.rollouts != nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	left := slices.Clone(g.decisions.rejected[origin])
	for i, e := range left {
		if e.Ended.IsZero() {
			ended := *e
			ended.Ended = time.Now()
			left[i] = &ended
		}
		time.AfterFunc(time.Until(left[i].Ended.Add(rollout.DistrustFor)), func() { g.endExpired(origin) })
	}
	g.decisions.rejected[origin] = left
}

// endExpired ends the distrust that is due.
func (g rollbackDistrust) endExpired(origin int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	over := time.Now().Add(-rollout.DistrustFor)
	left := slices.Clone(g.decisions.rejected[origin])
	g.decisions.rejected[origin] = slices.DeleteFunc(left, func(e *rollout.Rejected) bool {
		return !e.Ended.IsZero() && !e.Ended.After(over)
	})
	g.updateAll(origin)
}

// updateAll updates the distrusted names of an origin in all views. mu must be held.
func (g rollbackDistrust) updateAll(origin int) {
	for _, gr := range g.byKey {
		g.update(gr, origin)
	}
}

// update updates the distrusted names of an origin in the view of a group. mu must be held.
func (g rollbackDistrust) update(gr *group, origin int) {
	if g.rollouts != nil {
		return
	}
	names := func(part rollout.PartKey) map[string]map[string]struct{} {
		all := make(map[string]map[string]struct{})
		for _, e := range g.decisions.rejected[origin] {
			rollout.AddNames(all, e.Changes[part])
		}
		return all
	}
	gr.view.Distrust.Set(origin, names(rollout.PartKey{Group: gr.key}))
	for _, s := range gr.sharedViews {
		if s.key.origin == origin {
			gr.view.Distrust.Set(g.router.sharedSource(origin), names(rollout.PartKey{Group: s.key.label(), Shared: true}))
		}
	}
}

// rejectedRollbacks returns the rejected editions of rollbacks, for decisions.json.
func (g rollbackDistrust) rejectedRollbacks() (all []snapshot.Rejected) {
	if g.rollouts != nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, left := range g.decisions.rejected {
		for _, e := range left {
			all = append(all, encodeEdition(g.cfg.OriginName(i), e))
		}
	}
	return all
}
