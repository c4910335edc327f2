package downstream

import (
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// maxLoadBytes bounds the sums of a group: what they take as one message, for
// which 4 MiB is what gRPC servers accept unless they are told otherwise. The same
// number keeps the memory of a group in bounds.
const maxLoadBytes = 4 << 20

// What the parts of a report take at most as bytes, names not counted.
const (
	clusterBytes  = 48
	localityBytes = 176
	endpointBytes = 64
	metricBytes   = 32
	dropBytes     = 24
)

// loadMemory is how many reports a cluster is remembered for that nobody mentions
// any more.
const clusterRetention = 10

// A loadSum is the sum of what the clients of a group report (B.29). What they
// count from one report to the next is added up until it is taken; of what is a
// level at the time of a report, requests in progress and active connections, each
// client's newest value is in the sum. It does no I/O.
type sum struct {
	clusters map[clusterKey]*clusterLoad
	bytes    int // what the sum takes in a report, at most
	omitted  int // parts of reports for which there was no room
}

type clusterKey struct{ name, service string }

type clusterLoad struct {
	dropped    uint64
	drops      map[string]uint64 // by category
	localities map[localityKey]*localityLoad
	silent     int // how many reports ago it was mentioned
}

type localityKey struct {
	region, zone, subZone string
	priority              uint32
}

// A localityLoad is the load of a locality. Its counters are those of stats.
type localityLoad struct {
	stats     *endpointpb.UpstreamLocalityStats
	metrics   map[string]*endpointpb.EndpointLoadMetricStats
	endpoints map[string]*endpointLoad // by address, as bytes
	level     *level
}

type endpointLoad struct {
	stats   *endpointpb.UpstreamEndpointStats
	metrics map[string]*endpointpb.EndpointLoadMetricStats
	level   *level
}

// A level is what a report states as of its time. Clients have a part in one only
// where theirs is not zero, so one that is zero is nobody's.
type level struct{ inProgress, active uint64 }

// A loadClient is one client of a group.
type reporter struct {
	all    bool             // it can be asked for all clusters (R140)
	levels map[*level]level // its part in them; belongs to the sum
}

func newLoadSum() *sum { return &sum{clusters: make(map[clusterKey]*clusterLoad)} }

// add adds a client's report, whose levels replace those of its last one. Endpoints
// are left out unless they were asked for. For a nil client, levels do not count.
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

// leave takes a client's part out of the levels.
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

// has makes values a client's part in a level, or adds them to it where one report
// has the same place twice.
func (c *reporter) has(sum *level, values level) {
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

// room reports whether there is room for so many bytes more, which it takes.
func (s *sum) room(bytes int) bool {
	if s.bytes+bytes > maxLoadBytes {
		s.omitted++
		return false
	}
	s.bytes += bytes
	return true
}

// cluster returns the load of a cluster, or nil if there is no room for it.
func (s *sum) cluster(stats *endpointpb.ClusterStats) *clusterLoad {
	key := clusterKey{stats.GetClusterName(), stats.GetClusterServiceName()}
	c := s.clusters[key]
	if c == nil && s.room(key.bytes()) {
		c = newClusterLoad()
		s.clusters[key] = c
	}
	return c
}

func newClusterLoad() *clusterLoad {
	return &clusterLoad{drops: make(map[string]uint64), localities: make(map[localityKey]*localityLoad)}
}

func (k clusterKey) bytes() int  { return clusterBytes + len(k.name) + len(k.service) }
func (k localityKey) bytes() int { return localityBytes + len(k.region) + len(k.zone) + len(k.subZone) }

func (s *sum) addLocality(c *reporter, to *clusterLoad, from *endpointpb.UpstreamLocalityStats, endpoints bool) {
	at := from.GetLocality()
	key := localityKey{at.GetRegion(), at.GetZone(), at.GetSubZone(), from.GetPriority()}
	l := to.localities[key]
	if l == nil {
		if !s.room(key.bytes()) {
			return
		}
		l = newLocalityLoad(at, key.priority, new(level))
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
	c.has(l.level, level{from.GetTotalRequestsInProgress(), from.GetTotalActiveConnections()})
	if endpoints {
		for _, e := range from.GetUpstreamEndpointStats() {
			s.addEndpoint(c, l, e)
		}
	}
}

func newLocalityLoad(at *corepb.Locality, priority uint32, level *level) *localityLoad {
	return &localityLoad{
		stats:     &endpointpb.UpstreamLocalityStats{Locality: at, Priority: priority},
		metrics:   make(map[string]*endpointpb.EndpointLoadMetricStats),
		endpoints: make(map[string]*endpointLoad),
		level:     level,
	}
}

// utilization returns the sum of two, of which either may be nil.
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
		e = newEndpointLoad(from, new(level))
		if !s.room(e.bytes()) {
			return
		}
		to.endpoints[string(address)] = e
	}
	e.stats.TotalSuccessfulRequests += from.GetTotalSuccessfulRequests()
	e.stats.TotalErrorRequests += from.GetTotalErrorRequests()
	e.stats.TotalIssuedRequests += from.GetTotalIssuedRequests()
	s.addMetrics(e.metrics, from.GetLoadMetricStats())
	c.has(e.level, level{inProgress: from.GetTotalRequestsInProgress()})
}

// newEndpointLoad returns one for the endpoint that stats are of, without what they
// count. The metadata is the origin's own, and the same in every client.
func newEndpointLoad(of *endpointpb.UpstreamEndpointStats, level *level) *endpointLoad {
	return &endpointLoad{
		stats:   &endpointpb.UpstreamEndpointStats{Address: of.GetAddress(), Metadata: of.GetMetadata()},
		metrics: make(map[string]*endpointpb.EndpointLoadMetricStats),
		level:   level,
	}
}

// bytes must be called before anything was added.
func (e *endpointLoad) bytes() int { return endpointBytes + proto.Size(e.stats) }

// take returns the sum of all that was reported since the last call, which was so
// long ago, and how many parts of reports are not in it for want of room. What is
// left are the levels.
func (s *sum) takeReport(window time.Duration) (report []*endpointpb.ClusterStats, left int) {
	before := s.clusters
	left = s.omitted
	s.clusters, s.bytes, s.omitted = make(map[clusterKey]*clusterLoad), 0, 0
	for key, c := range before {
		if c.silent == 0 || len(c.localities) > 0 {
			report = append(report, c.report(key, window))
		}
		s.keep(key, c)
	}
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

// report returns the stats, which belong to the caller from then on.
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

// keep keeps of a cluster that was reported what clients have levels in, and its
// name for a while. There is room: it was there before, with more.
func (s *sum) keep(key clusterKey, c *clusterLoad) {
	kept := newClusterLoad()
	kept.silent = c.silent + 1
	for at, l := range c.localities {
		if left := s.keepLocality(at, l); left != nil {
			kept.localities[at] = left
		}
	}
	if len(kept.localities) > 0 || kept.silent <= clusterRetention {
		s.bytes += key.bytes()
		s.clusters[key] = kept
	}
}

// keepLocality returns what is left of a locality, or nil.
func (s *sum) keepLocality(key localityKey, l *localityLoad) *localityLoad {
	kept := newLocalityLoad(l.stats.GetLocality(), key.priority, l.level)
	for address, e := range l.endpoints {
		if *e.level != (level{}) {
			left := newEndpointLoad(e.stats, e.level)
			s.bytes += left.bytes()
			kept.endpoints[address] = left
		}
	}
	if *l.level == (level{}) && len(kept.endpoints) == 0 {
		return nil
	}
	s.bytes += key.bytes()
	return kept
}
