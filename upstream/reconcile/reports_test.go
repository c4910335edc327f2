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

// A reportsRig is a view without content, with the Reports of its clients.
type reportsRig struct {
	*Reports
	t           *testing.T
	w           *cache.Writer
	watch       *cache.Watch
	requestedAt time.Time // zero if the relay cannot request the set
	complete    time.Time
	resyncs     int // calls of Resync
}

var (
	allClusters = cache.ReportedSet{Key: wire.ClusterType, Kind: cache.Wildcard}
	routeNames  = cache.ReportedSet{Key: wire.RouteType, Kind: cache.ByName}
)

// runReports runs a test in a synctest bubble.
func runReports(t *testing.T, test func(r *reportsRig)) {
	synctest.Test(t, func(t *testing.T) {
		view, w := cache.New(cache.Config{})
		r := &reportsRig{t: t, w: w, watch: view.Watch(), requestedAt: time.Now(), complete: time.Now()}
		r.watch.SubscribeAll(wire.ClusterType)
		r.Reports = NewReports(w, ReportsConfig{
			Config:        Config{HoldTime: time.Hour, Counts: new(Counts), Logger: slog.New(slog.DiscardHandler)},
			AnswerTimeout: 10 * time.Second,
			CompleteAt:    func(cache.ReportedSet) (at, requestedAt time.Time) { return r.complete, r.requestedAt },
			Verify:        func(time.Time) { r.resyncs++ },
		})
		test(r)
	})
}

// originStates applies a response with resources.
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

// report reports names as a returning client. By name, the client also subscribes to them.
func (r *reportsRig) report(of cache.ReportedSet, names ...string) *cache.Report {
	if of.Kind == cache.ByName {
		r.watch.Subscribe(of.Key, names)
		r.w.TakeDemand()
	}
	return r.watch.Report(of.Key, of.Kind, names, len(names))
}

// confirm evaluates the reports about clusters, and confirms the wildcard set.
func (r *reportsRig) confirm() {
	r.Evaluate(allClusters, time.Now(), time.Now())
	r.w.SetPhase(wire.ClusterType, cache.Confirmed)
}

// advance calls Step every second for a duration.
func (r *reportsRig) advance(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(time.Second)
		r.Step(time.Now())
	}
}

// wantHolds fails the test unless there are these holds, and the view withholds exactly their names from a client that
// reports names.
func (r *reportsRig) wantHolds(when string, report *cache.Report, names string, want ...string) {
	r.t.Helper()
	got, withheld := []string{}, []string{}
	for _, h := range r.Operate(Command{}, time.Now()) {
		state := "held "
		switch {
		case h.Undecided():
			state = "suspected "
		case h.Reason == Dropped:
			state = "dropped "
		}
		if !h.Reported {
			r.t.Errorf("%s: hold %+v, want Reported", when, h)
		}
		got = append(got, state+strings.Join(h.Names, " "))
		withheld = append(withheld, h.Names...)
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		r.t.Errorf("%s: holds %q, want %q", when, got, want)
	}
	removable := report.Removable(strings.Fields(names))
	for _, name := range strings.Fields(names) {
		if slices.Contains(removable, name) == slices.Contains(withheld, name) {
			r.t.Errorf("%s: removable %q and held %q, want each name in exactly one", when, removable, withheld)
		}
	}
}

// TestH04_ReportedNamesAreHeld checks that reported names that the set lacks are held until the second look, an
// operator or the origin decides.
func TestH04_ReportedNamesAreHeld(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(r *reportsRig)
		want []string
	}{
		{"before the end of the hold time", func(r *reportsRig) { r.advance(time.Hour - time.Second) }, []string{"held b c"}},
		{"after the hold time", func(r *reportsRig) { r.advance(time.Hour + time.Second) }, []string{}},
		{"second look not complete", func(r *reportsRig) {
			r.complete = time.Now().Add(2 * time.Hour)
			r.advance(time.Hour + time.Minute)
		}, []string{"held b c"}},
		{"second look without a stream", func(r *reportsRig) {
			r.complete = time.Time{}
			r.advance(2 * time.Hour)
		}, []string{"held b c"}},
		{"origin sends one", func(r *reportsRig) {
			r.originStates(allClusters, "b")
			r.advance(time.Second)
		}, []string{"held c"}},
		{"origin removes one", func(r *reportsRig) { r.RecordRemoved(allClusters, seq("b", "a")) }, []string{"held c"}},
		{"origin removes names of another set", func(r *reportsRig) {
			r.RecordRemoved(routeNames, seq("b", "c"))
		}, []string{"held b c"}},
		{"passed", func(r *reportsRig) { r.Operate(Command{Do: Pass}, time.Now()) }, []string{}},
		{"dropped", func(r *reportsRig) {
			r.Operate(Command{Do: Drop}, time.Now())
			r.advance(2 * time.Hour)
		}, []string{"dropped b c"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			runReports(t, func(r *reportsRig) {
				client := r.report(allClusters, "a", "b", "c")
				r.originStates(allClusters, "a")
				r.complete = time.Time{} // the stream is closed
				r.confirm()
				r.complete = time.Now()
				r.wantHolds("confirmed", client, "b c", "held b c")
				tt.do(r)
				r.wantHolds(tt.name, client, "b c", tt.want...)
				if decided := len(tt.want) == 0; decided == r.HasRemovals() {
					t.Errorf("decided: %t, HasRemovals: %t", decided, r.HasRemovals())
				}
			})
		})
	}
}

// TestH04_SecondLookOfReports checks that the second look of a wildcard set requests all sets once. That of names does
// not, because the relay subscribes to them anyway.
func TestH04_SecondLookOfReports(t *testing.T) {
	for of, want := range map[cache.ReportedSet]int{allClusters: 1, routeNames: 0} {
		runReports(t, func(r *reportsRig) {
			client := r.report(of, "a", "b")
			r.Evaluate(of, time.Now(), time.Now())
			r.wantHolds("held", client, "a b", "held a b")
			r.advance(2 * time.Hour)
			if r.wantHolds("decided", client, "a b"); r.resyncs != want {
				t.Errorf("%s: %d calls of Resync, want %d", of.Key, r.resyncs, want)
			}
		})
	}
}

// TestH04_NamesAreEvaluatedInBatches checks that reports by name are evaluated after AnswerTimeout, in batches with
// their own hold times. A name that the origin removes is no longer held.
func TestH04_NamesAreEvaluatedInBatches(t *testing.T) {
	runReports(t, func(r *reportsRig) {
		first := r.report(routeNames, "a", "b", "c")
		if next := r.Step(time.Now()); next != time.Now().Add(10*time.Second) {
			t.Errorf("evaluated in %v, want in 10s", time.Until(next))
		}
		r.requestedAt = time.Now().Add(5 * time.Second)
		if next := r.Step(time.Now()); next != r.requestedAt.Add(10*time.Second) {
			t.Errorf("requested in 5s, evaluated in %v, want in 15s", time.Until(next))
		}
		r.advance(15 * time.Second)
		r.wantHolds("first batch", first, "a b c", "held a b c")
		r.advance(30 * time.Minute)
		second := r.report(routeNames, "c", "d", "e")
		r.advance(10 * time.Second)
		r.wantHolds("second batch", second, "d e", "held a b c", "held d e")
		until := time.Now().Add(time.Hour)
		r.advance(20 * time.Minute)
		r.w.Apply(cache.ByName, wire.Update{TypeURL: wire.RouteType, Removed: []string{"a"}})
		r.advance(time.Second)
		r.wantHolds("origin removes one", first, "b c", "held b c", "held d e")
		for _, h := range r.Operate(Command{}, time.Now()) {
			if h.Names[0] == "d" && h.Until != until {
				t.Errorf("second batch held until %v, want %v", h.Until, until)
			}
		}
	})
}

// TestH09_RestoredDroppedOfReports checks that a dropped name is kept for five minutes after a restart, and longer
// if a client reports it again.
func TestH09_RestoredDroppedOfReports(t *testing.T) {
	runReports(t, func(r *reportsRig) {
		r.RestoreDropped("a", &Hold{TypeURL: wire.ClusterType})
		r.RestoreDropped("b", &Hold{TypeURL: wire.ClusterType})
		r.RestoreDropped("xdstp://one/"+wire.ClusterType+"/of/c", &Hold{TypeURL: wire.ClusterType})
		r.wantHolds("after the restart", nil, "", "dropped a b", "dropped xdstp://one/"+wire.ClusterType+"/of/c")
		client := r.report(allClusters, "a")
		r.confirm()
		r.wantHolds("confirmed", client, "a", "dropped a b", "dropped xdstp://one/"+wire.ClusterType+"/of/c")
		r.advance(droppedGrace + time.Second)
		r.wantHolds("five minutes later", client, "a", "dropped a")
	})
}
