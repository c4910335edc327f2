package envoytest_test

import (
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
)

// A fleet is Envoys of one world, below a relay and on its control plane.
type fleet struct {
	t      *testing.T
	world  *richWorld
	origin *envoytest.ControlPlane
	relay  *envoytest.Relay
	rest   string // where the control plane answers polls
	envoys []*envoytest.Envoy
}

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

// start starts an Envoy below the relay.
func (f *fleet) start(bootstrap string) *envoytest.Envoy {
	f.t.Helper()
	e := envoytest.Start(f.t, envoytest.Options{
		Bootstrap: bootstrap, Server: f.relay.Addr, Node: relaytest.EnvoyNode(bootstrap), Edit: connected(f.relay.Addr, f.relay.REST, f.world.sources[0]),
	})
	f.envoys = append(f.envoys, e)
	return e
}

// direct starts an Envoy on the control plane.
func (f *fleet) direct(bootstrap string) *envoytest.Envoy {
	f.t.Helper()
	return envoytest.Start(f.t, envoytest.Options{
		Bootstrap: bootstrap, Server: f.origin.Addr, Node: relaytest.EnvoyNode("direct"), Edit: connected(f.origin.Addr, f.rest, f.world.sources[0]),
	})
}

// same waits until the Envoys below the relay have the configuration of one on the control plane, which has all of the
// world, and holds them to noFault.
func (f *fleet) same(direct *envoytest.Envoy) {
	f.t.Helper()
	direct.Await("all of the world", func() error { return f.world.missing(direct.Config()) })
	for _, e := range f.envoys {
		e.AwaitSame(direct)
		noFault(f.t, e, envoytest.Report{})
	}
}

// TestEnvoy_SameConfiguration: an Envoy below the relay has the configuration of one on the control plane, by all
// types and all transports, also after everything has changed. The Envoy on the control plane is the run without the
// relay. (R001, B.17, B.19, B.26, B.27, B.36)
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

// TestEnvoy_MixedFleet: Envoys of all variants on one relay, each of which has what one on the control plane has, with
// resources by all transports; and a client of gRPC beside them is served too. That Envoy is the run without the relay. (B.26)
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
	t.Cleanup(func() { _ = conn.Close() }) // closes what it can
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
