package pending

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// TestFreeze_MergedDifference: during a freeze, readers see the earlier state and are not woken, even if they subscribe
// anew. The thaw shows the last state of each changed name once, and nothing for names that were changed back, or added
// and removed.
func TestFreeze_MergedDifference(t *testing.T) {
	o := newFrozenOrigin(t)
	before := o.view.Generation().Type(acme).Wildcard.Sum()
	for v := 2; v <= 4; v++ {
		o.put(cache.Wildcard, "a", fmt.Sprint(v), fmt.Sprint("a", v))
		o.put(cache.Wildcard, "c", fmt.Sprint(v), fmt.Sprint("c", v))
		o.put(cache.ByName, "n", fmt.Sprint(v), fmt.Sprint("n", v))
		o.put(cache.Wildcard, "new", fmt.Sprint(v), "")
		o.put(cache.Wildcard, "passing", fmt.Sprint(v), "")
	}
	o.put(cache.Wildcard, "c", "1", "c1")
	o.remove(cache.Wildcard, "b", "passing")
	if woken(o.watch) {
		t.Error("readers were woken during the freeze")
	}
	o.wantVisible("frozen", map[string]string{"a": "a1", "b": "b1", "c": "c1", "n": "n1", "new": ""})
	if o.typ().Wildcard.Sum() != before {
		t.Error("version of the set changed during the freeze")
	}
	if got, _ := o.Get(cache.Wildcard, acme, "a"); got == nil || string(got.Value()) != "a4" {
		t.Errorf("the list states %v of a, want a4", got)
	}
	if n := o.view.Withheld(0); n != 4 {
		t.Errorf("%d names are withheld, want 4: a, b, n and new", n)
	}
	if o.hasName("passing") {
		t.Error("name of a resource that was added and removed is still in the index")
	}
	if o.view.Generation().First().Frozen.IsZero() {
		t.Error("Frozen is not set in the source")
	}

	o.Thaw()
	if !woken(o.watch) {
		t.Error("thaw did not wake the readers")
	}
	wantLog(t, o.typ().Wildcard.Since(o.frozenAt), "a", "new", "-b")
	wantLog(t, o.typ().ByName.Since(o.frozenAt), "n")
	o.wantVisible("thawed", map[string]string{"a": "a4", "b": "", "c": "c1", "n": "n4"})
	if !o.view.Generation().First().Frozen.IsZero() || o.view.Withheld(0) != 0 || o.Frozen() {
		t.Error("still frozen")
	}
	o.put(cache.Wildcard, "a", "5", "a5")
	o.wantVisible("after that", map[string]string{"a": "a5"})
}

// TestFreeze_RevertedChanges: changes that were changed back are not sent. A second freeze or thaw has no effect.
func TestFreeze_RevertedChanges(t *testing.T) {
	o := newFrozenOrigin(t)
	o.Freeze()
	o.put(cache.Wildcard, "a", "2", "a2")
	o.put(cache.Wildcard, "a", "1", "a1")
	o.Thaw()
	o.Thaw()
	if !woken(o.watch) {
		t.Error("thaw did not wake the readers, which it must even without a change: views that copy from this one follow its source")
	}
	wantLog(t, o.typ().Wildcard.Since(o.frozenAt))
}

// TestFreeze_OrderOfTypes: a thaw shows additions in the order in which types are sent, and removals in reverse order
// (B.11).
func TestFreeze_OrderOfTypes(t *testing.T) {
	o, watch := newSubscribed(t)
	types := []string{wire.ListenerType, wire.ClusterType}
	for _, o.typeURL = range types {
		watch.SubscribeAll(o.typeURL)
		o.put(cache.Wildcard, "old", "1", "")
		o.SetPhase(o.typeURL, cache.Confirmed)
	}
	o.Freeze()
	for _, o.typeURL = range types {
		o.put(cache.Wildcard, "new", "1", "")
		o.remove(cache.Wildcard, "old")
	}
	o.Thaw()
	var seqs []cache.Seq
	for _, at := range []struct{ typeURL, name string }{
		{wire.ClusterType, "new"}, {wire.ListenerType, "new"}, {wire.ListenerType, "old"}, {wire.ClusterType, "old"},
	} {
		o.typeURL = at.typeURL
		seqs = append(seqs, o.typ().Wildcard.Get(o.name(at.name)).Seq)
	}
	if !slices.IsSorted(seqs) {
		t.Errorf("added cluster, added listener, removed listener, removed cluster: positions %v are not in order", seqs)
	}
}

// TestFreeze_FirstStatePasses: the first state of a name is shown once and frozen then, so that a proxy with a new name
// is served.
func TestFreeze_FirstStatePasses(t *testing.T) {
	o := newFrozenOrigin(t)
	late := o.view.Watch()
	o.subscribe(late, "late", "missing", "failing", "n")
	o.put(cache.ByName, "late", "1", "late1")
	o.remove(cache.ByName, "missing")
	o.fail(cache.ByName, "failing", codes.Internal, "no")
	if !woken(late) {
		t.Error("first response did not wake the reader")
	}
	if got := o.errorText(cache.ByName, "failing"); got != "Internal no" {
		t.Errorf("first response is an error: readers see %q", got)
	}
	want := map[string]string{"late": "late1", "missing": "-", "n": "n1"}
	o.wantVisible("first response", want)
	o.put(cache.ByName, "late", "2", "late2")
	o.put(cache.ByName, "missing", "1", "here")
	o.put(cache.ByName, "failing", "1", "here")
	if woken(late) {
		t.Error("second response woke a reader")
	}
	o.wantVisible("second response", want)
	o.Thaw()
	o.wantVisible("thawed", map[string]string{"late": "late2", "missing": "here", "failing": "here"})
	if got := o.errorText(cache.ByName, "failing"); got != "" {
		t.Errorf("thawed: readers see the error %q, want none", got)
	}

	o.Freeze()
	o.typeURL = other
	late.SubscribeAll(other)
	for _, step := range []struct {
		phase cache.Phase
		want  int
	}{{cache.Unknown, 1}, {cache.Settled, 2}, {cache.Confirmed, 3}, {cache.Confirmed, 3}} {
		o.SetPhase(other, step.phase)
		if p := o.typ().Phase; p != step.phase {
			t.Errorf("readers see the phase %v, want %v", p, step.phase)
		}
		o.put(cache.Wildcard, fmt.Sprint("m", o.view.Generation().Seq), "1", "")
		if step.phase == cache.Confirmed && step.want == 3 {
			step.want = 2 // the set was confirmed before the resource was added
		}
		if n := o.typ().Wildcard.Count(); n != step.want {
			t.Errorf("%v: readers see %d members, want %d", step.phase, n, step.want)
		}
	}
}

// TestFreeze_HoldsBeforeASetIsConfirmed: resources that readers were shown are frozen at once, even in an unconfirmed
// set. Other resources are shown once.
func TestFreeze_HoldsBeforeASetIsConfirmed(t *testing.T) {
	for _, phase := range []cache.Phase{cache.Unknown, cache.Settled} {
		o, watch := newSubscribed(t)
		watch.SubscribeAll(acme)
		o.put(cache.Wildcard, "a", "1", "a1")
		o.put(cache.Wildcard, "b", "1", "b1")
		o.SetPhase(acme, phase)
		o.Freeze()
		woken(watch)
		o.put(cache.Wildcard, "a", "2", "a2")
		o.remove(cache.Wildcard, "b")
		if woken(watch) {
			t.Errorf("%v: changes of visible resources woke the readers", phase)
		}
		o.put(cache.Wildcard, "c", "1", "c1")
		if !woken(watch) {
			t.Errorf("%v: new resources did not wake the readers", phase)
		}
		o.put(cache.Wildcard, "c", "2", "c2")
		o.remove(cache.Wildcard, "c")
		o.SetPhase(acme, cache.Confirmed)
		o.put(cache.Wildcard, "d", "1", "d1")
		want := map[string]string{"a": "a1", "b": "b1", "c": "c1"}
		for name, content := range want {
			if got := contentOf(o.typ().Wildcard.Get(o.name(name))); got != content {
				t.Errorf("%v: readers see %q of %s, want %q", phase, got, name, content)
			}
		}
		if n := o.typ().Wildcard.Count(); n != len(want) {
			t.Errorf("%v: readers see %d members, want %d", phase, n, len(want))
		}
		o.Thaw()
		wantLog(t, o.typ().Wildcard.Since(0), "a", "d", "-b", "-c")
	}
}

// TestFreeze_DivergingStreams: a reader that sees a member, because the named resource may be older, keeps seeing it. A
// reader that sees no resource, because the member was removed, is shown the named one.
func TestFreeze_DivergingStreams(t *testing.T) {
	for steps, want := range map[string]string{"MN": "1", "MNm": "2"} {
		synctest.Test(t, func(t *testing.T) {
			o := &frozenOrigin{origin: newOrigin(t, cache.Config{})}
			o.subscribe(o.view.Watch(), "a")
			for i, step := range steps {
				switch content := fmt.Sprint(i + 1); step {
				case 'M': // the member changes
					o.put(cache.Wildcard, "a", "", content)
				case 'm': // the member is removed
					o.remove(cache.Wildcard, "a")
				case 'N': // the named resource changes
					o.put(cache.ByName, "a", "", content)
				}
			}
			o.Freeze()
			for range 3 {
				time.Sleep(shadowed)
				o.expire(time.Now())
			}
			o.wantVisible(steps+", frozen", map[string]string{"a": want})
			o.Thaw()
			time.Sleep(shadowed)
			o.expire(time.Now())
			o.wantVisible(steps+", thawed", map[string]string{"a": "2"})
		})
	}
}

// TestFreeze_MemberNamed: a reader that first subscribes to the name of a member sees the frozen member, as wildcard
// readers do.
func TestFreeze_MemberNamed(t *testing.T) {
	o := newFrozenOrigin(t)
	o.subscribe(o.view.Watch(), "a")
	o.put(cache.Wildcard, "a", "2", "a2")
	o.put(cache.ByName, "a", "2", "a2")
	o.wantVisible("frozen", map[string]string{"a": "a1"})
	o.Thaw()
	o.wantVisible("thawed", map[string]string{"a": "a2"})
}

// TestFreeze_TTLs: TTLs are not frozen. A resource expires after the last TTL that the origin sent, even if the origin
// has removed it (R107).
func TestFreeze_TTLs(t *testing.T) {
	withClock(t, func(t *testing.T, o *origin, kind cache.Kind) {
		o.putTTL(kind, "a", "1", "a1", time.Minute)
		o.putTTL(kind, "b", "1", "b1", time.Minute)
		o.SetPhase(acme, cache.Confirmed)
		o.Freeze()
		tick := func(d time.Duration, want string) {
			t.Helper()
			time.Sleep(d)
			o.expire(time.Now())
			var got []string
			for _, name := range []string{"a", "b"} {
				got = append(got, contentOf(setOf(o.typ(), kind).Get(o.name(name))))
			}
			if s := strings.Join(got, " "); s != want {
				t.Errorf("readers see %q, want %q", s, want)
			}
		}
		before := o.view.Generation().Seq
		tick(50*time.Second, "a1 b1")
		o.putTTL(kind, "a", "1", "a1", time.Minute) // sent again
		if e := setOf(o.typ(), kind).Get(o.name("a")); e.Renewed() <= before {
			t.Error("new deadline of a is not sent to readers")
		}
		o.remove(kind, "b")
		tick(5*time.Second, "a1 b1")
		tick(6*time.Second, "a1 -")
		o.putTTL(kind, "a", "2", "a2", time.Minute) // other content with the same TTL
		tick(50*time.Second, "a1 -")
		tick(11*time.Second, "- -")
		if r, listed := o.Get(kind, acme, "a"); listed && r != nil {
			t.Error("the list still states an expired resource")
		}
		o.putTTL(kind, "a", "3", "a3", 0)
		o.Thaw()
		tick(time.Hour, "a3 -")
	})
}

// TestFreeze_Uncached: content that may not be cached is not frozen. Each subscriber gets the newest content (R125).
func TestFreeze_Uncached(t *testing.T) {
	for _, kind := range []cache.Kind{cache.Wildcard, cache.ByName} {
		synctest.Test(t, func(t *testing.T) {
			o, watch := newSubscribed(t)
			watch.SubscribeAll(acme)
			o.subscribe(watch, "a")
			o.putUncacheable(kind, "a", "1", "a1")
			o.SetPhase(acme, cache.Confirmed)
			o.Freeze()
			time.Sleep(2 * time.Second)
			o.expire(time.Now())
			if e := setOf(o.typ(), kind).Get(o.name("a")); !e.Resource.ContentDropped() {
				t.Error("uncacheable content was kept")
			}
			o.putUncacheable(kind, "a", "2", "a2")
			if got := contentOf(setOf(o.typ(), kind).Get(o.name("a"))); got != "a2" {
				t.Errorf("readers see %q, want a2", got)
			}
			time.Sleep(2 * time.Second)
			o.expire(time.Now())
			if !setOf(o.typ(), kind).Get(o.name("a")).Resource.ContentDropped() {
				t.Error("uncacheable content was kept")
			}
			o.Thaw()
		})
	}
}

// TestFreeze_Reconnect: the connection state of the origin is not frozen, but the absence of a resource is. State that
// the origin repeats belongs to the new connection (B.7).
func TestFreeze_Reconnect(t *testing.T) {
	o := newFrozenOrigin(t)
	absent := func() bool { e, _ := o.typ().Lookup(o.name("gone")); return o.view.Generation().Absent(e) }
	o.SetConnected(false)
	if o.view.Generation().First().Connected {
		t.Error("origin is still shown as connected")
	}
	o.remove(cache.ByName, "n")
	if !absent() {
		t.Error("without a connection, frozen absence is not valid")
	}
	o.SetConnected(true)
	if !absent() {
		t.Error("frozen absence is not valid on a later connection")
	}
	o.remove(cache.ByName, "gone")
	if o.view.Generation().First().Frozen.IsZero() {
		t.Error("Frozen is no longer set in the source")
	}
	o.wantVisible("frozen", map[string]string{"n": "n1"})
	o.Thaw()
	if !absent() {
		t.Error("after the thaw, absence that the origin repeated is not valid")
	}
	o.wantVisible("thawed", map[string]string{"n": "-"})
	if e, _ := o.typ().Lookup(o.name("n")); !o.view.Generation().Absent(e) {
		t.Error("removal during the freeze is not shown because the origin disconnected later")
	}
}

// TestFreeze_OneSource: with several origins, a freeze affects only one.
func TestFreeze_OneSource(t *testing.T) {
	view, writers := cache.NewRouted(cache.Config{Sources: 2, Route: func(typeURL, name string) int {
		if typeURL == other || strings.HasPrefix(name, "two") {
			return 1
		}
		return 0
	}})
	origins := [2]*origin{}
	watch := view.Watch()
	for i, w := range writers {
		w.SetConnected(true)
		origins[i] = &origin{tester: t, List: New(w, nil), view: view, typeURL: [...]string{acme, other}[i]}
		watch.SubscribeAll(origins[i].typeURL)
		origins[i].put(cache.Wildcard, "m", "1", "1")
		w.SetPhase(origins[i].typeURL, cache.Confirmed)
	}
	watch.Subscribe(acme, []string{"one", "two"})
	put := func(version string) {
		for i, o := range origins {
			o.Writer().TakeDemand()
			o.put(cache.Wildcard, "m", version, version)
			name := [...]string{"one", "two"}[i]
			o.Apply(cache.ByName, updateOf(acme, decoded(t, acme, &discoverypb.Resource{
				Name: name, Version: version, Resource: &anypb.Any{TypeUrl: acme, Value: []byte(version)},
			})))
		}
	}
	put("1")
	origins[0].Freeze()
	put("2")
	sees := func() (out string) {
		for _, at := range []struct{ typeURL, name string }{{acme, "m"}, {acme, "one"}, {acme, "two"}, {other, "m"}} {
			e, _ := view.Generation().Type(at.typeURL).Lookup(view.Find(at.typeURL, []string{at.name})[0])
			out += contentOf(e)
		}
		return out
	}
	if got := sees(); got != "1122" {
		t.Errorf("frozen: readers see %s, want 1122", got)
	}
	if g := view.Generation(); g.WildcardSource(acme).Frozen.IsZero() || !g.WildcardSource(other).Frozen.IsZero() {
		t.Error("want the first source frozen, and the second not")
	}
	origins[0].put(cache.Wildcard, "two passes", "1", "")
	origins[0].remove(cache.Wildcard, "two passes")
	if origins[0].hasName("two passes") {
		t.Error("name of a removed member that belongs to another source is still in the index")
	}
	put("3")
	at := view.Generation().Seq
	origins[0].Thaw()
	if got := sees(); got != "3333" {
		t.Errorf("thawed: readers see %s, want 3333", got)
	}
	wantLog(t, view.Generation().Type(other).Wildcard.Since(at))
	wantLog(t, view.Generation().Type(acme).ByName.Since(at), "one")
}

// TestFreeze_Collection: a collection without subscribers is removed, even if it was added during the freeze.
func TestFreeze_Collection(t *testing.T) {
	for _, before := range []bool{true, false} {
		o, watch := newSubscribed(t)
		if !before {
			o.Freeze()
		}
		o.typeURL = shopKey
		wc := watch.SubscribeAll(shopKey)
		o.Writer().TakeDemand()
		put := func(name string) {
			o.put(cache.Wildcard, shop+name, "1", "")
		}
		put("a")
		o.SetPhase(shopKey, cache.Confirmed)
		o.Freeze()
		put("b")
		o.remove(cache.Wildcard, shop+"a")
		if n := o.typ().Wildcard.Count(); n != 1 || o.view.Withheld(0) != 2 {
			t.Errorf("readers see %d members, and %d names are withheld; want 1 and 2", n, o.view.Withheld(0))
		}
		watch.UnsubscribeAll(wc)
		o.Writer().TakeDemand()
		if !o.ForgetWildcard(shopKey) {
			t.Error("collection without subscribers was not removed")
		}
		if known, _ := o.view.HasType(shopKey); known || o.view.Generation().Types() != 0 {
			t.Errorf("the index has the collection: %t; %d types in the generation, want none", known, o.view.Generation().Types())
		}
		if n := o.view.Withheld(0); n != 0 {
			t.Errorf("%d names of unused collections are withheld, want 0", n)
		}
		o.Thaw()
	}
}

// TestFreeze_OneTypeIsShownAtOnce: a thaw shows additions and removals of the last type in one generation, so that no
// change of another type is sent between them.
func TestFreeze_OneTypeIsShownAtOnce(t *testing.T) {
	o := newOrigin(t, cache.Config{})
	o.put(cache.Wildcard, "old", "1", "old")
	o.SetPhase(o.typeURL, cache.Confirmed)
	o.Freeze()
	o.put(cache.Wildcard, "new", "1", "new")
	o.remove(cache.Wildcard, "old")
	at := o.view.Generation().Revision
	if o.Thaw(); o.view.Generation().Revision != at+1 {
		t.Errorf("thaw published %d generations, want 1", o.view.Generation().Revision-at)
	}
}

// TestI13_NothingPassesWhileFrozen: with cohorts, too, nothing reaches any client until the thaw. Then, changes that wait for a
// stage still wait for it.
func TestI13_NothingPassesWhileFrozen(t *testing.T) {
	waits := func(typeURL string) bool { return typeURL == wire.ClusterType }
	o := newOrigin(t, cache.Config{Cohorts: 1, Waits: waits})
	o.confirm(acme, "a")
	o.confirm(wire.ClusterType, "a")
	o.Freeze()
	seen := func(cohort int) string {
		g, out := o.view.Cohort(cohort).Generation(), ""
		for _, typeURL := range []string{acme, wire.ClusterType} {
			out += contentOf(g.Type(typeURL).Wildcard.Get(o.view.FindName(typeURL, "a"))) + " "
		}
		if frozen := !g.First().Frozen.IsZero(); frozen {
			out += "frozen"
		}
		return strings.TrimSpace(out)
	}
	for _, o.typeURL = range []string{acme, wire.ClusterType} {
		o.put(cache.Wildcard, "a", "2", "a2")
	}
	changes := o.Pin().Changes
	for cohort := range 2 {
		if got := seen(cohort); got != "a1 a1 frozen" || len(changes) > 0 {
			t.Errorf("frozen: cohort %d sees %q, and the next edition has %v; want a1 of both and nothing", cohort, got, changes)
		}
	}
	if e := o.PinThawed(o.Thawed()); len(e.Changes) != 1 || len(e.Changes[acme]) != 1 {
		t.Errorf("a thaw changes %v, want only what does not wait for a stage", e.Changes)
	}
	o.Thaw()
	for cohort := range 2 {
		if got := seen(cohort); got != "a2 a1" {
			t.Errorf("thawed: cohort %d sees %q, want a2 a1", cohort, got)
		}
	}
	o.Show(0, o.Pin())
	if got := seen(0) + ", " + seen(1); got != "a2 a2, a2 a1" {
		t.Errorf("the cohorts see %q, want the stage of the first", got)
	}
}

// TestB45_AFreezeDuringAnInterval: what waits for an interval waits for the operator from then on, also once the interval has
// passed. A client that reports what the list adds loses it. The thaw sends it at once.
func TestB45_AFreezeDuringAnInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, map[string]time.Duration{acme: time.Second})
		r.confirm(acme, "a=1", "b=1")
		r.pass(time.Minute)
		r.state(acme, "a=2")
		r.state(acme, "a=3", "-b", "c=1")
		set := func() *cache.Set { return &r.view.Generation().Type(acme).Wildcard }
		if !set().Awaits("c") || r.Len() != 3 {
			t.Errorf("want the view to await c, and 3 rows; there are %d", r.Len())
		}
		r.Freeze()
		if set().AwaitsAny() || r.Len() != 0 || r.view.Withheld(0) != 3 {
			t.Errorf("frozen: the view awaits %t; %d rows wait for an interval, %d names for the operator; want 0 and 3",
				set().AwaitsAny(), r.Len(), r.view.Withheld(0))
		}
		r.pass(time.Hour)
		r.expectServed(acme, "a=2 b=1")
		r.SetConnected(false)
		r.SetConnected(true)
		r.expectServed(acme, "a=2 b=1")
		r.Thaw()
		r.expectServed(acme, "a=3 c=1")
		r.state(acme, "a=4") // waits for an interval since the thaw
		r.expectServed(acme, "a=3 c=1")
		r.pass(time.Second)
		r.expectServed(acme, "a=4 c=1")
	})
}

// TestH13_WaitsOfAFreezeAreTraced: the trace of a change has the time for which it waited for the thaw. Its propagation counts
// from the thaw.
func TestH13_WaitsOfAFreezeAreTraced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for reason, stop := range map[string]func(*rig){
			"frozen": func(r *rig) { r.Freeze() }, "rolled-back": func(r *rig) { r.RollBack(nil, time.Now()) },
		} {
			r := newRig(t, nil)
			r.view, r.List = newStaged(r)
			r.confirm(acme, "a=1")
			stop(r)
			of := new(trace)
			r.SetCause(cache.Cause{Received: time.Now(), Trace: of})
			r.state(acme, "a=2")
			r.SetCause(cache.Cause{})
			time.Sleep(time.Hour)
			before := r.view.Generation().Seq
			r.Thaw()
			if want := []string{reason + " 1h0m0s"}; !slices.Equal(of.waited, want) {
				t.Errorf("the trace has the waits %q, want %q", of.waited, want)
			}
			if got := time.Since(r.view.Cause(before + 1).Received); got != 0 {
				t.Errorf("%s: the change counts as received %v before the thaw, want at the thaw", reason, got)
			}
		}
	})
}

// newStaged returns a view in which changes of acme wait after a rollback, and its list.
func newStaged(r *rig) (*cache.View, *List) {
	view, w := cache.New(cache.Config{Waits: func(typeURL string) bool { return typeURL == acme }})
	w.SetConnected(true)
	return view, New(w, clockOf(nil))
}
