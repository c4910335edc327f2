package wire

import "strings"

// Type URLs of the resources that the protocol defines (R001). The relay also relays
// every other type URL, as an opaque type (R002).
const (
	typePrefix = "type.googleapis.com/"

	ListenerType        = typePrefix + "envoy.config.listener.v3.Listener"
	ClusterType         = typePrefix + "envoy.config.cluster.v3.Cluster"
	RouteType           = typePrefix + "envoy.config.route.v3.RouteConfiguration"
	ScopedRouteType     = typePrefix + "envoy.config.route.v3.ScopedRouteConfiguration"
	VirtualHostType     = typePrefix + "envoy.config.route.v3.VirtualHost"
	EndpointType        = typePrefix + "envoy.config.endpoint.v3.ClusterLoadAssignment"
	LocalityEndpoint    = typePrefix + "envoy.config.endpoint.v3.LbEndpoint"
	SecretType          = typePrefix + "envoy.extensions.transport_sockets.tls.v3.Secret"
	RuntimeType         = typePrefix + "envoy.service.runtime.v3.Runtime"
	ExtensionConfigType = typePrefix + "envoy.config.core.v3.TypedExtensionConfig"
)

// Wildcard is the resource name that subscribes to the set of resources that the
// server selects (R047).
const Wildcard = "*"

// sendOrder lists the known types in the order in which additions are sent on one
// stream: make before break (B.11).
var sendOrder = [...]string{
	ClusterType, EndpointType, LocalityEndpoint, SecretType, ExtensionConfigType, RuntimeType,
	ListenerType, ScopedRouteType, RouteType, VirtualHostType,
}

var ranks = func() map[string]int {
	ranks := make(map[string]int, len(sendOrder))
	for i, typeURL := range sendOrder {
		ranks[typeURL] = i
	}
	return ranks
}()

// Rank returns the position of a type in the order in which types are sent:
// clusters first, unknown types last (B.11).
func Rank(typeURL string) int {
	if r, ok := ranks[typeURL]; ok {
		return r
	}
	return len(sendOrder)
}

// RefersToClusters reports whether resources of the type refer to clusters, so that clusters are sent first (B.11).
func RefersToClusters(typeURL string) bool {
	switch typeURL {
	case ListenerType, ScopedRouteType, RouteType, VirtualHostType:
		return true
	default:
		return false
	}
}

// RemovedAfter reports whether removals of one type are sent after changes of another type, because the changed
// resources may have referred to the removed ones (B.11). Removals of endpoints are never delayed in this way.
func RemovedAfter(removed, changed string) bool {
	return RefersToClusters(changed) &&
		(removed == ClusterType || RefersToClusters(removed) && Rank(changed) < Rank(removed))
}

// IsEndpoints reports whether resources of the type are endpoints of clusters.
func IsEndpoints(typeURL string) bool { return typeURL == EndpointType || typeURL == LocalityEndpoint }

// Known reports whether the protocol defines the type. Resources of known types
// always have a name; the name of other resources may be empty (B.22).
func Known(typeURL string) bool {
	_, ok := ranks[typeURL]
	return ok
}

// FullState reports whether a SotW response of the type contains every resource of the
// subscription, so that an absent resource was removed (R058, R059).
func FullState(typeURL string) bool {
	return typeURL == ListenerType || typeURL == ClusterType || typeURL == ScopedRouteType
}

// secrets are the names of the Secret messages of all protocol versions that control planes have served.
var secrets = map[string]bool{
	"envoy.extensions.transport_sockets.tls.v3.Secret":      true,
	"envoy.extensions.transport_sockets.tls.v4alpha.Secret": true,
	"envoy.api.v2.auth.Secret":                              true,
}

// IsSecret reports whether a type URL names a Secret. Control planes spell the URL in several ways, so only the message
// name after the last slash is compared (B.36).
func IsSecret(typeURL string) bool {
	return typeURL == SecretType || secrets[typeURL[strings.LastIndexByte(typeURL, '/')+1:]]
}

// LegacyWildcard reports whether a client that has never named a resource of the type
// subscribes to the wildcard. For types that are subscribed to by name it does not: an
// empty request must not fetch the endpoints of a whole mesh (B.17).
func LegacyWildcard(typeURL string) bool {
	switch typeURL {
	case EndpointType, LocalityEndpoint, RouteType, ExtensionConfigType, RuntimeType:
		return false
	default:
		return !IsSecret(typeURL)
	}
}
