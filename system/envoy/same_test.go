package envoy_test

import (
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
)

// A fleet is a control plane with a richWorld, a relay, and Envoys of the relay.
type fleet struct {
	t      *testing.T
	client client
	world  *richWorld
	origin *envoytest.ControlPlane
	relay  *envoytest.Relay
	rest   string // address of the control plane for REST polls
	envoys []*envoytest.Envoy
}

// newFleet starts the servers. The first source determines whether the control plane uses ADS mode.
func newFleet(t *testing.T, c client, sources ...source) *fleet {
	t.Helper()
	f := &fleet{t: t, client: c, world: newRichWorld(t, sources...), origin: envoytest.NewControlPlane(t)}
	if sources[0]().GetAds() == nil {
		f.origin.SeparateTypes()
	}
	f.rest = f.origin.ServeREST()
	f.relay = envoytest.NewRelay(t, f.origin.Addr, "TENDER_REST_LISTEN=127.0.0.1:0", "TENDER_SECRETS=loopback", "TENDER_NODE_GROUP_BY=cluster")
	f.world.next(f.origin)
	return f
}

// start starts an Envoy that connects to the relay.
func (f *fleet) start(v variant) *envoytest.Envoy {
	f.t.Helper()
	o := f.client.speaking(v).options(f.relay.Addr, v.name)
	o.Edit = connected(f.relay.Addr, f.relay.REST, f.world.sources[0])
	e := envoytest.Start(f.t, o)
	f.envoys = append(f.envoys, e)
	return e
}

// direct starts an Envoy that connects to the control plane.
func (f *fleet) direct(v variant) *envoytest.Envoy {
	f.t.Helper()
	o := f.client.speaking(v).options(f.origin.Addr, "direct")
	o.Edit = connected(f.origin.Addr, f.rest, f.world.sources[0])
	return envoytest.Start(f.t, o)
}

// same waits until the Envoys of the relay have the same configuration as a direct one, and calls noFault for each.
// It first waits until the direct one has all resources.
func (f *fleet) same(direct *envoytest.Envoy) {
	f.t.Helper()
	direct.Await("all resources", func() error { return f.world.missing(direct.Config()) })
	for _, e := range f.envoys {
		e.AwaitSame(direct)
		noFault(f.t, e, envoytest.Report{})
	}
}

// TestEnvoy_SameConfiguration: an Envoy of the relay has the same configuration as one that connects to the control
// plane. This holds for all types and transports, also after all resources have changed. The latter Envoy replaces a
// direct run. (R001, B.17, B.19, B.26, B.27, B.36)
func TestEnvoy_SameConfiguration(t *testing.T) {
	sources := map[variant]source{delta: byADS, sotw: byADS, deltaTypes: byDelta, sotwTypes: bySotW, rest: byREST}
	matrix(t, every, func(t *testing.T, c client) {
		f := newFleet(t, c, sources[c.variant])
		e, direct := f.start(c.variant), f.direct(c.variant)
		f.same(direct)
		load := envoytest.StartLoad(t, e.Listener("both"), interval)
		load.Continue(10)
		noFault(t, e, load.Stop())
		f.world.next(f.origin)
		f.same(direct)
	})
}

// TestEnvoy_MixedFleet: Envoys of all variants connect to one relay and use all transports. Each has the same
// configuration as an Envoy that connects to the control plane, which replaces a direct run. A gRPC client on the
// same relay is served too. (B.26)
func TestEnvoy_MixedFleet(t *testing.T) {
	matrix(t, several, mixedFleet)
}

// mixedFleet is TestEnvoy_MixedFleet with the Envoys of one version.
func mixedFleet(t *testing.T, c client) {
	f := newFleet(t, c, byDelta, bySotW, byREST)
	for _, v := range every {
		f.start(v)
	}
	conn, err := grpc.NewClient(f.relay.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // an error does not matter here
	reader := relaytest.NewClient(t, conn, relaytest.ClientOptions{
		Variant: relaytest.SotW, Node: relaytest.GRPCNode("grpc"), AutoAck: true,
	})
	reader.Subscribe(relaytest.EndpointType, "both")
	direct := f.direct(delta)
	for range 2 {
		f.same(direct)
		reader.WaitState(t.Context(), func(s relaytest.State) bool {
			return s.Digest(relaytest.EndpointType, "both") == relaytest.DigestOf(f.world.endpoints("both"))
		})
		f.world.next(f.origin)
	}
	f.same(direct)
}
