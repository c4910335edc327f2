package cache

import (
	"fmt"
	"testing"

	"github.com/xdstender/tender/cache/wire"
)

// newFilled returns an origin with n resources in the wildcard set, and a stream that subscribes to each of them by
// name.
func newFilled(tb tester, n int) (*origin, *Watch, []*Name) {
	tb.Helper()
	o := newOrigin(tb, Config{})
	watch := o.view.Watch()
	u := wire.Update{TypeURL: acme}
	var texts []string
	for i := range n {
		text := fmt.Sprintf("resource-%05d", i)
		texts = append(texts, text)
		u.Resources = append(u.Resources, o.resource(text, "1", "x"))
	}
	names := watch.Subscribe(acme, texts)
	o.TakeDemand()
	o.Apply(Wildcard, u)
	o.Apply(ByName, u)
	return o, watch, names
}

// TestReadsDoNotAllocate covers the reads of every stream after every wake-up.
func TestReadsDoNotAllocate(t *testing.T) {
	o, _, names := newFilled(t, 1000)
	tail := o.typ().Wildcard.Last() - 10
	var found, seqs int
	one := sum(1, 2)
	reads := map[string]func(){
		"Head and Type": func() { found += o.view.Generation().Type(acme).Wildcard.Count() },
		"Since and Get": func() {
			members := &o.view.Generation().Type(acme).Wildcard
			for e := range members.Since(tail) {
				if members.Get(e.Name) == e {
					found++
				}
			}
		},
		"Lookup": func() {
			if e, seq := o.view.Generation().Type(acme).Lookup(names[500]); e != nil {
				seqs += int(seq)
			}
		},
		"ChangedSince and Align": func() {
			members := &o.view.Generation().Type(acme).Wildcard
			seqs += members.ChangedSince(tail) + int(members.Align(tail))
		},
		"SameVersion": func() {
			if one.SameVersion("42~x") {
				found++
			}
		},
	}
	for what, read := range reads {
		want := 0.0
		if what == "SameVersion" {
			want = 2 // to parse the version; streams do it once for each type
		}
		if got := testing.AllocsPerRun(100, read); got > want {
			t.Errorf("%s: got %v allocations, want at most %v", what, got, want)
		}
	}
	if found == 0 || seqs == 0 {
		t.Error("nothing was read")
	}
}

func BenchmarkApply(b *testing.B) {
	const streams = 1000
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("resources=%d/streams=%d", n, streams), func(b *testing.B) {
			o, _, _ := newFilled(b, n)
			var watches []*Watch
			for range streams {
				w := o.view.Watch()
				w.SubscribeAll(acme)
				watches = append(watches, w)
			}
			updates := make([]wire.Update, 2)
			for i := range updates {
				name := fmt.Sprintf("resource-%05d", n/2)
				updates[i] = updateOf(acme, o.resource(name, fmt.Sprint(i+2), fmt.Sprint(i)))
			}
			wakes, applies := 0, 0
			b.ReportAllocs()
			for b.Loop() {
				if c := o.Apply(Wildcard, updates[applies%2]); c.Changed != 1 {
					b.Fatalf("got %+v, want one change", c)
				}
				applies++
				wakes += len(o.wakes)
			}
			b.ReportMetric(float64(wakes)/float64(applies), "wakes/op")
			for i, w := range watches {
				if !woken(w) {
					b.Fatalf("stream %d was not woken", i)
				}
			}
		})
	}
}

// BenchmarkApplyNamed measures a response with 100 changes of resources that were subscribed to by name.
func BenchmarkApplyNamed(b *testing.B) {
	o, _, _ := newFilled(b, 10_000)
	updates := make([]wire.Update, 2)
	for i := range updates {
		updates[i].TypeURL = acme
		for j := range 100 {
			updates[i].Resources = append(updates[i].Resources,
				o.resource(fmt.Sprintf("resource-%05d", 7*j), fmt.Sprint(i+2), fmt.Sprint(i)))
		}
	}
	applies := 0
	b.ReportAllocs()
	for b.Loop() {
		if c := o.Apply(ByName, updates[applies%2]); c.Changed != 100 {
			b.Fatalf("got %+v, want 100 changes", c)
		}
		applies++
	}
}

func BenchmarkSinceTail(b *testing.B) {
	o, _, _ := newFilled(b, 10_000)
	members := &o.typ().Wildcard
	tail := members.Last() - 1
	read := 0
	b.ReportAllocs()
	for b.Loop() {
		for range members.Since(tail) {
			read++
		}
	}
	if read == 0 {
		b.Fatal("nothing was read")
	}
}

func BenchmarkLookup(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("resources=%d", n), func(b *testing.B) {
			o, _, names := newFilled(b, n)
			typ := o.typ()
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				if e, _ := typ.Lookup(names[i]); e == nil {
					b.Fatal("nothing was found")
				}
				if i++; i == len(names) {
					i = 0
				}
			}
		})
	}
}
