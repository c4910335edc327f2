package rollout

import (
	"maps"
	"slices"
	"time"
)

// A driver runs a machine as a [Controller] does. It has latest, the pinned editions and a clock.
type driver struct {
	*Machine
	t   testingT
	now time.Time

	latest   content
	changed  time.Time
	changes  map[string][]time.Time // times of the pending changes, by name
	editions map[Edition]*pinnedEdition
	served   []content // content by cohort after the last Advance, the rest last

	facts Facts       // facts that do not depend on content
	busy  bool        // the judge has another part
	large func() bool // reports whether the next edition removes many resources; nil means false
	next  time.Time   // result of the last Advance
}

// A testingT is a testing.T or a rapid.T.
type testingT interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// content is the content of resources by name. Removed names are absent.
type content map[string]string

// A pinnedEdition is an edition with its content.
type pinnedEdition struct {
	content
	base content // content of the last good at the cut
	cut  time.Time
}

// newDriver returns a driver of an origin without resources.
func newDriver(t testingT, cfg Config) *driver {
	d := &driver{
		Machine: NewMachine(cfg), t: t, now: time.Unix(1e9, 0), latest: content{}, changes: make(map[string][]time.Time),
		editions: map[Edition]*pinnedEdition{0: {}},
	}
	d.facts.Complete = true
	d.drive()
	return d
}

// put changes a resource at the origin. Empty content removes it.
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

// differences returns the names in which two contents differ.
func (c content) differences(other content) (names []string) {
	all := maps.Clone(c)
	if all == nil {
		all = content{}
	}
	maps.Copy(all, other)
	for name := range all {
		if c[name] != other[name] {
			names = append(names, name)
		}
	}
	return names
}

// currentFacts returns the facts of the current content.
func (d *driver) currentFacts() Facts {
	f := d.facts
	f.Differs = len(d.latest.differences(d.editions[d.lastGood].content)) > 0
	f.Changed = d.changed
	if e := d.editions[d.edition]; e != nil {
		f.Behind = len(d.latest.differences(e.content)) > 0
		isEdited := func(name string) bool { return d.latest[name] != e.content[name] }
		f.Edited = slices.ContainsFunc(e.differences(e.base), isEdited)
	}
	return f
}

// drive advances the machine until no step is due, and records the served content.
func (d *driver) drive() {
	for range 20 {
		cut, next := d.Advance(d.now, d.currentFacts())
		if cut {
			d.pin()
			continue
		}
		if d.State().Queued && !d.busy {
			d.StartJudging(d.now)
			continue
		}
		if next.IsZero() || next.After(d.now) {
			d.next = next
			d.record()
			return
		}
	}
	d.t.Fatalf("the machine has further steps after 20 in phase %v", d.phase)
}

// pin pins latest as the next edition and resets the facts about the edition before.
func (d *driver) pin() {
	number := d.Cut(d.now, d.changed, d.large != nil && d.large())
	if d.editions[number] != nil {
		d.t.Fatalf("Cut returned the number %d twice", number)
	}
	d.editions[number] = &pinnedEdition{d.latest, d.editions[d.lastGood].content, d.now}
	d.facts.Verdict, d.facts.HaltReason, d.facts.Evidence = Verdict{}, "", Evidence{}
}

// record records the content that each cohort is served, and forgets changes that are not pending any more.
func (d *driver) record() {
	d.served = nil
	for cohort := range len(d.cfg.Stages) + 1 {
		d.served = append(d.served, d.editions[d.Serves(cohort)].content)
	}
	lastGood := d.editions[d.lastGood]
	for name, times := range d.changes {
		d.changes[name] = slices.DeleteFunc(times, func(at time.Time) bool { return !at.After(lastGood.cut) })
		if d.latest[name] == lastGood.content[name] {
			delete(d.changes, name)
		}
	}
}

// oldestPending returns the age of the oldest pending change.
func (d *driver) oldestPending() (age time.Duration) {
	for _, times := range d.changes {
		if len(times) > 0 {
			age = max(age, d.now.Sub(times[0]))
		}
	}
	return age
}

// sleep advances the clock and runs the steps that become due.
func (d *driver) sleep(duration time.Duration) {
	until := d.now.Add(duration)
	for !d.next.IsZero() && !d.next.After(until) {
		d.now = d.next
		d.drive()
	}
	d.now = until
	d.drive()
}

// expect fails unless the machine is in a phase and serves the given contents of a name, by cohort, the rest last.
func (d *driver) expect(phase Phase, name string, contents ...string) {
	d.t.Helper()
	if d.phase != phase {
		d.t.Fatalf("phase %v, want %v (halt %+v)", d.phase, phase, d.halt)
	}
	for cohort, want := range contents {
		if got := d.served[cohort][name]; got != want {
			d.t.Fatalf("phase %v: cohort %d is served %s=%q, want %q", phase, cohort, name, got, want)
		}
	}
}
