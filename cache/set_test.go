package cache

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/wire"
)

// A setModel is a simple model of a set.
type setModel map[*Name]*Entry

func (m setModel) since(p Seq) []*Entry {
	var out []*Entry
	for _, e := range m {
		if e.Seq > p {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b *Entry) int { return cmp.Compare(a.Seq, b.Seq) })
	return out
}

// check compares a set with the model at every position.
func (m setModel) check(t *rapid.T, s *Set, names []*Name, last Seq) {
	var sum fingerprint.Sum
	count, ttls := 0, 0
	for _, e := range m {
		if e.Present() {
			count++
			sum = sum.Add(e.Leaf)
			if e.Expires() {
				ttls++
			}
		}
	}
	if s.Count() != count || s.TTLs() != ttls || s.Sum() != sum || s.live != len(m) {
		t.Fatalf("got count %d, ttls %d, sum %v, live %d; want %d, %d, %v, %d", s.Count(), s.TTLs(), s.Sum(), s.live, count,
			ttls, sum, len(m))
	}
	for _, n := range names {
		if got := s.Get(n); got != m[n] {
			t.Fatalf("Get(%v): got %p, want %p", n, got, m[n])
		}
	}
	for p := range last + 2 {
		want := m.since(p)
		if got := slices.Collect(s.Since(p)); !slices.Equal(got, want) {
			t.Fatalf("Since(%d) of %d: got %d entries, want %d", p, last, len(got), len(want))
		}
		if got := s.ChangedSince(p); got < len(want) || got > len(s.log) {
			t.Fatalf("ChangedSince(%d): got %d, want from %d to %d", p, got, len(want), len(s.log))
		}
		align := s.Align(p)
		if align > p || s.Align(align) != align || !slices.Equal(m.since(align), want) {
			t.Fatalf("Align(%d): got %d, after which other changes are read", p, align)
		}
		if p > 0 && s.Align(p-1) > align {
			t.Fatalf("Align(%d) is %d, Align(%d) is %d", p-1, s.Align(p-1), p, align)
		}
	}
}

// TestB1_RandomSetsAreOrderedByLastChange compares sets, compacted or not, with a model. Old versions of a set must not change.
func TestB1_RandomSetsAreOrderedByLastChange(t *testing.T) {
	contents := []*wire.Resource{
		newResource(t, acme, "r", "1", "one"), newResource(t, acme, "r", "2", "two"), expiring(t, "r", "3", "three"),
	}
	rapid.Check(t, func(t *rapid.T) {
		var names []*Name
		for i := range rapid.IntRange(1, 12).Draw(t, "names") {
			names = append(names, &Name{text: fmt.Sprint(i), id: uint32(i * 13)})
		}
		type version struct {
			set   Set
			model setModel
			last  Seq
		}
		var versions []version
		var set Set
		model, seq := setModel{}, Seq(rapid.IntRange(0, 3).Draw(t, "before"))
		for range rapid.IntRange(1, 6).Draw(t, "applies") {
			by := new(txn)
			for _, step := range rapid.SliceOfN(rapid.IntRange(0, 9), 0, 60).Draw(t, "steps") {
				n := names[rapid.IntRange(0, len(names)-1).Draw(t, "name")]
				old := model[n]
				switch {
				case step == 0 && old != nil:
					set.drop(by, old)
					delete(model, n)
				case step == 1 && old.Present():
					model[n] = old.withVersion(old.Resource)
					set.put(by, model[n])
				default:
					seq += Seq(rapid.IntRange(1, 3).Draw(t, "gap"))
					e := &Entry{Name: n, Seq: seq, Leaf: sum(uint64(n.id), uint64(step))}
					if step < 7 {
						e.Resource = contents[step%len(contents)]
					}
					model[n] = e
					set.put(by, e)
				}
			}
			set.compact()
			if len(set.log) > 2*set.live+64 {
				t.Fatalf("log of %d items for %d entries was not compacted", len(set.log), set.live)
			}
			clone := setModel{}
			for n, e := range model {
				clone[n] = e
			}
			versions = append(versions, version{set, clone, seq})
		}
		for i := range versions {
			v := &versions[i]
			v.model.check(t, &v.set, names, v.last)
		}
	})
}

func TestB2_EntryRemembersFourVersions(t *testing.T) {
	o := newOrigin(t, Config{})
	for v := 1; v <= 6; v++ {
		o.put(Wildcard, "a", fmt.Sprint(v), "same")
		e := o.typ().Wildcard.Get(o.name("a"))
		for held := 1; held <= 7; held++ {
			want := held <= v && held > v-4
			if got := e.HasVersion(fmt.Sprint(held)); got != want {
				t.Errorf("at version %d, HasVersion(%d): got %t, want %t", v, held, got, want)
			}
		}
	}
	o.put(Wildcard, "a", "7", "changed")
	e := o.typ().Wildcard.Get(o.name("a"))
	if e.HasVersion("6") || !e.HasVersion("7") {
		t.Errorf("after a change of content: got %t for the old version and %t for the new one, want false and true",
			e.HasVersion("6"), e.HasVersion("7"))
	}
}
