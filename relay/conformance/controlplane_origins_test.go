package conformance_test

import (
	"context"
	"net"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/controlplane"
	"github.com/xdstender/tender/relay/relaytest/instance"
	"github.com/xdstender/tender/relay/relaytest/memnet"
)

// xdstpWest is a name of endpoints in the authority west.
const xdstpWest = "xdstp://west/envoy.config.endpoint.v3.ClusterLoadAssignment/c0"

// A relay uses two real control planes. One of them has the endpoints and an authority. The test changes resources,
// stops one control plane, and restarts it with other resources.
func TestInterop_TwoGoControlPlanes(t *testing.T) {
	for _, kind := range []string{controlplane.Linear, controlplane.Snapshots} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { twoPlanesScenario(t, kind) })
		})
	}
}

// twoPlanesScenario runs all steps against two control planes of a kind, in a bubble.
func twoPlanesScenario(t *testing.T, kind string) {
	first := controlplane.New(t, kind, new(memnet.Network), append(planeWorld(), relaytest.Cluster("named", xdstpWest))...)
	west := controlplane.New(t, kind, new(memnet.Network), relaytest.Cluster("of the west"), westEndpoints("1000"),
		relaytest.Endpoints(xdstpWest, "127.0.0.2:1000"))
	const westAddr = "127.0.0.2:1" // a placeholder, which the dialer recognizes
	opts := instance.Options{Memory: true, Target: first.Target()}
	dial := func(ctx context.Context, addr string) (net.Conn, error) {
		if addr == westAddr {
			return west.Memory().Dial(ctx)
		}
		return first.Memory().Dial(ctx)
	}
	opts.Options.DialOptions = []grpc.DialOption{grpc.WithContextDialer(dial)}
	r := startRelay(t, opts, "TENDER_ORIGINS=west="+westAddr, "TENDER_ROUTES=type:eds=west;authority:west=west")
	s := &twoPlanes{first: first, west: west}
	s.clients = r.bothVariants(relaytest.ClientOptions{Node: relaytest.EnvoyNode("envoy")}, func(c *relaytest.Client) {
		c.Subscribe(relaytest.ClusterType)
		c.Subscribe(relaytest.ListenerType)
		c.Subscribe(relaytest.EndpointType, "c0", xdstpWest)
	})
	s.converge()
	first.Put(relaytest.Cluster("c1", "elsewhere"))
	west.Put(westEndpoints("2000"), relaytest.Endpoints(xdstpWest, "127.0.0.2:2000"))
	s.converge()

	west.Stop()
	first.Put(relaytest.Cluster("c5"))
	first.Remove(relaytest.ListenerType, "l1")
	s.converge() // endpoints are unchanged
	for _, c := range s.clients {
		c.Reconnect(r.Conn())
	}
	s.converge()
	first.Stop()
	west.Edit([]proto.Message{westEndpoints("3000")}, nil)
	west.Restart()
	s.converge() // the first one's last resources
	first.Edit([]proto.Message{relaytest.Cluster("c6")}, nil)
	first.Restart()
	s.converge()
}

// westEndpoints returns the endpoints of the second control plane.
func westEndpoints(port string) proto.Message { return relaytest.Endpoints("c0", "127.0.0.1:"+port) }

// twoPlanes has clients of two control planes.
type twoPlanes struct {
	first, west *controlplane.Server
	clients     []*relaytest.Client
}

// converge waits until all clients have the resources of each type's control plane.
func (s *twoPlanes) converge() {
	for _, c := range s.clients {
		s.first.Follow(c, relaytest.ClusterType)
		s.first.Follow(c, relaytest.ListenerType)
		s.west.Follow(c, relaytest.EndpointType, "c0", xdstpWest)
	}
}
