package relay

import (
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/relay/snapshot"
)

// Until an hour after the thaw, views distrust the versions that clients report for resources that a rollback changed.
// A client may have rejected an update, applied a part of it, and still report the former versions. With rollouts, the
// controllers do this instead.

// rollbackDistrust has the methods of groups about distrusted versions.
type rollbackDistrust struct{ *groups }

func (g *groups) rollbackDistrust() rollbackDistrust { return rollbackDistrust{g} }

// addRejected makes views distrust the versions of the resources that a rollback of an origin changes. e has its
// changes.
func (g rollbackDistrust) addRejected(origin int, e *rollout.Withdrawn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	rejected := g.decisions.rejected[origin]
	if n := len(rejected); n > 0 && rejected[n-1].Ended.IsZero() {
		e.Changes = mergeChanges(rejected[n-1].Changes, e.Changes)
		rejected = rejected[:n-1]
	}
	g.decisions.rejected[origin] = append(slices.Clip(rejected), e)
	g.updateAll(origin)
}

// mergeChanges returns the changes of two editions. If both change a resource, the change of b counts.
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

// resume continues the distrust that an earlier process recorded. If the rollback has ended, the distrust ends in an
// hour.
func (g rollbackDistrust) resume() {
	if g.rollouts != nil {
		return
	}
	for i, rejected := range g.decisions.rejected {
		if f := g.decisions.frozen[i]; len(rejected) > 0 && (f == nil || f.Rollback == nil) {
			g.scheduleEnd(i)
		}
	}
}

// scheduleEnd records that the rollbacks of an origin have ended, and ends their distrust after [rollout.DistrustFor].
func (g rollbackDistrust) scheduleEnd(origin int) {
	if g.rollouts != nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	rejected := slices.Clone(g.decisions.rejected[origin])
	for i, e := range rejected {
		if e.Ended.IsZero() {
			ended := *e
			ended.Ended = time.Now()
			rejected[i] = &ended
		}
		time.AfterFunc(time.Until(rejected[i].Ended.Add(rollout.DistrustFor)), func() { g.endExpired(origin) })
	}
	g.decisions.rejected[origin] = rejected
}

// endExpired ends the distrust of rollbacks that ended [rollout.DistrustFor] ago.
func (g rollbackDistrust) endExpired(origin int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	cutoff := time.Now().Add(-rollout.DistrustFor)
	rejected := slices.Clone(g.decisions.rejected[origin])
	g.decisions.rejected[origin] = slices.DeleteFunc(rejected, func(e *rollout.Withdrawn) bool {
		return !e.Ended.IsZero() && !e.Ended.After(cutoff)
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
	for i, rejected := range g.decisions.rejected {
		for _, e := range rejected {
			all = append(all, encodeEdition(g.settings.origins[i].Name, e))
		}
	}
	return all
}
