package cache

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// restart returns an origin with a cohort whose view is restored from a snapshot of o, and the number of calls of
// Waiting.
func restart(t tester, o *origin) (again *origin, calls *int) {
	s, _ := o.Snapshot(true)
	calls = new(int)
	cfg := o.view.cfg
	cfg.Waiting = func(int, Waiting) { *calls++ }
	v, w := New(cfg)
	w.Restore(roundTrip(t, s), time.Now())
	return &origin{tester: t, Writer: w, view: v, typeURL: o.typeURL}, calls
}

// TestASourceIsSettled when it is connected and has confirmed its restored state. Waiting is called each time.
func TestASourceIsSettled(t *testing.T) {
	o, _ := newRollout(t)
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
	o.confirm(acme, "a")
	settled("confirmed", true)

	var calls *int
	o, calls = restart(t, o)
	wantCall := func(when string, want bool, do func()) {
		t.Helper()
		before := *calls
		if do(); *calls == before {
			t.Errorf("%s: Waiting is not called", when)
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
			o, _ := newRollout(t)
			names := o.subscribe(o.view.Watch(), "a", "b")
			for _, n := range names {
				o.put(ByName, n.String(), "1", n.String()+"1")
			}
			o, calls := restart(t, o)
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
				t.Errorf("%d of 2 responses, 20s later: Waiting called: %v", responses, called)
			}
		})
	}
	o, _ := newRollout(t)
	o.subscribe(o.view.Watch(), "a")
	o.put(ByName, "a", "1", "a1")
	o, _ = restart(t, o)
	o.SetConnected(true)
	n := o.name("a")
	o.TakeDemand()
	o.Forget(acme, []*Name{n})
	if !o.view.Settled(0) {
		t.Error("source waits for a response without subscribers")
	}
}

// TestB42_I10_RestoredStateIsLastGood: all cohorts and latest start with the restored state. Differing state that the
// origin sends then waits, including first responses for names.
func TestB42_I10_RestoredStateIsLastGood(t *testing.T) {
	o, _ := newRollout(t)
	o.confirm(acme, "a", "b", "both")
	o.subscribe(o.view.Watch(), "n", "m", "both")
	for _, name := range []string{"n", "m", "both"} {
		o.put(ByName, name, "1", name+"1")
	}
	o.confirm(wire.EndpointType, "e")
	o.typeURL = acme
	o.put(Wildcard, "a", "2", "a2") // not promoted
	o.put(ByName, "n", "2", "n2")
	o.ShowAs(canaries, rest)
	o, _ = restart(t, o)
	now := Waiting{}
	o.view.cfg.Waiting = func(_ int, w Waiting) { now = w }
	sees := func(when string, cohort int, want string) {
		t.Helper()
		o.wantMembers(cohort, acme, "a1", "b1", "both1")
		if got := contentOf(o.view.Cohort(cohort).Generation().Type(acme).ByName.Get(o.name("n"))); got != want {
			t.Errorf("%s: cohort %d sees %q of n, want %s", when, cohort, got, want)
		}
	}
	for cohort, v := range o.view.views {
		sees("restored", cohort, "n1")
		if typ := v.Generation().Type(acme); !typ.Restored || typ.Phase != Settled {
			t.Errorf("cohort %d: phase %v, restored %v", cohort, typ.Phase, typ.Restored)
		}
	}
	if o.reportWaiting(); now.Names != 0 {
		t.Errorf("restored: %+v", now)
	}
	o.SetConnected(true)
	o.TakeDemand()
	o.put(Wildcard, "a", "2", "a2")
	o.put(ByName, "n", "2", "n2")
	o.remove(ByName, "m")
	o.SetPresumed(acme)
	for cohort, v := range o.view.views {
		sees("the origin is back", cohort, "n1")
		if !v.Generation().Type(acme).Presumed {
			t.Errorf("cohort %d: Presumed is not set", cohort)
		}
	}
	o.SetPhase(acme, Confirmed)
	o.remove(Wildcard, "b")
	for cohort, v := range o.view.views {
		sees("confirmed", cohort, "n1")
		if typ := v.Generation().Type(acme); typ.Restored || typ.Presumed || typ.Phase != Confirmed {
			t.Errorf("confirmed: cohort %d has phase %v, restored %v, presumed %v", cohort, typ.Phase, typ.Restored, typ.Presumed)
		}
	}
	if now.Names != 4 {
		t.Errorf("reconnected: %+v, want 4 names", now)
	}
	o.typeURL = wire.EndpointType
	o.put(Wildcard, "e", "2", "e2")
	o.wantMembers(rest, wire.EndpointType, "e2")
	o.Show(rest, o.Pin())
	o.wantMembers(rest, acme, "a2", "both1")
	o.checkEntries()
}

// TestB42_SnapshotsHaveTheStateOfTheRest: they have the newest state of changes that do not wait.
func TestB42_SnapshotsHaveTheStateOfTheRest(t *testing.T) {
	o, _ := newRollout(t)
	o.confirm(wire.ClusterType, "c")
	o.confirm(wire.EndpointType, "e")
	for _, of := range []struct{ typeURL, name string }{{wire.ClusterType, "c"}, {wire.EndpointType, "e"}} {
		o.typeURL = of.typeURL
		o.put(Wildcard, of.name, "2", of.name+"2")
	}
	o.Show(canaries, o.Pin())
	again, _ := restart(t, o)
	for _, cohort := range []int{canaries, rest} {
		again.wantMembers(cohort, wire.ClusterType, "c1")
		again.wantMembers(cohort, wire.EndpointType, "e2")
	}
	o.Show(rest, o.Pin())
	again, _ = restart(t, o)
	again.wantMembers(rest, wire.ClusterType, "c2")
}

// TestH04_EvaluatedReportsWakeCohorts: an evaluation wakes clients of all views, to check again which removals they may
// be sent.
func TestH04_EvaluatedReportsWakeCohorts(t *testing.T) {
	for _, cohort := range []int{canaries, rest} {
		o, _ := newRollout(t)
		watch := o.view.Cohort(cohort).Watch()
		watch.SubscribeAll(wire.ClusterType)
		r := report(watch, "a", "gone", "lost")
		o.confirm(wire.ClusterType, "a")
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
