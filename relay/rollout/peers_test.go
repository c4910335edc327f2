package rollout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/relay/relaytest/logs"
)

// A tier is two relays that hear of one another's decisions.
type tier struct {
	t      *testing.T
	relays []*testRelay
	told   []func() // tells the other relay what the one of the same index has decided
	log    logs.Log
}

// inTier runs a test in a bubble, with two relays whose groups have a canary and a client of the rest.
func inTier(t *testing.T, stages string, test func(t *testing.T, w *tier)) {
	t.Helper()
	inTierOf(t, Config{Stages: parseStages(t, stages)}, func(*tier, int) Judge { return nil }, test)
}

// inTierOf is inTier with another configuration, and a judge of each relay.
func inTierOf(t *testing.T, cfg Config, judge func(w *tier, relay int) Judge, test func(t *testing.T, w *tier)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &tier{t: t}
		for i := range 2 {
			r := newTestRelayWith(t, cfg, judge(w, i), "group")
			r.cfg.Logger = slog.New(slog.NewTextHandler(&w.log, nil))
			w.relays = append(w.relays, r)
			w.told = append(w.told, func() {
				w.relays[1-i].Hear(fmt.Sprint("relay", i), fmt.Sprint("process", i), w.relays[i].Decisions())
			})
			r.cfg.Told = func() { w.told[i]() }
		}
		for _, r := range w.relays {
			go r.Run(t.Context(), false)
		}
		test(t, w)
	})
}

// change changes a listener at both relays.
func (w *tier) change(name, version string) {
	for _, r := range w.relays {
		r.change(name, version)
	}
}

// wait lets time pass.
func (w *tier) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// want fails the test unless each relay is in a phase, at a stage.
func (w *tier) want(when string, want ...string) {
	w.t.Helper()
	w.wait(time.Second)
	for i, r := range w.relays {
		s := r.Status()
		got := fmt.Sprint(s.Phase, " ", s.Stage)
		if s.Halted != nil {
			got = fmt.Sprintf("halted by %q: %s", s.Halted.Peer, s.Halted.Reason)
		}
		if got != want[i] {
			w.t.Errorf("%s: relay%d is %s, want %s", when, i, got, want[i])
		}
	}
}

// abort changes a listener at both relays. An operator aborts that at relay0, and relay1 follows. It returns what both are then.
func (w *tier) abort() (halted []string) {
	w.t.Helper()
	w.change("a", "2")
	w.wait(quietTime + time.Second)
	w.must(w.relays[0].Abort(w.t.Context(), "", "", "test"))
	halted = []string{`halted by "": abort by test`, `halted by "relay0": halted at relay0: abort by test`}
	w.want("aborted", halted...)
	return halted
}

func (w *tier) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// TestB54_HaltsReachPeers: what canaries of one relay reject is halted at the other one, and both resume together.
func TestB54_HaltsReachPeers(t *testing.T) {
	inTier(t, "id=canary* 10m", func(t *testing.T, w *tier) {
		canary := w.relays[0].connect("canary", "group")
		w.wait(time.Second)
		canary.rejects.Store(true)
		w.change("a", "2")
		w.wait(quietTime + time.Second)
		reason := w.relays[0].Status().Halted
		if reason == nil {
			t.Fatalf("relay0 is %v, want halted", w.relays[0].Status().Phase)
		}
		w.want("rejected at one", `halted by "": `+reason.Reason, `halted by "relay0": halted at relay0: `+reason.Reason)
		w.relays[1].expect("group", "a@1")
		if d := w.relays[1].Decisions(); len(d.Halted) != 0 {
			t.Errorf("relay1 tells of %+v, which it has not decided", d.Halted)
		}
		if d := w.relays[1].Decisions(); len(d.Followed) != 1 || !d.Followed[0].Partial {
			t.Errorf("relay1 follows %+v, want a halt that may be about more", d.Followed)
		}

		canary.rejects.Store(false)
		w.must(w.relays[0].Resume(t.Context(), "", "test"))
		w.wait(quietTime + time.Second)
		w.want("resumed at one", "rolling 1", "rolling 1")
	})
}

// TestB54_HaltsAreByContent: a peer's halt of other content halts nothing, and it halts what is made later.
func TestB54_HaltsAreByContent(t *testing.T) {
	inTier(t, "id=canary* 10m", func(t *testing.T, w *tier) {
		w.relays[0].change("a", "2")
		w.relays[1].change("a", "3")
		w.wait(quietTime + time.Second)
		w.must(w.relays[0].Abort(t.Context(), "", "bad", "test"))
		w.want("other content", `halted by "": abort by test: bad`, "rolling 1")
		w.relays[1].change("a", "2") // the origin has reached it now
		w.wait(maxGathering + time.Minute)
		w.want("the same content", `halted by "": abort by test: bad`, `halted by "relay0": halted at relay0: abort by test: bad`)
		w.change("a", "4") // the repair
		w.wait(quietTime + time.Second)
		w.want("repaired", "rolling 1", "rolling 1")
	})
}

// TestB54_OperatorsOverrulePeers: an operator of a relay that follows a halt resumes it there alone.
func TestB54_OperatorsOverrulePeers(t *testing.T) {
	inTier(t, "id=canary* 10m", func(t *testing.T, w *tier) {
		w.abort()
		w.must(w.relays[1].Resume(t.Context(), "", "test"))
		w.wait(quietTime + time.Second)
		w.told[0]()
		w.want("resumed at the other one", `halted by "": abort by test`, "rolling 1")
	})
}

// TestB54_PromotionsReachPeers: an operator promotes a stage, and then all, at one relay. What is promoted to all clients of a
// relay is promoted although it is halted.
func TestB54_PromotionsReachPeers(t *testing.T) {
	inTier(t, "id=canary* approve, id=early* approve", func(t *testing.T, w *tier) {
		w.change("a", "2")
		w.wait(quietTime + time.Second)
		w.want("first stage", "rolling 1", "rolling 1")
		w.must(w.relays[0].Promote(t.Context(), "", "test"))
		w.want("second stage", "rolling 2", "rolling 2")
		w.must(w.relays[1].Abort(t.Context(), "", "", "test"))
		w.want("aborted", `halted by "relay1": halted at relay1: abort by test`, `halted by "": abort by test`)
		w.must(w.relays[0].PromoteAll(t.Context(), "test"))
		w.want("promoted to all", "current 0", "current 0")
		for _, r := range w.relays {
			r.expect("group", "a@2")
		}
	})
}

// TestB54_PromotedChangesStay: what all clients of a relay have is not taken from them because a peer halts it. The log says so.
func TestB54_PromotedChangesStay(t *testing.T) {
	inTier(t, "id=canary* approve", func(t *testing.T, w *tier) {
		w.told[1] = func() {}
		w.change("a", "2")
		w.wait(quietTime + time.Second)
		w.must(w.relays[1].Promote(t.Context(), "", "test"))
		w.must(w.relays[0].Abort(t.Context(), "", "bad", "test"))
		w.want("halted at one", `halted by "": abort by test: bad`, "current 0")
		w.relays[1].expect("group", "a@2")
		if !strings.Contains(w.log.String(), "a peer has halted changes that all clients of this relay have") {
			t.Errorf("log %s, want the halt of the peer", w.log.String())
		}
	})
}

// TestB54_NoAnswerChangesNothing: a peer that does not answer is named. A halt of it stays, also if another process answers at
// its address that does not know of it, or if it is no peer any longer.
func TestB54_NoAnswerChangesNothing(t *testing.T) {
	inTier(t, "id=canary* 10m", func(t *testing.T, w *tier) {
		halted := w.abort()
		follower := w.relays[1]
		follower.HearFailure("relay0", errors.New("broken"))
		w.wait(time.Minute)
		w.want("no answer", halted...)
		if f := follower.Status().Peers; len(f) != 1 || f[0].Address != "relay0" || f[0].Error != "broken" || time.Since(f[0].Since) < time.Minute {
			t.Errorf("peers %+v, want relay0, which is broken", f)
		}
		decided := w.relays[0].Decisions()
		follower.Hear("relay0", "another process", Decisions{})
		w.want("another process", halted...)
		follower.Hear("relay0", "a third process", decided)
		w.want("a process that knows of it", halted...)
		follower.Forget("relay0")
		w.want("no peer", halted...)
		follower.Hear("relay0", "a third process", Decisions{})
		w.wait(quietTime + time.Second)
		w.want("revoked", halted[0], "rolling 1")
		if f := follower.Status().Peers; len(f) != 0 {
			t.Errorf("peers %+v, want none", f)
		}
	})
}

// TestB55_WhatHasNoRoomEndsNothing: a halt that another relay does not list, while it lists not all, stays.
func TestB55_WhatHasNoRoomEndsNothing(t *testing.T) {
	inTier(t, "id=canary* 10m", func(t *testing.T, w *tier) {
		halted := w.abort()
		w.relays[1].Hear("relay0", "process0", Decisions{Incomplete: true})
		w.wait(time.Minute)
		w.want("not listed", halted...)
		w.relays[1].Hear("relay0", "process0", Decisions{})
		w.want("revoked", halted[0], "rolling 1")
	})
}

// TestB54_HaltsOfPeersAreRestored: another process follows the halt that one before has followed.
func TestB54_HaltsOfPeersAreRestored(t *testing.T) {
	inTier(t, "id=canary* 10m", func(t *testing.T, w *tier) {
		w.abort()
		again := NewController(w.relays[1].cfg, w.relays[1].Withdrawn())
		if d := again.Status().Halted; d == nil || d.Peer != "relay0" {
			t.Errorf("restored as %+v, want halted by relay0", d)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go again.Run(ctx, false)
		synctest.Wait()
		if d := again.Decisions(); len(d.Halted) != 0 {
			t.Errorf("it tells of %+v, which it has not decided", d.Halted)
		}
		again.Hear("relay0", "process0", Decisions{})
		w.wait(time.Second)
		if p := again.Status().Phase; p == Halted {
			t.Error("still halted after the peer has resumed")
		}
		cancel()
	})
}

// TestB54_APeerDoesNotEndAnUndo: what an operator undoes while a peer's halt of a newer edition is followed is not resumed with
// the peer, and peers are told of it.
func TestB54_APeerDoesNotEndAnUndo(t *testing.T) {
	inTier(t, "id=canary* 10m", func(t *testing.T, w *tier) {
		for _, r := range w.relays {
			r.changeCluster("cluster-x", "1")
			r.change("l", "cluster-x")
		}
		synctest.Wait()
		w.must(w.relays[0].PromoteAll(t.Context(), "test"))
		w.wait(maxGathering)
		w.want("promoted", "current 0", "current 0")
		w.change("m", "cluster-x")
		w.wait(quietTime + time.Second)
		w.must(w.relays[0].Abort(t.Context(), "", "", "test"))
		w.want("aborted", `halted by "": abort by test`, `halted by "relay0": halted at relay0: abort by test`)
		w.must(w.relays[1].Undo(t.Context(), "", "bad", "test"))
		w.want("undone", `halted by "": abort by test`, `halted by "": undo by test: bad`)
		if d := w.relays[1].Decisions().Halted; len(d) != 1 {
			t.Errorf("relay1 tells of %+v, want the undo", d)
		}
		w.must(w.relays[0].Resume(t.Context(), "", "test"))
		w.wait(quietTime + time.Second)
		w.want("resumed", "rolling 1", `halted by "": undo by test: bad`)
		w.relays[1].serves(1, "a@1")
	})
}

// TestB54_AnUndoOverrulesPromotions: an operator who undoes a promotion overrules what peers have promoted before. The relay
// does not tell of its own promotion any longer.
func TestB54_AnUndoOverrulesPromotions(t *testing.T) {
	inTier(t, "id=canary* approve", func(t *testing.T, w *tier) {
		hear := w.told[1]
		w.told[1] = func() {}
		w.change("a", "2")
		w.wait(quietTime + time.Second)
		for _, i := range []int{1, 0} {
			w.must(w.relays[i].Promote(t.Context(), "", "test"))
		}
		w.want("promoted", "current 0", "current 0")
		hear()
		w.wait(time.Second)
		w.must(w.relays[0].Undo(t.Context(), "", "bad", "test"))
		hear()
		w.want("undone", `halted by "": undo by test: bad`, "current 0")
		w.relays[0].expect("group", "a@1")
		if d := w.relays[0].Decisions().Promoted; len(d) != 0 {
			t.Errorf("relay0 tells that it has promoted %+v, which it has undone", d)
		}
	})
}

// TestB54_ARepeatedHaltRemainsThatOfThePeer: an edition that was halted with a peer, and that the origin states again, is halted
// again with the peer, and ends with the halt there.
func TestB54_ARepeatedHaltRemainsThatOfThePeer(t *testing.T) {
	inTier(t, "id=canary* 10m", func(t *testing.T, w *tier) {
		halted := w.abort()
		w.relays[1].change("a", "1")
		w.want("reverted", halted[0], "current 0")
		w.relays[1].change("a", "2")
		w.wait(quietTime + time.Second)
		w.want("stated again", halted...)
		if d := w.relays[1].Decisions().Halted; len(d) != 0 {
			t.Errorf("relay1 tells of %+v, which it has not decided", d)
		}
		w.must(w.relays[0].Resume(t.Context(), "", "test"))
		w.wait(quietTime + time.Second)
		w.want("resumed", "rolling 1", "rolling 1")
	})
}

// TestB54_ARevokedHaltIsNotRepeated: an edition that was halted with a peer is not halted again once the peer has resumed it,
// also if the origin had reverted it then.
func TestB54_ARevokedHaltIsNotRepeated(t *testing.T) {
	inTier(t, "id=canary* 10m", func(t *testing.T, w *tier) {
		w.abort()
		w.relays[1].change("a", "1")
		w.want("reverted", `halted by "": abort by test`, "current 0")
		w.must(w.relays[0].Resume(t.Context(), "", "test"))
		w.wait(quietTime + time.Second)
		w.relays[1].change("a", "2")
		w.wait(quietTime + time.Second)
		w.want("stated again", "rolling 1", "rolling 1")
	})
}

// TestB54_AResumedHaltStaysResumedAfterARestart: an operator resumes what an earlier process had halted with a peer, before the
// peer is heard.
func TestB54_AResumedHaltStaysResumedAfterARestart(t *testing.T) {
	inTier(t, "id=canary* 10m", func(t *testing.T, w *tier) {
		w.abort()
		again := newTestRelayAfter(t, "id=canary* 10m", w.relays[1].Withdrawn())
		again.addGroup("group", "a@1")
		again.change("a", "2") // before Run, which would take a@1 for a correction
		go again.Run(t.Context(), false)
		w.wait(time.Second)
		w.must(again.Resume(t.Context(), "", "test"))
		again.Hear("relay0", "process0", w.relays[0].Decisions())
		w.wait(quietTime + time.Second)
		again.expectParts("lds/a rolling")
	})
}

// TestB54_ACommandWithoutEffectOverrulesNothing: a command that does not apply to a part, because it gathers changes, does not
// make it ignore the halts of peers.
func TestB54_ACommandWithoutEffectOverrulesNothing(t *testing.T) {
	inTier(t, "id=canary* 10m", func(t *testing.T, w *tier) {
		for _, told := range w.relays {
			told.change("l", "cluster-x")
		}
		w.relays[1].changeCluster("cluster-x", "1")
		w.wait(quietTime + time.Second)
		w.told[0] = func() {}
		w.must(w.relays[0].Abort(t.Context(), "", "", "test"))
		w.must(w.relays[1].Abort(t.Context(), "", "", "test"))
		w.relays[1].Hear("relay0", "process0", w.relays[0].Decisions())
		for i := range 4 {
			w.relays[1].changeCluster("cluster-x", fmt.Sprint(i+2))
			w.wait(time.Second)
		}
		w.relays[1].expectParts("lds/l gathering")
		if w.relays[1].Promote(t.Context(), "", "test") == nil || w.relays[1].Resume(t.Context(), "", "test") == nil {
			t.Error("a command succeeded for a part that gathers")
		}
		w.wait(quietTime + time.Second)
		w.relays[1].expectParts("lds/l halted")
	})
}

// TestB54_AHaltReachesASupersededEdition: a halt of what the first cohort is still served, while newer changes gather, withdraws
// it.
func TestB54_AHaltReachesASupersededEdition(t *testing.T) {
	inTier(t, "id=canary* 10m", func(t *testing.T, w *tier) {
		w.change("a", "2")
		w.wait(quietTime + time.Second)
		w.relays[1].change("a", "3")
		w.wait(time.Second)
		w.relays[1].serves(0, "a@2")
		w.must(w.relays[0].Abort(t.Context(), "", "", "test"))
		w.wait(100 * time.Millisecond)
		w.relays[1].expectParts("lds/a gathering")
		w.relays[1].serves(0, "a@1")
		w.wait(quietTime)
		w.relays[1].expectParts("lds/a rolling")
		w.relays[1].serves(0, "a@3")
	})
}

// TestB54_APromotionReachesARestoredHalt: what a peer's operator promotes to all clients is promoted also if an earlier process
// had halted it, whose content the relay does not have.
func TestB54_APromotionReachesARestoredHalt(t *testing.T) {
	inTier(t, "id=canary* 10m", func(t *testing.T, w *tier) {
		w.change("a", "2")
		w.wait(quietTime + time.Second)
		w.must(w.relays[1].Abort(t.Context(), "", "", "test"))
		again := newTestRelayAfter(t, "id=canary* 10m", w.relays[1].Withdrawn())
		again.addGroup("group", "a@1")
		again.change("a", "2") // before Run, which would take a@1 for a correction
		go again.Run(t.Context(), false)
		w.wait(time.Second)
		again.expectParts("lds/a halted")
		w.must(w.relays[0].PromoteAll(t.Context(), "test"))
		again.Hear("relay0", "process0", w.relays[0].Decisions())
		w.wait(quietTime + time.Second)
		again.expectParts()
		again.expect("group", "a@2")
	})
}

// TestB54_OneOfSeveralHaltsEnds: several parts are halted at the same time, and one of them is resumed. It is at the peers, too.
func TestB54_OneOfSeveralHaltsEnds(t *testing.T) {
	inTier(t, "id=canary* 10m", func(t *testing.T, w *tier) {
		w.change("a", "2")
		w.change("b", "2")
		w.wait(quietTime + time.Second)
		w.must(w.relays[0].Abort(t.Context(), "", "", "test"))
		w.wait(time.Second)
		w.relays[1].expectParts("lds/a halted", "lds/b halted")
		w.must(w.relays[0].Resume(t.Context(), "lds/a", "test"))
		w.wait(quietTime + time.Second)
		for _, r := range w.relays {
			r.expectParts("lds/a rolling", "lds/b halted")
		}
	})
}

// TestB54_DecisionsAreForgotten: what a part has of decisions is bounded by those that peers tell.
func TestB54_DecisionsAreForgotten(t *testing.T) {
	inTier(t, "id=canary* 10m", func(t *testing.T, w *tier) {
		w.change("a", "2")
		w.wait(quietTime + time.Second)
		w.must(w.relays[0].Abort(t.Context(), "", "", "test"))
		halted := slices.Clone(w.relays[0].Decisions().Halted)
		w.must(w.relays[1].PromoteAll(t.Context(), "test"))
		for range 100 {
			halted[0].At = halted[0].At.Add(time.Second)
			w.relays[1].Hear("relay0", "process0", Decisions{Halted: halted})
			w.wait(time.Second)
		}
		w.must(w.relays[1].execute(t.Context(), func(context.Context) error {
			for _, p := range w.relays[1].parts {
				if n := len(p.follows.answered) + len(p.follows.had); n == 0 || n > 2 {
					t.Errorf("part %s has %d decisions, want the last ones", p.edition.name, n)
				}
			}
			return nil
		}))
	})
}

// TestB55_ReasonsNameTheRelaysBetween, also if one of them may not tell the reason.
func TestB55_ReasonsNameTheRelaysBetween(t *testing.T) {
	for reason, want := range map[string]string{
		"": "halted at b:1: halted at a:1", "two clients reject cds/a": "halted at b:1: halted at a:1: two clients reject cds/a",
	} {
		if got := HaltedAt("b:1", HaltedAt("a:1", reason)); got != want {
			t.Errorf("reason %q, want %q", got, want)
		}
	}
}

// TestB57_AHaltMovesWithItsRelay: a relay with another address may end the halt that it has told at the one before, which is that
// of no peer any longer: if it is the same process, or if it still tells the halt.
func TestB57_AHaltMovesWithItsRelay(t *testing.T) {
	for _, tt := range []struct {
		name, process string
		tells         bool   // of the halt, at first
		then          string // when it does not
	}{
		{"the same process", "process0", true, "rolling 1"},
		{"the same process, after the end", "process0", false, "rolling 1"},
		{"another process that knows of it", "another", true, "rolling 1"},
		{"another process", "another", false, `halted by "relay0": halted at relay0: abort by test`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inTier(t, "id=canary* 10m", func(t *testing.T, w *tier) {
				halted := w.abort()
				w.relays[1].Forget("relay0")
				w.want("forgotten", halted...)
				if tt.tells {
					w.relays[1].Hear("moved", tt.process, w.relays[0].Decisions())
					w.want("moved", halted[0], strings.Replace(halted[1], "relay0", "moved", 1))
				}
				w.relays[1].Hear("moved", tt.process, Decisions{})
				w.wait(quietTime + time.Second)
				w.want("ended", halted[0], tt.then)
			})
		})
	}
}

// TestB57_WhatIsOverruledStaysOverruled: an operator has resumed what a relay above has halted, which then tells it at another
// address and with another name.
func TestB57_WhatIsOverruledStaysOverruled(t *testing.T) {
	inTier(t, "id=canary* 10m", func(t *testing.T, w *tier) {
		halted := w.abort()
		w.must(w.relays[1].Resume(t.Context(), "", "test"))
		w.wait(quietTime + time.Second)
		w.relays[1].Forget("relay0")
		w.wait(time.Second)
		renamed := w.relays[0].Decisions()
		renamed.Halted = slices.Clone(renamed.Halted)
		renamed.Halted[0].Part = "lds/other"
		w.relays[1].Hear("moved", "another", renamed)
		w.want("told again", halted[0], "rolling 1")
	})
}

// TestB57_AnotherNameIsTheSameHalt: a relay above whose rules change may tell a halt with another name, and without its reason. It
// remains in force, and its end is heard.
func TestB57_AnotherNameIsTheSameHalt(t *testing.T) {
	inTier(t, "id=canary* 10m", func(t *testing.T, w *tier) {
		halted := w.abort()
		renamed := w.relays[0].Decisions()
		renamed.Halted = slices.Clone(renamed.Halted)
		renamed.Halted[0].Part, renamed.Halted[0].Reason = "lds/other", ""
		w.relays[1].Hear("relay0", "process0", renamed)
		w.want("renamed", halted...)
		if strings.Contains(w.log.String(), "rollout resumed with a peer") {
			t.Errorf("log %s, want that nothing is resumed", w.log.String())
		}
		w.relays[1].Hear("relay0", "process0", Decisions{})
		w.wait(quietTime + time.Second)
		w.want("ended", halted[0], "rolling 1")
	})
}

// TestB57_DecisionsHaveTimesOfTheirOwn: what one command halts has different times, by which others know it.
func TestB57_DecisionsHaveTimesOfTheirOwn(t *testing.T) {
	inTier(t, "id=canary* approve, id=early* approve", func(t *testing.T, w *tier) {
		for _, name := range []string{"a", "b", "c"} {
			w.change(name, "2")
		}
		w.wait(quietTime + time.Second)
		r, times := w.relays[0], make(map[time.Time]bool)
		w.must(r.Promote(t.Context(), "", "test"))
		w.must(r.Abort(t.Context(), "", "", "test"))
		d := r.Decisions()
		for _, d := range slices.Concat(d.Promoted, d.Halted) {
			times[d.At] = true
		}
		if len(d.Halted) != 3 || len(times) != len(d.Promoted)+3 {
			t.Errorf("%d halts, %d promotions at %v, want 3 halts, and all times different", len(d.Halted), len(d.Promoted), times)
		}
	})
}

// TestB54_AnotherProcessMayEndAHaltMeanwhile: an edition that was halted with a peer is not halted again once another process of the
// peer, which knows of the halt, has ended it, also if the origin had reverted the edition then.
func TestB54_AnotherProcessMayEndAHaltMeanwhile(t *testing.T) {
	inTier(t, "id=canary* 10m", func(t *testing.T, w *tier) {
		halted := w.abort()
		w.relays[1].change("a", "1")
		w.want("reverted", halted[0], "current 0")
		w.relays[1].Hear("relay0", "another process", w.relays[0].Decisions())
		w.want("a process that knows of it", halted[0], "current 0")
		w.relays[1].Hear("relay0", "another process", Decisions{})
		w.relays[1].change("a", "2")
		w.wait(quietTime + time.Second)
		w.want("stated again", halted[0], "rolling 1")
	})
}

// TestB57_AHaltEndsWithTheLastThatTellsIt: a halt that two relays above tell, because it is that of one above both, remains in force
// after one of them has ended it.
func TestB57_AHaltEndsWithTheLastThatTellsIt(t *testing.T) {
	inTier(t, "id=canary* 10m", func(t *testing.T, w *tier) {
		halted := w.abort()
		w.relays[1].Hear("beside", "another process", w.relays[0].Decisions())
		w.relays[1].Hear("relay0", "process0", Decisions{})
		w.want("ended by one", halted[0], strings.Replace(halted[1], "relay0", "beside", 1))
		w.relays[1].Hear("beside", "another process", Decisions{})
		w.wait(quietTime + time.Second)
		w.want("ended by both", halted[0], "rolling 1")
	})
}

// TestB54_WhatAllClientsHadIsHaltedNextTime: changes that a peer has halted when all clients of a relay had them are halted if the
// origin states them again.
func TestB54_WhatAllClientsHadIsHaltedNextTime(t *testing.T) {
	inTier(t, "id=canary* 10m", func(t *testing.T, w *tier) {
		w.told[1] = func() {}
		follower := w.relays[1]
		w.change("a", "2")
		w.wait(quietTime + time.Second)
		w.must(follower.Promote(t.Context(), "", "test"))
		w.must(w.relays[0].Abort(t.Context(), "", "bad", "test"))
		w.want("halted at one", `halted by "": abort by test: bad`, "current 0")
		follower.change("a", "3")
		w.wait(quietTime + time.Second)
		w.must(follower.Promote(t.Context(), "", "test"))
		follower.change("a", "2")
		w.wait(quietTime + time.Second)
		w.want("stated again", `halted by "": abort by test: bad`, `halted by "relay0": halted at relay0: abort by test: bad`)
		if n := strings.Count(w.log.String(), "a peer has halted changes that all clients"); n != 1 {
			t.Errorf("%d warnings that all clients have the changes, want one", n)
		}
	})
}

// TestB54_AHaltAppliesEachTime: changes that a peer has halted are halted again if the origin states them again after others, beside
// further ones.
func TestB54_AHaltAppliesEachTime(t *testing.T) {
	inTier(t, "id=canary* 10m", func(t *testing.T, w *tier) {
		for _, r := range w.relays {
			r.changeCluster("cluster-x", "1")
			r.change("a", "cluster-x")
		}
		w.wait(quietTime + time.Second)
		w.must(w.relays[0].Abort(t.Context(), "", "", "test"))
		halted := []string{`halted by "": abort by test`, `halted by "relay0": halted at relay0: abort by test`}
		w.want("aborted", halted...)
		w.relays[1].change("a", "3")
		w.wait(maxGathering)
		w.relays[1].changeCluster("cluster-x", "2")
		w.relays[1].change("a", "cluster-x")
		w.wait(maxGathering)
		w.want("other content of one", halted[0], "rolling 1")
		w.relays[1].changeCluster("cluster-x", "1")
		w.relays[1].change("b", "cluster-x")
		w.wait(maxGathering)
		w.want("the same content beside another", halted...)
	})
}

// TestB57_WhatIsOverruledStaysSoInAJoinedPart: an operator resumes two parts that follow halts. They become one, because of a change
// that connects them, which is not halted again.
func TestB57_WhatIsOverruledStaysSoInAJoinedPart(t *testing.T) {
	inTier(t, "id=canary* 10m", func(t *testing.T, w *tier) {
		w.change("a", "cluster-x")
		w.change("b", "cluster-x")
		w.wait(quietTime + time.Second)
		for _, part := range []string{"lds/a", "lds/b"} {
			w.must(w.relays[0].Abort(t.Context(), part, "", "test"))
			w.wait(time.Second) // at another time
		}
		follower := w.relays[1]
		follower.expectParts("lds/a halted", "lds/b halted")
		follower.changeCluster("cluster-x", "1")
		w.wait(quietTime + time.Second)
		for _, part := range []string{"lds/a", "lds/b"} {
			w.must(follower.Resume(t.Context(), part, "test"))
		}
		w.wait(2*quietTime + time.Second)
		follower.expectParts("lds/a rolling")
	})
}

// TestB57_TheProcessThatTellsAHaltIsStored: another process of the peer tells the halt, so that it may end it after a restart of this
// relay, too.
func TestB57_TheProcessThatTellsAHaltIsStored(t *testing.T) {
	inTier(t, "id=canary* 10m", func(t *testing.T, w *tier) {
		w.abort()
		follower, stored := w.relays[1], make(chan struct{}, 100)
		w.must(follower.execute(t.Context(), func(context.Context) error {
			follower.cfg.Decided = func(context.Context) { stored <- struct{}{} }
			return nil
		}))
		follower.Hear("relay0", "another", w.relays[0].Decisions())
		w.wait(time.Second)
		all := follower.Withdrawn()
		if len(all) != 1 || all[0].Peer == nil || all[0].Peer.Instance != "another" || len(stored) != 1 {
			t.Errorf("stored %d times: %+v, want once, with the other process", len(stored), all)
		}
	})
}
