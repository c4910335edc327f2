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

// SendAllClustersFeature is the client feature of clients that support send_all_clusters in a response (R140).
const SendAllClustersFeature = "envoy.lrs.supports_send_all_clusters"

// A Client is the client of a stream, as identified by its Node.
type Client struct {
	Label           string // text that identifies the Node in logs
	SendAllClusters bool   // the client has the SendAllClustersFeature

	// Group is the key of its node group. Node is the Node that the relay sends to the origin for the group. Both are
	// used only for sums.
	Group string
	Node  *corepb.Node

	// Revoked waits until the client is no longer authorized as that node, and returns the error that ends the stream.
	// It returns nil if ctx ends first. A nil Revoked means that the authorization does not end.
	Revoked func(ctx context.Context) error

	// Leave releases the resources of the client. The stream calls it once, when it ends. Required.
	Leave func()
}

// An Origin receives load reports.
type Origin interface {
	// OpenLoads opens a stream of load reports for one client. Its messages are of type [wire.Message]. It ends with
	// ctx. Errors are gRPC statuses.
	OpenLoads(ctx context.Context) (grpc.ClientStream, error)

	// ReportLoads reports the load of a group to the origin until ctx ends. Then it reports the remaining load and
	// returns.
	ReportLoads(ctx context.Context, g *Group)
}

// A Group sums the load reports of the clients of a node group, and keeps the origin's response to them (B.29). Its
// methods may be called from any goroutine.
type Group struct {
	// Read-only after construction.
	Key  string
	Node *corepb.Node // sent to the origin for the group
	log  *slog.Logger
	stop context.CancelFunc // ends the reports to the origin

	clients int // guarded by groups.mu

	// Guarded by mu.
	mu             sync.Mutex
	sum            *sum
	since          time.Time                // start of the interval that the sum covers
	response       *lrspb.LoadStatsResponse // of the origin; nil before the first
	listedResponse *lrspb.LoadStatsResponse // for clients without SendAllClustersFeature; nil if they receive none yet
	withoutSendAll int                      // number of clients without SendAllClustersFeature
	changed        chan struct{}            // closed when response or listedResponse changes
}

// Configure sets the response of the origin, which every client of the group receives from now on. The caller must not
// change the message afterwards.
func (g *Group) Configure(r *lrspb.LoadStatsResponse) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if proto.Equal(g.response, r) {
		return
	}
	if g.response == nil {
		g.since = time.Now() // clients start to count when they receive the response
	}
	g.response = r
	g.updateListed()
	g.wakeStreams()
}

// Take returns the sum of the load since the last call.
func (g *Group) Take() []*endpointpb.ClusterStats {
	g.mu.Lock()
	now := time.Now()
	report, omitted := g.sum.takeReport(now.Sub(g.since))
	g.since = now
	if before := g.listedResponse; g.updateListed() != before {
		g.wakeStreams()
	}
	g.mu.Unlock()
	if omitted > 0 {
		g.log.Warn("load report truncated at the size limit",
			slog.Int("omitted", omitted), slog.Int("max_bytes", maxReportBytes))
	}
	return report
}

// Return adds a report of Take that could not be sent back to the sum, so that the next report includes it.
func (g *Group) Return(report []*endpointpb.ClusterStats) {
	if len(report) == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sum.add(nil, report, true)
	g.since = g.since.Add(-report[0].GetLoadReportInterval().AsDuration())
}

// updateListed updates the response to clients without SendAllClustersFeature, and returns it. If the origin's response
// has send_all_clusters, it lists the clusters that clients of the group report (R140). g.mu must be held.
func (g *Group) updateListed() *lrspb.LoadStatsResponse {
	switch {
	case !g.response.GetSendAllClusters():
		g.listedResponse = g.response
	case g.withoutSendAll > 0:
		r := proto.CloneOf(g.response)
		r.SendAllClusters, r.Clusters = false, g.sum.names()
		if len(r.GetClusters()) == 0 {
			r = nil // a client may read only the first response, and would then never report a cluster
		}
		if !proto.Equal(g.listedResponse, r) {
			g.listedResponse = r
		}
	}
	return g.listedResponse
}

// wakeStreams makes streams check for a new response. g.mu must be held.
func (g *Group) wakeStreams() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// responseFor returns the response to a client, nil if there is none yet. The channel is closed when it may have
// changed. An unchanged response is the same pointer.
func (g *Group) responseFor(c *reporter) (*lrspb.LoadStatsResponse, <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.sendAll {
		return g.response, g.changed
	}
	return g.listedResponse, g.changed
}

// add adds a report of a client to the sum.
func (g *Group) add(c *reporter, report []*endpointpb.ClusterStats) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sum.add(c, report, g.response.GetReportEndpointGranularity())
}

// join records a new client.
func (g *Group) join(c *reporter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !c.sendAll {
		g.withoutSendAll++
		g.updateListed()
	}
}

// leave removes a client and its gauges.
func (g *Group) leave(c *reporter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !c.sendAll {
		g.withoutSendAll--
	}
	g.sum.removeGauges(c)
}

// groups contains all groups with a client that reports. Its methods may be called from any goroutine.
type groups struct {
	// Read-only after construction.
	origin Origin
	log    *slog.Logger

	reporting sync.WaitGroup // the goroutines that report to the origin

	// Guarded by mu.
	mu     sync.Mutex
	byKey  map[string]*Group // by Client.Group
	closed bool              // wait was called
}

// join adds a client to its group. The first client of a group starts the reports to the origin, and the last call of
// leave ends them. The caller must call leave once. It returns UNAVAILABLE after wait was called.
func (s *groups) join(client *Client, c *reporter) (g *Group, leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, status.Error(codes.Unavailable, "the relay has stopped")
	}
	g = s.byKey[client.Group]
	if g == nil {
		g = s.start(client.Group, client.Node)
	}
	g.clients++
	g.join(c)
	return g, func() { s.leave(g, c) }, nil
}

// start adds a group and starts its reports to the origin. mu must be held.
func (s *groups) start(key string, node *corepb.Node) *Group {
	ctx, stop := context.WithCancel(context.Background())
	g := &Group{
		Key: key, Node: node, log: s.log.With(slog.String("group", key)), stop: stop,
		sum: newSum(), since: time.Now(), changed: make(chan struct{}),
	}
	s.byKey[key] = g
	// Ends after the last client has called leave; wait waits for it.
	s.reporting.Go(func() { s.origin.ReportLoads(ctx, g) })
	return g
}

// leave removes a client from its group. The last client removes the group and ends its reports.
func (s *groups) leave(g *Group, c *reporter) {
	g.leave(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	if g.clients--; g.clients == 0 {
		delete(s.byKey, g.Key)
		g.stop()
	}
}

// wait waits for the last reports. Afterwards, join returns an error.
func (s *groups) wait() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.reporting.Wait()
}
