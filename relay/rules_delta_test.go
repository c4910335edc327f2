package relay_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

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

// Of many resources only the changed one is sent, in Delta of every type and in
// SotW of types that are not full-state.
func TestR056_R057_OnlyWhatChangedIsSent(t *testing.T) {
	t.Parallel()
	names := sendNames(100)
	sendBoth(t, func(t *testing.T, v relaytest.Variant) {
		types := []string{relaytest.EndpointType, relaytest.RouteType, sendAcme}
		if v == relaytest.Delta {
			types = append(types, relaytest.ClusterType, relaytest.ListenerType, relaytest.ScopedRouteType)
		}
		for _, form := range [][]string{{"*"}, names} {
			o := sendOrigin(t, relaytest.OriginOptions{}, types, names...)
			r := start(t, o, false)
			c := r.client(relaytest.ClientOptions{Variant: v, AutoAck: true})
			for _, typeURL := range types {
				c.Subscribe(typeURL, form...)
				c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(typeURL, names...) })
			}
			for _, typeURL := range types {
				o.Put(sendThing(typeURL, "name-042", "second"))
				sendCheck(t, c.Recv(t.Context()), typeURL, []string{"name-042"}, nil)
			}
		}
	})
}

// SotW: each response for listeners, clusters and scopes holds all that the
// client is to have, by wildcard or by name (R058, R059); what was deleted is not
// in it (R065), and the last one may be empty (R066).
func TestR058_R059_R065_R066_FullState(t *testing.T) {
	t.Parallel()
	for _, typeURL := range []string{relaytest.ListenerType, relaytest.ClusterType, relaytest.ScopedRouteType} {
		for _, form := range [][]string{nil, {"*"}, {"a", "b", "c"}} {
			o := sendOrigin(t, relaytest.OriginOptions{}, []string{typeURL}, "a", "b", "c")
			r := start(t, o, false)
			c := r.client(relaytest.ClientOptions{Variant: relaytest.SotW})
			c.Subscribe(typeURL, form...)
			sendNext(t, c, typeURL, "a", "b", "c")
			o.Put(sendThing(typeURL, "b", "second"))
			sendNext(t, c, typeURL, "a", "b", "c")
			o.Remove(typeURL, "b")
			sendNext(t, c, typeURL, "a", "c")
			o.Remove(typeURL, "a")
			sendNext(t, c, typeURL, "c")
			o.Remove(typeURL, "c")
			sendNext(t, c, typeURL)
			o.Put(sendThing(typeURL, "b", "third"))
			sendNext(t, c, typeURL, "b")
		}
	}
}

// A name is once in a response, however it came to be due: as a member, by name,
// and because it was given up. The client checks it.
func TestR060_R061_NoNameTwice(t *testing.T) {
	t.Parallel()
	for _, typeURL := range []string{sendAcme, relaytest.ListenerType, relaytest.ClusterType, relaytest.EndpointType} {
		t.Run(typeURL, func(t *testing.T) {
			t.Parallel()
			o := sendOrigin(t, relaytest.OriginOptions{}, []string{typeURL}, "a", "b", "c", "d")
			r := start(t, o, false)
			c := r.client(relaytest.ClientOptions{})
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
	c := r.client(relaytest.ClientOptions{AutoAck: true})
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
		r := start(t, o, false)
		c := r.client(relaytest.ClientOptions{})
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
	types := []string{relaytest.ClusterType, relaytest.EndpointType, relaytest.ListenerType, relaytest.RouteType, relaytest.SecretType, sendAcme}
	for _, form := range [][]string{{"*"}, {"a", "b"}} {
		o := sendOrigin(t, relaytest.OriginOptions{}, types, "a", "b")
		r := start(t, o, false)
		c := r.client(relaytest.ClientOptions{})
		for _, typeURL := range types {
			c.Subscribe(typeURL, form...)
			for !c.State().Has(typeURL, "a", "b") {
				c.Ack(c.Recv(t.Context()))
			}
			o.Remove(typeURL, "a")
			sendNextRemoving(t, c, typeURL, nil, []string{"a"})
			o.Put(sendThing(typeURL, "a", "second"))
			sendNext(t, c, typeURL, "a")
		}
	}
}

// A deletion is said even if the client asks for all again before it was.
func TestR064_DeletionOutlivesARenewedWildcard(t *testing.T) {
	t.Parallel()
	for _, typeURL := range []string{sendAcme, relaytest.ClusterType} {
		o := sendOrigin(t, relaytest.OriginOptions{}, []string{typeURL}, "a", "b")
		r := start(t, o, false)
		c := r.client(relaytest.ClientOptions{})
		c.Subscribe(typeURL, "*")
		sendNext(t, c, typeURL, "a", "b")
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

// SotW: a deletion of another type is not signalled; an empty response says
// nothing and is not sent.
func TestR067_DeletionOfPartialTypesIsQuiet(t *testing.T) {
	t.Parallel()
	types := []string{relaytest.EndpointType, relaytest.RouteType, relaytest.SecretType, relaytest.RuntimeType, relaytest.ExtensionConfigType, sendAcme}
	o := sendOrigin(t, relaytest.OriginOptions{}, types, "a", "b")
	r := start(t, o, false)
	for _, node := range []string{"envoy", "grpc"} {
		opts := relaytest.ClientOptions{Variant: relaytest.SotW, Node: relaytest.EnvoyNode("e")}
		if node == "grpc" {
			opts.Node = relaytest.GRPCNode("g")
		}
		c := r.client(opts)
		for _, typeURL := range types {
			o.Put(sendThing(typeURL, "a", node))
			c.Subscribe(typeURL, "a")
			sendNext(t, c, typeURL, "a")
		}
		sendWatchSentinel(t, o, c)
		for _, typeURL := range types {
			o.Remove(typeURL, "a")
		}
		sendQuiet(t, o, c, node)
	}
}

// The relay invents no deletion: the origin is gone for ten minutes and comes
// back, while clients stay, come and return, and no client loses anything.
func TestR068_LostAndFoundOriginDeletesNothing(t *testing.T) {
	sendBoth(t, func(t *testing.T, v relaytest.Variant) {
		synctest.Test(t, func(t *testing.T) {
			types := append([]string{relaytest.EndpointType, relaytest.SecretType}, wildcardTypes...)
			o := sendOrigin(t, relaytest.OriginOptions{Memory: true}, types, "a", "b")
			r := start(t, o, true)
			opts := relaytest.ClientOptions{Variant: v, AutoAck: true}
			stays, returns := r.client(opts), r.client(opts)
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
				returns.Reconnect(r.conn())
				subscribe(r.client(opts))
			}
			o.Restart()
			time.Sleep(5 * time.Minute)
			returns.Reconnect(r.conn())
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
	sendBoth(t, func(t *testing.T, v relaytest.Variant) {
		for _, form := range [][]string{nil, {"*"}} {
			o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
			r := start(t, o, false)
			c := r.client(relaytest.ClientOptions{Variant: v})
			for _, typeURL := range wildcardTypes {
				c.Subscribe(typeURL, form...)
				sendNext(t, c, typeURL)
			}
			sendWatchSentinel(t, o, c)
			sendQuiet(t, o, c, "answered")
			for _, typeURL := range wildcardTypes {
				o.Put(sendThing(typeURL, "a", "first"))
				sendNext(t, c, typeURL, "a")
			}
		}
	})
}
