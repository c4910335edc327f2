package rollout

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// three returns a driver with two stages of 10 minutes and the rest, and with content that all are served.
func three(t *testing.T, cfg Config) *driver {
	if cfg.Stages == nil {
		cfg.Stages = stages(t, "id=canary 10m, 25% 10m")
	}
	d := newDriver(t, cfg)
	d.put("a", "1")
	d.put("b", "1")
	d.cut()
	d.PromoteAll(d.now)
	d.drive()
	d.expect(Current, "a", "1", "1", "1")
	return d
}

func TestRolloutGoesFromStageToStage(t *testing.T) {
	d := three(t, Config{})
	d.put("a", "2")
	d.expect(Gathering, "a", "1", "1", "1")
	d.pass(time.Second)
	d.put("b", "2")
	d.pass(quietTime - 1)
	d.expect(Gathering, "b", "1", "1", "1")
	d.pass(1)
	d.expect(Rolling, "a", "2", "1", "1")
	d.expect(Rolling, "b", "2", "1", "1")
	d.pass(10 * time.Minute)
	d.expect(Rolling, "a", "2", "2", "1")
	d.pass(10 * time.Minute)
	d.expect(Current, "a", "2", "2", "2")
	if !d.State().Unobserved {
		t.Error("no client subscribes to the changes, but the edition is not reported as unobserved")
	}
}

func TestGatheringEndsAfter30Seconds(t *testing.T) {
	d := three(t, Config{})
	for i := range 30 {
		d.expect([]Phase{Current, Gathering}[min(i, 1)], "a", "1", "1", "1")
		d.put("a", fmt.Sprint("new", i))
		d.pass(time.Second)
	}
	d.expect(Rolling, "a", "new29", "1", "1")
}

func TestNoEditionIsCutOfWhatIsIncomplete(t *testing.T) {
	d := three(t, Config{})
	d.facts.Complete = false
	d.put("a", "")
	d.put("b", "")
	d.pass(time.Hour)
	d.expect(Gathering, "a", "1", "1", "1")
	d.put("a", "1")
	d.put("b", "1") // the origin was still loading
	d.facts.Complete = true
	d.drive()
	d.expect(Current, "a", "1", "1", "1")
}

func TestRevertedChangesEndTheRollout(t *testing.T) {
	d := three(t, Config{})
	d.put("a", "2")
	d.pass(12 * time.Minute)
	d.expect(Rolling, "a", "2", "2", "1")
	d.put("a", "1")
	d.expect(Current, "a", "1", "1", "1")
}

func TestSupersededEditionsDoNotSpread(t *testing.T) {
	d := three(t, Config{})
	d.put("a", "2")
	d.pass(12 * time.Minute)
	d.put("a", "3")
	d.expect(Gathering, "a", "2", "1", "1") // cohort 1 keeps it
	d.pass(quietTime)
	d.expect(Rolling, "a", "3", "1", "1")
	d.put("b", "2") // another name
	d.expect(Rolling, "b", "1", "1", "1")
	d.pass(20 * time.Minute)
	d.expect(Rolling, "a", "3", "3", "3")
	d.expect(Rolling, "b", "2", "1", "1") // it forms the next edition
}

func TestARefusedEditionIsWithdrawnEverywhere(t *testing.T) {
	d := three(t, Config{})
	d.put("a", "2")
	d.pass(12 * time.Minute)
	d.facts.Halt = "a canary refused it"
	d.drive()
	d.expect(Halted, "a", "1", "1", "1")
	if h := d.State().Halt; h.Reason != "a canary refused it" || !h.At.Equal(d.now) {
		t.Errorf("halted: %+v", h)
	}
	d.put("b", "2") // I11: an unrelated change
	d.pass(time.Hour)
	d.expect(Halted, "b", "1", "1", "1")
	d.facts.Halt = ""
	d.put("a", "3") // the fix
	d.pass(quietTime)
	d.expect(Rolling, "a", "3", "1", "1")
	d.expect(Rolling, "b", "2", "1", "1")
}

func TestASupersededEditionThatIsRefusedIsWithdrawn(t *testing.T) {
	d := three(t, Config{})
	d.put("a", "2")
	d.pass(quietTime)
	d.put("a", "3")
	d.expect(Gathering, "a", "2", "1", "1")
	d.facts.Halt = "a canary refused it"
	d.drive()
	d.expect(Gathering, "a", "1", "1", "1")
}

func TestASupersededEditionIsWithdrawnIfTheCheckRefusesTheNext(t *testing.T) {
	d := three(t, Config{Checked: true})
	d.put("a", "2")
	d.pass(quietTime)
	d.facts.Verdict = Verdict{Asked: d.now, Go: true}
	d.drive()
	d.put("a", "3")
	d.pass(quietTime)
	d.expect(Held, "a", "2", "1", "1")
	d.facts.Verdict = Verdict{Asked: d.now, Refuse: "no"}
	d.drive()
	d.expect(Halted, "a", "1", "1", "1")
}

func TestWaitingIsSinceTheOldestChange(t *testing.T) {
	d := three(t, Config{})
	begin := d.now
	wait := func(want time.Duration) {
		t.Helper()
		if got := d.State().Pending.Sub(begin); got != want {
			t.Errorf("changes wait since %v, want %v", got, want)
		}
	}
	d.put("a", "2")
	d.pass(time.Minute)
	d.put("b", "2") // behind the edition
	d.pass(time.Minute)
	d.put("a", "3") // supersedes it, with both
	d.pass(10 * time.Minute)
	wait(0)
	d.put("b", "3") // in the edition; in time to supersede it
	d.pass(9 * time.Minute)
	wait(0)
	d.put("c", "1")
	d.pass(11*time.Minute + 2*time.Second)
	d.expect(Rolling, "c", "1", "", "") // b is everywhere
	wait(21 * time.Minute)
}

func TestEvidenceIsAwaitedForAsLongAgain(t *testing.T) {
	for _, c := range []struct {
		Evidence
		after time.Duration // the rest of the stage; zero if it halts
	}{
		{Evidence{Wanting: 0}, 10 * time.Minute},
		{Evidence{Wanting: 10, Known: 10, Answered: 9, Accepted: 1}, 10 * time.Minute},
		{Evidence{Wanting: 10, Known: 10, Answered: 8, Accepted: 8}, 20 * time.Minute},
		{Evidence{Wanting: 10, Answered: 8, Accepted: 8}, 20 * time.Minute},
		{Evidence{Wanting: 1, Known: 1, Answered: 1, Accepted: 0}, 0},
		{Evidence{Wanting: 10, Known: 1}, 0},
		{Evidence{Wanting: 10, Answered: 10}, 20 * time.Minute}, // invented Nodes
	} {
		d := three(t, Config{})
		d.put("a", "2")
		d.pass(quietTime)
		d.facts.Evidence = c.Evidence
		d.drive()
		if c.after == 0 {
			d.pass(20*time.Minute - 1)
			d.expect(Rolling, "a", "2", "1", "1")
			d.pass(1)
			d.expect(Halted, "a", "1", "1", "1")
			continue
		}
		d.pass(c.after - 1)
		d.expect(Rolling, "a", "2", "1", "1")
		d.pass(1)
		d.expect(Rolling, "a", "2", "2", "1")
		if d.State().Unobserved != (c.Accepted == 0) {
			t.Errorf("%+v: unobserved is %v", c, d.State().Unobserved)
		}
	}
}

func TestLargeRemovalsAreHeld(t *testing.T) {
	d := three(t, Config{Hold: 15 * time.Minute})
	d.large = func() bool { return d.latest["b"] == "" }
	d.put("b", "")
	d.pass(quietTime)
	d.expect(Held, "b", "1", "1", "1")
	d.pass(10 * time.Minute)
	d.put("b", "1")
	d.expect(Current, "b", "1", "1", "1") // it was a mistake
	d.put("b", "")
	d.put("a", "2")
	d.pass(quietTime)
	d.pass(10 * time.Minute)
	d.put("a", "3") // which is no reason to hold it for longer
	d.pass(5 * time.Minute)
	d.expect(Rolling, "b", "", "1", "1")
}

func TestI12_OnlyAnAnswerOfTheCheckLetsAnEditionGoOn(t *testing.T) {
	d := three(t, Config{Checked: true})
	answer := func(allowed bool, refuse string) {
		d.facts.Verdict = Verdict{Asked: d.now, Go: allowed, Refuse: refuse}
		d.drive()
	}
	d.put("a", "2")
	d.pass(time.Hour)
	d.expect(Held, "a", "1", "1", "1")
	answer(true, "")
	d.expect(Rolling, "a", "2", "1", "1")
	d.pass(time.Hour) // that answer was before the stage
	d.expect(Rolling, "a", "2", "1", "1")
	answer(true, "")
	d.expect(Rolling, "a", "2", "2", "1")
	answer(true, "")
	d.pass(time.Hour)
	d.expect(Rolling, "a", "2", "2", "1")
	answer(false, "errors are up")
	d.expect(Halted, "a", "1", "1", "1")
	if reason := d.State().Halt.Reason; !strings.Contains(reason, "errors are up") {
		t.Error(reason)
	}
}

func TestCommandsOfOperators(t *testing.T) {
	d := three(t, Config{Stages: stages(t, "id=canary approve, 25% 10m")})
	if err := d.Promote(d.now, d.look()); !errors.Is(err, ErrNothingOpen) {
		t.Error("promote when nothing is open:", err)
	}
	if err := d.Abort(d.now, ""); !errors.Is(err, ErrNothingOpen) {
		t.Error("abort when nothing is open:", err)
	}
	if err := d.Resume(d.now); !errors.Is(err, ErrNotHalted) {
		t.Error("resume when nothing is halted:", err)
	}
	d.put("a", "2")
	d.pass(24 * time.Hour)
	d.expect(Rolling, "a", "2", "1", "1") // not approved
	d.put("a", "3")
	d.pass(quietTime)
	d.expect(Rolling, "a", "3", "1", "1") // the reverted edition needs no approval
	d.do(d.Promote(d.now, d.look()))
	d.expect(Rolling, "a", "3", "3", "1")
	d.do(d.Abort(d.now, "alice: not now"))
	d.expect(Halted, "a", "1", "1", "1")
	d.do(d.Resume(d.now))
	d.expect(Rolling, "a", "3", "1", "1")
	d.do(d.Abort(d.now, "alice: not now"))
	d.cut()
	d.PromoteAll(d.now)
	d.drive()
	d.expect(Current, "a", "3", "3", "3")
	d.do(d.Undo(d.now, "bob"))
	d.expect(Halted, "a", "1", "1", "1")
	if err := d.Undo(d.now, "bob"); !errors.Is(err, ErrNothingToUndo) {
		t.Error("undo twice:", err)
	}
	d.put("a", "1")
	d.expect(Current, "a", "1", "1", "1")
}

func (d *driver) do(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
	d.drive()
}

func TestARestartedMachineStaysHalted(t *testing.T) {
	d := newDriver(t, Config{Stages: stages(t, "id=canary 10m")})
	d.Machine = NewMachine(d.cfg)
	d.Restore(Halt{"refused", d.now.Add(-time.Hour)})
	d.editions[1] = &pinned{content: content{"a": "2"}}
	d.facts.Complete = false // nothing is known of the origin, so nothing differs
	d.drive()
	d.expect(Halted, "a", "", "")
	d.put("a", "2")
	d.facts.Complete = true
	d.pass(time.Hour)
	d.expect(Halted, "a", "", "")
	d.put("a", "3")
	d.pass(quietTime)
	d.expect(Rolling, "a", "3", "")
}

// TestI9_ChangesWaitForABoundedTime has an origin change without end.
func TestI9_ChangesWaitForABoundedTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := newDriver(t, Config{Stages: drawStages(t)})
		bound := 3*d.cfg.Stages.Lasts() + maxGathering
		for i := range rapid.IntRange(1, 200).Draw(t, "changes") {
			d.put(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name"), fmt.Sprint(i))
			d.pass(time.Duration(rapid.IntRange(1, 90).Draw(t, "seconds")) * time.Second)
			if d.waits() > bound {
				t.Fatalf("a change has waited for %v, at most %v are allowed (%v)", d.waits(), bound, d.cfg.Stages)
			}
		}
	})
}

func drawStages(t *rapid.T) (s Stages) {
	for i := range rapid.IntRange(1, MaxStages).Draw(t, "stages") {
		s = append(s, Stage{Selector: Selector{Share: uint16(i + 1)}, Lasts: time.Duration(rapid.IntRange(1, 10).Draw(t, "minutes")) * time.Minute})
	}
	return s
}

// A history is a random one of an origin, clients, a check and operators.
type history struct {
	*driver
	shown   map[Edition][]time.Duration // how long each cohort was served an edition, in time that was not frozen
	allowed map[Edition]int             // how often the check allowed an edition
	forced  map[Edition]bool            // an operator promoted it
}

// TestI1_TheRestIsServedWhatPassedAllStages also holds I11, I12 and I13: in random histories.
func TestI1_TheRestIsServedWhatPassedAllStages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := newDriver(t, Config{
			Stages: drawStages(t), Checked: rapid.Bool().Draw(t, "checked"),
			Hold: time.Duration(rapid.IntRange(0, 5).Draw(t, "hold")) * time.Minute,
		})
		d.large = func() bool { return len(d.latest) < len(d.editions[d.lastGood].content) }
		h := &history{driver: d, shown: make(map[Edition][]time.Duration), allowed: make(map[Edition]int), forced: make(map[Edition]bool)}
		for i := range rapid.IntRange(1, 80).Draw(t, "steps") {
			h.step(t, i)
		}
		h.facts = Facts{Complete: true}
		h.drive()
		for range 10 { // no signal rejects the edition any more
			h.facts.Verdict = Verdict{Asked: h.now, Go: true}
			h.pass(24 * time.Hour)
			h.facts.Verdict = Verdict{Asked: h.now, Go: true}
			h.drive()
		}
		if h.phase != Halted && (h.phase != Current || len(h.latest.differs(h.served[len(h.served)-1])) > 0) {
			t.Fatalf("in the end the phase is %v, and the rest is served %v of %v", h.phase, h.served[len(h.served)-1], h.latest)
		}
	})
}

// step does one thing, or lets a second or more pass.
func (h *history) step(t *rapid.T, i int) {
	good, phase, served, edition := h.lastGood, h.phase, h.served, h.editions[h.edition]
	command := false
	switch what := rapid.IntRange(0, 12).Draw(t, "what"); what {
	case 0, 1, 2, 3, 4:
		h.wait(time.Duration(rapid.IntRange(1, 400).Draw(t, "seconds")) * time.Second)
	case 5, 6:
		name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
		h.put(name, rapid.SampledFrom([]string{"", fmt.Sprint(i), h.served[len(h.served)-1][name]}).Draw(t, "content"))
		if phase == Halted && h.phase != Halted && h.phase != Current && !slices.Contains(edition.differs(edition.base), name) { // I11
			t.Fatalf("halted, and %s, which was not part of the edition, began phase %v", name, h.phase)
		}
	case 7:
		h.facts.Complete = !h.facts.Complete
		h.drive()
	case 8:
		h.facts.Frozen = !h.facts.Frozen
		h.drive()
	case 9:
		h.facts.Evidence = Evidence{Wanting: 2, Answered: rapid.IntRange(0, 2).Draw(t, "answered")}
		h.facts.Evidence.Accepted = h.facts.Evidence.Answered
		h.drive()
	case 10:
		h.facts.Verdict = Verdict{Asked: h.now, Go: rapid.Bool().Draw(t, "go")}
		if h.facts.Verdict.Go {
			h.allowed[h.edition]++
		}
		h.drive()
	case 11:
		h.facts.Halt = "refused"
		h.drive()
		h.facts.Halt = ""
	default:
		command = true
		h.command(t)
	}
	if h.facts.Frozen && !command && !slices.EqualFunc(served, h.served, func(a, b content) bool { return len(a.differs(b)) == 0 }) { // I13
		t.Fatalf("frozen, clients are served %v after %v", h.served, served)
	}
	if h.lastGood != good && !command {
		h.promotedRightly(t)
	}
}

// wait lets time pass second by second, and counts for how long editions are shown.
func (h *history) wait(d time.Duration) {
	for range d / time.Second {
		if !h.facts.Frozen {
			for cohort := range h.cfg.Stages {
				e := h.Serves(cohort)
				if h.shown[e] == nil {
					h.shown[e] = make([]time.Duration, len(h.cfg.Stages))
				}
				h.shown[e][cohort] += time.Second
			}
		}
		h.pass(time.Second)
	}
}

// promotedRightly fails unless the last good was served to each stage for its time, and allowed by the check each time.
func (h *history) promotedRightly(t *rapid.T) {
	if h.forced[h.lastGood] {
		return
	}
	for i, stage := range h.cfg.Stages {
		if shown := h.shown[h.lastGood]; shown == nil || shown[i] < stage.Lasts-2*time.Second {
			t.Fatalf("edition %d is the last good, and was served to stages for %v (%v)", h.lastGood, shown, h.cfg.Stages)
		}
	}
	if h.cfg.Checked && h.allowed[h.lastGood] < 1 { // I12
		t.Fatalf("edition %d is the last good, and the check did not allow it", h.lastGood)
	}
}

func (h *history) command(t *rapid.T) {
	of := h.edition
	switch rapid.IntRange(0, 4).Draw(t, "command") {
	case 0:
		if h.Promote(h.now, h.look()) == nil {
			h.forced[of] = true
		}
	case 1:
		_ = h.Abort(h.now, "aborted")
	case 2:
		_ = h.Resume(h.now)
	case 3:
		_ = h.Undo(h.now, "undone")
	case 4:
		h.cut()
		h.PromoteAll(h.now)
		h.forced[h.edition] = true
	}
	h.drive()
}

// TestAFixIsSupersededAfterALongHalt: the bound on how long changes may supersede each other does not count the time in
// which no edition was in progress.
func TestAFixIsSupersededAfterALongHalt(t *testing.T) {
	for what, leave := range map[string]func(d *driver){
		"by a change": func(d *driver) { d.put("a", "3") },
		"by resume":   func(d *driver) { d.do(d.Resume(d.now)) },
	} {
		d := three(t, Config{})
		d.put("a", "2")
		d.pass(quietTime)
		d.do(d.Abort(d.now, "alice"))
		d.pass(24 * time.Hour)
		leave(d)
		d.pass(2 * quietTime)
		d.expect(Rolling, "b", "1", "1", "1")
		d.put("a", "4")
		if d.phase != Gathering {
			t.Errorf("halted for a day, which ended %s: the phase is %v after the origin reverted the edition in progress, want gathering", what, d.phase)
		}
	}
}

// TestCommandsWhileFrozenDoNotExtendStages: only the time from the command to the thaw does not count.
func TestCommandsWhileFrozenDoNotExtendStages(t *testing.T) {
	d := three(t, Config{})
	d.put("a", "2")
	d.pass(quietTime)
	d.facts.Frozen = true
	d.drive()
	d.pass(time.Hour)
	d.do(d.Promote(d.now, d.look()))
	d.expect(Rolling, "a", "2", "2", "1")
	d.pass(time.Hour)
	d.facts.Frozen = false
	d.drive()
	if !d.State().Entered.Equal(d.now) {
		t.Errorf("the stage began at %v, and at the thaw it is %v", d.State().Entered, d.now)
	}
	d.pass(10 * time.Minute)
	d.expect(Current, "a", "2", "2", "2")
}
