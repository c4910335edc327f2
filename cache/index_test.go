package cache

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/xdstender/tender/cache/wire"
)

// demandText describes demand: "+a" for a name that is wanted, "-*" for a wildcard that is no longer wanted.
func demandText(demand []Demand) []string {
	var out []string
	for _, d := range demand {
		s := "-"
		if d.Wanted {
			s = "+"
		}
		if d.Name != nil {
			s += d.Name.String()
		} else {
			s += "*"
		}
		if d.TypeURL != acme {
			s += " of " + d.TypeURL
		}
		out = append(out, s)
	}
	return out
}

func TestB6_Demand(t *testing.T) {
	o := newOrigin(t, Config{})
	one, two := o.view.Watch(), o.view.Watch()
	take := func(when string, want ...string) {
		t.Helper()
		poked := false
		select {
		case <-o.Demand():
			poked = true
		default:
		}
		if got := demandText(o.TakeDemand()); !slices.Equal(got, want) || !poked && len(want) > 0 {
			t.Errorf("%s: got %q, notified %t; want %q", when, got, poked, want)
		}
	}
	take("no subscription")
	a := one.Subscribe(acme, []string{"a", "b", "a"})
	if a[0] != a[2] || a[0] == a[1] || a[0].String() != "a" {
		t.Errorf("got names %v, want a, b, a", a)
	}
	take("first names", "+a", "+b")
	if again := two.Subscribe(acme, []string{"b"}); again[0] != a[1] {
		t.Error("two streams got two names for one text")
	}
	take("second subscriber to a name")
	one.Unsubscribe(acme, a)
	take("one of two unsubscribed", "-a")
	one.Subscribe(acme, []string{"a"})
	take("subscribed again while lingering", "+a")
	two.Unsubscribe(acme, a[1:2])
	two.Subscribe(acme, []string{"b"})
	take("unsubscribed and subscribed again", "+b")
	c := two.Subscribe(acme, []string{"c"})
	two.Unsubscribe(acme, c)
	take("subscribed and unsubscribed")
	if o.hasName("c") {
		t.Error("name with an ended subscription is still in the index")
	}
	wc := one.SubscribeAll(acme)
	take("first wildcard", "+*")
	second := two.SubscribeAll(acme)
	take("second wildcard")
	one.UnsubscribeAll(wc)
	take("one of two wildcard streams unsubscribed")
	two.UnsubscribeAll(second)
	take("last wildcard stream unsubscribed", "-*")
	two.UnsubscribeAll(two.SubscribeAll(acme))
	take("wildcard subscribed and unsubscribed", "-*")
	one.SubscribeAll(other)
	one.Subscribe(other, []string{"a"})
	take("another type", "+* of "+other, "+a of "+other)
}

// TestB6_DemandOfRandomSubscriptions: after each TakeDemand, the demand that the session received equals the subscriptions of
// the streams.
func TestB6_DemandOfRandomSubscriptions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := newOrigin(t, Config{})
		watches := []*Watch{o.view.Watch(), o.view.Watch(), o.view.Watch()}
		wildcards := make([]*WildcardWatch, len(watches))
		subscribed := make([]map[string]*Name, len(watches))
		for i := range subscribed {
			subscribed[i] = map[string]*Name{}
		}
		wanted := map[string]*Name{} // according to the demand
		all := false
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			i := rapid.IntRange(0, len(watches)-1).Draw(t, "watch")
			name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0:
				n := watches[i].Subscribe(acme, []string{name})[0]
				if old := subscribed[i][name]; old != nil && old != n {
					t.Fatalf("%s has two Names", name)
				}
				subscribed[i][name] = n
			case 1:
				if n := subscribed[i][name]; n != nil {
					watches[i].Unsubscribe(acme, []*Name{n})
					delete(subscribed[i], name)
				}
			case 2:
				if wildcards[i] == nil {
					wildcards[i] = watches[i].SubscribeAll(acme)
				} else {
					watches[i].UnsubscribeAll(wildcards[i])
					wildcards[i] = nil
				}
			case 3:
				var unwanted []*Name
				for _, n := range wanted {
					unwanted = append(unwanted, n)
				}
				for _, n := range unwanted {
					if !slices.Contains(o.Forget(acme, []*Name{n}), n) {
						delete(wanted, n.String())
					}
				}
			default:
				for _, d := range o.TakeDemand() {
					switch {
					case d.Name == nil:
						all = d.Wanted
					case d.Wanted:
						wanted[d.Name.String()] = d.Name
					}
				}
				for i := range watches {
					for name, n := range subscribed[i] {
						if wanted[name] != n {
							t.Fatalf("%s has subscribers, but no demand", name)
						}
					}
				}
				if got := wildcards[0] != nil || wildcards[1] != nil || wildcards[2] != nil; got != all {
					t.Fatalf("wildcard has subscribers: %t, demand: %t", got, all)
				}
			}
		}
	})
}

// TestWakesWatchers lists which streams each change wakes.
func TestWakesWatchers(t *testing.T) {
	type fixture struct {
		*origin
		watches []*Watch // all, a, b, a and all, another type, none
	}
	none, everyone := []bool{false, false, false, false, false, false}, []bool{true, true, true, true, true, true}
	tests := []struct {
		what string
		do   func(f *fixture)
		want []bool
	}{
		{"new member", func(f *fixture) { f.put(Wildcard, "c", "1", "x") }, []bool{true, false, false, true, false, false}},
		{"member with a subscriber by name", func(f *fixture) { f.put(Wildcard, "a", "2", "y") },
			[]bool{true, true, false, true, false, false}},
		{"named", func(f *fixture) { f.put(ByName, "a", "2", "y") }, []bool{false, true, false, true, false, false}},
		{"another name", func(f *fixture) { f.put(ByName, "b", "1", "x") }, []bool{false, false, true, false, false, false}},
		{"name without subscribers", func(f *fixture) { f.put(ByName, "c", "1", "x") }, none},
		{"member removed", func(f *fixture) { f.remove(Wildcard, "a") }, []bool{true, true, false, true, false, false}},
		{"name removed", func(f *fixture) { f.remove(ByName, "a") }, []bool{false, true, false, true, false, false}},
		{"name reported as absent", func(f *fixture) { f.remove(ByName, "b") },
			[]bool{false, false, true, false, false, false}},
		{"unchanged", func(f *fixture) { f.put(Wildcard, "a", "1", "x") }, none},
		{"only the version", func(f *fixture) { f.put(ByName, "a", "9", "x") }, none},
		{"empty", func(f *fixture) { f.Apply(Wildcard, wire.Update{TypeURL: acme}) }, none},
		{"other type", func(f *fixture) {
			f.typeURL = other
			f.put(Wildcard, "a", "1", "x")
		}, []bool{false, false, false, false, true, false}},
		{"phase", func(f *fixture) { f.SetPhase(acme, Settled) }, []bool{true, false, false, true, false, false}},
		{"connection", func(f *fixture) { f.SetConnected(false) }, everyone},
		{"trim", func(f *fixture) { f.remove(Wildcard, "z"); f.Trim(time.Now().Add(time.Hour)) }, none},
		{"forget", func(f *fixture) { f.Forget(acme, []*Name{f.name("b")}) }, none},
	}
	for _, test := range tests {
		f := &fixture{origin: newOrigin(t, Config{})}
		for range 6 {
			f.watches = append(f.watches, f.view.Watch())
		}
		f.watches[0].SubscribeAll(acme)
		f.subscribe(f.watches[1], "a")
		f.subscribe(f.watches[2], "b")
		f.watches[3].SubscribeAll(acme)
		f.subscribe(f.watches[3], "a")
		f.watches[4].SubscribeAll(other)
		f.put(Wildcard, "a", "1", "x")
		f.put(ByName, "a", "1", "x")
		for _, w := range f.watches {
			woken(w)
		}
		test.do(f)
		var got []bool
		for _, w := range f.watches {
			got = append(got, woken(w))
			if woken(w) {
				t.Errorf("%s: a stream was woken twice", test.what)
			}
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: got woken %t, want %t", test.what, got, test.want)
		}
	}
}

// TestWatchIDsAreReused: a new stream that reuses the id of a closed watch is not woken for the subscriptions of the
// closed one.
func TestWatchIDsAreReused(t *testing.T) {
	o, old := newSubscribed(t)
	stays := o.view.Watch()
	names := o.subscribe(old, "a")
	o.subscribe(stays, "a")
	old.Unsubscribe(acme, names)
	old.Close()
	next := o.view.Watch()
	if next.id != old.id || next == old {
		t.Errorf("got id %d, want the free one %d", next.id, old.id)
	}
	o.put(ByName, "a", "1", "x")
	if woken(next) || woken(old) || !woken(stays) {
		t.Error("want only the open watch subscribed to the name")
	}
	o.SetConnected(false)
	if !woken(next) || woken(old) {
		t.Error("want a wake-up of the new watch and none of the closed one")
	}
}

func TestUnsubscribeTwiceIsHarmless(t *testing.T) {
	o := newOrigin(t, Config{})
	one, two := o.view.Watch(), o.view.Watch()
	names := o.subscribe(one, "a")
	o.subscribe(two, "a")
	one.Unsubscribe(acme, names)
	one.Unsubscribe(acme, names)
	o.put(ByName, "a", "1", "x")
	if woken(one) || !woken(two) {
		t.Error("second call ended the subscription of another stream")
	}
	two.Unsubscribe(acme, names)
	o.TakeDemand()
	o.Forget(acme, names)
	one.Unsubscribe(acme, names) // of a released name
	if o.hasName("a") {
		t.Error("unsubscribing added a released name to the index")
	}
	a, b := o.subscribe(one, "new")[0], o.subscribe(one, "newer")[0]
	if a.id == b.id {
		t.Errorf("one id %d was given to two names", a.id)
	}
}

// TestNamesAreFreed: a name stays in the index while a stream, the session or a set uses it. Its id is then reused, and
// lookups in any generation distinguish the two Names.
func TestNamesAreFreed(t *testing.T) {
	o, watch := newSubscribed(t)
	first := o.subscribe(watch, "first")
	o.put(ByName, "first", "1", "x")
	old := o.view.Generation()
	watch.Unsubscribe(acme, first)
	o.TakeDemand()
	o.Forget(acme, first)
	if o.hasName("first") {
		t.Fatal("unused name is still in the index")
	}
	second := o.subscribe(watch, "second")
	if second[0].id != first[0].id || second[0] == first[0] {
		t.Fatalf("got id %d, want the free one %d under another name", second[0].id, first[0].id)
	}
	o.put(ByName, "second", "1", "y")
	now := o.view.Generation()
	tests := []struct {
		what       string
		generation *Generation
		name       *Name
		want       string
	}{
		{"old name, old generation", old, first[0], "x"},
		{"new name, old generation", old, second[0], ""},
		{"old name, new generation", now, first[0], ""},
		{"new name, new generation", now, second[0], "y"},
	}
	for _, test := range tests {
		named := &test.generation.Type(acme).ByName
		if got := contentOf(named.Get(test.name)); got != test.want {
			t.Errorf("%s: got %q, want %q", test.what, got, test.want)
		}
	}
	wantLog(t, old.Type(acme).ByName.Since(0), "first")
	wantLog(t, now.Type(acme).ByName.Since(0), "second")
	// The text is subscribed to again, and gets another Name.
	third := o.subscribe(watch, "first")
	if third[0] == first[0] || third[0].id == second[0].id {
		t.Error("want a new Name with another id")
	}
	o.put(ByName, "first", "1", "z")
	if got := contentOf(o.typ().ByName.Get(first[0])); got != "" {
		t.Errorf("released Name in the newest generation: got %q, want no entry", got)
	}
}

// TestRandomNamesAreHeldExactly applies random subscriptions and compares the names in the index with the names in use. At
// the end, no name is left, and each id was released once.
func TestRandomNamesAreHeldExactly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o, watch := newSubscribed(t)
		held := map[string]*Name{}
		texts := []string{"a", "b", "c", "d"}
		for range rapid.IntRange(0, 80).Draw(t, "steps") {
			text := rapid.SampledFrom(texts).Draw(t, "name")
			switch rapid.IntRange(0, 6).Draw(t, "step") {
			case 0:
				held[text] = o.subscribe(watch, text)[0]
			case 1:
				if n := held[text]; n != nil {
					watch.Unsubscribe(acme, []*Name{n})
					delete(held, text)
				}
			case 2:
				o.put(Wildcard, text, "", fmt.Sprint(o.view.Generation().Seq), "b")
			case 3:
				o.remove(Wildcard, text)
			case 4:
				o.put(ByName, text, "", fmt.Sprint(o.view.Generation().Seq), "a", "c")
			case 5:
				o.remove(ByName, text)
			default:
				o.Trim(time.Now())
			}
			ids := map[uint32]string{}
			for text, n := range o.view.index.types[acme].namesOrNil() {
				if other, twice := ids[n.id]; twice {
					t.Fatalf("%s and %s have one id", text, other)
				}
				ids[n.id] = text
			}
			for text, n := range held {
				if o.name(text) != n {
					t.Fatalf("%s has another Name than its stream", text)
				}
			}
		}
		o.unsubscribeAll(watch, texts)
		if n := o.typ().Wildcard.live; n != 0 {
			t.Fatalf("after all removals: %d entries in the wildcard set, want 0", n)
		}
		if x := o.view.index.types[acme]; x != nil && (len(x.names) != 0 || len(x.freeIDs) != int(x.ids)) {
			t.Fatalf("without subscriptions: %d names, %d of %d ids free", len(x.names), len(x.freeIDs), x.ids)
		}
	})
}

// namesOrNil returns the names of a type, which may be nil.
func (t *indexType) namesOrNil() map[string]*Name {
	if t == nil {
		return nil
	}
	return t.names
}

// unsubscribeAll ends all subscriptions to names.
func (o *origin) unsubscribeAll(watch *Watch, texts []string) {
	for _, text := range texts {
		if n := o.view.Find(acme, []string{text})[0]; n != nil {
			watch.Unsubscribe(acme, []*Name{n})
			o.TakeDemand()
			o.Forget(acme, []*Name{n})
		}
		o.remove(Wildcard, text)
	}
	o.Trim(time.Now())
}

func TestCompareIsAnOrder(t *testing.T) {
	o := newOrigin(t, Config{})
	names := o.view.Watch().Subscribe(acme, []string{"c", "a", "b"})
	slices.SortFunc(names, (*Name).Compare)
	for i, n := range names {
		for j, m := range names {
			if got := n.Compare(m); cmp.Compare(got, 0) != cmp.Compare(i, j) {
				t.Errorf("names %d and %d of a sorted list: got %d", i, j, got)
			}
		}
	}
}
