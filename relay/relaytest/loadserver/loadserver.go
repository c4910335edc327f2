// Package loadserver has a load reporting service for tests.
//
// The package is not a stable API: programs that embed Tender use package relay.
package loadserver

import (
	"time"

	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/relay/relaytest/wait"
)

// A Server is a load reporting service that requests the load of all clusters every second, and keeps the received
// reports. The zero value is ready to use. Its methods may be called from any goroutine.
type Server struct {
	lrspb.UnimplementedLoadReportingServiceServer

	mon     wait.Monitor
	streams int                       // number of streams opened so far; guarded by mon
	reports []*lrspb.LoadStatsRequest // guarded by mon
}

// Register adds the service to a server.
func (l *Server) Register(r grpc.ServiceRegistrar) {
	lrspb.RegisterLoadReportingServiceServer(r, l)
}

// StreamLoadStats implements the service.
func (l *Server) StreamLoadStats(rpc lrspb.LoadReportingService_StreamLoadStatsServer) error {
	l.mon.Lock()
	l.streams++
	l.mon.Unlock()
	for first := true; ; first = false {
		report, err := rpc.Recv()
		if err != nil {
			return nil // the client has closed the stream
		}
		l.mon.Lock()
		l.reports = append(l.reports, report)
		l.mon.Changed()
		l.mon.Unlock()
		if !first {
			continue
		}
		if err := rpc.Send(&lrspb.LoadStatsResponse{SendAllClusters: true,
			LoadReportingInterval: durationpb.New(time.Second)}); err != nil {
			return err
		}
	}
}

// Await waits until met returns nil for all reports so far, in the order of arrival.
func (l *Server) Await(tb wait.TB, met func(reports []*lrspb.LoadStatsRequest) error) {
	tb.Helper()
	var unmet error
	if err := l.mon.Await(tb.Context(), func() bool { unmet = met(l.reports); return unmet == nil }); err != nil {
		tb.Fatalf("load reports: %v: %v", err, unmet)
	}
}

// Streams returns the number of streams opened so far.
func (l *Server) Streams() int {
	l.mon.Lock()
	defer l.mon.Unlock()
	return l.streams
}
