package cache

import (
	"testing"

	"github.com/xdstender/tender/cache/wire"
)

// TestH03_Large tests the threshold for large removals.
func TestH03_Large(t *testing.T) {
	for _, tt := range []struct {
		typeURL             string
		removed, had, added int
		want                bool
	}{
		{wire.ClusterType, 0, 0, 0, false},
		{wire.ClusterType, 1, 1, 0, true},
		{wire.ClusterType, 1, 1, 5, true},
		{wire.ClusterType, 1, 2, 0, false},
		{wire.ClusterType, 2, 3, 0, true},
		{wire.ClusterType, 10, 100, 0, false},
		{wire.ClusterType, 11, 100, 0, true},
		{wire.ClusterType, 11, 110, 0, false},
		{wire.ClusterType, 12, 110, 0, true},
		{wire.ListenerType, 8, 9, 0, true},
		{wire.ListenerType, 9, 9, 9, false},
		{wire.ListenerType, 9, 9, 4, true},
		{wire.ScopedRouteType, 9, 9, 9, false},
		{wire.EndpointType, 1000, 1000, 0, false},
		{wire.LocalityEndpoint, 1000, 1000, 0, false},
		{"type.googleapis.com/istio.workload.Address", 1000, 1000, 0, false},
		{wire.RouteType, 1000, 1000, 0, true},
		{wire.SecretType, 1, 1, 0, true},
	} {
		if got := LargeRemoval(tt.typeURL, tt.removed, tt.had, tt.added); got != tt.want {
			t.Errorf("%d of %d %s removed, %d added: large is %t, want %t", tt.removed, tt.had, tt.typeURL, tt.added, got,
				tt.want)
		}
	}
}
