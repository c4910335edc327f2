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

// newPromotedDriver returns a driver whose resources a and b are "1" in all cohorts. By default, it has two stages of
// 10 minutes.
func newPromotedDriver(t *testing.T, cfg Config) *driver {
	if cfg.Stages == nil {
		cfg.Stages = parseStages(t, "id=canary 10m, 25% 10m")
	}
	d := newDriver(t, cfg)
	d.put("a", "1")
	d.put("b", "1")
	d.pin()
	d.PromoteAll(d.now)
	d.drive()
	d.expect(Current, "a", "1", "1", "1")
	return d
}

func TestRolloutRunsAllStages(t *testing.T) {
	d := newPromotedDriver(t, Config{})
	d.put("a", "2")
	d.expect(Gathering, "a", "1", "1", "1")
	d.sleep(time.Second)
	d.put("b", "2")
	d.sleep(quietTime - 1)
	d.expect(Gathering, "b", "1", "1", "1")
	d.sleep(1)
	d.expect(Rolling, "a", "2", "1", "1")
	d.expect(Rolling, "b", "2", "1", "1")
	d.sleep(10 * time.Minute)
	d.expect(Rolling, "a", "2", "2", "1")
	d.sleep(10 * time.Minute)
	d.expect(Current, "a", "2", "2", "2")
	if !d.State().Unobserved {
		t.Error("Unobserved is false, want true: no client subscribes to the changes")
	}
}

func TestGatheringEndsAfter30Seconds(t *testing.T) {
	d := newPromotedDriver(t, Config{})
	for i := range 30 {
		d.expect([]Phase{Current, Gathering}[min(i, 1)], "a", "1", "1", "1")
		d.put("a", fmt.Sprint("new", i))
		d.sleep(time.Second)
	}
	d.expect(Rolling, "a", "new29", "1", "1")
}

func TestGatheringWaitsForCompleteState(t *testing.T) {
	d := newPromotedDriver(t, Config{})
	d.facts.Complete = false
	d.put("a", "")
	d.put("b", "")
	d.sleep(time.Hour)
	d.expect(Gathering, "a", "1", "1", "1")
	d.put("a", "1")
	d.put("b", "1") // the origin has loaded its state
	d.facts.Complete = true
	d.drive()
	d.expect(Current, "a", "1", "1", "1")
}

func TestRevertedChangesEndTheRollout(t *testing.T) {
	d := newPromotedDriver(t, Config{})
	d.put("a", "2")
	d.sleep(12 * time.Minute)
	d.expect(Rolling, "a", "2", "2", "1")
	d.put("a", "1")
	d.expect(Current, "a", "1", "1", "1")
}

func TestSupersededEditionReachesNoFurtherCohort(t *testing.T) {
	d := newPromotedDriver(t, Config{})
	d.put("a", "2")
	d.sleep(12 * time.Minute)
	d.put("a", "3")
	d.expect(Gathering, "a", "2", "1", "1") // cohort 0 keeps the superseded edition
	d.sleep(quietTime)
	d.expect(Rolling, "a", "3", "1", "1")
	d.put("b", "2") // not a resource of the edition
	d.expect(Rolling, "b", "1", "1", "1")
	d.sleep(20 * time.Minute)
	d.expect(Rolling, "a", "3", "3", "3")
	d.expect(Rolling, "b", "2", "1", "1") // the next edition
}

func TestHaltWithdrawsEditionFromAllCohorts(t *testing.T) {
	d := newPromotedDriver(t, Config{})
	d.put("a", "2")
	d.sleep(12 * time.Minute)
	d.facts.HaltReason = "a canary rejected it"
	d.drive()
	d.expect(Halted, "a", "1", "1", "1")
	if h := d.State().Halt; h.Reason != "a canary rejected it" || !h.At.Equal(d.now) {
		t.Errorf("halt %+v, want the reason and time of the signal", h)
	}
	d.put("b", "2") // I11: an unrelated change
	d.sleep(time.Hour)
	d.expect(Halted, "b", "1", "1", "1")
	d.facts.HaltReason = ""
	d.put("a", "3") // the fix
	d.sleep(quietTime)
	d.expect(Rolling, "a", "3", "1", "1")
	d.expect(Rolling, "b", "2", "1", "1")
}

func TestHaltWithdrawsSupersededEdition(t *testing.T) {
	d := newPromotedDriver(t, Config{})
	d.put("a", "2")
	d.sleep(quietTime)
	d.put("a", "3")
	d.expect(Gathering, "a", "2", "1", "1")
	d.facts.HaltReason = "a canary rejected it"
	d.drive()
	d.expect(Gathering, "a", "1", "1", "1")
}

func TestCheckRejectionWithdrawsSupersededEdition(t *testing.T) {
	d := newPromotedDriver(t, Config{Checked: true})
	d.put("a", "2")
	d.sleep(quietTime)
	d.facts.Verdict = Verdict{RequestedAt: d.now, Allowed: true}
	d.drive()
	d.put("a", "3")
	d.sleep(quietTime)
	d.expect(Held, "a", "2", "1", "1")
	d.facts.Verdict = Verdict{RequestedAt: d.now, RejectReason: "no"}
	d.drive()
	d.expect(Halted, "a", "1", "1", "1")
}

func TestPendingIsTimeOfOldestChange(t *testing.T) {
	d := newPromotedDriver(t, Config{})
	start := d.now
	expectPending := func(want time.Duration) {
		t.Helper()
		if got := d.State().Pending.Sub(start); got != want {
			t.Errorf("the oldest pending change is from %v after the start, want %v", got, want)
		}
	}
	d.put("a", "2")
	d.sleep(time.Minute)
	d.put("b", "2") // not in the edition
	d.sleep(time.Minute)
	d.put("a", "3") // supersedes the edition; the next one has both
	d.sleep(10 * time.Minute)
	expectPending(0)
	d.put("b", "3") // in the edition, and early enough to supersede it
	d.sleep(9 * time.Minute)
	expectPending(0)
	d.put("c", "1")
	d.sleep(11*time.Minute + 2*time.Second)
	d.expect(Rolling, "c", "1", "", "") // the edition with b was promoted
	expectPending(21 * time.Minute)
}

func TestStageWaitsTwiceItsTimeForEvidence(t *testing.T) {
	for _, c := range []struct {
		Evidence
		after time.Duration // when the next stage begins; zero if the rollout halts
	}{
		{Evidence{Subscribed: 0}, 10 * time.Minute},
		{Evidence{Subscribed: 10, Trusted: 10, Answered: 9, Accepted: 1}, 10 * time.Minute},
		{Evidence{Subscribed: 10, Trusted: 10, Answered: 8, Accepted: 8}, 20 * time.Minute},
		{Evidence{Subscribed: 10, Answered: 8, Accepted: 8}, 20 * time.Minute},
		{Evidence{Subscribed: 1, Trusted: 1, Answered: 1, Accepted: 0}, 0},
		{Evidence{Subscribed: 10, Trusted: 1}, 0},
		{Evidence{Subscribed: 10, Answered: 10}, 20 * time.Minute}, // forged Nodes
	} {
		d := newPromotedDriver(t, Config{})
		d.put("a", "2")
		d.sleep(quietTime)
		d.facts.Evidence = c.Evidence
		d.drive()
		if c.after == 0 {
			d.sleep(20*time.Minute - 1)
			d.expect(Rolling, "a", "2", "1", "1")
			d.sleep(1)
			d.expect(Halted, "a", "1", "1", "1")
			continue
		}
		d.sleep(c.after - 1)
		d.expect(Rolling, "a", "2", "1", "1")
		d.sleep(1)
		d.expect(Rolling, "a", "2", "2", "1")
		if d.State().Unobserved != (c.Accepted == 0) {
			t.Errorf("%+v: Unobserved is %v", c, d.State().Unobserved)
		}
	}
}

func TestLargeRemovalsAreHeld(t *testing.T) {
	d := newPromotedDriver(t, Config{Hold: 15 * time.Minute})
	d.large = func() bool { return d.latest["b"] == "" }
	d.put("b", "")
	d.sleep(quietTime)
	d.expect(Held, "b", "1", "1", "1")
	d.sleep(10 * time.Minute)
	d.put("b", "1")
	d.expect(Current, "b", "1", "1", "1") // reverted
	d.put("b", "")
	d.put("a", "2")
	d.sleep(quietTime)
	d.sleep(10 * time.Minute)
	d.put("a", "3") // supersedes the edition, but does not extend the hold
	d.sleep(5 * time.Minute)
	d.expect(Rolling, "b", "", "1", "1")
}

func TestI12_EachStageNeedsAVerdict(t *testing.T) {
	d := newPromotedDriver(t, Config{Checked: true})
	decide := func(allowed bool, rejectReason string) {
		d.facts.Verdict = Verdict{RequestedAt: d.now, Allowed: allowed, RejectReason: rejectReason}
		d.drive()
	}
	d.put("a", "2")
	d.sleep(time.Hour)
	d.expect(Held, "a", "1", "1", "1")
	decide(true, "")
	d.expect(Rolling, "a", "2", "1", "1")
	d.sleep(time.Hour) // the verdict is from before the stage
	d.expect(Rolling, "a", "2", "1", "1")
	decide(true, "")
	d.expect(Rolling, "a", "2", "2", "1")
	decide(true, "")
	d.sleep(time.Hour)
	d.expect(Rolling, "a", "2", "2", "1")
	decide(false, "errors are up")
	d.expect(Halted, "a", "1", "1", "1")
	if reason := d.State().Halt.Reason; !strings.Contains(reason, "errors are up") {
		t.Errorf("reason %q, want that of the check", reason)
	}
}

func TestOperatorCommands(t *testing.T) {
	d := newPromotedDriver(t, Config{Stages: parseStages(t, "id=canary approve, 25% 10m")})
	if err := d.Promote(d.now, d.currentFacts()); !errors.Is(err, ErrNothingOpen) {
		t.Error("Promote without a rollout:", err)
	}
	if err := d.Abort(d.now, ""); !errors.Is(err, ErrNothingOpen) {
		t.Error("Abort without a rollout:", err)
	}
	if err := d.Resume(d.now); !errors.Is(err, ErrNotHalted) {
		t.Error("Resume without a halt:", err)
	}
	d.put("a", "2")
	d.sleep(24 * time.Hour)
	d.expect(Rolling, "a", "2", "1", "1") // not approved
	d.put("a", "3")
	d.sleep(quietTime)
	d.expect(Rolling, "a", "3", "1", "1") // superseded without approval
	d.do(d.Promote(d.now, d.currentFacts()))
	d.expect(Rolling, "a", "3", "3", "1")
	d.do(d.Abort(d.now, "alice: not now"))
	d.expect(Halted, "a", "1", "1", "1")
	d.do(d.Resume(d.now))
	d.expect(Rolling, "a", "3", "1", "1")
	d.do(d.Abort(d.now, "alice: not now"))
	d.pin()
	d.PromoteAll(d.now)
	d.drive()
	d.expect(Current, "a", "3", "3", "3")
	d.do(d.Undo(d.now, "bob"))
	d.expect(Halted, "a", "1", "1", "1")
	if err := d.Undo(d.now, "bob"); !errors.Is(err, ErrNothingToUndo) {
		t.Error("second Undo:", err)
	}
	d.put("a", "1")
	d.expect(Current, "a", "1", "1", "1")
}

// do fails on the error of a command, and runs the steps that it made due.
func (d *driver) do(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
	d.drive()
}

func TestRestoredMachineStaysHalted(t *testing.T) {
	d := newDriver(t, Config{Stages: parseStages(t, "id=canary 10m")})
	d.Machine = NewMachine(d.cfg)
	d.Restore(Halt{Reason: "rejected", At: d.now.Add(-time.Hour)})
	d.editions[1] = &pinnedEdition{content: content{"a": "2"}}
	d.facts.Complete = false // the origin is not connected, so no name differs
	d.drive()
	d.expect(Halted, "a", "", "")
	d.put("a", "2")
	d.facts.Complete = true
	d.sleep(time.Hour)
	d.expect(Halted, "a", "", "")
	d.put("a", "3")
	d.sleep(quietTime)
	d.expect(Rolling, "a", "3", "")
}

// TestI9_PendingTimeIsBounded verifies the bound with an origin that changes in random intervals.
func TestI9_PendingTimeIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := newDriver(t, Config{Stages: drawStages(t)})
		bound := 3*d.cfg.Stages.TotalDuration() + maxGathering
		for i := range rapid.IntRange(1, 200).Draw(t, "changes") {
			d.put(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name"), fmt.Sprint(i))
			d.sleep(time.Duration(rapid.IntRange(1, 90).Draw(t, "seconds")) * time.Second)
			if d.oldestPending() > bound {
				t.Fatalf("a change is pending for %v, want at most %v (stages %v)", d.oldestPending(), bound, d.cfg.Stages)
			}
		}
	})
}

// drawStages returns random stages that end by time.
func drawStages(t *rapid.T) (s Stages) {
	for i := range rapid.IntRange(1, MaxStages).Draw(t, "stages") {
		minutes := rapid.IntRange(1, 10).Draw(t, "minutes")
		s = append(s, Stage{Selector: Selector{Share: uint16(i + 1)}, Duration: time.Duration(minutes) * time.Minute})
	}
	return s
}

// A history is a random sequence of events of an origin, clients, a check and operators.
type history struct {
	*driver
	servedFor map[Edition][]time.Duration // how long each cohort was served an edition, without the time of freezes
	allowed   map[Edition]int             // number of verdicts that allowed an edition
	forced    map[Edition]bool            // editions that an operator promoted
}

// TestI1_RestIsServedOnlyPassedEditions verifies I1, I11, I12 and I13 in random histories.
func TestI1_RestIsServedOnlyPassedEditions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := newDriver(t, Config{
			Stages: drawStages(t), Checked: rapid.Bool().Draw(t, "checked"),
			Hold: time.Duration(rapid.IntRange(0, 5).Draw(t, "hold")) * time.Minute,
		})
		d.large = func() bool { return len(d.latest) < len(d.editions[d.lastGood].content) }
		h := &history{
			driver: d, servedFor: make(map[Edition][]time.Duration),
			allowed: make(map[Edition]int), forced: make(map[Edition]bool),
		}
		for i := range rapid.IntRange(1, 80).Draw(t, "steps") {
			h.step(t, i)
		}
		h.facts = Facts{Complete: true}
		h.drive()
		for range 10 { // no signal rejects the edition any more
			h.facts.Verdict = Verdict{RequestedAt: h.now, Allowed: true}
			h.sleep(24 * time.Hour)
			h.facts.Verdict = Verdict{RequestedAt: h.now, Allowed: true}
			h.drive()
		}
		if h.phase != Halted && (h.phase != Current || len(h.latest.differences(h.rest())) > 0) {
			t.Fatalf("at the end: phase %v, the rest is served %v, latest is %v", h.phase, h.rest(), h.latest)
		}
	})
}

// rest returns the content that the rest is served.
func (h *history) rest() content { return h.served[len(h.served)-1] }

// step runs one random event and verifies I11, I13 and promotions.
func (h *history) step(t *rapid.T, i int) {
	lastGood, phase, served, edition := h.lastGood, h.phase, h.served, h.editions[h.edition]
	command := false
	switch event := rapid.IntRange(0, 12).Draw(t, "event"); event {
	case 0, 1, 2, 3, 4:
		h.advanceClock(time.Duration(rapid.IntRange(1, 400).Draw(t, "seconds")) * time.Second)
	case 5, 6:
		name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
		h.put(name, rapid.SampledFrom([]string{"", fmt.Sprint(i), h.rest()[name]}).Draw(t, "content"))
		ended := phase == Halted && h.phase != Halted && h.phase != Current
		if ended && !slices.Contains(edition.differences(edition.base), name) { // I11
			t.Fatalf("a change of %s, which the rejected edition does not change, started phase %v", name, h.phase)
		}
	case 7:
		h.facts.Complete = !h.facts.Complete
		h.drive()
	case 8:
		h.facts.Frozen = !h.facts.Frozen
		h.drive()
	case 9:
		h.facts.Evidence = Evidence{Subscribed: 2, Answered: rapid.IntRange(0, 2).Draw(t, "answered")}
		h.facts.Evidence.Accepted = h.facts.Evidence.Answered
		h.drive()
	case 10:
		h.facts.Verdict = Verdict{RequestedAt: h.now, Allowed: rapid.Bool().Draw(t, "go")}
		if h.facts.Verdict.Allowed {
			h.allowed[h.edition]++
		}
		h.drive()
	case 11:
		h.facts.HaltReason = "rejected"
		h.drive()
		h.facts.HaltReason = ""
	default:
		command = true
		h.command(t)
	}
	same := func(a, b content) bool { return len(a.differences(b)) == 0 }
	if h.facts.Frozen && !command && !slices.EqualFunc(served, h.served, same) { // I13
		t.Fatalf("the served content changed from %v to %v during a freeze", served, h.served)
	}
	if h.lastGood != lastGood && !command {
		h.checkPromotion(t)
	}
}

// advanceClock advances the clock second by second, and counts how long editions are served.
func (h *history) advanceClock(d time.Duration) {
	for range d / time.Second {
		if !h.facts.Frozen {
			for cohort := range h.cfg.Stages {
				e := h.Serves(cohort)
				if h.servedFor[e] == nil {
					h.servedFor[e] = make([]time.Duration, len(h.cfg.Stages))
				}
				h.servedFor[e][cohort] += time.Second
			}
		}
		h.sleep(time.Second)
	}
}

// checkPromotion fails unless the last good was served to each stage for its time, and the check allowed it.
func (h *history) checkPromotion(t *rapid.T) {
	if h.forced[h.lastGood] {
		return
	}
	for i, stage := range h.cfg.Stages {
		if durations := h.servedFor[h.lastGood]; durations == nil || durations[i] < stage.Duration-2*time.Second {
			t.Fatalf("edition %d was promoted after it was served to stages for %v, want %v",
				h.lastGood, durations, h.cfg.Stages)
		}
	}
	if h.cfg.Checked && h.allowed[h.lastGood] < 1 { // I12
		t.Fatalf("edition %d was promoted, but the check did not allow it", h.lastGood)
	}
}

// command runs a random command of an operator.
func (h *history) command(t *rapid.T) {
	edition := h.edition
	switch rapid.IntRange(0, 4).Draw(t, "command") {
	case 0:
		if h.Promote(h.now, h.currentFacts()) == nil {
			h.forced[edition] = true
		}
	case 1:
		_ = h.Abort(h.now, "aborted")
	case 2:
		_ = h.Resume(h.now)
	case 3:
		_ = h.Undo(h.now, "undone")
	case 4:
		h.pin()
		h.PromoteAll(h.now)
		h.forced[h.edition] = true
	}
	h.drive()
}

// TestTimeInHaltedDoesNotPreventSuperseding verifies that the time limit for superseding excludes time in phase Halted.
func TestTimeInHaltedDoesNotPreventSuperseding(t *testing.T) {
	for name, endHalt := range map[string]func(d *driver){
		"change": func(d *driver) { d.put("a", "3") },
		"resume": func(d *driver) { d.do(d.Resume(d.now)) },
	} {
		d := newPromotedDriver(t, Config{})
		d.put("a", "2")
		d.sleep(quietTime)
		d.do(d.Abort(d.now, "alice"))
		d.sleep(24 * time.Hour)
		endHalt(d)
		d.sleep(2 * quietTime)
		d.expect(Rolling, "b", "1", "1", "1")
		d.put("a", "4")
		if d.phase != Gathering {
			t.Errorf("halt of a day ended by %s: phase %v after a change of the edition in progress, want gathering",
				name, d.phase)
		}
	}
}

// TestCommandsWhileFrozenDoNotExtendStages verifies that a stage that a command begins during a freeze starts at the
// thaw.
func TestCommandsWhileFrozenDoNotExtendStages(t *testing.T) {
	d := newPromotedDriver(t, Config{})
	d.put("a", "2")
	d.sleep(quietTime)
	d.facts.Frozen = true
	d.drive()
	d.sleep(time.Hour)
	d.do(d.Promote(d.now, d.currentFacts()))
	d.expect(Rolling, "a", "2", "2", "1")
	d.sleep(time.Hour)
	d.facts.Frozen = false
	d.drive()
	if !d.State().Entered.Equal(d.now) {
		t.Errorf("the stage began at %v, want the time of the thaw, %v", d.State().Entered, d.now)
	}
	d.sleep(10 * time.Minute)
	d.expect(Current, "a", "2", "2", "2")
}
