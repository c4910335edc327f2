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

// serveClientStatus serves gRPC's own CSDS, and says where.
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
	go func() { _ = s.Serve(l) }() // ended by stop
	fmt.Fprintln(say, "CSDS at", l.Addr())
	return func() { s.Stop(); own.Close() }, nil
}

// clientStatus asks for all that a CSDS has of clients, and returns a line for each resource, with
// the version that the client has, and that which it refused.
func clientStatus(t *testing.T, conn *grpc.ClientConn) map[string]string {
	t.Helper()
	resp, err := statuspb.NewClientStatusDiscoveryServiceClient(conn).FetchClientStatus(t.Context(), &statuspb.ClientStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	states := make(map[string]string)
	for _, c := range resp.GetConfig() {
		if strings.HasPrefix(c.GetClientScope(), "origin/") {
			continue // what the relay says of itself
		}
		for _, g := range c.GetGenericXdsConfigs() {
			accepted := g.GetConfigStatus() == statuspb.ConfigStatus_SYNCED || g.GetClientStatus() == adminpb.ClientResourceStatus_ACKED
			refused := g.GetConfigStatus() == statuspb.ConfigStatus_ERROR || g.GetClientStatus() == adminpb.ClientResourceStatus_NACKED
			states[g.GetTypeUrl()+" "+g.GetName()] = fmt.Sprintf("accepted %v, refused %v, version %q, refused version %q",
				accepted, refused, g.GetVersionInfo(), g.GetErrorState().GetVersionInfo())
		}
	}
	return states
}

// TestR141_GRPCSaysTheSame holds what Tender says of a gRPC client to what that says itself: which
// resources it has, at which versions, and what it refused.
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
	agree := func(when string, refused int) {
		t.Helper()
		var diff string
		for deadline := time.Now().Add(relaytest.Patience); ; time.Sleep(10 * time.Millisecond) { // between two questions
			want, got := clientStatus(t, its), clientStatus(t, ours)
			n := strings.Count(fmt.Sprint(want), "refused true")
			if diff = cmp.Diff(want, got); diff == "" && len(want) == 4 && n == refused {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s, gRPC has refused %d resources, want %d; gRPC (-) and Tender (+) say:\n%s", when, n, refused, diff)
			}
		}
	}
	agree("once the client has a backend", 0)

	odd := relaytest.Cluster("service", "endpoints")
	odd.LbPolicy = clusterpb.Cluster_MAGLEV // which gRPC does not have
	o.Put(odd)
	agree("after a cluster that gRPC refuses", 1)
	o.Put(relaytest.Cluster("service", "endpoints"))
	agree("after one that it accepts again", 0)
}
