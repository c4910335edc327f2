package conformance_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
)

// uncached has the origin set resources that must not be cached, and waits until all goroutines are idle.
func (w *world) uncached(changes ...string) {
	w.t.Helper()
	w.origin.Apply(func(tx *relaytest.Tx) {
		for _, text := range changes {
			c := w.parse(text)
			r := w.resource(c)
			r.CacheControl = &discoverypb.Resource_CacheControl{DoNotCache: true}
			tx.SetRaw(typeURLs[c.short], r)
		}
	})
	synctest.Wait()
}

// Content that must not be cached is sent to the clients that wait for it. A later client makes the relay fetch it
// from the origin again; clients that hold it are sent nothing then.
func TestR125_ContentIsAskedForAgain(t *testing.T) {
	t.Parallel()
	errorCases(t, func(w *world, v relaytest.Variant, short string) {
		w.uncached(short + " a@1")
		c := w.manualClient(v).subscribe(short, "a")
		w.sleep(time.Second)
		c.expectAndAck(formatFor(v, short+" a@1"))
		for again := 2; again < 5; again++ {
			w.sleep(time.Minute)
			next := w.manualClient(v).subscribe(short, "a")
			w.sleep(100 * time.Millisecond)
			next.expectAndAck(formatFor(v, short+" a@1"))
			if n := w.subscriptions(short, "a"); n != again {
				w.t.Fatalf("the origin got %d subscriptions, want %d", n, again)
			}
			c.expect()
		}
		w.uncached(short + " a@2")
		c.expectAndAck(formatFor(v, short+" a@2"))
	})
}

// Concurrent subscriptions to an uncached resource are combined into one subscription at the origin.
func TestR125_ManyAskOnce(t *testing.T) {
	t.Parallel()
	errorCases(t, func(w *world, v relaytest.Variant, short string) {
		w.origin.Change(func(b *relaytest.Behaviour) { b.Delay = 200 * time.Millisecond })
		w.uncached(short + " a@1")
		w.autoClient(v).subscribe(short, "a")
		w.sleep(time.Minute)
		var clients []*worldClient
		for range 20 {
			clients = append(clients, w.manualClient(v).subscribe(short, "a"))
		}
		w.sleep(time.Second)
		for _, c := range clients {
			c.expectAndAck(formatFor(v, short+" a@1"))
		}
		if n := w.subscriptions(short, "a"); n > 3 {
			w.t.Errorf("the origin got %d subscriptions for 21 clients, want 2 or 3", n)
		}
	})
}

// A later wildcard client makes the relay fetch uncached members from the origin again. The relay subscribes to
// them by name, in a limited number of requests.
func TestR125_Members(t *testing.T) {
	t.Parallel()
	errorCases(t, func(w *world, v relaytest.Variant, short string) {
		w.uncached(short + " a@1")
		w.change(short + " b@1")
		form := "*"
		if short == "cds" || short == "lds" || short == "acme" {
			form = "" // legacy wildcard
		}
		c := w.manualClient(v).subscribe(short, form)
		w.settle()
		c.expectAndAck(formatFor(v, short+" a@1 b@1"))
		for range 3 {
			w.sleep(time.Minute)
			next := w.manualClient(v).subscribe(short, form)
			w.sleep(time.Second)
			state := next.receiveAll()
			if !slices.Equal(state, []string{"a", "b"}) {
				w.t.Fatalf("a later client got %q, want a and b", state)
			}
			next.expect()
			c.expect()
		}
		w.uncached(short + " a@2")
		w.sleep(100 * time.Millisecond)
		if completeFor(v, short, form) {
			c.expectAndAck(short + " {a@2 b@1}")
		} else {
			c.expectAndAck(formatFor(v, short+" a@2"))
		}
		w.sleep(time.Minute)
		w.change(short + " b@2")
		w.sleep(100 * time.Millisecond)
		if completeFor(v, short, form) {
			c.expectAndAck(short + " {a@2 b@2}") // the complete set needs the content of a
		} else {
			c.expectAndAck(formatFor(v, short+" b@2"))
		}
		w.sleep(time.Hour)
		c.expect()
		if n := len(w.origin.State().Requests(typeURLs[short])); n > 60 {
			w.t.Errorf("the origin got %d requests, want at most 60", n)
		}
	})
}

// receiveAll ACKs responses until there are no more, and returns the client's resource names.
func (c *worldClient) receiveAll() (names []string) {
	for len(c.received()) > 0 {
		c.ackBatch()
	}
	for _, entries := range c.State() {
		for name := range entries {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// While the origin is down, a new subscription is never answered with old content of an uncached resource.
func TestB25_OriginDown(t *testing.T) {
	t.Parallel()
	for _, short := range errorTypes {
		down := func(t *testing.T, f func(w *world)) {
			t.Helper()
			worldBubble(t, []string{"TENDER_NODE_GROUP_BY=none"}, func(w *world) {
				w.uncached(short + " a@1")
				w.change(short + " b@1")
				w.autoClient(relaytest.Delta).subscribe(short, "a b")
				w.autoClient(relaytest.SotW).subscribe(short, "a b")
				w.sleep(time.Minute)
				w.stop()
				w.sleep(time.Minute)
				f(w)
			})
		}
		eachVariant(t, func(t *testing.T, v relaytest.Variant) {
			t.Run(short, func(t *testing.T) {
				// No resource can be served, so the stream ends with UNAVAILABLE.
				down(t, func(w *world) {
					c := w.manualClient(v).subscribe(short, "a")
					w.sleep(11 * time.Second)
					c.expectUnavailable()
				})
				// The cached resource is served at once, the other one when the origin returns.
				down(t, func(w *world) {
					c := w.manualClient(v).subscribe(short, "a b")
					w.sleep(11 * time.Second)
					c.expectAndAck(formatFor(v, short+" b@1"))
					w.sleep(time.Hour)
					c.expect()
					w.restart()
					if complete(v, short) {
						c.expectAndAck(short + " {a@1 b@1}")
					} else {
						c.expectAndAck(formatFor(v, short+" a@1"))
					}
				})
			})
		})
		if complete(relaytest.SotW, short) {
			// A returning client that may hold the resource is sent no removal.
			down(t, func(w *world) {
				c := w.manualClient(relaytest.SotW).subscribeHolding(relaytest.SotW, short, "a b", "")
				w.sleep(time.Hour)
				c.expect()
				w.restart()
				c.expectAndAck(short + " {a@1 b@1}")
			})
			// A complete set that lacks a member is not sent either.
			down(t, func(w *world) {
				w.restart()
				w.autoClient(relaytest.SotW).subscribe(short, "*")
				w.sleep(time.Minute)
				w.stop()
				w.sleep(time.Minute)
				c := w.manualClient(relaytest.SotW).subscribe(short, "*")
				w.sleep(11 * time.Second)
				c.expectUnavailable()
			})
		} else {
			down(t, func(w *world) {
				c := w.dial(relaytest.ClientOptions{Node: &corepb.Node{UserAgentName: "gRPC C-core"}}).subscribe(short, "a b")
				c.expectAndAck(short + " b@1")
				w.sleep(11 * time.Second)
				c.expectAndAck(short + " !a:Unavailable")
			})
		}
	}
}

// Uncached content that changes while a client has an unacknowledged response is fetched again after its ACK, once
// for all such clients.
func TestB25_SlowClients(t *testing.T) {
	t.Parallel()
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		for _, short := range errorTypes {
			for _, name := range []string{"a", "*"} {
				worldBubble(t, []string{"TENDER_ACK_WAIT=1m"}, func(w *world) {
					w.uncached(short + " a@1")
					var clients []*worldClient
					for range 10 {
						clients = append(clients, w.manualClient(v).subscribe(short, name))
					}
					w.settle()
					for _, c := range clients {
						c.expect(formatFor(v, short+" a@1")) // no ACK
					}
					before := w.subscriptions(short, name)
					w.uncached(short + " a@2")
					w.sleep(10 * time.Second)
					for _, c := range clients {
						c.expect()
						c.ack(short)
					}
					w.sleep(100 * time.Millisecond)
					for _, c := range clients {
						c.expectAndAck(formatFor(v, short+" a@2"))
					}
					if n := w.subscriptions(short, name) - before; n < 1 || n > 2 {
						t.Errorf("%s %s: the origin got %d more subscriptions for ten clients, want 1 or 2", short, name, n)
					}
				})
			}
		}
	})
}

// The relay does not repeat a request for uncached content while the origin does not respond.
func TestB25_OriginThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		for _, short := range errorTypes {
			for _, name := range []string{"a", "*"} {
				worldBubble(t, nil, func(w *world) {
					w.uncached(short + " a@1")
					w.autoClient(v).subscribe(short, name)
					w.settle()
					w.origin.Change(func(b *relaytest.Behaviour) { b.Delay = 24 * time.Hour })
					before := len(w.origin.State().Requests(typeURLs[short]))
					for range 5 {
						c := w.manualClient(v).subscribe(short, name).subscribe("sds", "nothing")
						w.sleep(time.Minute)
						c.subscribe("ecds", "nothing")
						w.sleep(time.Minute)
					}
					if n := len(w.origin.State().Requests(typeURLs[short])) - before; n > 12 {
						t.Errorf("%s %s: the origin got %d requests for five clients, want at most 12", short, name, n)
					}
				})
			}
		}
	})
}

// A resource may change between cacheable and uncached.
func TestR125_CacheableAndBack(t *testing.T) {
	t.Parallel()
	errorCases(t, func(w *world, v relaytest.Variant, short string) {
		w.uncached(short + " a@1")
		c := w.manualClient(v).subscribe(short, "a")
		w.sleep(time.Minute)
		c.expectAndAck(formatFor(v, short+" a@1"))
		w.change(short + " a@2=alias") // the alias gives a new version for the same revision
		c.expectAndAck(formatFor(v, short+" a@2=alias"))
		w.sleep(time.Minute)
		before := w.subscriptions(short, "a")
		w.manualClient(v).subscribe(short, "a").expectAndAck(formatFor(v, short+" a@2=alias"))
		if n := w.subscriptions(short, "a"); n != before {
			w.t.Errorf("the origin got %d subscriptions for a cached resource, want none", n-before)
		}
		w.uncached(short + " a@3")
		c.expectAndAck(formatFor(v, short+" a@3"))
		w.sleep(time.Minute)
		next := w.manualClient(v).subscribe(short, "a")
		w.sleep(time.Second)
		next.expectAndAck(formatFor(v, short+" a@3"))
		if n := w.subscriptions(short, "a"); n != before+1 {
			w.t.Errorf("the origin got %d subscriptions for an uncached resource, want 1", n-before)
		}
		w.change(short + " -a")
		w.sleep(time.Minute)
		last := w.manualClient(v).subscribe(short, "a")
		if v == relaytest.Delta {
			last.expectAndAck(short + " -a")
		}
	})
}

// A SotW client with wrapper support receives cache_control in the Resource wrapper. Other clients receive the
// plain resource (B.19).
func TestB19_UncachedInSotW(t *testing.T) {
	t.Parallel()
	for _, short := range []string{"cds", "rds"} {
		for _, feature := range []string{"xds.config.resource-in-sotw", ""} {
			worldBubble(t, nil, func(w *world) {
				w.uncached(short + " a@1")
				w.change(short + " b@1")
				node := relaytest.EnvoyNode("e")
				if feature != "" {
					node.ClientFeatures = []string{feature}
				}
				c := w.dial(relaytest.ClientOptions{Variant: relaytest.SotW, Node: node}).subscribe(short, "a b")
				w.sleep(time.Second)
				c.expectAndAck(short + " {a@1 b@1}")
				wrapped := 0
				for _, body := range c.batch[0].Message.(*discoverypb.DiscoveryResponse).GetResources() {
					r := new(discoverypb.Resource)
					if body.MessageIs(r) {
						wrapped++
						if err := proto.Unmarshal(body.GetValue(), r); err != nil || r.GetName() != "a" ||
							!r.GetCacheControl().GetDoNotCache() {
							t.Errorf("%s: the wrapped resource is %v (%v), want a with do_not_cache", short, r, err)
						}
					}
				}
				if want := map[bool]int{true: 1, false: 0}[feature != ""]; wrapped != want {
					t.Errorf("%s, feature %q: %d resources are wrapped, want %d", short, feature, wrapped, want)
				}
			})
		}
	}
}
