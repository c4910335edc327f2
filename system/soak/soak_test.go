package soak

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

var (
	soakFor     = flag.Duration("for", 35*time.Second, "start rounds of faults for this duration")
	soakSeed    = flag.Uint64("seed", 1, "seed of faults and changes; 0 chooses a random seed")
	soakOnly    = flag.String("only", "", "run only faults whose names contain this text")
	soakClients = flag.Int("clients", 120, "number of client streams")
)

const (
	// massHeldFor is how long relays hold back a mass removal. It must exceed heldWithin, the timeout for the check
	// that they do.
	massHeldFor = heldWithin + 30*time.Second

	// agreeWithin is the timeout for every client to agree with the origin after a round. A relay may ask a returned
	// origin twice for missing resources, each time after 15s without an answer (B.15). It accepts a mass removal
	// only after massHeldFor.
	agreeWithin = massHeldFor + 3*time.Minute

	// spare is the maximum duration of a soak beyond soakFor: for the warm-up, the last round and the final wait.
	spare = agreeWithin + 5*time.Minute

	maxFaults   = 6                      // per round
	changeEvery = 100 * time.Millisecond // between changes of churn
)

// TestSoak runs rounds of faults. A round applies faults while the origins change their resources. It ends when all
// faults are healed and every client agrees with its origin.
func TestSoak(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) }) // runs after all later cleanups
	seed := *soakSeed
	for seed == 0 {
		seed = rand.Uint64N(1_000_000)
	}
	t.Logf("seed %d, %d clients", seed, *soakClients)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("to replay: make soak SEED=%d SOAK=%v CLIENTS=%d", seed, *soakFor, *soakClients)
		}
	})
	if !slices.ContainsFunc(faults, func(f fault) bool { return strings.Contains(f.name, *soakOnly) }) {
		t.Fatalf("-only=%q: no fault has a name that contains this", *soakOnly)
	}
	w := newWorld(t, seed, *soakClients)
	w.warm()
	w.come()
	w.agree("all clients left and connected again")
	survived := make(tally)
	for began := time.Now(); time.Since(began) < *soakFor && !t.Failed() && w.ctx.Err() == nil; {
		survived.add(w.round())
	}
	w.current("all clients leave")
	w.depart()
	w.rid()
	t.Logf("%d changes; faults survived:\n%v\n%v", w.changes(), survived, &w.seen)
}

// round applies some faults, changes resources while they last, heals them, and waits until all clients agree. It
// returns the names of the faults and how long clients took to agree.
func (w *world) round() (names []string, took time.Duration) {
	var heal []func()
	for range 1 + w.random.IntN(maxFaults) {
		f := w.draw()
		if f.alone && len(names) > 0 {
			w.deck = append(w.deck, f)
			break
		}
		if slices.Contains(names, f.name) {
			continue
		}
		names = append(names, f.name)
		w.failing.Store(strings.Join(names, ", "))
		heal = append(heal, f.apply(w))
		w.churn(w.random.IntN(10))
		if f.alone {
			break
		}
	}
	w.churn(5 + w.random.IntN(15))
	w.random.Shuffle(len(heal), func(i, j int) { heal[i], heal[j] = heal[j], heal[i] })
	for _, f := range heal {
		f()
		w.churn(w.random.IntN(10))
	}
	began := time.Now()
	w.agree(strings.Join(names, ", "))
	took = time.Since(began)
	for _, f := range w.later {
		f()
	}
	w.later = nil
	if w.directory.refill() {
		w.agree("the files of the directory were refilled")
	}
	w.sober()
	return names, took
}

// draw returns the next fault of a shuffled deck. The deck contains each fault as often as its weight, so that every
// fault occurs regularly.
func (w *world) draw() fault {
	if len(w.deck) == 0 {
		for _, f := range faults {
			if strings.Contains(f.name, *soakOnly) {
				w.deck = append(w.deck, slices.Repeat([]fault{f}, f.weight)...)
			}
		}
		w.random.Shuffle(len(w.deck), func(i, j int) { w.deck[i], w.deck[j] = w.deck[j], w.deck[i] })
	}
	f := w.deck[0]
	w.deck = w.deck[1:]
	return f
}

// churn makes n random changes, one every changeEvery.
func (w *world) churn(n int) {
	for range n {
		switch i := w.random.IntN(len(w.groups) + 2); {
		case i < len(w.groups):
			w.groups[i].change(w.random)
		case i == len(w.groups):
			w.commons.change(w.random)
		default:
			w.directory.change(w.random)
		}
		select {
		case <-time.After(changeEvery):
		case <-w.ctx.Done():
			return
		}
	}
}

// agree waits until every client has the resources of its origin. It fails the test if a client still differs after
// agreeWithin. after describes the preceding change, for the error.
func (w *world) agree(after string) {
	w.t.Helper()
	w.agreeOf(func(client) bool { return true }, after)
}

// agreeOf is agree for the clients for which which returns true.
func (w *world) agreeOf(which func(client) bool, after string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeoutCause(w.ctx, agreeWithin, fmt.Errorf("%v have passed", agreeWithin))
	defer cancel()
	defer w.operate()()
	wrong := 0
	for _, c := range w.clients {
		if !which(c) {
			continue
		}
		if what := c.agree(ctx); what != "" {
			if wrong++; wrong <= 10 {
				w.t.Errorf("after %s, %v differs from its origin (%v): %s", after, c, context.Cause(ctx), what)
			}
		}
	}
	if wrong > 0 {
		w.t.Fatalf("%d of %d clients differ after %s", wrong, len(w.clients), after)
	}
}

// A tally counts the rounds of each fault, by its name.
type tally map[string]*survival

// A survival summarizes the rounds of one fault.
type survival struct {
	times   int           // number of rounds
	slowest time.Duration // maximum time until all clients agreed
}

func (t tally) add(names []string, took time.Duration) {
	for _, name := range names {
		if t[name] == nil {
			t[name] = new(survival)
		}
		t[name].times++
		t[name].slowest = max(t[name].slowest, took)
	}
}

func (t tally) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-48s %5s  %s", "fault", "times", "slowest until all agreed")
	for _, f := range faults {
		if s := t[f.name]; s != nil {
			fmt.Fprintf(&b, "\n%-48s %5d  %v", f.name, s.times, s.slowest.Round(10*time.Millisecond))
		} else {
			fmt.Fprintf(&b, "\n%-48s %5s", f.name, "-")
		}
	}
	return b.String()
}
