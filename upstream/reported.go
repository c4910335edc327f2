package upstream

import (
	"cmp"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

const (
	// reportedEvery is how often it is looked whether clients still report what is held back, and whether it came.
	reportedEvery = time.Second

	// keptGrace is how long what an operator had kept before a restart waits for a client that reports it again.
	keptGrace = 5 * time.Minute
)

// reported decides about the removal of what returning clients hold and a view has never known: what they report is its last
// known set (B.7). It belongs to the loop of the view. Each set has removals of its own, from the names that clients still
// report and that the set lacks.
type reported struct {
	w        *cache.Writer
	wait     time.Duration // for which large removals are held
	quiet    time.Duration // after which what was not answered by name is missing
	log      *slog.Logger
	counters *counters

	// complete returns when the origin will have said all of a set, if nothing comes, and since when it can have been asked;
	// zero if that is open.
	complete func(cache.ReportedSet) (at, asked time.Time)

	// atOnce reports that members are known at once, so that clients report later what they hold.
	atOnce bool

	// again has the origin asked for everything.
	again func()

	began time.Time
	at    time.Time // when to look
	sets  map[batch]*removals

	batches int // that there were of names
}

// reports returns what decides about reports for the view of a mirror.
func (v *viewSync) reports() *reported {
	d := &reported{
		w: v.w, wait: v.cfg.MassDeleteHold, quiet: min(v.cfg.ColdWait, confirmMax), log: v.log, counters: &v.session.counters,
		again: v.resync, began: time.Now(), sets: make(map[batch]*removals),
	}
	d.complete = func(of cache.ReportedSet) (at, asked time.Time) {
		if g, is := v.guardOf(of); is {
			if at, open := v.confirmedAt(g); open {
				return at, v.lines[g.role].openedAt
			}
		}
		return time.Time{}, time.Time{}
	}
	return d
}

// guardOf returns the set of which something was reported, if the mirror follows it.
func (v *viewSync) guardOf(of cache.ReportedSet) (g guarded, is bool) {
	typeURL, glob, isCollection := cache.SplitCollection(of.Key)
	s := v.subs[typeURL]
	switch {
	case s == nil:
		return guarded{}, false
	case !isCollection:
		return s.guards()[of.Kind], true
	}
	c := s.collections[glob]
	if c == nil {
		return guarded{}, false
	}
	return c.guard(), true
}

// A batch is what was judged of a set at one time, with a deadline of its own: whoever reports further names later neither
// prolongs nor shortens it. Of members there is one, since their reports are judged once.
type batch struct {
	of cache.ReportedSet
	n  int
}

// confirm decides about what was reported of a set up to a time, now that all of the set is known. Of members, it has to be
// called before the view says that they are confirmed.
func (d *reported) confirm(of cache.ReportedSet, upTo, now time.Time) {
	lacking := d.w.Judge(of, upTo)
	for b, r := range d.sets {
		if b.of == of {
			maps.DeleteFunc(lacking, func(name string, _ struct{}) bool { return r.knows(name) })
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
	d.in(b).infer(lacking, true)
	d.decide(b, d.w.StillReported(of), true, now)
}

func (d *reported) in(b batch) *removals {
	if d.sets[b] == nil {
		d.sets[b] = new(removals)
	}
	return d.sets[b]
}

// stated takes that the origin has removed names of a set that is confirmed.
func (d *reported) stated(of cache.ReportedSet, names iter.Seq[string]) {
	if len(d.sets) == 0 {
		return
	}
	for b, r := range d.sets {
		if b.of == of {
			for name := range names {
				r.forget(name)
			}
			r.count(&d.counters.holding)
		}
	}
	d.publish(of)
}

// judge decides about reports that are not judged when a set is confirmed. It returns when it is time for the next.
func (d *reported) judge(now time.Time) (next time.Time) {
	for of, first := range d.w.Reported() {
		switch {
		case first.IsZero() || of.Kind == cache.Wildcard && !d.atOnce:
			continue
		case of.Kind == cache.Wildcard && d.w.Generation().Type(of.Key).Phase < cache.Confirmed:
			continue // nothing was read yet
		}
		_, asked := d.complete(of)
		if asked.IsZero() {
			continue
		}
		if due := later(first, asked).Add(d.quiet); now.Before(due) {
			next = earlier(next, due)
		} else {
			d.confirm(of, now.Add(-d.quiet), now)
		}
	}
	return next
}

// look does what it is time for, and returns when to look again.
func (d *reported) look(now time.Time) (next time.Time) {
	next = d.judge(now)
	if len(d.sets) == 0 {
		return next
	}
	if now.Before(d.at) {
		return earlier(next, d.at)
	}
	d.at = now.Add(reportedEvery)
	still := make(map[cache.ReportedSet]map[string]struct{})
	for _, b := range d.inOrder() {
		if still[b.of] == nil {
			still[b.of] = d.w.StillReported(b.of)
		}
		d.decide(b, still[b.of], d.known(b.of, now), now)
	}
	return earlier(next, d.at)
}

// known reports whether the origin has said all of a set.
func (d *reported) known(of cache.ReportedSet, now time.Time) bool {
	at, _ := d.complete(of)
	return !at.IsZero() && !now.Before(at)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func (d *reported) inOrder() []batch {
	return slices.SortedFunc(maps.Keys(d.sets), func(a, b batch) int {
		return cmp.Or(cmp.Compare(a.of.Key, b.of.Key), int(a.of.Kind-b.of.Kind), a.n-b.n)
	})
}

// some stands for a resource of which only the name is known.
var some = new(wire.Resource)

// screening returns what is to be known to decide about a batch: it holds the names that clients still report.
func (d *reported) screening(r *removals, still map[string]struct{}, confirmed bool, now time.Time) screening {
	never := func(string) bool { return false }
	return screening{
		confirmed: confirmed,
		has: func(name string) *wire.Resource {
			_, reported := still[name]
			if _, stays := r.kept[name]; reported || stays && now.Sub(d.began) < keptGrace {
				return some
			}
			return nil
		},
		needed: never, mayBeNeeded: never, wait: d.wait, now: now,
	}
}

// decide decides what can be decided about a batch of names, some of which clients still report, of a set that is confirmed or
// is not.
func (d *reported) decide(b batch, still map[string]struct{}, confirmed bool, now time.Time) {
	r := d.sets[b]
	s := d.screening(r, still, confirmed, now)
	for name := range r.staying() {
		if d.answered(b.of, name) {
			r.mention(name, s)
		}
	}
	if look, _ := r.due(now); look && b.of.Kind == cache.Wildcard { // names are asked for all the time
		d.again()
		s.confirmed = d.known(b.of, now)
	}
	if r.looking && s.confirmed {
		for name := range r.held {
			r.suspect(name, removal{}, true)
		}
	}
	typeURL := typeOf(b.of.Key)
	v := r.judge(typeURL, 0, s)
	d.report(typeURL, r, v, now)
	if r.none() {
		delete(d.sets, b)
	}
	d.publish(b.of)
}

func typeOf(key string) string {
	typeURL, _, _ := cache.SplitCollection(key)
	return typeURL
}

// answered reports whether the origin has said of a name that was reported that it is there, or is not.
func (d *reported) answered(of cache.ReportedSet, name string) bool {
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

// report logs and counts what was decided.
func (d *reported) report(typeURL string, r *removals, v verdict, now time.Time) {
	url := slog.String("type_url", typeURL)
	if v.held > 0 {
		d.counters.held.Add(int64(v.held))
		d.log.Error("the origin lacks much of what returning clients hold: they are not told that it is gone",
			url, slog.Int("held", len(r.held)), slog.Duration("hold", d.wait))
	}
	if n := len(v.removed); n > 0 {
		d.counters.applied.Add(int64(n))
		d.log.Warn("returning clients are told that resources are gone of which the origin has never spoken",
			url, slog.Int("removed", n), slog.Int("released", v.released))
	}
	r.alarm(typeURL, d.log, now)
	r.count(&d.counters.holding)
}

// publish has the view withhold what stays of a set.
func (d *reported) publish(of cache.ReportedSet) {
	staying := make(map[string]struct{})
	for b, r := range d.sets {
		if b.of == of {
			maps.Copy(staying, r.staying())
		}
	}
	d.w.Withhold(of, staying)
}

// end forgets all that is held back.
func (d *reported) end() {
	for _, r := range d.sets {
		clear(r.held)
		r.count(&d.counters.holding)
	}
}

// dockets returns what operators may decide on.
func (d *reported) dockets() (all []docket) {
	for _, b := range d.inOrder() {
		all = append(all, docket{d.sets[b], func() []Hold { return d.holds(b) }, func(chosen []Hold, keep bool, now time.Time) {
			d.decided(b, chosen, keep, now)
		}})
	}
	return all
}

func (d *reported) holds(b batch) []Hold {
	holds := d.sets[b].holds(typeOf(b.of.Key), time.Time{})
	for i := range holds {
		holds[i].Reported = true
	}
	return holds
}

// decided carries out what an operator decided on a batch.
func (d *reported) decided(b batch, chosen []Hold, keep bool, now time.Time) {
	for _, hold := range chosen {
		if keep {
			d.counters.discarded.Add(int64(len(hold.Names)))
			d.log.Warn("removals that were held back were discarded: clients keep the resources until the origin says something of them",
				slog.String("type_url", hold.TypeURL), slog.Int("kept", len(hold.Names)))
		}
	}
	d.decide(b, d.w.StillReported(b.of), false, now)
}

// keep notes that operators had a name of a type kept before a restart.
func (d *reported) keep(typeURL, name string) {
	b := batch{of: cache.ReportedSet{Key: typeURL, Kind: cache.ByName}}
	if glob, is := wire.GlobOf(name); is {
		b.of = cache.ReportedSet{Key: cache.Collection(typeURL, glob), Kind: cache.Wildcard}
	} else if wire.FullState(typeURL) {
		b.of.Kind = cache.Wildcard
	}
	put(&d.in(b).kept, name, removal{})
}
