package lint

import (
	"slices"
	"testing"

	"github.com/xdstender/tender/cache/wire"
)

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
