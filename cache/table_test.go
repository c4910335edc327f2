package cache

import (
	"maps"
	"math"
	"testing"

	"pgregory.net/rapid"
)

// edges are the ids around which a table grows by a level, and where a node ends.
var edges = []uint32{
	0, 1, 63, 64, 65, 127, 128, 4095, 4096, 4097, 262143, 262144, 262145,
	1<<24 - 1, 1 << 24, 1<<30 - 1, 1 << 30, math.MaxUint32,
}

// TestB1_TablesArePersistent changes tables made of any earlier one, in edits of
// any size, and holds all of them to a map that was current when each was made.
func TestB1_TablesArePersistent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type version struct {
			table table
			model map[uint32]*Entry
		}
		ids := rapid.OneOf(rapid.SampledFrom(edges), rapid.Uint32Range(0, 200), rapid.Uint32())
		versions := []version{{model: map[uint32]*Entry{}}}
		used := map[uint32]bool{}
		for range rapid.IntRange(1, 8).Draw(t, "edits") {
			from := versions[rapid.IntRange(0, len(versions)-1).Draw(t, "from")]
			next := version{from.table, maps.Clone(from.model)}
			by := new(txn)
			for range rapid.IntRange(0, 30).Draw(t, "sets") {
				id := ids.Draw(t, "id")
				used[id] = true
				var e *Entry
				if rapid.IntRange(0, 3).Draw(t, "kept") > 0 {
					e = new(Entry{Seq: Seq(len(versions))})
				}
				next.table = next.table.set(by, id, e)
				next.model[id] = e
			}
			versions = append(versions, next)
		}
		for i, v := range versions {
			for id := range used {
				if got, want := v.table.get(id), v.model[id]; got != want {
					t.Fatalf("version %d, id %d: got %p, want %p", i, id, got, want)
				}
			}
		}
	})
}

func TestTableGrowsWithIDs(t *testing.T) {
	tests := []struct {
		id    uint32
		depth int
	}{
		{0, 0}, {63, 0}, {64, 1}, {4095, 1}, {4096, 2}, {262143, 2}, {262144, 3},
		{1<<24 - 1, 3}, {1 << 24, 4}, {1<<30 - 1, 4}, {1 << 30, 5}, {math.MaxUint32, 5},
	}
	var grown table
	first := new(Entry)
	kept := make(map[uint32]*Entry)
	for _, test := range tests {
		e := new(Entry)
		if got := grown.get(test.id); got != nil {
			t.Errorf("id %d before it was set: got %p, want nil", test.id, got)
		}
		grown = grown.set(new(txn), test.id, e)
		kept[test.id] = e
		if grown.depth != test.depth {
			t.Errorf("id %d: got depth %d, want %d", test.id, grown.depth, test.depth)
		}
		alone := table{}.set(new(txn), test.id, e)
		if alone.depth != test.depth || alone.get(test.id) != e {
			t.Errorf("id %d alone: got depth %d and %p, want %d and %p", test.id, alone.depth, alone.get(test.id), test.depth, e)
		}
		if test.id != 0 {
			if alone = alone.set(new(txn), 0, first); alone.get(0) != first || alone.get(test.id) != e {
				t.Errorf("id %d, then 0: got %p and %p", test.id, alone.get(test.id), alone.get(0))
			}
		}
	}
	for id, e := range kept {
		if got := grown.get(id); got != e {
			t.Errorf("id %d at the end: got %p, want %p", id, got, e)
		}
	}
}

// TestTableCopiesOnce: an edit copies each node once, however much it changes in
// it.
func TestTableCopiesOnce(t *testing.T) {
	var old table
	for id := range uint32(fanout * fanout) {
		old = old.set(new(txn), id, new(Entry))
	}
	by, e := new(txn), new(Entry)
	changed := old.set(by, 0, e)
	again := testing.AllocsPerRun(100, func() { changed = changed.set(by, 1, e) })
	if again != 0 {
		t.Errorf("second change of a node by one edit: got %v allocations, want 0", again)
	}
	if changed.root == old.root || changed.root.children[0] == old.root.children[0] || changed.root.children[1] != old.root.children[1] {
		t.Error("an edit must copy the path that it changes, and share the rest")
	}
}
