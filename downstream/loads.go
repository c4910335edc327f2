package downstream

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Loads is the load that the clients of one group report, and what the origin asks
// of them (B.29). Its methods may be called from any goroutine.
type LoadGroup struct {
	log *slog.Logger

	// Guarded by loadGroups.mu.
	clients int
	stop    context.CancelFunc // ends the reporting to the origin

	mu      sync.Mutex
	sum     *sum                     // guarded by mu
	since   time.Time                // guarded by mu; when the sum began
	asked   *lrspb.LoadStatsResponse // guarded by mu; by the origin; nil: nothing yet
	listed  *lrspb.LoadStatsResponse // guarded by mu; the same, for legacy clients; nil: nothing yet
	legacy  int                      // guarded by mu; clients that cannot be asked for all clusters
	changed chan struct{}            // guarded by mu; closed when what is asked changes
}

// Ask has every client of the group asked for what the origin asks for, from now
// on. The message must not be changed any more.
func (l *LoadGroup) Ask(r *lrspb.LoadStatsResponse) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if proto.Equal(l.asked, r) {
		return
	}
	if l.asked == nil {
		l.since = time.Now() // when clients begin to count
	}
	l.asked = r
	l.list()
	l.wake()
}

// Take returns what clients reported since the last call.
func (l *LoadGroup) Take() []*endpointpb.ClusterStats {
	l.mu.Lock()
	now := time.Now()
	report, left := l.sum.takeReport(now.Sub(l.since))
	l.since = now
	if before := l.listed; l.list() != before {
		l.wake()
	}
	l.mu.Unlock()
	if left > 0 {
		l.log.Warn("load of clients was left out: the report of their group is as large as it may be",
			slog.Int("left_out", left), slog.Int("max_bytes", maxLoadBytes))
	}
	return report
}

// Return takes back what Take returned and could not be sent: the next report has
// it.
func (l *LoadGroup) Return(report []*endpointpb.ClusterStats) {
	if len(report) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sum.add(nil, report, true)
	l.since = l.since.Add(-report[0].GetLoadReportInterval().AsDuration())
}

// list brings up to date what legacy clients are asked for: where the origin asks
// for all clusters, those that clients of the group report (R140). Locked.
func (l *LoadGroup) list() *lrspb.LoadStatsResponse {
	switch {
	case !l.asked.GetSendAllClusters():
		l.listed = l.asked
	case l.legacy > 0:
		r := proto.CloneOf(l.asked)
		r.SendAllClusters, r.Clusters = false, l.sum.names()
		if len(r.GetClusters()) == 0 {
			r = nil // an empty list would be the last word to clients that read but one
		}
		if !proto.Equal(l.listed, r) {
			l.listed = r
		}
	}
	return l.listed
}

// wake lets streams look at what is asked. Locked.
func (l *LoadGroup) wake() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// ask returns what a client is to be asked for, nil if that is nothing yet, and a
// channel that is closed when it may have changed. The message is the same for as
// long as it says the same.
func (l *LoadGroup) ask(c *reporter) (*lrspb.LoadStatsResponse, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.all {
		return l.asked, l.changed
	}
	return l.listed, l.changed
}

func (l *LoadGroup) add(c *reporter, report []*endpointpb.ClusterStats) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sum.add(c, report, l.asked.GetReportEndpointGranularity())
}

// names returns the names of the clusters that clients reported lately, sorted.
func (s *sum) names() []string {
	names := make(map[string]struct{}, len(s.clusters))
	for key := range s.clusters {
		names[key.name] = struct{}{}
	}
	return slices.Sorted(maps.Keys(names))
}

// loadGroups has the Loads of every group whose clients report. Its methods may be
// called from any goroutine.
type groups struct {
	origin    LoadOrigin
	reporting sync.WaitGroup

	mu     sync.Mutex
	byKey  map[string]*LoadGroup // guarded by mu
	closed bool                  // guarded by mu; wait was called
}

// join counts a client in. The first of a group has the reports to the origin
// begin, and the last to leave has them end.
func (g *groups) join(group Group, c *reporter, log *slog.Logger) (l *LoadGroup, leave func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, nil, status.Error(codes.Unavailable, "the relay has stopped")
	}
	l = g.byKey[group.Key]
	if l == nil {
		l = g.begin(group, log)
	}
	l.clients++
	l.join(c)
	return l, func() { g.leave(group.Key, l, c) }, nil
}

func (g *groups) begin(group Group, log *slog.Logger) *LoadGroup {
	ctx, stop := context.WithCancel(context.Background())
	l := &LoadGroup{
		log:     log.With(slog.String("group", group.Key)),
		stop:    stop,
		sum:     newLoadSum(),
		since:   time.Now(),
		changed: make(chan struct{}),
	}
	g.byKey[group.Key] = l
	// Ends after the last client has left; awaited by wait.
	g.reporting.Go(func() { g.origin.ReportLoads(ctx, group, l) })
	return l
}

func (g *groups) leave(key string, l *LoadGroup, c *reporter) {
	l.leave(c)
	g.mu.Lock()
	defer g.mu.Unlock()
	if l.clients--; l.clients == 0 {
		delete(g.byKey, key)
		l.stop()
	}
}

// wait returns when nothing is reported any more, and nothing will be.
func (g *groups) Wait() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.reporting.Wait()
}

func (l *LoadGroup) join(c *reporter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !c.all {
		l.legacy++
		l.list()
	}
}

func (l *LoadGroup) leave(c *reporter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !c.all {
		l.legacy--
	}
	l.sum.leave(c)
}
