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
