package distrust

import (
	"slices"
	"testing"
)

const acme = "type.googleapis.com/acme.Thing"

// TestListHasTheResourcesOfAllSources: which resources are in a list, and when its revision changes.
func TestListHasTheResourcesOfAllSources(t *testing.T) {
	var list List
	names := func(texts ...string) map[string]map[string]struct{} {
		of := make(map[string]struct{})
		for _, text := range texts {
			of[text] = struct{}{}
		}
		return map[string]map[string]struct{}{acme: of}
	}
	for i, tt := range []struct {
		source   int
		names    map[string]map[string]struct{}
		a, b     bool
		revision uint64
	}{
		{0, nil, false, false, 0},
		{0, names("a"), true, false, 1},
		{0, names("a"), true, false, 1},
		{0, names("a", "b"), true, true, 2},
		{0, nil, false, false, 0},
		{0, names("b"), false, true, 3}, // not what polls were answered with before
		{1, names("a"), true, true, 4},
		{0, names("b"), true, true, 4},
		{0, map[string]map[string]struct{}{}, true, false, 4},
		{1, nil, false, false, 0},
	} {
		list.Set(tt.source, tt.names)
		a, b := list.Has(acme, "a"), list.Has(acme, "b")
		if a != tt.a || b != tt.b || list.HasType(acme) != (a || b) || list.Revision() != tt.revision {
			t.Errorf("%d: a: %v, b: %v, any: %v, revision %d; want %v, %v, %d", i, a, b, list.HasType(acme), list.Revision(), tt.a, tt.b, tt.revision)
		}
		if list.HasType("other") {
			t.Errorf("%d: another type has something", i)
		}
		got := list.Names(acme)
		if slices.Contains(got, "a") != a || slices.Contains(got, "b") != b {
			t.Errorf("%d: the names are %q, want a: %v, b: %v", i, got, a, b)
		}
	}
}
