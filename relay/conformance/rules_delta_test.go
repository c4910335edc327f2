package conformance_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/relay/relaytest"
)

// sendNames returns n names in order.
func sendNames(n int) []string {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("name-%03d", i))
	}
	return names
}

var sendMany = sendNames(100)

// Delta: of many resources only the changed one is sent, of every type.
func TestR056_DeltaSendsOnlyWhatChanged(t *testing.T) {
	t.Parallel()
	for _, form := range [][]string{{"*"}, sendMany} {
		sendOneOfMany(t, relaytest.Delta, form, relaytest.ClusterType, relaytest.ListenerType, relaytest.ScopedRouteType,
			relaytest.EndpointType, relaytest.RouteType, sendAcme)
	}
}

// SotW: likewise, of types whose responses need not be complete.
func TestR057_SotWSendsOnlyWhatChangedOfPartialTypes(t *testing.T) {
	t.Parallel()
	for _, form := range [][]string{{"*"}, sendMany} {
		types := []string{relaytest.EndpointType, relaytest.RouteType}
		if len(form) > 1 {
			types = append(types, sendAcme) // which is sent whole to those who ask for all (B.17)
		}
		sendOneOfMany(t, relaytest.SotW, form, types...)
	}
}

// sendOneOfMany checks that a change of one resource of a hundred is sent alone to a client
// that asks for all of them by form.
func sendOneOfMany(t *testing.T, v relaytest.Variant, form []string, types ...string) {
	t.Helper()
	o := sendOrigin(t, relaytest.OriginOptions{}, types, sendMany...)
	c := start(t, o).Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
	for _, typeURL := range types {
		c.Subscribe(typeURL, form...)
		c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(typeURL, sendMany...) })
	}
	for _, typeURL := range types {
		o.Put(sendThing(typeURL, "name-042", "second"))
		streamHas(t, c.Recv(t.Context()), typeURL, "name-042")
	}
}

// sendFullState runs a test for a SotW client that was sent a, b and c of a type,
// in every way to ask for them.
func sendFullState(t *testing.T, types []string, test func(o *relaytest.Origin, c *relaytest.Client, typeURL string)) {
	t.Helper()
	for _, typeURL := range types {
		for _, form := range [][]string{nil, {"*"}, {"a", "b", "c"}} {
			o := sendOrigin(t, relaytest.OriginOptions{}, []string{typeURL}, "a", "b", "c")
			c := start(t, o).Client(relaytest.ClientOptions{Variant: relaytest.SotW})
			c.Subscribe(typeURL, form...)
			streamTake(t, c, typeURL, "a", "b", "c")
			test(o, c, typeURL)
		}
	}
}

// SotW: each response for listeners and clusters holds all that the client is to
// have, also if one of many changed.
func TestR058_ListenersAndClustersComeInFull(t *testing.T) {
	t.Parallel()
	sendFullState(t, []string{relaytest.ListenerType, relaytest.ClusterType}, func(o *relaytest.Origin, c *relaytest.Client, typeURL string) {
		o.Put(sendThing(typeURL, "b", "second"))
		streamTake(t, c, typeURL, "a", "b", "c")
	})
	names := sendMany
	o := sendOrigin(t, relaytest.OriginOptions{}, []string{relaytest.ClusterType}, names...)
	c := start(t, o).Client(relaytest.ClientOptions{Variant: relaytest.SotW})
	c.Subscribe(relaytest.ClusterType)
	streamTake(t, c, relaytest.ClusterType, names...)
	o.Put(sendThing(relaytest.ClusterType, "name-042", "second"))
	streamTake(t, c, relaytest.ClusterType, names...)
}

// SotW: so does each response for scopes, since Envoy drops those that are absent.
func TestR059_ScopesComeInFull(t *testing.T) {
	t.Parallel()
	sendFullState(t, []string{relaytest.ScopedRouteType}, func(o *relaytest.Origin, c *relaytest.Client, typeURL string) {
		o.Put(sendThing(typeURL, "b", "second"))
		streamTake(t, c, typeURL, "a", "b", "c")
		o.Remove(typeURL, "b")
		streamTake(t, c, typeURL, "a", "c")
	})
}

// SotW: what was deleted is not in the next full response (R065); the last one is
// empty because the origin's set is (R066).
func TestR065_R066_DeletionIsOmission(t *testing.T) {
	t.Parallel()
	sendFullState(t, []string{relaytest.ListenerType, relaytest.ClusterType}, func(o *relaytest.Origin, c *relaytest.Client, typeURL string) {
		o.Remove(typeURL, "b")
		streamTake(t, c, typeURL, "a", "c")
		o.Remove(typeURL, "a")
		streamTake(t, c, typeURL, "c")
		o.Remove(typeURL, "c")
		streamTake(t, c, typeURL)
		o.Put(sendThing(typeURL, "b", "third"))
		streamTake(t, c, typeURL, "b")
	})
}

// Delta: what was deleted and made again while the client had something to answer
// is in the response that follows, once, and not among the removed.
func TestR061_DeletedAndMadeAgainIsSentOnce(t *testing.T) {
	t.Parallel()
	for _, typeURL := range []string{relaytest.ClusterType, relaytest.ListenerType, relaytest.EndpointType, sendAcme} {
		for _, form := range [][]string{{"*"}, {"a", "b"}} {
			o := sendOrigin(t, relaytest.OriginOptions{}, []string{typeURL}, "a", "b")
			r := start(t, o)
			c := r.Client(relaytest.ClientOptions{})
			c.Subscribe(typeURL, form...)
			for !c.State().Has(typeURL, "a", "b") {
				c.Ack(c.Recv(t.Context()))
			}
			o.Put(sendThing(typeURL, "b", "second"))
			held := c.Recv(t.Context())
			o.Remove(typeURL, "a")
			o.Put(sendThing(typeURL, "a", "second"))
			o.Remove(typeURL, "a")
			o.Put(sendThing(typeURL, "a", "third"))
			sendHas(t, r, typeURL, form[:1], "a", "third") // a client that asks alike
			c.Ack(held)
			streamTake(t, c, typeURL, "a")
			c.Fence(t.Context(), typeURL, "b", func() { o.Put(sendThing(typeURL, "b", "third")) })
		}
	}
}

// A name is once in a response, however it came to be due: as a member, by name,
// and because it was given up. The client checks it.
func TestR060_NoNameTwice(t *testing.T) {
	t.Parallel()
	for _, typeURL := range []string{sendAcme, relaytest.ListenerType, relaytest.ClusterType, relaytest.EndpointType} {
		t.Run(typeURL, func(t *testing.T) {
			t.Parallel()
			o := sendOrigin(t, relaytest.OriginOptions{}, []string{typeURL}, "a", "b", "c", "d")
			r := start(t, o)
			c := r.Client(relaytest.ClientOptions{})
			c.Subscribe(typeURL, "*", "a", "b") // both kinds in one request
			got := make(map[string]int)
			for len(got) < 4 {
				resp := c.Recv(t.Context())
				for _, name := range resp.Names() {
					got[name]++
				}
				c.Ack(resp)
			}
			for name, n := range got {
				if n != 1 {
					t.Errorf("%q was sent %d times", name, n)
				}
			}
			// Behind an un-ACKed response both names change, one goes for good, one comes
			// back; then the client gives both up and asks for more that it has.
			o.Put(sendThing(typeURL, "d", "second"))
			held := c.Recv(t.Context())
			o.Put(sendThing(typeURL, "a", "second"), sendThing(typeURL, "c", "second"))
			o.Remove(typeURL, "b")
			o.Remove(typeURL, "c")
			o.Put(sendThing(typeURL, "c", "third"))
			sendSeen(t, r, typeURL, "c", "third")
			sendSeenAll(t, r, typeURL, "a", "c", "d")
			c.Unsubscribe(typeURL, "a", "b")
			c.Subscribe(typeURL, "c", "d")
			c.Ack(held)
			want := relaytest.State{typeURL: o.Resources()[typeURL]}
			for !c.State().SameContent(want, typeURL) {
				c.Ack(c.Recv(t.Context()))
			}
			c.Fence(t.Context(), typeURL, "d", func() { o.Put(sendThing(typeURL, "d", "third")) })
		})
	}
}

// sendSeenAll waits until the members of a type are, in the relay, just these.
func sendSeenAll(t *testing.T, r *running, typeURL string, names ...string) {
	t.Helper()
	c := r.Client(relaytest.ClientOptions{AutoAck: true})
	defer c.Close()
	c.Subscribe(typeURL, "*")
	c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(typeURL, names...) })
}

// A name that is given up before the members were ever sent is not sent twice
// with them.
func TestR060_GivenUpBeforeTheFirstResponse(t *testing.T) {
	t.Parallel()
	for _, typeURL := range []string{sendAcme, relaytest.ClusterType} {
		o := sendOrigin(t, relaytest.OriginOptions{}, []string{typeURL}, "a", "b")
		c := start(t, o).Client(relaytest.ClientOptions{})
		c.Subscribe(typeURL, "*", "a")
		c.Unsubscribe(typeURL, "a")
		for !c.State().Has(typeURL, "a", "b") {
			c.Ack(c.Recv(t.Context()))
		}
		c.Fence(t.Context(), typeURL, "a", func() { o.Put(sendThing(typeURL, "a", "second")) })
	}
}

// Delta: a deletion is said, of every type, by wildcard and by name.
func TestR064_DeletionIsSaid(t *testing.T) {
	t.Parallel()
	types := []string{relaytest.SecretType, relaytest.ClusterType, relaytest.EndpointType, relaytest.ListenerType, relaytest.RouteType, sendAcme}
	for _, form := range [][]string{{"a", "b"}, {"*"}} {
		if form[0] == "*" {
			types = types[1:] // nobody has Secrets so (B.36)
		}
		o := sendOrigin(t, relaytest.OriginOptions{}, types, "a", "b")
		c := start(t, o).Client(relaytest.ClientOptions{})
		for _, typeURL := range types {
			c.Subscribe(typeURL, form...)
			for !c.State().Has(typeURL, "a", "b") {
				c.Ack(c.Recv(t.Context()))
			}
			o.Remove(typeURL, "a")
			streamTake(t, c, typeURL, "-a")
			o.Put(sendThing(typeURL, "a", "second"))
			streamTake(t, c, typeURL, "a")
		}
	}
}

// A deletion is said even if the client asks for all again before it was.
func TestR064_DeletionOutlivesARenewedWildcard(t *testing.T) {
	t.Parallel()
	for _, typeURL := range []string{sendAcme, relaytest.ClusterType} {
		o := sendOrigin(t, relaytest.OriginOptions{}, []string{typeURL}, "a", "b")
		r := start(t, o)
		c := r.Client(relaytest.ClientOptions{})
		c.Subscribe(typeURL, "*")
		streamTake(t, c, typeURL, "a", "b")
		o.Put(sendThing(typeURL, "b", "second"))
		held := c.Recv(t.Context())
		o.Remove(typeURL, "a")
		sendSeenAll(t, r, typeURL, "b")
		c.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: []string{"*"}})
		c.Ack(held)
		var resources, removed []string
		for len(resources) == 0 || len(removed) == 0 {
			resp := c.Recv(t.Context())
			c.Ack(resp)
			resources, removed = append(resources, resp.Names()...), append(removed, resp.Removed...)
		}
		if len(resources) != 1 || resources[0] != "b" || len(removed) != 1 || removed[0] != "a" {
			t.Errorf("got %q and removed %q, want b again and a removed", resources, removed)
		}
	}
}

// SotW: a deletion of another type is not signalled, by name or by wildcard; an empty
// response says nothing and is not sent.
func TestR067_DeletionOfPartialTypesIsQuiet(t *testing.T) {
	t.Parallel()
	types := []string{relaytest.SecretType, relaytest.EndpointType, relaytest.RouteType, relaytest.RuntimeType, relaytest.ExtensionConfigType, sendAcme}
	for _, node := range []*corepb.Node{relaytest.EnvoyNode("e"), relaytest.GRPCNode("g")} {
		for _, form := range []string{"a", "*"} {
			streamBubble(t, func(t *testing.T, o *relaytest.Origin) {
				c := start(t, o).Client(relaytest.ClientOptions{Variant: relaytest.SotW, Node: node})
				types := types
				if form == "*" { // nobody has Secrets so (B.36), and unknown types are not partial (B.17)
					types = types[1 : len(types)-1]
				}
				for _, typeURL := range types {
					o.Put(sendThing(typeURL, "a", "first"))
					c.Subscribe(typeURL, form)
					streamTake(t, c, typeURL, "a")
				}
				for _, typeURL := range types {
					o.Remove(typeURL, "a")
				}
				streamQuiet(t, c, time.Minute)
			})
		}
	}
}

// The relay invents no deletion: the origin is gone for ten minutes and comes
// back, while clients stay, come and return, and no client loses anything.
func TestR068_LostAndFoundOriginDeletesNothing(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		synctest.Test(t, func(t *testing.T) {
			types := append([]string{relaytest.EndpointType, relaytest.SecretType}, wildcardTypes...)
			o := sendOrigin(t, relaytest.OriginOptions{Memory: true}, types, "a", "b")
			r := start(t, o)
			opts := relaytest.ClientOptions{Variant: v, AutoAck: true}
			stays, returns := r.Client(opts), r.Client(opts)
			complete := func(s relaytest.State) bool {
				for _, typeURL := range types {
					if !s.Has(typeURL, "a", "b") {
						return false
					}
				}
				return true
			}
			subscribe := func(c *relaytest.Client) {
				for _, typeURL := range wildcardTypes {
					c.Subscribe(typeURL)
				}
				c.Subscribe(relaytest.EndpointType, "a", "b")
				c.Subscribe(relaytest.SecretType, "a", "b")
				c.WaitState(t.Context(), complete)
			}
			subscribe(stays)
			subscribe(returns)
			time.Sleep(time.Minute)
			o.Stop()
			for range 10 {
				time.Sleep(time.Minute)
				returns.Reconnect(r.Conn())
				subscribe(r.Client(opts))
			}
			o.Restart()
			time.Sleep(5 * time.Minute)
			returns.Reconnect(r.Conn())
			time.Sleep(time.Minute)
			synctest.Wait()
			for _, c := range []*relaytest.Client{stays, returns} {
				if !complete(c.State()) {
					t.Errorf("%v has lost something: %v", c, c.State())
				}
				for _, resp := range c.Responses() {
					if len(resp.Removed) > 0 || len(resp.Resources) == 0 {
						t.Errorf("%v was told of a deletion: %v", c, resp)
					}
				}
			}
		})
	})
}

// An initial wildcard of which the origin has nothing is answered, once.
func TestR097_EmptyWildcardIsAnsweredOnce(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		for _, form := range [][]string{nil, {"*"}} {
			o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
			c := start(t, o).Client(relaytest.ClientOptions{Variant: v})
			for _, typeURL := range wildcardTypes {
				c.Subscribe(typeURL, form...)
				streamTake(t, c, typeURL)
			}
			sendWatchSentinel(t, o, c)
			sendQuiet(t, o, c, "answered")
			for _, typeURL := range wildcardTypes {
				o.Put(sendThing(typeURL, "a", "first"))
				streamTake(t, c, typeURL, "a")
			}
		}
	})
}
