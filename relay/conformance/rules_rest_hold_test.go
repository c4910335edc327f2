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
)

// streamSettle lets what was sent arrive, in a bubble.
func streamSettle() { synctest.Wait() }

// R114: a client that has what there is gets 304 and no body, whether it asked for
// everything, for names, or for what does not exist.
func TestR114_Unchanged(t *testing.T) {
	t.Parallel()
	restBubble(t, func(t *testing.T, o *relaytest.Origin, c *restClient) {
		o.Put(relaytest.Cluster("a"), relaytest.Cluster("b"), domainRoute("a", "x"))
		c.poll("clusters", "", "").expectNames("a", "b")
		time.Sleep(time.Minute) // until that is confirmed
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

// R115: a poll that is up to date is answered when something changes that it asked
// for, and not before.
func TestR115_HeldUntilChange(t *testing.T) {
	t.Parallel()
	restBubble(t, func(t *testing.T, o *relaytest.Origin, c *restClient) {
		o.Put(domainRoute("a", "1"), domainRoute("b", "1"), domainRoute("c", "1"))
		version := c.poll("routes", "", "", "a", "b").expectNames("a", "b")
		held := c.pollAsync(t.Context(), "routes", "30000", version, "b", "a")
		expectHeld(t, held, 5*time.Second)
		o.Put(domainRoute("c", "2"), relaytest.Cluster("a")) // not asked for
		o.Put(domainRoute("a", "1"))                         // no change
		expectHeld(t, held, 5*time.Second)
		o.Put(domainRoute("a", "2"))
		reply := expectAnswered(t, held).expectDuration(10 * time.Second)
		changed := reply.expectNames("a", "b") // all that it asked for, changed or not
		if changed == version {
			t.Error("a route changed, and the version did not")
		}

		held = c.pollAsync(t.Context(), "routes", "30000", changed, "a", "b")
		expectHeld(t, held, time.Second)
		o.Remove(typeRDS, "b")
		expectAnswered(t, held).expectNames("a")
	})
}

// B.27: a poll is held for what its client waits less 100 ms, 800 ms if it does not
// say, and never for more than 30 s; then the answer is 304.
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

// B.27, B.8: while nothing is known, a poll is held, and then answered 503; what
// comes meanwhile is the answer.
func TestB27_Cold(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(relaytest.Cluster("a"), domainRoute("a", "x"))
		o.Stop()
		c := restPoller(t, start(t, o), false)
		for _, version := range []string{"", "r1.AAAAAAAAAAAAAAAAAAAAAA", "other"} {
			for kind, names := range map[string][]string{"clusters": nil, "routes": {"a"}, "listeners": {"a"}} {
				reply := c.poll(kind, "5000", version, names...).expectStatus(http.StatusServiceUnavailable, "nothing is known yet").expectDuration(4900 * time.Millisecond)
				restStatus(t, reply)
				if reply.header.Get("Retry-After") == "" {
					t.Error("503 without Retry-After")
				}
			}
		}
		held := c.pollAsync(t.Context(), "clusters", "30000", "")
		expectHeld(t, held, time.Second)
		o.Restart()
		expectAnswered(t, restWithin(held, 29*time.Second)).expectNames("a")
	})
}

// restWithin lets time pass, in a bubble, until a poll is answered, or d is over.
func restWithin(held <-chan restReply, d time.Duration) <-chan restReply {
	answered := make(chan restReply, 1)
	select {
	case reply := <-held:
		answered <- reply
	case <-time.After(d):
	}
	return answered
}

// B.8: what was known before the origin was lost is served on, to newcomers too, and
// a poll that is up to date is held as ever.
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

// B.7: of a type whose absentees are deleted, a client that holds state is not sent a
// set that lacks what the origin may yet have, until the origin had its time; one
// without state is, at the hold limit; and of other types, both are.
func TestB7_RESTUnansweredName(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Change(func(b *relaytest.Behaviour) { b.SilentOnMissing = true })
		o.Put(relaytest.Listener("a", "r"), domainRoute("a", "x"))
		r := start(t, o)
		c := restPoller(t, r, false)
		c.poll("listeners", "", "old", "a", "b").expectStatus(http.StatusServiceUnavailable, "not complete").expectDuration(800 * time.Millisecond)
		partial := c.poll("listeners", "", "", "a", "b").expectDuration(800 * time.Millisecond).expectNames("a")
		c.poll("listeners", "", partial, "a", "b").expectNotModified()
		c.poll("listeners", "", "old", "a", "b").expectStatus(http.StatusServiceUnavailable, "not complete")
		c.poll("routes", "", "old", "a", "b").expectDuration(800 * time.Millisecond).expectNames("a")
		c.poll("routes", "", "old", "b").expectStatus(http.StatusServiceUnavailable, "nothing is known yet")

		time.Sleep(10 * time.Second) // since it was asked
		c.poll("listeners", "", "old", "a", "b").expectDuration(0).expectNames("a")
		c.poll("listeners", "", "", "a", "b").expectDuration(0).expectNames("a")
		c.poll("routes", "", "old", "a", "b").expectDuration(0).expectNames("a")

		held := c.pollAsync(t.Context(), "listeners", "30000", partial, "a", "b")
		expectHeld(t, held, 5*time.Second)
		o.Put(relaytest.Listener("b", "r"))
		expectAnswered(t, held).expectNames("a", "b")
	})
}

// B.7, R068: with the origin down, a client that holds state is not told of a new
// name's absence however long it polls.
func TestB7_RESTNewNameWithoutOrigin(t *testing.T) {
	t.Parallel()
	restBubble(t, func(t *testing.T, o *relaytest.Origin, c *restClient) {
		o.Put(relaytest.Listener("a", "r"))
		c.poll("listeners", "", "", "a").expectNames("a")
		o.Stop()
		for range 100 {
			c.poll("listeners", "30000", "old", "a", "b").expectStatus(http.StatusServiceUnavailable, "not complete").expectDuration(29900 * time.Millisecond)
		}
		c.poll("listeners", "", "", "a", "b").expectNames("a")
	})
}

// B.7: everything is what the origin chose, once that is confirmed, for a client
// that may hold more; for a newcomer as soon as it has settled.
func TestB7_RESTConfirmed(t *testing.T) {
	t.Parallel()
	restBubble(t, func(t *testing.T, o *relaytest.Origin, c *restClient) {
		o.Put(relaytest.Cluster("a"))
		c.poll("clusters", "", "old").expectStatus(http.StatusServiceUnavailable, "not complete")
		c.poll("clusters", "", "").expectDuration(0).expectNames("a")
		held := c.pollAsync(t.Context(), "clusters", "30000", "old")
		reply := expectAnswered(t, restWithin(held, 15*time.Second))
		if reply.expectNames("a"); reply.took > 10*time.Second || reply.took < 8*time.Second {
			t.Errorf("answered after %v, want when the set is confirmed", reply.took)
		}
	})
}

// B.7: a poll whose client has just what is known is answered when that changes,
// confirmed or not: nothing else that it has can be missing.
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

// B.17: a type that is full-state by option is not held for what the origin has not
// answered.
func TestB17_RESTFullStateByOption(t *testing.T) {
	t.Parallel()
	restBubble(t, func(t *testing.T, o *relaytest.Origin, c *restClient) {
		o.Change(func(b *relaytest.Behaviour) { b.SilentOnMissing = true })
		o.Put(domainRoute("a", "x"))
		c.poll("routes", "", "", "a").expectNames("a")
		c.poll("routes", "", "old", "a", "b").expectDuration(0).expectNames("a")
		c.poll("routes", "", "old", "b").expectStatus(http.StatusServiceUnavailable, "nothing is known yet")
	}, "TENDER_FULL_STATE_TYPES=rds")
}

// B.35: polls that are held count among the streams, whose number is bounded; a
// client that leaves makes room.
func TestB35_RESTMaxStreams(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(relaytest.Cluster("a"))
		r := start(t, o, "TENDER_MAX_STREAMS=2")
		c := restPoller(t, r, false)
		version := c.poll("clusters", "", "").expectNames("a")
		ctx, leave := context.WithCancel(t.Context())
		for range 2 {
			expectHeld(t, c.pollAsync(ctx, "clusters", "30000", version), 0)
		}
		if n := r.Streams(); n != 2 {
			t.Errorf("%d streams are open, want the 2 polls", n)
		}
		reply := c.poll("clusters", "", "").expectStatus(http.StatusServiceUnavailable, "2 streams and polls are open, as many as allowed")
		restStatus(t, reply)
		if reply.header.Get("Retry-After") == "" {
			t.Error("503 without Retry-After")
		}
		leave()
		synctest.Wait()
		if n := r.Streams(); n != 0 {
			t.Errorf("%d streams are open after the clients have left, want none", n)
		}
		c.poll("clusters", "", "").expectNames("a")
	})
}

// R134: a relay that stops answers held polls at once: what is up to date with 304,
// the rest with 503, and in both cases the connection ends, so that the next poll
// goes elsewhere.
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
					t.Errorf("it took %v to stop", took)
				}
				expectAnswered(t, current).expectDuration(time.Second).expectNotModified()
				restStatus(t, expectAnswered(t, cold).expectDuration(time.Second).expectStatus(http.StatusServiceUnavailable, "shutting down"))
			})
		})
	}
}

// R125: a poll that is held outlives content that may not be kept. When something else
// of what it asked for changes, the origin is asked for that content; a set that lacks it
// is no answer to a client that has it and deletes what is missing, and to others it is
// no version of the whole.
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
				return &discoverypb.Resource{Name: name, Version: text, Resource: xdstpPack(t, m),
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
			o.Change(func(b *relaytest.Behaviour) { b.Delay = time.Hour }) // which is how long its answers take
			o.Inject(&discoverypb.DeltaDiscoveryResponse{TypeUrl: tt.typeURL, Resources: []*discoverypb.Resource{thing("b", "third")}})
			o.SetRaw(tt.typeURL, thing("b", "third"))
			time.Sleep(time.Minute)
			reply := expectAnswered(t, held)
			o.Change(func(b *relaytest.Behaviour) { b.Delay = 0 })
			if tt.kind == "clusters" {
				reply.expectStatus(http.StatusServiceUnavailable, "not complete yet")
			} else {
				version = reply.expectNames("b")
			}
			time.Sleep(2 * time.Hour)
			c.poll(tt.kind, "20000", version, tt.names...).expectNames("a", "b")
		})
	}
}

// R137: what the origin denies, a poll without state is not given, and its version says
// so; a poll that may hold it, of a type whose sets are complete, is left it.
func TestR137_RESTDenied(t *testing.T) {
	t.Parallel()
	for _, names := range [][]string{{"a", "b"}, {"*"}} {
		restBubble(t, func(t *testing.T, o *relaytest.Origin, c *restClient) {
			o.Put(domainRoute("a", "1"), domainRoute("b", "1"), relaytest.Cluster("a"), relaytest.Cluster("b"))
			clusters := c.poll("clusters", "20000", "", names...).expectNames("a", "b")
			c.poll("routes", "20000", "", names...).expectNames("a", "b")
			time.Sleep(time.Minute)
			o.Apply(func(tx *relaytest.Tx) {
				tx.Fail(typeCDS, "b", codes.PermissionDenied, errorDetail)
				tx.Fail(typeRDS, "b", codes.PermissionDenied, errorDetail)
			})
			time.Sleep(time.Second)
			c.poll("clusters", "", clusters, names...).expectNotModified()
			for _, kind := range []string{"clusters", "routes"} {
				c.poll(kind, "", "", names...).expectNames("a")
			}
			version := c.poll("routes", "", "", "a").expectNames("a")
			if got := c.poll("routes", "", "", names...).expectNames("a"); got != version {
				t.Errorf("%q: version %q, want %q, that of a alone", names, got, version)
			}
		})
	}
}
