package conformance_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/controlplane"
	"github.com/xdstender/tender/relay/relaytest/instance"
	"github.com/xdstender/tender/relay/relaytest/memnet"
)

// planeWorld returns the initial resources of the control planes.
func planeWorld() (msgs []proto.Message) {
	for i := range 5 {
		name := fmt.Sprintf("c%d", i)
		msgs = append(msgs, relaytest.Cluster(name), relaytest.Endpoints(name, "127.0.0.1:1000"))
	}
	return append(msgs,
		relaytest.Listener("l0", "r0"), relaytest.Listener("l1", "r1"), relaytest.APIListener("api", "r0"),
		relaytest.Route("r0", []string{"*"}, "c0"), relaytest.Route("r1", []string{"*"}, "c1"))
}

// planeClients are clients of a relay with different subscriptions.
type planeClients struct {
	o *controlplane.Server
	r *running

	envoys []*relaytest.Client // wildcard CDS and LDS, named EDS and RDS; Delta and SotW
	plain  []*relaytest.Client // wildcard CDS and LDS only
	grpcs  []*relaytest.Client // all types by name, in another group
	named  []*relaytest.Client // CDS by name, in the group of the wildcard clients
}

// newPlaneClients connects the clients to a relay.
func newPlaneClients(o *controlplane.Server, r *running) *planeClients {
	p := &planeClients{o: o, r: r}
	for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
		p.envoys = append(p.envoys, p.envoy(v))
		p.plain = append(p.plain, p.wildcards(v, "plain"))

		g := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true, Node: relaytest.GRPCNode("grpc")})
		g.Subscribe(relaytest.ListenerType, "api")
		g.Subscribe(relaytest.RouteType, "r0")
		g.Subscribe(relaytest.ClusterType, "c0", "c1")
		g.Subscribe(relaytest.EndpointType, "c0", "c1", "late")
		p.grpcs = append(p.grpcs, g)

		n := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true, Node: relaytest.EnvoyNode("named")})
		n.Subscribe(relaytest.ClusterType, "c1", "c2")
		p.named = append(p.named, n)
	}
	return p
}

// wildcards returns a client with the wildcards of clusters and listeners.
func (p *planeClients) wildcards(v relaytest.Variant, id string) *relaytest.Client {
	c := p.r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true, Node: relaytest.EnvoyNode(id)})
	c.Subscribe(relaytest.ClusterType)
	c.Subscribe(relaytest.ListenerType)
	return c
}

// envoy returns a client with the subscriptions of an Envoy.
func (p *planeClients) envoy(v relaytest.Variant) *relaytest.Client {
	c := p.wildcards(v, "envoy")
	c.Subscribe(relaytest.EndpointType, "c0", "c1", "c2", "late")
	c.Subscribe(relaytest.RouteType, "r0", "r1")
	return c
}

// converge waits until all clients have the control plane's resources. SotW clients keep removed endpoints and
// routes, so tests remove none that clients subscribe to.
func (p *planeClients) converge() {
	p.r.t.Helper()
	for _, c := range append(p.envoys, p.plain...) {
		p.o.Follow(c, relaytest.ClusterType)
		p.o.Follow(c, relaytest.ListenerType)
	}
	for _, c := range p.envoys {
		p.o.Follow(c, relaytest.EndpointType, "c0", "c1", "c2", "late")
		p.o.Follow(c, relaytest.RouteType, "r0", "r1")
	}
	for _, c := range p.grpcs {
		p.o.Follow(c, relaytest.ListenerType, "api")
		p.o.Follow(c, relaytest.RouteType, "r0")
		p.o.Follow(c, relaytest.ClusterType, "c0", "c1")
		p.o.Follow(c, relaytest.EndpointType, "c0", "c1", "late")
	}
	for _, c := range p.named {
		p.o.Follow(c, relaytest.ClusterType, "c1", "c2")
	}
}

// fence fails the test if other responses are in flight to wildcard clients.
func (p *planeClients) fence(edsService string) {
	p.r.t.Helper()
	p.fenceBy(edsService, (*relaytest.Client).Fence)
}

// fenceBy is fence with the client's method to use.
func (p *planeClients) fenceBy(edsService string,
	fence func(*relaytest.Client, context.Context, string, string, func()) *relaytest.Response) {
	p.r.t.Helper()
	p.converge()
	changed := func(change func()) {
		for i, c := range p.plain {
			if i > 0 {
				change = func() {}
			}
			fence(c, p.r.t.Context(), relaytest.ClusterType, "c4", change)
		}
	}
	changed(func() { p.o.Put(relaytest.Cluster("c4", edsService)) })
	p.converge()
}

// A relay uses go-control-plane's linear caches, one per type: changes, missing names without a response, restarts
// and reconnects.
func TestInterop_GoControlPlaneLinear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { planeScenario(t, controlplane.Linear) })
}

// A relay uses go-control-plane's snapshot caches in the same way.
func TestInterop_GoControlPlaneSnapshot(t *testing.T) {
	for _, kind := range []string{controlplane.Snapshots, controlplane.ADSSnapshots} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { planeScenario(t, kind) })
		})
		t.Run(kind+", late", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { planeLate(t, kind) })
		})
	}
}

// A relay uses control planes of both kinds that only implement SotW.
func TestInterop_GoControlPlaneSotW(t *testing.T) {
	for _, kind := range []string{controlplane.LinearSotW, controlplane.SnapshotsSotW} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { planeScenario(t, kind) })
		})
	}
	t.Run(controlplane.SnapshotsSotW+", late", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { planeLate(t, controlplane.SnapshotsSotW) })
	})
}

// planeScenario runs all steps against one kind of control plane, in a bubble.
func planeScenario(t *testing.T, kind string) {
	o := controlplane.New(t, kind, new(memnet.Network), planeWorld()...)
	r := startRelay(t, instance.Of(o))
	p := newPlaneClients(o, r)
	p.converge()

	planeChanges(p)
	planeNames(p)
	planeConfirmed(p)
	planeRestarts(p)
	planeReturns(p)
}

// planeChanges adds, changes and removes resources.
func planeChanges(p *planeClients) {
	p.r.t.Helper()
	p.o.Put(relaytest.Cluster("c5"), relaytest.Endpoints("c5", "127.0.0.1:1000"))
	p.o.Put(relaytest.Cluster("c1", "elsewhere"), relaytest.Endpoints("c1", "127.0.0.1:2000", "127.0.0.1:2001"))
	p.o.Put(relaytest.Listener("l1", "r0"), relaytest.Route("r0", []string{"example.com"}, "c1"))
	p.converge()
	p.o.Remove(relaytest.ListenerType, "l1")
	p.o.Remove(relaytest.ClusterType, "c3", "c2")
	p.converge()
	p.o.Put(relaytest.Cluster("c2"), relaytest.Listener("l1", "r1")) // with the same content as before the removal
	p.converge()
	p.fence("changes")
}

// planeNames subscribes to missing names, for which go-control-plane sends nothing, and ends and renews
// subscriptions.
func planeNames(p *planeClients) {
	o, ctx := p.o, p.r.t.Context()
	p.r.t.Helper()
	o.Put(relaytest.Endpoints("late", "127.0.0.1:3000")) // subscribed to before
	p.converge()

	c := p.r.Client(relaytest.ClientOptions{AutoAck: true, Node: relaytest.GRPCNode("missing")})
	c.Subscribe(relaytest.ClusterType, "c0", "ghost")
	o.Follow(c, relaytest.ClusterType, "c0", "ghost")
	c.Fence(ctx, relaytest.ClusterType, "c0", func() { o.Put(relaytest.Cluster("c0", "ghost")) })
	o.Put(relaytest.Cluster("ghost"))
	o.Follow(c, relaytest.ClusterType, "c0", "ghost")
	o.Remove(relaytest.ClusterType, "ghost")
	o.Follow(c, relaytest.ClusterType, "c0", "ghost")
	o.Put(relaytest.Cluster("ghost", "again"))
	o.Follow(c, relaytest.ClusterType, "c0", "ghost")

	for _, c := range append(p.grpcs, p.named...) {
		c.Unsubscribe(relaytest.ClusterType, "c1")
	}
	o.Put(relaytest.Cluster("c1", "while away"))
	for _, c := range append(p.grpcs, p.named...) {
		c.Subscribe(relaytest.ClusterType, "c1")
	}
	p.converge()
	for _, c := range p.envoys { // resent after a new subscription, although unchanged
		c.Unsubscribe(relaytest.EndpointType, "c2")
		c.WaitState(ctx, func(s relaytest.State) bool { _, has := s[relaytest.EndpointType]["c2"]; return !has })
		c.Subscribe(relaytest.EndpointType, "c2")
	}
	p.fence("names")
}

// planeConfirmed waits until the relay has confirmed its sets: it then removes unknown resources of a reconnecting
// client.
func planeConfirmed(p *planeClients) {
	for _, typeURL := range []string{relaytest.ClusterType, relaytest.ListenerType} {
		c := p.r.Client(relaytest.ClientOptions{AutoAck: true, Node: relaytest.EnvoyNode("probe")})
		versions := map[string]string{"never was": "1"}
		for name := range p.o.Resources[typeURL] {
			versions[name] = "of another relay"
		}
		c.Send(&discoverypb.DeltaDiscoveryRequest{Node: relaytest.EnvoyNode("probe"), TypeUrl: typeURL,
			InitialResourceVersions: versions})
		for removed := false; !removed; {
			resp := c.Recv(p.r.t.Context())
			removed = slices.Contains(resp.Removed, "never was") // among the removals of the last hour (B.3)
			if len(resp.Removed) > 0 && !removed {
				p.r.t.Fatalf("got removals that the origin did not send: %v", resp)
			}
		}
	}
}

// planeRestarts restarts the control plane, first unchanged, for which clients receive nothing, and then with
// changes and removals.
func planeRestarts(p *planeClients) {
	o := p.o
	p.r.t.Helper()
	o.Restart()
	o.AwaitRequest("the relay's return", controlplane.Opening(relaytest.ClusterType))
	p.fence("restarted")

	o.Stop()
	o.Edit([]proto.Message{relaytest.Cluster("c0", "restarted"), relaytest.Cluster("c6"),
		relaytest.Endpoints("c0", "127.0.0.1:4000")},
		map[string][]string{relaytest.ClusterType: {"c5", "c2"}, relaytest.ListenerType: {"l1"}})
	o.Restart()
	p.converge()
	p.fence("changed")
}

// planeReturns reconnects clients, and connects new ones, while the control plane is down and after its restart.
func planeReturns(p *planeClients) {
	o := p.o
	p.r.t.Helper()
	reconnectAll := func() {
		for _, c := range append(append(p.plain, p.envoys...), append(p.grpcs, p.named...)...) {
			c.Reconnect(p.r.Conn())
		}
	}
	reconnectAll()
	p.fenceBy("returned", (*relaytest.Client).FenceReconnected)
	o.Stop()
	reconnectAll()
	p.envoys = append(p.envoys, p.envoy(relaytest.Delta), p.envoy(relaytest.SotW)) // served from the cache
	p.converge()
	o.Restart()
	o.AwaitRequest("the relay's return", controlplane.Opening(relaytest.ClusterType))
	p.fenceBy("reconnected during an outage", (*relaytest.Client).FenceReconnected)
}

// planeLate sets the snapshot after clients have subscribed. Before that, no client receives an empty set. It runs in
// a bubble.
func planeLate(t *testing.T, kind string) {
	o := controlplane.New(t, kind, new(memnet.Network))
	r := startRelay(t, instance.Of(o))
	p := newPlaneClients(o, r)
	seen := make(map[string]bool)
	o.AwaitRequest("a request of each type", func(r *discoverypb.DeltaDiscoveryRequest) bool {
		seen[r.GetTypeUrl()] = true
		return len(seen) == len(o.Resources)
	})
	o.Edit(planeWorld(), nil)
	o.Push()
	for _, c := range append(append(p.plain, p.envoys...), p.grpcs...) {
		if first := c.Recv(t.Context()); len(first.Resources) == 0 || len(first.Removed) > 0 {
			t.Errorf("%v: the first response is %v, want resources and no removals", c, first)
		}
	}
	p.converge()
	p.fence("late")
}
