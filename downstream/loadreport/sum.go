package loadreport

import (
	"maps"
	"slices"
	"time"

	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// maxReportBytes limits the size of the report of a group, and so the memory of its sum. By default, gRPC servers
// accept messages of 4 MiB.
const maxReportBytes = 4 << 20

// The largest encoded sizes of the parts of a report, without names.
const (
	clusterBytes  = 48
	localityBytes = 176
	endpointBytes = 64
	metricBytes   = 32
	dropBytes     = 24
)

// clusterRetention is the number of reports for which a cluster is kept after clients have stopped reporting it.
const clusterRetention = 10

// A sum is the sum of the load reports of a group's clients (B.29). It accumulates counters until the sum is taken. A
// gauge (requests in progress, active connections) is the sum of the newest values of all clients.
type sum struct {
	clusters map[clusterKey]*clusterLoad
	bytes    int // upper bound of the size of the encoded report
	omitted  int // parts of reports that exceeded maxReportBytes
}

// A clusterKey identifies a cluster in a sum.
type clusterKey struct{ name, service string }

// A clusterLoad is the load of a cluster.
type clusterLoad struct {
	dropped     uint64            // dropped requests of all categories, and of none
	drops       map[string]uint64 // dropped requests by category
	localities  map[localityKey]*localityLoad
	idleReports int // number of reports since a client last reported it
}

// A localityKey identifies a locality in a cluster.
type localityKey struct {
	region, zone, subZone string
	priority              uint32
}

// A localityLoad is the load of a locality. The counters are in stats.
type localityLoad struct {
	stats     *endpointpb.UpstreamLocalityStats
	metrics   map[string]*endpointpb.EndpointLoadMetricStats // by name
	endpoints map[string]*endpointLoad                       // by encoded address
	gauges    gauges
}

// An endpointLoad is the load of an endpoint. The counters are in stats.
type endpointLoad struct {
	stats   *endpointpb.UpstreamEndpointStats
	metrics map[string]*endpointpb.EndpointLoadMetricStats // by name
	gauges  gauges
}

// gauges are the gauges of a locality or an endpoint, summed over clients. They are zero if no client contributes.
type gauges struct{ inProgress, active uint64 }

// A reporter is one client of a group.
type reporter struct {
	sendAll bool               // the client has the SendAllClustersFeature (R140)
	gauges  map[*gauges]gauges // contributions of the client by sum; guarded by the lock of the sum
}

// newSum returns an empty sum.
func newSum() *sum { return &sum{clusters: make(map[clusterKey]*clusterLoad)} }

// add adds the report of a client. Its gauges replace those of the previous report of the client. Without endpoints,
// add ignores the load of endpoints. If c is nil, it ignores gauges.
func (s *sum) add(c *reporter, report []*endpointpb.ClusterStats, endpoints bool) {
	s.removeGauges(c)
	for _, stats := range report {
		cluster := s.clusterFor(stats)
		if cluster == nil {
			continue
		}
		cluster.idleReports = 0
		cluster.dropped += stats.GetTotalDroppedRequests()
		for _, d := range stats.GetDroppedRequests() {
			if _, known := cluster.drops[d.GetCategory()]; known || s.reserve(dropBytes+len(d.GetCategory())) {
				cluster.drops[d.GetCategory()] += d.GetDroppedCount()
			}
		}
		for _, l := range stats.GetUpstreamLocalityStats() {
			s.addLocality(c, cluster, l, endpoints)
		}
	}
}

// removeGauges removes the gauges of a client from the sum. c may be nil.
func (s *sum) removeGauges(c *reporter) {
	if c == nil {
		return
	}
	for sum, part := range c.gauges {
		sum.inProgress -= part.inProgress
		sum.active -= part.active
	}
	clear(c.gauges)
}

// addGauges adds gauges of a client to those of a locality or an endpoint. c may be nil.
func (c *reporter) addGauges(sum *gauges, values gauges) {
	if c == nil || values == (gauges{}) {
		return
	}
	if c.gauges == nil {
		c.gauges = make(map[*gauges]gauges)
	}
	sum.inProgress += values.inProgress
	sum.active += values.active
	part := c.gauges[sum]
	c.gauges[sum] = gauges{part.inProgress + values.inProgress, part.active + values.active}
}

// reserve reserves bytes of the report. It reports false if they would exceed maxReportBytes.
func (s *sum) reserve(bytes int) bool {
	if s.bytes+bytes > maxReportBytes {
		s.omitted++
		return false
	}
	s.bytes += bytes
	return true
}

// clusterFor returns the load of a cluster, which it adds if needed. It returns nil if the report is full.
func (s *sum) clusterFor(stats *endpointpb.ClusterStats) *clusterLoad {
	key := clusterKey{stats.GetClusterName(), stats.GetClusterServiceName()}
	c := s.clusters[key]
	if c == nil && s.reserve(key.bytes()) {
		c = &clusterLoad{drops: make(map[string]uint64), localities: make(map[localityKey]*localityLoad)}
		s.clusters[key] = c
	}
	return c
}

// bytes returns the maximum encoded size of a cluster without localities and drops.
func (k clusterKey) bytes() int { return clusterBytes + len(k.name) + len(k.service) }

// bytes returns the maximum encoded size of a locality without metrics and endpoints.
func (k localityKey) bytes() int { return localityBytes + len(k.region) + len(k.zone) + len(k.subZone) }

// addLocality adds the load of a locality to that of its cluster. It ignores a new locality that exceeds
// maxReportBytes.
func (s *sum) addLocality(c *reporter, to *clusterLoad, from *endpointpb.UpstreamLocalityStats, endpoints bool) {
	at := from.GetLocality()
	key := localityKey{at.GetRegion(), at.GetZone(), at.GetSubZone(), from.GetPriority()}
	l := to.localities[key]
	if l == nil {
		if !s.reserve(key.bytes()) {
			return
		}
		l = &localityLoad{
			stats:     newLocalityStats(from),
			metrics:   make(map[string]*endpointpb.EndpointLoadMetricStats),
			endpoints: make(map[string]*endpointLoad),
		}
		to.localities[key] = l
	}
	l.stats.TotalSuccessfulRequests += from.GetTotalSuccessfulRequests()
	l.stats.TotalErrorRequests += from.GetTotalErrorRequests()
	l.stats.TotalIssuedRequests += from.GetTotalIssuedRequests()
	l.stats.TotalNewConnections += from.GetTotalNewConnections()
	l.stats.TotalFailConnections += from.GetTotalFailConnections()
	l.stats.CpuUtilization = utilization(l.stats.GetCpuUtilization(), from.GetCpuUtilization())
	l.stats.MemUtilization = utilization(l.stats.GetMemUtilization(), from.GetMemUtilization())
	l.stats.ApplicationUtilization = utilization(l.stats.GetApplicationUtilization(), from.GetApplicationUtilization())
	s.addMetrics(l.metrics, from.GetLoadMetricStats())
	c.addGauges(&l.gauges, gauges{from.GetTotalRequestsInProgress(), from.GetTotalActiveConnections()})
	if endpoints {
		for _, e := range from.GetUpstreamEndpointStats() {
			s.addEndpoint(c, l, e)
		}
	}
}

// newLocalityStats returns the stats of a locality, with all counters at zero.
func newLocalityStats(of *endpointpb.UpstreamLocalityStats) *endpointpb.UpstreamLocalityStats {
	return &endpointpb.UpstreamLocalityStats{Locality: of.GetLocality(), Priority: of.GetPriority()}
}

// utilization returns the sum of two values. Either may be nil. It modifies neither.
func utilization(sum, more *endpointpb.UnnamedEndpointLoadMetricStats) *endpointpb.UnnamedEndpointLoadMetricStats {
	if more == nil {
		return sum
	}
	return &endpointpb.UnnamedEndpointLoadMetricStats{
		NumRequestsFinishedWithMetric: sum.GetNumRequestsFinishedWithMetric() + more.GetNumRequestsFinishedWithMetric(),
		TotalMetricValue:              sum.GetTotalMetricValue() + more.GetTotalMetricValue(),
	}
}

// addMetrics adds metrics of a locality or an endpoint. It ignores new metrics that exceed maxReportBytes.
func (s *sum) addMetrics(
	to map[string]*endpointpb.EndpointLoadMetricStats, from []*endpointpb.EndpointLoadMetricStats,
) {
	for _, m := range from {
		name := m.GetMetricName()
		sum := to[name]
		if sum == nil {
			if !s.reserve(metricBytes + len(name)) {
				continue
			}
			sum = &endpointpb.EndpointLoadMetricStats{MetricName: name}
			to[name] = sum
		}
		sum.NumRequestsFinishedWithMetric += m.GetNumRequestsFinishedWithMetric()
		sum.TotalMetricValue += m.GetTotalMetricValue()
	}
}

// addEndpoint adds the load of an endpoint to its locality. It ignores a new endpoint that exceeds maxReportBytes.
func (s *sum) addEndpoint(c *reporter, to *localityLoad, from *endpointpb.UpstreamEndpointStats) {
	address, err := proto.MarshalOptions{Deterministic: true}.Marshal(from.GetAddress())
	if err != nil {
		return // cannot happen, since the address was decoded
	}
	e := to.endpoints[string(address)]
	if e == nil {
		e = &endpointLoad{stats: newEndpointStats(from), metrics: make(map[string]*endpointpb.EndpointLoadMetricStats)}
		if !s.reserve(e.bytes()) {
			return
		}
		to.endpoints[string(address)] = e
	}
	e.stats.TotalSuccessfulRequests += from.GetTotalSuccessfulRequests()
	e.stats.TotalErrorRequests += from.GetTotalErrorRequests()
	e.stats.TotalIssuedRequests += from.GetTotalIssuedRequests()
	s.addMetrics(e.metrics, from.GetLoadMetricStats())
	c.addGauges(&e.gauges, gauges{inProgress: from.GetTotalRequestsInProgress()})
}

// newEndpointStats returns the stats of an endpoint, with all counters at zero. The metadata comes from the origin and
// is the same for every client.
func newEndpointStats(of *endpointpb.UpstreamEndpointStats) *endpointpb.UpstreamEndpointStats {
	return &endpointpb.UpstreamEndpointStats{Address: of.GetAddress(), Metadata: of.GetMetadata()}
}

// bytes returns the maximum encoded size of an endpoint without metrics.
func (e *endpointLoad) bytes() int { return endpointBytes + proto.Size(e.stats) }

// takeReport returns the sum of the reports since the last call, and resets the counters. window is the time since the
// last call. omitted is the number of parts of reports that exceeded maxReportBytes. The gauges stay in the sum.
func (s *sum) takeReport(window time.Duration) (report []*endpointpb.ClusterStats, omitted int) {
	omitted, s.bytes, s.omitted = s.omitted, 0, 0
	maps.DeleteFunc(s.clusters, func(key clusterKey, c *clusterLoad) (expired bool) {
		if c.idleReports == 0 || len(c.localities) > 0 {
			report = append(report, c.report(key, window))
		}
		c.dropped = 0
		clear(c.drops)
		maps.DeleteFunc(c.localities, s.resetLocality)
		c.idleReports++ // the size of the kept names fits, since the report was larger
		if expired = len(c.localities) == 0 && c.idleReports > clusterRetention; !expired {
			s.bytes += key.bytes()
		}
		return expired
	})
	return report, omitted
}

// report returns the load of a cluster for a report that covers window. The caller owns it afterwards.
func (c *clusterLoad) report(key clusterKey, window time.Duration) *endpointpb.ClusterStats {
	r := &endpointpb.ClusterStats{
		ClusterName:          key.name,
		ClusterServiceName:   key.service,
		TotalDroppedRequests: c.dropped,
		LoadReportInterval:   durationpb.New(window),
	}
	for category, n := range c.drops {
		dropped := &endpointpb.ClusterStats_DroppedRequests{Category: category, DroppedCount: n}
		r.DroppedRequests = append(r.DroppedRequests, dropped)
	}
	for _, l := range c.localities {
		r.UpstreamLocalityStats = append(r.UpstreamLocalityStats, l.report())
	}
	return r
}

// report returns the stats with gauges, metrics and endpoints. The caller owns them afterwards: resetLocality replaces
// them.
func (l *localityLoad) report() *endpointpb.UpstreamLocalityStats {
	l.stats.TotalRequestsInProgress, l.stats.TotalActiveConnections = l.gauges.inProgress, l.gauges.active
	for _, m := range l.metrics {
		l.stats.LoadMetricStats = append(l.stats.LoadMetricStats, m)
	}
	for _, e := range l.endpoints {
		e.stats.TotalRequestsInProgress = e.gauges.inProgress
		for _, m := range e.metrics {
			e.stats.LoadMetricStats = append(e.stats.LoadMetricStats, m)
		}
		l.stats.UpstreamEndpointStats = append(l.stats.UpstreamEndpointStats, e.stats)
	}
	return l.stats
}

// resetLocality sets the counters of a reported locality to zero. It reports whether the locality has no gauges and can
// be removed.
func (s *sum) resetLocality(key localityKey, l *localityLoad) bool {
	maps.DeleteFunc(l.endpoints, func(_ string, e *endpointLoad) bool {
		if e.gauges == (gauges{}) {
			return true
		}
		e.stats = newEndpointStats(e.stats)
		clear(e.metrics)
		s.bytes += e.bytes()
		return false
	})
	if l.gauges == (gauges{}) && len(l.endpoints) == 0 {
		return true
	}
	l.stats = newLocalityStats(l.stats)
	clear(l.metrics)
	s.bytes += key.bytes()
	return false
}

// names returns the sorted names of the clusters that are in the sum or were reported recently.
func (s *sum) names() []string {
	names := make(map[string]struct{}, len(s.clusters))
	for key := range s.clusters {
		names[key.name] = struct{}{}
	}
	return slices.Sorted(maps.Keys(names))
}
