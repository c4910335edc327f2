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
	soakFor     = flag.Duration("for", 35*time.Second, "how long rounds of faults begin")
	soakSeed    = flag.Uint64("seed", 1, "what fails when, and what changes; 0 is another each time")
	soakOnly    = flag.String("only", "", "leaves out the faults in whose names this does not occur")
	soakClients = flag.Int("clients", 120, "how many streams")
)

const (
	// massHeldFor is how long relays hold back a mass of removals: longer than it takes to see that they all do
	// (heldWithin), on however slow a machine.
	massHeldFor = heldWithin + 30*time.Second

	// agreeWithin is how long after a round of faults every client must have what the
	// origin has: an origin that was away may have to be asked twice for what it no longer
	// mentions, after 15s of silence each (B.15), and be believed once a mass was held.
	agreeWithin = massHeldFor + 3*time.Minute

	// spare is how much longer than its rounds begin a soak may last: the warm-up, the last round,
	// and the wait until the relays are rid of everything.
	spare = agreeWithin + 5*time.Minute

	maxFaults   = 6 // in a round
	changeEvery = 100 * time.Millisecond
)

// TestSoak goes through rounds of faults. Each begins with some, which last while the origin
// changes what it says, and ends when all is healed and every client agrees with the origin.
func TestSoak(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) }) // after all that follows has ended
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
		t.Fatalf("-only=%q: there is no such fault", *soakOnly)
	}
	w := newWorld(t, seed, *soakClients)
	w.warm()
	w.come()
	w.agree("once they had gone and come")
	survived := make(tally)
	for began := time.Now(); time.Since(began) < *soakFor && !t.Failed() && w.ctx.Err() == nil; {
		survived.add(w.round())
	}
	w.current("all clients leave")
	w.depart()
	w.rid()
	t.Logf("%d changes; faults survived:\n%v\n%v", w.changes(), survived, &w.seen)
}

// round applies some faults, changes what the origin says while they last, heals them, and
// waits until all clients agree. It returns the names of the faults, and how long that took.
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
		w.agree("names of files came back")
	}
	w.sober()
	return names, took
}

// draw returns the next fault of a shuffled deck, in which each is as often as its weight
// says: none is left out for long.
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

// churn makes so many changes, one after the other.
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

// agree waits until every client has what its origin has, and fails the test if one does
// not come to have it.
func (w *world) agree(after string) {
	w.t.Helper()
	w.agreeOf(func(client) bool { return true }, after)
}

// agreeOf is agree for some of the clients.
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

// A tally counts faults that were survived, and how long it took until all clients agreed again.
type tally map[string]*survival

type survival struct {
	times   int
	slowest time.Duration
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
