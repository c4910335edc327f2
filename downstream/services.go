package downstream

import (
	"strings"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	extensionpb "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	listenerpb "github.com/envoyproxy/go-control-plane/envoy/service/listener/v3"
	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	routepb "github.com/envoyproxy/go-control-plane/envoy/service/route/v3"
	runtimepb "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	secretpb "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache/wire"
)

// A service streams resources of one type, or of any type that its clients name
// if typeURL is empty.
type service struct {
	generated *grpc.ServiceDesc
	typeURL   string
}

// services are the gRPC services of a server (R007, R008), with the variants that the protocol defines: virtual hosts
// and locality endpoints exist in Delta only.
var services = []service{
	{&discoverypb.AggregatedDiscoveryService_ServiceDesc, ""},
	{&clusterpb.ClusterDiscoveryService_ServiceDesc, wire.ClusterType},
	{&endpointpb.EndpointDiscoveryService_ServiceDesc, wire.EndpointType},
	{&endpointpb.LocalityEndpointDiscoveryService_ServiceDesc, wire.LocalityEndpoint},
	{&secretpb.SecretDiscoveryService_ServiceDesc, wire.SecretType},
	{&extensionpb.ExtensionConfigDiscoveryService_ServiceDesc, wire.ExtensionConfigType},
	{&runtimepb.RuntimeDiscoveryService_ServiceDesc, wire.RuntimeType},
	{&listenerpb.ListenerDiscoveryService_ServiceDesc, wire.ListenerType},
	{&routepb.ScopedRoutesDiscoveryService_ServiceDesc, wire.ScopedRouteType},
	{&routepb.RouteDiscoveryService_ServiceDesc, wire.RouteType},
	{&routepb.VirtualHostDiscoveryService_ServiceDesc, wire.VirtualHostType},
}

// Register adds the server's services. The gRPC server must use [wire.Codec].
func (s *Server) Register(r grpc.ServiceRegistrar) {
	for _, sv := range services {
		r.RegisterService(sv.streams(), s)
	}
	if s.cfg.Loads != nil {
		lrspb.RegisterLoadReportingServiceServer(r, loadService{s})
	}
}

// isOwn reports whether a service takes shares of streams itself, see [guard.Config].
func isOwn(service any) bool {
	switch service.(type) {
	case *Server, loadService:
		return true
	default:
		return false
	}
}

// streams returns a description of the service with its streams alone, served by a [*Server]. The Fetch method, which
// defines REST, is left out: gRPC answers UNIMPLEMENTED.
func (sv service) streams() *grpc.ServiceDesc {
	desc := &grpc.ServiceDesc{
		ServiceName: sv.generated.ServiceName,
		HandlerType: (*any)(nil), // the handlers assert the type
		Metadata:    sv.generated.Metadata,
	}
	for _, method := range sv.generated.Streams {
		delta := strings.HasPrefix(method.StreamName, "Delta")
		method.Handler = func(server any, rpc grpc.ServerStream) error {
			return server.(*Server).serve(rpc, sv.typeURL, delta)
		}
		desc.Streams = append(desc.Streams, method)
	}
	return desc
}

// fixType sets the type of a request on a stream of one type, which need not have it (R009), and rejects another one.
// Requests of an aggregated stream must have a type (R010).
func (s *stream) fixType(r *wire.Request) error {
	switch {
	case s.typeURL == "" && r.TypeURL == "":
		return status.Error(codes.InvalidArgument, "type_url is empty: on an aggregated stream each request names its type")
	case s.typeURL == "" || r.TypeURL == s.typeURL:
		return nil
	case r.TypeURL == "":
		r.TypeURL = s.typeURL
		return nil
	default:
		return status.Errorf(codes.InvalidArgument, "type_url is %.256q: this stream serves %q alone; an aggregated one serves any type", r.TypeURL, s.typeURL)
	}
}
