package conformance_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
)

// What the origin repeats, with the same version or another one, is not news.
func TestR040_UnchangedIsNotSent(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		types := []string{relaytest.ClusterType, relaytest.EndpointType, relaytest.ListenerType, sendAcme}
		o := sendOrigin(t, relaytest.OriginOptions{}, types, "a", "b")
		c := start(t, o).Client(relaytest.ClientOptions{Variant: v})
		for _, typeURL := range types {
			c.Subscribe(typeURL, "*")
			streamTake(t, c, typeURL, "a", "b")
		}
		sendWatchSentinel(t, o, c)
		for _, typeURL := range types {
			o.Put(sendThing(typeURL, "a", "first"))
			o.Set(typeURL, "b", sendThing(typeURL, "b", "first"), "another version")
		}
		sendQuiet(t, o, c, "repeated")
	})
}

// A change reaches clients at any time and unasked, at once, however many they are
// and however long they have been idle.
func TestR041_ChangesAreSentAtAnyTime(t *testing.T) {
	t.Parallel()
	const connections, streams = 10, 100
	streamBubble(t, func(t *testing.T, o *relaytest.Origin) {
		put := func(text string) {
			o.Put(sendThing(relaytest.ClusterType, "b", text), sendThing(relaytest.EndpointType, "a", text))
		}
		put("first")
		r := startMuted(t, o)
		var clients []*relaytest.LightClient
		for range connections {
			conn := r.Conn()
			for i := range streams {
				c := relaytest.NewLightClient(t, conn, relaytest.LightOptions{Variant: relaytest.Variant(i % 2)})
				c.Subscribe(relaytest.ClusterType)
				c.Subscribe(relaytest.EndpointType, "a")
				clients = append(clients, c)
			}
		}
		for _, idle := range []time.Duration{time.Minute, 0, 24 * time.Hour} {
			time.Sleep(idle)
			synctest.Wait()
			began := time.Now()
			put(idle.String())
			synctest.Wait()
			if !time.Now().Equal(began) {
				t.Errorf("idle for %v: it took %v", idle, time.Since(began))
			}
			for _, c := range clients {
				for _, typeURL := range []string{relaytest.ClusterType, relaytest.EndpointType} {
					if s := c.State(); !s.SameContent(o.Resources(), typeURL) {
						t.Fatalf("idle for %v: %v has %v, want what is new at once", idle, c, s[typeURL])
					}
				}
			}
		}
	})
}

// A name that is asked for is sent although the wildcard had brought it, whether the
// origin has to be asked for it or was already.
func TestR042_NewlyNamedIsSentAgain(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		for _, typeURL := range []string{relaytest.ClusterType, relaytest.ListenerType, sendAcme, relaytest.RouteType} {
			o := sendOrigin(t, relaytest.OriginOptions{}, []string{typeURL}, "a", "b")
			r := start(t, o)
			for range 2 {
				c := r.Client(relaytest.ClientOptions{Variant: v})
				if typeURL == relaytest.RouteType {
					c.Subscribe(typeURL, "*")
				} else {
					c.Subscribe(typeURL)
				}
				streamTake(t, c, typeURL, "a", "b")
				c.Subscribe(typeURL, "b")
				want := []string{"b"}
				if v == relaytest.SotW && typeURL != relaytest.RouteType {
					want = []string{"a", "b"} // full state
				}
				streamTake(t, c, typeURL, want...)
			}
		}
	})
}

// Whatever is asked for and exists is supplied.
func TestR043_RequestedResourcesAreSupplied(t *testing.T) {
	t.Parallel()
	var names []string
	for i := range 200 {
		names = append(names, fmt.Sprintf("name-%03d", i))
	}
	types := []string{relaytest.ClusterType, relaytest.EndpointType, relaytest.RouteType, relaytest.SecretType, sendAcme}
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		o := sendOrigin(t, relaytest.OriginOptions{}, types, names...)
		c := start(t, o).Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
		for _, typeURL := range types {
			c.Subscribe(typeURL, names[:150]...)
			c.Subscribe(typeURL, names[150:]...)
		}
		c.WaitState(t.Context(), func(s relaytest.State) bool {
			for _, typeURL := range types {
				if !s.Has(typeURL, names...) {
					return false
				}
			}
			return true
		})
		for _, typeURL := range types {
			if !c.State().SameContent(o.Resources(), typeURL) {
				t.Errorf("%s: the client has not what the origin has", typeURL)
			}
		}
	})
}

// To drop a name and ask for it again is to ask for it.
func TestR044_ResubscribedNameIsSentAgain(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		types := []string{relaytest.ClusterType, relaytest.EndpointType, relaytest.ListenerType, relaytest.SecretType, sendAcme}
		o := sendOrigin(t, relaytest.OriginOptions{}, types, "a")
		c := start(t, o).Client(relaytest.ClientOptions{Variant: v})
		for _, typeURL := range types {
			for range 3 {
				c.Subscribe(typeURL, "a")
				streamTake(t, c, typeURL, "a")
				c.Unsubscribe(typeURL, "a")
			}
		}
	})
}

// The same while the first response is still un-ACKed, and beside a name that
// stays: what left the subscription has left what was sent.
func TestC06_ResubscribedWhileUnacknowledged(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		for _, typeURL := range []string{relaytest.ListenerType, relaytest.EndpointType} {
			o := sendOrigin(t, relaytest.OriginOptions{}, []string{typeURL}, "a", "stays")
			c := start(t, o).Client(relaytest.ClientOptions{Variant: v})
			c.Subscribe(typeURL, "a", "stays")
			var first *relaytest.Response
			for got := 0; got < 2; got += len(first.Names()) { // Delta may say it in two
				if first != nil {
					c.Ack(first)
				}
				first = c.Recv(t.Context())
			}
			c.Unsubscribe(typeURL, "a")
			c.Subscribe(typeURL, "a")
			c.Ack(first)
			want := []string{"a"}
			if v == relaytest.SotW && typeURL == relaytest.ListenerType {
				want = []string{"a", "stays"}
			}
			streamTake(t, c, typeURL, want...)
			c.Fence(t.Context(), typeURL, "stays", func() { o.Put(sendThing(typeURL, "stays", "second")) })
		}
	})
}

// A client is sent nothing that it did not ask for, whoever else asked for it.
func TestR045_NothingOutsideTheSubscription(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		types := []string{relaytest.ClusterType, relaytest.EndpointType, relaytest.SecretType, sendAcme}
		o := sendOrigin(t, relaytest.OriginOptions{}, types, "mine", "theirs", "nobody's")
		r := start(t, o)
		others, all := r.Client(relaytest.ClientOptions{AutoAck: true}), r.Client(relaytest.ClientOptions{AutoAck: true})
		c := r.Client(relaytest.ClientOptions{Variant: v})
		for _, typeURL := range types {
			all.Subscribe(typeURL, "*")
			others.Subscribe(typeURL, "theirs")
			others.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(typeURL, "theirs") })
			c.Subscribe(typeURL, "mine")
			streamTake(t, c, typeURL, "mine")
		}
		sendWatchSentinel(t, o, c)
		for _, typeURL := range types {
			o.Put(sendThing(typeURL, "theirs", "second"), sendThing(typeURL, "nobody's", "second"), sendThing(typeURL, "new", "first"))
		}
		sendQuiet(t, o, c, "after the others'")
	})
}

// SotW: an empty list after names means nothing, not everything.
func TestR046_EmptyListAfterNamesIsNoInterest(t *testing.T) {
	t.Parallel()
	types := []string{relaytest.ClusterType, relaytest.ListenerType, relaytest.EndpointType, sendAcme}
	o := sendOrigin(t, relaytest.OriginOptions{}, types, "a", "b")
	c := start(t, o).Client(relaytest.ClientOptions{Variant: relaytest.SotW})
	for _, typeURL := range types {
		c.Subscribe(typeURL, "a")
		streamTake(t, c, typeURL, "a")
		c.Unsubscribe(typeURL, "a")
	}
	sendWatchSentinel(t, o, c) // and so the relay has heard it all
	for _, typeURL := range types {
		o.Put(sendThing(typeURL, "a", "second"), sendThing(typeURL, "b", "second"))
	}
	sendQuiet(t, o, c, "after a")
}
