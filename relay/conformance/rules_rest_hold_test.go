package conformance_test

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/transcript"
)

// R114: a client that is up to date gets a 304 without a body, for wildcards, for names, and for names that do not
// exist.
func TestR114_Unchanged(t *testing.T) {
	t.Parallel()
	restBubble(t, func(t *testing.T, o *relaytest.Origin, c *restClient) {
		o.Put(relaytest.Cluster("a"), relaytest.Cluster("b"), domainRoute("a", "x"))
		c.poll("clusters", "", "").expectNames("a", "b")
		time.Sleep(time.Minute) // until the set is confirmed
		for _, tc := range []struct {
			kind  string
			names []string
			want  []string
		}{
			{"clusters", nil, []string{"a", "b"}},
			{"clusters", []string{"b"}, []string{"b"}},
			{"routes", []string{"a", "x"}, []string{"a"}},
			{"routes", []string{"x"}, nil},
			{"routes", nil, nil},
		} {
			version := c.poll(tc.kind, "", "", tc.names...).expectNames(tc.want...)
			c.poll(tc.kind, "", version, tc.names...).expectNotModified()
			c.poll(tc.kind, "", "v1", tc.names...).expectDuration(0).expectNames(tc.want...)
		}
	})
}

// R115: a poll of an up-to-date client is held until a resource of its subscription changes.
func TestR115_HeldUntilChange(t *testing.T) {
	t.Parallel()
	restBubble(t, func(t *testing.T, o *relaytest.Origin, c *restClient) {
		o.Put(domainRoute("a", "1"), domainRoute("b", "1"), domainRoute("c", "1"))
		version := c.poll("routes", "", "", "a", "b").expectNames("a", "b")
		held := c.pollAsync(t.Context(), "routes", "30000", version, "b", "a")
		expectHeld(t, held, 5*time.Second)
		o.Put(domainRoute("c", "2"), relaytest.Cluster("a")) // outside the subscription
		o.Put(domainRoute("a", "1"))                         // without a change
		expectHeld(t, held, 5*time.Second)
		o.Put(domainRoute("a", "2"))
		reply := expectAnswered(t, held).expectDuration(10 * time.Second)
		changed := reply.expectNames("a", "b") // all subscribed resources, changed or not
		if changed == version {
			t.Error("the version did not change with the route")
		}

		held = c.pollAsync(t.Context(), "routes", "30000", changed, "a", "b")
		expectHeld(t, held, time.Second)
		o.Remove(typeRDS, "b")
		expectAnswered(t, held).expectNames("a")
	})
}

// B.27: a poll is held for the client's timeout less 100 ms, 800 ms without a timeout, and at most 30 s. The reply
// is then a 304.
func TestB27_HoldLimit(t *testing.T) {
	t.Parallel()
	restBubble(t, func(t *testing.T, o *relaytest.Origin, c *restClient) {
		o.Put(relaytest.Cluster("a"))
		version := c.poll("clusters", "", "").expectNames("a")
		for ms, want := range map[string]time.Duration{
			"":                     800 * time.Millisecond,
			"0":                    0,
			"99":                   0,
			"1000":                 900 * time.Millisecond,
			"15000":                14900 * time.Millisecond,
			"30100":                30 * time.Second,
			"3600000":              30 * time.Second,
			"18446744073709551615": 30 * time.Second,
		} {
			c.poll("clusters", ms, version).expectNotModified().expectDuration(want)
		}
	})
}

// B.27, B.8: while the relay has no configuration, a poll is held and then gets a 503. Configuration that arrives
// meanwhile is sent.
func TestB27_Cold(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(relaytest.Cluster("a"), domainRoute("a", "x"))
		o.Stop()
		c := restPoller(t, start(t, o), false)
		for _, version := range []string{"", "r1.AAAAAAAAAAAAAAAAAAAAAA", "other"} {
			for kind, names := range map[string][]string{"clusters": nil, "routes": {"a"}, "listeners": {"a"}} {
				reply := c.poll(kind, "5000", version, names...).expectStatus(http.StatusServiceUnavailable,
					"no resources are cached yet").expectDuration(4900 * time.Millisecond)
				restStatus(t, reply)
				if reply.header.Get("Retry-After") == "" {
					t.Error("got a 503 without Retry-After")
				}
			}
		}
		held := c.pollAsync(t.Context(), "clusters", "30000", "")
		expectHeld(t, held, time.Second)
		o.Restart()
		expectAnswered(t, restWithin(held, 29*time.Second)).expectNames("a")
	})
}

// restWithin lets virtual time pass until a poll is answered, for at most d.
func restWithin(held <-chan restReply, d time.Duration) <-chan restReply {
	answered := make(chan restReply, 1)
	select {
	case reply := <-held:
		answered <- reply
	case <-time.After(d):
	}
	return answered
}

// B.8: while the origin is down, the relay serves cached resources to all clients, and holds polls of up-to-date
// ones.
func TestB8_RESTWithoutOrigin(t *testing.T) {
	t.Parallel()
	restBubble(t, func(t *testing.T, o *relaytest.Origin, c *restClient) {
		o.Put(relaytest.Cluster("a"), domainRoute("a", "x"))
		clusters, routes := c.poll("clusters", "", "").expectNames("a"), c.poll("routes", "", "", "a", "x").expectNames("a")
		missing := c.poll("routes", "", "", "x").expectNames()
		o.Stop()
		for range 20 {
			time.Sleep(time.Minute)
			c.poll("clusters", "", "").expectDuration(0).expectNames("a")
			c.poll("routes", "", "", "a").expectDuration(0).expectNames("a")
			c.poll("clusters", "", clusters).expectNotModified()
			c.poll("routes", "", routes, "a", "x").expectNotModified()
			c.poll("routes", "", missing, "x").expectNotModified()
		}
	})
}

// B.7: for types with complete sets, a client with a version is not sent a set that lacks names until the origin
// has had time to answer. A client without a version gets the set at the hold limit. For other types, both do.
func TestB7_RESTUnansweredName(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Change(func(b *relaytest.Behaviour) { b.SilentOnMissing = true })
		o.Put(relaytest.Listener("a", "r"), domainRoute("a", "x"))
		r := start(t, o)
		c := restPoller(t, r, false)
		c.poll("listeners", "", "old", "a", "b").expectStatus(http.StatusServiceUnavailable,
			"is incomplete").expectDuration(800 * time.Millisecond)
		partial := c.poll("listeners", "", "", "a", "b").expectDuration(800 * time.Millisecond).expectNames("a")
		c.poll("listeners", "", partial, "a", "b").expectNotModified()
		c.poll("listeners", "", "old", "a", "b").expectStatus(http.StatusServiceUnavailable, "is incomplete")
		c.poll("routes", "", "old", "a", "b").expectDuration(800 * time.Millisecond).expectNames("a")
		c.poll("routes", "", "old", "b").expectStatus(http.StatusServiceUnavailable, "no resources are cached yet")

		time.Sleep(10 * time.Second) // since the subscription at the origin
		c.poll("listeners", "", "old", "a", "b").expectDuration(0).expectNames("a")
		c.poll("listeners", "", "", "a", "b").expectDuration(0).expectNames("a")
		c.poll("routes", "", "old", "a", "b").expectDuration(0).expectNames("a")

		held := c.pollAsync(t.Context(), "listeners", "30000", partial, "a", "b")
		expectHeld(t, held, 5*time.Second)
		o.Put(relaytest.Listener("b", "r"))
		expectAnswered(t, held).expectNames("a", "b")
	})
}

// B.7, R068: while the origin is down, a client with a version never gets a complete set that lacks a new name.
func TestB7_RESTNewNameWithoutOrigin(t *testing.T) {
	t.Parallel()
	restBubble(t, func(t *testing.T, o *relaytest.Origin, c *restClient) {
		o.Put(relaytest.Listener("a", "r"))
		c.poll("listeners", "", "", "a").expectNames("a")
		o.Stop()
		for range 100 {
			c.poll("listeners", "30000", "old", "a", "b").expectStatus(http.StatusServiceUnavailable,
				"is incomplete").expectDuration(29900 * time.Millisecond)
		}
		c.poll("listeners", "", "", "a", "b").expectNames("a")
	})
}

// B.7: a client with an unknown version gets the wildcard set once it is confirmed, a client without a version
// once it has settled.
func TestB7_RESTConfirmed(t *testing.T) {
	t.Parallel()
	restBubble(t, func(t *testing.T, o *relaytest.Origin, c *restClient) {
		o.Put(relaytest.Cluster("a"))
		c.poll("clusters", "", "old").expectStatus(http.StatusServiceUnavailable, "is incomplete")
		c.poll("clusters", "", "").expectDuration(0).expectNames("a")
		held := c.pollAsync(t.Context(), "clusters", "30000", "old")
		reply := expectAnswered(t, restWithin(held, 15*time.Second))
		if reply.expectNames("a"); reply.took > 10*time.Second || reply.took < 8*time.Second {
			t.Errorf("got the reply after %v, want it when the set is confirmed", reply.took)
		}
	})
}

// B.7: a poll with the current version is answered when the set changes, confirmed or not: the client has no other
// resources that could be missing.
func TestB7_RESTCurrentNeedsNoConfirmation(t *testing.T) {
	t.Parallel()
	restBubble(t, func(t *testing.T, o *relaytest.Origin, c *restClient) {
		o.Change(func(b *relaytest.Behaviour) { b.SilentOnMissing = true })
		o.Put(relaytest.Cluster("a"), relaytest.Listener("a", "1"))
		version := c.poll("clusters", "", "").expectNames("a")
		held := c.pollAsync(t.Context(), "clusters", "30000", version)
		expectHeld(t, held, time.Second)
		o.Put(relaytest.Cluster("b"))
		expectAnswered(t, held).expectDuration(time.Second).expectNames("a", "b")

		version = c.poll("listeners", "", "", "a", "x").expectNames("a")
		held = c.pollAsync(t.Context(), "listeners", "30000", version, "a", "x")
		expectHeld(t, held, time.Second)
		o.Put(relaytest.Listener("a", "2"))
		expectAnswered(t, held).expectDuration(time.Second).expectNames("a")
	})
}

// B.35: held polls count towards TENDER_MAX_STREAMS until their client disconnects.
func TestB35_RESTMaxStreams(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(relaytest.Cluster("a"))
		r := start(t, o, "TENDER_MAX_STREAMS=2")
		c := restPoller(t, r, false)
		version := c.poll("clusters", "", "").expectNames("a")
		ctx, cancel := context.WithCancel(t.Context())
		for range 2 {
			expectHeld(t, c.pollAsync(ctx, "clusters", "30000", version), 0)
		}
		if n := r.Streams(); n != 2 {
			t.Errorf("%d streams are open, want 2, the polls", n)
		}
		reply := c.poll("clusters", "", "").expectStatus(http.StatusServiceUnavailable,
			"2 streams and polls are open, as many as allowed")
		restStatus(t, reply)
		if reply.header.Get("Retry-After") == "" {
			t.Error("got a 503 without Retry-After")
		}
		cancel()
		synctest.Wait()
		if n := r.Streams(); n != 0 {
			t.Errorf("%d streams are open after the clients disconnected, want none", n)
		}
		c.poll("clusters", "", "").expectNames("a")
	})
}

// R134: a relay that stops answers held polls at once: up-to-date clients with 304, others with 503. In both cases
// it closes the connection, so that the client polls another relay.
func TestR134_RESTDrain(t *testing.T) {
	t.Parallel()
	for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			originBubble(t, func(t *testing.T, o *relaytest.Origin) {
				o.Change(func(b *relaytest.Behaviour) { b.SilentOnMissing = true })
				o.Put(relaytest.Cluster("a"))
				r := start(t, o)
				c := restPoller(t, r, http2)
				version := c.poll("clusters", "", "").expectNames("a")
				current := c.pollAsync(t.Context(), "clusters", "30000", version)
				cold := c.pollAsync(t.Context(), "routes", "30000", "", "x")
				expectHeld(t, current, time.Second)
				expectHeld(t, cold, 0)
				began := time.Now()
				r.Stop()
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("stopping took %v, want at most a second", took)
				}
				expectAnswered(t, current).expectDuration(time.Second).expectNotModified()
				restStatus(t, expectAnswered(t, cold).expectDuration(time.Second).expectStatus(http.StatusServiceUnavailable,
					"shutting down"))
			})
		})
	}
}

// R125: a held poll may outlast uncached content. When another resource of its subscription changes, the relay
// fetches the uncached content from the origin. Without it, the set is no reply for clients that treat absence as
// removal, and has another version for others.
func TestR125_RESTWaitsForContent(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		kind, typeURL string
		names         []string
	}{
		{"clusters", typeCDS, []string{"a", "b"}},
		{"clusters", typeCDS, nil},
		{"routes", typeRDS, []string{"a", "b"}},
		{"routes", typeRDS, []string{"*"}},
	} {
		restBubble(t, func(t *testing.T, o *relaytest.Origin, c *restClient) {
			thing := func(name, text string) *discoverypb.Resource {
				m := domainRoute(name, text)
				if tt.kind == "clusters" {
					m = relaytest.Cluster(name, text)
				}
				return &discoverypb.Resource{Name: name, Version: text, Resource: relaytest.Pack(m),
					CacheControl: &discoverypb.Resource_CacheControl{DoNotCache: name == "a"}}
			}
			o.SetRaw(tt.typeURL, thing("a", "first"))
			o.SetRaw(tt.typeURL, thing("b", "first"))
			version := c.poll(tt.kind, "20000", "", tt.names...).expectNames("a", "b")
			time.Sleep(time.Minute)
			hold := func() <-chan restReply {
				held := c.pollAsync(t.Context(), tt.kind, "30000", version, tt.names...)
				expectHeld(t, held, 5*time.Second)
				return held
			}
			held := hold()
			o.SetRaw(tt.typeURL, thing("b", "second"))
			version = expectAnswered(t, restWithin(held, time.Second)).expectNames("a", "b")

			held = hold()
			o.Change(func(b *relaytest.Behaviour) { b.Delay = 10 * time.Minute }) // the latency of responses
			o.Inject(&discoverypb.DeltaDiscoveryResponse{TypeUrl: tt.typeURL,
				Resources: []*discoverypb.Resource{thing("b", "third")}})
			o.SetRaw(tt.typeURL, thing("b", "third"))
			time.Sleep(time.Minute)
			reply := expectAnswered(t, held)
			o.Change(func(b *relaytest.Behaviour) { b.Delay = 0 })
			if tt.kind == "clusters" {
				reply.expectStatus(http.StatusServiceUnavailable, "is incomplete")
			} else {
				version = reply.expectNames("b")
			}
			time.Sleep(settled)
			c.poll(tt.kind, "20000", version, tt.names...).expectNames("a", "b")
		})
	}
}

// R137: a poll without a version gets the set without denied resources, under its own version. For types with
// complete sets, a client that may hold a denied resource keeps it.
func TestR137_RESTDenied(t *testing.T) {
	t.Parallel()
	for _, names := range [][]string{{"a", "b"}, {"*"}} {
		restBubble(t, func(t *testing.T, o *relaytest.Origin, c *restClient) {
			o.Put(domainRoute("a", "1"), domainRoute("b", "1"), relaytest.Cluster("a"), relaytest.Cluster("b"))
			clusters := c.poll("clusters", "20000", "", names...).expectNames("a", "b")
			c.poll("routes", "20000", "", names...).expectNames("a", "b")
			time.Sleep(time.Minute)
			o.Apply(func(tx *relaytest.Tx) {
				tx.Fail(typeCDS, "b", codes.PermissionDenied, transcript.ErrorDetail)
				tx.Fail(typeRDS, "b", codes.PermissionDenied, transcript.ErrorDetail)
			})
			time.Sleep(time.Second)
			c.poll("clusters", "", clusters, names...).expectNotModified()
			for _, kind := range []string{"clusters", "routes"} {
				c.poll(kind, "", "", names...).expectNames("a")
			}
			version := c.poll("routes", "", "", "a").expectNames("a")
			if got := c.poll("routes", "", "", names...).expectNames("a"); got != version {
				t.Errorf("%q: got version %q, want %q, that of a", names, got, version)
			}
		})
	}
}
