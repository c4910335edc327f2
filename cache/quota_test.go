package cache

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestB35_QuotasCountWhatIsWanted has streams of two views begin and cease to want names at random.
// An origin's quota counts each name once for each view in which anybody wants it, but not
// what one view has from the other, and says just when names would be too many.
func TestB35_QuotasCountWhatIsWanted(t *testing.T) {
	const most = 6
	sources := func(_, name string) int { return max(0, strings.Index("xyz", name[:min(1, len(name))])) }
	rapid.Check(t, func(t *rapid.T) {
		first, second := NewQuota(most), NewQuota(most)
		group, _ := NewRouted(Config{Sources: 3, Route: sources, Quotas: []Quota{first, second, first.Elsewhere()}})
		shared, _ := NewRouted(Config{Sources: 3, Route: sources, Quotas: []Quota{first, second, first}})
		watches := []*Watch{group.Watch(), group.Watch(), shared.Watch()}
		wants := []map[string]bool{{}, {}, {}}
		// wanted returns how many names watches want of each source.
		wanted := func(by ...map[string]bool) (n [3]int) {
			all := make(map[string]bool)
			for _, names := range by {
				maps.Copy(all, names)
			}
			for name := range all {
				n[sources("", name)]++
			}
			return n
		}
		names := rapid.SliceOfN(rapid.SampledFrom([]string{"x1", "x2", "x3", "x4", "x5", "y1", "y2", "y3", "z1", "z2", "z3"}), 0, 6)
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			i := rapid.IntRange(0, len(watches)-1).Draw(t, "watch")
			begins, ceases := names.Draw(t, "begins"), names.Draw(t, "ceases")
			had := wants[i]
			others := []map[string]bool{wants[1-i%2]}
			if i == 2 {
				others = nil
			}
			has := maps.Clone(had)
			for _, name := range ceases {
				delete(has, name)
			}
			for _, name := range begins {
				has[name] = true
			}
			before, after := wanted(append(others, had)...), wanted(append(others, has)...)
			more := func(source int) int { return after[source] - before[source] }
			tooMany := more(0)+more(2) > max(0, most-first.Wanted()) || more(1) > max(0, most-second.Wanted())
			over, n, limit := watches[i].Over(acme, begins, ceases)
			if exceeds := len(over) > 0; exceeds != tooMany || exceeds && (n <= most || limit != most) {
				t.Fatalf("watches want %v; if %d began with %q and ceased with %q: over %q (%d of %d), want some: %t", wants, i, begins, ceases, over, n, limit, tooMany)
			}
			begins = slices.DeleteFunc(begins, func(name string) bool { return slices.Contains(over, name) })
			if more, _, _ := watches[i].Over(acme, begins, ceases); len(more) > 0 {
				t.Fatalf("watches want %v; if %d began with %q and ceased with %q, without %q: over is %q", wants, i, begins, ceases, over, more)
			}
			for _, name := range over {
				if !had[name] {
					delete(has, name)
				}
			}
			watches[i].Subscribe(acme, begins)
			ceases = slices.DeleteFunc(ceases, func(name string) bool { return has[name] || !had[name] })
			watches[i].Unsubscribe(acme, watches[i].Find(acme, set(ceases)))
			wants[i] = has
			inGroup, inShared := wanted(wants[0], wants[1]), wanted(wants[2])
			if got, want := first.Wanted(), inGroup[0]+inShared[0]+inShared[2]; got != want {
				t.Fatalf("watches want %v: %d are counted of the first origin, want %d", wants, got, want)
			}
			if got, want := second.Wanted(), inGroup[1]+inShared[1]; got != want {
				t.Fatalf("watches want %v: %d are counted of the second origin, want %d", wants, got, want)
			}
			if got, want := watches[0].Room(), most-max(first.Wanted(), second.Wanted()); got != want {
				t.Fatalf("watches want %v: room for %d more, want %d", wants, got, want)
			}
		}
	})
}
