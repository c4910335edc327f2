package rollout

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/upstream"
)

// A Part is the state of an origin that one writer keeps: the resources of a node group, or those that the group shares
// with others. An edition is one cut of all parts.
type Part struct {
	c       *Controller
	Key     PartKey
	view    *cache.View // of the rest
	source  int
	control *upstream.Control

	waiting atomic.Pointer[pending.Staged] // number and age of the pending changes

	// Owned by Run once the part has joined.
	editions       map[Edition]*pending.Edition // editions that may be served again or are compared with latest
	compared       Edition                      // the edition that latest is compared with
	unsettledSince time.Time                    // start of the wait for the origin to confirm its state; zero without a wait
	unavailable    bool                         // the wait has lasted for unavailableAfter; see updateUnavailable
	distrusts      bool                         // its views have the distrusted versions of withdrawn editions

	// changes of the edition for the clients of each cohort. Guarded by tracker.mu.
	changes [maxCohorts][]downstream.Change
}

// A PartKey identifies a part across restarts.
type PartKey struct {
	Group  string // the key of the node group
	Shared bool   // the part that the group shares with others
}

// NewPart returns a part that has not joined yet.
func (c *Controller) NewPart(key PartKey) *Part {
	p := &Part{c: c, Key: key, editions: make(map[Edition]*pending.Edition)}
	p.waiting.Store(new(pending.Staged))
	if c.restored != nil {
		p.editions[restoredEdition] = &pending.Edition{Changes: c.restored.Changes[key]}
	}
	return p
}

// SetWaiting records what waits for stages in the part. It does not block.
func (p *Part) SetWaiting(now pending.Staged) {
	p.waiting.Store(&now)
	p.c.Poke()
}

// Poke makes the controller look at the part again, because the origin may have confirmed its state. It does not block.
func (p *Part) Poke() { p.c.Poke() }

// Join adds the part to rollouts. view is the view of the rest. The loop of control writes the source.
func (p *Part) Join(view *cache.View, source int, control *upstream.Control) {
	p.view, p.source, p.control = view, source, control
	p.c.tracker.join(p)
}

// Leave removes the part from rollouts.
func (p *Part) Leave() {
	p.c.tracker.leave(p)
}

// changedBy reports whether an edition changes a resource of the part.
func (p *Part) changedBy(e Edition) bool {
	return p.editions[e] != nil && len(p.editions[e].Changes) > 0
}

// A summary describes an edition for operators.
type summary struct {
	id        string
	sum       wire.Digest // digest of all changes; equal changes have equal digests, also after a restart
	resources int
	large     bool
}

// summarize returns the summary of an edition.
func summarize(changes Changes) (s summary) {
	hash := sha256.New()
	for _, key := range slices.SortedFunc(maps.Keys(changes), PartKey.Compare) {
		for _, typ := range slices.Sorted(maps.Keys(changes[key])) {
			names := changes[key][typ]
			s.resources += len(names)
			for _, name := range slices.Sorted(maps.Keys(names)) {
				digest := names[name]
				hash.Write([]byte(key.Group + "\x00" + typ + "\x00" + name + "\x00"))
				hash.Write(digest[:])
			}
		}
	}
	hash.Sum(s.sum[:0])
	s.id = hex.EncodeToString(s.sum[:4])
	return s
}

// cutEdition pins latest of the given parts as the next edition and resets all counts of the edition before.
func (c *Controller) cutEdition(ctx context.Context, now time.Time, f Facts, parts []*Part) {
	number, large := c.machine.State().Next, false
	for _, p := range parts {
		p.control.Edit(ctx, func(l *pending.List) {
			e := l.Pin()
			l.Compare(e)
			p.editions[number], p.compared = e, number
		})
		large = large || p.editions[number] != nil && p.editions[number].Large
	}
	c.machine.Cut(now, f.Changed, large)
	c.edition = summarize(c.changesOf(number))
	c.edition.large = large
	c.checks.reset()
	c.judging.reset()
	c.observation = observation{cohorts: newCohorts(c.cfg.Stages)}
	c.tracker.resetSignals()
}

// changesOf returns the changes of an edition.
func (c *Controller) changesOf(e Edition) Changes {
	all := make(Changes)
	for _, p := range c.tracker.joined() {
		if p.changedBy(e) {
			all[p.Key] = p.editions[e].Changes
		}
	}
	return all
}

// dropUnusedEditions drops editions that no step can serve, compare or undo. Undo needs only the changes of the last
// good, so its resources are dropped.
func (c *Controller) dropUnusedEditions() {
	m := c.machine.State()
	for _, p := range c.tracker.joined() {
		for e, pinned := range p.editions {
			switch {
			case e == m.Edition && m.Phase != Current, m.Previous != nil && e == *m.Previous:
			case e == m.LastGood:
				p.editions[e] = &pending.Edition{Changes: pinned.Changes}
			case !slices.Contains(c.served[:], e):
				delete(p.editions, e)
			}
		}
	}
}

// compareLatest makes the writers compare latest with the edition that is in progress or was rejected.
func (c *Controller) compareLatest(ctx context.Context) {
	var with Edition
	if m := c.machine.State(); m.Phase.hasEdition() {
		with = m.Edition
	}
	for _, p := range c.tracker.joined() {
		if p.compared != with {
			p.control.Edit(ctx, func(l *pending.List) { l.Compare(p.editions[with]) })
			p.compared = with
		}
	}
}

// serve serves each cohort the edition that the machine selects, and returns whether an edition of a cohort has
// changed. The rest comes first: a promotion changes only the rest, and after a rollback all cohorts share the state of
// the rest.
func (c *Controller) serve(ctx context.Context, now time.Time) (changed bool) {
	rest, servedGood := c.cfg.rest(), c.served[c.cfg.rest()]
	withdrawn := make(map[Edition]int) // number of cohorts by withdrawn edition
	var moves []int                    // cohorts whose edition changes
	for _, cohort := range c.cfg.cohorts() {
		before, after := c.served[cohort], c.machine.Serves(cohort)
		if before == after {
			continue
		}
		if cohort <= rest && withdraws(before, after, servedGood) { // no client of the judge returns
			withdrawn[before] = max(withdrawn[before], cohort+1)
		}
		moves = append(moves, cohort)
	}
	recorded := c.recordWithdrawn(now, withdrawn)
	if recorded || slices.ContainsFunc(c.tracker.joined(), func(p *Part) bool { return !p.distrusts }) {
		c.distrust()
	}
	if c.anyServedEdition(moves) {
		c.tracker.addAcceptedClients()
	}
	lastGood := c.machine.State().LastGood
	c.tracker.setReached(func(cohort int) bool { // before a client can answer
		return c.served[cohort] != servedGood || c.machine.Serves(cohort) != lastGood
	})
	for _, cohort := range moves {
		before, after := c.served[cohort], c.machine.Serves(cohort)
		if cohort == rest {
			c.serveRest(ctx, before, after)
		} else {
			c.serveCohort(ctx, cohort, after)
		}
		c.served[cohort] = after
	}
	c.compareLatest(ctx)
	c.dropUnusedEditions()
	c.tracker.setReached(func(cohort int) bool { return c.served[cohort] != lastGood })
	if recorded {
		c.cfg.Decided(ctx)
	}
	return len(moves) > 0
}

// withdraws reports whether a cohort that is served the edition after loses changes of the edition before. servedGood is the last
// good so far.
func withdraws(before, after, servedGood Edition) bool { return before > after || before != servedGood }

// anyServedEdition reports whether the machine selects another edition than the last good for any of the cohorts.
func (c *Controller) anyServedEdition(cohorts []int) bool {
	lastGood := c.machine.State().LastGood
	return slices.ContainsFunc(cohorts, func(cohort int) bool { return c.machine.Serves(cohort) != lastGood })
}

// serveRest serves the rest another edition. If it promotes that, it keeps the edition before for Undo.
func (c *Controller) serveRest(ctx context.Context, before, after Edition) {
	promotes, parts := after > before, c.tracker.joined() // otherwise Undo rejects the edition before
	c.promoted = make(promotion)
	slices.SortFunc(parts, func(a, b *Part) int { return a.Key.Compare(b.Key) })
	for _, p := range parts {
		p.control.Edit(ctx, func(l *pending.List) {
			e := p.editions[after]
			served := l.PinServed(e)
			if e != nil {
				l.Show(c.cfg.ViewOf(c.cfg.rest()), e)
			}
			if !promotes {
				return
			}
			p.editions[before] = served
			if e != nil {
				c.promoted.add(p.Key.Shared, l.Replaced(e))
			}
		})
	}
}

// serveCohort serves a cohort an edition, or the state of the rest if the edition is the last good.
func (c *Controller) serveCohort(ctx context.Context, cohort int, number Edition) {
	shown := c.cfg.ViewOf(cohort)
	for _, p := range c.tracker.joined() {
		view, e := p.view.Cohort(shown), p.editions[number]
		asRest := number == c.machine.State().LastGood || e == nil // nil if the part was unavailable or missing at the cut
		if !asRest {
			p.setChanges(cohort, e, view.Generation().Seq, math.MaxInt64)
		}
		p.control.Edit(ctx, func(l *pending.List) {
			after := view.Generation().Seq
			if asRest {
				l.ShowAsRest(shown)
				return
			}
			l.Show(shown, e)
			p.setChanges(cohort, e, after, view.Generation().Seq)
		})
		if asRest {
			p.setChanges(cohort, nil, 0, 0)
		}
	}
}

// setChanges records the changes of an edition for the clients of a cohort: these are sent from generations after the
// sequence number after, up to upTo. A nil edition has no changes.
func (p *Part) setChanges(cohort int, e *pending.Edition, after, upTo cache.Seq) {
	var changes []downstream.Change
	if e != nil {
		for key, names := range e.Changes {
			changes = append(changes, downstream.Change{
				Key: key, After: after, UpTo: upTo, Names: slices.Sorted(maps.Keys(names)),
			})
		}
	}
	p.c.tracker.mu.Lock()
	defer p.c.tracker.mu.Unlock()
	p.changes[cohort] = changes
}

// Compare orders keys by group. The shared part of a group is last.
func (k PartKey) Compare(o PartKey) int {
	if c := cmp.Compare(k.Group, o.Group); c != 0 || k.Shared == o.Shared {
		return c
	}
	if k.Shared {
		return 1
	}
	return -1
}
