package relaytest

import (
	"net"
	"strconv"
	"strings"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routepb "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Type URLs of resource types.
const (
	ListenerType         = "type.googleapis.com/envoy.config.listener.v3.Listener"
	RouteType            = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	ScopedRouteType      = "type.googleapis.com/envoy.config.route.v3.ScopedRouteConfiguration"
	VirtualHostType      = "type.googleapis.com/envoy.config.route.v3.VirtualHost"
	ClusterType          = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	EndpointType         = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	LocalityEndpointType = "type.googleapis.com/envoy.config.endpoint.v3.LbEndpoint"
	SecretType           = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
	RuntimeType          = "type.googleapis.com/envoy.service.runtime.v3.Runtime"
	ExtensionConfigType  = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"
)

// wrapperType is the type of the message in which SotW wraps a resource to give it a name.
const wrapperType = "type.googleapis.com/envoy.service.discovery.v3.Resource"

// redirectType is the type of a redirect to another resource name.
const redirectType = "type.googleapis.com/xds.core.v3.ResourceLocator"

// Client features in their current spelling.
const (
	FeatureTTL     = "xds.config.supports-resource-ttl"
	FeatureWrapper = "xds.config.resource-in-sotw"
)

// WithFeatures returns a copy of a Node with further client features.
func WithFeatures(n *corepb.Node, more ...string) *corepb.Node {
	n = proto.CloneOf(n)
	n.ClientFeatures = append(n.ClientFeatures, more...)
	return n
}

// features are the client features of a Node that affect responses.
type features struct{ wrap, ttl bool }

// featuresOf returns the client features of a Node, in any of their spellings.
func featuresOf(n *corepb.Node) (f features) {
	for _, feature := range n.GetClientFeatures() {
		f.wrap = f.wrap || strings.HasSuffix(feature, "resource-in-sotw")
		f.ttl = f.ttl || strings.HasSuffix(feature, "supports-resource-ttl")
	}
	return f
}

// EnvoyNode returns the Node of an Envoy with an ID.
func EnvoyNode(id string) *corepb.Node {
	return &corepb.Node{
		Id:            id,
		Cluster:       "edge",
		UserAgentName: "envoy",
		UserAgentVersionType: &corepb.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corepb.BuildVersion{
			Version: &typepb.SemanticVersion{MajorNumber: 1, MinorNumber: 36},
		}},
	}
}

// GRPCNode returns the Node of a gRPC-Go client with an ID.
func GRPCNode(id string) *corepb.Node {
	return &corepb.Node{
		Id:                   id,
		UserAgentName:        "gRPC Go",
		UserAgentVersionType: &corepb.Node_UserAgentVersion{UserAgentVersion: "1.85.0"},
		ClientFeatures:       []string{"envoy.lb.does_not_support_overprovisioning", "xds.config.resource-in-sotw"},
	}
}

// Cluster returns a Cluster whose endpoints come from EDS over ADS, under edsService if given, else under its own name.
func Cluster(name string, edsService ...string) *clusterpb.Cluster {
	c := &clusterpb.Cluster{
		Name:                 name,
		ConnectTimeout:       durationpb.New(5e9),
		ClusterDiscoveryType: &clusterpb.Cluster_Type{Type: clusterpb.Cluster_EDS},
		EdsClusterConfig:     &clusterpb.Cluster_EdsClusterConfig{EdsConfig: overADS()},
	}
	if len(edsService) > 0 {
		c.EdsClusterConfig.ServiceName = edsService[0]
	}
	return c
}

// StaticCluster returns a Cluster with static endpoints, each a host:port.
func StaticCluster(name string, addrs ...string) *clusterpb.Cluster {
	return &clusterpb.Cluster{
		Name:                 name,
		ConnectTimeout:       durationpb.New(5e9),
		ClusterDiscoveryType: &clusterpb.Cluster_Type{Type: clusterpb.Cluster_STATIC},
		LoadAssignment:       Endpoints(name, addrs...),
	}
}

// Endpoints returns the ClusterLoadAssignment of a cluster, or of its EDS service name, with addresses in one locality.
// Each address is a host:port. The locality has a weight, because gRPC ignores localities without a weight.
func Endpoints(cluster string, addrs ...string) *endpointpb.ClusterLoadAssignment {
	locality := &endpointpb.LocalityLbEndpoints{
		Locality:            &corepb.Locality{Region: "region", Zone: "zone"},
		LoadBalancingWeight: wrapperspb.UInt32(1),
	}
	for _, addr := range addrs {
		locality.LbEndpoints = append(locality.LbEndpoints, &endpointpb.LbEndpoint{
			HostIdentifier: &endpointpb.LbEndpoint_Endpoint{Endpoint: &endpointpb.Endpoint{Address: address(addr)}},
		})
	}
	return &endpointpb.ClusterLoadAssignment{
		ClusterName: cluster,
		Endpoints:   []*endpointpb.LocalityLbEndpoints{locality},
	}
}

// Listener returns an HTTP listener for Envoy on a loopback port that the kernel chooses. Its routes come from RDS over
// ADS.
func Listener(name, routeName string) *listenerpb.Listener {
	return &listenerpb.Listener{
		Name:    name,
		Address: address("127.0.0.1:0"),
		FilterChains: []*listenerpb.FilterChain{{
			Filters: []*listenerpb.Filter{{
				Name:       "envoy.filters.network.http_connection_manager",
				ConfigType: &listenerpb.Filter_TypedConfig{TypedConfig: Pack(connectionManager(routeName))},
			}},
		}},
	}
}

// APIListener returns a listener for gRPC clients.
func APIListener(name, routeName string) *listenerpb.Listener {
	return &listenerpb.Listener{
		Name:        name,
		ApiListener: &listenerpb.ApiListener{ApiListener: Pack(connectionManager(routeName))},
	}
}

// Route returns a RouteConfiguration that routes all paths of the domains to one cluster.
func Route(name string, domains []string, cluster string) *routepb.RouteConfiguration {
	return &routepb.RouteConfiguration{
		Name: name,
		VirtualHosts: []*routepb.VirtualHost{{
			Name:    name,
			Domains: domains,
			Routes: []*routepb.Route{{
				Match: &routepb.RouteMatch{PathSpecifier: &routepb.RouteMatch_Prefix{Prefix: "/"}},
				Action: &routepb.Route_Route{Route: &routepb.RouteAction{
					ClusterSpecifier: &routepb.RouteAction_Cluster{Cluster: cluster},
				}},
			}},
		}},
	}
}

// Opaque returns a resource of an unknown type. Its value is a message with the name as field 1, as in all xDS types,
// and the payload as field 2.
func Opaque(typeURL, name string, payload []byte) *anypb.Any {
	b := protowire.AppendTag(nil, 1, protowire.BytesType)
	b = protowire.AppendString(b, name)
	b = protowire.AppendTag(b, 2, protowire.BytesType)
	b = protowire.AppendBytes(b, payload)
	return &anypb.Any{TypeUrl: typeURL, Value: b}
}

func connectionManager(routeName string) *hcmpb.HttpConnectionManager {
	return &hcmpb.HttpConnectionManager{
		StatPrefix: routeName,
		RouteSpecifier: &hcmpb.HttpConnectionManager_Rds{Rds: &hcmpb.Rds{
			ConfigSource:    overADS(),
			RouteConfigName: routeName,
		}},
		HttpFilters: []*hcmpb.HttpFilter{{
			Name:       "envoy.filters.http.router",
			ConfigType: &hcmpb.HttpFilter_TypedConfig{TypedConfig: Pack(&routerpb.Router{})},
		}},
	}
}

func overADS() *corepb.ConfigSource {
	return &corepb.ConfigSource{
		ResourceApiVersion:    corepb.ApiVersion_V3,
		ConfigSourceSpecifier: &corepb.ConfigSource_Ads{Ads: &corepb.AggregatedConfigSource{}},
	}
}

// address parses a host:port. A missing or invalid port becomes 0.
func address(hostport string) *corepb.Address {
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	n, _ := strconv.ParseUint(port, 10, 16)
	return &corepb.Address{Address: &corepb.Address_SocketAddress{SocketAddress: &corepb.SocketAddress{
		Address:       host,
		PortSpecifier: &corepb.SocketAddress_PortValue{PortValue: uint32(n)},
	}}}
}

// Pack packs m into an Any with deterministic bytes. It panics if m cannot be marshalled, which does not happen for
// messages of this package.
func Pack(m proto.Message) *anypb.Any {
	if a, ok := m.(*anypb.Any); ok {
		return a
	}
	a := &anypb.Any{}
	if err := anypb.MarshalFrom(a, m, proto.MarshalOptions{Deterministic: true}); err != nil {
		panic("pack resource: " + err.Error())
	}
	return a
}
