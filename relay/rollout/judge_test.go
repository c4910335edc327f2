package rollout

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// newJudgedDriver returns a driver with a judge whose resources a and b are "1" in all cohorts, with these stages.
func newJudgedDriver(t *testing.T, stages Stages) *driver {
	d := newDriver(t, Config{Judged: true, Stages: stages})
	d.put("a", "1")
	d.put("b", "1")
	d.pin()
	d.PromoteAll(d.now)
	d.drive()
	d.expect(Current, "a", "1")
	return d
}

// expectJudging fails unless the judge, and no client, is served a resource of an edition.
func (d *driver) expectJudging(name, want string) {
	d.t.Helper()
	if got := d.editions[d.Serves(d.cfg.judge())].content[name]; got != want || !d.State().Judging {
		d.t.Fatalf("phase %v: the judge is served %s=%q (judging %v), want %q", d.phase, name, got, d.State().Judging, want)
	}
	for cohort, of := range d.served {
		if of[name] == want {
			d.t.Fatalf("cohort %d is served %s=%q before the judge has answered", cohort, name, want)
		}
	}
}

// TestB52_EditionPassesOnceJudged verifies that clients are served an edition once the judge has accepted it, and that the judge is
// then served the last good again.
func TestB52_EditionPassesOnceJudged(t *testing.T) {
	for _, text := range []string{"", "id=canary 10m"} {
		d := newJudgedDriver(t, parseStages(t, text))
		d.put("a", "2")
		d.sleep(quietTime)
		d.expectJudging("a", "2")
		d.facts.Judgement = Judgement{Done: true, Accepted: "accepted"}
		d.drive()
		if text == "" {
			d.expect(Current, "a", "2")
		} else {
			d.expect(Rolling, "a", "2", "1")
		}
		if s := d.State(); s.Judging || s.Unobserved || d.Serves(d.cfg.judge()) != d.lastGood {
			t.Errorf("stages %q: after the judge: %+v", text, s)
		}
	}
}

// TestB52_JudgeHalts verifies that a rejection halts an edition before any client is served it, and that a changed resource starts
// anew.
func TestB52_JudgeHalts(t *testing.T) {
	for _, text := range []string{"", "id=canary 10m"} {
		d := newJudgedDriver(t, parseStages(t, text))
		d.put("a", "bad")
		d.sleep(quietTime)
		d.facts.Judgement = Judgement{Done: true, Rejected: "bad listener"}
		d.drive()
		d.expect(Halted, "a", "1")
		if d.halt.Reason != "bad listener" {
			t.Errorf("halt %+v", d.halt)
		}
		d.facts.Judgement = Judgement{}
		d.put("a", "fixed")
		d.sleep(2 * quietTime)
		d.expectJudging("a", "fixed")
	}
}

// TestB52_SilentJudgeStopsNothing verifies that an edition passes after JudgeLimit without an answer, and an unjudged one at once. Both
// are unobserved.
func TestB52_SilentJudgeStopsNothing(t *testing.T) {
	d := newJudgedDriver(t, nil)
	d.put("a", "2")
	d.sleep(quietTime + JudgeLimit + judgeGrace - 1)
	d.expectJudging("a", "2")
	d.sleep(1)
	d.expect(Current, "a", "2")
	if !d.State().Unobserved {
		t.Error("the edition is observed although the judge did not answer")
	}
	d.put("a", "3")
	d.sleep(quietTime)
	d.facts.Judgement = Judgement{Done: true, NotJudged: "no Envoy"}
	d.drive()
	d.expect(Current, "a", "3")
	if !d.State().Unobserved {
		t.Error("the edition is observed although the judge did not judge it")
	}
}

// TestB52_PromoteSkipsTheJudge verifies that an operator can promote an edition that the judge has not answered.
func TestB52_PromoteSkipsTheJudge(t *testing.T) {
	d := newJudgedDriver(t, nil)
	d.put("a", "2")
	d.sleep(quietTime)
	d.expectJudging("a", "2")
	if err := d.Promote(d.now, d.currentFacts()); err != nil {
		t.Fatal(err)
	}
	d.drive()
	d.expect(Current, "a", "2")
}

// TestB52_EndlessChangesAreJudged verifies that an origin that changes a resource faster than the judge answers cannot delay changes
// without end.
func TestB52_EndlessChangesAreJudged(t *testing.T) {
	d := newJudgedDriver(t, nil)
	began := d.now
	for i := 0; d.outcomes.Promoted == 1; i++ {
		if d.now.Sub(began) > 10*time.Minute {
			t.Fatalf("no edition was promoted in %v: %+v", d.now.Sub(began), d.State())
		}
		d.put("a", "next"+string(rune('a'+i%26)))
		d.sleep(5 * time.Second)
	}
}

// TestB52_FrozenOriginIsNotPromoted verifies that time during a freeze is none of the judge.
func TestB52_FrozenOriginIsNotPromoted(t *testing.T) {
	d := newJudgedDriver(t, nil)
	d.put("a", "2")
	d.sleep(quietTime)
	d.facts.Frozen = true
	d.drive()
	d.sleep(2 * JudgeLimit)
	d.facts.Frozen = false
	d.drive()
	d.expectJudging("a", "2")
	d.sleep(JudgeLimit + judgeGrace)
	d.expect(Current, "a", "2")
}

// A scriptedJudge is a Judge whose calls a test answers.
type scriptedJudge struct {
	calls   chan []Subject
	answers chan Judgement
	ended   chan error // ends of calls before their answer
}

func (j *scriptedJudge) judge(ctx context.Context, edition []Subject) Judgement {
	j.calls <- edition
	select {
	case answer := <-j.answers:
		return answer
	case <-ctx.Done():
		j.ended <- ctx.Err()
		return Judgement{NotJudged: "canceled"}
	}
}

// newJudgedRelay returns a relay with a judge, whose controller runs.
func newJudgedRelay(t *testing.T, text string, groups ...string) (*testRelay, *scriptedJudge) {
	j := &scriptedJudge{make(chan []Subject, 10), make(chan Judgement), make(chan error, 10)}
	r := newTestRelayWith(t, Config{Stages: parseStages(t, text), Judged: true}, j.judge, groups...)
	go r.Run(t.Context(), false)
	return r, j
}

// TestB52_JudgeIsServedTheEdition verifies that the view of the judge has an edition in all node groups while the judge runs, and the
// last good before and after. Clients are served it afterwards.
func TestB52_JudgeIsServedTheEdition(t *testing.T) {
	for _, text := range []string{"", "id=canary* 10m"} {
		synctest.Test(t, func(t *testing.T) {
			r, j := newJudgedRelay(t, text, "first", "second")
			r.expectJudge("a@1")
			r.change("a", "2")
			time.Sleep(quietTime + time.Second)
			edition := <-j.calls
			if len(edition) != 2 || edition[0].Group != "first" || edition[1].Group != "second" ||
				!slices.Equal(edition[0].Types, []string{listeners}) || len(edition[1].Changes) != 1 {
				t.Errorf("the judge was given %+v", edition)
			}
			r.expectJudge("a@2")
			r.expect("first", "a@1")
			if s := r.Status(); s.Phase != Held || s.Await != AwaitEnvoy || s.Envoy != "judging" {
				t.Errorf("while the judge runs: %+v", s)
			}
			j.answers <- Judgement{Accepted: "accepted by Envoy"}
			time.Sleep(time.Second)
			if s := r.Status(); s.Envoy != "accepted by Envoy" || s.Unobserved && text == "" || s.Phase == Held {
				t.Errorf("after the judge: %+v", s)
			}
			if text == "" {
				r.expect("second", "a@2")
			} else {
				r.expectJudge("a@1")
			}
		})
	}
}

// TestB52_JudgeOfAnEarlierEditionEnds verifies that a newer edition ends the judge of the one before, and is judged itself.
func TestB52_JudgeOfAnEarlierEditionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, j := newJudgedRelay(t, "", "first")
		r.change("a", "2")
		time.Sleep(quietTime + time.Second)
		<-j.calls
		r.change("a", "3")
		time.Sleep(time.Second)
		<-j.ended
		time.Sleep(quietTime)
		<-j.calls
		r.expectJudge("a@3")
		j.answers <- Judgement{Rejected: "bad listener"}
		time.Sleep(time.Second)
		r.expect("first", "a@1")
		r.expectJudge("a@1")
		s := r.Status()
		for _, e := range r.Withdrawn() {
			if e.Cohorts != 0 {
				t.Errorf("%d cohorts of clients were served an edition that only the judge was", e.Cohorts)
			}
		}
		if s.Phase != Halted || s.Halted.Reason != "bad listener" || s.Envoy != "no: bad listener" || s.Outcomes.Superseded != 1 {
			t.Errorf("status %+v", s)
		}
	})
}

// TestB52_LateJudgeIsShown verifies that the status shows that the judge did not answer in time, and that its late answer counts for
// nothing.
func TestB52_LateJudgeIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, j := newJudgedRelay(t, "", "first")
		r.change("a", "2")
		time.Sleep(quietTime + JudgeLimit + judgeGrace + time.Second)
		<-j.ended
		r.expect("first", "a@2")
		if s := r.Status(); !s.Unobserved || !strings.HasPrefix(s.Envoy, "not judged: no answer in ") {
			t.Errorf("status %+v", s)
		}
	})
}

// expectJudge fails the test unless the judge is served these listeners in all groups.
func (r *testRelay) expectJudge(want ...string) {
	r.t.Helper()
	synctest.Wait()
	for group, view := range r.views {
		got := []string{}
		for e := range view.Cohort(r.cfg.JudgeView()).Generation().Type(listeners).Wildcard.Since(0) {
			if e.Present() {
				got = append(got, e.Name.String()+"@"+e.Resource.Version)
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			r.t.Errorf("the judge is served %q in group %s, want %q", got, group, want)
		}
	}
}

// TestB52_JudgeHasItsOwnView verifies that the views of all cohorts differ.
func TestB52_JudgeHasItsOwnView(t *testing.T) {
	for stages := range MaxStages + 1 {
		cfg := Config{Stages: make(Stages, stages), Judged: true}
		seen := make(map[int]bool)
		for _, cohort := range cfg.cohorts() {
			seen[cfg.ViewOf(cohort)] = true
		}
		if len(seen) != stages+2 || cfg.ViewOf(cfg.rest()) != cfg.Views() || len(cfg.cohorts()) > maxCohorts {
			t.Errorf("%d stages: views %v", stages, seen)
		}
	}
}
