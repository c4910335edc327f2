package loadreport

import (
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestMain runs each property with 100 random inputs, times -rounds.
func TestMain(m *testing.M) { check.MainOfRapid(m, 100) }

// numbers are the values of reports by a text that identifies the value. Zero values are omitted.
type numbers map[string]float64

// add adds a value to that of the formatted text.
func (n numbers) add(value float64, format string, args ...any) {
	if value != 0 {
		n[fmt.Sprintf(format, args...)] += value
	}
}

// numbersOf returns the counters and the gauges of reports.
func numbersOf(reports ...*endpointpb.ClusterStats) (counts, levels numbers) {
	counts, levels = make(numbers), make(numbers)
	for _, c := range reports {
		cluster := c.GetClusterName() + "/" + c.GetClusterServiceName()
		counts.add(float64(c.GetTotalDroppedRequests()), "%s dropped", cluster)
		for _, d := range c.GetDroppedRequests() {
			counts.add(float64(d.GetDroppedCount()), "%s dropped as %s", cluster, d.GetCategory())
		}
		for _, l := range c.GetUpstreamLocalityStats() {
			at := l.GetLocality()
			place := fmt.Sprintf("%s %s/%s/%s@%d", cluster, at.GetRegion(), at.GetZone(), at.GetSubZone(), l.GetPriority())
			counts.add(float64(l.GetTotalSuccessfulRequests()), "%s successful", place)
			counts.add(float64(l.GetTotalErrorRequests()), "%s error", place)
			counts.add(float64(l.GetTotalIssuedRequests()), "%s issued", place)
			counts.add(float64(l.GetTotalNewConnections()), "%s new", place)
			counts.add(float64(l.GetTotalFailConnections()), "%s failed", place)
			levels.add(float64(l.GetTotalRequestsInProgress()), "%s in progress", place)
			levels.add(float64(l.GetTotalActiveConnections()), "%s active", place)
			for name, u := range map[string]*endpointpb.UnnamedEndpointLoadMetricStats{
				"cpu": l.GetCpuUtilization(), "mem": l.GetMemUtilization(), "app": l.GetApplicationUtilization(),
			} {
				counts.add(float64(u.GetNumRequestsFinishedWithMetric()), "%s with %s", place, name)
				counts.add(u.GetTotalMetricValue(), "%s %s", place, name)
			}
			counts.addMetrics(place, l.GetLoadMetricStats())
			for _, e := range l.GetUpstreamEndpointStats() {
				place := fmt.Sprintf("%s %s", place, e.GetAddress().GetSocketAddress().GetAddress())
				counts.add(float64(e.GetTotalSuccessfulRequests()), "%s successful", place)
				counts.add(float64(e.GetTotalErrorRequests()), "%s error", place)
				counts.add(float64(e.GetTotalIssuedRequests()), "%s issued", place)
				levels.add(float64(e.GetTotalRequestsInProgress()), "%s in progress", place)
				counts.addMetrics(place, e.GetLoadMetricStats())
			}
		}
	}
	return counts, levels
}

// addMetrics adds the metrics of a locality or an endpoint.
func (n numbers) addMetrics(place string, metrics []*endpointpb.EndpointLoadMetricStats) {
	for _, m := range metrics {
		n.add(float64(m.GetNumRequestsFinishedWithMetric()), "%s with metric %s", place, m.GetMetricName())
		n.add(m.GetTotalMetricValue(), "%s metric %s", place, m.GetMetricName())
	}
}

// merge adds all values of more.
func (n numbers) merge(more numbers) {
	for what, value := range more {
		n[what] += value
	}
}

// drawReport draws a report that may contain a locality or an endpoint twice.
func drawReport(t *rapid.T) []*endpointpb.ClusterStats {
	few := rapid.Uint64Range(0, 3) // small numbers are exact as floats
	name := rapid.SampledFrom([]string{"", "a", "b"})
	utilization := func() *endpointpb.UnnamedEndpointLoadMetricStats {
		if !rapid.Bool().Draw(t, "has utilization") {
			return nil
		}
		return &endpointpb.UnnamedEndpointLoadMetricStats{
			NumRequestsFinishedWithMetric: few.Draw(t, "with"), TotalMetricValue: float64(few.Draw(t, "value")),
		}
	}
	metrics := func() (out []*endpointpb.EndpointLoadMetricStats) {
		for range rapid.IntRange(0, 2).Draw(t, "metrics") {
			out = append(out, &endpointpb.EndpointLoadMetricStats{
				MetricName: name.Draw(t, "metric"), NumRequestsFinishedWithMetric: few.Draw(t, "with"), TotalMetricValue: float64(few.Draw(t, "value")),
			})
		}
		return out
	}
	endpoint := func() *endpointpb.UpstreamEndpointStats {
		return &endpointpb.UpstreamEndpointStats{
			Address: &corepb.Address{Address: &corepb.Address_SocketAddress{
				SocketAddress: &corepb.SocketAddress{Address: name.Draw(t, "address")},
			}},
			TotalSuccessfulRequests: few.Draw(t, "successful"), TotalErrorRequests: few.Draw(t, "error"),
			TotalIssuedRequests: few.Draw(t, "issued"), TotalRequestsInProgress: few.Draw(t, "in progress"),
			LoadMetricStats: metrics(),
		}
	}
	locality := func() *endpointpb.UpstreamLocalityStats {
		l := &endpointpb.UpstreamLocalityStats{
			Locality:                &corepb.Locality{Region: name.Draw(t, "region"), SubZone: name.Draw(t, "sub-zone")},
			Priority:                rapid.Uint32Range(0, 1).Draw(t, "priority"),
			TotalSuccessfulRequests: few.Draw(t, "successful"), TotalErrorRequests: few.Draw(t, "error"),
			TotalIssuedRequests: few.Draw(t, "issued"), TotalRequestsInProgress: few.Draw(t, "in progress"),
			TotalActiveConnections: few.Draw(t, "active"), TotalNewConnections: few.Draw(t, "new"), TotalFailConnections: few.Draw(t, "failed"),
			CpuUtilization: utilization(), MemUtilization: utilization(), ApplicationUtilization: utilization(),
			LoadMetricStats: metrics(),
		}
		for range rapid.IntRange(0, 2).Draw(t, "endpoints") {
			l.UpstreamEndpointStats = append(l.UpstreamEndpointStats, endpoint())
		}
		return l
	}
	var report []*endpointpb.ClusterStats
	for range rapid.IntRange(0, 2).Draw(t, "clusters") {
		c := &endpointpb.ClusterStats{
			ClusterName: name.Draw(t, "cluster"), ClusterServiceName: name.Draw(t, "service"), TotalDroppedRequests: few.Draw(t, "dropped"),
		}
		for range rapid.IntRange(0, 2).Draw(t, "drops") {
			c.DroppedRequests = append(c.DroppedRequests, &endpointpb.ClusterStats_DroppedRequests{
				Category: name.Draw(t, "category"), DroppedCount: few.Draw(t, "count"),
			})
		}
		for range rapid.IntRange(0, 2).Draw(t, "localities") {
			c.UpstreamLocalityStats = append(c.UpstreamLocalityStats, locality())
		}
		report = append(report, c)
	}
	return report
}

// TestB29_RandomReportsAddUpToTheTotal: for any reports in any order, taken at any time, the counters of all taken reports
// add up to those of all client reports. The gauges of each taken report are the sums of the newest values of all
// clients.
func TestB29_RandomReportsAddUpToTheTotal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sum, clients := newSum(), []*reporter{{}, {}, {}}
		counted, taken, stated := make(numbers), make(numbers), make([]numbers, len(clients))
		take := func() {
			room := sum.bytes
			report, left := sum.takeReport(time.Second)
			counts, levels := numbersOf(report...)
			taken.merge(counts)
			want := make(numbers)
			for _, of := range stated {
				want.merge(of)
			}
			if diff := cmp.Diff(want, levels); diff != "" || left != 0 {
				t.Fatalf("gauges, with %d parts omitted (-clients +report):\n%s", left, diff)
			}
			if size := proto.Size(&lrspb.LoadStatsRequest{ClusterStats: report}); size > room {
				t.Fatalf("report of %d bytes, want at most the estimate of %d", size, room)
			}
		}
		for range rapid.IntRange(0, 12).Draw(t, "steps") {
			i := rapid.IntRange(0, len(clients)-1).Draw(t, "client")
			switch rapid.SampledFrom([]string{"report", "report", "take", "leave", "return"}).Draw(t, "step") {
			case "report":
				report := drawReport(t)
				var counts numbers
				counts, stated[i] = numbersOf(report...)
				counted.merge(counts)
				sum.add(clients[i], report, true)
			case "take":
				take()
			case "leave":
				sum.removeGauges(clients[i])
				stated[i] = nil
			case "return":
				report, _ := sum.takeReport(time.Second)
				sum.add(nil, report, true)
			}
		}
		take()
		if diff := cmp.Diff(counted, taken); diff != "" {
			t.Fatalf("counters (-reported +taken):\n%s", diff)
		}
		check.OK(t, checkEmptyAfterLeave(sum, clients))
	})
}

// checkEmptyAfterLeave removes the clients from a sum, and returns an error if a cluster remains after
// clusterRetention.
func checkEmptyAfterLeave(sum *sum, clients []*reporter) error {
	for _, c := range clients {
		sum.removeGauges(c)
	}
	for range clusterRetention + 2 {
		sum.takeReport(time.Second)
	}
	if len(sum.clusters) > 0 || sum.bytes != 0 {
		return fmt.Errorf("%d clusters and %d bytes remain, want none", len(sum.clusters), sum.bytes)
	}
	return nil
}

// hugeReport returns a report of n clusters with numbers of the maximum encoded size. All names end with suffix.
func hugeReport(n int, suffix string) []*endpointpb.ClusterStats {
	const most = math.MaxUint64
	utilization := &endpointpb.UnnamedEndpointLoadMetricStats{NumRequestsFinishedWithMetric: most, TotalMetricValue: -1}
	metrics := []*endpointpb.EndpointLoadMetricStats{{MetricName: "metric" + suffix, NumRequestsFinishedWithMetric: most, TotalMetricValue: -1}}
	var report []*endpointpb.ClusterStats
	for i := range n {
		report = append(report, &endpointpb.ClusterStats{
			ClusterName: fmt.Sprint("cluster", i, suffix), ClusterServiceName: "service" + suffix, TotalDroppedRequests: most,
			DroppedRequests: []*endpointpb.ClusterStats_DroppedRequests{{Category: "category" + suffix, DroppedCount: most}},
			UpstreamLocalityStats: []*endpointpb.UpstreamLocalityStats{{
				Locality: &corepb.Locality{Region: "region" + suffix, Zone: "zone", SubZone: "sub-zone"}, Priority: math.MaxUint32,
				TotalSuccessfulRequests: most, TotalErrorRequests: most, TotalIssuedRequests: most, TotalRequestsInProgress: most,
				TotalActiveConnections: most, TotalNewConnections: most, TotalFailConnections: most,
				CpuUtilization: utilization, MemUtilization: utilization, ApplicationUtilization: utilization, LoadMetricStats: metrics,
				UpstreamEndpointStats: []*endpointpb.UpstreamEndpointStats{{
					Address:                 &corepb.Address{Address: &corepb.Address_Pipe{Pipe: &corepb.Pipe{Path: "/run/backend" + suffix}}},
					TotalSuccessfulRequests: most, TotalErrorRequests: most, TotalIssuedRequests: most, TotalRequestsInProgress: most,
					LoadMetricStats: metrics,
				}},
			}},
		})
	}
	return report
}

// TestB29_ReportIsBounded: a report never exceeds maxReportBytes. Omitted parts are counted, and existing parts are
// still summed. The next report has room again.
func TestB29_ReportIsBounded(t *testing.T) {
	suffix := strings.Repeat("x", 4<<10) // long names, so that few clusters fill a report
	first := clusterKey{"cluster0" + suffix, "service" + suffix}
	sum, c := newSum(), new(reporter)
	for range 2 {
		sum.add(c, hugeReport(200, suffix), true)
		sum.removeGauges(c)
		before, left := sum.clusters[first].dropped, sum.omitted
		sum.add(c, hugeReport(200, suffix), true)
		if after := sum.clusters[first].dropped; after == before || sum.omitted < 2*left || left == 0 {
			t.Errorf("dropped requests %d, then %d, want a change; omitted parts %d, then %d, want twice as many", before, after, left, sum.omitted)
		}
		sum.removeGauges(c)
		report, left := sum.takeReport(time.Hour)
		size := proto.Size(&lrspb.LoadStatsRequest{ClusterStats: report})
		if size > maxReportBytes || size < maxReportBytes-8*len(suffix) || left == 0 {
			t.Errorf("report of %d bytes with %d parts omitted, want nearly %d bytes and some parts omitted", size, left, maxReportBytes)
		}
		for range clusterRetention {
			sum.takeReport(time.Hour)
		}
	}
}

// TestB29_EndpointsOnlyIfAskedFor: the sum contains endpoints only if the origin requested endpoint granularity.
func TestB29_EndpointsOnlyIfAskedFor(t *testing.T) {
	for _, asked := range []bool{false, true} {
		sum := newSum()
		sum.add(new(reporter), hugeReport(1, ""), asked)
		report, _ := sum.takeReport(time.Second)
		if got := len(report[0].GetUpstreamLocalityStats()[0].GetUpstreamEndpointStats()); (got == 1) != asked {
			t.Errorf("endpoint granularity requested: %t, got %d endpoints", asked, got)
		}
	}
}

// TestB29_UnreportedClustersAreRemoved: a cluster that clients no longer report is not in the next report, and is
// removed after clusterRetention.
func TestB29_UnreportedClustersAreRemoved(t *testing.T) {
	sum, c := newSum(), new(reporter)
	names := func(report []*endpointpb.ClusterStats, _ int) map[string]bool {
		out := make(map[string]bool)
		for _, r := range report {
			out[r.GetClusterName()] = true
		}
		return out
	}
	busy := []*endpointpb.ClusterStats{{
		ClusterName:           "busy",
		UpstreamLocalityStats: []*endpointpb.UpstreamLocalityStats{{TotalRequestsInProgress: 1}},
	}}
	sum.add(c, busy, false)
	sum.add(nil, []*endpointpb.ClusterStats{{ClusterName: "idle"}}, false)
	for i, want := range []map[string]bool{{"busy": true, "idle": true}, {"busy": true}} {
		if got := names(sum.takeReport(time.Second)); !maps.Equal(got, want) {
			t.Errorf("report %d contains clusters %v, want %v", i+1, got, want)
		}
	}
	for range clusterRetention - 2 {
		sum.takeReport(time.Second)
	}
	if got := sum.names(); len(got) != 2 {
		t.Errorf("after %d reports, clusters %v are kept, want both", clusterRetention, got)
	}
	sum.takeReport(time.Second)
	if got := sum.names(); len(got) != 1 {
		t.Errorf("after %d reports, clusters %v are kept, want only the busy one", clusterRetention+1, got)
	}
}
