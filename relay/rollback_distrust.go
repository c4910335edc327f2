package relay

import (
	"slices"
	"sync"
	"time"

	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/relay/snapshot"
)

// A rollbackDistrust makes views distrust the versions that clients report for resources that a rollback changed, until
// an hour after the thaw. A client may have rejected an update, applied a part of it, and still report the former
// versions. If nil, it does nothing: with rollouts, the controllers do this instead.
type rollbackDistrust struct {
	settings *settings
	router   *router

	mu       *sync.Mutex            // groups.mu; it guards the fields below
	groups   map[string]*group      // groups.byKey
	rejected [][]*rollout.Withdrawn // the changes of rollbacks by origin
}

// newRollbackDistrust returns the distrust of the views of g, or nil with rollouts. It continues the distrust that an
// earlier process recorded. If the rollback has ended, the distrust ends in an hour.
func newRollbackDistrust(g *groups, rejected [][]*rollout.Withdrawn) *rollbackDistrust {
	if g.rollouts != nil {
		return nil
	}
	d := &rollbackDistrust{settings: g.settings, router: g.router, mu: &g.mu, groups: g.byKey, rejected: rejected}
	for i, rejected := range d.rejected {
		if f := g.decisions.frozen[i]; len(rejected) > 0 && (f == nil || f.Rollback == nil) {
			d.scheduleEnd(i)
		}
	}
	return d
}

// add makes views distrust the versions of the resources that a rollback of an origin changes. e has its changes.
func (d *rollbackDistrust) add(origin int, e *rollout.Withdrawn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	rejected := d.rejected[origin]
	if n := len(rejected); n > 0 && rejected[n-1].Ended.IsZero() {
		e.Changes = rejected[n-1].Changes.With(e.Changes)
		rejected = rejected[:n-1]
	}
	d.rejected[origin] = append(slices.Clip(rejected), e)
	d.updateAll(origin)
}

// scheduleEnd records that the rollbacks of an origin have ended, and ends their distrust after [rollout.DistrustFor].
func (d *rollbackDistrust) scheduleEnd(origin int) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	rejected := slices.Clone(d.rejected[origin])
	for i, e := range rejected {
		if e.Ended.IsZero() {
			ended := *e
			ended.Ended = time.Now()
			rejected[i] = &ended
		}
		time.AfterFunc(time.Until(rejected[i].Ended.Add(rollout.DistrustFor)), func() { d.endExpired(origin) })
	}
	d.rejected[origin] = rejected
}

// endExpired ends the distrust of rollbacks that ended [rollout.DistrustFor] ago.
func (d *rollbackDistrust) endExpired(origin int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	cutoff := time.Now().Add(-rollout.DistrustFor)
	rejected := slices.Clone(d.rejected[origin])
	d.rejected[origin] = slices.DeleteFunc(rejected, func(e *rollout.Withdrawn) bool {
		return !e.Ended.IsZero() && !e.Ended.After(cutoff)
	})
	d.updateAll(origin)
}

// updateAll updates the distrusted names of an origin in all views. mu must be held.
func (d *rollbackDistrust) updateAll(origin int) {
	for _, gr := range d.groups {
		d.update(gr, origin)
	}
}

// update updates the distrusted names of an origin in the view of a group. mu must be held.
func (d *rollbackDistrust) update(gr *group, origin int) {
	if d == nil {
		return
	}
	names := func(section rollout.SectionKey) map[string]map[string]struct{} {
		all := make(map[string]map[string]struct{})
		for _, e := range d.rejected[origin] {
			rollout.AddNames(all, e.Changes[section])
		}
		return all
	}
	gr.view.Distrust.Set(origin, names(rollout.SectionKey{Group: gr.key}))
	for _, s := range gr.sharedViews {
		if s.key.origin == origin {
			gr.view.Distrust.Set(d.router.sharedSource(origin), names(rollout.SectionKey{Group: s.key.label(), Shared: true}))
		}
	}
}

// encode returns the changes of rollbacks, for decisions.json.
func (d *rollbackDistrust) encode() (all []snapshot.Rejected) {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, rejected := range d.rejected {
		for _, e := range rejected {
			all = append(all, encodeEdition(d.settings.origins[i].Name, e))
		}
	}
	return all
}
