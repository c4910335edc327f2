package wire

import (
	"cmp"
	"strings"

	"github.com/xdstender/tender/cache/wire/schema"
)

// Type URLs of the resources that the protocol defines. [schema.ResourceTypes] has what is defined for each.
const (
	ListenerType        = schema.ListenerType
	ClusterType         = schema.ClusterType
	RouteType           = schema.RouteType
	ScopedRouteType     = schema.ScopedRouteType
	VirtualHostType     = schema.VirtualHostType
	EndpointType        = schema.EndpointType
	LocalityEndpoint    = schema.LocalityEndpoint
	SecretType          = schema.SecretType
	RuntimeType         = schema.RuntimeType
	ExtensionConfigType = schema.ExtensionConfigType
)

// typePrefix begins the type URL of every message of xDS.
const typePrefix = "type.googleapis.com/"

// Wildcard is the resource name that subscribes to the set of resources that the
// server selects (R047).
const Wildcard = "*"

// Rank returns the position of a type in the order in which types are sent: clusters first, unknown types last (B.11).
func Rank(typeURL string) int {
	_, rank := schema.TypeOf(typeURL)
	return rank
}

// CompareTypes compares types by the order in which they are sent, and unknown types by their URLs.
func CompareTypes(a, b string) int { return cmp.Or(Rank(a)-Rank(b), cmp.Compare(a, b)) }

// OrderOf returns the part of a type in make before break (B.11).
func OrderOf(typeURL string) schema.Order {
	t, _ := schema.TypeOf(typeURL)
	return t.Order
}

// RemovedAfter reports whether removals of one type are sent after changes of another type, because the changed
// resources may have referred to the removed ones (B.11). Removals of endpoints are never delayed in this way.
func RemovedAfter(removed, changed string) bool {
	of := OrderOf(removed)
	return OrderOf(changed) == schema.AfterClusters &&
		(of == schema.Clusters || of == schema.AfterClusters && Rank(changed) < Rank(removed))
}

// IsEndpoints reports whether resources of the type are endpoints of clusters.
func IsEndpoints(typeURL string) bool {
	t, _ := schema.TypeOf(typeURL)
	return t.Data
}

// Known reports whether the protocol defines the type. Resources of known types
// always have a name; the name of other resources may be empty (B.22).
func Known(typeURL string) bool {
	t, _ := schema.TypeOf(typeURL)
	return t.URL != ""
}

// FullState reports whether a SotW response of the type contains every resource of the
// subscription, so that an absent resource was removed (R058, R059).
func FullState(typeURL string) bool {
	t, _ := schema.TypeOf(typeURL)
	return t.FullState
}

// OnDemand reports whether names of the type are requested as traffic needs them: a server may take long to answer, its wildcard
// set may omit them, and it may treat a name as a domain.
func OnDemand(typeURL string) bool {
	t, _ := schema.TypeOf(typeURL)
	return t.OnDemand
}

// NeverOld reports whether resources of the type are never kept from clients, or shown to them again: old endpoints are wrong, and
// old Secrets have expired or were revoked.
func NeverOld(typeURL string) bool { return IsEndpoints(typeURL) || IsSecret(typeURL) }

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
	if t, _ := schema.TypeOf(typeURL); t.URL != "" {
		return t.Wildcard
	}
	return !IsSecret(typeURL)
}
