package conformance_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/relay/relaytest"
)

// The origin changes a TTL by sending the resource with another one, and ends it by sending the resource without.
// The relay and its clients follow.
func TestR105_TTLChanges(t *testing.T) {
	t.Parallel()
	ttlForms(t, func(t *testing.T, f ttlForm) {
		ttlBubble(t, nil, func(w *ttlWorld) {
			ttl, plain := w.ttlAndPlain(f.variant, f.short, f.names)
			w.set(f.short+" a@1", f.short+" b@1")
			ttl.expectAndAck(f.response("a@1 b@1", "a@1 b@1"))
			plain.expectAndAck(f.response("a@1 b@1", "a@1 b@1"))
			version := ttl.batch[0].Version
			for _, given := range []string{"1m", "2h", "10m"} {
				w.sleep(7 * time.Second)
				w.set(f.short + " a@1 " + given)
				d, _ := time.ParseDuration(given)
				full := "a@1(" + d.String() + ")"
				ttl.expectAndAck(f.heartbeat("a", full, full+" b@1"))
				plain.expectAndAck()
			}
			w.sleep(time.Minute)
			w.set(f.short + " a@1")
			ttl.expectAndAck(f.response("a@1", "a@1 b@1")) // a heartbeat without a TTL has no effect
			if got := ttl.batch[0].Version; f.variant == relaytest.SotW && got != version {
				t.Errorf("the version changed from %[2]q to %[1]q with the TTL only", got, version)
			}
			w.sleep(10 * time.Minute)
			ttl.expectAndAck()
			plain.expectAndAck()
		})
	})
}

// A heartbeat only renews the TTL. It changes no version and reaches only clients with TTL support. In SotW it is
// the complete resource in a response of the same version (R111).
func TestR106_B18_HeartbeatOnlyMovesTheTimer(t *testing.T) {
	t.Parallel()
	ttlForms(t, func(t *testing.T, f ttlForm) {
		ttlBubble(t, nil, func(w *ttlWorld) {
			ttl, plain := w.ttlAndPlain(f.variant, f.short, f.names)
			w.set(f.short+" a@1 1m", f.short+" b@1 1h")
			ttl.expectAndAck(f.response("a@1(1m0s) b@1(1h0m0s)", "a@1(1m0s) b@1(1h0m0s)"))
			plain.expectAndAck(f.response("a@1 b@1", "a@1 b@1"))
			before := ttl.batch[0]
			remaining := time.Hour
			for range 5 {
				w.sleep(40 * time.Second)
				remaining -= 40 * time.Second
				w.heartbeat(f.short, "a")
				all := fmt.Sprintf("a@1(1m0s) b@1(%v)", remaining)
				ttl.expectAndAck(f.heartbeat("a", "a@1(1m0s)", all))
				plain.expectAndAck()
				got := ttl.batch[0]
				if f.variant == relaytest.SotW && got.Version != before.Version {
					t.Errorf("the heartbeat response has version %q, want %q of the set", got.Version, before.Version)
				}
				if a := got.Resource("a"); a.Version != before.Resource("a").Version {
					t.Errorf("the heartbeat has version %q, want %q of the resource", a.Version, before.Resource("a").Version)
				}
			}
			w.sleep(time.Minute)
			ttl.expectAndAck(f.removal("a", fmt.Sprintf("b@1(%v)", remaining-time.Minute))...)
			plain.expectAndAck(f.removal("a", "b@1")...)
		})
	})
}

// A client that subscribed later receives heartbeats too.
func TestR106_HeartbeatForLateSubscriber(t *testing.T) {
	t.Parallel()
	ttlForms(t, func(t *testing.T, f ttlForm) {
		ttlBubble(t, nil, func(w *ttlWorld) {
			w.syncedClient(f.variant, plainEnvoy, f.short, f.names)
			w.set(f.short+" a@1 1m", f.short+" b@1")
			w.sleep(30 * time.Second)
			late := w.client(f.variant, ttlEnvoy, f.short, f.names)
			late.expectAndAck(f.response("a@1(30s) b@1", "a@1(30s) b@1"))
			w.sleep(10 * time.Second)
			w.heartbeat(f.short, "a")
			late.expectAndAck(f.heartbeat("a", "a@1(1m0s)", "a@1(1m0s) b@1"))
		})
	})
}

// If a resource changes and is renewed while a response is unacknowledged, the next response holds the resource
// with the remaining TTL and no heartbeat.
func TestR109_SlowClientGetsTheResource(t *testing.T) {
	t.Parallel()
	ttlForms(t, func(t *testing.T, f ttlForm) {
		ttlBubble(t, []string{"TENDER_ACK_WAIT=1m"}, func(w *ttlWorld) {
			c := w.syncedClient(f.variant, ttlEnvoy, f.short, f.names)
			w.set(f.short+" a@1 1m", f.short+" b@1")
			c.expect(f.response("a@1(1m0s) b@1", "a@1(1m0s) b@1"))
			w.set(f.short + " a@2 1m")
			w.sleep(10 * time.Second)
			w.heartbeat(f.short, "a")
			w.heartbeat(f.short, "a")
			w.sleep(10 * time.Second)
			c.expect()
			c.ack(f.short)
			c.expectAndAck(f.response("a@2(50s)", "a@2(50s) b@1"))
			w.heartbeat(f.short, "a")
			c.expectAndAck(f.heartbeat("a", "a@2(1m0s)", "a@2(1m0s) b@1"))
		})
	})
}

// If the origin sends the same content under another version, clients keep the older version. A heartbeat of the
// new version is then sent as the complete resource.
func TestR109_NewVersionOfTheSameContent(t *testing.T) {
	t.Parallel()
	ttlBubble(t, nil, func(w *ttlWorld) {
		c := w.syncedClient(relaytest.Delta, ttlEnvoy, "cds", "*")
		typeURL, r := w.resource("cds a@1 1m")
		w.origin.SetRaw(typeURL, r)
		c.expectAndAck("cds a@1(1m0s)")
		r.Version = "another"
		w.origin.SetRaw(typeURL, r)
		synctest.Wait()
		c.ackPending()
		w.sleep(time.Second)
		w.heartbeat("cds", "a")
		c.expectAndAck("cds a@1(1m0s)")
	})
}

// A heartbeat whose version is not that of the cached resource has no effect, and is not passed on.
func TestR106_HeartbeatOfAnotherVersion(t *testing.T) {
	t.Parallel()
	ttlBubble(t, nil, func(w *ttlWorld) {
		c, sotw := w.syncedClient(relaytest.Delta, ttlEnvoy, "eds", "a"), w.syncedClient(relaytest.SotW, ttlEnvoy, "eds", "a")
		w.set("eds a@1 1m")
		c.expectAndAck("eds a@1(1m0s)")
		sotw.expectAndAck("eds {a@1(1m0s)}")
		w.sleep(10 * time.Second)
		for _, version := range []string{"v0", "v2", ""} {
			w.origin.Inject(&discoverypb.DeltaDiscoveryResponse{
				TypeUrl:   relaytest.EndpointType,
				Resources: []*discoverypb.Resource{{Name: "a", Version: version, Ttl: durationpb.New(time.Hour)}},
			})
		}
		c.expectAndAck()
		sotw.expectAndAck()
		w.sleep(50 * time.Second)
		c.expectAndAck("eds -a")
		sotw.expectAndAck()
	})
}

// A SotW client never receives a resource without content, whatever the origin sends.
func TestR111_SotWHasNoHeartbeats(t *testing.T) {
	t.Parallel()
	for _, short := range []string{"cds", "eds", "sds", "acme", "vhds"} {
		for _, names := range []string{"*", "a b"} {
			if short == "sds" && names == "*" {
				continue // a Secret wildcard is not subscribed to at the origin (B.36)
			}
			ttlBubble(t, nil, func(w *ttlWorld) {
				c := w.syncedClient(relaytest.SotW, ttlEnvoy, short, names)
				minute := durationpb.New(time.Minute)
				for _, r := range []*discoverypb.Resource{
					{Name: "a", Version: "v1", Ttl: minute},
					{Name: "a", Version: "v1"},
					{Name: "a", Version: "v1", Aliases: []string{"a"}},
					{Name: "b", Version: "v1", Aliases: []string{"b"}, Ttl: minute},
				} {
					w.origin.Inject(&discoverypb.DeltaDiscoveryResponse{TypeUrl: typeURLs[short],
						Resources: []*discoverypb.Resource{r}})
					synctest.Wait()
				}
				w.set(short+" a@1 1m", short+" b@1 1m")
				w.heartbeat(short, "a", "b")
				w.settle()
				seen := make(map[string]bool)
				for _, r := range c.Responses() {
					for _, res := range r.Resources {
						if seen[res.Name] = true; res.Body == nil {
							t.Errorf("%s %s: %v contains a resource without content", short, names, r)
						}
					}
				}
				if !seen["a"] || !seen["b"] {
					t.Errorf("%s %s: got %v, want a and b", short, names, seen)
				}
			})
		}
	}
}

// The relay sends no heartbeats unless the origin does.
func TestB18_RelaySendsNoOwnHeartbeats(t *testing.T) {
	t.Parallel()
	ttlForms(t, func(t *testing.T, f ttlForm) {
		ttlBubble(t, nil, func(w *ttlWorld) {
			c := w.syncedClient(f.variant, ttlEnvoy, f.short, f.names)
			w.set(f.short+" a@1 10m", f.short+" b@1")
			c.expectAndAck(f.response("a@1(10m0s) b@1", "a@1(10m0s) b@1"))
			w.sleep(10*time.Minute - 1)
			c.expectAndAck()
		})
	})
}

// Heartbeats for many resources are split into responses of limited size.
func TestB32_HeartbeatsAreSplit(t *testing.T) {
	t.Parallel()
	const resources, size = 30, 200_000
	for _, names := range [][]string{{"*"}, nil} {
		ttlBubble(t, nil, func(w *ttlWorld) {
			var all []string
			reject := true
			c := w.relay.Client(relaytest.ClientOptions{Node: ttlEnvoy, AutoAck: true, Reject: func(*relaytest.Response) error {
				if reject {
					reject = false
					return errors.New("once, so that it is sent no heartbeats")
				}
				return nil
			}})
			give := func(tx *relaytest.Tx) {
				all = nil
				for i := range resources {
					name := fmt.Sprintf("r%02d", i)
					all = append(all, name)
					tx.SetRaw(acmeThing, &discoverypb.Resource{
						Name: name, Version: "1", Ttl: durationpb.New(time.Minute),
						Resource: relaytest.Opaque(acmeThing, name, make([]byte, size)),
					})
				}
			}
			w.origin.Apply(give)
			if names == nil {
				names = all
			}
			c.Subscribe(acmeThing, names...)
			w.settle()
			before := len(c.Responses())
			w.origin.Heartbeat(acmeThing, all...)
			w.sleep(time.Second)
			var renewed []string
			for _, r := range c.Responses()[before:] {
				bytes := 0
				for _, res := range r.Resources {
					if bytes += len(res.Body.GetValue()); res.TTL != time.Minute {
						t.Errorf("%s has a TTL of %v, want 1m", res.Name, res.TTL)
					}
				}
				if bytes > 3_500_000 {
					t.Errorf("got a response of %d bytes, want at most 3500000", bytes)
				}
				renewed = append(renewed, r.Names()...)
			}
			if slices.Sort(renewed); !slices.Equal(renewed, all) {
				t.Errorf("got heartbeats for %d resources %q, want each of %d once", len(renewed), renewed, len(all))
			}
		})
	}
}
