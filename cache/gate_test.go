package cache

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/cache/wire"
)

// TestH13_GateShowsAnyGeneration: behind a closed gate, readers can be shown any generation: a newer one (a promotion)
// or an older one (a rollback, an undo). They are sent the difference only, and latest continues to follow the source.
func TestH13_GateShowsAnyGeneration(t *testing.T) {
	o := newFrozenOrigin(t)
	before := o.Generation()
	o.Freeze()
	o.put(Wildcard, "a", "2", "a2")
	o.put(Wildcard, "new", "1", "new1")
	o.put(ByName, "n", "2", "n2")
	o.remove(Wildcard, "b")
	edition := o.Generation()
	o.put(Wildcard, "a", "3", "a3")
	o.put(Wildcard, "c", "2", "c2")
	for i, step := range []struct {
		generation *Generation
		log        []string // expected log of the wildcard set
		want       string   // a, b, c, new, n
		withheld   int
	}{
		{edition, []string{"a", "new", "-b"}, "a2  c1 new1 n2", 2},
		{edition, nil, "a2  c1 new1 n2", 2},
		{before, []string{"a", "b", "-new"}, "a1 b1 c1  n1", 5},
		{edition, []string{"a", "new", "-b"}, "a2  c1 new1 n2", 2},
		{o.Generation(), []string{"a", "c"}, "a3  c2 new1 n2", 0},
	} {
		at := o.view.Generation().Seq
		o.show(o.servedToRest(), func(string, *Name) *Generation { return step.generation })
		wantLog(t, o.typ().Wildcard.Since(at), step.log...)
		var got []string
		for _, name := range []string{"a", "b", "c", "new"} {
			content := ""
			if o.hasName(name) {
				content = strings.Trim(contentOf(o.typ().Wildcard.Get(o.name(name))), "-")
			}
			got = append(got, content)
		}
		got = append(got, contentOf(o.typ().ByName.Get(o.name("n"))))
		if got := strings.Join(got, " "); got != step.want || o.view.Withheld(0) != step.withheld {
			t.Errorf("step %d: readers see %q, and %d names are withheld; want %q and %d", i, got, o.view.Withheld(0),
				step.want, step.withheld)
		}
		if got := contentOf(o.Generation().Type(acme).Wildcard.Get(o.name("a"))); got != "a3" {
			t.Errorf("step %d: latest has %q of a, want a3", i, got)
		}
		o.checkEntries()
	}
	at := o.view.Generation().Seq
	o.Thaw()
	wantLog(t, o.typ().Wildcard.Since(at))
	o.put(Wildcard, "a", "4", "a4")
	o.wantVisible("thawed", map[string]string{"a": "a4"})
}

// TestH13_SourceState: readers see the connection state of the source at once. They see no target after it has changed
// until the gate is open, and they see that the source is frozen.
func TestH13_SourceState(t *testing.T) {
	o := newFrozenOrigin(t)
	o.Thaw()
	o.SetTarget("first")
	o.Freeze()
	stands := func(when, target, own string, connected, frozen bool) {
		t.Helper()
		s, latest := o.view.Generation().First(), o.Generation().First()
		if s.Target != target || latest.Target != own || s.Connected != connected || s.Frozen.IsZero() == frozen {
			t.Errorf("%s: readers see %+v, latest has %+v; want the targets %q and %q, connected %t, frozen %t", when, *s,
				*latest, target, own, connected, frozen)
		}
	}
	o.put(Wildcard, "a", "2", "a2")
	stands("frozen", "first", "first", true, true)
	turns := o.view.Generation().OriginChanges()
	o.SetSource(Source{Target: "first"}) // copied from a view that is not frozen
	stands("lost", "first", "first", false, true)
	if o.view.Generation().OriginChanges() == turns {
		t.Error("readers do not see that the origin disconnected")
	}
	o.SetConnected(true)
	o.SetTarget("second")
	stands("elsewhere", "", "second", true, true)
	o.SetTarget("first")
	stands("back", "", "first", true, true)
	o.SetTarget("second")
	o.Thaw()
	stands("thawed", "second", "second", true, false)
}

// TestH13_SystemVersion: the displayed system version belongs to the resources that readers see (R091).
func TestH13_SystemVersion(t *testing.T) {
	o := newFrozenOrigin(t)
	put := func(version, content, want string) {
		t.Helper()
		o.Apply(Wildcard,
			wire.Update{TypeURL: acme, SystemVersion: version, Resources: []*wire.Resource{o.resource("a", content, content)}})
		if got := o.typ().Wildcard.System(); got != want {
			t.Errorf("origin's version %s: readers see %q, want %q", version, got, want)
		}
	}
	o.Thaw()
	put("s1", "a1", "s1")
	o.Freeze()
	put("s2", "a2", "s1")
	put("s3", "a1", "s3")
	put("s4", "a2", "s3")
	o.Thaw()
	if got := o.typ().Wildcard.System(); got != "s4" {
		t.Errorf("thawed: readers see the version %q, want s4", got)
	}
}

// TestH13_DemandPassesTheGate: a resource that is missing in latest is requested, also if another change passes with it
// (R106).
func TestH13_DemandPassesTheGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newFrozenOrigin(t)
		o.subscribe(o.view.Watch(), "late")
		o.remove(ByName, "n")
		time.Sleep(2 * refetchInterval)
		select {
		case <-o.Demand():
		default:
		}
		heartbeat := decoded(t, acme, &discoverypb.Resource{Name: "n", Version: "1", Ttl: durationpb.New(time.Minute)})
		o.Apply(ByName, updateOf(acme, heartbeat, o.resource("late", "1", "late1")))
		o.wantVisible("frozen", map[string]string{"late": "late1", "n": "n1"})
		select {
		case <-o.Demand():
		default:
			t.Error("resource of the heartbeat is not requested")
		}
	})
}

// TestH13_ExpiredByName: a named resource was withheld and has expired. After the gate is opened, a reader that sees a
// member instead is sent the removal of that member.
func TestH13_ExpiredByName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &timedOrigin{origin: newOrigin(t, Config{})}
		o.put(Wildcard, "a", "1", "a1")
		o.Freeze()
		o.subscribe(o.view.Watch(), "a")
		o.putTTL(ByName, "a", "2", "a2", time.Minute)
		time.Sleep(2 * time.Minute)
		o.Expire(time.Now())
		o.Thaw()
		e, _ := o.typ().Lookup(o.name("a"))
		if got := contentOf(e); got != "a1" {
			t.Errorf("readers see %q, want the member a1", got)
		}
		o.remove(Wildcard, "a")
		o.SetConnected(false) // an expired resource is absent on any connection (R107)
		if e, _ = o.typ().Lookup(o.name("a")); e == nil || e.Present() || !o.view.Generation().Absent(e) {
			t.Errorf("member removed: readers see %q, want it absent", contentOf(e))
		}
	})
}

// TestH13_ErrorOfTheWholeSet: the end of an error of the whole wildcard set is shown when the set is confirmed, or when
// the gate is opened.
func TestH13_ErrorOfTheWholeSet(t *testing.T) {
	for _, restored := range []bool{true, false} {
		o := newFrozenOrigin(t)
		if restored {
			snapshot, _ := o.Snapshot(true)
			o.origin = newOrigin(t, Config{})
			o.Restore(snapshot, time.Now())
		}
		o.fail(Wildcard, wire.Wildcard, codes.Internal, "no")
		o.Thaw()
		o.Freeze()
		o.put(Wildcard, "a", "2", "a2")
		if got := o.errorText(Wildcard, wire.Wildcard); got != "Internal no" {
			t.Errorf("restored %t, frozen: readers see the error %q of the set, want the earlier one", restored, got)
		}
		if o.SetPhase(acme, Confirmed); !restored {
			o.Thaw()
		}
		if n := o.view.Find(acme, []string{wire.Wildcard})[0]; n != nil {
			t.Errorf("restored %t: state of the whole set remains: error %q, entry %v", restored,
				o.errorText(Wildcard, wire.Wildcard), o.typ().Wildcard.Get(n))
		}
	}
}
