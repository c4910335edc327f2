package cache

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

var reportedClusters = ReportedSet{wire.ClusterType, Wildcard}

// coldView returns a view of which nothing is known, and a stream that wants the clusters.
func coldView() (*Watch, *Writer) {
	v, w := New(Config{})
	watch := v.Watch()
	watch.SubscribeAll(wire.ClusterType)
	return watch, w
}

// manyNames returns n names.
func manyNames(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("n%06d", i))
	}
	return names
}

// report is Report for all of the clusters that a client holds.
func report(w *Watch, names ...string) *Report {
	return w.Report(wire.ClusterType, Wildcard, names, len(names))
}

// TestH04_EachReportIsEvaluatedSeparately: what is withheld from a client is what the set lacks of a report that lacks much, and
// nothing from one whose own report lacks little.
func TestH04_EachReportIsEvaluatedSeparately(t *testing.T) {
	watch, w := coldView()
	few, most, all := report(watch, "a", "b", "gone"), report(watch, "b", "gone", "lost"), report(watch, AllNames)
	twice := report(watch, "lost", "gone", "b")
	if twice != most {
		t.Error("two clients that say the same have two reports")
	}
	w.Apply(Wildcard, wire.Update{TypeURL: wire.ClusterType, Resources: []*wire.Resource{newResource(t, wire.ClusterType, "a", "1", "a"), newResource(t, wire.ClusterType, "b", "1", "b")}})
	if told := most.Removable([]string{"gone"}); len(told) > 0 {
		t.Errorf("before the set is known: told %q", told)
	}
	if got := slices.Sorted(maps.Keys(w.EvaluateReports(reportedClusters, time.Now()))); !slices.Equal(got, []string{"gone", "lost"}) {
		t.Errorf("lacking %q, want gone and lost", got)
	}
	w.SetPhase(wire.ClusterType, Confirmed)
	check := func(when string, r *Report, want ...string) {
		t.Helper()
		if told := r.Removable([]string{"gone", "lost", "other"}); !slices.Equal(told, want) {
			t.Errorf("%s: told %q, want %q", when, told, want)
		}
	}
	check("few are lacking", few, "gone", "lost", "other")
	check("most are lacking", most, "other")
	if all.WithholdsAll() {
		t.Error("the set is withheld although it is not empty")
	}
	check("later, most", report(watch, "gone", "lost"), "other")
	if r := report(watch, "a", "b", "c", "gone"); r != nil {
		t.Error("what is reported later counts, although little of it is withheld")
	}
	if r := report(watch, "x", "y", "z"); r != nil {
		t.Error("what is reported later counts, although nothing of it is withheld")
	}
	w.Withhold(reportedClusters, map[string]struct{}{"lost": {}})
	check("one was released", most, "gone", "other")
}

// TestH04_ReportsOutliveTheirClientsForAWhile, and no longer; of many names, not even that.
func TestH04_ReportsOutliveTheirClientsForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		watch, w := coldView()
		for range 3 {
			report(watch, "a", "b").Close()
		}
		report(watch, manyNames(maxUnclaimedNames-1)...).Close()
		if got := len(w.EvaluateReports(reportedClusters, time.Now())); got != 2 {
			t.Errorf("%d names are lacking, want those of the one report that there is room for", got)
		}
		time.Sleep(reportLinger - time.Second)
		w.Trim(time.Now())
		if got := len(w.StillReported(reportedClusters)); got != 2 {
			t.Errorf("%d names are reported, want 2", got)
		}
		back := report(watch, "a", "b")
		time.Sleep(reportLinger)
		w.Trim(time.Now())
		if got := len(w.StillReported(reportedClusters)); got != 2 {
			t.Errorf("%d names are reported by who is back, want 2", got)
		}
		back.Close()
		time.Sleep(reportLinger)
		w.Trim(time.Now())
		w.Withhold(reportedClusters, nil)
		w.Trim(time.Now())
		if x := &w.view.index; len(w.StillReported(reportedClusters)) > 0 || len(x.reported) > 0 || x.unclaimedNames != 0 {
			t.Errorf("%d sets with reports and %d names of who has left, want none", len(x.reported), x.unclaimedNames)
		}
	})
}

// TestH04_ForgottenMembersAreNoLastKnownSet: members that nobody wants any more are forgotten, with what was reported of them.
func TestH04_ForgottenMembersAreNoLastKnownSet(t *testing.T) {
	v, w := New(Config{})
	watch := v.Watch()
	wildcard := watch.SubscribeAll(wire.ClusterType)
	r := report(watch, "a", "b")
	w.EvaluateReports(reportedClusters, time.Now())
	w.SetPhase(wire.ClusterType, Confirmed)
	watch.UnsubscribeAll(wildcard)
	r.Close()
	w.TakeDemand()
	if !w.ForgetWildcard(wire.ClusterType) {
		t.Fatal("the members are wanted")
	}
	if x := &w.view.index; x.unclaimedNames != 0 {
		t.Errorf("%d names of who has left, want none", x.unclaimedNames)
	}
	watch.SubscribeAll(wire.ClusterType)
	if r := report(watch, "a", "b"); r == nil {
		t.Error("what is reported of a set that is not known does not count")
	}
}
