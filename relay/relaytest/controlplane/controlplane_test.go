package controlplane_test

import (
	"context"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/controlplane"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A client is a client of either kind.
type client interface {
	Subscribe(typeURL string, names ...string)
	State() relaytest.State
	WaitState(ctx context.Context, cond func(relaytest.State) bool)
}

// TestClientsOfRealControlPlanes checks that clients of each kind follow go-control-plane.
func TestClientsOfRealControlPlanes(t *testing.T) {
	for _, kind := range []string{controlplane.Linear, controlplane.ADSSnapshots} {
		route := relaytest.Route("r", []string{"*"}, "a")
		o := controlplane.New(t, kind, nil, relaytest.Cluster("a"), relaytest.Cluster("b"),
			relaytest.Endpoints("a", "127.0.0.1:1"), relaytest.Listener("l", "r"), route)
		conn, err := grpc.NewClient(o.Target(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		all := make(map[string]client)
		node := relaytest.EnvoyNode("tender/test")
		for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
			all[v.String()] = relaytest.NewClient(t, conn, relaytest.ClientOptions{Variant: v, Node: node, AutoAck: true})
			all["light "+v.String()] = relaytest.NewLightClient(t, conn, relaytest.LightOptions{Variant: v, Node: node})
		}
		for _, p := range all {
			p.Subscribe(relaytest.ClusterType)
			p.Subscribe(relaytest.EndpointType, "a") // in ADS mode, a cache answers only requests for all of its endpoints
			p.Subscribe(relaytest.ListenerType)
			p.Subscribe(relaytest.RouteType, "r")
			p.WaitState(t.Context(), func(s relaytest.State) bool {
				return s.Has(relaytest.ClusterType, "a", "b") && s.Has(relaytest.EndpointType, "a") &&
					s.Has(relaytest.ListenerType, "l") && s.Has(relaytest.RouteType, "r")
			})
		}
		o.Edit(nil, map[string][]string{relaytest.ListenerType: {"l"}})
		o.Put(relaytest.StaticCluster("b"), relaytest.Endpoints("a", "127.0.0.1:2"), relaytest.APIListener("l2", "r"))
		for name, p := range all {
			p.WaitState(t.Context(), func(s relaytest.State) bool {
				return s.Digest(relaytest.ClusterType, "b") == relaytest.DigestOf(relaytest.StaticCluster("b")) &&
					s.Has(relaytest.ListenerType, "l2") &&
					s.Digest(relaytest.EndpointType, "a") == relaytest.DigestOf(relaytest.Endpoints("a", "127.0.0.1:2"))
			})
			if got := p.State().Digest(relaytest.RouteType, "r"); got != relaytest.DigestOf(route) {
				t.Errorf("%s, %s: route is %v, want %v", kind, name, got, relaytest.DigestOf(route))
			}
		}
	}
}
