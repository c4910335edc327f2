package conformance_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
)

// uncached has the origin set resources that must not be cached, and waits until all goroutines are idle.
func (w *world) uncached(changes ...string) {
	w.t.Helper()
	w.play("forbids caching of " + strings.Join(changes, ", "))
}

// Concurrent subscriptions to an uncached resource are combined into one subscription at the origin.
func TestR125_ConcurrentSubscriptionsAreCombined(t *testing.T) {
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
		w.sleep(settled)
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

// While the origin is down, a client with support for resource_errors gets an error for an uncached resource.
func TestB25_ErrorWhileTheOriginIsDown(t *testing.T) {
	t.Parallel()
	for _, short := range []string{"eds", "rds", "acme"} {
		worldBubble(t, []string{"TENDER_NODE_GROUP_BY=none"}, func(w *world) {
			w.uncached(short + " a@1")
			w.change(short + " b@1")
			w.autoClient(relaytest.Delta).subscribe(short, "a b")
			w.sleep(time.Minute)
			w.stop()
			w.sleep(time.Minute)
			opts := relaytest.ClientOptions{Node: &corepb.Node{UserAgentName: "gRPC C-core"}}
			c := w.dial(opts).subscribe(short, "a b")
			c.expectAndAck(short + " b@1")
			w.sleep(11 * time.Second)
			c.expectAndAck(short + " !a:Unavailable")
		})
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
