package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routepb "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/cmd/tender/get"
	"github.com/xdstender/tender/relay/relaytest/certs"
)

// everyNode maps every Node to the same snapshot.
type everyNode struct{}

// ID implements [cachev3.NodeHash].
func (everyNode) ID(*corepb.Node) string { return "all" }

// A controlPlane is the server of go-control-plane in memory, with one snapshot for all clients.
type controlPlane struct {
	address string
	cache   cachev3.SnapshotCache
}

// startControlPlane runs a control plane without resources until the test ends.
func startControlPlane(t *testing.T, options ...grpc.ServerOption) *controlPlane {
	t.Helper()
	// In ADS mode, it would respond to a SotW request only if the request names all resources of the snapshot.
	cp := &controlPlane{cache: cachev3.NewSnapshotCache(false, everyNode{}, nil)}
	cp.address = serveXDS(t, serverv3.NewServer(context.WithoutCancel(t.Context()), cp.cache, nil), options...) // ends after its clients
	return cp
}

// set replaces all resources.
func (cp *controlPlane) set(t *testing.T, version string, resources map[resource.Type][]types.Resource) {
	t.Helper()
	snapshot, err := cachev3.NewSnapshot(version, resources)
	if err != nil {
		t.Fatal(err)
	}
	if err := cp.cache.SetSnapshot(t.Context(), "all", snapshot); err != nil {
		t.Fatal(err)
	}
}

// listenTCP listens on a free port of 127.0.0.1. The caller closes the listener, or passes it to serveGRPC.
func listenTCP(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// serveGRPC runs a gRPC server on l until the test ends, and returns its address. If ads is nil, it has no services.
func serveGRPC(t *testing.T, l net.Listener, ads discoverypb.AggregatedDiscoveryServiceServer, options ...grpc.ServerOption) (address string) {
	t.Helper()
	s := grpc.NewServer(options...)
	if ads != nil {
		discoverypb.RegisterAggregatedDiscoveryServiceServer(s, ads)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }() // received below
	t.Cleanup(func() {
		s.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // the test ended before the server began
			t.Errorf("serve: %v", err)
		}
	})
	return l.Addr().String()
}

// serveXDS is serveGRPC in memory. It returns the gRPC target.
func serveXDS(t *testing.T, ads discoverypb.AggregatedDiscoveryServiceServer, options ...grpc.ServerOption) (target string) {
	t.Helper()
	l, target := memory.listen()
	serveGRPC(t, l, ads, options...)
	return target
}

// A script is an ADS server with the stream handlers of a test. A nil handler must not be called.
type script struct {
	discoverypb.UnimplementedAggregatedDiscoveryServiceServer
	delta func(discoverypb.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error
	sotw  func(discoverypb.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error
}

func (s script) DeltaAggregatedResources(stream discoverypb.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return s.delta(stream)
}

func (s script) StreamAggregatedResources(stream discoverypb.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return s.sotw(stream)
}

// deltaSays returns a server that sends responses after the first Delta request. A response without a type gets that of
// the request.
func deltaSays(responses ...*discoverypb.DeltaDiscoveryResponse) script {
	return script{delta: func(stream discoverypb.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, r := range responses {
			r := proto.CloneOf(r)
			if r.GetTypeUrl() == "" {
				r.TypeUrl = req.GetTypeUrl()
			}
			if err := stream.Send(r); err != nil {
				return err
			}
		}
		<-stream.Context().Done()
		return nil
	}}
}

// pack returns m in an Any.
func pack(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// cluster returns a cluster. Different values of alt make different content.
func cluster(name, alt string) *clusterpb.Cluster {
	return &clusterpb.Cluster{Name: name, AltStatName: alt}
}

// endpoints returns the endpoints resource of a cluster, without any endpoint.
func endpoints(name string) *endpointpb.ClusterLoadAssignment {
	return &endpointpb.ClusterLoadAssignment{ClusterName: name}
}

// shop starts a control plane with two clusters, their endpoints, and a route configuration.
func shop(t *testing.T) *controlPlane {
	t.Helper()
	cp := startControlPlane(t)
	cp.set(t, "v1", map[resource.Type][]types.Resource{
		resource.ClusterType:  {cluster("web", "w: eb"), cluster("cart", "")},
		resource.EndpointType: {endpoints("web"), endpoints("cart")},
		resource.RouteType:    {&routepb.RouteConfiguration{Name: "front"}},
	})
	return cp
}

// watch runs tender get -w until the test ends, and returns an iterator over the lines of its output. A second loop
// over it continues after the last line of the first.
func watch(t *testing.T, args ...string) func(yield func(string) bool) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	r, w := io.Pipe()
	cmd := get.NewCommand(version, getGroups{hostFor(args)}, hostFor(args).dialOptions...)
	cmd.SetArgs(append([]string{"-w"}, args...))
	cmd.SetOut(w)
	cmd.SetErr(w)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }() // received below
	t.Cleanup(func() {
		stop()
		_ = r.Close() // so that pending writes fail
		if err := <-ended; err != nil && !strings.Contains(err.Error(), "closed pipe") {
			t.Errorf("tender get -w %q: %v, want nil after an interrupt", args, err)
		}
	})
	scanner := bufio.NewScanner(r)
	return func(yield func(string) bool) {
		for scanner.Scan() && yield(scanner.Text()) {
		}
	}
}

// mutualTLS returns the credentials of a server xds.example.com that accepts clients with a certificate of ca.
func mutualTLS(t *testing.T, ca *certs.CA) grpc.ServerOption {
	t.Helper()
	server := ca.Sign(certs.Leaf{Names: []string{"xds.example.com"}})
	pair, err := tls.X509KeyPair(server.Cert, server.Key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca.PEM)
	return grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, MinVersion: tls.VersionTLS12,
	}))
}
