package conformance_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
)

// Clients get changes without a request and at once, however many they are and however long they have been idle.
func TestR041_ChangesAreSentAtAnyTime(t *testing.T) {
	t.Parallel()
	const connections, streams = 5, 20
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		put := func(text string) {
			o.Put(opaque(relaytest.ClusterType, "b", text), opaque(relaytest.EndpointType, "a", text))
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
		for _, idle := range []time.Duration{time.Minute, 0, 2 * time.Hour} {
			sleep(idle)
			began := time.Now()
			put(idle.String())
			synctest.Wait()
			if !time.Now().Equal(began) {
				t.Errorf("idle for %v: the change took %v", idle, time.Since(began))
			}
			for _, c := range clients {
				for _, typeURL := range []string{relaytest.ClusterType, relaytest.EndpointType} {
					if s := c.State(); !s.SameContent(o.Resources(), typeURL) {
						t.Fatalf("idle for %v: %v has %v, want the change at once", idle, c, s[typeURL])
					}
				}
			}
		}
	})
}

// All existing resources that a client subscribes to are sent.
func TestR043_RequestedResourcesAreSupplied(t *testing.T) {
	t.Parallel()
	var names []string
	for i := range 200 {
		names = append(names, fmt.Sprintf("name-%03d", i))
	}
	types := []string{relaytest.ClusterType, relaytest.EndpointType, relaytest.RouteType, relaytest.SecretType, acmeThing}
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		o := originWith(t, relaytest.OriginOptions{}, types, names...)
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
				t.Errorf("%s: the client's resources differ from the origin's", typeURL)
			}
		}
	})
}
