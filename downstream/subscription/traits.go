package subscription

import "github.com/xdstender/tender/cache/wire"

// Traits are the protocol's rules for a resource type and one client.
type Traits struct {
	TypeURL string
	Rank    int // position in the send order (B.11)

	// FullState: a SotW response holds the client's complete set, and the client removes a resource that is absent (R058,
	// R059). For a type that the protocol does not define, requestUpdate.updateFullState sets it.
	FullState bool

	// neverWaits: the type is full-state by option. A set does not wait for names that the origin has not answered (B.7).
	neverWaits bool

	// grouped: a SotW response holds all resources that the stream subscribed to, but absence means nothing (B.17).
	grouped bool

	// legacyWildcard: a client that never gave a name subscribes to all resources (B.17).
	legacyWildcard bool

	// LateRemovals: removals wait until changes to the resources that referred to the removed ones were sent (B.11).
	LateRemovals bool

	// Dependent: resources refer to clusters, so they are never sent before the clusters (B.11).
	Dependent bool

	// alwaysSent: a resource that a client subscribes to is sent even if the client reports that it has it. An Envoy that
	// warms a cluster or a listener needs it again, and its request does not show that. A relay does not (B.3).
	alwaysSent bool

	// Secret: the server logs which client is sent which Secret (B.36).
	Secret bool
}

// Software describes a client's software.
type Software struct {
	Envoy bool
	GRPC  bool
	Relay bool // another Tender
}

// TraitsOf returns the traits of a type for a client. Envoy's SotW subscriptions deliver an empty update to the
// watchers of names that a response omits, so some types are grouped for Envoy.
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

// followsCut reports whether the type is read from [Turn.Cut]: clusters, and types that refer to them.
func (t *Traits) followsCut() bool { return t.Dependent || t.TypeURL == wire.ClusterType }
