package rollout

import (
	"context"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// DistrustFor is how long the relay distrusts the versions that clients report for resources of a withdrawn edition: a
// client may have applied a rejected response in part.
const DistrustFor = time.Hour

// maxRejected is the maximum number of rejected editions that the relay stores.
const maxRejected = maxOpenParts + 20

// Changes are the contents of the resources that an edition changes, by section, type URL or collection, and name. The
// zero digest means that the edition removes the resource.
type Changes map[SectionKey]map[string]map[string]wire.Digest

// A Withdrawn is an edition that was rejected, or that was withdrawn from cohorts for another reason. It is immutable.
type Withdrawn struct {
	Reason  string    // reason of the rejection; empty without one
	At      time.Time // time of the rejection or withdrawal
	Ended   time.Time // end of the rejection; zero while it is active
	Cohorts int       // number of cohorts that were served it, including the rest
	Changes Changes

	// Sum is the digest of all changes of the edition; Changes may hold only some of them. An edition with an equal Sum
	// is rejected again. Zero means that the edition was not rejected, or that an operator has allowed it since.
	Sum wire.Digest

	Peer *Peer // whose halt the relay follows; nil without one

	Signaled time.Time // Halt.Signaled

	part *part // whose edition it is, while the rejection is active
}

// rejections is the record of withdrawn editions. The goroutine of Run owns it, except published.
type rejections struct {
	withdrawn []*Withdrawn // the oldest first
	heard     uint64       // number of changes of what peers tell
	published atomic.Pointer[[]*Withdrawn]
}

// publish makes the record the result of [Controller.Withdrawn], which other goroutines read. A published slice must
// not be changed.
func (r *rejections) publish() {
	published := r.withdrawn
	r.published.Store(&published)
}

// activeRejection returns the edition of a part that is rejected now; nil without one.
func (r *rejections) activeRejection(p *part) *Withdrawn {
	for _, e := range r.withdrawn {
		if e.part == p && e.Ended.IsZero() {
			return e
		}
	}
	return nil
}

// recordWithdrawn records withdrawn editions of a part, with the number of cohorts that were served them, and its active
// rejection. It returns whether the record has changed.
func (c *Controller) recordWithdrawn(now time.Time, p *part, cohortsOf map[Edition]int) (changed bool) {
	m, active := p.machine.State(), c.rejections.activeRejection(p)
	halted, halt := m.Phase == Halted, m.Halt
	stillActive := halted && active != nil && active.Reason == halt.Reason && active.At.Equal(halt.At)
	if active != nil && !stillActive { // the rollout is not halted, or Undo has rejected another edition
		c.rejections.endActive(now, active)
		changed = true
	}
	rejected := m.Edition
	for e, cohorts := range cohortsOf {
		if !halted || e != rejected {
			c.rejections.addWithdrawn(&Withdrawn{At: now, Ended: now, Cohorts: cohorts, Changes: c.changesOf(p, e)})
			changed = true
		}
	}
	if halted && !stillActive {
		halt.At = c.distinct(halt.At)
		p.machine.halt.At = halt.At
		c.rejections.addWithdrawn(&Withdrawn{
			Reason: halt.Reason, At: halt.At, Cohorts: cohortsOf[rejected],
			Changes: c.changesOf(p, rejected), Sum: p.edition.sum, Peer: p.follows.halt, Signaled: halt.Signaled,
			part: p,
		})
		changed = true
	}
	return changed
}

// endActive ends an active rejection.
func (r *rejections) endActive(now time.Time, active *Withdrawn) {
	r.withdrawn = slices.Clone(r.withdrawn)
	ended := *active
	ended.Ended, ended.part = now, nil
	r.withdrawn[slices.Index(r.withdrawn, active)] = &ended
}

// addWithdrawn adds an edition to the withdrawn ones. It removes the resources of added from older editions that
// reached no more cohorts, because added expires later. This bounds memory and disk if an origin supersedes editions
// endlessly.
func (r *rejections) addWithdrawn(added *Withdrawn) {
	all, sums := []*Withdrawn{added}, 0
	for _, e := range slices.Backward(r.withdrawn) {
		if !e.Ended.IsZero() && e.Cohorts <= added.Cohorts {
			e = e.withoutResources(added.Changes)
		}
		if e.Sum != (wire.Digest{}) {
			if sums++; sums >= maxRejected || e.Sum == added.Sum {
				e = e.withoutSum()
			}
		}
		if !e.Ended.IsZero() && len(e.Changes) == 0 && e.Sum == (wire.Digest{}) {
			continue
		}
		all = append(all, e)
	}
	slices.Reverse(all)
	r.withdrawn = all
}

// rejectRepeated rejects the edition of a part that was just cut if an edition with the same changes was rejected within the last
// hour. It does not if an operator has allowed that edition since. Otherwise an origin that alternates between two
// states would distribute the bad state each time. What was rejected with a peer is again, unless the peer has ended it.
func (c *Controller) rejectRepeated(p *part, now time.Time) {
	i := c.rejections.findRejected(p.edition)
	if i < 0 {
		return
	}
	e := c.rejections.withdrawn[i]
	if e.Peer != nil {
		p.haltWith(now, *e.Peer, e.Reason)
		return
	}
	p.machine.reject(now, e.Reason)
	p.machine.halt.Signaled = e.Signaled
}

// hear records which processes tell the halts of peers now. An edition is not rejected again once its halt has ended. It reports
// whether a record has changed.
func (r *rejections) hear(known []*peer) (changed bool) {
	for i, e := range r.withdrawn {
		if e.Peer == nil {
			continue
		}
		is, ended := e.Peer.asTold(known)
		if is == *e.Peer && !ended {
			continue
		}
		heard := *e
		if heard.Peer = &is; ended && !e.Ended.IsZero() {
			heard.Sum = wire.Digest{}
		}
		if !changed {
			changed, r.withdrawn = true, slices.Clone(r.withdrawn)
		}
		r.withdrawn[i] = &heard
	}
	if changed {
		r.publish()
	}
	return changed
}

// findRejected returns the index in r.withdrawn of the rejected edition with the same changes; -1 without one. The
// changes of all node groups must be the same: an edition with further changes may be a fix.
func (r *rejections) findRejected(s summary) int {
	if s.resources == 0 {
		return -1
	}
	return slices.IndexFunc(r.withdrawn, func(e *Withdrawn) bool { return e.Sum == s.sum })
}

// allowRejected ends the rule of rejectRepeated for the edition of a part, because an operator distributes it.
func (c *Controller) allowRejected(ctx context.Context, p *part) {
	if c.rejections.allow(p.edition) {
		c.cfg.Decided(ctx)
	}
}

// allow implements allowRejected. It returns false if no edition with the same changes was rejected.
func (r *rejections) allow(s summary) bool {
	i := r.findRejected(s)
	if i < 0 {
		return false
	}
	r.withdrawn = slices.Clone(r.withdrawn)
	r.withdrawn[i] = r.withdrawn[i].withoutSum() // each sum is stored once
	r.publish()
	return true
}

// withoutSum returns a copy without Sum, so that rejectRepeated ignores it.
func (r *Withdrawn) withoutSum() *Withdrawn {
	copied := *r
	copied.Sum = wire.Digest{}
	return &copied
}

// withoutResources returns a copy without the resources of removed.
func (r *Withdrawn) withoutResources(removed Changes) *Withdrawn {
	copied := *r
	copied.Changes = make(Changes)
	for key, types := range r.Changes {
		for typ, names := range types {
			names = maps.Clone(names)
			maps.DeleteFunc(names, func(name string, _ wire.Digest) bool { _, ok := removed[key][typ][name]; return ok })
			if len(names) == 0 {
				continue
			}
			if copied.Changes[key] == nil {
				copied.Changes[key] = make(map[string]map[string]wire.Digest)
			}
			copied.Changes[key][typ] = names
		}
	}
	return &copied
}

// Withdrawn returns the withdrawn editions, the oldest first. A later process passes them to NewController.
func (c *Controller) Withdrawn() []*Withdrawn { return *c.rejections.published.Load() }

// expireWithdrawn drops editions that were withdrawn more than DistrustFor ago. It returns the time of the next
// expiry; zero is never.
func (c *Controller) expireWithdrawn(now time.Time) (next time.Time) {
	dropped, next := c.rejections.expire(now)
	if dropped {
		c.distrust()
	}
	return next
}

// expire implements expireWithdrawn. It reports whether it has dropped an edition.
func (r *rejections) expire(now time.Time) (dropped bool, next time.Time) {
	before := len(r.withdrawn)
	r.withdrawn = slices.DeleteFunc(slices.Clone(r.withdrawn), func(e *Withdrawn) bool {
		return !e.Ended.IsZero() && !now.Before(e.Ended.Add(DistrustFor))
	})
	for _, e := range r.withdrawn {
		if !e.Ended.IsZero() {
			next = earlier(next, e.Ended.Add(DistrustFor))
		}
	}
	return len(r.withdrawn) < before, next
}

// distrust publishes the withdrawn editions, and makes views distrust the versions that clients report for their
// resources.
func (c *Controller) distrust() {
	c.rejections.publish()
	all := make(map[groupCohort]map[string]map[string]struct{})
	for _, r := range c.rejections.withdrawn {
		for key, changes := range r.Changes {
			for cohort := range r.Cohorts {
				k := groupCohort{key.Group, cohort}
				if all[k] == nil {
					all[k] = make(map[string]map[string]struct{})
				}
				AddNames(all[k], changes)
			}
		}
	}
	for _, s := range c.tracker.joined() {
		s.distrusts = true
		for cohort := range len(c.cfg.Stages) + 1 {
			s.view.Cohort(c.cfg.ViewOf(cohort)).Distrust.Set(s.source, all[groupCohort{s.Key.Group, cohort}])
		}
	}
}

// AddNames adds the names of the changed resources to a set, by type URL or collection.
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
