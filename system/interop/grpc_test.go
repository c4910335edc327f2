package interop_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/xds"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/controlplane"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// A grpcPeer is a gRPC-Go client that finds its backends by xDS.
type grpcPeer struct {
	t    *testing.T
	conn *grpc.ClientConn
}

// newGRPCPeer returns a client whose management server is at xdsServer. It does not share its xDS client with others.
func newGRPCPeer(t *testing.T, xdsServer, id string) *grpcPeer {
	t.Helper()
	resolver, err := xds.NewXDSResolverWithConfigForTesting(fmt.Appendf(nil, `{
		"xds_servers": [{"server_uri": %q, "channel_creds": [{"type": "insecure"}], "server_features": ["xds_v3"]}],
		"node": {"id": %q}}`, xdsServer, id))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("xds:///api", grpc.WithResolvers(resolver), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &grpcPeer{t: t, conn: conn}
}

// call sends one RPC and returns the address of the backend. It fails the test if the RPC fails.
func (p *grpcPeer) call() string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), relaytest.Patience)
	defer cancel()
	var from peer.Peer
	_, err := healthpb.NewHealthClient(p.conn).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Peer(&from), grpc.WaitForReady(true))
	if err != nil {
		p.t.Fatalf("RPC: %v", err)
	}
	return from.Addr.String()
}

// reaches sends RPCs until a backend answers. It fails the test if an RPC fails.
func (p *grpcPeer) reaches(backend string) {
	p.t.Helper()
	last := ""
	for end := time.Now().Add(relaytest.Patience); time.Now().Before(end); {
		if last = p.call(); last == backend {
			return
		}
	}
	p.t.Fatalf("RPCs go to %s, want %s", last, backend)
}

// grpcWorld returns the resources for a gRPC client of xds:///api, and a listener for Envoys.
func grpcWorld(backend string) []proto.Message {
	return []proto.Message{
		relaytest.Cluster("service", "service-endpoints"), relaytest.Endpoints("service-endpoints", backend),
		relaytest.APIListener("api", "service-route"), relaytest.Listener("ingress", "service-route"),
		relaytest.Route("service-route", []string{"*"}, "service"),
	}
}

// TestInterop_GRPCClient: the xDS client of gRPC-Go finds its backends through the relay, together with Envoys in the
// same or in separate node groups. It follows changes across restarts of the origin and of the relay, also through a
// chain of two relays (B.41).
func TestInterop_GRPCClient(t *testing.T) {
	noLeaks(t)
	for _, tt := range []struct {
		name, groupBy string
		relays        int
		origin        func(t *testing.T, msgs ...proto.Message) origin
	}{
		{"scripted origin, groups apart", "user_agent_name", 1, func(t *testing.T, msgs ...proto.Message) origin {
			o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
			o.Put(msgs...)
			return o
		}},
		{"go-control-plane, one group", "none", 1, func(t *testing.T, msgs ...proto.Message) origin {
			return controlplane.New(t, controlplane.Linear, nil, msgs...)
		}},
		{"snapshots, one group", "none", 1, func(t *testing.T, msgs ...proto.Message) origin {
			return controlplane.New(t, controlplane.ADSSnapshots, nil, msgs...)
		}},
		{"chain, groups apart", "user_agent_name", 2, func(t *testing.T, msgs ...proto.Message) origin {
			return controlplane.New(t, controlplane.Linear, nil, msgs...)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // the clients mostly wait
			grpcScenario(t, func(msgs ...proto.Message) origin { return tt.origin(t, msgs...) }, tt.relays, "TENDER_NODE_GROUP_BY="+tt.groupBy)
		})
	}
}

// grpcScenario runs the steps of TestInterop_GRPCClient. env is a further variable of the relays.
func grpcScenario(t *testing.T, newOrigin func(...proto.Message) origin, relays int, env string) {
	one, two := relaytest.NewBackend(t), relaytest.NewBackend(t)
	o := newOrigin(grpcWorld(one)...)
	address := proxy.FreeAddress(t)
	r, above := chain(t, o, relays, address, env)
	envoy := r.Client(relaytest.ClientOptions{Variant: relaytest.SotW, AutoAck: true})
	envoy.Subscribe(relaytest.ClusterType)
	envoy.Subscribe(relaytest.EndpointType, "service-endpoints")
	envoySees := func(backend string) {
		t.Helper()
		want := relaytest.DigestOf(relaytest.Endpoints("service-endpoints", backend))
		envoy.WaitState(t.Context(), func(s relaytest.State) bool {
			return s.Digest(relaytest.EndpointType, "service-endpoints") == want
		})
	}
	// moves changes the endpoints to a backend, and waits until all clients use it.
	moves := func(backend string, clients ...*grpcPeer) {
		t.Helper()
		o.Put(relaytest.Endpoints("service-endpoints", backend))
		for _, c := range clients {
			c.reaches(backend)
		}
		envoySees(backend)
	}

	first := newGRPCPeer(t, address, "first")
	first.reaches(one)
	envoySees(one)
	moves(two, first)

	mark := above.Log.Len()
	o.Stop()
	above.Log.Await(t, mark, "upstream stream closed")
	first.reaches(two)
	second := newGRPCPeer(t, address, "second")
	second.reaches(two)
	o.Restart()
	moves(one, first, second)

	r.Stop()
	for range 100 {
		if got := first.call(); got != one {
			t.Errorf("while the relay is down, an RPC went to %s, want %s", got, one)
		}
	}
	o.Put(relaytest.Endpoints("service-endpoints", two))
	r, _ = chain(t, o, relays, address, env)
	first.reaches(two)
	second.reaches(two)
	envoy.Reconnect(r.Conn())
	envoySees(two)
	third := newGRPCPeer(t, address, "third")
	moves(one, first, second, third)
}
