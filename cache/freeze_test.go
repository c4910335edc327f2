package cache

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/cache/wire"
)

// TestFreeze_MergedDifference: readers see what there was, also those that come anew, and are
// not woken; thawed, they are told of each name once what it is now, and nothing of what
// changed back, or came and went.
func TestFreeze_MergedDifference(t *testing.T) {
	o := newCold(t)
	before := o.view.Generation().Type(acme).Wildcard.Sum()
	for v := 2; v <= 4; v++ {
		o.put(Wildcard, "a", fmt.Sprint(v), fmt.Sprint("a", v))
		o.put(Wildcard, "c", fmt.Sprint(v), fmt.Sprint("c", v))
		o.put(ByName, "n", fmt.Sprint(v), fmt.Sprint("n", v))
		o.put(Wildcard, "new", fmt.Sprint(v), "")
		o.put(Wildcard, "passing", fmt.Sprint(v), "")
	}
	o.put(Wildcard, "c", "1", "c1")
	o.remove(Wildcard, "b", "passing")
	if awake(o.watch) {
		t.Error("readers were woken")
	}
	o.shows("frozen", map[string]string{"a": "a1", "b": "b1", "c": "c1", "n": "n1", "new": ""})
	if o.typ().Wildcard.Sum() != before {
		t.Error("the version of the set is another, want what it was")
	}
	if got := contentOf(o.Generation().Type(acme).Wildcard.Get(o.name("a"))); got != "a4" {
		t.Errorf("the writer sees %q of a, want a4", got)
	}
	if n := o.view.Withheld(0); n != 4 {
		t.Errorf("something is withheld of %d names, want 4: a, b, n and new", n)
	}
	if o.knows("passing") {
		t.Error("a name that came and went is still known")
	}
	if o.view.Generation().First().Frozen.IsZero() {
		t.Error("the source does not say that it is frozen")
	}

	o.Thaw()
	if !awake(o.watch) {
		t.Error("readers were not woken")
	}
	wantTold(t, o.typ().Wildcard.Since(o.at), "new", "a", "-b")
	wantTold(t, o.typ().ByName.Since(o.at), "n")
	o.shows("thawed", map[string]string{"a": "a4", "b": "", "c": "c1", "n": "n4"})
	if !o.view.Generation().First().Frozen.IsZero() || o.view.Withheld(0) != 0 || o.Frozen() {
		t.Error("still frozen")
	}
	o.put(Wildcard, "a", "5", "a5")
	o.shows("after that", map[string]string{"a": "a5"})
}

// TestFreeze_Nothing: what changed back is not told, and to freeze and thaw twice is no
// different.
func TestFreeze_Nothing(t *testing.T) {
	o := newCold(t)
	o.Freeze()
	o.put(Wildcard, "a", "2", "a2")
	o.put(Wildcard, "a", "1", "a1")
	o.Thaw()
	o.Thaw()
	if !awake(o.watch) {
		t.Error("readers were not woken: there may be something to tell without a change")
	}
	wantTold(t, o.typ().Wildcard.Since(o.at))
}

// TestFreeze_OrderOfTypes: what is new comes in the order of types, what is gone goes in
// reverse (B.11).
func TestFreeze_OrderOfTypes(t *testing.T) {
	o, watch := watched(t)
	types := []string{wire.ListenerType, wire.ClusterType}
	for _, o.typeURL = range types {
		watch.SubscribeAll(o.typeURL)
		o.put(Wildcard, "old", "1", "")
		o.SetPhase(o.typeURL, Confirmed)
	}
	o.Freeze()
	for _, o.typeURL = range types {
		o.put(Wildcard, "new", "1", "")
		o.remove(Wildcard, "old")
	}
	o.Thaw()
	var seqs []Seq
	for _, at := range []struct{ typeURL, name string }{
		{wire.ClusterType, "new"}, {wire.ListenerType, "new"}, {wire.ListenerType, "old"}, {wire.ClusterType, "old"},
	} {
		o.typeURL = at.typeURL
		seqs = append(seqs, o.typ().Wildcard.Get(o.name(at.name)).Seq)
	}
	if !slices.IsSorted(seqs) {
		t.Errorf("positions %v of a cluster, a listener, the listener that goes and the cluster that goes; want them in that order", seqs)
	}
}

// TestFreeze_Unknown: what the view did not know is shown when it comes, once, and then
// is frozen like the rest: a proxy that comes with a name of its own must not starve.
func TestFreeze_Unknown(t *testing.T) {
	o := newCold(t)
	late := o.view.Watch()
	o.want(late, "late", "missing", "failing", "n")
	o.put(ByName, "late", "1", "late1")
	o.remove(ByName, "missing")
	o.fail(ByName, "failing", codes.Internal, "no")
	if !awake(late) {
		t.Error("a reader was not woken for what it asked for first")
	}
	if got := o.failure(ByName, "failing"); got != "Internal no" {
		t.Errorf("the first answer is an error: readers see %q", got)
	}
	want := map[string]string{"late": "late1", "missing": "-", "n": "n1"}
	o.shows("the first answer", want)
	o.put(ByName, "late", "2", "late2")
	o.put(ByName, "missing", "1", "here")
	o.put(ByName, "failing", "1", "here")
	if awake(late) {
		t.Error("a reader was woken for the second answer")
	}
	o.shows("the second answer", want)
	o.Thaw()
	o.shows("thawed", map[string]string{"late": "late2", "missing": "here", "failing": "here"})
	if got := o.failure(ByName, "failing"); got != "" {
		t.Errorf("thawed, readers see the error %q, want none", got)
	}

	o.Freeze()
	o.typeURL = other
	late.SubscribeAll(other)
	for _, step := range []struct {
		phase Phase
		want  int
	}{{Unknown, 1}, {Settled, 2}, {Confirmed, 3}, {Confirmed, 3}} {
		o.SetPhase(other, step.phase)
		if p := o.typ().Phase; p != step.phase {
			t.Errorf("readers see the phase %v, want %v", p, step.phase)
		}
		o.put(Wildcard, fmt.Sprint("m", o.Generation().Seq), "1", "")
		if step.phase == Confirmed && step.want == 3 {
			step.want = 2 // confirmed before it came
		}
		if n := o.typ().Wildcard.Count(); n != step.want {
			t.Errorf("%v: readers see %d members, want %d", step.phase, n, step.want)
		}
	}
}

// TestFreeze_HoldsBeforeASetIsConfirmed: what readers were shown is frozen at once, also of a set
// of which not all is known; what they were not shown comes once.
func TestFreeze_HoldsBeforeASetIsConfirmed(t *testing.T) {
	for _, phase := range []Phase{Unknown, Settled} {
		o, watch := watched(t)
		watch.SubscribeAll(acme)
		o.put(Wildcard, "a", "1", "a1")
		o.put(Wildcard, "b", "1", "b1")
		o.SetPhase(acme, phase)
		o.Freeze()
		awake(watch)
		o.put(Wildcard, "a", "2", "a2")
		o.remove(Wildcard, "b")
		if awake(watch) {
			t.Errorf("%v: readers were woken by changes of what they were shown", phase)
		}
		o.put(Wildcard, "c", "1", "c1")
		if !awake(watch) {
			t.Errorf("%v: readers were not woken by what is new", phase)
		}
		o.put(Wildcard, "c", "2", "c2")
		o.remove(Wildcard, "c")
		o.SetPhase(acme, Confirmed)
		o.put(Wildcard, "d", "1", "d1")
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
		wantTold(t, o.typ().Wildcard.Since(0), "a", "d", "-b", "-c")
	}
}

// TestFreeze_TwoStreamsThatDisagree: whoever sees a member, since what the origin says by name may
// be older, goes on with it; whoever sees nothing, since the member went, is shown what there is.
func TestFreeze_TwoStreamsThatDisagree(t *testing.T) {
	for steps, want := range map[string]string{"MN": "1", "MNm": "2"} {
		synctest.Test(t, func(t *testing.T) {
			o := &cold{origin: newOrigin(t, Config{})}
			o.want(o.view.Watch(), "a")
			for i, step := range steps {
				play(o.origin, step, fmt.Sprint(i+1))
			}
			o.Freeze()
			for range 3 {
				time.Sleep(maxShadowed)
				o.Expire(time.Now())
			}
			o.shows(steps+", frozen", map[string]string{"a": want})
			o.Thaw()
			time.Sleep(maxShadowed)
			o.Expire(time.Now())
			o.shows(steps+", thawed", map[string]string{"a": "2"})
		})
	}
}

// TestFreeze_MemberNamed: a reader that first names a member sees the frozen one, as
// those who follow the members do.
func TestFreeze_MemberNamed(t *testing.T) {
	o := newCold(t)
	o.want(o.view.Watch(), "a")
	o.put(Wildcard, "a", "2", "a2")
	o.put(ByName, "a", "2", "a2")
	o.shows("frozen", map[string]string{"a": "a1"})
	o.Thaw()
	o.shows("thawed", map[string]string{"a": "a2"})
}

// TestFreeze_TTLs: how long a resource lives is not frozen. It lives for as long as the
// origin says of its name, and dies at its time if the origin has removed it (R107).
func TestFreeze_TTLs(t *testing.T) {
	inTime(t, func(t *testing.T, o *timed, kind Kind) {
		o.give(kind, "a", "1", "a1", time.Minute)
		o.give(kind, "b", "1", "b1", time.Minute)
		o.SetPhase(acme, Confirmed)
		o.Freeze()
		tick := func(d time.Duration, want string) {
			t.Helper()
			time.Sleep(d)
			o.Expire(time.Now())
			var got []string
			for _, name := range []string{"a", "b"} {
				got = append(got, contentOf(o.typ().set(kind).Get(o.name(name))))
			}
			if s := strings.Join(got, " "); s != want {
				t.Errorf("readers see %q, want %q", s, want)
			}
		}
		before := o.view.Generation().Seq
		tick(50*time.Second, "a1 b1")
		o.give(kind, "a", "1", "a1", time.Minute) // said anew
		if e := o.typ().set(kind).Get(o.name("a")); e.Renewed() <= before {
			t.Error("readers are not told that a lives on")
		}
		o.remove(kind, "b")
		tick(5*time.Second, "a1 b1")
		tick(6*time.Second, "a1 -")
		o.give(kind, "a", "2", "a2", time.Minute) // another content lives as long
		tick(50*time.Second, "a1 -")
		tick(11*time.Second, "- -")
		if e := o.Generation().Type(acme).set(kind).Get(o.name("a")); e.Present() {
			t.Error("the writer still sees what has expired")
		}
		o.give(kind, "a", "3", "a3", 0)
		o.Thaw()
		tick(time.Hour, "a3 -")
	})
}

// TestFreeze_Uncached: what may not be kept cannot be frozen: whoever asks for it gets what
// it is now (R125).
func TestFreeze_Uncached(t *testing.T) {
	for _, kind := range []Kind{Wildcard, ByName} {
		synctest.Test(t, func(t *testing.T) {
			o, watch := watched(t)
			watch.SubscribeAll(acme)
			o.want(watch, "a")
			o.putUncached(kind, "a", "1", "a1")
			o.SetPhase(acme, Confirmed)
			o.Freeze()
			time.Sleep(2 * time.Second)
			o.Expire(time.Now())
			if e := o.typ().set(kind).Get(o.name("a")); !e.Resource.ContentDropped() {
				t.Error("content that may not be kept was kept")
			}
			o.putUncached(kind, "a", "2", "a2")
			if got := contentOf(o.typ().set(kind).Get(o.name("a"))); got != "a2" {
				t.Errorf("readers see %q, want a2", got)
			}
			time.Sleep(2 * time.Second)
			o.Expire(time.Now())
			for what, g := range map[string]*Generation{"readers": o.view.Generation(), "the writer": o.Generation()} {
				if !g.Type(acme).set(kind).Get(o.name("a")).Resource.ContentDropped() {
					t.Errorf("%s: content that may not be kept was kept", what)
				}
			}
			o.Thaw()
		})
	}
}

// TestFreeze_Reconnect: how the origin stands is not frozen, and what it says once more
// counts as said now (B.7).
func TestFreeze_Reconnect(t *testing.T) {
	o := newCold(t)
	gone := func() bool { e, _ := o.typ().Lookup(o.name("gone")); return o.view.Generation().Absent(e) }
	o.SetConnected(false)
	if o.view.Generation().First().Connected || o.Generation().First().Connected {
		t.Error("the origin still counts as connected")
	}
	o.remove(ByName, "n")
	o.SetConnected(true)
	if gone() {
		t.Error("an absence of an earlier connection counts")
	}
	o.remove(ByName, "gone")
	if !gone() {
		t.Error("an absence that was said again does not count")
	}
	if o.view.Generation().First().Frozen.IsZero() {
		t.Error("the source no longer says that it is frozen")
	}
	o.shows("frozen", map[string]string{"n": "n1"})
	o.Thaw()
	o.shows("thawed", map[string]string{"n": "-"})
	if e, _ := o.typ().Lookup(o.name("n")); !o.view.Generation().Absent(e) {
		t.Error("what was removed during the freeze is not told, since the origin was lost after that")
	}
}

// TestFreeze_OneSource: of several origins only one is frozen.
func TestFreeze_OneSource(t *testing.T) {
	view, writers := NewRouted(Config{Sources: 2, Route: func(typeURL, name string) int {
		if typeURL == other || strings.HasPrefix(name, "two") {
			return 1
		}
		return 0
	}})
	origins := [2]*origin{}
	watch := view.Watch()
	for i, w := range writers {
		w.SetConnected(true)
		origins[i] = &origin{tester: t, Writer: w, view: view, typeURL: [...]string{acme, other}[i]}
		watch.SubscribeAll(origins[i].typeURL)
		origins[i].put(Wildcard, "m", "1", "1")
		w.SetPhase(origins[i].typeURL, Confirmed)
	}
	watch.Subscribe(acme, []string{"one", "two"})
	put := func(version string) {
		for i, o := range origins {
			o.TakeDemand()
			o.put(Wildcard, "m", version, version)
			name := [...]string{"one", "two"}[i]
			o.Apply(ByName, wire.Update{TypeURL: acme, Resources: []*wire.Resource{newResource(t, acme, name, version, version)}})
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
		t.Errorf("frozen, readers see %s, want 1122", got)
	}
	if g := view.Generation(); g.WildcardSource(acme).Frozen.IsZero() || !g.WildcardSource(other).Frozen.IsZero() {
		t.Error("want the first source frozen, and the second not")
	}
	origins[0].put(Wildcard, "two passes", "1", "")
	origins[0].remove(Wildcard, "two passes")
	if origins[0].knows("two passes") {
		t.Error("a member that came and went, whose name another source answers for, is still known")
	}
	put("3")
	at := view.Generation().Seq
	origins[0].Thaw()
	if got := sees(); got != "3333" {
		t.Errorf("thawed, readers see %s, want 3333", got)
	}
	wantTold(t, view.Generation().Type(other).Wildcard.Since(at))
	wantTold(t, view.Generation().Type(acme).ByName.Since(at), "one")
}

// TestFreeze_Collection: a collection that nobody follows any more is forgotten, also one
// that came during the freeze.
func TestFreeze_Collection(t *testing.T) {
	for _, before := range []bool{true, false} {
		o, watch := watched(t)
		if !before {
			o.Freeze()
		}
		o.typeURL = shopKey
		wc := watch.SubscribeAll(shopKey)
		o.TakeDemand()
		put := func(name string) {
			o.Apply(Wildcard, wire.Update{TypeURL: shopKey, Resources: []*wire.Resource{newResource(o, acme, shop+name, "1", "")}})
		}
		put("a")
		o.SetPhase(shopKey, Confirmed)
		o.Freeze()
		put("b")
		o.remove(Wildcard, shop+"a")
		if n := o.typ().Wildcard.Count(); n != 1 || o.view.Withheld(0) != 2 {
			t.Errorf("readers see %d members, and %d names are withheld; want 1 and 2", n, o.view.Withheld(0))
		}
		watch.UnsubscribeAll(wc)
		o.TakeDemand()
		if !o.ForgetWildcard(shopKey) {
			t.Error("not forgotten, though nobody follows it")
		}
		if kept, inHead := known(o.view); kept != 0 || inHead != 0 || o.Generation().Types() != 0 {
			t.Errorf("%d types are known, %d and %d in the heads, want none", kept, inHead, o.Generation().Types())
		}
		if n := o.view.Withheld(0); n != 0 {
			t.Errorf("%d names are withheld of what nobody follows, want 0", n)
		}
		o.Thaw()
	}
}

// TestFreeze_OneTypeIsShownAtOnce: readers see additions and removals of the last type in one generation: nothing of another type
// must come between them.
func TestFreeze_OneTypeIsShownAtOnce(t *testing.T) {
	o := newOrigin(t, Config{})
	o.put(Wildcard, "old", "1", "old")
	o.SetPhase(o.typeURL, Confirmed)
	o.Freeze()
	o.put(Wildcard, "new", "1", "new")
	o.remove(Wildcard, "old")
	at := o.view.Generation().Revision
	if o.Thaw(); o.view.Generation().Revision != at+1 {
		t.Errorf("the thaw has made %d generations, want 1", o.view.Generation().Revision-at)
	}
}
