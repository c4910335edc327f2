package envoy_test

import (
	"context"
	"slices"
	"strconv"
	"testing"

	bootstrappb "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/xdstender/tender/relay/relaytest"
)

// nowhere is the address of a control plane that is not there.
const nowhere = "127.0.0.1:1"

// awaitHealth waits until a server says that of its health, as the health check of a bootstrap asks for it.
func awaitHealth(t *testing.T, conn *grpc.ClientConn, check *corepb.HealthCheck, want healthpb.HealthCheckResponse_ServingStatus) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), relaytest.Patience)
	defer cancel()
	said, err := healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{Service: check.GetGrpcHealthCheck().GetServiceName()})
	if err != nil {
		t.Fatal(err)
	}
	for {
		reply, err := said.Recv()
		if err != nil {
			t.Fatalf("it does not say %v: %v", want, err)
		}
		if reply.GetStatus() == want {
			return
		}
	}
}

// TestFallbackByPriority holds what the health check of fallback.yaml looks at, and that the control plane
// serves a client where the relay cannot.
func TestFallbackByPriority(t *testing.T) {
	b := readBootstrap(t, "fallback.yaml")
	c := cluster(b, "tender")
	if len(c.GetHealthChecks()) != 1 || c.GetHealthChecks()[0].GetGrpcHealthCheck() == nil {
		t.Fatalf("health checks are %v, want one by gRPC", c.GetHealthChecks())
	}
	check := c.GetHealthChecks()[0]
	endpoints := c.GetLoadAssignment().GetEndpoints()
	if len(endpoints) != 2 || endpoints[0].GetLbEndpoints()[0].GetEndpoint().GetHealthCheckConfig() != nil ||
		!endpoints[1].GetLbEndpoints()[0].GetEndpoint().GetHealthCheckConfig().GetDisableActiveHealthCheck() {
		t.Errorf("endpoints are %v, want the relay's health checked, and not the control plane's", endpoints)
	}
	if got := c.GetLoadAssignment().GetPolicy().GetOverprovisioningFactor().GetValue(); got < 10000 {
		t.Errorf("overprovisioning_factor is %d, want 10000 at least, so that one relay of a hundred is enough", got)
	}

	warm := newSite(t, b)
	warm.begin(b)
	awaitHealth(t, warm.dial(c, 0), check, healthpb.HealthCheckResponse_SERVING)
	cold := newSite(t, b, "TENDER_ORIGIN="+nowhere)
	awaitHealth(t, cold.dial(c, 0), check, healthpb.HealthCheckResponse_NOT_SERVING)
	cold.fallsBack(b, cold.dial(c, 1))
}

// fallsBack has an Envoy be served by the control plane.
func (s *site) fallsBack(b *bootstrappb.Bootstrap, conn *grpc.ClientConn) {
	s.t.Helper()
	v := variant(s.t, b.GetDynamicResources().GetAdsConfig())
	c := relaytest.NewClient(s.t, conn, relaytest.ClientOptions{Variant: v, Node: node(b), AutoAck: true})
	c.Subscribe(relaytest.ClusterType)
	c.WaitState(s.t.Context(), holdsWorld(relaytest.ClusterType))
}

// TestB3_MovingToTheRelayAndBack holds what it costs an Envoy to move from its control plane to a relay, and back:
// in Delta nothing is sent again but the endpoints that it names, which Envoys may have forgotten; in SotW, each
// type once.
func TestB3_MovingToTheRelayAndBack(t *testing.T) {
	const cds, eds, lds = relaytest.ClusterType, relaytest.EndpointType, relaytest.ListenerType
	for name, want := range map[string]struct{ there, back []string }{
		"delta-ads.yaml": {there: []string{eds}, back: nil},
		"sotw-ads.yaml":  {there: []string{cds, eds, lds}, back: []string{cds, eds, lds}},
	} {
		t.Run(name, func(t *testing.T) {
			b := readBootstrap(t, name)
			options := relaytest.ClientOptions{Variant: variant(t, b.GetDynamicResources().GetAdsConfig()), Node: node(b), AutoAck: true}
			s := newSite(t, b)
			s.origin.Change(func(o *relaytest.Behaviour) { o.SotW = options.Variant == relaytest.SotW }) // for both
			relayed, direct := s.dial(cluster(b, "tender"), 0), s.origin.Dial()
			s.has(relaytest.NewClient(t, relayed, options)) // the relay knows all before
			c := relaytest.NewClient(t, direct, options)
			s.has(c)
			c.Reconnect(relayed)
			s.resent(c, want.there)
			c.Reconnect(direct)
			s.resent(c, want.back)
		})
	}
}

// has subscribes a client to all that there is, and waits until it has it.
func (s *site) has(c *relaytest.Client) {
	s.t.Helper()
	c.Subscribe(relaytest.ClusterType)
	c.Subscribe(relaytest.EndpointType, "web", "api")
	c.Subscribe(relaytest.ListenerType)
	c.WaitState(s.t.Context(), func(st relaytest.State) bool {
		return st.Has(relaytest.ClusterType, "web", "api") && st.Has(relaytest.EndpointType, "web", "api") && st.Has(relaytest.ListenerType, "ingress", "admin")
	})
}

// resent takes a response for each of these types, and shows that there was no other: the next ones are changes.
func (s *site) resent(c *relaytest.Client, types []string) {
	s.t.Helper()
	var got []string
	for range types {
		got = append(got, c.Recv(s.t.Context()).TypeURL)
	}
	if slices.Sort(got); !slices.Equal(got, types) {
		s.t.Errorf("sent again are %v, want %v", got, types)
	}
	s.changes++
	port := "127.0.0.1:" + strconv.Itoa(s.changes)
	c.Fence(s.t.Context(), relaytest.ListenerType, "admin", func() { s.content.Put(relaytest.Listener("admin", port)) })
	c.Fence(s.t.Context(), relaytest.EndpointType, "api", func() { s.content.Put(relaytest.Endpoints("api", port)) })
	c.Fence(s.t.Context(), relaytest.ClusterType, "api", func() { s.content.Put(relaytest.StaticCluster("api", port)) })
}
