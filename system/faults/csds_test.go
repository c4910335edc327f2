package faults_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	adminpb "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	statuspb "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/xds/csds"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest"
)

// serveClientStatus serves the CSDS of gRPC and prints its address to say.
func serveClientStatus(say io.Writer) (stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	own, err := csds.NewClientStatusDiscoveryServer()
	if err != nil {
		return nil, err
	}
	s := grpc.NewServer()
	statuspb.RegisterClientStatusDiscoveryServiceServer(s, own)
	go func() { _ = s.Serve(l) }() // stop ends it
	fmt.Fprintln(say, "CSDS at", l.Addr())
	return func() { s.Stop(); own.Close() }, nil
}

// clientStatus reads the status of all clients from a CSDS. The result has a line for each type and name, with the
// accepted and the rejected version.
func clientStatus(t *testing.T, conn *grpc.ClientConn) map[string]string {
	t.Helper()
	resp, err := statuspb.NewClientStatusDiscoveryServiceClient(conn).FetchClientStatus(t.Context(), &statuspb.ClientStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	states := make(map[string]string)
	for _, c := range resp.GetConfig() {
		if strings.HasPrefix(c.GetClientScope(), "origin/") {
			continue // the relay's own subscriptions at its origin
		}
		for _, g := range c.GetGenericXdsConfigs() {
			accepted := g.GetConfigStatus() == statuspb.ConfigStatus_SYNCED || g.GetClientStatus() == adminpb.ClientResourceStatus_ACKED
			rejected := g.GetConfigStatus() == statuspb.ConfigStatus_ERROR || g.GetClientStatus() == adminpb.ClientResourceStatus_NACKED
			states[g.GetTypeUrl()+" "+g.GetName()] = fmt.Sprintf("accepted %v, rejected %v, version %q, rejected version %q",
				accepted, rejected, g.GetVersionInfo(), g.GetErrorState().GetVersionInfo())
		}
	}
	return states
}

// TestR141_GRPCSaysTheSame compares the CSDS of Tender with that of a gRPC client. Resources, versions and rejected
// resources must be the same.
func TestR141_GRPCSaysTheSame(t *testing.T) {
	t.Parallel()
	backend := relaytest.NewBackend(t)
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(relaytest.Cluster("service", "endpoints"), relaytest.Endpoints("endpoints", backend),
		relaytest.APIListener("api", "route"), relaytest.Route("route", []string{"*"}, "service"))
	r := run(t, relay.Options{}, "TENDER_ORIGIN="+o.Addr())
	client := newGRPCClient(t, "xds:///api", r.addr)
	_, address, _ := strings.Cut(client.AwaitLine(0, "CSDS at "), "CSDS at ")
	its, ours := connect(t, address), connect(t, r.admin)
	client.AwaitLine(0, "answered by "+backend)
	agree := func(when string, rejected int) {
		t.Helper()
		var diff string
		again := time.NewTicker(10 * time.Millisecond) // a CSDS can only be polled
		defer again.Stop()
		for deadline := time.Now().Add(relaytest.Patience); ; <-again.C {
			want, got := clientStatus(t, its), clientStatus(t, ours)
			n := strings.Count(fmt.Sprint(want), "rejected true")
			if diff = cmp.Diff(want, got); diff == "" && len(want) == 4 && n == rejected {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s, gRPC has rejected %d resources, want %d; status of gRPC (-) and Tender (+):\n%s", when, n, rejected, diff)
			}
		}
	}
	agree("once the client has a backend", 0)

	odd := relaytest.Cluster("service", "endpoints")
	odd.LbPolicy = clusterpb.Cluster_MAGLEV // gRPC does not support it
	o.Put(odd)
	agree("after a cluster that gRPC rejects", 1)
	o.Put(relaytest.Cluster("service", "endpoints"))
	agree("after a valid cluster", 0)
}
