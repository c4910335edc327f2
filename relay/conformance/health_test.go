package conformance_test

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/relay/relaytest"
)

// A relay is NOT_SERVING until it has reached its origin and while it drains, and SERVING otherwise, even if the
// origin is down (B.8).
func TestInterop_Health(t *testing.T) {
	noLeaks(t)
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(relaytest.Cluster("a"))
	o.Stop()
	r := start(t, o, "TENDER_DRAIN=1s")
	conn := r.Conn()
	ctx, cancel := context.WithTimeout(t.Context(), relaytest.Patience)
	defer cancel()
	watch, err := healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	expect := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		if got, err := watch.Recv(); err != nil || got.GetStatus() != want {
			t.Fatalf("health: got %v, error %v, want %v", got, err, want)
		}
	}
	expect(healthpb.HealthCheckResponse_NOT_SERVING)
	o.Restart()
	expect(healthpb.HealthCheckResponse_SERVING)

	c := r.Client(relaytest.ClientOptions{AutoAck: true})
	c.Subscribe(relaytest.ClusterType)
	c.WaitState(ctx, func(s relaytest.State) bool { return s.Has(relaytest.ClusterType, "a") })
	mark := r.Log.Len()
	o.Stop()
	r.Log.Await(t, mark, "upstream stream closed")
	got, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	if err != nil || got.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health while the origin is down: got %v, error %v, want SERVING", got, err)
	}
	r.Cancel()
	expect(healthpb.HealthCheckResponse_NOT_SERVING) // the next state after SERVING, since the outage was none
}

// interopServices are the services that clients find by reflection and health checks.
var interopServices = []string{
	"grpc.health.v1.Health",
	"envoy.service.discovery.v3.AggregatedDiscoveryService",
	"envoy.service.cluster.v3.ClusterDiscoveryService",
	"envoy.service.endpoint.v3.EndpointDiscoveryService",
	"envoy.service.endpoint.v3.LocalityEndpointDiscoveryService",
	"envoy.service.secret.v3.SecretDiscoveryService",
	"envoy.service.extension.v3.ExtensionConfigDiscoveryService",
	"envoy.service.runtime.v3.RuntimeDiscoveryService",
	"envoy.service.listener.v3.ListenerDiscoveryService",
	"envoy.service.route.v3.ScopedRoutesDiscoveryService",
	"envoy.service.route.v3.RouteDiscoveryService",
	"envoy.service.route.v3.VirtualHostDiscoveryService",
}

// Each service has the same health as the relay; the health of an unknown service is an error.
func TestInterop_HealthOfEachService(t *testing.T) {
	noLeaks(t)
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Stop()
	r := start(t, o)
	client := healthpb.NewHealthClient(r.Conn())
	ctx, cancel := context.WithTimeout(t.Context(), relaytest.Patience)
	defer cancel()
	watch, err := client.Watch(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []healthpb.HealthCheckResponse_ServingStatus{
		healthpb.HealthCheckResponse_NOT_SERVING, healthpb.HealthCheckResponse_SERVING,
	} {
		if want == healthpb.HealthCheckResponse_SERVING {
			o.Restart()
		}
		if got, err := watch.Recv(); err != nil || got.GetStatus() != want {
			t.Fatalf("health: got %v, error %v, want %v", got, err, want)
		}
		for _, service := range interopServices {
			each, err := client.Watch(ctx, &healthpb.HealthCheckRequest{Service: service})
			if err != nil {
				t.Fatal(err)
			}
			for got := (*healthpb.HealthCheckResponse)(nil); got.GetStatus() != want; {
				if got, err = each.Recv(); err != nil {
					t.Fatalf("health of %s: got %v, want %v", service, err, want)
				}
			}
		}
	}
	if got, err := client.Check(ctx,
		&healthpb.HealthCheckRequest{Service: "envoy.api.v2.ClusterDiscoveryService"}); status.Code(err) != codes.NotFound {
		t.Errorf("health of an unknown service: got %v, error %v, want %v", got, err, codes.NotFound)
	}
}

// Clients find the discovery services by reflection.
func TestInterop_Reflection(t *testing.T) {
	noLeaks(t)
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	r := start(t, o)
	ctx, cancel := context.WithTimeout(t.Context(), relaytest.Patience)
	defer cancel()
	stream, err := reflectionpb.NewServerReflectionClient(r.Conn()).ServerReflectionInfo(ctx, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	send := func(req *reflectionpb.ServerReflectionRequest) *reflectionpb.ServerReflectionResponse {
		t.Helper()
		if err := stream.Send(req); err != nil {
			t.Fatal(err)
		}
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	listed := make(map[string]bool)
	for _, s := range send(&reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{},
	}).GetListServicesResponse().GetService() {
		listed[s.GetName()] = true
	}
	for _, want := range interopServices {
		if !listed[want] {
			t.Errorf("reflection lists %v, which lack %s", listed, want)
		}
		files := send(&reflectionpb.ServerReflectionRequest{
			MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: want},
		}).GetFileDescriptorResponse().GetFileDescriptorProto()
		if len(files) == 0 {
			t.Errorf("reflection has no descriptor of %s", want)
		}
	}
}
