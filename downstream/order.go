package downstream

import (
	"strings"

	"github.com/xdstender/tender/cache/wire"
)

// traits say how the protocol treats a resource type.
type traits struct {
	typeURL string
	rank    int // place in the order of sending (B.11)

	// fullState: a SotW response holds the client's complete set, and absence is
	// removal (R058, R059). Of a type that the protocol does not define it changes with
	// what the client asks for, see sendWhole.
	fullState bool

	// neverHeld: it is full-state by option, and what the origin has not answered
	// for does not hold back the rest (B.7).
	neverHeld bool

	// grouped: a SotW response holds all that the stream asked for, but absence
	// means nothing (B.17).
	grouped bool

	// legacyWildcard: a client that never gave a name wants everything (B.17).
	legacyWildcard bool

	// lateRemovals: removals wait until what referred to the resources was sent
	// (B.11).
	lateRemovals bool

	// dependent: refers to clusters, and so is never sent ahead of them (B.11).
	dependent bool

	// alwaysSent: a name that a client asks for is sent even if it says that it
	// has it. An Envoy that warms a cluster or a listener needs it again, and
	// nothing in its request tells that; a relay does not (B.3).
	alwaysSent bool

	// secret: who is sent it is logged (B.36).
	secret bool
}

// traitsOf returns the traits of a type for a client. Envoy's SotW
// subscriptions hand an empty update to the watchers of names that a response
// leaves out, so for Envoy some types are grouped.
func (c Config) traitsOf(typeURL string, a agent) traits {
	t := traits{
		typeURL:        typeURL,
		rank:           wire.Rank(typeURL),
		legacyWildcard: wire.LegacyWildcard(typeURL),
		secret:         wire.IsSecret(typeURL),
	}
	switch typeURL {
	case wire.ClusterType:
		t.fullState, t.lateRemovals = true, true
	case wire.EndpointType:
		t.lateRemovals, t.alwaysSent = true, !a.relay
	case wire.ListenerType, wire.ScopedRouteType:
		t.fullState, t.dependent = true, true
	case wire.RouteType, wire.VirtualHostType:
		t.dependent = true
	case wire.SecretType:
		t.grouped, t.alwaysSent = a.envoy, !a.relay
	case wire.RuntimeType, wire.ExtensionConfigType:
		t.grouped = a.envoy
	}
	t.byOption(c)
	return t
}

func (t *traits) byOption(c Config) {
	t.neverHeld = !t.fullState && c.fullState[t.typeURL]
	t.fullState = t.fullState || t.neverHeld
	t.legacyWildcard = t.legacyWildcard || c.wildcard[t.typeURL] && !t.secret
}

// An agent is what the relay wants to know of a client's software.
type agent struct {
	envoy bool
	grpc  bool
	relay bool // one like this
}

func agentOf(n *node) agent {
	return agent{
		envoy: n.GetUserAgentName() == "envoy",
		grpc:  strings.HasPrefix(n.GetUserAgentName(), "gRPC"),
		relay: n.GetUserAgentName() == "tender",
	}
}
