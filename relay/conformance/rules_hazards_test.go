package conformance_test

import (
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xdstender/tender/relay/relaytest"
)

// A change at one origin does not affect versions of resources from another, whether two relays serve them or two
// views of one relay.
func TestR025_OriginsDoNotShareVersions(t *testing.T) {
	t.Parallel()
	type side struct {
		content *relaytest.Content
		client  *relaytest.Client
	}
	apart := func(t *testing.T, clusters, endpoints side) {
		clusters.content.Put(relaytest.Cluster("a"), relaytest.Endpoints("a", "127.0.0.1:9"))
		endpoints.content.Put(relaytest.Cluster("a"), relaytest.Endpoints("a", "127.0.0.1:9"))
		request := func(s side, typeURL string) string {
			s.client.Subscribe(typeURL, "a")
			return recvAndAck(t, s.client, typeURL, "a").Version
		}
		before := request(endpoints, typeEDS)
		first := request(clusters, typeCDS)
		clusters.content.Put(relaytest.Cluster("a", "other"), relaytest.Endpoints("a", "127.0.0.1:10"))
		if v := recvAndAck(t, clusters.client, typeCDS, "a").Version; v == first {
			t.Errorf("version %q stands for two different sets", v)
		}
		expectQuiet(t, endpoints.client, time.Minute)
		endpoints.client.Unsubscribe(typeEDS, "a")
		if after := request(endpoints, typeEDS); after != before {
			t.Errorf("version %q changed to %q with a change at the other origin", before, after)
		}
	}
	sotw := func(cluster string) relaytest.ClientOptions {
		return relaytest.ClientOptions{Variant: relaytest.SotW,
			Node: groupedNode(func(n *corepb.Node) { n.Cluster = cluster })}
	}
	t.Run("two relays", func(t *testing.T) {
		originBubble(t, func(t *testing.T, o *relaytest.Origin) {
			p := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
			apart(t, side{o.Content, start(t, o).Client(sotw("one"))}, side{p.Content, start(t, p).Client(sotw("one"))})
		})
	})
	t.Run("two views", func(t *testing.T) {
		originBubble(t, func(t *testing.T, o *relaytest.Origin) {
			two := o.For(func(n *corepb.Node) bool { return n.GetCluster() == "two" })
			r := start(t, o, "TENDER_NODE_GROUP_BY=cluster")
			apart(t, side{o.Content, r.Client(sotw("one"))}, side{two, r.Client(sotw("two"))})
		})
	})
}

// A reconnecting client that warms its clusters subscribes to endpoints and secrets first, and possibly never to
// clusters. Each type is answered at once, without waiting for clusters or missing names. Endpoints and secrets
// are resent even if the client has them (B.3).
func TestC05_TypesAreAnsweredIndependently(t *testing.T) {
	t.Parallel()
	for _, relay := range []string{"warm", "cold"} {
		t.Run(relay, func(t *testing.T) {
			originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
				o.Change(func(b *relaytest.Behaviour) { b.SilentOnMissing = true })
				types := []string{typeEDS, relaytest.SecretType, typeRDS, typeCDS, typeLDS}
				for _, typeURL := range types {
					for _, name := range []string{"a", "b"} {
						o.Set(typeURL, name, relaytest.Opaque(typeURL, name, nil), "1")
					}
				}
				r := start(t, o)
				held := make(map[string]string) // SotW versions, by type
				request := func(c *relaytest.Client, typeURL string, names ...string) {
					if v == relaytest.Delta {
						c.Send(returningDelta(relaytest.EnvoyNode("client"), typeURL, names, map[string]string{"a": "1"}))
					} else {
						c.Send(returningSotW(typeURL, held[typeURL], names...))
					}
				}
				if relay == "warm" {
					before := r.Client(relaytest.ClientOptions{Variant: v})
					for _, typeURL := range types {
						before.Subscribe(typeURL, "a")
						held[typeURL] = recvAndAck(t, before, typeURL, "a").Version
					}
					before.Close()
				}
				c := r.Client(relaytest.ClientOptions{Variant: v})
				for _, typeURL := range []string{typeEDS, relaytest.SecretType} {
					request(c, typeURL, "a", "missing")
					c.Ack(oddWant(t, c, shortName(typeURL), "a"))
				}
				for _, typeURL := range []string{typeEDS, relaytest.SecretType} {
					o.Set(typeURL, "a", relaytest.Opaque(typeURL, "a", []byte("changed")), "2")
					c.Ack(oddWant(t, c, shortName(typeURL)+" changed", "a"))
				}
				request(c, typeRDS, "b", "missing")
				c.Ack(oddWant(t, c, "routes", "b"))
				request(c, typeLDS, "b") // without clusters
				c.Ack(oddWant(t, c, "listeners", "b"))
			})
		})
	}
}

// A NACK is logged with its nonce and the client's error message, at a limited rate. It does not affect other
// types, other clients or the origin.
func TestB10_NACKsAreOnlyLogged(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(relaytest.Cluster("a"), domainRoute("r", "0"))
		r := start(t, o)
		other := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
		other.Subscribe(typeRDS, "r")
		c := r.Client(relaytest.ClientOptions{Variant: v})
		c.Subscribe(typeCDS, "*")
		recvAndAck(t, c, typeCDS, "a")
		c.Subscribe(typeRDS, "r")
		const nacks = 50
		for i := range nacks {
			resp := c.Recv(t.Context())
			expectNames(t, resp, typeRDS, "r")
			c.Send(newAnswer(v, resp, "", "not this one", "r"))
			synctest.Wait()
			if i == 0 && r.Log.Count("nonce="+resp.Nonce+" code=13 detail=\"not this one\"") != 1 {
				t.Error("the log lacks the nonce, the code and the message of a NACK")
			}
			if c.TryRecv() != nil {
				t.Fatal("a NACKed response was resent")
			}
			o.Put(domainRoute("r", fmt.Sprint(i+1)))
		}
		if n := r.Log.Count("client rejected a response"); n < 1 || n > nacks/2 {
			t.Errorf("logged %d of %d simultaneous NACKs", n, nacks)
		}
		synctest.Wait()
		if got, want := other.State().Digest(typeRDS, "r"), o.Resources().Digest(typeRDS, "r"); got != want {
			t.Errorf("the other client has %v, want %v", got, want)
		}
		recvAndAck(t, c, typeRDS, "r") // the last change
		o.Put(relaytest.Cluster("a", "changed"))
		recvAndAck(t, c, typeCDS, "a")
		if n := o.State().Type(typeRDS).NACKs; n != 0 {
			t.Errorf("%d NACKs reached the origin", n)
		}
	})
}

// Nonces count the responses of a stream over all types, starting at 1.
func TestB13_NoncesCountTheResponsesOfAStream(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(domainRoute("r", "0"), relaytest.Endpoints("e", "127.0.0.1:1"))
		r := start(t, o)
		for range 2 {
			c := r.Client(relaytest.ClientOptions{Variant: v})
			c.Subscribe(typeRDS, "r")
			recvAndAck(t, c, typeRDS, "r")
			c.Subscribe(typeEDS, "e")
			recvAndAck(t, c, typeEDS, "e")
			for i := range 5 {
				o.Put(domainRoute("r", c.String()+fmt.Sprint(i)))
				recvAndAck(t, c, typeRDS, "r")
			}
			for i, resp := range c.Responses() {
				if resp.Nonce != strconv.Itoa(i+1) {
					t.Errorf("response %d has the nonce %q", i+1, resp.Nonce)
				}
			}
			c.Close()
		}
	})
}
