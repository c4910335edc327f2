package cache

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/xdstender/tender/cache/wire"
)

// TestWatchersOfRandomSubscriptions: after any sequence of subscriptions, each name has its watches, sorted and without duplicates,
// and names that share a set of watches do not affect each other.
func TestWatchersOfRandomSubscriptions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := newOrigin(t, Config{})
		texts := []string{"a", "b", "c", "d", "e", "f"}
		all := o.subscribe(o.view.Watch(), texts...) // keeps the names in the index
		watches := []*Watch{o.view.Watch(), o.view.Watch(), o.view.Watch(), o.view.Watch()}
		model := make(map[*Name]map[uint32]bool)
		for _, n := range all {
			model[n] = map[uint32]bool{0: true}
		}
		lists := rapid.SliceOfN(rapid.SampledFrom(texts), 1, 8) // may contain duplicates
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			w, list := rapid.SampledFrom(watches).Draw(t, "watch"), lists.Draw(t, "names")
			if rapid.Bool().Draw(t, "subscribe") {
				for _, n := range w.Subscribe(acme, list) {
					model[n][w.id] = true
				}
			} else {
				names := o.view.Find(acme, list)
				w.Unsubscribe(acme, names)
				for _, n := range names {
					delete(model[n], w.id)
				}
			}
			checkWatchers(t, o, model)
		}
	})
}

func checkWatchers(t *rapid.T, o *origin, model map[*Name]map[uint32]bool) {
	sets, sum := make(map[*watchers]int), 0
	for n, ids := range model {
		sets[n.watchers]++
		sum += len(ids)
		if want := slices.Sorted(maps.Keys(ids)); !slices.Equal(n.watchers.ids, want) || n.moving ||
			n.watchers.moving != 0 || n.watchers.moved != nil {
			t.Fatalf("%s: watches %v (%+v), want %v", n, n.watchers.ids, *n.watchers, want)
		}
	}
	for s, names := range sets {
		if s.names != names {
			t.Fatalf("set %v: %d names, want %d", s.ids, s.names, names)
		}
	}
	if got := o.view.index.types[acme].watched; got != sum {
		t.Fatalf("type: %d watches of names, want %d", got, sum)
	}
}

// TestNamesOfOneRequestShareTheirWatchers: so their cost does not grow with the product of names and streams.
func TestNamesOfOneRequestShareTheirWatchers(t *testing.T) {
	o := newOrigin(t, Config{})
	var names []*Name
	var watches []*Watch
	for range 3 {
		watches = append(watches, o.view.Watch())
		names = o.subscribe(watches[len(watches)-1], "a", "b", "c")
	}
	watches[1].Unsubscribe(acme, names)
	if s := names[0].watchers; s != names[1].watchers || s != names[2].watchers || len(s.ids) != 2 {
		t.Errorf("watches of the names: %v, %v and %v, want one shared list of two", s.ids, names[1].watchers.ids,
			names[2].watchers.ids)
	}
}

// bulk returns an origin, two responses that change all names, and streams that subscribe to all of them.
func bulk(tb tester, names, streams int, wake func()) (o *origin, updates [2]wire.Update) {
	o = newOrigin(tb, Config{})
	texts := make([]string, names)
	for i := range texts {
		texts[i] = fmt.Sprintf("resource-%05d", i)
	}
	for range streams {
		o.subscribe(o.view.WatchFunc(wake), texts...)
	}
	for i := range updates {
		updates[i].TypeURL = acme
		for _, text := range texts {
			updates[i].Resources = append(updates[i].Resources, o.resource(text, fmt.Sprint(i), fmt.Sprint(i)))
		}
	}
	return o, updates
}

// TestAStreamIsWokenOnceForAResponse, however many of its names the response changes, also if it subscribes to the
// wildcard.
func TestAStreamIsWokenOnceForAResponse(t *testing.T) {
	for _, names := range []int{1, maxHints, maxHints + 1, 100} {
		wakes := 0
		o, updates := bulk(t, names, 10, func() { wakes++ })
		for _, w := range o.view.index.watches {
			w.SubscribeAll(acme)
		}
		for i, u := range updates {
			if o.Apply(ByName, u); wakes != 10*(i+1) {
				t.Errorf("%d names: after response %d, 10 streams were woken %d times, want once each", names, i+1, wakes)
			}
		}
		o.Apply(Wildcard, updates[0])
		if wakes != 30 {
			t.Errorf("%d names: after a response for the wildcard set, 10 streams were woken %d times, want 30", names, wakes)
		}
	}
}

// BenchmarkApplyBulk measures a response that changes all names to which all streams subscribe.
func BenchmarkApplyBulk(b *testing.B) {
	for _, size := range []struct{ names, streams int }{{100, 1000}, {1000, 1000}, {1000, 5000}} {
		b.Run(fmt.Sprintf("names=%d/streams=%d", size.names, size.streams), func(b *testing.B) {
			wakes, applies := 0, 0
			o, updates := bulk(b, size.names, size.streams, func() { wakes++ })
			b.ReportAllocs()
			for b.Loop() {
				if c := o.Apply(ByName, updates[applies%2]); c.Changed != size.names {
					b.Fatalf("got %+v, want %d changes", c, size.names)
				}
				for _, w := range o.view.index.watches {
					w.PassHints(o.view.Generation().Seq)
				}
				applies++
			}
			b.ReportMetric(float64(wakes)/float64(applies), "wakes/op")
			b.ReportMetric(float64(cap(o.wakes)+cap(o.changed))*8, "kept-B")
		})
	}
}

// BenchmarkSubscribe measures a stream that subscribes to the names of other streams and unsubscribes.
func BenchmarkSubscribe(b *testing.B) {
	for _, names := range []int{1, 1000} {
		b.Run(fmt.Sprintf("names=%d/streams=5000", names), func(b *testing.B) {
			o, updates := bulk(b, names, 5000, func() {})
			var texts []string
			for _, r := range updates[0].Resources {
				texts = append(texts, r.Name)
			}
			b.ReportAllocs()
			for b.Loop() {
				w := o.view.Watch()
				w.Unsubscribe(acme, w.Subscribe(acme, texts))
				w.Close()
			}
		})
	}
}
