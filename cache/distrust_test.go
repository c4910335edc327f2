package cache

import "testing"

// TestDistrust: which resources are distrusted, by type URL or collection and name, and when others are.
func TestDistrust(t *testing.T) {
	view, _ := NewRouted(Config{Cohorts: 1})
	canary := view.Cohort(0)
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
		canary.Distrust(tt.source, tt.names)
		a, b := canary.Distrusts(acme, "a"), canary.Distrusts(acme, "b")
		if a != tt.a || b != tt.b || canary.DistrustsAny(acme) != (a || b) || canary.DistrustRevision() != tt.revision {
			t.Errorf("%d: a: %v, b: %v, any: %v, revision %d; want %v, %v, %d", i, a, b, canary.DistrustsAny(acme), canary.DistrustRevision(), tt.a, tt.b, tt.revision)
		}
		if canary.DistrustsAny("other") || view.Distrusts(acme, "a") || view.DistrustRevision() != 0 {
			t.Errorf("%d: another type or view distrusts something", i)
		}
	}
}
