package loadreport

import (
	"context"
	"log/slog"
	"sync"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// AllClustersFeature is the client feature of clients that can be asked for all their clusters without naming them
// (R140).
const AllClustersFeature = "envoy.lrs.supports_send_all_clusters"

// A Client is the client of a stream, by its Node.
type Client struct {
	Label       string // of its Node, for logs
	AllClusters bool   // it has the AllClustersFeature

	// Group is the key of its node group, Node the one that the origin takes the group for. Both are for sums only.
	Group string
	Node  *corepb.Node

	// Revoked waits until the client is no longer authorized to be that node, and returns the error that ends the
	// stream; nil if ctx ends first. A nil Revoked stands for a client that always is.
	Revoked func(ctx context.Context) error

	Leave func() // must be called when the stream ends
}

// An Origin receives load reports.
type Origin interface {
	// OpenLoads opens a stream of load reports, of [wire.Message], which ends with
	// ctx. Errors are gRPC statuses.
	OpenLoads(ctx context.Context) (grpc.ClientStream, error)

	// ReportLoads reports what the clients of a group report until ctx ends, and
	// then what is left.
	ReportLoads(ctx context.Context, g *Group)
}

// A Group is the clients of a node group that report load, and what the origin asks of them (B.29). Its methods may be
// called from any goroutine.
type Group struct {
	// Read-only after construction.
	Key  string
	Node *corepb.Node // that the origin takes the group for
	log  *slog.Logger
	stop context.CancelFunc // ends the reports to the origin

	clients int // guarded by groups.mu

	// Guarded by mu.
	mu      sync.Mutex
	sum     *sum
	since   time.Time                // when the sum began
	asked   *lrspb.LoadStatsResponse // by the origin; nil: nothing yet
	listed  *lrspb.LoadStatsResponse // the same, for clients without AllClustersFeature; nil: nothing yet
	legacy  int                      // clients without AllClustersFeature
	changed chan struct{}            // closed when asked or listed changes
}

// Ask has every client of the group asked for what the origin asks for, from now
// on. The message must not be changed any more.
func (g *Group) Ask(r *lrspb.LoadStatsResponse) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if proto.Equal(g.asked, r) {
		return
	}
	if g.asked == nil {
		g.since = time.Now() // when clients begin to count
	}
	g.asked = r
	g.list()
	g.wake()
}

// Take returns what clients reported since the last call.
func (g *Group) Take() []*endpointpb.ClusterStats {
	g.mu.Lock()
	now := time.Now()
	report, omitted := g.sum.takeReport(now.Sub(g.since))
	g.since = now
	if before := g.listed; g.list() != before {
		g.wake()
	}
	g.mu.Unlock()
	if omitted > 0 {
		g.log.Warn("load report truncated at the size limit", slog.Int("omitted", omitted), slog.Int("max_bytes", maxReportBytes))
	}
	return report
}

// Return takes back what Take returned and could not be sent: the next report has
// it.
func (g *Group) Return(report []*endpointpb.ClusterStats) {
	if len(report) == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sum.add(nil, report, true)
	g.since = g.since.Add(-report[0].GetLoadReportInterval().AsDuration())
}

// list updates what clients without AllClustersFeature are asked for: if the origin asks for all clusters, those are
// the ones that clients of the group report (R140). g.mu must be held.
func (g *Group) list() *lrspb.LoadStatsResponse {
	switch {
	case !g.asked.GetSendAllClusters():
		g.listed = g.asked
	case g.legacy > 0:
		r := proto.CloneOf(g.asked)
		r.SendAllClusters, r.Clusters = false, g.sum.names()
		if len(r.GetClusters()) == 0 {
			r = nil // clients that read a single response would never report anything
		}
		if !proto.Equal(g.listed, r) {
			g.listed = r
		}
	}
	return g.listed
}

// wake has streams ask their clients again. g.mu must be held.
func (g *Group) wake() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// ask returns what a client is to be asked for, nil if that is nothing yet, and a channel that is closed when it may
// have changed. An unchanged request is the same pointer.
func (g *Group) ask(c *reporter) (*lrspb.LoadStatsResponse, <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.all {
		return g.asked, g.changed
	}
	return g.listed, g.changed
}

func (g *Group) add(c *reporter, report []*endpointpb.ClusterStats) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sum.add(c, report, g.asked.GetReportEndpointGranularity())
}

func (g *Group) join(c *reporter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !c.all {
		g.legacy++
		g.list()
	}
}

func (g *Group) leave(c *reporter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !c.all {
		g.legacy--
	}
	g.sum.leave(c)
}

// groups has every group whose clients report. Its methods may be called from any goroutine.
type groups struct {
	// Read-only after construction.
	origin Origin
	log    *slog.Logger

	reporting sync.WaitGroup

	// Guarded by mu.
	mu     sync.Mutex
	byKey  map[string]*Group
	closed bool // wait was called
}

// join adds a client to its group. The first client of a group starts the reports to the origin, and the last one to
// leave ends them.
func (s *groups) join(client *Client, c *reporter) (g *Group, leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, status.Error(codes.Unavailable, "the relay has stopped")
	}
	g = s.byKey[client.Group]
	if g == nil {
		g = s.begin(client.Group, client.Node)
	}
	g.clients++
	g.join(c)
	return g, func() { s.leave(g, c) }, nil
}

func (s *groups) begin(key string, node *corepb.Node) *Group {
	ctx, stop := context.WithCancel(context.Background())
	g := &Group{
		Key: key, Node: node, log: s.log.With(slog.String("group", key)), stop: stop,
		sum: newSum(), since: time.Now(), changed: make(chan struct{}),
	}
	s.byKey[key] = g
	// Ends after the last client has left; awaited by wait.
	s.reporting.Go(func() { s.origin.ReportLoads(ctx, g) })
	return g
}

func (s *groups) leave(g *Group, c *reporter) {
	g.leave(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	if g.clients--; g.clients == 0 {
		delete(s.byKey, g.Key)
		g.stop()
	}
}

// wait waits for the last reports, and lets no group begin.
func (s *groups) wait() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.reporting.Wait()
}
