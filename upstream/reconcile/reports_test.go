package reconcile

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// A reporting is a view that begins with nothing, and what decides about the reports of its clients.
type reportsRig struct {
	*Reports
	t        *testing.T
	w        *cache.Writer
	watch    *cache.Watch
	asked    time.Time // zero if the origin cannot be asked
	complete time.Time
	resyncs  int // times that the origin was asked for everything
}

var (
	allClusters = cache.ReportedSet{Key: wire.ClusterType, Kind: cache.Wildcard}
	routeNames  = cache.ReportedSet{Key: wire.RouteType, Kind: cache.ByName}
)

// inReporting runs a test in a bubble.
func runReports(t *testing.T, test func(r *reportsRig)) {
	synctest.Test(t, func(t *testing.T) {
		view, w := cache.New(cache.Config{})
		r := &reportsRig{t: t, w: w, watch: view.Watch(), asked: time.Now(), complete: time.Now()}
		r.watch.SubscribeAll(wire.ClusterType)
		r.Reports = NewReports(w, ReportsConfig{
			Config:        Config{HoldTime: time.Hour, Counts: new(Counts), Logger: slog.New(slog.DiscardHandler)},
			AnswerTimeout: 10 * time.Second,
			CompleteAt:    func(cache.ReportedSet) (at, asked time.Time) { return r.complete, r.asked },
			Resync:        func() { r.resyncs++ },
		})
		test(r)
	})
}

// has has the origin state resources.
func (r *reportsRig) originStates(of cache.ReportedSet, names ...string) {
	u := wire.Update{TypeURL: of.Key}
	for _, name := range names {
		res, err := wire.NewResource(of.Key, name, "1", protowire.AppendString([]byte{0x0a}, name))
		if err != nil {
			r.t.Fatal(err)
		}
		u.Resources = append(u.Resources, res)
	}
	r.w.Apply(of.Kind, u)
}

func (r *reportsRig) report(of cache.ReportedSet, names ...string) *cache.Report {
	if of.Kind == cache.ByName {
		r.watch.Subscribe(of.Key, names)
		r.w.TakeDemand()
	}
	return r.watch.Report(of.Key, of.Kind, names, len(names))
}

// confirm has the set of clusters confirmed.
func (r *reportsRig) confirm() {
	r.Evaluate(allClusters, time.Now(), time.Now())
	r.w.SetPhase(wire.ClusterType, cache.Confirmed)
}

// pass lets time pass, with a check in each second.
func (r *reportsRig) advance(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(time.Second)
		r.Step(time.Now())
	}
}

// want fails the test unless there are these holds, and a client that reports names may be told that the others are
// gone.
func (r *reportsRig) wantHolds(when string, of *cache.Report, names string, want ...string) {
	r.t.Helper()
	got, withheld := []string{}, []string{}
	for _, h := range r.Operate(Command{}, time.Now()) {
		as := "held "
		switch {
		case h.Unconfirmed:
			as = "suspected "
		case h.Discarded:
			as = "kept "
		}
		if !h.Reported {
			r.t.Errorf("%s: hold %+v is of no report", when, h)
		}
		got = append(got, as+strings.Join(h.Names, " "))
		withheld = append(withheld, h.Names...)
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		r.t.Errorf("%s: holds %q, want %q", when, got, want)
	}
	told := of.Removable(strings.Fields(names))
	for _, name := range strings.Fields(names) {
		if slices.Contains(told, name) == slices.Contains(withheld, name) {
			r.t.Errorf("%s: told that %q are gone, and held is %q", when, told, withheld)
		}
	}
}

// TestH04_WhatIsReportedIsHeld until the second look, an operator or the origin decides.
func TestH04_WhatIsReportedIsHeld(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(r *reportsRig)
		want []string
	}{
		{"nothing happens", func(r *reportsRig) { r.advance(time.Hour - time.Second) }, []string{"held b c"}},
		{"the hold is over", func(r *reportsRig) { r.advance(time.Hour + time.Second) }, []string{}},
		{"the origin is being asked", func(r *reportsRig) {
			r.complete = time.Now().Add(2 * time.Hour)
			r.advance(time.Hour + time.Minute)
		}, []string{"held b c"}},
		{"the origin cannot be asked", func(r *reportsRig) {
			r.complete = time.Time{}
			r.advance(2 * time.Hour)
		}, []string{"held b c"}},
		{"one comes", func(r *reportsRig) { r.originStates(allClusters, "b"); r.advance(time.Second) }, []string{"held c"}},
		{"the origin says of one that it is gone", func(r *reportsRig) { r.RecordRemoved(allClusters, seq("b", "a")) }, []string{"held c"}},
		{"and of names of another set", func(r *reportsRig) { r.RecordRemoved(routeNames, seq("b", "c")) }, []string{"held b c"}},
		{"released", func(r *reportsRig) { r.Operate(Command{Do: Release}, time.Now()) }, []string{}},
		{"discarded", func(r *reportsRig) { r.Operate(Command{Do: Discard}, time.Now()); r.advance(2 * time.Hour) }, []string{"kept b c"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			runReports(t, func(r *reportsRig) {
				client := r.report(allClusters, "a", "b", "c")
				r.originStates(allClusters, "a")
				r.complete = time.Time{} // the stream is lost
				r.confirm()
				r.complete = time.Now()
				r.wantHolds("confirmed", client, "b c", "held b c")
				tt.do(r)
				r.wantHolds(tt.name, client, "b c", tt.want...)
				if over := len(tt.want) == 0; over == r.HasRemovals() {
					t.Errorf("decided: %t, busy: %t", over, r.HasRemovals())
				}
			})
		})
	}
}

// TestH04_TheSecondLookAtReports asks the origin for everything once, but for names, which it is asked for all the
// time.
func TestH04_TheSecondLookAtReports(t *testing.T) {
	for of, want := range map[cache.ReportedSet]int{allClusters: 1, routeNames: 0} {
		runReports(t, func(r *reportsRig) {
			client := r.report(of, "a", "b")
			r.Evaluate(of, time.Now(), time.Now())
			r.wantHolds("held", client, "a b", "held a b")
			r.advance(2 * time.Hour)
			if r.wantHolds("over", client, "a b"); r.resyncs != want {
				t.Errorf("%s: the origin was asked for everything %d times, want %d", of.Key, r.resyncs, want)
			}
		})
	}
}

// TestH04_NamesAreJudgedInBatches, each when the origin was silent on it for a while, and with a deadline of its own. A
// name of which the origin says that there is none is no report.
func TestH04_NamesAreJudgedInBatches(t *testing.T) {
	runReports(t, func(r *reportsRig) {
		first := r.report(routeNames, "a", "b", "c")
		if next := r.Step(time.Now()); next != time.Now().Add(10*time.Second) {
			t.Errorf("judged in %v, want in 10s", time.Until(next))
		}
		r.asked = time.Now().Add(5 * time.Second)
		if next := r.Step(time.Now()); next != r.asked.Add(10*time.Second) {
			t.Errorf("asked in 5s, and judged in %v, want in 15s", time.Until(next))
		}
		r.advance(15 * time.Second)
		r.wantHolds("the first", first, "a b c", "held a b c")
		r.advance(30 * time.Minute)
		second := r.report(routeNames, "c", "d", "e")
		r.advance(10 * time.Second)
		r.wantHolds("the second", second, "d e", "held a b c", "held d e")
		until := time.Now().Add(time.Hour)
		r.advance(20 * time.Minute)
		r.w.Apply(cache.ByName, wire.Update{TypeURL: wire.RouteType, Removed: []string{"a"}})
		r.advance(time.Second)
		r.wantHolds("one does not exist", first, "b c", "held b c", "held d e")
		for _, h := range r.Operate(Command{}, time.Now()) {
			if h.Names[0] == "d" && h.Until != until {
				t.Errorf("the second batch is held until %v, want %v", h.Until, until)
			}
		}
	})
}

// TestH09_WhatOperatorsHadKept waits for a client that reports it again, for five minutes.
func TestH09_WhatOperatorsHadKept(t *testing.T) {
	runReports(t, func(r *reportsRig) {
		r.RestoreDiscarded(wire.ClusterType, "a")
		r.RestoreDiscarded(wire.ClusterType, "b")
		r.RestoreDiscarded(wire.ClusterType, "xdstp://one/"+wire.ClusterType+"/of/c")
		r.wantHolds("after the restart", nil, "", "kept a b", "kept xdstp://one/"+wire.ClusterType+"/of/c")
		client := r.report(allClusters, "a")
		r.confirm()
		r.wantHolds("confirmed", client, "a", "kept a b", "kept xdstp://one/"+wire.ClusterType+"/of/c")
		r.advance(discardedGrace + time.Second)
		r.wantHolds("five minutes later", client, "a", "kept a")
	})
}
