package relay_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest"
)

// A relay whose origin is a directory. The program provides the listener, the logger and the context. A client requests
// all clusters over Delta ADS.
func Example() {
	dir, err := os.MkdirTemp("", "xds")
	check(err)
	defer func() { check(os.RemoveAll(dir)) }()
	check(os.WriteFile(filepath.Join(dir, "web.yaml"),
		[]byte(`[{"@type": type.googleapis.com/envoy.config.cluster.v3.Cluster, name: web}]`), 0o600))

	cfg, err := relay.LoadConfig([]string{"TENDER_ORIGIN=file://" + dir, "TENDER_ADMIN_LISTEN=off"})
	check(err) // joins one error per invalid variable
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	r, err := relay.New(cfg, relay.Options{
		Logger:    slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Version:   "v1.2.3",
		Listeners: []net.Listener{listener}, // replaces TENDER_LISTEN
	})
	check(err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }() // received below

	fmt.Println("clusters:", askForClusters(listener.Addr().String()))

	stop()      // drains for at most TENDER_DRAIN …
	r.StopNow() // … unless StopNow ends the drain
	fmt.Println("ended:", <-ended)
	// Output:
	// clusters: [web]
	// ended: <nil>
}

// A relay whose control plane, go-control-plane, runs in the same process. The relay connects to it over bufconn, so
// TENDER_ORIGIN is only a name.
func ExampleNew_controlPlane() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	resources := cachev3.NewLinearCache(relaytest.ClusterType,
		cachev3.WithInitialResources(map[string]types.Resource{"web": relaytest.Cluster("web")}))
	controlPlane := grpc.NewServer()
	discoverypb.RegisterAggregatedDiscoveryServiceServer(controlPlane, serverv3.NewServer(ctx, resources, nil))
	inside := bufconn.Listen(1 << 20)
	go func() { check(controlPlane.Serve(inside)) }() // until Stop
	defer controlPlane.Stop()

	cfg, err := relay.LoadConfig([]string{
		"TENDER_ORIGIN=127.0.0.1:1", "TENDER_LISTEN=127.0.0.1:0", "TENDER_ADMIN_LISTEN=off",
	})
	check(err)
	r, err := relay.New(cfg, relay.Options{DialOptions: []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return inside.DialContext(ctx) }),
	}})
	check(err)
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }() // received below

	fmt.Println("clusters:", askForClusters(r.Addrs()[0].String()))

	stop()
	r.StopNow()
	fmt.Println("ended:", <-ended)
	// Output:
	// clusters: [web]
	// ended: <nil>
}

// A program queries the state of its relay: readiness, the number of clients, and the admin API on a listener of the
// program.
func ExampleRelay_Ready() {
	cfg, err := relay.LoadConfig([]string{"TENDER_ORIGIN=127.0.0.1:1", "TENDER_LISTEN=127.0.0.1:0", "TENDER_NODE_ID=edge"})
	check(err) // no control plane listens on this address
	operators, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	r, err := relay.New(cfg, relay.Options{Version: "v1.2.3", AdminListeners: []net.Listener{operators}})
	check(err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }() // received below

	fmt.Println("ready:", r.Ready() == nil)
	fmt.Println("streams:", r.Streams())

	// Releases add fields to the status, and remove none: see deploy/docs/status.md.
	var status struct {
		Relay struct {
			Version string `json:"version"`
			NodeID  string `json:"node_id"`
		} `json:"relay"`
	}
	reply, err := http.Get("http://" + operators.Addr().String() + "/api/v1/status")
	check(err)
	check(json.NewDecoder(reply.Body).Decode(&status))
	check(reply.Body.Close())
	http.DefaultClient.CloseIdleConnections()
	fmt.Println("status:", status.Relay.Version, status.Relay.NodeID)

	stop()
	r.StopNow()
	check(<-ended)
	fmt.Println("then:", r.Ready())
	// Output:
	// ready: false
	// streams: 0
	// status: v1.2.3 edge
	// then: relay is draining: it was stopped
}

// check ends an example that has failed.
func check(err error) {
	if err != nil {
		panic(err)
	}
}

// askForClusters returns the names of all clusters of an xDS server.
func askForClusters(address string) (names []string) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(err)
	defer func() { check(conn.Close()) }()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	stream, err := discoverypb.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	check(err)
	check(stream.Send(&discoverypb.DeltaDiscoveryRequest{
		Node: &corepb.Node{Id: "me"}, TypeUrl: relaytest.ClusterType, ResourceNamesSubscribe: []string{"*"},
	}))
	resp, err := stream.Recv()
	check(err)
	for _, resource := range resp.GetResources() {
		names = append(names, resource.GetName())
	}
	return names
}
