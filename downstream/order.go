package downstream

import (
	"strings"

	"github.com/xdstender/tender/cache/wire"
)

// traits say how the protocol treats a resource type.
type Traits struct {
	TypeURL string
	Rank    int // place in the order of sending (B.11)

	// fullState: a SotW response holds the client's complete set, and absence is
	// removal (R058, R059). Of a type that the protocol does not define it changes with
	// what the client asks for, see sendWhole.
	FullState bool

	// neverHeld: it is full-state by option, and what the origin has not answered
	// for does not hold back the rest (B.7).
	neverHeldBack bool

	// grouped: a SotW response holds all that the stream asked for, but absence
	// means nothing (B.17).
	grouped bool

	// legacyWildcard: a client that never gave a name wants everything (B.17).
	legacyWildcard bool

	// lateRemovals: removals wait until what referred to the resources was sent
	// (B.11).
	LateRemovals bool

	// dependent: refers to clusters, and so is never sent ahead of them (B.11).
	Dependent bool

	// alwaysSent: a name that a client asks for is sent even if it says that it
	// has it. An Envoy that warms a cluster or a listener needs it again, and
	// nothing in its request tells that; a relay does not (B.3).
	alwaysSent bool

	// secret: who is sent it is logged (B.36).
	Secret bool
}

// traitsOf returns the traits of a type for a client. Envoy's SotW
// subscriptions hand an empty update to the watchers of names that a response
// leaves out, so for Envoy some types are grouped.
func (c Config) traitsOf(typeURL string, a Software) Traits {
	t := Traits{
		TypeURL:        typeURL,
		Rank:           wire.Rank(typeURL),
		legacyWildcard: wire.LegacyWildcard(typeURL),
		Secret:         wire.IsSecret(typeURL),
	}
	switch typeURL {
	case wire.ClusterType:
		t.FullState, t.LateRemovals = true, true
	case wire.EndpointType:
		t.LateRemovals, t.alwaysSent = true, !a.Relay
	case wire.ListenerType, wire.ScopedRouteType:
		t.FullState, t.Dependent = true, true
	case wire.RouteType, wire.VirtualHostType:
		t.Dependent = true
	case wire.SecretType:
		t.grouped, t.alwaysSent = a.Envoy, !a.Relay
	case wire.RuntimeType, wire.ExtensionConfigType:
		t.grouped = a.Envoy
	}
	t.byOption(c)
	return t
}

func (t *Traits) byOption(c Config) {
	t.neverHeldBack = !t.FullState && c.fullState[t.TypeURL]
	t.FullState = t.FullState || t.neverHeldBack
	t.legacyWildcard = t.legacyWildcard || c.wildcard[t.TypeURL] && !t.Secret
}

// An agent is what the relay wants to know of a client's software.
type Software struct {
	Envoy bool
	GRPC  bool
	Relay bool // one like this
}

func agentOf(n *node) Software {
	return Software{
		Envoy: n.GetUserAgentName() == "envoy",
		GRPC:  strings.HasPrefix(n.GetUserAgentName(), "gRPC"),
		Relay: n.GetUserAgentName() == "tender",
	}
}
