package deploy_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	xdscreds "google.golang.org/grpc/credentials/xds"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/xds"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

// grpcDir has the bootstraps for gRPC clients.
const grpcDir = root + "/deploy/grpc/"

// A grpcSite is a control plane, relays that connect to it, and a backend.
type grpcSite struct {
	t       *testing.T
	origin  *relaytest.Origin
	content *relaytest.Content // of the origin, for the Node of the bootstraps
	backend string
}

// newGRPCSite starts the control plane. It sends the address of the backend only to clients with the Node of the
// bootstraps.
func newGRPCSite(t *testing.T, backend string, cluster proto.Message) *grpcSite {
	t.Helper()
	s := &grpcSite{t: t, backend: backend}
	// The control plane also serves gRPC clients directly, which support SotW only.
	s.origin = relaytest.NewOrigin(t, relaytest.OriginOptions{Behaviour: relaytest.Behaviour{SotW: true}})
	var b struct {
		Node json.RawMessage
	}
	node := new(corepb.Node)
	err := json.Unmarshal([]byte(readText(t, grpcDir+"bootstrap.json")), &b)
	if err == nil {
		err = protojson.Unmarshal(b.Node, node)
	}
	if err != nil {
		t.Fatalf("bootstrap.json: %v", err)
	}
	s.content = s.origin.For(func(n *corepb.Node) bool {
		return n.GetCluster() == node.GetCluster() && n.GetLocality().GetZone() == node.GetLocality().GetZone() &&
			proto.Equal(n.GetMetadata().GetFields()["env"], node.GetMetadata().GetFields()["env"])
	})
	s.content.Put(cluster, relaytest.Endpoints("service", s.backend), relaytest.APIListener("api", "route"), relaytest.Route("route", []string{"*"}, "service"))
	return s
}

// relay starts a relay, with additional variables.
func (s *grpcSite) relay(env ...string) *instance.Relay {
	s.t.Helper()
	env = append(env, "TENDER_ORIGIN="+s.origin.Addr(), "TENDER_NODE_GROUP_BY=cluster,locality.zone,metadata.env")
	return instance.Start(s.t, instance.Options{Env: env})
}

// client returns a client of gRPC-Go with a bootstrap, in which it replaces addresses.
func (s *grpcSite) client(name string, addresses map[string]string) healthpb.HealthClient {
	s.t.Helper()
	text := readText(s.t, grpcDir+name)
	for from, to := range addresses {
		if !strings.Contains(text, from) {
			s.t.Fatalf("%s has no %s", name, from)
		}
		text = strings.ReplaceAll(text, from, to)
	}
	if strings.Contains(text, "example") {
		s.t.Fatalf("%s has an address that the test does not replace:\n%s", name, text)
	}
	resolver, err := xds.NewXDSResolverWithConfigForTesting([]byte(text))
	if err != nil {
		s.t.Fatalf("%s: %v", name, err)
	}
	// The control plane determines the credentials for the backend.
	creds, err := xdscreds.NewClientCredentials(xdscreds.ClientOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		s.t.Fatal(err)
	}
	conn, err := grpc.NewClient("xds:///api", grpc.WithResolvers(resolver), grpc.WithTransportCredentials(creds))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return healthpb.NewHealthClient(conn)
}

// reaches repeats calls until one reaches the backend. Some calls may fail: gRPC-Go (1.85) may select a new
// cluster for a call before it can connect to that cluster.
func (s *grpcSite) reaches(c healthpb.HealthClient) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), relaytest.Patience)
	defer cancel()
	for {
		// A call whose cluster is removed while it waits would wait until its deadline, so the deadline is short.
		call, done := context.WithTimeout(ctx, relaytest.Patience/10)
		var from peer.Peer
		_, err := c.Check(call, &healthpb.HealthCheckRequest{}, grpc.Peer(&from), grpc.WaitForReady(true))
		done()
		switch {
		case ctx.Err() != nil:
			s.t.Fatalf("the last call went to %v: %v, want %s", from.Addr, err, s.backend)
		case err == nil && from.Addr.String() == s.backend:
			return
		}
	}
}
