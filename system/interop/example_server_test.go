package interop_test

import (
	"testing"

	bootstrappb "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// TestInterop_ExampleServer: an Envoy of the relay uses the configuration of go-control-plane's example server, and
// keeps serving while that is down. It follows the change when the server returns with another backend under the same
// version.
func TestInterop_ExampleServer(t *testing.T) {
	need(t, exampleServer)
	eachVariant(t, func(t *testing.T, bootstrap string) {
		one, two := envoytest.NewBackend(t, "one"), envoytest.NewBackend(t, "two")
		address := proxy.FreeAddress(t)
		origin := example(t, address, one)
		r := envoytest.StartRelay(t, address, "TENDER_NODE_ID=test-id")
		options := envoytest.Options{Bootstrap: bootstrap, Server: r.Addr, Node: relaytest.EnvoyNode("edge-1"), Edit: ownRoutes}
		e := envoytest.Start(t, options)
		load := envoytest.StartLoad(t, e.Listener("listener_0"), interval)
		answers(load, one)

		origin.Kill()
		answers(load, one)
		newcomer := envoytest.Start(t, options)
		second := envoytest.StartLoad(t, newcomer.Listener("listener_0"), interval)
		answers(second, one)
		example(t, address, two)
		answers(load, two)
		answers(second, two)
		served(t, second, newcomer)
		served(t, load, e)
	})
}

// example starts the example server with a snapshot that routes to a backend.
func example(t *testing.T, address string, b *envoytest.Backend) *program {
	t.Helper()
	p := start(t, *exampleServer, []string{"UPSTREAM_PORT=" + portOf(b.Addr)}, "-port", portOf(address))
	p.listens(address)
	return p
}

// ownRoutes adds the cluster "xds_cluster" to a bootstrap. The listener of the example uses it for RDS instead of ADS.
func ownRoutes(b *bootstrappb.Bootstrap) {
	xds := proto.CloneOf(b.GetStaticResources().GetClusters()[0])
	xds.Name = "xds_cluster"
	xds.LoadAssignment.ClusterName = xds.Name
	b.StaticResources.Clusters = append(b.StaticResources.Clusters, xds)
}
