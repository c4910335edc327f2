package conformance_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/relay/relaytest"
)

// initial_resource_versions after the first request of a type have no effect: nothing is removed or omitted
// because of them.
func TestR087_LateVersionsHaveNoEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		types := []string{relaytest.ClusterType, relaytest.RouteType, acmeThing}
		o := originWith(t, relaytest.OriginOptions{Memory: true}, types, "a", "b")
		c := start(t, o).Client(relaytest.ClientOptions{})
		for _, typeURL := range types {
			versions := make(map[string]string)
			for name, e := range o.Resources()[typeURL] {
				versions[name] = e.Version
			}
			versions["phantom"] = "1"
			c.Subscribe(typeURL, "a")
			recvAndAck(t, c, typeURL, "a")
			for _, names := range [][]string{{"b"}, {"a"}, nil} {
				c.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: names,
					InitialResourceVersions: versions})
				if names != nil {
					recvAndAck(t, c, typeURL, names...)
				}
			}
			c.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: []string{"*"},
				InitialResourceVersions: versions})
			recvAndAck(t, c, typeURL) // a and b are subscribed to by name, and there are no others
		}
		sleep(settled)
		if resp := c.TryRecv(); resp != nil {
			t.Errorf("got %v, want no response", resp)
		}
	})
}

// R084: a new subscription overrides the version that a client has reported: the resource is resent.
func TestR084_ResubscriptionOverridesInitialVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := originWith(t, relaytest.OriginOptions{Memory: true}, []string{acmeThing}, "a", "b")
		r := start(t, o)
		versions := make(map[string]string)
		for name, e := range o.Resources()[acmeThing] {
			versions[name] = e.Version
		}
		for _, second := range []string{"a", "*"} {
			c := r.Client(relaytest.ClientOptions{})
			for _, names := range [][]string{{"*"}, {second}} { // both requests arrive before the first response
				c.Send(&discoverypb.DeltaDiscoveryRequest{Node: relaytest.EnvoyNode("e"), TypeUrl: acmeThing,
					ResourceNamesSubscribe: names, InitialResourceVersions: versions})
			}
			want := []string{"a", "b"}
			if second == "a" {
				want = []string{"a"}
			}
			recvAndAck(t, c, acmeThing, want...)
		}
	})
}

// Resources without a version get one that is derived from their content. It is the same in every relay, and valid
// for reconnecting clients.
func TestR090_DerivedVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		types := []string{relaytest.ClusterType, relaytest.RouteType, acmeThing}
		o := originWith(t, relaytest.OriginOptions{Memory: true, Behaviour: relaytest.Behaviour{EmptyVersions: true}}, types,
			"a", "b")
		var states []relaytest.State
		for range 2 {
			r := start(t, o)
			c := r.Client(relaytest.ClientOptions{AutoAck: true})
			for _, typeURL := range types {
				c.Subscribe(typeURL, "*")
				c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(typeURL, "a", "b") })
			}
			states = append(states, c.State())
			before := len(c.Responses())
			time.Sleep(time.Minute) // until the sets are confirmed
			c.Reconnect(r.Conn())
			sleep(time.Minute)
			if got := c.Responses()[before:]; len(got) > 0 {
				t.Errorf("an up-to-date client got %v", got)
			}
			r.Stop()
		}
		for _, typeURL := range types {
			for _, name := range []string{"a", "b"} {
				one, two := states[0][typeURL][name], states[1][typeURL][name]
				if one != two || len(one.Version) != len("h1.")+22 || one.Version[:3] != "h1." {
					t.Errorf("%s: got the versions %q and %q, want equal ones of the form h1.…", name, one.Version, two.Version)
				}
			}
			if a, b := states[0][typeURL]["a"], states[0][typeURL]["b"]; a.Version == b.Version {
				t.Errorf("different resources have the same version %q", a.Version)
			}
		}
	})
}

// The origin's system version is passed on, and has no other effect.
func TestR091_SystemVersionIsNotCompared(t *testing.T) {
	t.Parallel()
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		types := []string{relaytest.ClusterType, relaytest.EndpointType, acmeThing}
		o := originWith(t, relaytest.OriginOptions{Behaviour: relaytest.Behaviour{SystemVersion: "one"}}, types, "a", "b")
		c := start(t, o).Client(relaytest.ClientOptions{Variant: v})
		for _, typeURL := range types {
			if typeURL == acmeThing {
				c.Subscribe(typeURL, "a", "b") // a wildcard response would contain both (B.17)
			} else {
				c.Subscribe(typeURL, "*")
			}
			recvAndAck(t, c, typeURL, "a", "b")
		}
		watchSentinel(t, o, c)
		for _, system := range []string{"two", "", "one"} {
			o.Change(func(b *relaytest.Behaviour) { b.SystemVersion = system })
			for _, typeURL := range types {
				o.Put(opaque(typeURL, "a", "first"))
			}
			expectNoneInFlight(t, o, c, "version "+system)
		}
		// Changed content of the same system version is sent.
		for _, typeURL := range types {
			c.Fence(t.Context(), typeURL, "a", func() { o.Put(opaque(typeURL, "a", "second")) })
		}
	})
}

// C18: a name that a client subscribes to by mistake is a normal subscription. It is not sent any more once the
// client has unsubscribed.
func TestC18_PhantomNamesAreOrdinary(t *testing.T) {
	t.Parallel()
	for _, typeURL := range []string{relaytest.ClusterType, acmeThing} {
		o := originWith(t, relaytest.OriginOptions{}, []string{typeURL}, "a", "b")
		r := start(t, o)
		c := r.Client(relaytest.ClientOptions{})
		// As Envoy does, subscribe to the wildcard and to names of resources that it holds.
		c.Send(&discoverypb.DeltaDiscoveryRequest{Node: relaytest.EnvoyNode("e"), TypeUrl: typeURL,
			ResourceNamesSubscribe:  []string{"*", "b", "phantom"},
			InitialResourceVersions: map[string]string{"b": "old", "phantom": "1"}})
		removed := false
		for !removed || !c.State().Has(typeURL, "a", "b") {
			resp := c.Recv(t.Context())
			removed = removed || slices.Equal(resp.Removed, []string{"phantom"})
			c.Ack(resp)
		}
		c.Fence(t.Context(), typeURL, "phantom", func() { o.Put(opaque(typeURL, "phantom", "first")) })
		c.Unsubscribe(typeURL, "*")
		awaitRequestsRead(t, o, c)

		o.Put(opaque(typeURL, "b", "second"))
		held := c.Recv(t.Context())
		o.Put(opaque(typeURL, "phantom", "second"))
		awaitApplied(t, r, typeURL, "phantom", "second")
		c.Unsubscribe(typeURL, "phantom")
		c.Ack(held)
		c.Fence(t.Context(), typeURL, "b", func() { o.Put(opaque(typeURL, "b", "third")) })
	}
}
