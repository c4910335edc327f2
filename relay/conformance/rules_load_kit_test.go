package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/relay/relaytest"
)

// sendsAll is the feature of clients that accept send_all_clusters.
const sendsAll = "envoy.lrs.supports_send_all_clusters"

// A loadOrigin is an origin's load reporting service. It records requests and sends responses of the test.
type loadOrigin struct {
	lrspb.UnimplementedLoadReportingServiceServer

	mu      sync.Mutex
	streams []*loadStream // guarded by mu
	refuse  error         // guarded by mu; status of new streams, if any
	paused  bool          // guarded by mu; new streams read only one message
}

// A loadStream is one stream of the origin.
type loadStream struct {
	end    chan error  // status that the test ends the stream with
	header metadata.MD // of the request

	mu        sync.Mutex
	requested []*lrspb.LoadStatsRequest // guarded by mu
	at        []time.Time               // guarded by mu; times of requested
	closed    bool                      // guarded by mu; the relay has ended its side
	sendMsg   func(*lrspb.LoadStatsResponse) error
}

// StreamLoadStats serves a stream until the relay or the test ends it.
func (o *loadOrigin) StreamLoadStats(rpc lrspb.LoadReportingService_StreamLoadStatsServer) error {
	header, _ := metadata.FromIncomingContext(rpc.Context())
	st := &loadStream{end: make(chan error, 1), header: header, sendMsg: rpc.Send}
	o.mu.Lock()
	o.streams = append(o.streams, st)
	refuse, paused := o.refuse, o.paused
	o.mu.Unlock()
	if refuse != nil {
		return refuse
	}
	done := make(chan struct{})
	go func() { // returns when the stream ends
		defer close(done)
		for {
			r, err := rpc.Recv()
			st.mu.Lock()
			if err != nil {
				st.closed = true
				st.mu.Unlock()
				return
			}
			st.requested, st.at = append(st.requested, r), append(st.at, time.Now())
			st.mu.Unlock()
			if paused {
				<-rpc.Context().Done()
			}
		}
	}()
	select {
	case <-done:
		return nil
	case err := <-st.end:
		return err
	}
}

// refusestreams ends new streams with err, or accepts them if err is nil.
func (o *loadOrigin) refusestreams(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.refuse = err
}

// pauseReading determines whether new streams stop reading after one message.
func (o *loadOrigin) pauseReading(paused bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.paused = paused
}

func (o *loadOrigin) streamCount() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.streams)
}

// stream returns the n-th stream, from 0, once all goroutines are idle.
func (o *loadOrigin) stream(t testing.TB, n int) *loadStream {
	t.Helper()
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	if n >= len(o.streams) {
		t.Fatalf("the origin had %d streams of load reports, want at least %d", len(o.streams), n+1)
	}
	return o.streams[n]
}

func (s *loadStream) requests() []*lrspb.LoadStatsRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requested)
}

// ended reports whether the relay has ended its side.
func (s *loadStream) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// last returns the latest report, as showLoad formats it, and its time.
func (s *loadStream) last() (string, time.Time) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.requested) < 2 {
		return "nothing", time.Time{}
	}
	return showLoad(s.requested[len(s.requested)-1]), s.at[len(s.at)-1]
}

// requestReports has the origin request the load of the clusters, or of all clusters if there are none.
func (s *loadStream) requestReports(t testing.TB, interval time.Duration, clusters ...string) {
	t.Helper()
	s.send(t, &lrspb.LoadStatsResponse{
		SendAllClusters: len(clusters) == 0, Clusters: clusters, LoadReportingInterval: durationpb.New(interval),
	})
}

func (s *loadStream) send(t testing.TB, r *lrspb.LoadStatsResponse) {
	t.Helper()
	if err := s.sendMsg(r); err != nil {
		t.Fatalf("send to the relay: %v", err)
	}
	synctest.Wait()
}

// showLoad formats a report as clusters with "sub-zone:issued+in progress" for each locality, "-dropped", and the
// interval.
func showLoad(r *lrspb.LoadStatsRequest) string {
	var out []string
	for _, c := range r.GetClusterStats() {
		words := []string{c.GetClusterName()}
		for _, l := range c.GetUpstreamLocalityStats() {
			words = append(words, fmt.Sprintf("%s:%d+%d", l.GetLocality().GetSubZone(), l.GetTotalIssuedRequests(),
				l.GetTotalRequestsInProgress()))
		}
		slices.Sort(words[1:])
		words = append(words, fmt.Sprintf("-%d in %v", c.GetTotalDroppedRequests(),
			c.GetLoadReportInterval().AsDuration().Round(time.Millisecond)))
		out = append(out, strings.Join(words, " "))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// load returns a cluster's load with one locality. Its interval is wrong, as a client's may be.
func load(cluster, subZone string, issued, inProgress uint64) *endpointpb.ClusterStats {
	return &endpointpb.ClusterStats{
		ClusterName: cluster, LoadReportInterval: durationpb.New(time.Hour), TotalDroppedRequests: 1,
		UpstreamLocalityStats: []*endpointpb.UpstreamLocalityStats{{
			Locality: &corepb.Locality{SubZone: subZone}, TotalIssuedRequests: issued, TotalRequestsInProgress: inProgress,
		}},
	}
}

// A loadPeer is a client that reports load.
type loadPeer struct {
	t      testing.TB
	rpc    lrspb.LoadReportingService_StreamLoadStatsClient
	cancel context.CancelFunc

	mu        sync.Mutex
	responses []*lrspb.LoadStatsResponse // guarded by mu
	end       error                      // guarded by mu; status of the stream, nil while it is open
}

// loadNode returns the node of a client that accepts send_all_clusters.
func loadNode(id string) *corepb.Node {
	n := relaytest.EnvoyNode(id)
	n.ClientFeatures = []string{sendsAll}
	return n
}

// reports opens a stream of load reports on a new connection, with the headers. If n is not nil, it sends the
// first request.
func (r *running) reports(n *corepb.Node, header ...metadata.MD) *loadPeer {
	r.t.Helper()
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(r.t.Context(), metadata.Join(header...)))
	rpc, err := lrspb.NewLoadReportingServiceClient(r.Conn()).StreamLoadStats(ctx, grpc.WaitForReady(true))
	if err != nil {
		r.t.Fatal(err)
	}
	p := &loadPeer{t: r.t, rpc: rpc, cancel: cancel}
	received := make(chan struct{})
	go func() { // returns when the stream ends, before the test does
		defer close(received)
		for {
			response, err := rpc.Recv()
			p.mu.Lock()
			if err != nil {
				p.end = err
				p.mu.Unlock()
				return
			}
			p.responses = append(p.responses, response)
			p.mu.Unlock()
		}
	}()
	r.t.Cleanup(func() {
		cancel()
		<-received
	})
	if n != nil {
		p.send(&lrspb.LoadStatsRequest{Node: n})
	}
	return p
}

func (p *loadPeer) send(r *lrspb.LoadStatsRequest) {
	p.t.Helper()
	if err := p.rpc.Send(r); err != nil && !errors.Is(err, io.EOF) { // expectEnd checks the status
		p.t.Fatalf("send load report: %v", err)
	}
	synctest.Wait()
}

func (p *loadPeer) report(stats ...*endpointpb.ClusterStats) {
	p.t.Helper()
	p.send(&lrspb.LoadStatsRequest{ClusterStats: stats})
}

// disconnect cancels the stream.
func (p *loadPeer) disconnect() {
	p.cancel()
	synctest.Wait()
}

// requestedReports formats all responses so far, each as the interval and the clusters.
func (p *loadPeer) requestedReports() string {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for _, response := range p.responses {
		clusters := strings.Join(response.GetClusters(), "+")
		if response.GetSendAllClusters() {
			clusters += "all"
		}
		out = append(out, fmt.Sprintf("%v %s", response.GetLoadReportingInterval().AsDuration(), clusters))
	}
	return strings.Join(out, ", ")
}

// loadBubble runs a test with an origin that accepts load reports, in a bubble.
func loadBubble(t *testing.T, f func(t *testing.T, o *relaytest.Origin, loads *loadOrigin)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		loads := new(loadOrigin)
		f(t, relaytest.NewOrigin(t, relaytest.OriginOptions{
			Memory:   true,
			Register: func(r grpc.ServiceRegistrar) { lrspb.RegisterLoadReportingServiceServer(r, loads) },
		}), loads)
	})
}

// expectEqual fails the test if got is not want.
func expectEqual(t testing.TB, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\n got %s\nwant %s", what, got, want)
	}
}

// expectEnd fails the test unless the stream has ended with this code, or is open if there is none.
func (p *loadPeer) expectEnd(want ...codes.Code) {
	p.t.Helper()
	got := []codes.Code{}
	if code, ended := p.code(); ended {
		got = append(got, code)
	}
	if !slices.Equal(got, want) {
		p.t.Errorf("the stream ended with %v, want %v", got, want)
	}
}

// code returns the status code of the stream if it has ended.
func (p *loadPeer) code() (code codes.Code, ended bool) {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if errors.Is(p.end, io.EOF) {
		return codes.OK, true
	}
	return status.Code(p.end), p.end != nil
}
