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

	waiting atomic.Pointer[cache.Waiting]

	// Owned by Run once the part has joined.
	editions       map[Edition]*cache.Edition // editions that may be shown again or are compared with latest
	compared       Edition                    // the edition that latest is compared with
	unsettledSince time.Time                  // start of the wait for the origin to confirm its state; zero without a wait
	unavailable    bool                       // it has waited for unavailableAfter
	distrusts      bool                       // its views distrust versions reported by clients

	// changes of the edition for the clients of each cohort. Guarded by Controller.mu.
	changes [MaxStages + 1][]downstream.Change
}

// A PartKey identifies a part across restarts.
type PartKey struct {
	Group  string // the key of the node group
	Shared bool   // the part that the group shares with others
}

// NewPart returns a part that has not joined yet.
func (c *Controller) NewPart(key PartKey) *Part {
	p := &Part{c: c, Key: key, editions: make(map[Edition]*cache.Edition)}
	p.waiting.Store(new(cache.Waiting))
	if c.restored != nil {
		p.editions[restoredEdition] = &cache.Edition{Changes: c.restored.Changes[key]}
	}
	return p
}

// SetWaiting records the state of latest. It does not block. Its user is [cache.Config.Waiting] of the part's source.
func (p *Part) SetWaiting(now cache.Waiting) {
	p.waiting.Store(&now)
	p.c.Poke()
}

// Join adds the part to rollouts. view is the view of the rest. The loop of control writes the source.
func (p *Part) Join(view *cache.View, source int, control *upstream.Control) {
	p.view, p.source, p.control = view, source, control
	p.c.mu.Lock()
	p.c.parts = append(p.c.parts, p)
	p.c.mu.Unlock()
	p.c.Poke()
}

// Leave removes the part from rollouts.
func (p *Part) Leave() {
	p.c.mu.Lock()
	p.c.parts = slices.DeleteFunc(p.c.parts, func(other *Part) bool { return other == p })
	p.c.mu.Unlock()
	p.c.Poke()
}

// joined returns the parts that take part in rollouts.
func (c partition) joined() []*Part {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.parts)
}

// has reports whether an edition changes something of the part.
func (p *Part) has(e Edition) bool { return p.editions[e] != nil && len(p.editions[e].Changes) > 0 }

// A summary describes an edition for operators.
type summary struct {
	id        string
	sum       wire.Digest // digest of all changes; equal changes have equal digests, also after a restart
	resources int
	large     bool
}

// summarize returns the summary of an edition.
func summarize(changes Changes) (d summary) {
	sum := sha256.New()
	for _, key := range slices.SortedFunc(maps.Keys(changes), PartKey.Compare) {
		for _, typ := range slices.Sorted(maps.Keys(changes[key])) {
			names := changes[key][typ]
			d.resources += len(names)
			for _, name := range slices.Sorted(maps.Keys(names)) {
				digest := names[name]
				sum.Write([]byte(key.Group + "\x00" + typ + "\x00" + name + "\x00"))
				sum.Write(digest[:])
			}
		}
	}
	sum.Sum(d.sum[:0])
	d.id = hex.EncodeToString(d.sum[:4])
	return d
}

// cutEdition pins latest of parts as the next edition.
func (c partition) cutEdition(ctx context.Context, now time.Time, f Facts, parts []*Part) {
	number, large := c.machine.State().Next, false
	for _, p := range parts {
		p.control.Edit(ctx, func(w *cache.Writer) {
			e := w.Pin()
			w.Compare(e)
			p.editions[number], p.compared = e, number
		})
		large = large || p.editions[number] != nil && p.editions[number].Large
	}
	c.machine.Cut(now, f.Changed, large)
	c.edition = summarize(c.changesOf(number))
	c.edition.large = large
	c.checkState = checkState{failingSince: c.failingSince} // a new edition does not end a failure of the check
	c.observation = observation{cohorts: c.observer().newCohorts()}
	c.observer().resetSignals()
}

// changesOf returns the changes of an edition.
func (c partition) changesOf(e Edition) Changes {
	all := make(Changes)
	for _, p := range c.joined() {
		if of := p.editions[e]; of != nil && len(of.Changes) > 0 {
			all[p.Key] = of.Changes
		}
	}
	return all
}

// dropUnusedEditions drops editions that are not needed any more. Of the last good it keeps the changes, for Undo.
func (c partition) dropUnusedEditions() {
	m := c.machine.State()
	for _, p := range c.joined() {
		for e, is := range p.editions {
			switch {
			case e == m.Edition && m.Phase != Current, m.Previous != nil && e == *m.Previous:
			case e == m.LastGood:
				p.editions[e] = &cache.Edition{Changes: is.Changes}
			case !slices.Contains(c.served[:], e):
				delete(p.editions, e)
			}
		}
	}
}

// compareLatest makes the writers compare latest with the edition that is in progress or was rejected.
func (c partition) compareLatest(ctx context.Context) {
	var with Edition
	if m := c.machine.State(); m.Phase.hasEdition() {
		with = m.Edition
	}
	for _, p := range c.joined() {
		if p.compared != with {
			p.control.Edit(ctx, func(w *cache.Writer) { w.Compare(p.editions[with]) })
			p.compared = with
		}
	}
}

// serve shows each cohort the edition that the machine selects. The rest comes first: a promotion changes only the
// rest, and after a rollback all cohorts are served the same. It returns whether anything has changed.
func (c partition) serve(ctx context.Context, now time.Time) (changed bool) {
	rest, good := len(c.cfg.Stages), c.served[len(c.cfg.Stages)]
	withdrawn := make(map[Edition]int) // number of cohorts by withdrawn edition
	var moves []int
	for cohort := rest; cohort >= 0; cohort-- {
		was, is := c.served[cohort], c.machine.Serves(cohort)
		if was == is {
			continue
		}
		if was > is || was != good { // the new edition does not contain the old one
			withdrawn[was] = max(withdrawn[was], cohort+1)
		}
		moves = append(moves, cohort)
	}
	recorded := c.rejections().recordWithdrawn(now, withdrawn)
	if recorded || slices.ContainsFunc(c.joined(), func(p *Part) bool { return !p.distrusts }) {
		c.rejections().distrust()
	}
	if c.anyServedEdition(moves) {
		c.observer().addAcceptedClients()
	}
	lastGood := c.machine.State().LastGood
	c.setReached(func(cohort int) bool { // before a client can answer
		return c.served[cohort] != good || c.machine.Serves(cohort) != lastGood
	})
	for _, cohort := range moves {
		was, is := c.served[cohort], c.machine.Serves(cohort)
		if cohort == rest {
			c.showRest(ctx, was, is)
		} else {
			c.showCohort(ctx, cohort, is)
		}
		c.served[cohort] = is
	}
	c.compareLatest(ctx)
	c.dropUnusedEditions()
	c.setReached(func(cohort int) bool { return c.served[cohort] != lastGood })
	if recorded {
		c.cfg.Decided(ctx)
	}
	return len(moves) > 0
}

// anyServedEdition reports whether any of the cohorts is to be served another edition than the last good.
func (c partition) anyServedEdition(cohorts []int) bool {
	lastGood := c.machine.State().LastGood
	return slices.ContainsFunc(cohorts, func(cohort int) bool { return c.machine.Serves(cohort) != lastGood })
}

// setReached records the number of cohorts up to the last one for which differs returns true.
func (c partition) setReached(differs func(cohort int) bool) {
	reached := 0
	for cohort := range c.cfg.Stages {
		if differs(cohort) {
			reached = cohort + 1
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reached != reached && c.signals != nil {
		c.signals.BeginStage()
	}
	c.reached = reached
}

// showRest shows the rest another edition and keeps the old one for Undo.
func (c partition) showRest(ctx context.Context, was, is Edition) {
	for _, p := range c.joined() {
		p.control.Edit(ctx, func(w *cache.Writer) {
			before := w.PinServed()
			if e := p.editions[is]; e != nil {
				w.Show(len(c.cfg.Stages), e)
			}
			if is > was { // otherwise Undo rejects was
				p.editions[was] = before
			}
		})
	}
}

// showCohort shows a cohort an edition, or the same state as the rest.
func (c partition) showCohort(ctx context.Context, cohort int, is Edition) {
	for _, p := range c.joined() {
		view, e := p.view.Cohort(cohort), p.editions[is]
		good := is == c.machine.State().LastGood || e == nil // the part was unavailable or missing at the cut
		if !good {
			p.setChanges(cohort, e, view.Generation().Seq, math.MaxInt64)
		}
		p.control.Edit(ctx, func(w *cache.Writer) {
			after := view.Generation().Seq
			if good {
				w.ShowAs(cohort, len(c.cfg.Stages))
				return
			}
			w.Show(cohort, e)
			p.setChanges(cohort, e, after, view.Generation().Seq)
		})
		if good {
			p.setChanges(cohort, nil, 0, 0)
		}
	}
}

// setChanges records the changes of an edition for the clients of a cohort.
func (p *Part) setChanges(cohort int, e *cache.Edition, after, upTo cache.Seq) {
	var changes []downstream.Change
	if e != nil {
		for key, names := range e.Changes {
			changes = append(changes, downstream.Change{Key: key, After: after, UpTo: upTo, Names: slices.Sorted(maps.Keys(names))})
		}
	}
	p.c.mu.Lock()
	p.changes[cohort] = changes
	p.c.mu.Unlock()
}

// Compare orders parts by their groups.
func (k PartKey) Compare(o PartKey) int {
	if c := cmp.Compare(k.Group, o.Group); c != 0 || k.Shared == o.Shared {
		return c
	}
	if k.Shared {
		return 1
	}
	return -1
}
