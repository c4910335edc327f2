package rollout

import (
	"context"
	"fmt"
	"slices"
	"strconv"
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
			for _, s := range edition {
				now := r.views[s.Group].Cohort(r.cfg.JudgeView()).Generation().Seq
				if change := s.Changes[0]; change.UpTo != now || change.After >= now {
					t.Errorf("changes of group %s: %+v, want those up to %d", s.Group, change, now)
				}
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
		<-j.calls
		r.change("a", "3")
		time.Sleep(quietTime + time.Second)
		j.takes(t, "a") // the next edition
		j.answers <- Judgement{Accepted: "accepted by Envoy"}
		time.Sleep(time.Second)
		if s := r.Status(); s.Unobserved || s.Envoy != "accepted by Envoy" {
			t.Errorf("status of the next edition: %+v", s)
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

// takes fails the test unless the judge is given an edition now that changes these listeners.
func (j *scriptedJudge) takes(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	select {
	case edition := <-j.calls:
		var got []string
		for _, s := range edition {
			for _, change := range s.Changes {
				got = append(got, change.Names...)
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("the judge is given an edition of %q, want %q", got, want)
		}
	default:
		t.Fatalf("the judge is given no edition, want one of %q", want)
	}
}

// idle fails the test if the judge is given an edition.
func (j *scriptedJudge) idle(t *testing.T) {
	t.Helper()
	synctest.Wait()
	if len(j.calls) > 0 {
		t.Errorf("the judge is given an edition: %+v", <-j.calls)
	}
}

// partOf returns the status of a part.
func (r *testRelay) partOf(name string) *Status {
	r.t.Helper()
	synctest.Wait()
	for _, p := range r.Status().Parts {
		if p.Part == name {
			return p
		}
	}
	r.t.Fatalf("there is no part %s", name)
	return nil
}

// judgedParts runs a test with a judge, and with a group in which listeners a and b have changed, as two parts.
func judgedParts(t *testing.T, stages string, test func(r *testRelay, j *scriptedJudge)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		j := &scriptedJudge{make(chan []Subject, 10), make(chan Judgement), make(chan error, 10)}
		r := newTestRelayOf(t, Config{Stages: parseStages(t, stages), Judged: true}, j.judge, nil)
		r.addGroup("group", "a@1", "b@1")
		go r.Run(t.Context(), false)
		time.Sleep(time.Second)
		r.changeAll("a@2", "b@2")
		time.Sleep(quietTime + time.Second)
		test(r, j)
		synctest.Wait()
	})
}

// TestB52_EachPartIsJudged: each part has a judgement of its own, one after the other, and the judge is served no other part
// meanwhile. The part that it rejects is halted, and the one that it accepts passes.
func TestB52_EachPartIsJudged(t *testing.T) {
	for _, stages := range []string{"", "id=canary* 10m"} {
		judgedParts(t, stages, func(r *testRelay, j *scriptedJudge) {
			r.expectParts("lds/a held", "lds/b held")
			j.takes(r.t, "a")
			r.expectJudge("a@2", "b@1")
			if a, b := r.partOf("lds/a"), r.partOf("lds/b"); a.Envoy != "judging" || b.Envoy != "queued" || b.Await != AwaitEnvoy {
				r.t.Errorf("part a is %q, and part b %q, which waits for %q", a.Envoy, b.Envoy, b.WaitsFor)
			}
			j.idle(r.t)
			j.answers <- Judgement{Rejected: "bad listener"}
			time.Sleep(time.Second)
			j.takes(r.t, "b")
			r.expectJudge("a@1", "b@2")
			r.expect("group", "a@1", "b@1")
			j.answers <- Judgement{Accepted: "accepted by Envoy"}
			time.Sleep(11 * time.Minute)
			r.expect("group", "a@1", "b@2")
			r.expectJudge("a@1", "b@2")
			r.expectParts("lds/a halted")
			a, b := r.partOf("lds/a"), r.partOf("lds/b")
			if a.Halted.Reason != "bad listener" || b.Envoy != "accepted by Envoy" || b.Phase != Current || b.Unobserved && stages == "" {
				r.t.Errorf("part a: %+v, part b: %+v", a.Halted, b)
			}
			j.idle(r.t)
			for _, name := range []string{"a", "b"} { // the next edition of each
				r.change(name, "3")
				time.Sleep(2*quietTime + time.Second)
				j.takes(r.t, name)
				j.answers <- Judgement{Accepted: "accepted by Envoy"}
				time.Sleep(11 * time.Minute)
			}
			r.expect("group", "a@3", "b@3")
		})
	}
}

// TestB52_PromotionOfAnotherPartReachesTheJudge: what is promoted while a part is judged is in the last good, for the judge too.
func TestB52_PromotionOfAnotherPartReachesTheJudge(t *testing.T) {
	judgedParts(t, "", func(r *testRelay, j *scriptedJudge) {
		j.takes(r.t, "a")
		r.must(r.Promote(r.t.Context(), "lds/b", "test"))
		r.expectJudge("a@2", "b@2")
		r.expect("group", "a@1", "b@2")
		j.answers <- Judgement{Rejected: "bad listener"}
		time.Sleep(time.Second)
		r.expectJudge("a@1", "b@2")
		j.idle(r.t)
	})
}

// TestB52_ANACKOfAnotherPartIsNoneOfTheTriedOne: if the local Envoy rejects what all clients have been served since the trial began,
// the part that is tried is not halted, but tried again: the NACK names resources of another part and none of the tried one. If
// the last good does not stop changing, that ends with the time of the trial.
func TestB52_ANACKOfAnotherPartIsNoneOfTheTriedOne(t *testing.T) {
	nack := func(detail string) Judgement {
		return Judgement{Rejected: "rejected: " + detail, NACKs: map[string]string{listeners: detail}}
	}
	for detail, tt := range map[string]struct {
		promoted, halted bool
	}{
		"Error adding/updating listener(s) b: it is bad":             {promoted: true},
		"Error adding/updating listener(s) a: it is bad, b: is, too": {promoted: true, halted: true},
		"Error adding/updating listener(s) a: it is bad":             {promoted: true, halted: true},
		"no listener is valid":                                       {promoted: true, halted: true},
		"listener a has the address of b":                            {halted: true},
		"it has the address of b":                                    {halted: true},
	} {
		judgedParts(t, "", func(r *testRelay, j *scriptedJudge) {
			j.takes(r.t, "a")
			if tt.promoted {
				r.must(r.Promote(r.t.Context(), "lds/b", "test"))
				r.expectJudge("a@2", "b@2")
			}
			j.answers <- nack(detail)
			time.Sleep(time.Second)
			if a := r.partOf("lds/a"); tt.halted != (a.Phase == Halted) {
				r.t.Errorf("%s: the part is %v", detail, a.Phase)
			}
			if tt.halted {
				return
			}
			j.takes(r.t, "a") // again
			r.expectJudge("a@2", "b@2")
			r.expect("group", "a@1", "b@2")
			j.answers <- nack(detail) // the last good has not changed since
			time.Sleep(time.Second)
			r.expectParts("lds/a halted")
		})
	}
	judgedParts(t, "", func(r *testRelay, j *scriptedJudge) {
		r.must(r.Promote(r.t.Context(), "lds/b", "test"))
		began := time.Now()
		for i := 0; time.Since(began) < JudgeLimit; i++ {
			j.takes(r.t, "a")
			r.change("b", fmt.Sprint("next", i))
			time.Sleep(quietTime + time.Second)
			r.must(r.Promote(r.t.Context(), "lds/b", "test"))
			j.answers <- nack("b is bad")
			time.Sleep(time.Second)
		}
		time.Sleep(2 * judgeGrace)
		<-j.ended
		if a := r.partOf("lds/a"); !a.Unobserved || a.Envoy != "not judged: no answer in 1m5s" {
			r.t.Errorf("the result is %q (unobserved %v)", a.Envoy, a.Unobserved)
		}
	})
}

// TestB52_ANACKOfAnotherOriginIsNoneOfTheTriedPart: what clients are served of another origin since the trial began reaches the
// local Envoy, too, and so does an edition of another origin that waits for its turn. If the Envoy rejects that, the part that is
// tried is tried again.
func TestB52_ANACKOfAnotherOriginIsNoneOfTheTriedPart(t *testing.T) {
	nack := func(detail string) Judgement {
		return Judgement{Rejected: "rejected: " + detail, NACKs: map[string]string{listeners: detail}}
	}
	for name, tt := range map[string]struct {
		before, promoted bool // the edition of the other origin
	}{
		"shown later": {}, "shown before": {before: true},
		"promoted": {promoted: true}, "shown before, and promoted": {before: true, promoted: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			tried, j := newJudgedRelay(t, "", "group")
			other, its := newJudgedRelay(t, "", "group")
			synctest.Wait()
			other.judging.trials = tried.judging.trials
			change := func(r *testRelay, of *scriptedJudge, name string) {
				r.change(name, "2")
				time.Sleep(quietTime + time.Second)
				of.takes(t, name)
			}
			if tt.before {
				change(other, its, "b")
			}
			change(tried, j, "a")
			if !tt.before {
				change(other, its, "b")
			}
			if tt.promoted {
				other.must(other.Promote(t.Context(), "lds/b", "test"))
				<-its.ended
			}
			j.answers <- nack("listener b is bad")
			time.Sleep(time.Second)
			if phase := tried.partOf("lds/a").Phase; phase != Held {
				t.Fatalf("%s: the part is %v, because of the other origin", name, phase)
			}
			j.takes(t, "a") // again
			j.answers <- nack("listener a is bad")
			time.Sleep(time.Second)
			tried.expectParts("lds/a halted")
			if !tt.promoted {
				its.answers <- nack("listener b is bad, and a")
				time.Sleep(time.Second)
				other.expectParts("lds/b halted")
			}
		})
	}
}

// TestB52_AQueuedPartIsHalted: a part that waits for the judge is halted by a peer, and by an operator. The judge is then given the
// next part, and that one after it is resumed.
func TestB52_AQueuedPartIsHalted(t *testing.T) {
	for by, halt := range map[string]func(r *testRelay, part string){
		"operator": func(r *testRelay, part string) { r.must(r.Abort(r.t.Context(), part, "", "test")) },
		"peer": func(r *testRelay, part string) {
			for _, p := range r.parts {
				if p.edition.name == part {
					r.Hear("peer", "process", Decisions{Halted: []Decision{
						{Part: part, At: time.Now(), Reason: "bad", Changes: r.changesOf(p, p.machine.edition)},
					}})
				}
			}
			time.Sleep(time.Second)
		},
	} {
		judgedParts(t, "", func(r *testRelay, j *scriptedJudge) {
			j.takes(r.t, "a")
			halt(r, "lds/b")
			r.expectParts("lds/a held", "lds/b halted")
			r.expectJudge("a@2", "b@1")
			j.answers <- Judgement{Accepted: "accepted by Envoy"}
			time.Sleep(time.Second)
			r.expect("group", "a@2", "b@1")
			time.Sleep(time.Hour)
			j.idle(r.t)
			r.must(r.Resume(r.t.Context(), "lds/b", "test"))
			time.Sleep(quietTime + time.Second)
			j.takes(r.t, "b")
			if r.t.Failed() {
				r.t.Fatalf("halted by %s", by)
			}
		})
		judgedParts(t, "", func(r *testRelay, j *scriptedJudge) {
			j.takes(r.t, "a")
			halt(r, "lds/a")
			<-j.ended
			time.Sleep(time.Second)
			j.takes(r.t, "b")
			r.expectJudge("a@1", "b@2")
			r.expectParts("lds/a halted", "lds/b held")
			if r.t.Failed() {
				r.t.Fatalf("halted by %s while it is judged", by)
			}
		})
	}
}

// TestB52_AnEndedJudgementCountsForNothing: the answer about an edition that was replaced counts neither for the next edition of the
// part, nor for another part. The next part is not given to the judge before it has ended.
func TestB52_AnEndedJudgementCountsForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, answers := make(chan []Subject, 10), make(chan Judgement)
		slow := func(_ context.Context, edition []Subject) Judgement { // does not end with its context
			calls <- edition
			return <-answers
		}
		j := &scriptedJudge{calls: calls, answers: answers}
		r := newTestRelayOf(t, Config{Judged: true}, slow, nil)
		r.addGroup("group", "a@1", "b@1")
		go r.Run(t.Context(), false)
		time.Sleep(time.Second)
		r.changeAll("a@2", "b@2")
		time.Sleep(quietTime + time.Second)
		j.takes(t, "a")
		r.change("a", "3")
		time.Sleep(quietTime + time.Second)
		r.expectParts("lds/a held", "lds/b held")
		j.idle(t)
		r.expectJudge("a@1", "b@1")
		answers <- Judgement{Rejected: "bad listener"}
		time.Sleep(time.Second)
		r.expectParts("lds/a held", "lds/b held")
		for range 2 {
			<-calls
			answers <- Judgement{Accepted: "accepted by Envoy"}
			time.Sleep(time.Second)
		}
		r.expect("group", "a@3", "b@2")
		r.expectParts()
	})
}

// TestB52_AQueueHoldsNoPartForEver: a part that the judge is not given in JudgeQueue passes as unobserved, and one that it was given
// has all of its time.
func TestB52_AQueueHoldsNoPartForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const parts = 10 // more than the judge can fail to answer in JudgeQueue
		j := &scriptedJudge{make(chan []Subject, parts), make(chan Judgement), make(chan error, parts)}
		r := newTestRelayOf(t, Config{Judged: true}, j.judge, nil)
		r.addGroup("group", teams(parts, "one")...)
		go r.Run(t.Context(), false)
		time.Sleep(time.Second)
		began := time.Now()
		r.changeAll(teams(parts, "two")...)
		time.Sleep(quietTime + JudgeQueue - time.Second)
		r.expectParts("lds/t4 held", "lds/t5 held", "lds/t6 held", "lds/t7 held", "lds/t8 held", "lds/t9 held")
		time.Sleep(2 * time.Second)
		r.expectParts("lds/t4 held")
		time.Sleep(JudgeLimit + judgeGrace)
		r.expectParts()
		r.expect("group", teams(parts, "two")...)
		if len(j.calls) != 5 {
			t.Errorf("the judge was given %d parts in %v", len(j.calls), time.Since(began))
		}
		for name, want := range map[string]string{
			"lds/t4": "not judged: no answer in 1m5s", "lds/t9": "not judged: other parts took all of the time for 5m0s",
		} {
			if p := r.partOf(name); !p.Unobserved || p.Envoy != want {
				t.Errorf("part %s is %q (unobserved %v), want %q", name, p.Envoy, p.Unobserved, want)
			}
		}
	})
}

// TestB52_EndlessChangesLeaveTheQueue: a part that waits for the judge, which has other parts, passes although its changes do not
// end.
func TestB52_EndlessChangesLeaveTheQueue(t *testing.T) {
	d := newJudgedDriver(t, nil)
	d.busy = true
	began := d.now
	for i := 0; d.outcomes.Promoted == 1; i++ {
		if d.now.Sub(began) > 2*JudgeLimit+maxGathering+JudgeQueue {
			t.Fatalf("no edition was promoted in %v: %+v", d.now.Sub(began), d.State())
		}
		d.put("a", strconv.Itoa(i))
		d.sleep(5 * time.Second)
	}
}

// TestB52_OldestPartIsNext: the judge is given the part with the oldest change next, although its edition was replaced and joined
// the queue after the others.
func TestB52_OldestPartIsNext(t *testing.T) {
	judgedParts(t, "", func(r *testRelay, j *scriptedJudge) {
		j.takes(r.t, "a")
		r.change("c", "1")
		time.Sleep(quietTime + time.Second)
		r.change("b", "3")
		time.Sleep(quietTime + time.Second)
		r.expectParts("lds/a held", "lds/b held", "lds/c held")
		for _, next := range []string{"b", "c"} {
			j.answers <- Judgement{Accepted: "accepted by Envoy"}
			time.Sleep(time.Second)
			j.takes(r.t, next)
		}
		r.expectJudge("a@2", "b@3", "c@1")
		r.expect("group", "a@2", "b@3")
	})
}

// TestB54_HaltsByTheJudgeReachPeers: what the judge of one relay rejects is halted at the other one, whose judge need not answer.
func TestB54_HaltsByTheJudgeReachPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, j := newJudgedRelay(t, "", "group")
		second, other := newJudgedRelay(t, "", "group")
		for _, r := range []*testRelay{first, second} {
			r.change("a", "2")
		}
		time.Sleep(quietTime + time.Second)
		j.takes(t, "a")
		other.takes(t, "a")
		j.answers <- Judgement{Rejected: "bad listener"}
		time.Sleep(time.Second)
		second.Hear("first", "process", first.Decisions())
		time.Sleep(time.Second)
		<-other.ended
		if s := second.Status(); s.Phase != Halted || s.Halted.Reason != "halted at first: bad listener" {
			t.Errorf("the peer is %v: %+v", s.Phase, s.Halted)
		}
		second.expect("group", "a@1")
		second.expectJudge("a@1")
	})
}
