package pending

import (
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// TestH13_SourceState: readers see the connection state of the source at once. They see no target after it has changed
// until the gate is open, and they see that the source is frozen.
func TestH13_SourceState(t *testing.T) {
	o := newFrozenOrigin(t)
	o.Thaw()
	o.SetTarget("first")
	o.Freeze()
	stands := func(when, target string, connected, frozen bool) {
		t.Helper()
		s := o.view.Generation().First()
		if s.Target != target || s.Connected != connected || s.Frozen.IsZero() == frozen {
			t.Errorf("%s: readers see %+v; want the target %q, connected %t, frozen %t", when, *s, target, connected, frozen)
		}
	}
	o.put(cache.Wildcard, "a", "2", "a2")
	stands("frozen", "first", true, true)
	turns := o.view.Generation().OriginChanges()
	o.SetConnected(false)
	stands("lost", "first", false, true)
	if o.view.Generation().OriginChanges() == turns {
		t.Error("readers do not see that the origin disconnected")
	}
	o.SetConnected(true)
	o.SetTarget("second")
	stands("elsewhere", "", true, true)
	o.SetTarget("first")
	stands("back", "", true, true)
	o.SetTarget("second")
	o.Thaw()
	stands("thawed", "second", true, false)
}

// TestH13_SystemVersion: the displayed system version belongs to the resources that readers see (R091).
func TestH13_SystemVersion(t *testing.T) {
	o := newFrozenOrigin(t)
	put := func(version, content, want string) {
		t.Helper()
		o.Apply(cache.Wildcard,
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

// TestH13_DemandIsNotFrozen: a resource that is missing in latest is requested, also if another change passes with it
// (R106).
func TestH13_DemandIsNotFrozen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newFrozenOrigin(t)
		o.subscribe(o.view.Watch(), "late")
		o.remove(cache.ByName, "n")
		time.Sleep(2 * time.Second)
		select {
		case <-o.Writer().Demand():
		default:
		}
		heartbeat := decoded(t, acme, &discoverypb.Resource{Name: "n", Version: "1", Ttl: durationpb.New(time.Minute)})
		o.Apply(cache.ByName, updateOf(acme, heartbeat, o.resource("late", "1", "late1")))
		o.wantVisible("frozen", map[string]string{"late": "late1", "n": "n1"})
		select {
		case <-o.Writer().Demand():
		default:
			t.Error("resource of the heartbeat is not requested")
		}
	})
}

// TestH13_ExpiredByName: a named resource was withheld and has expired. After the gate is opened, a reader that sees a
// member instead is sent the removal of that member.
func TestH13_ExpiredByName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOrigin(t, cache.Config{})
		o.put(cache.Wildcard, "a", "1", "a1")
		o.Freeze()
		o.subscribe(o.view.Watch(), "a")
		o.putTTL(cache.ByName, "a", "2", "a2", time.Minute)
		time.Sleep(2 * time.Minute)
		o.expire(time.Now())
		o.Thaw()
		e, _ := o.typ().Lookup(o.name("a"))
		if got := contentOf(e); got != "a1" {
			t.Errorf("readers see %q, want the member a1", got)
		}
		o.remove(cache.Wildcard, "a")
		o.SetConnected(false) // an expired resource is absent on any connection (R107)
		if e, _ = o.typ().Lookup(o.name("a")); e == nil || e.Present() || !o.view.Generation().Absent(e) {
			t.Errorf("member removed: readers see %q, want it absent", contentOf(e))
		}
	})
}

// TestH13_ErrorOfTheWholeSet: an error of the whole wildcard set is frozen, its end is not: the origin has the set again.
func TestH13_ErrorOfTheWholeSet(t *testing.T) {
	o := newFrozenOrigin(t)
	want := func(when, want string) {
		t.Helper()
		if got := o.errorText(cache.Wildcard, wire.Wildcard); got != want {
			t.Errorf("%s: readers see the error %q of the set, want %q", when, got, want)
		}
	}
	o.fail(cache.Wildcard, wire.Wildcard, codes.Internal, "no")
	want("frozen", "")
	o.put(cache.Wildcard, "a", "2", "a2")
	o.Thaw()
	want("the error ended before the thaw", "")
	o.Freeze()
	o.fail(cache.Wildcard, wire.Wildcard, codes.Internal, "no")
	o.Thaw()
	want("thawed", "Internal no")
	o.Freeze()
	o.put(cache.Wildcard, "a", "3", "a3")
	want("frozen: the error has ended", "")
	if o.hasName(wire.Wildcard) {
		t.Error("state of the whole set remains")
	}
	o.Thaw()
	o.wantVisible("thawed", map[string]string{"a": "a3"})
}
