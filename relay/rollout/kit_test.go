package rollout

import (
	"maps"
	"slices"
	"time"
)

// A driver runs a machine as a relay does. It holds latest, the pinned editions and the time.
type driver struct {
	*Machine
	t   tester
	now time.Time

	latest   content
	changed  time.Time
	changes  map[string][]time.Time // times of changes, by name, whose content is not the last good
	editions map[Edition]*pinned
	served   []content // content by cohort after the last Advance, the rest last

	facts Facts       // facts that do not derive from content
	large func() bool // whether the next edition removes many resources; nil is never
	next  time.Time   // when Advance is due at the latest
}

// A tester is a testing.T or a rapid.T.
type tester interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// content maps pending names to content. Removed names are absent.
type content map[string]string

// A pinned is an edition.
type pinned struct {
	content
	base content // the last good when it was cut
	cut  time.Time
}

func newDriver(t tester, cfg Config) *driver {
	d := &driver{
		Machine: NewMachine(cfg), t: t, now: time.Unix(1e9, 0), latest: content{}, changes: make(map[string][]time.Time),
		editions: map[Edition]*pinned{0: {}},
	}
	d.facts.Complete = true
	d.drive()
	return d
}

// put changes a name at the origin; empty content removes it.
func (d *driver) put(name, text string) {
	if d.latest[name] == text {
		return
	}
	d.latest = maps.Clone(d.latest)
	if d.latest[name] = text; text == "" {
		delete(d.latest, name)
	}
	d.changed = d.now
	d.changes[name] = append(d.changes[name], d.now)
	d.drive()
}

// differs returns the names that differ between two contents.
func (c content) differs(from content) (names []string) {
	all := maps.Clone(c)
	if all == nil {
		all = content{}
	}
	maps.Copy(all, from)
	for name := range all {
		if c[name] != from[name] {
			names = append(names, name)
		}
	}
	return names
}

// look returns the current facts.
func (d *driver) look() Facts {
	f := d.facts
	f.Differs = len(d.latest.differs(d.editions[d.lastGood].content)) > 0
	f.Changed = d.changed
	if e := d.editions[d.edition]; e != nil {
		f.Behind = len(d.latest.differs(e.content)) > 0
		f.Edited = slices.ContainsFunc(e.differs(e.base), func(name string) bool { return d.latest[name] != e.content[name] })
	}
	return f
}

// drive advances the machine until no step is due.
func (d *driver) drive() {
	for range 20 {
		cut, next := d.Advance(d.now, d.look())
		if cut {
			d.cut()
			continue
		}
		if next.IsZero() || next.After(d.now) {
			d.next = next
			d.show()
			return
		}
	}
	d.t.Fatalf("the machine does not come to rest: %v", d.phase)
}

// cut pins latest.
func (d *driver) cut() {
	number := d.Cut(d.now, d.changed, d.large != nil && d.large())
	if d.editions[number] != nil {
		d.t.Fatalf("edition %d is cut twice", number)
	}
	d.editions[number] = &pinned{d.latest, d.editions[d.lastGood].content, d.now}
	d.facts.Verdict, d.facts.Halt, d.facts.Evidence = Verdict{}, "", Evidence{}
}

// show records the content that each cohort is served and the pending changes.
func (d *driver) show() {
	d.served = nil
	for cohort := range len(d.cfg.Stages) + 1 {
		d.served = append(d.served, d.editions[d.Serves(cohort)].content)
	}
	good := d.editions[d.lastGood]
	for name, times := range d.changes {
		d.changes[name] = slices.DeleteFunc(times, func(at time.Time) bool { return !at.After(good.cut) })
		if d.latest[name] == good.content[name] {
			delete(d.changes, name)
		}
	}
}

// waits returns the age of the oldest pending change.
func (d *driver) waits() (longest time.Duration) {
	for _, times := range d.changes {
		if len(times) > 0 {
			longest = max(longest, d.now.Sub(times[0]))
		}
	}
	return longest
}

// pass advances the time and runs the steps that become due.
func (d *driver) pass(wait time.Duration) {
	until := d.now.Add(wait)
	for !d.next.IsZero() && !d.next.After(until) {
		d.now = d.next
		d.drive()
	}
	d.now = until
	d.drive()
}

// expect fails unless the machine is in a phase and serves cohorts, the rest last, a name's contents.
func (d *driver) expect(phase Phase, name string, contents ...string) {
	d.t.Helper()
	if d.phase != phase {
		d.t.Fatalf("the phase is %v, want %v (%+v)", d.phase, phase, d.halt)
	}
	for cohort, want := range contents {
		if got := d.served[cohort][name]; got != want {
			d.t.Fatalf("in phase %v, cohort %d is served %s=%q, want %q", phase, cohort, name, got, want)
		}
	}
}
