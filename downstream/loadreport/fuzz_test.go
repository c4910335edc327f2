package loadreport

import (
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// FuzzLoadReport: for any reports of two clients, the report to the origin can be encoded, is no larger than estimated,
// and would be accepted from a client. After the clients have disconnected, the sum becomes empty.
func FuzzLoadReport(f *testing.F) {
	address := &corepb.Address{Address: &corepb.Address_SocketAddress{SocketAddress: &corepb.SocketAddress{Address: "10.0.0.1"}}}
	for _, report := range [][]*endpointpb.ClusterStats{
		nil, hugeReport(2, ""), {{}}, {{ClusterName: "c", DroppedRequests: []*endpointpb.ClusterStats_DroppedRequests{{}}}},
		{{ClusterName: "c", UpstreamLocalityStats: []*endpointpb.UpstreamLocalityStats{
			{Priority: 129}, {Locality: &corepb.Locality{Zone: "z"}, TotalRequestsInProgress: 3, UpstreamEndpointStats: []*endpointpb.UpstreamEndpointStats{{Address: address}, {}}},
		}}},
	} {
		b, err := proto.Marshal(&lrspb.LoadStatsRequest{ClusterStats: report})
		check.OK(f, err)
		f.Add(b, b)
	}
	f.Fuzz(func(t *testing.T, one, another []byte) {
		sum, clients := newSum(), []*reporter{{}, {}}
		for i, b := range [][]byte{one, another} {
			if report, ok := reported(b); ok {
				sum.add(clients[i], report, true)
			}
		}
		room := sum.bytes
		report, _ := sum.takeReport(time.Second)
		b, err := proto.Marshal(&lrspb.LoadStatsRequest{ClusterStats: report})
		if err != nil {
			t.Fatalf("%v cannot be encoded: %v", report, err)
		}
		if len(b) > room {
			t.Errorf("report of %d bytes, want at most the estimate of %d", len(b), room)
		}
		if _, ok := reported(b); !ok {
			t.Errorf("a stream would refuse the report %v", report)
		}
		if err := checkEmptyAfterLeave(sum, clients); err != nil {
			t.Error(err)
		}
	})
}

// reported decodes a report as a stream does. It returns false if a stream would refuse the report.
func reported(b []byte) (report []*endpointpb.ClusterStats, ok bool) {
	var r lrspb.LoadStatsRequest
	if err := proto.Unmarshal(b, &r); err != nil {
		return nil, false
	}
	for _, stats := range r.GetClusterStats() {
		if err := checkCluster(stats); err != nil {
			return nil, false
		}
		dropNonFinite(stats)
	}
	return r.GetClusterStats(), true
}
