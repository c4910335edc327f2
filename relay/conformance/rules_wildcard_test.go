package conformance_test

import (
	"slices"
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/relay/relaytest"
)

// wildcardTypes are those whose first empty request is a wildcard, one for each
// way in which SotW responses are made.
var wildcardTypes = []string{relaytest.ClusterType, relaytest.ListenerType, relaytest.ScopedRouteType, sendAcme}

// The name * subscribes to all, of any type.
func TestR047_StarSubscribesToAll(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		types := append([]string{relaytest.EndpointType, relaytest.RouteType, relaytest.RuntimeType}, wildcardTypes...)
		o := sendOrigin(t, relaytest.OriginOptions{}, types, "a", "b")
		c := start(t, o).Client(relaytest.ClientOptions{Variant: v})
		for _, typeURL := range types {
			c.Subscribe(typeURL, "*")
			streamTake(t, c, typeURL, "a", "b")
			o.Put(sendThing(typeURL, "c", "first"))
			want := []string{"c"}
			if v == relaytest.SotW && slices.Contains(wildcardTypes, typeURL) {
				want = []string{"a", "b", "c"}
			}
			streamTake(t, c, typeURL, want...)
		}
	})
}

// A first request without names is a wildcard, on each new stream anew.
func TestR048_FirstEmptyRequestIsWildcard(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		o := sendOrigin(t, relaytest.OriginOptions{}, wildcardTypes, "a", "b")
		r := start(t, o)
		for range 2 {
			c := r.Client(relaytest.ClientOptions{Variant: v})
			for _, typeURL := range wildcardTypes {
				c.Subscribe(typeURL)
				streamTake(t, c, typeURL, "a", "b")
			}
			// Names end it on this stream only.
			for _, typeURL := range wildcardTypes {
				c.Unsubscribe(typeURL, "*")
			}
			c.Close()
		}
	})
}

// The specification's own example: {} → {*,A} → {A} → {}.
func TestR049_SotWSequence(t *testing.T) {
	t.Parallel()
	for _, typeURL := range wildcardTypes {
		t.Run(typeURL, func(t *testing.T) {
			o := sendOrigin(t, relaytest.OriginOptions{}, []string{typeURL}, "a", "b")
			c := start(t, o).Client(relaytest.ClientOptions{Variant: relaytest.SotW})
			step := func(names ...string) {
				last := &discoverypb.DiscoveryRequest{TypeUrl: typeURL, ResourceNames: names}
				last.Node = relaytest.EnvoyNode("client")
				for _, resp := range c.Responses() {
					if resp.TypeURL == typeURL {
						last.ResponseNonce, last.VersionInfo = resp.Nonce, resp.Version
					}
				}
				c.Send(last)
			}
			step()
			streamTake(t, c, typeURL, "a", "b")
			o.Put(sendThing(typeURL, "b", "second"))
			streamTake(t, c, typeURL, "a", "b")

			step("*", "a")
			streamTake(t, c, typeURL, "a", "b")
			o.Put(sendThing(typeURL, "b", "third"))
			streamTake(t, c, typeURL, "a", "b")

			step("a")
			sendSync(t, o, c)
			o.Put(sendThing(typeURL, "b", "fourth"))
			o.Put(sendThing(typeURL, "a", "second"))
			streamTake(t, c, typeURL, "a")

			step()
			sendWatchSentinel(t, o, c)
			o.Put(sendThing(typeURL, "b", "fifth"), sendThing(typeURL, "a", "third"))
			sendQuiet(t, o, c, "after the names")
			step("*")
			streamTake(t, c, typeURL, "a", "b")
		})
	}
}

// The same in Delta: {} → +A → -* → -A. The wildcard's end leaves A.
func TestR050_DeltaSequence(t *testing.T) {
	t.Parallel()
	for _, typeURL := range wildcardTypes {
		t.Run(typeURL, func(t *testing.T) {
			o := sendOrigin(t, relaytest.OriginOptions{}, []string{typeURL}, "a", "b")
			c := start(t, o).Client(relaytest.ClientOptions{})
			c.Subscribe(typeURL)
			streamTake(t, c, typeURL, "a", "b")
			o.Put(sendThing(typeURL, "b", "second"))
			streamTake(t, c, typeURL, "b")

			c.Subscribe(typeURL, "a")
			streamTake(t, c, typeURL, "a")
			o.Put(sendThing(typeURL, "b", "third"))
			streamTake(t, c, typeURL, "b")

			c.Unsubscribe(typeURL, "*")
			sendSync(t, o, c)
			o.Put(sendThing(typeURL, "b", "fourth"))
			o.Put(sendThing(typeURL, "a", "second"))
			streamTake(t, c, typeURL, "a")

			c.Unsubscribe(typeURL, "a")
			sendWatchSentinel(t, o, c)
			o.Put(sendThing(typeURL, "b", "fifth"), sendThing(typeURL, "a", "third"))
			sendQuiet(t, o, c, "after the names")
		})
	}
}

// Once any name was given, * included, an empty list is no wildcard, whatever
// came before.
func TestR051_NamesEndTheLegacyMeaning(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		for _, first := range []string{"*", "a", "missing"} {
			o := sendOrigin(t, relaytest.OriginOptions{}, wildcardTypes, "a", "b")
			c := start(t, o).Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
			for _, typeURL := range wildcardTypes {
				c.Subscribe(typeURL, first)
				switch {
				case first == "*":
					c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(typeURL, "a", "b") })
				case first == "a" || v == relaytest.Delta || typeURL != sendAcme:
					c.Recv(t.Context())
				}
				c.Unsubscribe(typeURL, first)
				if v == relaytest.Delta {
					c.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: typeURL})
				}
			}
			o.Put(sendThing(sendSentinel, "sentinel", "begin"))
			c.Subscribe(sendSentinel, "sentinel")
			c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(sendSentinel, "sentinel") })
			for _, typeURL := range wildcardTypes {
				o.Put(sendThing(typeURL, "a", "second"), sendThing(typeURL, "b", "second"))
			}
			sendQuiet(t, o, c, "after "+first)
		}
	})
}

// Delta: what the wildcard brings cannot be given up one by one.
func TestR053_MembersCannotBeUnsubscribed(t *testing.T) {
	t.Parallel()
	for _, form := range [][]string{nil, {"*"}} {
		o := sendOrigin(t, relaytest.OriginOptions{}, wildcardTypes, "a", "b")
		c := start(t, o).Client(relaytest.ClientOptions{})
		for _, typeURL := range wildcardTypes {
			c.Subscribe(typeURL, form...)
			streamTake(t, c, typeURL, "a", "b")
			c.Unsubscribe(typeURL, "b")
			sendSync(t, o, c)
			c.Fence(t.Context(), typeURL, "b", func() { o.Put(sendThing(typeURL, "b", "second")) })
		}
	}
}

// SotW has no way to say it: a list with * and other names takes nothing away.
func TestR053_SotWListBesideStarTakesNothingAway(t *testing.T) {
	t.Parallel()
	o := sendOrigin(t, relaytest.OriginOptions{}, []string{relaytest.RouteType}, "a", "b")
	c := start(t, o).Client(relaytest.ClientOptions{Variant: relaytest.SotW})
	c.Subscribe(relaytest.RouteType, "*", "b")
	streamTake(t, c, relaytest.RouteType, "b")
	streamTake(t, c, relaytest.RouteType, "a")
	c.Unsubscribe(relaytest.RouteType, "b")
	sendSync(t, o, c)
	c.Fence(t.Context(), relaytest.RouteType, "b", func() { o.Put(sendThing(relaytest.RouteType, "b", "second")) })
}

// A name in both lists of a request is unsubscribed; * in both is no wildcard,
// and no legacy one either. A name twice in one list counts once.
func TestB22_OverlappingLists(t *testing.T) {
	t.Parallel()
	for _, typeURL := range wildcardTypes {
		o := sendOrigin(t, relaytest.OriginOptions{}, []string{typeURL}, "a", "b")
		c := start(t, o).Client(relaytest.ClientOptions{})
		request := func(subscribe, unsubscribe []string) {
			c.Send(&discoverypb.DeltaDiscoveryRequest{Node: relaytest.EnvoyNode("client"), TypeUrl: typeURL,
				ResourceNamesSubscribe: subscribe, ResourceNamesUnsubscribe: unsubscribe})
		}
		request([]string{"*", "a"}, []string{"*"})
		streamTake(t, c, typeURL, "a")
		request([]string{"b"}, []string{"b"})
		request(nil, nil)
		sendWatchSentinel(t, o, c)
		o.Put(sendThing(typeURL, "b", "second"), sendThing(typeURL, "c", "first"))
		sendQuiet(t, o, c, "neither")
		request([]string{"b", "b"}, nil)
		streamTake(t, c, typeURL, "b")
		request(nil, []string{"b", "b"})
		sendSync(t, o, c)
		o.Put(sendThing(typeURL, "b", "third"))
		sendQuiet(t, o, c, "gave up b")
	}
}

// C17 is B.22 while the name is subscribed and while it is a member.
func TestC17_SubscribeAndUnsubscribeAtOnce(t *testing.T) {
	t.Parallel()
	both := &discoverypb.DeltaDiscoveryRequest{TypeUrl: sendAcme,
		ResourceNamesSubscribe: []string{"a"}, ResourceNamesUnsubscribe: []string{"a"}}
	o := sendOrigin(t, relaytest.OriginOptions{}, []string{sendAcme}, "a")
	r := start(t, o)

	named := r.Client(relaytest.ClientOptions{})
	named.Subscribe(sendAcme, "a")
	streamTake(t, named, sendAcme, "a")
	named.Send(both)
	sendWatchSentinel(t, o, named)
	o.Put(sendThing(sendAcme, "a", "second"))
	sendQuiet(t, o, named, "gave up a")

	wildcard := r.Client(relaytest.ClientOptions{})
	wildcard.Subscribe(sendAcme, "*")
	streamTake(t, wildcard, sendAcme, "a")
	wildcard.Send(both)
	streamTake(t, wildcard, sendAcme, "a") // what became of it must be said (R079)
	wildcard.Fence(t.Context(), sendAcme, "a", func() { o.Put(sendThing(sendAcme, "a", "third")) })
}

// An EDS request without names fetches nothing; the wildcard outlives the first
// name in Delta, and in SotW if * is said.
func TestC16_EmptyIsNotAll(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		named := []string{relaytest.EndpointType, relaytest.RouteType, relaytest.SecretType,
			relaytest.ExtensionConfigType, relaytest.RuntimeType}
		o := sendOrigin(t, relaytest.OriginOptions{}, append([]string{relaytest.ClusterType}, named...), "a", "b")
		c := start(t, o).Client(relaytest.ClientOptions{Variant: v})
		for _, typeURL := range named {
			c.Subscribe(typeURL)
		}
		sendWatchSentinel(t, o, c)
		for _, typeURL := range named {
			if v == relaytest.SotW {
				c.Send(&discoverypb.DiscoveryRequest{TypeUrl: typeURL, ResourceNames: []string{"a"}})
			} else {
				c.Subscribe(typeURL, "a")
			}
			streamTake(t, c, typeURL, "a")
			c.Unsubscribe(typeURL, "a")
			sendSync(t, o, c)
			o.Put(sendThing(typeURL, "a", "second"), sendThing(typeURL, "b", "second"))
		}
		sendQuiet(t, o, c, "no wildcard")
		for _, typeURL := range named {
			if s := o.State(); s.Type(typeURL).Wildcard {
				t.Errorf("the origin was asked for all of %s", typeURL)
			}
		}
		c.Subscribe(relaytest.ClusterType)
		streamTake(t, c, relaytest.ClusterType, "a", "b")
		c.Subscribe(relaytest.ClusterType, "b")
		want := []string{"b"}
		if v == relaytest.SotW {
			want = []string{"a", "b"}
		}
		streamTake(t, c, relaytest.ClusterType, want...)
		c.Fence(t.Context(), relaytest.ClusterType, "a", func() { o.Put(sendThing(relaytest.ClusterType, "a", "second")) })
	})
}
