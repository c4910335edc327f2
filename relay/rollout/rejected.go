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

// maxRejected is the maximum number of rejected editions that the relay stores.
const maxRejected = 20

// Changes are the contents of the resources that an edition changes, by part, type URL or collection, and name. The
// zero digest means that the edition removes the resource.
type Changes map[PartKey]map[string]map[string]wire.Digest

// A Rejected is an edition that was withdrawn from cohorts or was rejected. It is immutable.
type Rejected struct {
	Reason  string
	At      time.Time
	Ended   time.Time // end of the rejection; zero while it is active
	Cohorts int       // number of cohorts that were served it, including the rest
	Changes Changes

	// Sum is the digest of all changes of the edition; Changes may hold only some of them. An edition with an equal Sum
	// is rejected again. Zero means that the edition was not rejected, or that an operator has allowed it since.
	Sum wire.Digest
}

// activeRejection returns the edition that is rejected now; nil without one.
func (c rejections) activeRejection() *Rejected {
	if n := len(c.withdrawn); n > 0 && c.withdrawn[n-1].Ended.IsZero() {
		return c.withdrawn[n-1]
	}
	return nil
}

// recordWithdrawn records the editions that were withdrawn from a number of cohorts, and the active rejection. It
// returns whether the record has changed.
func (c rejections) recordWithdrawn(now time.Time, cohortsOf map[Edition]int) (changed bool) {
	m, is := c.machine.State(), c.activeRejection()
	halted, h := m.Phase == Halted, m.Halt
	c.withdrawn = slices.Clone(c.withdrawn)
	if is != nil && (!halted || is.Reason != h.Reason || !is.At.Equal(h.At)) { // or Undo has rejected another one
		ended := *is
		ended.Ended, changed = now, true
		c.withdrawn[len(c.withdrawn)-1], is = &ended, nil
	}
	rejected := m.Edition
	for e, cohorts := range cohortsOf {
		if !halted || e != rejected {
			c.addWithdrawn(&Rejected{At: now, Ended: now, Cohorts: cohorts, Changes: c.partition().changesOf(e)})
			changed = true
		}
	}
	if halted && is == nil {
		c.addWithdrawn(&Rejected{Reason: h.Reason, At: h.At, Cohorts: cohortsOf[rejected], Changes: c.partition().changesOf(rejected), Sum: c.edition.sum})
		changed = true
	}
	return changed
}

// addWithdrawn adds an edition to the withdrawn ones. Older editions lose the resources that e has too, if e reached as
// many cohorts, because e expires later. This bounds memory and disk if an origin supersedes its editions endlessly.
func (c rejections) addWithdrawn(e *Rejected) {
	all, sums := []*Rejected{e}, 0
	for _, r := range slices.Backward(c.withdrawn) {
		if !r.Ended.IsZero() && r.Cohorts <= e.Cohorts {
			r = r.without(e.Changes)
		}
		if r.Sum != (wire.Digest{}) {
			if sums++; sums >= maxRejected || r.Sum == e.Sum {
				r = r.withoutSum()
			}
		}
		if !r.Ended.IsZero() && len(r.Changes) == 0 && r.Sum == (wire.Digest{}) {
			continue
		}
		all = append(all, r)
	}
	slices.Reverse(all)
	c.withdrawn = all
}

// rejectAgain rejects the edition that was just cut if one with the same changes was rejected within the last hour, and
// no operator has allowed it since. Otherwise an origin that alternates between two states would distribute the bad one
// each time.
func (c rejections) rejectAgain(now time.Time) {
	if i := c.findRejected(c.edition); i >= 0 {
		c.machine.reject(now, c.withdrawn[i].Reason)
	}
}

// findRejected returns the index in c.withdrawn of the rejected edition with the same changes; -1 without one. The changes
// of all node groups must be the same: an edition with further changes may be a fix.
func (c rejections) findRejected(about summary) int {
	if about.resources == 0 {
		return -1
	}
	return slices.IndexFunc(c.withdrawn, func(r *Rejected) bool { return r.Sum == about.sum })
}

// allowRejected permits an edition that was rejected, because an operator requests it.
func (c rejections) allowRejected(ctx context.Context) {
	i := c.findRejected(c.edition)
	if i < 0 {
		return
	}
	all := slices.Clone(c.withdrawn) // other goroutines read the old slice
	all[i] = all[i].withoutSum()     // each sum is stored once
	c.withdrawn = all
	c.published.Store(&all)
	c.cfg.Decided(ctx)
}

// withoutSum returns an edition that is not rejected again.
func (r *Rejected) withoutSum() *Rejected {
	again := *r
	again.Sum = wire.Digest{}
	return &again
}

// without returns the edition without the given resources.
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

// Rejected returns the withdrawn editions, for NewController of a later process.
func (c *Controller) Rejected() []*Rejected { return *c.published.Load() }

// expireWithdrawn drops editions that were withdrawn more than DistrustFor ago. It returns the time of the next
// expiry; zero is never.
func (c rejections) expireWithdrawn(now time.Time) (next time.Time) {
	before := len(c.withdrawn)
	c.withdrawn = slices.DeleteFunc(slices.Clone(c.withdrawn), func(r *Rejected) bool { return !r.Ended.IsZero() && !now.Before(r.Ended.Add(DistrustFor)) })
	if len(c.withdrawn) < before {
		c.distrust()
	}
	for _, r := range c.withdrawn {
		if !r.Ended.IsZero() {
			next = earlier(next, r.Ended.Add(DistrustFor))
		}
	}
	return next
}

// distrust makes views distrust the versions that clients report for resources of withdrawn editions.
func (c rejections) distrust() {
	now := c.withdrawn
	c.published.Store(&now)
	all := make(map[cohortOf]map[string]map[string]struct{})
	for _, r := range c.withdrawn {
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
	for _, p := range c.partition().joined() {
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
