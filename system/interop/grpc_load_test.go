package interop_test

import (
	"fmt"
	"slices"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/controlplane"
	"github.com/xdstender/tender/relay/relaytest/instance"
	"github.com/xdstender/tender/relay/relaytest/loadserver"
)

// loadTotals holds sums of requests over all reports, except inProgress, which is that of the last report.
type loadTotals struct{ successful, failed, issued, inProgress uint64 }

// loadOf returns the sums of reports, the sorted node IDs of their streams, and the reports of clusters other than
// "service".
func loadOf(reports []*lrspb.LoadStatsRequest) (totals loadTotals, nodes, strange []string) {
	here := &corepb.Locality{Region: "region", Zone: "zone"} // as in relaytest.Endpoints
	for _, r := range reports {
		if n := r.GetNode(); n != nil {
			nodes = append(nodes, n.GetId())
		}
		totals.inProgress = 0
		for _, c := range r.GetClusterStats() {
			for _, s := range c.GetUpstreamLocalityStats() {
				totals.successful += s.GetTotalSuccessfulRequests()
				totals.failed += s.GetTotalErrorRequests()
				totals.issued += s.GetTotalIssuedRequests()
				totals.inProgress += s.GetTotalRequestsInProgress()
				took := c.GetLoadReportInterval().AsDuration()
				if c.GetClusterName() != "service" || c.GetClusterServiceName() != "service-endpoints" || !proto.Equal(s.GetLocality(), here) || took <= 0 {
					strange = append(strange, c.String())
				}
			}
		}
	}
	slices.Sort(nodes)
	return totals, nodes, strange
}

// TestInterop_LoadReports: two gRPC clients report their load to the relay (lrs_server: self), which forwards it to
// the origin. Every RPC is counted once. (B.29, R139)
func TestInterop_LoadReports(t *testing.T) {
	for mode, nodes := range map[string][]string{
		"aggregate":   {"tender/test"},
		"passthrough": {"first", "second"},
	} {
		t.Run(mode, func(t *testing.T) {
			noLeaks(t)
			var reports loadserver.Server
			cluster := relaytest.Cluster("service", "service-endpoints")
			cluster.LrsServer = &corepb.ConfigSource{
				ResourceApiVersion:    corepb.ApiVersion_V3,
				ConfigSourceSpecifier: &corepb.ConfigSource_Self{Self: &corepb.SelfConfigSource{}},
			}
			backend := relaytest.NewBackend(t)
			o := controlplane.New(t, controlplane.Linear, nil, grpcWorld(backend)...)
			o.Put(cluster)
			o.Register = reports.Register
			o.Restart()
			r := relayOf(t, instance.Of(o), "TENDER_LRS="+mode)
			addUp := func(calls uint64) {
				t.Helper()
				reports.Await(t, func(all []*lrspb.LoadStatsRequest) error {
					totals, got, strange := loadOf(all)
					if totals != (loadTotals{successful: calls, issued: calls}) || !slices.Equal(got, nodes) || len(strange) > 0 {
						return fmt.Errorf("%+v of %v, want %d RPCs of %v; other reports: %v", totals, got, calls, nodes, strange)
					}
					return nil
				})
			}

			first, second := newGRPCPeer(t, r.Target, "first"), newGRPCPeer(t, r.Target, "second")
			for range 30 {
				first.call()
			}
			for range 12 {
				second.call()
			}
			addUp(42)
			for range 5 {
				first.call()
				second.call()
			}
			addUp(52)
		})
	}
}
