package downstream

import (
	"strings"
	"time"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	extensionpb "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	listenerpb "github.com/envoyproxy/go-control-plane/envoy/service/listener/v3"
	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	routepb "github.com/envoyproxy/go-control-plane/envoy/service/route/v3"
	runtimepb "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	secretpb "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/downstream/loadreport"
	"github.com/xdstender/tender/downstream/transport"
)

// New returns a server. It returns an error if Config.Views is nil.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg:              cfg,
		nackLog:          guard.NewLogLimiter(5, 20),
		badNameLog:       guard.NewLogLimiter(5, 20),
		reportLog:        guard.NewLogLimiter(5, 20),
		largeResponseLog: guard.NewLogLimiter(rate.Every(time.Minute), 5),
		draining:         make(chan struct{}),
		stopping:         make(chan struct{}),
		slots:            guard.NewSlots(),
		idle:             make(chan struct{}),
	}
	s.queue.runTurn = (*stream).takeTurn
	s.guard = guard.New(guard.Config{
		Limits: cfg.Limits, Own: isStreamService, KeepNodes: func() bool { return s.cfg.grantsChanged() != nil },
		DynamicParameters: cfg.DynamicParameters, Draining: s.draining, Logger: cfg.Logger,
	})
	s.loads = loadreport.New(loadreport.Config{
		Origin: cfg.Loads, Sum: cfg.SumLoads, Identify: loadService{s}.identifyReporter,
		FirstRequestTimeout: cfg.FirstRequestTimeout, SendStall: cfg.SendStall,
		MaxRequestRate: cfg.MaxRequestRate, Draining: s.draining, Logger: cfg.Logger,
	})
	return s, nil
}

// Guard returns the guard that limits the clients of the server. The gRPC server and the HTTP server for polls must use
// its listeners, credentials and interceptors.
func (s *Server) Guard() *guard.Guard { return s.guard }

// A service is the gRPC service of one resource type, or of all types if typeURL is empty.
type service struct {
	generated *grpc.ServiceDesc
	typeURL   string
}

// services are the gRPC services of a server (R007, R008), with the variants that the protocol defines. VHDS and LEDS
// have only the Delta variant.
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

// Register registers the services. The gRPC server must use [wire.Codec].
func (s *Server) Register(r grpc.ServiceRegistrar) {
	for _, sv := range services {
		r.RegisterService(sv.streamDesc(), s)
	}
	if s.cfg.Loads != nil {
		lrspb.RegisterLoadReportingServiceServer(r, loadService{s})
	}
}

// Methods returns the methods that Register registers, except load reports, by their path, for [transport.Config].
func (s *Server) Methods() map[string]func(*transport.Stream) transport.Receiver {
	streams := make(map[string]func(*transport.Stream) transport.Receiver)
	for _, sv := range services {
		for _, method := range sv.generated.Streams {
			delta := isDelta(method)
			streams["/"+sv.generated.ServiceName+"/"+method.StreamName] = func(rpc *transport.Stream) transport.Receiver {
				return s.open(rpc, sv.typeURL, delta)
			}
		}
	}
	return streams
}

func isDelta(method grpc.StreamDesc) bool { return strings.HasPrefix(method.StreamName, "Delta") }

// isStreamService reports whether a service counts its streams and releases its requests itself; see [guard.Config].
func isStreamService(service any) bool {
	switch service.(type) {
	case *Server, loadService:
		return true
	default:
		return false
	}
}

// streamDesc returns a description of the service with only its streaming methods, served by a [*Server]. It omits the
// unary Fetch method, so gRPC responds with UNIMPLEMENTED.
func (sv service) streamDesc() *grpc.ServiceDesc {
	desc := &grpc.ServiceDesc{
		ServiceName: sv.generated.ServiceName,
		HandlerType: (*any)(nil), // the handlers assert the type
		Metadata:    sv.generated.Metadata,
	}
	for _, method := range sv.generated.Streams {
		delta := isDelta(method)
		method.Handler = func(server any, rpc grpc.ServerStream) error {
			return server.(*Server).serveStream(rpc, sv.typeURL, delta)
		}
		desc.Streams = append(desc.Streams, method)
	}
	return desc
}
