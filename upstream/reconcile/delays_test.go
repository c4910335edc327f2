package reconcile

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fanout"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// A namedTrace identifies a response.
type namedTrace string

func (namedTrace) Applied(cache.Application) fanout.Span     { return nil }
func (namedTrace) Waits(time.Time)                           {}
func (namedTrace) Waited(_ string, _ time.Time, _ time.Time) {}

// states makes the following responses belong to a trace; they are received at a time.
func (f *fakeSet) states(trace string, at time.Time) {
	f.cause = cache.Cause{Received: at, Trace: namedTrace(trace)}
}

// wantDelay fails the test unless the last update of the set had the delay of a response that was received at a time. Without a
// reason, it must have had none.
func (f *fakeSet) wantDelay(t *testing.T, when, trace string, since time.Time, reason Reason) {
	t.Helper()
	want := pending.Delay{}
	if reason != "" {
		want = pending.Delay{Cause: cache.Cause{Received: since, Trace: namedTrace(trace)}, Since: since, Reason: string(reason)}
	}
	if f.waited != want {
		t.Errorf("%s: the update has the delay %+v, want %+v", when, f.waited, want)
	}
}

// TestB43_DelaysOfRemovals: a removal that was suspected, held or dropped is applied with the delay since the response that stated
// it first. The decision comes without a response.
func TestB43_DelaysOfRemovals(t *testing.T) {
	now := time.Unix(1000, 0)
	start := func(removed ...string) *fakeSet {
		f := newFakeSet(wire.ClusterType, slog.DiscardHandler, numbers("c", 12)...)
		f.beginStream(now)
		f.states("first", now)
		f.respond(now, "new")
		f.wantDelay(t, "an addition", "", now, "")
		f.respond(now, removed...)
		f.states("second", now.Add(time.Second))
		f.respond(now.Add(time.Second), removed...)
		f.cause, f.confirmed = cache.Cause{}, true
		f.group.Decide(now.Add(time.Minute))
		return f
	}
	f := start("-c0")
	f.wantNames(t, "a small removal", "c1 c10 c11 c2 c3 c4 c5 c6 c7 c8 c9 new")
	f.wantDelay(t, "a small removal", "first", now, Suspect)

	var large []string
	for i := range 12 {
		large = append(large, fmt.Sprint("-c", i))
	}
	f = start(large...)
	check.Equal(t, "held", heldRemovals(f.group), 12)
	f.group.Operate(Command{Do: Pass}, now.Add(time.Hour))
	f.wantNames(t, "a passed removal", "new")
	f.wantDelay(t, "a passed removal", "first", now, LargeRemoval)

	f, at := start(large...), now.Add(time.Hour)
	f.group.Operate(Command{Do: Drop}, at)
	f.group.Operate(Command{Do: Pass, Reason: Dropped}, at.Add(time.Hour))
	f.wantNames(t, "a dropped removal", "new")
	want := pending.Delay{Cause: cache.Cause{Received: now, Trace: namedTrace("first")}, Since: at, Reason: string(Dropped)}
	check.Equal(t, "delay of a dropped removal", f.waited, want)
}

// TestB43_DelaysOfUnits: an addition that waits for a removal is applied with the delay since the response that stated it, also
// together with what a later response states, and so is a removal that waits for the rest of its unit.
func TestB43_DelaysOfUnits(t *testing.T) {
	f, now := newListeners("a:80", "b:81", "c:82")
	f.states("addition", now)
	f.take(now, []*wire.Resource{listenerResource("n", 80, 1)})
	f.wantNames(t, "an addition waits", "a b c")
	later := now.Add(time.Second)
	f.states("removal", later)
	f.take(later, nil, "a")
	f.wantNames(t, "its unit is complete", "b c n")
	f.wantDelay(t, "its unit is complete", "addition", now, Replacement)

	f, now = newListeners("a:80", "b:81", "c:82")
	f.states("one of two", now)
	f.take(now, []*wire.Resource{listenerOn("ab", 80, 81)}, "a")
	f.wantNames(t, "a removal waits", "a b c")
	f.cause = cache.Cause{}
	f.group.Operate(Command{Do: Pass, Name: "a"}, later)
	f.wantNames(t, "the removal passes", "b c")
	f.wantDelay(t, "the removal passes", "one of two", now, Replacement)
}

// TestB43_DelaysOfBreakingChanges: a change that would break clients is applied with the delay since the response that stated it,
// or its removal was suspected before.
func TestB43_DelaysOfBreakingChanges(t *testing.T) {
	h := newCheckedGroup("a", "b")
	h.route("r=a")
	h.routes.states("update", h.now)
	h.route("r=x")
	since := h.now
	h.routes.cause = cache.Cause{}
	h.now = h.now.Add(time.Minute)
	h.cluster("x")
	h.wantServed(t, "updated", "a b x | r=x")
	h.routes.wantDelay(t, "updated", "update", since, Breaking)

	h.clusters.states("removal", h.now)
	since = h.now
	h.clusters.confirmed = false
	h.clusters.beginStream(h.now)
	h.cluster("-x")
	h.clusters.cause = cache.Cause{}
	h.now, h.clusters.confirmed = h.now.Add(time.Minute), true
	h.group.Decide(h.now)
	check.Equal(t, "held changes", len(h.holds()), 1)
	h.now = h.now.Add(time.Minute)
	h.route("r=a")
	h.wantServed(t, "removed", "a b | r=a")
	h.clusters.wantDelay(t, "removed", "removal", since, Breaking)
}

// TestB43_DelaysOfGrowth: abnormal growth is applied with the delay since the response that stated it first, whatever ends its wait.
func TestB43_DelaysOfGrowth(t *testing.T) {
	for when, end := range map[string]func(f *fakeSet, now time.Time){
		"its time is over":           func(f *fakeSet, _ time.Time) { f.group.Decide(epoch.Add(time.Hour)) },
		"an operator passes it":      func(f *fakeSet, now time.Time) { f.group.Operate(Command{Do: Pass}, now) },
		"the origin states less":     func(f *fakeSet, now time.Time) { f.put(now, "a=2", "-c", "-d") },
		"the origin states it again": func(f *fakeSet, now time.Time) { f.put(now, "a=201"); f.group.Decide(epoch.Add(time.Hour)) },
	} {
		f := newGrowing(wire.ClusterType, "a")
		f.states("first", epoch)
		f.put(epoch, "a=200", "b", "c", "d")
		f.wantDelay(t, when+", before", "", epoch, "")
		now := epoch.Add(time.Minute)
		f.states("second", now)
		end(f, now)
		f.wantDelay(t, when, "first", epoch, Growth)
	}
}
