package envoy_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/encoding/gzip" // the gRPC client below accepts gzip
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestEnvoy_AcceptsNoCompression: the gRPC client envoy_grpc sends no grpc-accept-encoding, so that a relay with
// TENDER_COMPRESSION compresses nothing for it. A gRPC client of the same relay receives the same clusters compressed. (B.32)
func TestEnvoy_AcceptsNoCompression(t *testing.T) {
	matrix(t, ads, func(t *testing.T, c client) {
		origin := envoytest.NewControlPlane(t)
		world := []proto.Message{relaytest.Listener("web", "web"), relaytest.Route("web", []string{"*"}, "cluster-000")}
		for i := range 100 {
			name := fmt.Sprintf("cluster-%03d", i)
			world = append(world, relaytest.Cluster(name), relaytest.Endpoints(name, "127.0.0.1:1"))
		}
		origin.Put(world...)
		r := envoytest.NewRelay(t, origin.Addr, "TENDER_COMPRESSION=gzip")
		const unused = "tender_client_compression_saved_bytes_total 0\n"
		envoytest.Start(t, c.options(r.Addr, "edge")).Listener("web")
		if metrics := string(r.Get("/metrics")); !strings.Contains(metrics, unused) {
			t.Errorf("metrics lack %q: the relay has compressed responses to Envoy", unused)
		}
		conn := check.Must(grpc.NewClient(r.Addr, grpc.WithTransportCredentials(insecure.NewCredentials())))
		defer func() { check.OK(t, conn.Close()) }()
		other := relaytest.NewClient(t, conn, relaytest.ClientOptions{AutoAck: true})
		other.Subscribe(relaytest.ClusterType, "*")
		other.WaitState(t.Context(), func(s relaytest.State) bool { return len(s[relaytest.ClusterType]) == 100 })
		if metrics := string(r.Get("/metrics")); strings.Contains(metrics, unused) {
			t.Errorf("metrics have %q: the relay compresses nothing for a client that accepts gzip", unused)
		}
	})
}
