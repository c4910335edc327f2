package cache

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// restarted is an origin with a cohort in a process that began with a snapshot of o, and how often Waiting was called.
func restarted(t tester, o *origin) (again *origin, calls *int) {
	s, _ := o.Snapshot(true)
	calls = new(int)
	cfg := o.view.cfg
	cfg.Waiting = func(int, Waiting) { *calls++ }
	v, w := New(cfg)
	w.Restore(stored(t, s), time.Now())
	return &origin{tester: t, Writer: w, view: v, typeURL: o.typeURL}, calls
}

// TestASourceIsSettled once it is connected and has confirmed what it said to an earlier process; each time, Waiting is called.
func TestASourceIsSettled(t *testing.T) {
	o, _ := rolling(t)
	settled := func(when string, want bool) {
		t.Helper()
		for cohort, v := range o.view.views {
			if got := v.Settled(0); got != want {
				t.Errorf("%s: cohort %d says that the source is settled: %v, want %v", when, cohort, got, want)
			}
		}
	}
	settled("nothing is wanted", true)
	o.SetConnected(false)
	settled("nothing is wanted, and it is lost", true)
	watch := o.view.Watch()
	watch.SubscribeAll(acme)
	settled("wanted, and lost", false)
	o.TakeDemand()
	o.SetConnected(true)
	settled("wanted: what comes is first state", true)
	o.confirmed(acme, "a")
	settled("confirmed", true)

	var calls *int
	o, calls = restarted(t, o)
	told := func(when string, want bool, do func()) {
		t.Helper()
		before := *calls
		if do(); *calls == before {
			t.Errorf("%s: nobody is told", when)
		}
		settled(when, want)
	}
	settled("restored", false)
	told("connected", false, func() { o.SetConnected(true) })
	told("confirmed", true, func() { o.SetPhase(acme, Confirmed) })
	told("lost", false, func() { o.SetConnected(false) })
}

// TestASourceIsSettledOnceItAnsweredForNames that were restored: or has been silent for long enough, as it may be on what it was told
// is held.
func TestASourceIsSettledOnceItAnsweredForNames(t *testing.T) {
	for _, answers := range []int{0, 1, 2} {
		synctest.Test(t, func(t *testing.T) {
			o, _ := rolling(t)
			names := o.want(o.view.Watch(), "a", "b")
			for _, n := range names {
				o.put(ByName, n.String(), "1", n.String()+"1")
			}
			o, calls := restarted(t, o)
			o.TakeDemand()
			o.SetConnected(true)
			for _, answer := range []func(){func() { o.put(ByName, "a", "1", "a1") }, func() { o.remove(ByName, "b") }}[:answers] {
				answer()
			}
			if got := o.view.Settled(0); got != (answers == 2) {
				t.Errorf("%d of 2 names answered: settled %v", answers, got)
			}
			time.Sleep(10 * time.Second)
			if o.Trim(time.Now()); o.view.Settled(0) != (answers == 2) {
				t.Errorf("%d of 2 names answered, 10s later: settled %v", answers, o.view.Settled(0))
			}
			time.Sleep(10 * time.Second)
			before := *calls
			if o.Trim(time.Now()); !o.view.Settled(0) {
				t.Errorf("%d of 2 names answered, 20s later: not settled", answers)
			}
			if told := *calls > before; told != (answers < 2) {
				t.Errorf("%d of 2 names answered, 20s later: told %v", answers, told)
			}
		})
	}
	o, _ := rolling(t)
	o.want(o.view.Watch(), "a")
	o.put(ByName, "a", "1", "a1")
	o, _ = restarted(t, o)
	o.SetConnected(true)
	n := o.name("a")
	o.TakeDemand()
	o.Forget(acme, []*Name{n})
	if !o.view.Settled(0) {
		t.Error("an answer is waited for that nobody wants")
	}
}

// TestB42_I10_RestoredStateIsLastGood: all cohorts and latest begin with it, and what the origin then says else waits, also in its first
// answers for names.
func TestB42_I10_RestoredStateIsLastGood(t *testing.T) {
	o, _ := rolling(t)
	o.confirmed(acme, "a", "b", "both")
	o.want(o.view.Watch(), "n", "m", "both")
	for _, name := range []string{"n", "m", "both"} {
		o.put(ByName, name, "1", name+"1")
	}
	o.confirmed(wire.EndpointType, "e")
	o.typeURL = acme
	o.put(Wildcard, "a", "2", "a2") // is not promoted
	o.put(ByName, "n", "2", "n2")
	o.ShowAs(canaries, rest)
	o, _ = restarted(t, o)
	now := Waiting{}
	o.view.cfg.Waiting = func(_ int, w Waiting) { now = w }
	sees := func(when string, cohort int, want string) {
		t.Helper()
		o.sees(cohort, acme, "a1", "b1", "both1")
		if got := contentOf(o.view.Cohort(cohort).Generation().Type(acme).ByName.Get(o.name("n"))); got != want {
			t.Errorf("%s: cohort %d sees %q of n, want %s", when, cohort, got, want)
		}
	}
	for cohort, v := range o.view.views {
		sees("restored", cohort, "n1")
		if typ := v.Generation().Type(acme); !typ.Restored || typ.Phase != Settled {
			t.Errorf("cohort %d sees a set that is %v, restored %v", cohort, typ.Phase, typ.Restored)
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
	o.SetCovered(acme)
	for cohort, v := range o.view.views {
		sees("the origin is back", cohort, "n1")
		if !v.Generation().Type(acme).Covered {
			t.Errorf("cohort %d does not see that the last known set is there", cohort)
		}
	}
	o.SetPhase(acme, Confirmed)
	o.remove(Wildcard, "b")
	for cohort, v := range o.view.views {
		sees("confirmed", cohort, "n1")
		if typ := v.Generation().Type(acme); typ.Restored || typ.Covered || typ.Phase != Confirmed {
			t.Errorf("confirmed, cohort %d sees %v, restored %v, covered %v", cohort, typ.Phase, typ.Restored, typ.Covered)
		}
	}
	if now.Names != 4 {
		t.Errorf("the origin is back: %+v, want 4 names", now)
	}
	o.typeURL = wire.EndpointType
	o.put(Wildcard, "e", "2", "e2")
	o.sees(rest, wire.EndpointType, "e2")
	o.Show(rest, o.Pin())
	o.sees(rest, acme, "a2", "both1")
	o.check()
}

// TestB42_SnapshotsHaveTheStateOfTheRest: of a frozen origin, that is all as it was; of another one, what passes as it is.
func TestB42_SnapshotsHaveTheStateOfTheRest(t *testing.T) {
	for _, frozen := range []bool{true, false} {
		o, _ := rolling(t)
		o.confirmed(wire.ClusterType, "c")
		o.confirmed(wire.EndpointType, "e")
		if frozen {
			o.Freeze()
		}
		for _, of := range []struct{ typeURL, name string }{{wire.ClusterType, "c"}, {wire.EndpointType, "e"}} {
			o.typeURL = of.typeURL
			o.put(Wildcard, of.name, "2", of.name+"2")
		}
		o.Show(canaries, o.Pin())
		again, _ := restarted(t, o)
		endpoints := "e2"
		if frozen {
			endpoints = "e1"
		}
		for _, cohort := range []int{canaries, rest} {
			again.sees(cohort, wire.ClusterType, "c1")
			again.sees(cohort, wire.EndpointType, endpoints)
		}
		o.Show(rest, o.Pin())
		if again, _ = restarted(t, o); frozen {
			again.sees(rest, wire.EndpointType, "e1")
		}
		again.sees(rest, wire.ClusterType, "c2")
	}
}

// TestH04_EvaluatedReportsWakeCohorts: clients of all views check again which removals they may be sent.
func TestH04_EvaluatedReportsWakeCohorts(t *testing.T) {
	for _, cohort := range []int{canaries, rest} {
		o, _ := rolling(t)
		watch := o.view.Cohort(cohort).Watch()
		watch.SubscribeAll(wire.ClusterType)
		r := report(watch, "a", "gone", "lost")
		o.confirmed(wire.ClusterType, "a")
		woken := func(when string, do func()) {
			t.Helper()
			awake(watch)
			if do(); !awake(watch) {
				t.Errorf("%s: the client of cohort %d is not woken", when, cohort)
			}
		}
		woken("judged", func() { o.EvaluateReports(reportedClusters, time.Now()) })
		woken("withheld", func() { o.Withhold(reportedClusters, map[string]struct{}{"gone": {}}) })
		of := newOrigin(t, Config{})
		woken("delegated", func() { o.DelegateReports(reportedClusters, of.view.Watch()) })
		r.Close()
	}
}
