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
	world  *richWorld
	origin *envoytest.ControlPlane
	relay  *envoytest.Relay
	rest   string // address of the control plane for REST polls
	envoys []*envoytest.Envoy
}

// newFleet starts the servers. The first source determines whether the control plane uses ADS mode.
func newFleet(t *testing.T, sources ...source) *fleet {
	t.Helper()
	f := &fleet{t: t, world: newRichWorld(t, sources...), origin: envoytest.NewControlPlane(t)}
	if sources[0]().GetAds() == nil {
		f.origin.SeparateTypes()
	}
	f.rest = f.origin.ServeREST()
	f.relay = envoytest.NewRelay(t, f.origin.Addr, "TENDER_REST_LISTEN=127.0.0.1:0", "TENDER_SECRETS=loopback", "TENDER_NODE_GROUP_BY=cluster")
	f.world.next(f.origin)
	return f
}

// start starts an Envoy that connects to the relay.
func (f *fleet) start(bootstrap string) *envoytest.Envoy {
	f.t.Helper()
	e := envoytest.Start(f.t, envoytest.Options{
		Bootstrap: bootstrap, Server: f.relay.Addr, Node: relaytest.EnvoyNode(bootstrap), Edit: connected(f.relay.Addr, f.relay.REST, f.world.sources[0]),
	})
	f.envoys = append(f.envoys, e)
	return e
}

// direct starts an Envoy that connects to the control plane.
func (f *fleet) direct(bootstrap string) *envoytest.Envoy {
	f.t.Helper()
	return envoytest.Start(f.t, envoytest.Options{
		Bootstrap: bootstrap, Server: f.origin.Addr, Node: relaytest.EnvoyNode("direct"), Edit: connected(f.origin.Addr, f.rest, f.world.sources[0]),
	})
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
	t.Parallel()
	for _, v := range []struct {
		variant
		from source
	}{
		{delta, byADS}, {sotw, byADS}, {variant{"delta-types", "delta-types.yaml"}, byDelta}, {variant{"sotw-types", "sotw-types.yaml"}, bySotW},
		{variant{"rest", "rest.yaml"}, byREST},
	} {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, v.from)
			e, direct := f.start(v.bootstrap), f.direct(v.bootstrap)
			f.same(direct)
			load := envoytest.StartLoad(t, e.Listener("both"), interval)
			load.Continue(10)
			noFault(t, e, load.Stop())
			f.world.next(f.origin)
			f.same(direct)
		})
	}
}

// TestEnvoy_MixedFleet: Envoys of all variants connect to one relay and use all transports. Each has the same
// configuration as an Envoy that connects to the control plane, which replaces a direct run. A gRPC client on the
// same relay is served too. (B.26)
func TestEnvoy_MixedFleet(t *testing.T) {
	t.Parallel()
	f := newFleet(t, byDelta, bySotW, byREST)
	for _, bootstrap := range []string{"delta-ads.yaml", "sotw-ads.yaml", "delta-types.yaml", "sotw-types.yaml", "rest.yaml"} {
		f.start(bootstrap)
	}
	conn, err := grpc.NewClient(f.relay.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // an error does not matter here
	client := relaytest.NewClient(t, conn, relaytest.ClientOptions{
		Variant: relaytest.SotW, Node: relaytest.GRPCNode("grpc"), AutoAck: true,
	})
	client.Subscribe(relaytest.EndpointType, "both")
	direct := f.direct("delta-ads.yaml")
	for range 2 {
		f.same(direct)
		client.WaitState(t.Context(), func(s relaytest.State) bool {
			return s.Digest(relaytest.EndpointType, "both") == relaytest.DigestOf(f.world.endpoints("both"))
		})
		f.world.next(f.origin)
	}
	f.same(direct)
}
