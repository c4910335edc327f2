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

// emptyView returns a view without state, and a stream that subscribes to the clusters.
func emptyView() (*Watch, *Writer) {
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

// report is Report for a client that reports all of its clusters.
func report(w *Watch, names ...string) *Report {
	return w.Report(wire.ClusterType, Wildcard, names, len(names))
}

// TestH04_EachReportIsEvaluatedSeparately: removals are withheld from a client if many of its reported resources are
// missing, and not from a client of which few are missing.
func TestH04_EachReportIsEvaluatedSeparately(t *testing.T) {
	watch, w := emptyView()
	few, most, all := report(watch, "a", "b", "gone"), report(watch, "b", "gone", "lost"), report(watch, AllNames)
	twice := report(watch, "lost", "gone", "b")
	if twice != most {
		t.Error("clients with equal reports have two reports")
	}
	a, b := newResource(t, wire.ClusterType, "a", "1", "a"), newResource(t, wire.ClusterType, "b", "1", "b")
	w.Apply(Wildcard, updateOf(wire.ClusterType, a, b))
	if removable := most.Removable([]string{"gone"}); len(removable) > 0 {
		t.Errorf("before the evaluation: removable %q", removable)
	}
	got := slices.Sorted(maps.Keys(w.EvaluateReports(reportedClusters, time.Now())))
	if !slices.Equal(got, []string{"gone", "lost"}) {
		t.Errorf("missing %q, want gone and lost", got)
	}
	w.SetPhase(wire.ClusterType, Confirmed)
	check := func(when string, r *Report, want ...string) {
		t.Helper()
		if removable := r.Removable([]string{"gone", "lost", "other"}); !slices.Equal(removable, want) {
			t.Errorf("%s: removable %q, want %q", when, removable, want)
		}
	}
	check("few are missing", few, "gone", "lost", "other")
	check("most are missing", most, "other")
	if all.WithholdsAll() {
		t.Error("the set is withheld although it is not empty")
	}
	check("later, most", report(watch, "gone", "lost"), "other")
	if r := report(watch, "a", "b", "c", "gone"); r != nil {
		t.Error("later report accepted, although few of its removals are withheld")
	}
	if r := report(watch, "x", "y", "z"); r != nil {
		t.Error("later report accepted, although none of its removals is withheld")
	}
	w.Withhold(reportedClusters, map[string]struct{}{"lost": {}})
	check("one removal was released", most, "gone", "other")
}

// TestH04_ReportsOutliveTheirClientsForAWhile: a report is kept for reportLinger after its client has disconnected,
// unless there are too many names.
func TestH04_ReportsOutliveTheirClientsForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		watch, w := emptyView()
		for range 3 {
			report(watch, "a", "b").Close()
		}
		report(watch, manyNames(maxUnclaimedNames-1)...).Close()
		if got := len(w.EvaluateReports(reportedClusters, time.Now())); got != 2 {
			t.Errorf("%d names are missing, want those of the one report within the limit", got)
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
			t.Errorf("%d names are reported after the client has reconnected, want 2", got)
		}
		back.Close()
		time.Sleep(reportLinger)
		w.Trim(time.Now())
		w.Withhold(reportedClusters, nil)
		w.Trim(time.Now())
		if x := &w.view.index; len(w.StillReported(reportedClusters)) > 0 || len(x.reported) > 0 || x.unclaimedNames != 0 {
			t.Errorf("%d sets with reports and %d unclaimed names, want none", len(x.reported), x.unclaimedNames)
		}
	})
}

// TestH04_ForgottenMembersAreNoLastKnownSet: a wildcard set without subscribers is dropped together with its reports.
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
		t.Fatal("wildcard set was not dropped")
	}
	if x := &w.view.index; x.unclaimedNames != 0 {
		t.Errorf("%d unclaimed names, want none", x.unclaimedNames)
	}
	watch.SubscribeAll(wire.ClusterType)
	if r := report(watch, "a", "b"); r == nil {
		t.Error("report about an unknown set was rejected")
	}
}
