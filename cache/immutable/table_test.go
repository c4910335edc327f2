package immutable

import (
	"maps"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// edges are the ids around which a table grows by a level, and where a node ends.
var edges = []uint32{
	0, 1, 63, 64, 65, 127, 128, 4095, 4096, 4097, 262143, 262144, 262145,
	1<<24 - 1, 1 << 24, 1<<30 - 1, 1 << 30, math.MaxUint32,
}

// TestB1_RandomTablesArePersistent changes tables made of any earlier one, in edits of
// any size, and holds all of them to a map that was current when each was made.
func TestB1_RandomTablesArePersistent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type version struct {
			table Table[int]
			model map[uint32]*int
		}
		ids := rapid.OneOf(rapid.SampledFrom(edges), rapid.Uint32Range(0, 200), rapid.Uint32())
		versions := []version{{model: map[uint32]*int{}}}
		used := map[uint32]bool{}
		for range rapid.IntRange(1, 8).Draw(t, "edits") {
			from := versions[rapid.IntRange(0, len(versions)-1).Draw(t, "from")]
			next := version{from.table, maps.Clone(from.model)}
			by := new(Edit)
			for range rapid.IntRange(0, 30).Draw(t, "sets") {
				id := ids.Draw(t, "id")
				used[id] = true
				var e *int
				if rapid.IntRange(0, 3).Draw(t, "kept") > 0 {
					e = new(len(versions))
				}
				next.table = next.table.Set(by, id, e)
				next.model[id] = e
			}
			versions = append(versions, next)
		}
		for i, v := range versions {
			present := 0
			for id := range used {
				if got, want := v.table.Get(id), v.model[id]; got != want {
					t.Fatalf("version %d, id %d: got %p, want %p", i, id, got, want)
				}
				if v.model[id] != nil {
					present++
				}
			}
			if v.table.Empty() != (len(v.model) == 0) {
				t.Fatalf("version %d: empty is %t of %d ids", i, v.table.Empty(), len(v.model))
			}
			var ids []uint32
			for id, e := range v.table.All() {
				if ids = append(ids, id); v.model[id] != e {
					t.Fatalf("version %d, id %d of all: got %p, want %p", i, id, e, v.model[id])
				}
			}
			if len(ids) != present || !slices.IsSorted(ids) {
				t.Fatalf("version %d: all has %v, want %d ids in order", i, ids, present)
			}
		}
	})
}

// TestRandomTableDifferences holds the differences of any two tables to those of maps, in either direction.
func TestRandomTableDifferences(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.OneOf(rapid.SampledFrom(edges), rapid.Uint32Range(0, 200))
		var a, b Table[int]
		want := map[[2]*int]int{}
		was, is := map[uint32]*int{}, map[uint32]*int{}
		change := func(t *rapid.T, table Table[int], model map[uint32]*int) Table[int] {
			by := new(Edit)
			for range rapid.IntRange(0, 20).Draw(t, "sets") {
				id := ids.Draw(t, "id")
				if model[id] = new(0); rapid.IntRange(0, 3).Draw(t, "kept") == 0 {
					model[id] = nil
				}
				table = table.Set(by, id, model[id])
			}
			return table
		}
		a = change(t, a, was)
		b = a
		maps.Copy(is, was)
		b = change(t, b, is)
		for id, e := range is {
			if was[id] != e {
				want[[2]*int{was[id], e}]++
			}
		}
		got, reversed := map[[2]*int]int{}, map[[2]*int]int{}
		for before, after := range a.Differences(b) {
			got[[2]*int{before, after}]++
		}
		for before, after := range b.Differences(a) {
			reversed[[2]*int{after, before}]++
		}
		if !maps.Equal(got, want) || !maps.Equal(reversed, want) {
			t.Fatalf("got %v, reversed %v, want %v", got, reversed, want)
		}
	})
}

// TestTableCopiesOnce: an edit copies each node once, however much it changes in
// it.
func TestTableCopiesOnce(t *testing.T) {
	var old Table[int]
	for id := range uint32(fanout * fanout) {
		old = old.Set(new(Edit), id, new(0))
	}
	by, e := new(Edit), new(0)
	changed := old.Set(by, 0, e)
	again := testing.AllocsPerRun(100, func() { changed = changed.Set(by, 1, e) })
	if again != 0 {
		t.Errorf("second change of a node by one edit: got %v allocations, want 0", again)
	}
	if changed.root == old.root || changed.root.children[0] == old.root.children[0] || changed.root.children[1] != old.root.children[1] {
		t.Error("an edit must copy the path that it changes, and share the rest")
	}
}

// TestTableAllStops: a reader that has seen enough is not given more.
func TestTableAllStops(t *testing.T) {
	var table Table[int]
	for id := range uint32(3 * fanout) {
		table = table.Set(new(Edit), id, new(0))
	}
	for most := 1; most <= 2*fanout; most += fanout {
		seen := 0
		for range table.All() {
			if seen++; seen == most {
				break
			}
		}
		if seen != most {
			t.Errorf("got %d values, want %d", seen, most)
		}
	}
}
