package relaytest

import (
	"context"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// A Runner is a relay, as this package sees one.
type Runner interface {
	Run(context.Context) error
	StopNow()
}

// Run runs a relay until tb ends, which fails if the relay ends with an error. Clients are
// not given time to leave.
func Run(tb TB, r Runner) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }() // awaited below
	tb.Cleanup(func() {
		r.StopNow()
		cancel()
		if err := <-ended; err != nil {
			tb.Errorf("relay ended: %v", err)
		}
	})
}

// NewBackend starts a gRPC server that answers health checks, as what clients find by
// xDS, until tb ends, and returns its address.
func NewBackend(tb TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("start backend: %v", err)
	}
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, health.NewServer())
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }() // awaited below
	tb.Cleanup(func() {
		s.Stop()
		if err := <-served; err != nil {
			tb.Errorf("backend ended: %v", err)
		}
	})
	return l.Addr().String()
}
