package relaytest

import discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

// Variant is the variant of the protocol: Delta or SotW.
type Variant int

// Variants of the protocol.
const (
	Delta Variant = iota
	SotW
)

// String returns "delta" or "sotw", for the names of subtests.
func (v Variant) String() string {
	if v == SotW {
		return "sotw"
	}
	return "delta"
}

// methods are the gRPC methods of streams of one type, by type URL and variant. Some types have no SotW.
var methods = map[string]map[Variant]string{
	ListenerType: {
		SotW:  "/envoy.service.listener.v3.ListenerDiscoveryService/StreamListeners",
		Delta: "/envoy.service.listener.v3.ListenerDiscoveryService/DeltaListeners",
	},
	RouteType: {
		SotW:  "/envoy.service.route.v3.RouteDiscoveryService/StreamRoutes",
		Delta: "/envoy.service.route.v3.RouteDiscoveryService/DeltaRoutes",
	},
	ScopedRouteType: {
		SotW:  "/envoy.service.route.v3.ScopedRoutesDiscoveryService/StreamScopedRoutes",
		Delta: "/envoy.service.route.v3.ScopedRoutesDiscoveryService/DeltaScopedRoutes",
	},
	VirtualHostType: {
		Delta: "/envoy.service.route.v3.VirtualHostDiscoveryService/DeltaVirtualHosts",
	},
	ClusterType: {
		SotW:  "/envoy.service.cluster.v3.ClusterDiscoveryService/StreamClusters",
		Delta: "/envoy.service.cluster.v3.ClusterDiscoveryService/DeltaClusters",
	},
	EndpointType: {
		SotW:  "/envoy.service.endpoint.v3.EndpointDiscoveryService/StreamEndpoints",
		Delta: "/envoy.service.endpoint.v3.EndpointDiscoveryService/DeltaEndpoints",
	},
	LocalityEndpointType: {
		Delta: "/envoy.service.endpoint.v3.LocalityEndpointDiscoveryService/DeltaLocalityEndpoints",
	},
	SecretType: {
		SotW:  "/envoy.service.secret.v3.SecretDiscoveryService/StreamSecrets",
		Delta: "/envoy.service.secret.v3.SecretDiscoveryService/DeltaSecrets",
	},
	RuntimeType: {
		SotW:  "/envoy.service.runtime.v3.RuntimeDiscoveryService/StreamRuntime",
		Delta: "/envoy.service.runtime.v3.RuntimeDiscoveryService/DeltaRuntime",
	},
	ExtensionConfigType: {
		SotW:  "/envoy.service.extension.v3.ExtensionConfigDiscoveryService/StreamExtensionConfigs",
		Delta: "/envoy.service.extension.v3.ExtensionConfigDiscoveryService/DeltaExtensionConfigs",
	},
}

// Method returns the full name of the gRPC method for a type in the variant, or of the aggregated method for an empty
// type. It is empty if the protocol has no such method.
func (v Variant) Method(typeURL string) string {
	switch {
	case typeURL != "":
		return methods[typeURL][v]
	case v == SotW:
		return discoverypb.AggregatedDiscoveryService_StreamAggregatedResources_FullMethodName
	default:
		return discoverypb.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName
	}
}
