package rollout

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// A randomTier is a tier whose origin changes at random, with operators who act at random.
type randomTier struct {
	*tier
	rnd    *rand.Rand
	latest map[string]string // versions of listeners, and of clusters
	frozen map[*testRelay]bool
	heard  map[*testRelay]*heardWords
	above  map[string]*upper // by address
	log    []string
}

// pick returns one of some values.
func pick[T any](w *randomTier, of ...T) T { return of[w.rnd.IntN(len(of))] }

// changeListener changes a listener, which may refer to a cluster, or which canaries may reject.
func (w *randomTier) changeListener(*testRelay, string) error {
	name, version := pick(w, "a", "b", "c", "d", "e"), pick(w, "1", "2", "3", "cluster-x", "cluster-y", "bad", "")
	if version == "" && w.latest[name] == "" {
		return nil
	}
	w.change(name, version)
	w.latest[name] = version
	return nil
}

// changeCluster changes a cluster.
func (w *randomTier) changeCluster(*testRelay, string) error {
	name, version := pick(w, "cluster-x", "cluster-y"), pick(w, "1", "2", "")
	if version == "" && w.latest[name] == "" {
		return nil
	}
	for _, r := range w.relays {
		r.changeCluster(name, version)
	}
	w.latest[name] = version
	return nil
}

// freeze freezes a relay, or thaws it.
func (w *randomTier) freeze(r *testRelay, frozen bool) error {
	w.heard[r].freeze(frozen)
	w.frozen[r] = frozen
	defer r.Poke()
	return r.execute(w.t.Context(), func(context.Context) error {
		r.cfg.Frozen = func() bool { return frozen }
		return nil
	})
}

// act does one of all that may happen.
func (w *randomTier) act() {
	r, ctx := pick(w, w.relays...), w.t.Context()
	var part string
	if parts := r.Status().Parts; len(parts) > 0 && pick(w, true, false) {
		part = pick(w, parts...).Part
	}
	type action = func(r *testRelay, part string) error
	actions := map[string]action{
		"abort":   func(r *testRelay, part string) error { return r.Abort(ctx, part, "", "test") },
		"resume":  func(r *testRelay, part string) error { return r.Resume(ctx, part, "test") },
		"promote": func(r *testRelay, part string) error { return r.Promote(ctx, part, "test") },
		"all":     func(r *testRelay, _ string) error { return r.PromoteAll(ctx, "test") },
		"undo":    func(r *testRelay, part string) error { return r.Undo(ctx, part, "", "test") },
		"freeze":  func(r *testRelay, _ string) error { return w.freeze(r, !w.frozen[r]) },
		"change":  w.changeListener, "change again": w.changeListener, "cluster": w.changeCluster,
		"above halts": w.haltAbove, "above ends": w.endAbove, "above is incomplete": w.incompleteAbove,
		"above is another process": w.restartAbove, "above is forgotten": w.forgetAbove,
	}
	name := pick(w, slices.Sorted(maps.Keys(actions))...)
	commanded := part
	if name == "all" {
		commanded = ""
	}
	names := w.namesOf(r, commanded)
	err := actions[name](r, part)
	if overrules := name == "resume" || name == "promote" || name == "all"; overrules && err == nil {
		w.heard[r].overrule(names)
	}
	w.wait(minPause) // what is heard counts when it is evaluated
	pause := pick(w, 0, time.Second, 3*time.Second, 5*time.Second, 2*time.Minute)
	w.log = append(w.log, fmt.Sprintf("%s %q: %v, then %v", name, part, err, pause))
	w.wait(pause)
	w.checkHalts()
}

// end makes the origin state nothing bad, and operators resume all.
func (w *randomTier) end() {
	for _, r := range w.relays {
		w.must(w.freeze(r, false))
	}
	for address := range w.above {
		_ = w.tellAbove(address, Decisions{}, w.relays...)
	}
	for name, version := range w.latest {
		if version == "bad" {
			w.change(name, "4")
			w.latest[name] = "4"
		}
	}
	for range 20 {
		w.wait(10 * time.Minute)
		for _, r := range w.relays {
			_ = r.Resume(w.t.Context(), "", "test") // unless nothing is halted
		}
	}
}

// randomJudge returns a judge of a relay that answers at random: what it rejects is bad, but it may accept that, name nothing in its
// error, or take too long.
func randomJudge(seed uint64) func(w *tier, relay int) Judge {
	return func(w *tier, relay int) Judge {
		rnd := rand.New(rand.NewPCG(seed, uint64(relay))) // only one judge of a relay runs
		return func(ctx context.Context, edition []Subject) (answer Judgement) {
			r := w.relays[relay]
			select {
			case <-time.After(time.Duration(rnd.IntN(5)*rnd.IntN(20)) * time.Second):
			case <-ctx.Done():
				return Judgement{NotJudged: "too late"}
			}
			view := r.views["group"].Cohort(r.cfg.JudgeView()).Generation().Type(listeners).Wildcard
			for e := range view.Since(0) {
				if !e.Present() || e.Resource.Version != "bad" || rnd.IntN(4) == 0 {
					continue
				}
				answer.Rejected = "listener " + e.Name.String() + ": it is bad"
				if answer.NACKs = nil; rnd.IntN(3) > 0 {
					answer.NACKs = map[string]string{listeners: answer.Rejected}
				}
			}
			if answer.Rejected == "" && rnd.IntN(4) == 0 {
				answer.NotJudged = "no Envoy"
			}
			return answer
		}
	}
}

// TestB54_RandomTiers: whatever an origin, its clients, the operators of two relays and relays above them do, all clients
// have the latest state once operators have resumed what is halted, and nothing waits any longer. Meanwhile, no cohort is served
// before others what a peer or a relay above tells as halted, and a halt is followed only while it is in force. Half of the tiers
// have a judge.
func TestB54_RandomTiers(t *testing.T) {
	for seed := range uint64(check.Rounds(25)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			cfg := Config{Stages: parseStages(t, "id=canary1 1m, id=canary2 1m"), Judged: seed%2 == 1}
			judge := func(*tier, int) Judge { return nil }
			if cfg.Judged {
				judge = randomJudge(seed)
			}
			inTierOf(t, cfg, judge, func(t *testing.T, of *tier) {
				w := &randomTier{
					tier: of, rnd: rand.New(rand.NewPCG(seed, seed)), latest: map[string]string{"a": "1"}, frozen: make(map[*testRelay]bool),
				}
				w.listen()
				for _, r := range w.relays {
					for _, node := range []string{"canary1", "canary2", "other"} {
						client := r.connect(node, "group")
						client.bad.Store("bad")
						client.detail.Store(pick(w, "it is bad", "listener a: it is bad"))
					}
				}
				w.wait(time.Second)
				for range 50 {
					w.act()
				}
				w.end()
				want := []string{}
				for name, version := range w.latest {
					if version != "" {
						want = append(want, name+"@"+version)
					}
				}
				slices.Sort(want)
				for i, r := range w.relays {
					for cohort := range 3 {
						r.serves(cohort, want...)
					}
					if s := r.Status(); s.Waiting != 0 || s.Phase != Current || !s.Oldest.IsZero() {
						t.Errorf("relay %d has the state %+v, want that nothing waits", i, s)
					}
				}
				if t.Failed() {
					t.Log(w.log)
				}
			})
		})
	}
}
