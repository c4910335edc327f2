package conformance_test

import (
	"math"
	"strings"
	"testing"
	"time"

	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/relay/relaytest"
)

// A badReport is a client's load report: a change to a valid report, or raw bytes.
type badReport struct {
	change func(stats *endpointpb.ClusterStats, l *endpointpb.UpstreamLocalityStats)
	bytes  string
}

// badReports are reports to a relay that sums up the load of its clients.
var badReports = []badInput{
	{"invalid bytes", badReport{bytes: "\xff"}, codes.InvalidArgument, "load report: "},
	{"more bytes than allowed",
		badReport{bytes: badPart(&lrspb.LoadStatsRequest{}, "node",
			badPart(&endpointpb.ClusterStats{}, "cluster_name", string(make([]byte, 8192))))}, codes.ResourceExhausted,
		"larger than max ("},
	{"cluster_name: none", badReport{change: func(stats *endpointpb.ClusterStats, _ *endpointpb.UpstreamLocalityStats) {
		stats.ClusterName = ""
	}}, codes.InvalidArgument, "load report: cluster_stats[1]: cluster_name is empty"},
	{"dropped_requests: no category",
		badReport{change: func(stats *endpointpb.ClusterStats, _ *endpointpb.UpstreamLocalityStats) {
			stats.DroppedRequests = []*endpointpb.ClusterStats_DroppedRequests{{DroppedCount: 1}}
		}}, codes.InvalidArgument, `cluster "bad" has dropped_requests with an empty category`},
	{"priority: too large", badReport{change: func(_ *endpointpb.ClusterStats, l *endpointpb.UpstreamLocalityStats) {
		l.Priority = 129
	}}, codes.InvalidArgument, `cluster "bad" has a locality of priority 129, at most 128 is allowed`},
	{"load_metric_stats: not a number",
		badReport{change: func(stats *endpointpb.ClusterStats, l *endpointpb.UpstreamLocalityStats) {
			stats.ClusterName, l.LoadMetricStats[0].TotalMetricValue = "one", math.NaN()
		}}, codes.OK, "load report has a non-finite metric, which is ignored\" node=bad cluster=one metric=m"},
	{"cpu_utilization: infinite",
		badReport{change: func(stats *endpointpb.ClusterStats, l *endpointpb.UpstreamLocalityStats) {
			stats.ClusterName, l.CpuUtilization.TotalMetricValue = "one", math.Inf(1)
		}}, codes.OK, "cluster=one metric=cpu_utilization"},
}

// meteredLoad returns a cluster's load whose metrics all have one value.
func meteredLoad(cluster string, value float64) *endpointpb.ClusterStats {
	stats := load(cluster, "z", 1, 0)
	l := stats.GetUpstreamLocalityStats()[0]
	l.LoadMetricStats = []*endpointpb.EndpointLoadMetricStats{{MetricName: "m", TotalMetricValue: value}}
	l.CpuUtilization = &endpointpb.UnnamedEndpointLoadMetricStats{TotalMetricValue: value}
	return stats
}

// encode returns the bytes of the report.
func (b badReport) encode(t *testing.T) []byte {
	t.Helper()
	if b.change == nil {
		return []byte(b.bytes)
	}
	bad := meteredLoad("bad", 0)
	b.change(bad, bad.GetUpstreamLocalityStats()[0])
	msg, err := proto.Marshal(&lrspb.LoadStatsRequest{ClusterStats: []*endpointpb.ClusterStats{meteredLoad("two", 0),
		bad}})
	if err != nil {
		t.Fatal(err)
	}
	return msg
}

// asReport sends the row while another client reports valid load, and checks that the origin receives only the
// valid load.
func (row badInput) asReport(t *testing.T) {
	loadBubble(t, func(t *testing.T, o *relaytest.Origin, loads *loadOrigin) {
		r := start(t, o, append(badLimits, "TENDER_LRS=aggregate")...)
		good := r.reports(loadNode("good"))
		st := loads.stream(t, 0)
		st.requestReports(t, 10*time.Second)

		rpc := loadRaw(t, r)
		for _, m := range [][]byte{mustMarshal(t, &lrspb.LoadStatsRequest{Node: loadNode("bad")}),
			row.input.(badReport).encode(t)} {
			if err := rpc.SendMsg(m); err != nil {
				t.Fatal(err)
			}
		}
		if row.code == codes.OK {
			sleep(time.Second)
			row.check(t, codes.OK, r.Log.String())
		} else {
			st := status.Convert(readToEnd(rpc))
			row.check(t, st.Code(), st.Message())
		}
		good.report(meteredLoad("one", 1.5))
		sleep(10 * time.Second)
		reports := st.requests()
		for _, stats := range reports[len(reports)-1].GetClusterStats() {
			if stats.GetClusterName() == "bad" {
				t.Errorf("the origin got the refused load: %v", stats)
			}
			if stats.GetClusterName() != "one" {
				continue
			}
			l := stats.GetUpstreamLocalityStats()[0]
			if m, cpu := l.GetLoadMetricStats()[0].GetTotalMetricValue(),
				l.GetCpuUtilization().GetTotalMetricValue(); m != 1.5 || cpu != 1.5 {
				t.Errorf("the origin got %v and %v, want 1.5 each", m, cpu)
			}
			good.expectEnd()
			return
		}
		t.Errorf("the origin did not get the valid load: %v", reports)
	})
}

// badLoadRequests are requests of an origin for load reports. CANCELLED means that the relay replaces the stream.
// OK means that it tolerates the message; it then requests reports from clients every second.
var badLoadRequests = []badInput{
	{"clusters: not UTF-8", badLoadRequest(&lrspb.LoadStatsResponse{}, encodeField(1, "\xff")), codes.Canceled,
		"load report stream closed"},
	{"load_reporting_interval: none", badLoadRequest(&lrspb.LoadStatsResponse{}, nil), codes.OK,
		"interval=0s interval_used=1s"},
	{"load_reporting_interval: negative",
		badLoadRequest(&lrspb.LoadStatsResponse{LoadReportingInterval: &durationpb.Duration{Seconds: -5}}, nil), codes.OK,
		"interval=-5s interval_used=1s"},
	{"load_reporting_interval: no duration",
		badLoadRequest(&lrspb.LoadStatsResponse{LoadReportingInterval: &durationpb.Duration{Seconds: 5, Nanos: -1}}, nil),
		codes.OK, "origin requests load reports too often"},
	{"load_reporting_interval: tiny",
		badLoadRequest(&lrspb.LoadStatsResponse{LoadReportingInterval: &durationpb.Duration{Nanos: 1}}, nil), codes.OK,
		"interval=1ns interval_used=1s"},
}

// badLoadRequest returns a request for the load of all clusters, with an encoded field appended.
func badLoadRequest(request *lrspb.LoadStatsResponse, field []byte) *lrspb.LoadStatsResponse {
	request.SendAllClusters = true
	request.ProtoReflect().SetUnknown(field)
	return request
}

// fromLoadOrigin has the origin send the row's request. The client's stream stays open.
func (row badInput) fromLoadOrigin(t *testing.T) {
	loadBubble(t, func(t *testing.T, o *relaytest.Origin, loads *loadOrigin) {
		r := start(t, o, "TENDER_LRS=aggregate")
		p := r.reports(loadNode("good"))
		st := loads.stream(t, 0)
		st.send(t, row.input.(*lrspb.LoadStatsResponse))
		sleep(5 * time.Second)
		code, want := codes.OK, "1s all"
		if loads.streamCount() == 2 {
			code, want = codes.Canceled, "" // clients are not asked for reports
			st = loads.stream(t, 1)
		}
		row.check(t, code, r.Log.String())
		expectEqual(t, "requested from the client", p.requestedReports(), want)
		st.requestReports(t, 10*time.Second)
		p.report(load("one", "z", 1, 0))
		sleep(10 * time.Second)
		got, _ := st.last()
		if !strings.HasPrefix(got, "one z:1+0 -1 in ") {
			t.Errorf("the origin got %q, want the load of one", got)
		}
		p.expectEnd()
	})
}
