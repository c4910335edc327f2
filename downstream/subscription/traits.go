package subscription

import "github.com/xdstender/tender/cache/wire"

// Traits say how the protocol treats a resource type for one client.
type Traits struct {
	TypeURL string
	Rank    int // place in the order of sending (B.11)

	// FullState: a SotW response holds the client's complete set, and a resource that is absent is
	// removed (R058, R059). Of a type that the protocol does not define, this follows the
	// subscription: see request.updateFullState.
	FullState bool

	// neverHeldBack: the type is full-state by option. A set does not wait for names that the origin
	// has not answered (B.7).
	neverWaits bool

	// grouped: a SotW response holds all that the stream asked for, but absence means nothing (B.17).
	grouped bool

	// legacyWildcard: a client that never gave a name wants everything (B.17).
	legacyWildcard bool

	// LateRemovals: removals wait until what referred to the resources was sent (B.11).
	LateRemovals bool

	// Dependent: resources refer to clusters, so they are never sent before the clusters (B.11).
	Dependent bool

	// alwaysSent: a resource that a client asks for is sent even if the client reports that it has it.
	// An Envoy that warms a cluster or a listener needs it again, and its request does not show that.
	// A relay does not (B.3).
	alwaysSent bool

	// Secret: the server logs which client is sent which resource (B.36).
	Secret bool
}

// Software is what the relay needs to know of a client's software.
type Software struct {
	Envoy bool
	GRPC  bool
	Relay bool // a relay such as this one
}

// TraitsOf returns the traits of a type for a client. Envoy's SotW subscriptions give an empty update to
// the watchers of names that a response omits, so some types are grouped for Envoy.
func (c *Settings) TraitsOf(typeURL string, by Software) Traits {
	t := Traits{
		TypeURL:        typeURL,
		Rank:           wire.Rank(typeURL),
		legacyWildcard: wire.LegacyWildcard(typeURL),
		Dependent:      wire.RefersToClusters(typeURL),
		Secret:         wire.IsSecret(typeURL),
	}
	switch typeURL {
	case wire.ClusterType:
		t.FullState, t.LateRemovals = true, true
	case wire.EndpointType:
		t.LateRemovals, t.alwaysSent = true, !by.Relay
	case wire.ListenerType, wire.ScopedRouteType:
		t.FullState = true
	case wire.SecretType:
		t.grouped, t.alwaysSent = by.Envoy, !by.Relay
	case wire.RuntimeType, wire.ExtensionConfigType:
		t.grouped = by.Envoy
	}
	t.neverWaits = !t.FullState && c.FullState[typeURL]
	t.FullState = t.FullState || t.neverWaits
	t.legacyWildcard = t.legacyWildcard || c.LegacyWildcard[typeURL] && !t.Secret
	return t
}

// followsCut reports whether the type is sent from one cut at a time: clusters, and what refers to them.
func (t *Traits) followsCut() bool { return t.Dependent || t.TypeURL == wire.ClusterType }
