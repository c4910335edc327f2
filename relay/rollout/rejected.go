package rollout

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// DistrustFor is how long the relay distrusts the versions that clients report for resources of a withdrawn edition: a
// client may have applied a rejected response in part.
const DistrustFor = time.Hour

// maxRejected is how many editions are remembered to be rejected again.
const maxRejected = 20

// Changes are the contents of the resources that an edition changes, by part, type URL or collection, and name. The zero
// digest means that the edition removes the resource.
type Changes map[PartKey]map[string]map[string]wire.Digest

// A Rejected is an edition that cohorts were served and are served no longer, or that was rejected before. It is immutable.
type Rejected struct {
	Reason  string
	At      time.Time
	Ended   time.Time // since when it is rejected no more; zero while it is
	Cohorts int       // that were served it, the rest included: the first ones
	Changes Changes

	// Sum is that of all that the edition has changed, of which Changes may have only a part. An edition that has it is rejected
	// again. It is zero if the edition was not rejected, or an operator has allowed it since.
	Sum wire.Digest
}

// inForce returns the edition that is rejected; nil if none is.
func (c *Controller) inForce() *Rejected {
	if n := len(c.left); n > 0 && c.left[n-1].Ended.IsZero() {
		return c.left[n-1]
	}
	return nil
}

// leave records the editions that cohorts have left, given by how many, and which one is rejected. It reports whether that has
// changed.
func (c *Controller) leave(now time.Time, left map[Edition]int) (changed bool) {
	halted, is, h := c.machine.Phase() == Halted, c.inForce(), c.machine.Halt()
	c.left = slices.Clone(c.left)
	if is != nil && (!halted || is.Reason != h.Reason || !is.At.Equal(h.At)) { // or Undo has another one rejected
		ended := *is
		ended.Ended, changed = now, true
		c.left[len(c.left)-1], is = &ended, nil
	}
	rejected := c.machine.Edition()
	for e, cohorts := range left {
		if !halted || e != rejected {
			c.remember(&Rejected{At: now, Ended: now, Cohorts: cohorts, Changes: c.changesOf(e)})
			changed = true
		}
	}
	if halted && is == nil {
		c.remember(&Rejected{Reason: h.Reason, At: h.At, Cohorts: left[rejected], Changes: c.changesOf(rejected), Sum: c.about.sum})
		changed = true
	}
	return changed
}

// remember adds an edition to those that cohorts have left. Those before are left without the resources that it has too, if it
// reached as many cohorts: it is forgotten later. So an origin that supersedes its editions without end fills neither the
// memory nor the disk.
func (c *Controller) remember(e *Rejected) {
	all, sums := []*Rejected{e}, 0
	for _, r := range slices.Backward(c.left) {
		if !r.Ended.IsZero() && r.Cohorts <= e.Cohorts {
			r = r.without(e.Changes)
		}
		if r.Sum != (wire.Digest{}) {
			if sums++; sums >= maxRejected || r.Sum == e.Sum {
				r = r.allowed()
			}
		}
		if !r.Ended.IsZero() && len(r.Changes) == 0 && r.Sum == (wire.Digest{}) {
			continue
		}
		all = append(all, r)
	}
	slices.Reverse(all)
	c.left = all
}

// rejectAgain rejects the edition that was just cut if one with the same changes was rejected within the last hour, and no operator has
// allowed it since. An origin that alternates between two states would have clients served the bad one each time.
func (c *Controller) rejectAgain(now time.Time) {
	if i := c.rejected(c.about); i >= 0 {
		c.machine.reject(now, c.left[i].Reason)
	}
}

// rejected returns the place in c.left of the edition that was rejected with the same changes, of which there is one at most; -1
// if there is none.
func (c *Controller) rejected(about description) int {
	if about.resources == 0 {
		return -1
	}
	return slices.IndexFunc(c.left, func(r *Rejected) bool { return r.Sum == about.sum })
}

// allow has the edition be served although it was rejected: an operator wants that.
func (c *Controller) allow(ctx context.Context) {
	i := c.rejected(c.about)
	if i < 0 {
		return
	}
	left := slices.Clone(c.left) // others read the old one
	left[i] = left[i].allowed()  // a sum is remembered once
	c.left = left
	c.leftNow.Store(&left)
	c.cfg.Decided(ctx)
}

// allowed returns an edition that is not rejected again.
func (r *Rejected) allowed() *Rejected {
	again := *r
	again.Sum = wire.Digest{}
	return &again
}

// without returns an edition without some resources.
func (r *Rejected) without(some Changes) *Rejected {
	less := *r
	less.Changes = make(Changes)
	for key, types := range r.Changes {
		for typ, names := range types {
			names = maps.Clone(names)
			maps.DeleteFunc(names, func(name string, _ wire.Digest) bool { _, is := some[key][typ][name]; return is })
			if len(names) == 0 {
				continue
			}
			if less.Changes[key] == nil {
				less.Changes[key] = make(map[string]map[string]wire.Digest)
			}
			less.Changes[key][typ] = names
		}
	}
	return &less
}

// Rejected returns what NewController of a later process needs.
func (c *Controller) Rejected() []*Rejected { return *c.leftNow.Load() }

// forget ends the distrust of editions that were withdrawn long ago. It returns when it is due next; zero is never.
func (c *Controller) forget(now time.Time) (next time.Time) {
	before := len(c.left)
	c.left = slices.DeleteFunc(slices.Clone(c.left), func(r *Rejected) bool { return !r.Ended.IsZero() && !now.Before(r.Ended.Add(DistrustFor)) })
	if len(c.left) < before {
		c.distrust()
	}
	for _, r := range c.left {
		if !r.Ended.IsZero() {
			next = earlier(next, r.Ended.Add(DistrustFor))
		}
	}
	return next
}

// distrust makes views distrust the versions that clients report for resources of withdrawn editions.
func (c *Controller) distrust() {
	now := c.left
	c.leftNow.Store(&now)
	all := make(map[cohortOf]map[string]map[string]struct{})
	for _, r := range c.left {
		for key, changes := range r.Changes {
			for cohort := range r.Cohorts {
				of := cohortOf{key.Group, cohort}
				if all[of] == nil {
					all[of] = make(map[string]map[string]struct{})
				}
				AddNames(all[of], changes)
			}
		}
	}
	for _, p := range c.joined() {
		p.distrusts = true
		for cohort := range len(c.cfg.Stages) + 1 {
			p.view.Cohort(cohort).Distrust.Set(p.source, all[cohortOf{p.Key.Group, cohort}])
		}
	}
}

// AddNames adds the names of resources that an edition changes, by type URL or collection.
func AddNames(to map[string]map[string]struct{}, changes map[string]map[string]wire.Digest) {
	for key, names := range changes {
		if to[key] == nil {
			to[key] = make(map[string]struct{})
		}
		for name := range names {
			to[key][name] = struct{}{}
		}
	}
}
