package loadreport

import (
	"maps"
	"slices"
	"time"

	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// maxReportBytes bounds the report of a group, and so the memory of its sum: gRPC servers accept messages of 4 MiB by
// default.
const maxReportBytes = 4 << 20

// The largest encoded sizes of the parts of a report, without names.
const (
	clusterBytes  = 48
	localityBytes = 176
	endpointBytes = 64
	metricBytes   = 32
	dropBytes     = 24
)

// clusterRetention is how many reports a cluster is kept for that no client reports any more.
const clusterRetention = 10

// A sum is the sum of what the clients of a group report (B.29). Counters are added up until the sum is taken. Gauges
// (requests in progress, active connections) are the sum of each client's newest value.
type sum struct {
	clusters map[clusterKey]*clusterLoad
	bytes    int // of the encoded report, at most
	omitted  int // parts of reports for which there was no room
}

type clusterKey struct{ name, service string }

type clusterLoad struct {
	dropped    uint64
	drops      map[string]uint64 // by category
	localities map[localityKey]*localityLoad
	silent     int // how many reports ago a client reported it
}

type localityKey struct {
	region, zone, subZone string
	priority              uint32
}

// A localityLoad is the load of a locality. The counters are in stats.
type localityLoad struct {
	stats     *endpointpb.UpstreamLocalityStats
	metrics   map[string]*endpointpb.EndpointLoadMetricStats
	endpoints map[string]*endpointLoad // by address, as bytes
	level     level
}

type endpointLoad struct {
	stats   *endpointpb.UpstreamEndpointStats
	metrics map[string]*endpointpb.EndpointLoadMetricStats
	level   level
}

// A level has the gauges of a locality or an endpoint, summed over clients. Each client whose values are not zero has a
// part in it, so a level of zero has no client.
type level struct{ inProgress, active uint64 }

// A reporter is one client of a group.
type reporter struct {
	all    bool             // it has the AllClustersFeature (R140)
	levels map[*level]level // its parts; guarded as the sum is
}

func newSum() *sum { return &sum{clusters: make(map[clusterKey]*clusterLoad)} }

// add adds a client's report, whose gauges replace those of its previous one. It ignores endpoints unless they were asked
// for, and the gauges of a nil client.
func (s *sum) add(c *reporter, report []*endpointpb.ClusterStats, endpoints bool) {
	s.leave(c)
	for _, stats := range report {
		cluster := s.cluster(stats)
		if cluster == nil {
			continue
		}
		cluster.silent = 0
		cluster.dropped += stats.GetTotalDroppedRequests()
		for _, d := range stats.GetDroppedRequests() {
			if _, known := cluster.drops[d.GetCategory()]; known || s.room(dropBytes+len(d.GetCategory())) {
				cluster.drops[d.GetCategory()] += d.GetDroppedCount()
			}
		}
		for _, l := range stats.GetUpstreamLocalityStats() {
			s.addLocality(c, cluster, l, endpoints)
		}
	}
}

// leave removes a client's gauges.
func (s *sum) leave(c *reporter) {
	if c == nil {
		return
	}
	for sum, part := range c.levels {
		sum.inProgress -= part.inProgress
		sum.active -= part.active
	}
	clear(c.levels)
}

// addLevel adds gauges of a client to a level.
func (c *reporter) addLevel(sum *level, values level) {
	if c == nil || values == (level{}) {
		return
	}
	if c.levels == nil {
		c.levels = make(map[*level]level)
	}
	sum.inProgress += values.inProgress
	sum.active += values.active
	part := c.levels[sum]
	c.levels[sum] = level{part.inProgress + values.inProgress, part.active + values.active}
}

// room takes room for so many bytes more, and reports whether there was any.
func (s *sum) room(bytes int) bool {
	if s.bytes+bytes > maxReportBytes {
		s.omitted++
		return false
	}
	s.bytes += bytes
	return true
}

// cluster returns the load of a cluster, nil if there is no room for it.
func (s *sum) cluster(stats *endpointpb.ClusterStats) *clusterLoad {
	key := clusterKey{stats.GetClusterName(), stats.GetClusterServiceName()}
	c := s.clusters[key]
	if c == nil && s.room(key.bytes()) {
		c = &clusterLoad{drops: make(map[string]uint64), localities: make(map[localityKey]*localityLoad)}
		s.clusters[key] = c
	}
	return c
}

func (k clusterKey) bytes() int { return clusterBytes + len(k.name) + len(k.service) }

func (k localityKey) bytes() int { return localityBytes + len(k.region) + len(k.zone) + len(k.subZone) }

func (s *sum) addLocality(c *reporter, to *clusterLoad, from *endpointpb.UpstreamLocalityStats, endpoints bool) {
	at := from.GetLocality()
	key := localityKey{at.GetRegion(), at.GetZone(), at.GetSubZone(), from.GetPriority()}
	l := to.localities[key]
	if l == nil {
		if !s.room(key.bytes()) {
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
	c.addLevel(&l.level, level{from.GetTotalRequestsInProgress(), from.GetTotalActiveConnections()})
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

// utilization returns the sum of two values, which may be nil.
func utilization(sum, more *endpointpb.UnnamedEndpointLoadMetricStats) *endpointpb.UnnamedEndpointLoadMetricStats {
	if more == nil {
		return sum
	}
	return &endpointpb.UnnamedEndpointLoadMetricStats{
		NumRequestsFinishedWithMetric: sum.GetNumRequestsFinishedWithMetric() + more.GetNumRequestsFinishedWithMetric(),
		TotalMetricValue:              sum.GetTotalMetricValue() + more.GetTotalMetricValue(),
	}
}

func (s *sum) addMetrics(to map[string]*endpointpb.EndpointLoadMetricStats, from []*endpointpb.EndpointLoadMetricStats) {
	for _, m := range from {
		name := m.GetMetricName()
		sum := to[name]
		if sum == nil {
			if !s.room(metricBytes + len(name)) {
				continue
			}
			sum = &endpointpb.EndpointLoadMetricStats{MetricName: name}
			to[name] = sum
		}
		sum.NumRequestsFinishedWithMetric += m.GetNumRequestsFinishedWithMetric()
		sum.TotalMetricValue += m.GetTotalMetricValue()
	}
}

func (s *sum) addEndpoint(c *reporter, to *localityLoad, from *endpointpb.UpstreamEndpointStats) {
	address, err := proto.MarshalOptions{Deterministic: true}.Marshal(from.GetAddress())
	if err != nil {
		return // what was decoded can be encoded
	}
	e := to.endpoints[string(address)]
	if e == nil {
		e = &endpointLoad{stats: newEndpointStats(from), metrics: make(map[string]*endpointpb.EndpointLoadMetricStats)}
		if !s.room(e.bytes()) {
			return
		}
		to.endpoints[string(address)] = e
	}
	e.stats.TotalSuccessfulRequests += from.GetTotalSuccessfulRequests()
	e.stats.TotalErrorRequests += from.GetTotalErrorRequests()
	e.stats.TotalIssuedRequests += from.GetTotalIssuedRequests()
	s.addMetrics(e.metrics, from.GetLoadMetricStats())
	c.addLevel(&e.level, level{inProgress: from.GetTotalRequestsInProgress()})
}

// newEndpointStats returns the stats of an endpoint, with all counters at zero. The metadata comes from the origin, and is
// the same in every client.
func newEndpointStats(of *endpointpb.UpstreamEndpointStats) *endpointpb.UpstreamEndpointStats {
	return &endpointpb.UpstreamEndpointStats{Address: of.GetAddress(), Metadata: of.GetMetadata()}
}

// bytes returns the size of an endpoint to which nothing was added yet.
func (e *endpointLoad) bytes() int { return endpointBytes + proto.Size(e.stats) }

// takeReport returns the sum of all that was reported since the last call, a window ago, and how many parts of reports
// had no room in it. The gauges stay in the sum.
func (s *sum) takeReport(window time.Duration) (report []*endpointpb.ClusterStats, left int) {
	left, s.bytes, s.omitted = s.omitted, 0, 0
	maps.DeleteFunc(s.clusters, func(key clusterKey, c *clusterLoad) (gone bool) {
		if c.silent == 0 || len(c.localities) > 0 {
			report = append(report, c.report(key, window))
		}
		c.dropped = 0
		clear(c.drops)
		maps.DeleteFunc(c.localities, s.emptied)
		c.silent++ // its name is kept for a while, for which there is room, as there was for more
		if gone = len(c.localities) == 0 && c.silent > clusterRetention; !gone {
			s.bytes += key.bytes()
		}
		return gone
	})
	return report, left
}

func (c *clusterLoad) report(key clusterKey, window time.Duration) *endpointpb.ClusterStats {
	r := &endpointpb.ClusterStats{
		ClusterName:          key.name,
		ClusterServiceName:   key.service,
		TotalDroppedRequests: c.dropped,
		LoadReportInterval:   durationpb.New(window),
	}
	for category, n := range c.drops {
		r.DroppedRequests = append(r.DroppedRequests, &endpointpb.ClusterStats_DroppedRequests{Category: category, DroppedCount: n})
	}
	for _, l := range c.localities {
		r.UpstreamLocalityStats = append(r.UpstreamLocalityStats, l.report())
	}
	return r
}

// report returns the stats, which the caller owns from then on.
func (l *localityLoad) report() *endpointpb.UpstreamLocalityStats {
	l.stats.TotalRequestsInProgress, l.stats.TotalActiveConnections = l.level.inProgress, l.level.active
	for _, m := range l.metrics {
		l.stats.LoadMetricStats = append(l.stats.LoadMetricStats, m)
	}
	for _, e := range l.endpoints {
		e.stats.TotalRequestsInProgress = e.level.inProgress
		for _, m := range e.metrics {
			e.stats.LoadMetricStats = append(e.stats.LoadMetricStats, m)
		}
		l.stats.UpstreamEndpointStats = append(l.stats.UpstreamEndpointStats, e.stats)
	}
	return l.stats
}

// emptied sets the counters of a locality that was reported to zero, and reports whether no gauge is left in it.
func (s *sum) emptied(key localityKey, l *localityLoad) bool {
	maps.DeleteFunc(l.endpoints, func(_ string, e *endpointLoad) bool {
		if e.level == (level{}) {
			return true
		}
		e.stats = newEndpointStats(e.stats)
		clear(e.metrics)
		s.bytes += e.bytes()
		return false
	})
	if l.level == (level{}) && len(l.endpoints) == 0 {
		return true
	}
	l.stats = newLocalityStats(l.stats)
	clear(l.metrics)
	s.bytes += key.bytes()
	return false
}

// names returns the names of the clusters that are in the sum or were reported lately, sorted.
func (s *sum) names() []string {
	names := make(map[string]struct{}, len(s.clusters))
	for key := range s.clusters {
		names[key.name] = struct{}{}
	}
	return slices.Sorted(maps.Keys(names))
}
