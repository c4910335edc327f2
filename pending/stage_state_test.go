package pending

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fanout"
	"github.com/xdstender/tender/cache/wire"
)

// A tracedCause records the calls of Waits.
type tracedCause struct{ waits []time.Time }

func (c *tracedCause) Applied(cache.Application) fanout.Span { return nil }

func (*tracedCause) Waited(string, time.Time, time.Time) {}

func (c *tracedCause) Waits(at time.Time) { c.waits = append(c.waits, at) }

// TestTracesOfChangesThatWait: Waits is called for the trace of a message if some of its changes wait.
func TestTracesOfChangesThatWait(t *testing.T) {
	o := newCohort(t, acme)
	now := &o.counts
	put := func(name, content string) (waits []time.Time) {
		cause := new(tracedCause)
		o.SetCause(cache.Cause{Trace: cause})
		o.put(cache.Wildcard, name, content, content)
		o.SetCause(cache.Cause{})
		return cause.waits
	}
	if waits := put("a", "a1"); waits != nil {
		t.Errorf("first state waits since %v", waits)
	}
	o.SetPhase(acme, cache.Confirmed)
	if waits := put("a", "a2"); !slices.Equal(waits, []time.Time{now.Free.Changed}) {
		t.Errorf("change waits since %v, want %v", waits, now.Free.Changed)
	}
	if waits := put("b", "b1"); !slices.Equal(waits, []time.Time{now.Free.Changed}) {
		t.Errorf("second change waits since %v, want %v", waits, now.Free.Changed)
	}
	if waits := put("a", "a1"); waits != nil {
		t.Errorf("change back to the served state waits since %v", waits)
	}
	o.put(cache.Wildcard, "c", "1", "c1") // without a trace
	o.typeURL = "passes"
	if waits := put("d", "d1"); waits != nil {
		t.Errorf("change of a passing type waits since %v", waits)
	}
}

// restart returns an origin of another process, without a connection, whose view and list are restored from a snapshot of o.
// It is frozen if o is.
func restart(t tester, o *origin) *origin {
	t.Helper()
	s, _ := o.Capture().Snapshot(true)
	var b bytes.Buffer
	if err := s.Encode(&b); err != nil {
		t.Fatal(err)
	}
	read, err := cache.DecodeSnapshot(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	v, w := cache.New(o.cfg)
	w.Restore(read, time.Now())
	again := &origin{tester: t, List: New(w, nil), view: v, cfg: o.cfg, typeURL: o.typeURL}
	again.ReportStaged(func(s Staged) { again.counts = s })
	if o.Frozen() {
		again.Freeze()
	}
	again.Restore(read)
	return again
}

// TestB42_I10_RestoredStateIsLastGood: all cohorts and latest start with the restored state. Differing state that the
// origin sends then waits, including first responses for names.
func TestB42_I10_RestoredStateIsLastGood(t *testing.T) {
	o, _ := newRollout(t)
	o.confirm(acme, "a", "b", "both")
	o.subscribe(o.view.Watch(), "n", "m", "both")
	for _, name := range []string{"n", "m", "both"} {
		o.put(cache.ByName, name, "1", name+"1")
	}
	o.confirm(wire.EndpointType, "e")
	o.typeURL = acme
	o.put(cache.Wildcard, "a", "2", "a2") // not promoted
	o.put(cache.ByName, "n", "2", "n2")
	o.ShowAsRest(canaries)
	o = restart(t, o)
	now := &o.counts
	sees := func(when string, cohort int, want string) {
		t.Helper()
		o.wantMembers(cohort, acme, "a1", "b1", "both1")
		if got := contentOf(o.view.Cohort(cohort).Generation().Type(acme).ByName.Get(o.name("n"))); got != want {
			t.Errorf("%s: cohort %d sees %q of n, want %s", when, cohort, got, want)
		}
	}
	for cohort, v := range o.views() {
		sees("restored", cohort, "n1")
		if typ := v.Generation().Type(acme); !typ.Restored || typ.Phase != cache.Settled {
			t.Errorf("cohort %d: phase %v, restored %v", cohort, typ.Phase, typ.Restored)
		}
	}
	if now.Names != 2 {
		t.Errorf("restored: %+v, want the 2 names that waited", *now)
	}
	o.SetConnected(true)
	o.Writer().TakeDemand()
	o.put(cache.Wildcard, "a", "2", "a2")
	o.put(cache.ByName, "n", "2", "n2")
	o.remove(cache.ByName, "m")
	o.SetPresumed(acme)
	for cohort, v := range o.views() {
		sees("the origin is back", cohort, "n1")
		if !v.Generation().Type(acme).Presumed {
			t.Errorf("cohort %d: Presumed is not set", cohort)
		}
	}
	o.SetPhase(acme, cache.Confirmed)
	o.remove(cache.Wildcard, "b")
	for cohort, v := range o.views() {
		sees("confirmed", cohort, "n1")
		if typ := v.Generation().Type(acme); typ.Restored || typ.Presumed || typ.Phase != cache.Confirmed {
			t.Errorf("confirmed: cohort %d has phase %v, restored %v, presumed %v", cohort, typ.Phase, typ.Restored, typ.Presumed)
		}
	}
	if now.Names != 4 {
		t.Errorf("reconnected: %+v, want 4 names", *now)
	}
	o.typeURL = wire.EndpointType
	o.put(cache.Wildcard, "e", "2", "e2")
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
		o.put(cache.Wildcard, of.name, "2", of.name+"2")
	}
	o.Show(canaries, o.Pin())
	again := restart(t, o)
	for _, cohort := range []int{canaries, rest} {
		again.wantMembers(cohort, wire.ClusterType, "c1")
		again.wantMembers(cohort, wire.EndpointType, "e2")
	}
	o.Show(rest, o.Pin())
	again = restart(t, o)
	again.wantMembers(rest, wire.ClusterType, "c2")
}

// TestI10_AbsenceIsRestored: a resource that the origin adds after the restart is a change, which waits. A
// repeated absence, also as an error, is no change.
func TestI10_AbsenceIsRestored(t *testing.T) {
	notFound := wire.NewResourceError("failed", codes.NotFound, "there is none")
	o := newCohort(t, wire.RouteType)
	o.typeURL = wire.RouteType
	o.subscribe(o.view.Watch(), "added", "gone", "never", "failed", "denied", "unknown")
	o.put(cache.ByName, "gone", "1", "x")
	o.remove(cache.ByName, "added", "never")
	o.Apply(cache.ByName,
		wire.Update{TypeURL: o.typeURL,
			Errors: []*wire.ResourceError{notFound, wire.NewResourceError("denied", codes.PermissionDenied, "no")}})
	o.remove(cache.ByName, "gone")
	o.Show(rest, o.Pin())
	o.Show(canaries, o.Pin())
	want := []string{"added", "never", "failed", "gone"}
	s, _ := o.Writer().Snapshot(true)
	if len(s.Types) != 1 || !slices.Equal(s.Types[0].Absent, want) {
		t.Fatalf("the snapshot has %+v, want the absent names %q", s.Types, want)
	}
	again := restart(t, o)
	for _, d := range again.Writer().TakeDemand() {
		if d.Wanted || !slices.Contains(want, d.Name.String()) {
			t.Errorf("demand %+v, want the absent names, not wanted", d)
		}
	}
	n := again.subscribe(again.view.Watch(), "added")[0]
	again.SetConnected(true)
	if e, _ := again.typ().Lookup(n); e == nil || e.Present() || again.view.Generation().Absent(e) ||
		again.view.Settled(0) {
		t.Errorf("%+v, settled %v: want an absence that the origin has not confirmed", e, again.view.Settled(0))
	}
	again.put(cache.ByName, "added", "1", "x")
	again.remove(cache.ByName, "never", "gone")
	again.Apply(cache.ByName, wire.Update{TypeURL: again.typeURL, Errors: []*wire.ResourceError{notFound}})
	if got := again.Pin().Changes[wire.RouteType]; len(got) != 1 || got["added"] == (wire.Digest{}) {
		t.Errorf("a resource was added, but the edition changes %v", got)
	}
	for cohort := range 2 {
		g := again.view.Cohort(cohort).Generation()
		typ := g.Type(wire.RouteType)
		if e, _ := typ.Lookup(n); e.Present() {
			t.Errorf("cohort %d was shown the added resource", cohort)
		}
		if e, _ := typ.Lookup(again.name("never")); !g.Absent(e) {
			t.Errorf("confirmed absence is not visible in cohort %d", cohort)
		}
	}
	if !again.view.Settled(0) {
		t.Error("not settled after responses for all names")
	}
	again.checkEntries()
}
