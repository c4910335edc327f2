package cache

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/wire"
)

func TestR040_SameContentChangesNothing(t *testing.T) {
	tests := []struct {
		what, version string
		want          Change
	}{
		{"same version", "1", Change{Seen: 1, Same: 1}},
		{"other version", "2", Change{Seen: 1}},
		{"no version", "", Change{Seen: 1}},
	}
	for _, kind := range []Kind{Wildcard, ByName} {
		for _, test := range tests {
			o, watch := newSubscribed(t)
			watch.SubscribeAll(acme)
			o.subscribe(watch, "a")
			wantChange(t, o.put(kind, "a", "1", "x"), Change{Seen: 1, Changed: 1, New: 1})
			if !woken(watch) {
				t.Errorf("kind %d, %s: new resource caused no wake-up", kind, test.what)
			}
			before := o.view.Generation()
			wantChange(t, o.put(kind, "a", test.version, "x"), test.want)
			if woken(watch) {
				t.Errorf("kind %d, %s: repeated resource caused a wake-up", kind, test.what)
			}
			after := o.view.Generation()
			if after.Seq != before.Seq || after.WildcardSource(acme).Reused {
				t.Errorf("kind %d, %s: got seq %d and reused %t, want %d and false", kind, test.what, after.Seq,
					after.WildcardSource(acme).Reused, before.Seq)
			}
			e, seq := after.Type(acme).Lookup(o.name("a"))
			if old, _ := before.Type(acme).Lookup(o.name("a")); seq != old.Seq || !old.HasVersion("1") {
				t.Errorf("kind %d, %s: changed at %d, want %d", kind, test.what, seq, old.Seq)
			}
			if version := o.resource("a", test.version, "x").Version; !e.HasVersion("1") || !e.HasVersion(version) ||
				e.Resource.Version != version {
				t.Errorf("kind %d, %s: the entry must satisfy both versions and carry the new one, has %q", kind, test.what,
					e.Resource.Version)
			}
		}
	}
}

func TestR069_UnknownRemovalIgnored(t *testing.T) {
	for _, kind := range []Kind{Wildcard, ByName} {
		o, watch := newSubscribed(t)
		watch.SubscribeAll(acme)
		o.subscribe(watch, "a")
		o.put(Wildcard, "a", "1", "x")
		woken(watch)
		before := o.view.Generation()
		wantChange(t, o.remove(kind, "nope", "never"), Change{})
		after := o.view.Generation()
		if woken(watch) || after.Seq != before.Seq || after.Type(acme).Wildcard.Sum() != before.Type(acme).Wildcard.Sum() ||
			o.hasName("nope") {
			t.Errorf("kind %d: removal of an unknown name had an effect", kind)
		}
	}
}

func TestR096_UnwantedIsIgnored(t *testing.T) {
	o, watch := newSubscribed(t)
	unwanted := func(when string) {
		t.Helper()
		seq := o.view.Generation().Seq
		wantChange(t, o.put(ByName, "a", "1", "x"), Change{Seen: 0, Ignored: 1})
		wantChange(t, o.remove(ByName, "a"), Change{})
		if woken(watch) || o.view.Generation().Seq != seq || o.typ().ByName.Count() != 0 ||
			len(changedNames(o.typ().ByName.Since(0))) != 0 {
			t.Errorf("%s: resource without a subscription had an effect", when)
		}
	}
	unwanted("never subscribed")
	if o.hasName("a") {
		t.Error("resource without a subscription left its name in the index")
	}
	names := watch.Subscribe(acme, []string{"a"})
	unwanted("before the subscription")
	o.TakeDemand()
	wantChange(t, o.put(ByName, "a", "1", "x"), Change{Seen: 1, Changed: 1, New: 1})
	woken(watch)
	watch.Unsubscribe(acme, names)
	o.TakeDemand()
	wantChange(t, o.put(ByName, "a", "2", "y"), Change{Seen: 1, Changed: 1}) // the upstream subscription lingers (B.6)
	if woken(watch) {
		t.Error("unsubscribed stream was woken")
	}
	o.Forget(acme, names)
	unwanted("forgotten")
	wantChange(t, o.Apply(ByName, updateOf(acme, o.resource("b", "1", "x"), o.resource("c", "1", "x", "d"))),
		Change{Ignored: 2})
}

// TestB2_C36_VersionReuse: different content is a change even if the version is equal, and the view records the reuse.
func TestB2_C36_VersionReuse(t *testing.T) {
	type put struct{ name, version, content string }
	tests := []struct {
		what string
		puts []put
		want []string // reused
	}{
		{"other content under other versions", []put{{"a", "1", "x"}, {"a", "2", "y"}}, nil},
		{"other content under one version", []put{{"a", "1", "x"}, {"a", "1", "y"}}, []string{"a"}},
		{"content without versions", []put{{"a", "", "x"}, {"a", "", "y"}}, nil},
		{"two resources with one version", []put{{"a", "1", "x"}, {"b", "1", "y"}}, nil},
		{"one content under one version", []put{{"a", "1", "x"}, {"a", "1", "x"}}, nil},
		{"C36: a counter that was reset", []put{{"a", "1", "x"}, {"a", "2", "y"}, {"a", "1", "z"}, {"a", "1", "y"}},
			[]string{"a"}},
	}
	for _, test := range tests {
		for _, kind := range []Kind{Wildcard, ByName} {
			o, watch := newSubscribed(t, "a", "b")
			var got []string
			for _, p := range test.puts {
				changed := o.contentFor(p.name) != p.content
				got = append(got, o.put(kind, p.name, p.version, p.content).Reused...)
				if is := o.contentFor(p.name); is != p.content || woken(watch) != changed {
					t.Errorf("%s, kind %d: got content %q, want %q, and a wake-up: %t", test.what, kind, is, p.content, changed)
				}
			}
			if !slices.Equal(got, test.want) || o.view.Generation().WildcardSource(acme).Reused != (len(test.want) > 0) {
				t.Errorf("%s, kind %d: got %q and %t, want %q", test.what, kind, got,
					o.view.Generation().WildcardSource(acme).Reused, test.want)
			}
		}
	}
}

// TestB2_ReuseNeedsOneResource: an alias that begins to name another resource does not count as reuse of a version.
func TestB2_ReuseNeedsOneResource(t *testing.T) {
	o, _ := newSubscribed(t, "alias")
	o.put(ByName, "x", "1", "x", "alias")
	change := o.put(ByName, "y", "1", "y", "alias")
	if len(change.Reused) != 0 || o.view.Generation().WildcardSource(acme).Reused {
		t.Errorf("got reused %q", change.Reused)
	}
}

func TestB7_AbsenceMustBeReportedOnThisConnection(t *testing.T) {
	o, watch := newSubscribed(t)
	n := o.subscribe(watch, "a")[0]
	absent := func(when string, want bool) {
		t.Helper()
		g := o.view.Generation()
		e, _ := g.Type(acme).Lookup(n)
		if got := g.Absent(e); got != want {
			t.Errorf("%s: got absent %t, want %t", when, got, want)
		}
	}
	woken := func(when string) {
		t.Helper()
		if !woken(watch) {
			t.Errorf("%s: no wake-up", when)
		}
	}
	absent("no response", false)
	wantChange(t, o.remove(ByName, "a"), Change{})
	woken("removed")
	absent("removed", true)
	_, seq := o.typ().Lookup(n)
	o.SetConnected(false)
	woken("disconnected")
	absent("disconnected", false)
	o.SetConnected(true)
	woken("reconnected")
	absent("reconnected", false)
	o.remove(ByName, "a")
	woken("removal reported again")
	absent("removal reported again", true)
	if _, again := o.typ().Lookup(n); again != seq {
		t.Errorf("reported again: changed at %d, want %d, since streams were sent the removal", again, seq)
	}
	o.put(ByName, "a", "1", "x")
	woken("added")
	absent("added", false)
	o.remove(ByName, "a")
	absent("removed after that", true)
	if g := o.view.Generation(); g.Absent(nil) {
		t.Error("nil: got absent, want unknown")
	}
}

func TestSetConnectedTwiceIsNoChange(t *testing.T) {
	o, watch := newSubscribed(t)
	generation := o.view.Generation()
	o.SetConnected(true)
	if woken(watch) || o.view.Generation() != generation {
		t.Error("second SetConnected changed the generation")
	}
}

func TestAskedEndsWithTheConnection(t *testing.T) {
	o := newOrigin(t, Config{})
	n := o.subscribe(o.view.Watch(), "a")
	if at := n[0].Asked(); !at.IsZero() {
		t.Errorf("not requested: got %v, want zero", at)
	}
	at := time.Unix(1234, 5678)
	o.Asked(n, at)
	if got := n[0].Asked(); !got.Equal(at) {
		t.Errorf("requested: got %v, want %v", got, at)
	}
	o.SetConnected(false)
	if at := n[0].Asked(); !at.IsZero() {
		t.Errorf("disconnected: got %v, want zero", at)
	}
}

func TestSetPhaseWakesWildcards(t *testing.T) {
	o := newOrigin(t, Config{})
	all, named := o.view.Watch(), o.view.Watch()
	all.SubscribeAll(acme)
	o.subscribe(named, "a")
	if got := o.typ().Phase; got != Unknown || got.String() != "unknown" {
		t.Errorf("at first: got %v, want unknown", got)
	}
	for _, p := range []Phase{Settled, Confirmed} {
		o.SetPhase(acme, p)
		if got := o.typ().Phase; got != p || !woken(all) || woken(named) {
			t.Errorf("got phase %v, want %v, and only the wildcard stream woken", got, p)
		}
		generation := o.view.Generation()
		o.SetPhase(acme, p)
		if woken(all) || o.view.Generation() != generation {
			t.Errorf("second SetPhase(%v) changed the generation", p)
		}
	}
}

func TestR106_HeartbeatIsNoUpdate(t *testing.T) {
	for _, kind := range []Kind{Wildcard, ByName} {
		o, watch := newSubscribed(t)
		watch.SubscribeAll(acme)
		o.subscribe(watch, "a", "unknown")
		o.put(kind, "a", "1", "x")
		woken(watch)
		before := o.view.Generation()
		u := wire.Update{TypeURL: acme}
		for _, name := range []string{"a", "unknown", "unwanted"} {
			u.Resources = append(u.Resources, decoded(t, acme, &discoverypb.Resource{Name: name, Version: "1"}))
		}
		wantChange(t, o.Apply(kind, u), Change{})
		after := o.view.Generation()
		e, _ := after.Type(acme).Lookup(o.name("a"))
		if woken(watch) || after.Seq != before.Seq || contentOf(e) != "x" || after.WildcardSource(acme).Reused ||
			o.hasName("unwanted") {
			t.Errorf("kind %d: heartbeat changed the entry, content %q", kind, contentOf(e))
		}
	}
}

func TestB11_PriorIsKeptWhereItIsNeeded(t *testing.T) {
	tests := []struct {
		typeURL string
		kind    Kind
		want    bool
	}{
		{wire.ClusterType, Wildcard, true}, {wire.EndpointType, Wildcard, true},
		{wire.ListenerType, Wildcard, false}, {acme, Wildcard, false},
		{wire.ClusterType, ByName, true}, {wire.EndpointType, ByName, true},
		{wire.ListenerType, ByName, true}, {acme, ByName, true},
	}
	for _, test := range tests {
		o := newOrigin(t, Config{})
		o.typeURL = test.typeURL
		o.subscribe(o.view.Watch(), "a")
		o.put(test.kind, "a", "1", "x")
		set := func() *Set {
			if test.kind == Wildcard {
				return &o.typ().Wildcard
			}
			return &o.typ().ByName
		}
		present := set().Get(o.name("a"))
		o.remove(test.kind, "a")
		removed := set().Get(o.name("a"))
		if removed.Present() || (removed.Prior == present.Resource) != test.want || removed.Leaf != present.Leaf {
			t.Errorf("%s, kind %d: got prior %v, want it kept %t", test.typeURL, test.kind, removed.Prior, test.want)
		}
	}
}

func TestB6_ForgetDropsUnusedNames(t *testing.T) {
	o, watch := newSubscribed(t)
	names := o.subscribe(watch, "a", "b", "c")
	for _, name := range []string{"a", "b"} {
		o.put(ByName, name, "1", "x")
	}
	o.remove(ByName, "c")
	watch.Unsubscribe(acme, names)
	o.TakeDemand()
	if !o.hasName("a") || !o.hasName("c") || o.typ().ByName.Count() != 2 {
		t.Fatal("names were removed before Forget")
	}
	watch.Subscribe(acme, []string{"b"}) // subscribed again, but the session has not taken the demand
	old := o.typ()
	if kept := o.Forget(acme, names); !slices.Equal(kept, names[1:2]) {
		t.Errorf("got kept %v, want b", kept)
	}
	if o.hasName("a") || o.hasName("c") || !o.hasName("b") || o.typ().ByName.Count() != 1 {
		t.Errorf("got %d resources, want only b's", o.typ().ByName.Count())
	}
	wantLog(t, o.typ().ByName.Since(0), "b")
	wantLog(t, old.ByName.Since(0), "a", "b", "-c")
	if e, _ := o.typ().Lookup(names[0]); e != nil {
		t.Errorf("forgotten name: got %q, want no entry", contentOf(e))
	}
	// A kept name is in demand, and its resources are still accepted.
	if d := o.TakeDemand(); len(d) != 1 || d[0].Name != names[1] || !d[0].Wanted {
		t.Errorf("got demand %v, want b", d)
	}
	wantChange(t, o.put(ByName, "b", "2", "y"), Change{Seen: 1, Changed: 1})
}

func TestB6_ForgetMembers(t *testing.T) {
	o := newOrigin(t, Config{})
	watch, named := o.view.Watch(), o.view.Watch()
	o.subscribe(named, "a")
	wc := watch.SubscribeAll(acme)
	o.put(Wildcard, "a", "1", "x")
	o.put(Wildcard, "b", "1", "x")
	o.put(Wildcard, "c", "1", "x")
	o.remove(Wildcard, "c")
	o.SetPhase(acme, Confirmed)
	if o.ForgetWildcard(acme) || o.typ().Wildcard.Count() != 2 || o.typ().Phase != Confirmed {
		t.Fatal("wildcard set with a subscriber was dropped")
	}
	watch.UnsubscribeAll(wc)
	old := o.typ()
	if !o.ForgetWildcard(acme) {
		t.Fatal("wildcard set without subscribers was not dropped")
	}
	if n := len(o.rest().tombstones[acme]); n != 0 {
		t.Errorf("got %d tombstones, want 0", n)
	}
	seq := o.view.Generation().Seq
	if s := &o.typ().Wildcard; s.Count() != 0 || s.Sum() != (fingerprint.Sum{}) || s.Floor() != seq ||
		o.typ().Phase != Unknown || s.ChangedSince(0) != 0 {
		t.Errorf("got %d resources, floor %d, phase %v; want 0, %d, unknown", s.Count(), s.Floor(), o.typ().Phase, seq)
	}
	if o.hasName("b") || o.hasName("c") || !o.hasName("a") {
		t.Error("want only the name with a subscriber in the index")
	}
	wantLog(t, old.Wildcard.Since(0), "a", "b", "-c")
	o.put(Wildcard, "b", "1", "x")
	wantLog(t, o.typ().Wildcard.Since(seq), "b")
	o.Trim(time.Now().Add(time.Hour)) // no tombstones are left
	wantLog(t, o.typ().Wildcard.Since(0), "b")
}

func TestB11_TrimWaitsForWildcardStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOrigin(t, Config{})
		fast, slow := o.view.Watch().SubscribeAll(acme), o.view.Watch().SubscribeAll(acme)
		for _, name := range []string{"a", "b", "c"} {
			o.put(Wildcard, name, "1", "x")
		}
		o.remove(Wildcard, "a")
		first := o.view.Generation().Seq
		o.remove(Wildcard, "b")
		second := o.view.Generation().Seq
		check := func(when string, floor Seq, want ...string) {
			t.Helper()
			o.Trim(time.Now())
			if got := o.typ().Wildcard.Floor(); got != floor {
				t.Errorf("%s: got floor %d, want %d", when, got, floor)
			}
			wantLog(t, o.typ().Wildcard.Since(0), want...)
		}
		check("no stream has passed", 0, "c", "-a", "-b")
		fast.Passed(second)
		check("one stream has passed", 0, "c", "-a", "-b")
		slow.Passed(first)
		check("both streams have passed the first", first, "c", "-b")
		if o.hasName("a") || !o.hasName("b") {
			t.Error("want the name of the dropped tombstone released, and the other one kept")
		}
		slow.Passed(second - 1)
		check("one position before the second", first, "c", "-b")
		slow.watch.UnsubscribeAll(slow)
		check("slow stream unsubscribed", second, "c")
	})
}

func TestB11_TrimByAge(t *testing.T) {
	for _, age := range []time.Duration{0, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			o := newOrigin(t, Config{TombstoneAge: age})
			want := age
			if age == 0 {
				want = 130 * time.Second
			}
			o.view.Watch().SubscribeAll(acme) // a stream that never reads
			o.put(Wildcard, "a", "1", "x")
			o.put(Wildcard, "b", "1", "x")
			o.remove(Wildcard, "a")
			removed := o.view.Generation().Seq
			time.Sleep(time.Second)
			o.remove(Wildcard, "b")
			time.Sleep(want - time.Second)
			o.Trim(time.Now())
			wantLog(t, o.typ().Wildcard.Since(0), "-a", "-b")
			time.Sleep(time.Nanosecond)
			o.Trim(time.Now())
			wantLog(t, o.typ().Wildcard.Since(0), "-b")
			if got := o.typ().Wildcard.Floor(); got != removed {
				t.Errorf("got floor %d, want %d", got, removed)
			}
		})
	}
}

// TestB11_TrimKeepsRecreatedResources: the tombstone of a resource that was created again is dropped without raising
// the floor.
func TestB11_TrimKeepsRecreatedResources(t *testing.T) {
	o := newOrigin(t, Config{})
	o.put(Wildcard, "a", "1", "x")
	o.remove(Wildcard, "a")
	o.put(Wildcard, "a", "1", "x")
	o.Trim(time.Now())
	if got := o.typ().Wildcard.Floor(); got != 0 || o.typ().Wildcard.Count() != 1 {
		t.Errorf("created again: floor %d and %d resources, want 0 and 1", got, o.typ().Wildcard.Count())
	}
	o.remove(Wildcard, "a")
	o.Trim(time.Now())
	if got := o.typ().Wildcard.Floor(); got != 4 || o.typ().Wildcard.live != 0 || o.hasName("a") {
		t.Errorf("removed again: floor %d, %d entries, want 4 and none", got, o.typ().Wildcard.live)
	}
	if len(o.rest().tombstones[acme]) != 0 {
		t.Errorf("got %d tombstones, want 0", len(o.rest().tombstones[acme]))
	}
}

// TestB1_LogsDoNotGrow: the logs of one name do not grow with its changes, nor with members that shadow its named
// resource for a time.
func TestB1_LogsDoNotGrow(t *testing.T) {
	const most = 66
	for what, change := range map[string]func(o *origin, content string){
		"changes": func(o *origin, content string) {
			o.put(Wildcard, "a", "", content)
			o.put(ByName, "a", "", content)
		},
		"shadowing members": func(o *origin, _ string) {
			o.put(Wildcard, "a", "1", "x")
			o.remove(Wildcard, "a")
			o.Trim(time.Now())
		},
	} {
		o, _ := newSubscribed(t, "a")
		o.put(ByName, "a", "1", "x")
		for i := range 2 * most {
			change(o, fmt.Sprint(i))
		}
		if typ := o.typ(); len(typ.Wildcard.log) > most || len(typ.ByName.log) > most {
			t.Errorf("%s: got logs of %d and %d, want at most %d", what, len(typ.Wildcard.log), len(typ.ByName.log), most)
		}
	}
}

func TestEmptyGeneration(t *testing.T) {
	v, w := New(Config{})
	g := v.Generation()
	typ := g.Type("unknown type")
	if w.View() != v || g.Seq != 0 || g.WildcardSource(acme).Connected || g.Types() != 0 || typ == nil ||
		typ.Last() != 0 || typ.System() != "" || typ.Phase != Unknown {
		t.Errorf("got %+v and %+v", g, typ)
	}
	if e, seq := typ.Lookup(&Name{text: "a"}); e != nil || seq != 0 {
		t.Errorf("got %v at %d, want no entry", e, seq)
	}
	if known, types := v.HasType(acme); known || types != 0 {
		t.Errorf("in the index: %t, %d types, want none", known, types)
	}
	if got := v.Find(acme, []string{"a", "b"}); len(got) != 2 || got[0] != nil || got[1] != nil {
		t.Errorf("got names %v, want two times nil", got)
	}
	w.Apply(Wildcard, wire.Update{TypeURL: acme, ControlPlane: "cp-1"})
	w.Apply(Wildcard, wire.Update{TypeURL: acme})
	if g := v.Generation(); g.WildcardSource(acme).Identifier != "cp-1" || g.Types() != 1 || g.Type(acme).URL != acme {
		t.Errorf("got origin %q and %d types, want cp-1 and 1", g.WildcardSource(acme).Identifier, g.Types())
	}
	if known, types := v.HasType(acme); !known || types != 1 {
		t.Errorf("in the index: %t, %d types, want one", known, types)
	}
}
