package reconcile

import (
	"log/slog"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xdstender/tender/cache/wire"
)

// newReferencing returns listeners, one of which (l) refers to route r, and routes, on a new stream that mentions all
// routes. With resumed, the relay sends the versions of the listeners.
func newReferencing(t *testing.T, resumed bool) (listeners, routes *fakeSet) {
	t.Helper()
	listeners = newFakeSet(wire.ListenerType, slog.DiscardHandler, "l", "m")
	routes = newFakeSetIn(listeners.group, wire.RouteType, "", "r", "s", "t", "u", "v")
	r, err := wire.NewResource(wire.ListenerType, "l", "", protowire.AppendString([]byte{0x0a}, "r"))
	if err != nil {
		t.Fatal(err)
	}
	listeners.resources["l"] = r
	listeners.confirmed, routes.confirmed = true, true
	if resumed {
		listeners.beginStream(epoch, "l", "m")
	} else {
		listeners.beginStream(epoch)
	}
	routes.beginStream(epoch, "r", "s")
	routes.respond(epoch, "r", "s", "t", "u", "v")
	return listeners, routes
}

// TestH03_PossiblyRemovedKeepsReferences checks how long an unmentioned listener keeps its route: during its query,
// twice 15s after the last first mention, or a minute without a response. If the relay has sent the version of the
// listener, it keeps the route only while a comparison is pending.
func TestH03_PossiblyRemovedKeepsReferences(t *testing.T) {
	for _, tt := range []struct {
		name    string
		resumed bool
		do      func(listeners *fakeSet)
		after   time.Duration
		until   time.Duration // zero if the listener does not keep its route
	}{
		{"no response", false, func(*fakeSet) {}, ConfirmMax - 1, ConfirmMax},
		{"no response for a minute", false, func(*fakeSet) {}, ConfirmMax, 0},
		{"another mentioned", false, func(f *fakeSet) { f.respond(epoch, "m") }, 0, 2 * mentionTimeout},
		{"another mentioned late", false, func(f *fakeSet) {
			f.respond(epoch.Add(ConfirmMax), "m")
		}, ConfirmMax, ConfirmMax + 2*mentionTimeout},
		{"queried", false, func(f *fakeSet) {
			f.respond(epoch, "m")
			f.StartQuery(nil, epoch.Add(mentionTimeout-1))
		}, 0, 2*mentionTimeout - 1},
		{"mentioned", false, func(f *fakeSet) { f.respond(epoch, "l") }, 0, 0},
		{"version sent", true, func(*fakeSet) {}, 0, 0},
		{"version sent, another mentioned", true, func(f *fakeSet) { f.respond(epoch, "m@2") }, 0, 0},
		{"version sent, comparison pending", true, func(f *fakeSet) { f.group.ComparisonPending = true }, 0, ConfirmMax},
		{"version sent a minute ago, comparison pending", true, func(f *fakeSet) {
			f.group.ComparisonPending = true
		}, ConfirmMax, 0},
		{"version of one sent, comparison pending", true, func(f *fakeSet) {
			f.group.ComparisonPending = true
			put(&f.withoutVersion, "m", struct{}{})
			delete(f.withVersion, "m")
		}, 0, ConfirmMax},
	} {
		t.Run(tt.name, func(t *testing.T) {
			listeners, routes := newReferencing(t, tt.resumed)
			tt.do(listeners)
			now := epoch.Add(tt.after)
			routes.Infer(seq("r", "s"), false, epoch)
			routes.group.Decide(now)
			if tt.until == 0 {
				routes.wantNames(t, "listener does not keep its route", "t u v")
				return
			}
			routes.wantNames(t, "listener keeps its route", "r t u v")
			h := routes.group.Operate(Command{}, now)
			if until := epoch.Add(tt.until); len(h) != 1 || h[0].Until != until || !h[0].Undecided() {
				t.Errorf("holds %+v, want one that is undecided until %v", h, until)
			}
			if _, is := listeners.withoutVersion["l"]; is == tt.resumed {
				t.Error("possiblyRemoved has changed withoutVersion")
			}
			listeners.respond(now, "l@2")
			routes.group.Decide(now)
			routes.wantNames(t, "mentioned", "t u v")
			if routes.group.HasRemovals() {
				t.Error("the group has pending removals, want none")
			}
		})
	}
	listeners, routes := newReferencing(t, false)
	routes.respond(epoch, "-r", "-s", "-t", "-u", "-v")
	routes.wantNames(t, "removals on an established stream", "")
	routes.group.Decide(epoch)
	listeners.wantHolds(t, "established stream", epoch)
}

// TestH03_SubscribedNameIsNotPossiblyRemoved checks that an unmentioned listener that is subscribed to by name does not
// keep its route: silence on a name does not remove it.
func TestH03_SubscribedNameIsNotPossiblyRemoved(t *testing.T) {
	listeners, routes := newReferencing(t, false)
	listeners.group.Drop(listeners.Set)
	listeners.Set = listeners.group.NewSet(wire.ListenerType, "", listeners)
	listeners.beginStream(epoch)
	routes.Infer(seq("r"), false, epoch)
	routes.group.Decide(epoch)
	routes.wantNames(t, "listener subscribed to by name", "s t u v")
}

// TestH03_RetainedKeepsReferences checks that a listener whose removal is held, suspected or dropped keeps its route,
// also if the removal of the route is held itself.
func TestH03_RetainedKeepsReferences(t *testing.T) {
	for name, do := range map[string]func(listeners *fakeSet){
		"suspected": func(f *fakeSet) { f.confirmed = false; f.Infer(seq("l"), false, epoch) },
		"held":      func(f *fakeSet) { f.Infer(seq("l"), true, epoch); f.group.Decide(epoch) },
		"dropped":   func(f *fakeSet) { f.RestoreDropped("l", &Hold{}) },
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
	listeners.Infer(seq("l"), true, epoch)
	routes.Infer(seq("r"), true, epoch)
	routes.group.Decide(epoch)
	now := epoch.Add(time.Hour)
	routes.group.StartSecondLooks(now)
	routes.Infer(seq("r"), false, epoch)
	routes.group.Decide(now)
	routes.wantNames(t, "second look confirms only the route", "r s t u v")
	h := routes.group.Operate(Command{}, now)
	if len(h) != 2 || h[0].TypeURL != wire.ListenerType || h[1].TypeURL != wire.RouteType {
		t.Errorf("holds %+v, want one of listeners and one of routes", h)
	}
	listeners.Infer(seq("l"), false, epoch)
	routes.group.Decide(now)
	routes.wantNames(t, "second look confirms the listener, too", "s t u v")
	listeners.wantNames(t, "second look confirms the listener, too", "m")
	listeners, routes = newReferencing(t, true)
	listeners.Infer(seq("l"), true, epoch)
	routes.group.Decide(epoch)
	routes.respond(epoch, "-r")
	listeners.group.Operate(Command{Do: Pass, TypeURL: wire.ListenerType}, epoch)
	routes.wantNames(t, "listener passed", "s t u v")
}

// TestH03_SmallRemovalAfterLargeOne checks that it is held while the large one is held.
func TestH03_SmallRemovalAfterLargeOne(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, numbers("n", 100)...)
	f.confirmed = true
	f.Infer(seq(numbers("n", 20)...), false, epoch)
	f.group.Decide(epoch)
	f.Infer(seq("n20"), false, epoch)
	f.group.Decide(epoch)
	if n := heldRemovals(f.group); n != 21 {
		t.Errorf("%d removals held, want 21", n)
	}
}

// TestH03_DecisionWaitsForCompleteSet checks that a removal is applied exactly when the set is complete.
func TestH03_DecisionWaitsForCompleteSet(t *testing.T) {
	f := &completeAtEpoch{newFakeSet(wire.ClusterType, slog.DiscardHandler, numbers("n", 9)...)}
	f.Set = f.group.NewSet(wire.ClusterType, wire.Wildcard, f)
	f.Infer(seq("n0"), false, epoch)
	if next := f.group.Decide(epoch.Add(-1)); next != epoch || len(f.resources) != 9 {
		t.Errorf("before the set is complete: next decision at %v, %d names; want %v and 9", next, len(f.resources), epoch)
	}
	if next := f.group.Decide(epoch); !next.IsZero() || len(f.resources) != 8 {
		t.Errorf("complete: next decision at %v, %d names; want never and 8", next, len(f.resources))
	}
}

// A completeAtEpoch is a fakeSet that is complete from epoch on.
type completeAtEpoch struct{ *fakeSet }

func (f *completeAtEpoch) CompleteAt() (time.Time, bool) { return epoch, true }

// TestB15_OperateSelectsHolds checks that a command applies only to the selected type, and only to pending or only to
// dropped removals.
func TestB15_OperateSelectsHolds(t *testing.T) {
	clusters := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a", "b", "c")
	listeners := newFakeSetIn(clusters.group, wire.ListenerType, wire.Wildcard, "l")
	g := clusters.group
	clusters.RestoreDropped("a", &Hold{})
	clusters.Infer(seq("b", "c"), true, epoch)
	clusters.respond(epoch, "c")
	clusters.confirmed = true
	clusters.group.Operate(Command{}, epoch)
	clusters.wantHolds(t, "listed only", epoch, "suspected b", "dropped a")
	clusters.confirmed = false
	listeners.Infer(seq("l"), true, epoch)
	if h := g.Operate(Command{Do: Pass, TypeURL: wire.ListenerType}, epoch); len(h) != 1 || h[0].Names[0] != "l" {
		t.Errorf("passed %+v, want l", h)
	}
	listeners.wantNames(t, "passed", "")
	clusters.wantNames(t, "other type", "a b c")
	clusters.Infer(seq("c"), true, epoch)
	g.Operate(Command{Do: Pass, TypeURL: wire.ClusterType}, epoch)
	clusters.wantNames(t, "pending removals passed", "a")
	clusters.resources["b"] = &wire.Resource{Name: "b"}
	clusters.Infer(seq("b"), true, epoch)
	h := g.Operate(Command{Do: Drop, TypeURL: wire.ClusterType}, epoch)
	if len(h) != 1 || h[0].Names[0] != "b" {
		t.Errorf("dropped %+v, want b", h)
	}
	if n := g.cfg.Counts.DroppedTotal.Load(); n != 1 {
		t.Errorf("%d dropped, want 1", n)
	}
	clusters.wantHolds(t, "dropped", epoch, "dropped a b")
	clusters.Infer(seq("a"), true, epoch)
	clusters.wantHolds(t, "inferred again", epoch, "dropped a b")
	g.Operate(Command{Do: Pass}, epoch)
	clusters.wantNames(t, "no pending removals", "a b")
	g.Operate(Command{Do: Pass, Reason: Dropped}, epoch)
	clusters.wantNames(t, "passed", "")
	if n := g.cfg.Counts.AppliedTotal.Load(); n != 5 {
		t.Errorf("%d applied, want 5", n)
	}
}

// TestB15_SecondLookOfOneSet checks that StartSecondLooks reports a second look if the hold time of one set is over,
// independent of the order of the sets.
func TestB15_SecondLookOfOneSet(t *testing.T) {
	for range 20 { // in a random order
		f := newHeldSet("a", "b", "c")
		listeners := newFakeSetIn(f.group, wire.ListenerType, wire.Wildcard, "l", "m", "n")
		listeners.confirmed = true
		listeners.Infer(seq("l", "m", "n"), true, epoch)
		f.group.Decide(epoch.Add(time.Minute))
		if !f.group.StartSecondLooks(epoch.Add(time.Hour)) {
			t.Fatal("no second look")
		}
		if listeners.secondLook {
			t.Fatal("second look of the listeners started before the end of their hold time")
		}
	}
}

// TestH03_RemovalAfterItsReferrer checks that a route is removed together with the listener that refers to it, while
// another removal is still held.
func TestH03_RemovalAfterItsReferrer(t *testing.T) {
	listeners, routes := newReferencing(t, true)
	clusters := newFakeSetIn(listeners.group, wire.ClusterType, wire.Wildcard, "c")
	clusters.confirmed = true
	clusters.Infer(seq("c"), true, epoch)
	listeners.Infer(seq("l"), true, epoch)
	routes.group.Decide(epoch)
	now := epoch.Add(time.Hour)
	routes.group.StartSecondLooks(now)
	listeners.Infer(seq("l"), false, epoch)
	routes.respond(now, "-r")
	routes.group.Decide(now)
	routes.wantNames(t, "listener removed", "s t u v")
}

// TestH03_DecisionTimeWithoutStream checks that a hold has no decision time if no stream carries the set.
func TestH03_DecisionTimeWithoutStream(t *testing.T) {
	listeners, routes := newReferencing(t, true)
	listeners.Infer(seq("l"), true, epoch)
	routes.group.Decide(epoch)
	routes.respond(epoch, "-r")
	for _, confirmed := range []bool{true, false} {
		routes.confirmed = confirmed
		for _, h := range routes.group.Operate(Command{TypeURL: wire.RouteType}, epoch) {
			if decided := !h.Until.IsZero(); decided != confirmed {
				t.Errorf("a stream carries the set: %t; decision at %v", confirmed, h.Until)
			}
		}
	}
}

// TestB15_HeldRemovalsAreCounted checks the numbers of held removals, also after a set is dropped and a group is
// closed.
func TestB15_HeldRemovalsAreCounted(t *testing.T) {
	f := newHeldSet("a", "b")
	g := f.group
	wantHeld := func(when string, want int) {
		t.Helper()
		if n, all := heldRemovals(g), heldOf(g.cfg.Counts); n != want || all != want {
			t.Errorf("%s: %d removals held, Counts.Pending %d; want %d", when, n, all, want)
		}
	}
	wantHeld("held", 2)
	if n := g.cfg.Counts.HeldTotal.Load(); n != 2 || !g.HasRemovals() {
		t.Errorf("HeldTotal %d, HasRemovals %t; want 2 and true", n, g.HasRemovals())
	}
	delete(f.resources, "a") // no client subscribes to it any more
	g.Decide(epoch)
	wantHeld("one without a subscription", 1)
	g.Drop(f.Set)
	wantHeld("dropped", 0)
	if g.HasRemovals() || len(g.sets) != 0 {
		t.Error("the group still contains the set")
	}
	f = newHeldSet("a")
	g = f.group
	g.Close()
	wantHeld("closed", 0)
}

// TestB15_AFewOfAType checks that a few removals are counted over all sets of their type, each name once, and without
// those that an operator dropped.
func TestB15_AFewOfAType(t *testing.T) {
	for _, tt := range []struct {
		name   string
		do     func(members, named *fakeSet)
		decide time.Duration // when the second look of members may begin
	}{
		{"the same in both sets", func(_, named *fakeSet) { named.Infer(seq("a", "b"), false, epoch) }, 10 * time.Second},
		{"others in the second set", func(_, named *fakeSet) { named.Infer(seq("c"), true, epoch) }, time.Hour},
		{"others are missing during the hold", func(members, named *fakeSet) {
			members.group.Decide(epoch)
			named.Infer(seq("c"), true, epoch)
		}, time.Hour},
		{"others were dropped", func(members, named *fakeSet) {
			named.RestoreDropped("c", &Hold{})
			members.resources["d"] = &wire.Resource{Name: "d"}
			members.RestoreDropped("d", &Hold{})
		}, 10 * time.Second},
		{"updates of others would break clients", func(_, named *fakeSet) {
			for _, name := range []string{"c", "d", "e", "f"} {
				named.record(name, removal{state: breaking, replacement: &wire.Resource{Name: name}, detail: "broken"})
			}
			named.breakingChecked = named.group.validity(epoch)
		}, 10 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			members := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a", "b")
			named := newFakeSetIn(members.group, wire.ClusterType, "", "a", "b", "c", "d", "e", "f")
			members.confirmed, named.confirmed = true, true
			members.Infer(seq("a", "b"), true, epoch)
			tt.do(members, named)
			members.group.Decide(epoch)
			if !members.group.StartSecondLooks(epoch.Add(tt.decide)) || !members.secondLook {
				t.Errorf("no second look after %v", tt.decide)
			}
			members.secondLook = false
			if members.group.StartSecondLooks(epoch.Add(tt.decide - 1)) {
				t.Errorf("second look earlier than %v", tt.decide)
			}
		})
	}
}

// TestB15_AFewBesideALargeRemoval checks that a few removals are held like the large removal of another type, if that is
// pending, and that endpoints have no large removals.
func TestB15_AFewBesideALargeRemoval(t *testing.T) {
	for typeURL, hold := range map[string]time.Duration{wire.ClusterType: time.Hour, wire.EndpointType: 10 * time.Second} {
		listeners := newFakeSet(wire.ListenerType, slog.DiscardHandler, "l")
		others := newFakeSetIn(listeners.group, typeURL, "", "a", "b", "c")
		listeners.confirmed = true // the others are not: their removal is suspected
		listeners.Infer(seq("l"), false, epoch)
		others.Infer(seq("a", "b", "c"), false, epoch)
		listeners.group.Decide(epoch)
		if listeners.group.StartSecondLooks(epoch.Add(hold-1)) || !listeners.group.StartSecondLooks(epoch.Add(hold)) {
			t.Errorf("%s: want a second look after %v", typeURL, hold)
		}
	}
}

// TestB15_MovedRemovalsStayLarge checks that a part of a large removal that moves to another stream is not decided as a
// few.
func TestB15_MovedRemovalsStayLarge(t *testing.T) {
	f := newHeldSet("a", "b", "c")
	to := newFakeSetIn(f.group, wire.ClusterType, "", "a", "d")
	to.confirmed = true
	f.MoveTo(to.Set, "a")
	f.respond(epoch, "b@2", "c@2")
	f.decide(epoch)
	to.Infer(seq("d"), false, epoch)
	to.group.Decide(epoch)
	if to.group.StartSecondLooks(epoch.Add(time.Hour-1)) || !to.group.StartSecondLooks(epoch.Add(time.Hour)) {
		t.Error("want a second look at the end of the hold time")
	}
}

// TestB15_SecondLookWaitsForSuspected checks that a second look waits until removals of other sets are decided, and that
// Decide returns no time in the past meanwhile.
func TestB15_SecondLookWaitsForSuspected(t *testing.T) {
	listeners := newFakeSet(wire.ListenerType, slog.DiscardHandler, "l")
	others := &completesLate{newFakeSetIn(listeners.group, wire.ClusterType, "", "c")}
	g := listeners.group
	g.Drop(others.Set)
	others.Set = g.NewSet(wire.ClusterType, wire.Wildcard, others)
	listeners.confirmed = true
	listeners.Infer(seq("l"), false, epoch)
	others.Infer(seq("c"), false, epoch)
	g.Decide(epoch)
	complete := epoch.Add(time.Minute)
	for _, now := range []time.Time{epoch.Add(10 * time.Second), complete.Add(-1)} {
		if next := g.Decide(now); next != complete || g.StartSecondLooks(now) {
			t.Errorf("after %v: next decision at %v, or a second look; want none before %v", now.Sub(epoch), next, complete)
		}
	}
	if g.Decide(complete); !g.StartSecondLooks(complete) || !listeners.secondLook || !others.secondLook {
		t.Error("want a second look of both")
	}
}
