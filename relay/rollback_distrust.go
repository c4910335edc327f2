package relay

import (
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/relay/snapshot"
)

// What a client says that it has is not believed for what a rollback took from it, until an hour after the thaw: a client may have
// refused an update, applied half of it, and still report the versions from before. With rollouts, their controllers do the same.

// reject has clients of an origin not be believed what they say that they have of what a rollback takes from them.
func (g *groups) reject(origin int, e *rollout.Rejected) {
	g.mu.Lock()
	defer g.mu.Unlock()
	left := g.decisions.rejected[origin]
	if n := len(left); n > 0 && left[n-1].Ended.IsZero() {
		e.Changes = merged(left[n-1].Changes, e.Changes)
		left = left[:n-1]
	}
	g.decisions.rejected[origin] = append(slices.Clip(left), e)
	g.distrustAll(origin)
}

// merged returns the changes of two editions; of a resource that both change, those of the second.
func merged(a, b rollout.Changes) rollout.Changes {
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

// adoptRejected goes on with what an earlier process left. What was rejected and is not rolled back any more ends now.
func (g *groups) adoptRejected() {
	if g.rollouts != nil {
		return
	}
	for i, left := range g.decisions.rejected {
		if f := g.decisions.frozen[i]; len(left) > 0 && (f == nil || f.Rollback == nil) {
			g.believeLater(i)
		}
	}
}

// believeLater has clients of an origin be believed again an hour from now, of what they were not before.
func (g *groups) believeLater(origin int) {
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
		time.AfterFunc(time.Until(left[i].Ended.Add(rollout.DistrustFor)), func() { g.believe(origin) })
	}
	g.decisions.rejected[origin] = left
}

// believe forgets what clients are to be believed of again.
func (g *groups) believe(origin int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	over := time.Now().Add(-rollout.DistrustFor)
	g.decisions.rejected[origin] = slices.DeleteFunc(slices.Clone(g.decisions.rejected[origin]), func(e *rollout.Rejected) bool {
		return !e.Ended.IsZero() && !e.Ended.After(over)
	})
	g.distrustAll(origin)
}

// distrustAll has all views be told what not to believe of an origin. mu must be held.
func (g *groups) distrustAll(origin int) {
	for _, gr := range g.byKey {
		g.distrust(gr, origin)
	}
}

// distrust has the view of a group be told what not to believe of an origin. mu must be held.
func (g *groups) distrust(gr *group, origin int) {
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
	for _, s := range gr.shares {
		if s.key.origin == origin {
			gr.view.Distrust.Set(g.router.shared(origin), names(rollout.PartKey{Group: s.key.shown(), Shared: true}))
		}
	}
}

// rejectedRollbacks returns what a later process is to know.
func (g *groups) rejectedRollbacks() (all []snapshot.Rejected) {
	if g.rollouts != nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, left := range g.decisions.rejected {
		for _, e := range left {
			all = append(all, savedEdition(g.cfg.OriginName(i), e))
		}
	}
	return all
}
