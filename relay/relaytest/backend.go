package relaytest

import (
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/xdstender/tender/relay/relaytest/wait"
)

// NewBackend starts a gRPC server with a health service, as a backend that clients discover by xDS. It stops when tb
// ends. NewBackend returns its address.
func NewBackend(tb wait.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("start backend: %v", err)
	}
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, health.NewServer())
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }() // awaited below
	wait.Cleanup(tb, func() {
		s.Stop()
		if err := <-served; err != nil {
			tb.Errorf("backend ended: %v", err)
		}
	})
	return l.Addr().String()
}
