package reconcile

import (
	"iter"
	"maps"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

const (
	// reportedEvery is the interval between checks whether clients still report held names and whether they have
	// arrived.
	reportedEvery = time.Second

	// keptGrace is how long a name that an operator kept before a restart waits for a client that reports it again.
	keptGrace = 5 * time.Minute
)

// ReportsConfig configures Reports.
type ReportsConfig struct {
	Config

	// Quiet is the time after which what was not answered by name is missing.
	Quiet time.Duration

	// Complete returns when the origin will have stated all of a set, if nothing comes, and since when it can
	// have been asked; zero if that is open.
	Complete func(cache.ReportedSet) (at, asked time.Time)

	// AtOnce reports that members are known at once, so that clients report later what they hold.
	AtOnce bool

	// Again requests all sets from the origin again.
	Again func()
}

// Reports decides on the removal of resources that reconnecting clients report and that a view has never held. The
// reports are the last known set of the view (B.7). The loop of the view owns it. Each batch is a separate set: the
// names that clients still report and that the view lacks.
type Reports struct {
	*Group
	cfg       ReportsConfig
	w         *cache.Writer
	startedAt time.Time
	nextCheck time.Time // when to look
	sets      map[batch]*reportedSet

	batches int // that there were of names
}

// NewReports returns the Reports of a writer's view.
func NewReports(w *cache.Writer, cfg ReportsConfig) *Reports {
	cfg.Reported = true
	return &Reports{Group: NewGroup(cfg.Config), cfg: cfg, w: w, startedAt: time.Now(), sets: make(map[batch]*reportedSet)}
}

// A batch is what was judged of a set at one time, with a deadline of its own: whoever reports further names
// later neither prolongs nor shortens it. Of members there is one, since their reports are judged once.
type batch struct {
	of cache.ReportedSet
	n  int
}

// A reportedSet is a batch as the content of a set.
type reportedSet struct {
	*Set
	of    cache.ReportedSet
	all   *Reports
	still map[string]struct{} // names that clients still report
}

// placeholder stands for a resource of which only the name is known.
var placeholder = new(wire.Resource)

// Get implements Content.
func (b *reportedSet) Get(name string) *wire.Resource {
	_, reported := b.still[name]
	if reported || b.byName[name].state == kept && time.Since(b.all.startedAt) < keptGrace {
		return placeholder
	}
	return nil
}

// Names implements Content: nothing needs what is only reported.
func (b *reportedSet) Names() iter.Seq[string] { return func(func(string) bool) {} }

// Count implements Content.
func (b *reportedSet) Count() int { return 0 }

// Complete implements Content. A batch is judged when the set is complete, and only a second look asks anew.
func (b *reportedSet) Complete() (at time.Time, ok bool) {
	if !b.secondLook {
		return time.Time{}, true
	}
	at, _ = b.all.cfg.Complete(b.of)
	return at, !at.IsZero()
}

// Apply implements Content. It does nothing: publish informs clients.
func (b *reportedSet) Apply(wire.Update) (c cache.Change) { return c }

// Confirm decides about what was reported of a set up to a time, now that the set is complete. Of members, it
// has to be called before the view says that they are confirmed.
func (d *Reports) Confirm(of cache.ReportedSet, upTo, now time.Time) {
	lacking := d.w.EvaluateReports(of, upTo)
	for b, s := range d.sets {
		if b.of == of {
			maps.DeleteFunc(lacking, func(name string, _ struct{}) bool { return s.Suspects(name) })
		}
	}
	if len(lacking) == 0 {
		return
	}
	b := batch{of: of}
	if of.Kind == cache.ByName {
		d.batches++
		b.n = d.batches
	}
	d.in(b).Infer(maps.Keys(lacking), true)
	d.decide(now)
}

func (d *Reports) in(b batch) *reportedSet {
	s := d.sets[b]
	if s == nil {
		typeURL, _, _ := cache.SplitCollection(b.of.Key)
		s = &reportedSet{of: b.of, all: d}
		s.Set = d.NewSet(typeURL, "", s)
		d.sets[b] = s
	}
	return s
}

// Stated records that the origin has removed names of a confirmed set.
func (d *Reports) Stated(of cache.ReportedSet, names iter.Seq[string]) {
	if len(d.sets) == 0 {
		return
	}
	for b, s := range d.sets {
		if b.of == of {
			for name := range names {
				delete(s.byName, name)
			}
		}
	}
	d.count()
	d.publish(of)
}

// judge decides about reports that are not judged when a set is confirmed. It returns when it is time for the
// next.
func (d *Reports) judge(now time.Time) (next time.Time) {
	for of, first := range d.w.Reported() {
		switch {
		case first.IsZero() || of.Kind == cache.Wildcard && !d.cfg.AtOnce:
			continue
		case of.Kind == cache.Wildcard && d.w.Generation().Type(of.Key).Phase < cache.Confirmed:
			continue // nothing was read yet
		}
		_, asked := d.cfg.Complete(of)
		if asked.IsZero() {
			continue
		}
		if due := later(first, asked).Add(d.cfg.Quiet); now.Before(due) {
			next = Earlier(next, due)
		} else {
			d.Confirm(of, now.Add(-d.cfg.Quiet), now)
		}
	}
	return next
}

// Check runs the decisions that are due and returns the time of the next call.
func (d *Reports) Check(now time.Time) (next time.Time) {
	next = d.judge(now)
	switch {
	case len(d.sets) == 0:
		return next
	case now.Before(d.nextCheck):
		return Earlier(next, d.nextCheck)
	}
	d.nextCheck = now.Add(reportedEvery)
	for _, s := range d.sets {
		for name := range s.byName {
			if d.originAnswered(s.of, name) {
				s.Mention(name, now)
			}
		}
	}
	for _, s := range d.sets {
		if s.startSecondLook(now) && s.of.Kind == cache.Wildcard { // names are asked for all the time
			d.cfg.Again()
		}
		if s.secondLook && s.Confirmed(now) {
			s.Infer(maps.Keys(s.byName), false)
		}
	}
	d.decide(now)
	return Earlier(next, d.nextCheck)
}

// decide runs all possible decisions and makes the view withhold the remaining names.
func (d *Reports) decide(now time.Time) {
	d.refresh()
	d.Decide(now)
	published := make(map[cache.ReportedSet]bool)
	for b, s := range d.sets {
		if len(s.byName) == 0 {
			delete(d.sets, b)
			d.Drop(s.Set)
		}
		published[b.of] = true
	}
	for of := range published {
		d.publish(of)
	}
}

// refresh updates the names that clients still report.
func (d *Reports) refresh() {
	still := make(map[cache.ReportedSet]names)
	for _, s := range d.sets {
		if still[s.of] == nil {
			still[s.of] = d.w.StillReported(s.of)
		}
		s.still = still[s.of]
	}
}

// publish makes the view withhold the remaining names of a set.
func (d *Reports) publish(of cache.ReportedSet) {
	staying := make(names)
	for b, s := range d.sets {
		if b.of == of {
			for name := range s.byName {
				staying[name] = struct{}{}
			}
		}
	}
	d.w.Withhold(of, staying)
}

// originAnswered reports whether the origin has stated that a reported name exists, or that it does not.
func (d *Reports) originAnswered(of cache.ReportedSet, name string) bool {
	t := d.w.Generation().Type(of.Key)
	if name == cache.AllNames {
		return t.Wildcard.Count() > 0
	}
	n := d.w.View().Find(of.Key, []string{name})[0]
	switch {
	case n == nil:
		return false
	case of.Kind == cache.Wildcard:
		return t.Wildcard.Get(n).Present()
	}
	e, _ := t.Lookup(n)
	return e != nil
}

// Operate carries out a command of an operator, and returns the holds that it is about.
func (d *Reports) Operate(c Command, now time.Time) []Hold {
	if c.Do != List {
		d.refresh()
		defer d.decide(now)
	}
	return d.Group.Operate(c, now)
}

// Keep records that an operator kept a name of a type before a restart.
func (d *Reports) Keep(typeURL, name string) {
	b := batch{of: cache.ReportedSet{Key: typeURL, Kind: cache.ByName}}
	if glob, is := wire.GlobOf(name); is {
		b.of = cache.ReportedSet{Key: cache.Collection(typeURL, glob), Kind: cache.Wildcard}
	} else if wire.FullState(typeURL) {
		b.of.Kind = cache.Wildcard
	}
	d.in(b).Keep(name)
}
