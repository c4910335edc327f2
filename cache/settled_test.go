package cache

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// restarted returns an origin with a cohort whose view is restored from a snapshot of o, and the number of calls of
// SettledChanged.
func restarted(t tester, o *origin) (again *origin, calls *int) {
	s, _ := o.Snapshot(true)
	calls = new(int)
	cfg := o.view.cfg
	cfg.SettledChanged = func(int) { *calls++ }
	v, w := New(cfg)
	w.Restore(roundTrip(t, s), time.Now())
	return &origin{tester: t, Writer: w, view: v, typeURL: o.typeURL}, calls
}

// TestASourceIsSettled when it is connected and has confirmed its restored state. SettledChanged is called each time.
func TestASourceIsSettled(t *testing.T) {
	o := newCohort(t, acme)
	settled := func(when string, want bool) {
		t.Helper()
		for cohort, v := range o.view.views {
			if got := v.Settled(0); got != want {
				t.Errorf("%s: cohort %d: Settled is %v, want %v", when, cohort, got, want)
			}
		}
	}
	settled("no subscription", true)
	o.SetConnected(false)
	settled("no subscription, disconnected", true)
	watch := o.view.Watch()
	watch.SubscribeAll(acme)
	settled("subscribed, disconnected", false)
	o.TakeDemand()
	o.SetConnected(true)
	settled("subscribed: resources are first state", true)
	o.put(Wildcard, "a", "1", "a1")
	o.SetPhase(acme, Confirmed)
	settled("confirmed", true)

	var calls *int
	o, calls = restarted(t, o)
	wantCall := func(when string, want bool, do func()) {
		t.Helper()
		before := *calls
		if do(); *calls == before {
			t.Errorf("%s: SettledChanged is not called", when)
		}
		settled(when, want)
	}
	settled("restored", false)
	wantCall("connected", false, func() { o.SetConnected(true) })
	wantCall("confirmed", true, func() { o.SetPhase(acme, Confirmed) })
	wantCall("disconnected", false, func() { o.SetConnected(false) })
}

// TestASourceIsSettledAfterResponsesForNames that were restored, or after it was silent for restoredTimeout: an origin
// need not send resources that the relay reported.
func TestASourceIsSettledAfterResponsesForNames(t *testing.T) {
	for _, responses := range []int{0, 1, 2} {
		synctest.Test(t, func(t *testing.T) {
			o := newCohort(t, acme)
			names := o.subscribe(o.view.Watch(), "a", "b")
			for _, n := range names {
				o.put(ByName, n.String(), "1", n.String()+"1")
			}
			o, calls := restarted(t, o)
			o.TakeDemand()
			o.SetConnected(true)
			for _, respond := range []func(){
				func() { o.put(ByName, "a", "1", "a1") },
				func() { o.remove(ByName, "b") },
			}[:responses] {
				respond()
			}
			if got := o.view.Settled(0); got != (responses == 2) {
				t.Errorf("%d of 2 responses: settled %v", responses, got)
			}
			time.Sleep(10 * time.Second)
			if o.Trim(time.Now()); o.view.Settled(0) != (responses == 2) {
				t.Errorf("%d of 2 responses, 10s later: settled %v", responses, o.view.Settled(0))
			}
			time.Sleep(10 * time.Second)
			before := *calls
			if o.Trim(time.Now()); !o.view.Settled(0) {
				t.Errorf("%d of 2 responses, 20s later: not settled", responses)
			}
			if called := *calls > before; called != (responses < 2) {
				t.Errorf("%d of 2 responses, 20s later: SettledChanged called: %v", responses, called)
			}
		})
	}
	o := newCohort(t, acme)
	o.subscribe(o.view.Watch(), "a")
	o.put(ByName, "a", "1", "a1")
	o, _ = restarted(t, o)
	o.SetConnected(true)
	n := o.name("a")
	o.TakeDemand()
	o.Forget(acme, []*Name{n})
	if !o.view.Settled(0) {
		t.Error("source waits for a response without subscribers")
	}
}

// TestH04_EvaluatedReportsWakeCohorts: an evaluation wakes clients of all views, to check again which removals they may
// be sent.
func TestH04_EvaluatedReportsWakeCohorts(t *testing.T) {
	for _, cohort := range []int{canaries, rest} {
		o := newCohort(t, acme)
		watch := o.view.Cohort(cohort).Watch()
		watch.SubscribeAll(wire.ClusterType)
		r := report(watch, "a", "gone", "lost")
		o.typeURL = wire.ClusterType
		o.put(Wildcard, "a", "1", "a1")
		o.SetPhase(wire.ClusterType, Confirmed)
		woken := func(when string, do func()) {
			t.Helper()
			woken(watch)
			if do(); !woken(watch) {
				t.Errorf("%s: client of cohort %d is not woken", when, cohort)
			}
		}
		woken("evaluated", func() { o.EvaluateReports(reportedClusters, time.Now()) })
		woken("withheld", func() { o.Withhold(reportedClusters, map[string]struct{}{"gone": {}}) })
		of := newOrigin(t, Config{})
		woken("delegated", func() { o.DelegateReports(reportedClusters, of.view.Watch()) })
		r.Close()
	}
}
