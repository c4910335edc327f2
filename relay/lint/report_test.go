package lint

import (
	"slices"
	"testing"

	"github.com/xdstender/tender/cache/wire"
)

// TestReport_Add checks that added findings are counted and sorted among the others.
func TestReport_Add(t *testing.T) {
	missing := GroupFinding{"g", Finding{wire.RouteType, "r", Missing, ""}}
	unknown := GroupFinding{"g", Finding{wire.RouteType, "r", Unknown, ""}}
	held := func(typeURL, name string) GroupFinding { return GroupFinding{"h", Finding{typeURL, name, Held, ""}} }
	r := Report{Counts: []Count{{wire.RouteType, Held, 1}}, Findings: []GroupFinding{missing, unknown}}
	r.Add(held(wire.RouteType, "b"), held(wire.ClusterType, "c"), held(wire.RouteType, "a"))
	counts := []Count{{wire.RouteType, Held, 3}, {wire.ClusterType, Held, 1}}
	findings := []GroupFinding{missing, held(wire.ClusterType, "c"), held(wire.RouteType, "a"), held(wire.RouteType, "b"), unknown}
	if !slices.Equal(r.Counts, counts) || !slices.Equal(r.Findings, findings) {
		t.Errorf("report %+v, want counts %+v and findings %+v", r, counts, findings)
	}
}

// TestClusters checks that Clusters excludes static clusters and clusters with xdstp names.
func TestClusters(t *testing.T) {
	l := New(Config{Static: Patterns{"local_*"}})
	facts := &Facts{References: []Reference{{wire.ClusterType, "local_a"}, {wire.ClusterType, "b"}, {wire.RouteType, "r"}, {wire.ClusterType, "xdstp://x/c"}}}
	if got := slices.Collect(l.Clusters(facts)); !slices.Equal(got, []string{"b"}) {
		t.Errorf("clusters %q, want b", got)
	}
	if l.Clusters(&Facts{References: facts.References[:1]}) != nil {
		t.Error("Clusters returns static clusters")
	}
}
