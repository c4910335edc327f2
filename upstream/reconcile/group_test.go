package reconcile

import (
	"log/slog"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xdstender/tender/cache/wire"
)

// needing has a listener need a route, and begins a stream of both on which the route is mentioned.
func newReferencing(t *testing.T, toldListener bool) (listeners, routes *fakeSet) {
	t.Helper()
	listeners = newFakeSet(wire.ListenerType, slog.DiscardHandler, "l", "m")
	routes = newFakeSetIn(listeners.group, wire.RouteType, "", "r", "s", "t", "u", "v")
	r, err := wire.NewResource(wire.ListenerType, "l", "", protowire.AppendString([]byte{0x0a}, "r"))
	if err != nil {
		t.Fatal(err)
	}
	listeners.resources["l"] = r
	listeners.confirmed, routes.confirmed = true, true
	if toldListener {
		listeners.beginStream(epoch, "l", "m")
	} else {
		listeners.beginStream(epoch)
	}
	routes.beginStream(epoch, "r", "s")
	routes.respond(epoch, "r", "s", "t", "u", "v")
	return listeners, routes
}

// TestH03_WhatIsInDoubtNeedsWhatItNames: a listener that the origin has not mentioned may be held. It is in doubt while
// it is asked for, for twice 15s after the origin has said something new, for a minute if it said nothing, or until it
// is mentioned; and of a listener that the origin was told is held, if it may be another server.
func TestH03_WhatIsInDoubtNeedsWhatItNames(t *testing.T) {
	for _, tt := range []struct {
		name  string
		told  bool
		do    func(listeners *fakeSet)
		after time.Duration
		until time.Duration // zero if it is not in doubt
	}{
		{"nothing was said", false, func(*fakeSet) {}, ConfirmMax - 1, ConfirmMax},
		{"nothing was said for a minute", false, func(*fakeSet) {}, ConfirmMax, 0},
		{"another was mentioned", false, func(f *fakeSet) { f.respond(epoch, "m") }, 0, 2 * mentionTimeout},
		{"another was mentioned late", false, func(f *fakeSet) { f.respond(epoch.Add(ConfirmMax), "m") }, ConfirmMax, ConfirmMax + 2*mentionTimeout},
		{"asked for", false, func(f *fakeSet) { f.respond(epoch, "m"); f.StartQuery(nil, epoch.Add(mentionTimeout-1)) }, 0, 2*mentionTimeout - 1},
		{"mentioned", false, func(f *fakeSet) { f.respond(epoch, "l") }, 0, 0},
		{"told", true, func(*fakeSet) {}, 0, 0},
		{"told, and another was mentioned", true, func(f *fakeSet) { f.respond(epoch, "m@2") }, 0, 0},
		{"told, of what may be another server", true, func(f *fakeSet) { f.group.ComparisonPending = true }, 0, ConfirmMax},
		{"told, of what may be another server, a minute ago", true, func(f *fakeSet) { f.group.ComparisonPending = true }, ConfirmMax, 0},
		{"asked for one, told of the other", true, func(f *fakeSet) {
			f.group.ComparisonPending = true
			put(&f.withoutVersion, "m", struct{}{})
			delete(f.withVersion, "m")
		}, 0, ConfirmMax},
	} {
		t.Run(tt.name, func(t *testing.T) {
			listeners, routes := newReferencing(t, tt.told)
			tt.do(listeners)
			now := epoch.Add(tt.after)
			routes.Infer(seq("r", "s"), false)
			routes.group.Decide(now)
			if tt.until == 0 {
				routes.wantNames(t, "not in doubt", "t u v")
				return
			}
			routes.wantNames(t, "in doubt", "r t u v")
			h := routes.group.Operate(Command{}, now)
			if until := epoch.Add(tt.until); len(h) != 1 || h[0].Until != until || !h[0].Unconfirmed {
				t.Errorf("holds %+v, want one that is undecided until %v", h, until)
			}
			if _, is := listeners.withoutVersion["l"]; is == tt.told {
				t.Error("the names that the origin was not told have changed")
			}
			listeners.respond(now, "l@2")
			routes.group.Decide(now)
			routes.wantNames(t, "mentioned", "t u v")
			if routes.group.HasRemovals() {
				t.Error("there is something to decide still")
			}
		})
	}
	listeners, routes := newReferencing(t, false)
	routes.respond(epoch, "-r", "-s", "-t", "-u", "-v")
	routes.wantNames(t, "an established stream is obeyed, whatever is in doubt", "")
	routes.group.Decide(epoch)
	listeners.wantHolds(t, "an established stream", epoch)
}

// TestH03_ANameIsInNoDoubt: silence on a name that clients ask for does not remove it, so what it names need not wait.
func TestH03_ANameIsInNoDoubt(t *testing.T) {
	listeners, routes := newReferencing(t, false)
	listeners.group.Drop(listeners.Set)
	listeners.Set = listeners.group.NewSet(wire.ListenerType, "", listeners)
	listeners.beginStream(epoch)
	routes.Infer(seq("r"), false)
	routes.group.Decide(epoch)
	routes.wantNames(t, "the listener is asked for by name", "s t u v")
}

// TestH03_WhatStaysNeedsWhatItNames: what a held, suspected or kept listener names is not removed, nor is a route that
// is held itself.
func TestH03_WhatStaysNeedsWhatItNames(t *testing.T) {
	for name, do := range map[string]func(listeners *fakeSet){
		"suspected": func(f *fakeSet) { f.confirmed = false; f.Infer(seq("l"), false) },
		"held":      func(f *fakeSet) { f.Infer(seq("l"), true); f.group.Decide(epoch) },
		"kept":      func(f *fakeSet) { f.RestoreDiscarded("l") },
	} {
		t.Run(name, func(t *testing.T) {
			listeners, routes := newReferencing(t, true)
			do(listeners)
			routes.respond(epoch, "-r")
			routes.group.Decide(epoch)
			routes.wantNames(t, name, "r s t u v")
			listeners.respond(epoch, "l@2")
			routes.group.Decide(epoch)
			routes.wantNames(t, "mentioned", "s t u v")
		})
	}
	listeners, routes := newReferencing(t, true)
	listeners.Infer(seq("l"), true)
	routes.Infer(seq("r"), true)
	routes.group.Decide(epoch)
	now := epoch.Add(time.Hour)
	routes.group.StartSecondLooks(now)
	routes.Infer(seq("r"), false)
	routes.group.Decide(now)
	routes.wantNames(t, "the second look confirms the route alone", "r s t u v")
	if h := routes.group.Operate(Command{}, now); len(h) != 2 || h[0].TypeURL != wire.ListenerType || h[1].TypeURL != wire.RouteType {
		t.Errorf("holds %+v, want those of the listeners and of the routes", h)
	}
	listeners.Infer(seq("l"), false)
	routes.group.Decide(now)
	routes.wantNames(t, "and the listener", "s t u v")
	listeners.wantNames(t, "and the listener", "m")
	listeners, routes = newReferencing(t, true)
	listeners.Infer(seq("l"), true)
	routes.group.Decide(epoch)
	routes.respond(epoch, "-r")
	listeners.group.Operate(Command{Do: Release, TypeURL: wire.ListenerType}, epoch)
	routes.wantNames(t, "the listener is released", "s t u v")
}

// TestH03_ALossAfterALossIsNotSmall while the first one is held.
func TestH03_ALossAfterALossIsNotSmall(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, numbers("n", 100)...)
	f.confirmed = true
	f.Infer(seq(numbers("n", 20)...), false)
	f.group.Decide(epoch)
	f.Infer(seq("n20"), false)
	f.group.Decide(epoch)
	if n := f.group.HeldRemovals(); n != 21 {
		t.Errorf("%d are held, want 21", n)
	}
}

// TestH03_ASetIsCompleteFromItsTimeOn.
func TestH03_ASetIsCompleteFromItsTimeOn(t *testing.T) {
	f := &completeAtEpoch{newFakeSet(wire.ClusterType, slog.DiscardHandler, numbers("n", 9)...)}
	f.Set = f.group.NewSet(wire.ClusterType, wire.Wildcard, f)
	f.Infer(seq("n0"), false)
	if next := f.group.Decide(epoch.Add(-1)); next != epoch || len(f.resources) != 9 {
		t.Errorf("before it is complete: decided again at %v, %d names; want %v and 9", next, len(f.resources), epoch)
	}
	if next := f.group.Decide(epoch); !next.IsZero() || len(f.resources) != 8 {
		t.Errorf("complete: decided again at %v, %d names; want never and 8", next, len(f.resources))
	}
}

// A timed is a fake that is complete at epoch.
type completeAtEpoch struct{ *fakeSet }

func (f *completeAtEpoch) CompleteAt() (time.Time, bool) { return epoch, true }

// TestB15_OperatorsChoose a type, and what waits or what was discarded.
func TestB15_OperatorsChoose(t *testing.T) {
	clusters := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a", "b", "c")
	listeners := newFakeSetIn(clusters.group, wire.ListenerType, wire.Wildcard, "l")
	g := clusters.group
	clusters.RestoreDiscarded("a")
	clusters.Infer(seq("b", "c"), true)
	clusters.respond(epoch, "c")
	clusters.confirmed = true
	clusters.group.Operate(Command{}, epoch)
	clusters.wantHolds(t, "a list decides nothing", epoch, "suspected b", "kept a")
	clusters.confirmed = false
	listeners.Infer(seq("l"), true)
	if h := g.Operate(Command{Do: Release, TypeURL: wire.ListenerType}, epoch); len(h) != 1 || h[0].Names[0] != "l" {
		t.Errorf("released %+v, want l", h)
	}
	listeners.wantNames(t, "released", "")
	clusters.wantNames(t, "another type", "a b c")
	clusters.Infer(seq("c"), true)
	g.Operate(Command{Do: Release, TypeURL: wire.ClusterType}, epoch)
	clusters.wantNames(t, "what waits", "a")
	clusters.resources["b"] = &wire.Resource{Name: "b"}
	clusters.Infer(seq("b"), true)
	if h := g.Operate(Command{Do: Discard, TypeURL: wire.ClusterType, Discarded: true}, epoch); len(h) != 1 || h[0].Names[0] != "b" {
		t.Errorf("discarded %+v, want b", h)
	}
	if n := g.cfg.Counts.DiscardedTotal.Load(); n != 1 {
		t.Errorf("%d discarded, want 1", n)
	}
	clusters.wantHolds(t, "discarded", epoch, "kept a b")
	clusters.Infer(seq("a"), true)
	clusters.wantHolds(t, "inferred again", epoch, "kept a b")
	g.Operate(Command{Do: Release}, epoch)
	clusters.wantNames(t, "nothing waits", "a b")
	g.Operate(Command{Do: Release, Discarded: true}, epoch)
	clusters.wantNames(t, "released", "")
	if n := g.cfg.Counts.AppliedTotal.Load(); n != 5 {
		t.Errorf("%d applied, want 5", n)
	}
}

// TestB15_OneOfTheSetsIsLookedAt: then the origin is asked for everything, whichever it is.
func TestB15_OneOfTheSetsIsLookedAt(t *testing.T) {
	for range 20 { // in a random order
		f := newHeldSet("a")
		later := newFakeSetIn(f.group, wire.ListenerType, wire.Wildcard, "l")
		later.confirmed = true
		later.Infer(seq("l"), true)
		f.group.Decide(epoch.Add(time.Minute))
		if !f.group.StartSecondLooks(epoch.Add(time.Hour)) {
			t.Fatal("no second look")
		}
		if later.secondLook {
			t.Fatal("the second look at the listeners began before their hold was over")
		}
	}
}

// TestH03_WhatWaitedForARemoval is removed with it, though something else is left to decide.
func TestH03_WhatWaitedForARemoval(t *testing.T) {
	listeners, routes := newReferencing(t, true)
	clusters := newFakeSetIn(listeners.group, wire.ClusterType, wire.Wildcard, "c")
	clusters.confirmed = true
	clusters.Infer(seq("c"), true)
	listeners.Infer(seq("l"), true)
	routes.group.Decide(epoch)
	now := epoch.Add(time.Hour)
	routes.group.StartSecondLooks(now)
	listeners.Infer(seq("l"), false)
	routes.respond(now, "-r")
	routes.group.Decide(now)
	routes.wantNames(t, "the listener is gone", "s t u v")
}

// TestH03_NobodyKnowsWhenASetIsComplete that no stream carries, whatever needs it.
func TestH03_NobodyKnowsWhenASetIsComplete(t *testing.T) {
	listeners, routes := newReferencing(t, true)
	listeners.Infer(seq("l"), true)
	routes.group.Decide(epoch)
	routes.respond(epoch, "-r")
	for _, confirmed := range []bool{true, false} {
		routes.confirmed = confirmed
		for _, h := range routes.group.Operate(Command{TypeURL: wire.RouteType}, epoch) {
			if decided := !h.Until.IsZero(); decided != confirmed {
				t.Errorf("a stream carries the set: %t; its suspects are decided at %v", confirmed, h.Until)
			}
		}
	}
}

// TestB15_WhatHoldsIsCounted, also when it is dropped.
func TestB15_WhatHoldsIsCounted(t *testing.T) {
	f := newHeldSet("a", "b")
	g := f.group
	wantHolding := func(when string, want int) {
		t.Helper()
		if n, all := g.HeldRemovals(), g.cfg.Counts.HeldNow.Load(); n != want || all != int64(want) {
			t.Errorf("%s: %d are held, %d in all; want %d", when, n, all, want)
		}
	}
	wantHolding("held", 2)
	if n := g.cfg.Counts.HeldTotal.Load(); n != 2 || !g.HasRemovals() {
		t.Errorf("%d were held, want 2; busy: %t", n, g.HasRemovals())
	}
	delete(f.resources, "a") // nobody wants it any more
	g.Decide(epoch)
	wantHolding("one is not wanted", 1)
	g.Drop(f.Set)
	wantHolding("dropped", 0)
	if g.HasRemovals() || len(g.sets) != 0 {
		t.Error("something is left of the set")
	}
	f = newHeldSet("a")
	g = f.group
	g.Close()
	wantHolding("closed", 0)
}
