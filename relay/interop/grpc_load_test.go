package interop_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/relay/relaytest"
)

// A loadLedger is a load reporting service that asks for all clusters each second,
// and adds up what it is told.
type loadLedger struct {
	lrspb.UnimplementedLoadReportingServiceServer

	mu      sync.Mutex
	nodes   []string      // guarded by mu; ids, in the order of the streams
	totals  loadTotals    // guarded by mu
	strange []string      // guarded by mu; reports of what there is not
	changed chan struct{} // guarded by mu; closed at the next report
}

type loadTotals struct{ successful, failed, issued, inProgress uint64 }

func (l *loadLedger) StreamLoadStats(rpc lrspb.LoadReportingService_StreamLoadStatsServer) error {
	for first := true; ; first = false {
		r, err := rpc.Recv()
		if err != nil {
			return nil // the client has left
		}
		l.enter(r)
		if !first {
			continue
		}
		ask := &lrspb.LoadStatsResponse{SendAllClusters: true, LoadReportingInterval: durationpb.New(time.Second)}
		if err := rpc.Send(ask); err != nil {
			return err
		}
	}
}

func (l *loadLedger) enter(r *lrspb.LoadStatsRequest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := r.GetNode(); n != nil {
		l.nodes = append(l.nodes, n.GetId())
	}
	here := &corepb.Locality{Region: "region", Zone: "zone"} // of relaytest.Endpoints
	l.totals.inProgress = 0
	for _, c := range r.GetClusterStats() {
		for _, s := range c.GetUpstreamLocalityStats() {
			l.totals.successful += s.GetTotalSuccessfulRequests()
			l.totals.failed += s.GetTotalErrorRequests()
			l.totals.issued += s.GetTotalIssuedRequests()
			l.totals.inProgress += s.GetTotalRequestsInProgress()
			took := c.GetLoadReportInterval().AsDuration()
			if c.GetClusterName() != "service" || c.GetClusterServiceName() != "service-endpoints" || !proto.Equal(s.GetLocality(), here) || took <= 0 {
				l.strange = append(l.strange, c.String())
			}
		}
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

// await waits until the totals are these.
func (l *loadLedger) await(t *testing.T, want loadTotals) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), relaytest.Patience)
	defer cancel()
	for {
		l.mu.Lock()
		got, changed := l.totals, l.changed
		l.mu.Unlock()
		if got == want {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("the origin was told %+v, want %+v", got, want)
		}
	}
}

// TestInterop_LoadReports has two real gRPC clients report their load through the
// relay (lrs_server: self) to an origin that adds it up: every RPC is counted once
// (B.29, R139).
func TestInterop_LoadReports(t *testing.T) {
	for mode, nodes := range map[string][]string{
		"aggregate":   {"tender/test"},
		"passthrough": {"first", "second"},
	} {
		t.Run(mode, func(t *testing.T) {
			noLeaks(t)
			ledger := &loadLedger{changed: make(chan struct{})}
			cluster := relaytest.Cluster("service", "service-endpoints")
			cluster.LrsServer = &corepb.ConfigSource{
				ResourceApiVersion:    corepb.ApiVersion_V3,
				ConfigSourceSpecifier: &corepb.ConfigSource_Self{Self: &corepb.SelfConfigSource{}},
			}
			backend := relaytest.NewBackend(t)
			o := relaytest.NewControlPlane(t, relaytest.LinearCaches, nil, grpcWorld(backend)...)
			o.Put(cluster)
			o.Register = func(r grpc.ServiceRegistrar) { lrspb.RegisterLoadReportingServiceServer(r, ledger) }
			o.Restart()
			r := relayOf(t, o.RelayOptions(), "TENDER_LRS="+mode)

			first, second := newGRPCPeer(t, r.Target, "first"), newGRPCPeer(t, r.Target, "second")
			for range 30 {
				first.call()
			}
			for range 12 {
				second.call()
			}
			ledger.await(t, loadTotals{successful: 42, issued: 42})
			for range 5 {
				first.call()
				second.call()
			}
			ledger.await(t, loadTotals{successful: 52, issued: 52})

			ledger.mu.Lock()
			defer ledger.mu.Unlock()
			slices.Sort(ledger.nodes)
			if !slices.Equal(ledger.nodes, nodes) || len(ledger.strange) > 0 {
				t.Errorf("the origin had streams of %v, want %v; reports that it does not know: %v", ledger.nodes, nodes, ledger.strange)
			}
		})
	}
}
