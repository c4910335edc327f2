package immutable

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestB1_RandomLogsAreOrderedByLastChange compares logs with a list of all changes. Older versions must not change.
func TestB1_RandomLogsAreOrderedByLastChange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var log Log[int, uint64]
		last := map[int]uint64{}
		at := uint64(rapid.IntRange(0, 3).Draw(t, "before"))
		old, oldItems := log, slices.Clone(log)
		for range rapid.IntRange(0, 300).Draw(t, "changes") {
			at += uint64(rapid.IntRange(1, 3).Draw(t, "gap"))
			key := rapid.IntRange(0, 9).Draw(t, "key")
			log.Append(key, at)
			last[key] = at
			if rapid.IntRange(0, 20).Draw(t, "keep") == 0 {
				old, oldItems = log, slices.Clone(log)
			}
			log.Compact(len(last), func(c Change[int, uint64]) bool { return last[c.Key] == c.At })
		}
		if len(log) > 2*len(last)+compactSlack {
			t.Fatalf("a log of %d keys has %d items", len(last), len(log))
		}
		for key, p := range last {
			if !log.Has(key, p) || log.Has(key, at+1) || log.Has(-1, p) {
				t.Fatalf("the log does not have the last change of %d, at %d, or has one that was not made", key, p)
			}
		}
		for p := range at + 2 {
			for i, c := range log {
				if (c.At > p) != (i >= log.After(p)) {
					t.Fatalf("After(%d) = %d, but item %d lies at %d", p, log.After(p), i, c.At)
				}
			}
		}
		if !slices.Equal(old, oldItems) {
			t.Fatalf("an older version was %v and has become %v", oldItems, old)
		}
	})
}

// TestB1_AClippedLogHasAnArrayOfItsOwn: two versions that are both appended to do not overwrite each other.
func TestB1_AClippedLogHasAnArrayOfItsOwn(t *testing.T) {
	var log Log[string, uint64]
	for i := range uint64(5) {
		log.Append("a", i)
	}
	beside := log.Clip()
	log.Append("b", 5)
	beside.Append("c", 5)
	if !log.Has("b", 5) || !beside.Has("c", 5) {
		t.Errorf("got %v and %v, want one with b and one with c at the end", log, beside)
	}
}
