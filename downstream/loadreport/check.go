package loadreport

import (
	"errors"
	"fmt"
	"math"
	"slices"

	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
)

// maxPriority is the highest priority of a locality.
const maxPriority = 128

// checkCluster returns an error if the load of a cluster violates the rules of the protocol. It checks only the parts
// of a report that are summed.
//
// Source: envoy/config/endpoint/v3/load_report.proto.
func checkCluster(stats *endpointpb.ClusterStats) error {
	if stats.GetClusterName() == "" {
		return errors.New("cluster_name is empty")
	}
	for _, d := range stats.GetDroppedRequests() {
		if d.GetCategory() == "" {
			return fmt.Errorf("cluster %.256q has dropped_requests with an empty category", stats.GetClusterName())
		}
	}
	for _, l := range stats.GetUpstreamLocalityStats() {
		if l.GetPriority() > maxPriority {
			return fmt.Errorf("cluster %.256q has a locality of priority %d, at most %d is allowed",
				stats.GetClusterName(), l.GetPriority(), maxPriority)
		}
	}
	return nil
}

// dropNonFinite removes metrics that are infinite or NaN, since they would make the sum infinite or NaN. It returns the
// name of the last one; found is false if there was none.
func dropNonFinite(stats *endpointpb.ClusterStats) (metric string, found bool) {
	bad := func(name string, value float64) bool {
		isBad := math.IsNaN(value) || math.IsInf(value, 0)
		if isBad {
			metric, found = name, true
		}
		return isBad
	}
	named := func(m *endpointpb.EndpointLoadMetricStats) bool {
		return bad(m.GetMetricName(), m.GetTotalMetricValue())
	}
	for _, l := range stats.GetUpstreamLocalityStats() {
		if bad("cpu_utilization", l.GetCpuUtilization().GetTotalMetricValue()) {
			l.CpuUtilization = nil
		}
		if bad("mem_utilization", l.GetMemUtilization().GetTotalMetricValue()) {
			l.MemUtilization = nil
		}
		if bad("application_utilization", l.GetApplicationUtilization().GetTotalMetricValue()) {
			l.ApplicationUtilization = nil
		}
		l.LoadMetricStats = slices.DeleteFunc(l.GetLoadMetricStats(), named)
		for _, e := range l.GetUpstreamEndpointStats() {
			e.LoadMetricStats = slices.DeleteFunc(e.GetLoadMetricStats(), named)
		}
	}
	return metric, found
}
