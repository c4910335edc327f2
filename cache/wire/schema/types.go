package schema

import (
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// Type URLs of the resources that the protocol defines (R001). The relay also relays every other type URL, as an opaque type
// (R002).
const (
	prefix = "type.googleapis.com/"

	ClusterType         = prefix + "envoy.config.cluster.v3.Cluster"
	EndpointType        = prefix + "envoy.config.endpoint.v3.ClusterLoadAssignment"
	LocalityEndpoint    = prefix + "envoy.config.endpoint.v3.LbEndpoint"
	SecretType          = prefix + "envoy.extensions.transport_sockets.tls.v3.Secret"
	ExtensionConfigType = prefix + "envoy.config.core.v3.TypedExtensionConfig"
	RuntimeType         = prefix + "envoy.service.runtime.v3.Runtime"
	ListenerType        = prefix + "envoy.config.listener.v3.Listener"
	ScopedRouteType     = prefix + "envoy.config.route.v3.ScopedRouteConfiguration"
	RouteType           = prefix + "envoy.config.route.v3.RouteConfiguration"
	VirtualHostType     = prefix + "envoy.config.route.v3.VirtualHost"
)

// An Order is the part of a type in make before break (B.11): clusters are added first, then their endpoints, then what refers to
// clusters. Removals go the other way round.
type Order uint8

// The parts of types in make before break.
const (
	AnyOrder      Order = iota // sent on their own
	Clusters                   // added first, and removed last
	Endpoints                  // of clusters
	AfterClusters              // they need clusters
)

// LateRemovals reports whether removals are sent after changes of the types that may have referred to the resources (B.11).
func (o Order) LateRemovals() bool { return o == Clusters || o == Endpoints }

// InvolvesClusters reports whether resources are clusters, or need clusters.
func (o Order) InvolvesClusters() bool { return o == Clusters || o == AfterClusters }

// A ResourceType is what the protocol and its clients define for the resources of one type. The zero value is an unknown type.
type ResourceType struct {
	URL   string
	Short string // of the discovery service, such as "cds"
	Path  string // in the URL of a REST poll (R113), such as "clusters"; empty if the type has none
	Noun  string // for messages, such as "cluster"

	// RefersTo are the types that its resources may name.
	RefersTo []string

	// Wildcard means that a client that has never named a resource of the type subscribes to all. If it is false, it
	// does not: an empty request must not fetch the endpoints of a whole mesh (B.17).
	Wildcard bool

	// FullState means that a SotW response has every resource of the subscription, so that an absent one was removed
	// (R058, R059).
	FullState bool

	Order Order

	// Root means that the bootstrap of an Envoy subscribes to all resources. These name those of the other types.
	Root bool

	// Checked means that changes may be held because what other resources name would not exist (B.46).
	Checked bool

	// Within is the type of which a resource is a part, whose name is that of the whole, a slash, and a name in it.
	Within string

	// Keyed means that two resources may exclude one another, such as listeners on one address (B.11).
	Keyed bool

	// Resent means that clients are sent a resource again after a change of one that refers to it, even if it is
	// unchanged (B.16).
	Resent bool

	// AlwaysSent means that a client that subscribes to a resource is sent it, even if it reports that it has it (B.3).
	AlwaysSent bool

	// Grouped means that Envoy takes a resource that a SotW response omits as updated to nothing.
	Grouped bool

	// OnDemand means that names are requested as traffic needs them, and that a server may take long to answer.
	OnDemand bool

	// Data means that resources come and go with the load, as endpoints do: their removal is no sign of a fault, and
	// old ones are wrong.
	Data bool

	// Secret means that content is never shown, logged or stored (B.36).
	Secret bool

	// Nameless means that resources do not contain their name.
	Nameless bool
}

// ResourceTypes are the types that the protocol defines, in the order in which additions are sent on one stream: make before break
// (B.11). A new type is a row here, its service in package downstream, and the references and keys that package wire
// finds.
var ResourceTypes = [...]ResourceType{
	{
		URL: ClusterType, Short: "cds", Path: "clusters", Noun: "cluster", RefersTo: []string{EndpointType, SecretType},
		Wildcard: true, FullState: true, Order: Clusters, Root: true, Checked: true,
	},
	{
		URL: EndpointType, Short: "eds", Path: "endpoints", Noun: "endpoints",
		Order: Endpoints, Resent: true, AlwaysSent: true, Data: true,
	},
	{URL: LocalityEndpoint, Short: "leds", Noun: "locality endpoint", Data: true, Nameless: true},
	{
		URL: SecretType, Short: "sds", Path: "secrets", Noun: "Secret",
		Resent: true, AlwaysSent: true, Grouped: true, Secret: true,
	},
	{
		URL: ExtensionConfigType, Short: "ecds", Path: "extension_configs", Noun: "extension config",
		RefersTo: []string{ClusterType}, Resent: true, Grouped: true,
	},
	{URL: RuntimeType, Short: "rtds", Path: "runtime", Noun: "runtime layer", Grouped: true},
	{
		URL: ListenerType, Short: "lds", Path: "listeners", Noun: "listener",
		RefersTo: []string{ClusterType, RouteType, SecretType, ExtensionConfigType},
		Wildcard: true, FullState: true, Order: AfterClusters, Root: true, Keyed: true,
	},
	{
		URL: ScopedRouteType, Short: "srds", Path: "scoped-routes", Noun: "scoped route", RefersTo: []string{RouteType},
		Wildcard: true, FullState: true, Order: AfterClusters, Keyed: true,
	},
	{
		URL: RouteType, Short: "rds", Path: "routes", Noun: "route configuration",
		RefersTo: []string{ClusterType, ExtensionConfigType}, Order: AfterClusters,
	},
	{
		URL: VirtualHostType, Short: "vhds", Noun: "virtual host", RefersTo: []string{ClusterType},
		Wildcard: true, Order: AfterClusters, Within: RouteType, Keyed: true, OnDemand: true,
	},
}

// ranks are the indices of ResourceTypes by URL.
var ranks = func() map[string]int {
	ranks := make(map[string]int, len(ResourceTypes))
	for i := range ResourceTypes {
		ranks[ResourceTypes[i].URL] = i
	}
	return ranks
}()

// unknown is the row of all other types.
var unknown ResourceType

// TypeOf returns the row of a type URL, and its index in ResourceTypes; a zero row and the number of types for an unknown one. The
// caller must not modify it.
func TypeOf(typeURL string) (t *ResourceType, rank int) {
	if rank, known := ranks[typeURL]; known {
		return &ResourceTypes[rank], rank
	}
	return &unknown, len(ResourceTypes)
}

// TypeURLFor returns the type URL for the short name of a discovery service ("cds"), and whether there is one.
func TypeURLFor(short string) (string, bool) {
	for i := range ResourceTypes {
		if ResourceTypes[i].Short == short {
			return ResourceTypes[i].URL, true
		}
	}
	return "", false
}

// ShortName returns the short name ("cds") for a type URL, and whether it has one.
func ShortName(typeURL string) (string, bool) {
	t, _ := TypeOf(typeURL)
	return t.Short, t.Short != ""
}

// Roots are the types whose rows are roots.
var Roots = func() (urls []string) {
	for i := range ResourceTypes {
		if ResourceTypes[i].Root {
			urls = append(urls, ResourceTypes[i].URL)
		}
	}
	return urls
}()

// ReferrersOf returns the types whose resources may name resources of a type, in the order of ResourceTypes.
func ReferrersOf(typeURL string) (referrers []string) {
	for i := range ResourceTypes {
		if slices.Contains(ResourceTypes[i].RefersTo, typeURL) {
			referrers = append(referrers, ResourceTypes[i].URL)
		}
	}
	return referrers
}

// ResourceName returns the name in an encoded resource of a known type. It needs no
// descriptor. It reports false if the type is unknown or its resources do not contain
// their name (LbEndpoint), and if value is malformed. For a resource with an unset name
// it returns "" and true.
func ResourceName(typeURL string, value []byte) (string, bool) {
	if t, _ := TypeOf(typeURL); t.URL == "" || t.Nameless {
		return "", false
	}
	const nameField = 1 // in all of them
	var name []byte
	for len(value) > 0 {
		num, typ, n := protowire.ConsumeTag(value)
		if n < 0 {
			return "", false
		}
		value = value[n:]
		if num == nameField && typ == protowire.BytesType {
			name, n = protowire.ConsumeBytes(value) // the last value counts
		} else {
			n = protowire.ConsumeFieldValue(num, typ, value)
		}
		if n < 0 {
			return "", false
		}
		value = value[n:]
	}
	return string(name), utf8.Valid(name)
}
