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

// A Part is what one writer keeps of an origin's state: that of a node group, or what the group shares with others. An
// edition is one cut of all parts.
type Part struct {
	c       *Controller
	Key     PartKey
	view    *cache.View // of the rest
	source  int
	control *upstream.Control

	waiting atomic.Pointer[cache.Waiting]

	// Owned by Run once the part has joined.
	editions  map[Edition]*cache.Edition // that may be shown again, or are compared with latest
	compared  Edition                    // that latest is compared with
	unsettled time.Time                  // since when something waits for the origin to confirm what it has; zero if it does not
	away      bool                       // it has for awayAfter
	distrusts bool                       // its views distrust versions reported by clients

	// By cohort, what showing the edition has changed for its clients. Guarded by Controller.mu.
	changes [MaxStages + 1][]downstream.Change
}

// A PartKey names a part over restarts.
type PartKey struct {
	Group  string // the key of the node group
	Shared bool   // what the group shares with others
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

// SetWaiting records the state of latest. It does not block: it is the [cache.Config.Waiting] of the part's source.
func (p *Part) SetWaiting(now cache.Waiting) {
	p.waiting.Store(&now)
	p.c.Poke()
}

// Join has the part take part in rollouts. Its view is that of the rest, and the loop of the control writes the source.
func (p *Part) Join(view *cache.View, source int, control *upstream.Control) {
	p.view, p.source, p.control = view, source, control
	p.c.mu.Lock()
	p.c.parts = append(p.c.parts, p)
	p.c.mu.Unlock()
	p.c.Poke()
}

// Leave ends that.
func (p *Part) Leave() {
	p.c.mu.Lock()
	p.c.parts = slices.DeleteFunc(p.c.parts, func(other *Part) bool { return other == p })
	p.c.mu.Unlock()
	p.c.Poke()
}

// joined returns the parts.
func (c *Controller) joined() []*Part {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.parts)
}

// has reports whether an edition changes something of the part.
func (p *Part) has(e Edition) bool { return p.editions[e] != nil && len(p.editions[e].Changes) > 0 }

// A description is the summary of an edition for operators.
type description struct {
	id        string
	sum       wire.Digest // of all changes: equal ones have the same, also after a restart
	resources int
	large     bool
}

// describe returns the description of an edition.
func describe(changes Changes) (d description) {
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

// cut pins latest of parts as the next edition.
func (c *Controller) cut(ctx context.Context, now time.Time, f Facts, parts []*Part) {
	number, large := c.machine.Next(), false
	for _, p := range parts {
		p.control.Edit(ctx, func(w *cache.Writer) {
			e := w.Pin()
			w.Compare(e)
			p.editions[number], p.compared = e, number
		})
		large = large || p.editions[number] != nil && p.editions[number].Large
	}
	c.machine.Cut(now, f.Changed, large)
	c.about = describe(c.changesOf(number))
	c.about.large = large
	c.inquiry = inquiry{failing: c.failing} // an edition that is superseded does not mend the check
	c.observation = observation{cohorts: c.newCohorts()}
	c.countAnew()
}

// changesOf returns what an edition changes.
func (c *Controller) changesOf(e Edition) Changes {
	all := make(Changes)
	for _, p := range c.joined() {
		if of := p.editions[e]; of != nil && len(of.Changes) > 0 {
			all[p.Key] = of.Changes
		}
	}
	return all
}

// keepEditions drops editions that are not needed any more. A promoted edition is never shown again, but Undo rejects it.
func (c *Controller) keepEditions() {
	before, any := c.machine.Before()
	for _, p := range c.joined() {
		for e, is := range p.editions {
			switch {
			case e == c.machine.Edition() && c.machine.Phase() != Current, any && e == before:
			case e == c.machine.Good():
				p.editions[e] = &cache.Edition{Changes: is.Changes}
			case !slices.Contains(c.served[:], e):
				delete(p.editions, e)
			}
		}
	}
}

// compare has latest compared with the edition that is on its way, or was rejected.
func (c *Controller) compare(ctx context.Context) {
	var with Edition
	if c.machine.decided() {
		with = c.machine.Edition()
	}
	for _, p := range c.joined() {
		if p.compared != with {
			p.control.Edit(ctx, func(w *cache.Writer) { w.Compare(p.editions[with]) })
			p.compared = with
		}
	}
}

// serve shows each cohort the edition that the machine decided, the rest first: a promotion changes only the rest, and
// after a rollback cohorts are served the same as the rest. It reports whether anything has changed.
func (c *Controller) serve(ctx context.Context, now time.Time) (changed bool) {
	rest, good := len(c.cfg.Stages), c.served[len(c.cfg.Stages)]
	left := make(map[Edition]int) // by how many cohorts
	var moves []int
	for cohort := rest; cohort >= 0; cohort-- {
		was, is := c.served[cohort], c.machine.Serves(cohort)
		if was == is {
			continue
		}
		if was > is || was != good { // it does not follow those before it
			left[was] = max(left[was], cohort+1)
		}
		moves = append(moves, cohort)
	}
	leaves := c.leave(now, left)
	if leaves || slices.ContainsFunc(c.joined(), func(p *Part) bool { return !p.distrusts }) {
		c.distrust()
	}
	if c.shows(moves) {
		c.know()
	}
	c.reach(func(cohort int) bool { // before a client can answer
		return c.served[cohort] != good || c.machine.Serves(cohort) != c.machine.Good()
	})
	for _, cohort := range moves {
		was, is := c.served[cohort], c.machine.Serves(cohort)
		if cohort == rest {
			c.promote(ctx, was, is)
		} else {
			c.show(ctx, cohort, is)
		}
		c.served[cohort] = is
	}
	c.compare(ctx)
	c.keepEditions()
	c.reach(func(cohort int) bool { return c.served[cohort] != c.machine.Good() })
	if leaves {
		c.cfg.Decided(ctx)
	}
	return len(moves) > 0
}

// shows reports whether any of the cohorts is to be served an edition.
func (c *Controller) shows(cohorts []int) bool {
	return slices.ContainsFunc(cohorts, func(cohort int) bool { return c.machine.Serves(cohort) != c.machine.Good() })
}

// reach records how many cohorts are served something else than the rest: those up to the last one for which differs is true.
func (c *Controller) reach(differs func(cohort int) bool) {
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

// promote shows the rest another edition, and keeps what it was served, for Undo.
func (c *Controller) promote(ctx context.Context, was, is Edition) {
	for _, p := range c.joined() {
		p.control.Edit(ctx, func(w *cache.Writer) {
			before := w.PinServed()
			if e := p.editions[is]; e != nil {
				w.Show(len(c.cfg.Stages), e)
			}
			if is > was { // else was is what Undo rejects
				p.editions[was] = before
			}
		})
	}
}

// show shows a cohort an edition, or what the rest is served.
func (c *Controller) show(ctx context.Context, cohort int, is Edition) {
	for _, p := range c.joined() {
		view, e := p.view.Cohort(cohort), p.editions[is]
		good := is == c.machine.Good() || e == nil // the part was away when the edition was cut, or not there
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

// setChanges records what showing an edition changes for the clients of a cohort.
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
