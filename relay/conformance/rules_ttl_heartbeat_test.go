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

// A TTL changes when the resource is sent again with another one, and goes when it is
// sent without: for the relay, and for its clients.
func TestR105_TTLChanges(t *testing.T) {
	t.Parallel()
	ttlForms(t, func(t *testing.T, f ttlForm) {
		ttlBubble(t, nil, func(w *ttlWorld) {
			ttl, plain := w.syncedClient(f.variant, ttlEnvoy, f.short, f.names), w.syncedClient(f.variant, plainEnvoy, f.short, f.names)
			w.set(f.short+" a@1", f.short+" b@1")
			ttl.expectAndAck(f.response("a@1 b@1", "a@1 b@1"))
			plain.expectAndAck(f.response("a@1 b@1", "a@1 b@1"))
			version := ttl.batch[0].Version
			for _, given := range []string{"1m", "1m", "2h", "10m"} {
				w.sleep(7 * time.Second)
				w.set(f.short + " a@1 " + given)
				d, _ := time.ParseDuration(given)
				full := "a@1(" + d.String() + ")"
				ttl.expectAndAck(f.heartbeat("a", full, full+" b@1"))
				plain.expectAndAck()
			}
			w.sleep(time.Minute)
			w.set(f.short + " a@1")
			ttl.expectAndAck(f.response("a@1", "a@1 b@1")) // without a TTL a heartbeat would say nothing
			if got := ttl.batch[0].Version; f.variant == relaytest.SotW && got != version {
				t.Errorf("the version is %q now and was %q: a TTL is no part of it", got, version)
			}
			w.sleep(2 * time.Hour)
			ttl.expectAndAck()
			plain.expectAndAck()
		})
	})
}

// A heartbeat moves the timer of those who have one and is nothing else: no version
// changes, and nobody else hears of it. In SotW it is the resource itself, in a
// response of the same version (R111).
func TestR106_B18_HeartbeatOnlyMovesTheTimer(t *testing.T) {
	t.Parallel()
	ttlForms(t, func(t *testing.T, f ttlForm) {
		ttlBubble(t, nil, func(w *ttlWorld) {
			ttl, plain := w.syncedClient(f.variant, ttlEnvoy, f.short, f.names), w.syncedClient(f.variant, plainEnvoy, f.short, f.names)
			w.set(f.short+" a@1 1m", f.short+" b@1 1h")
			ttl.expectAndAck(f.response("a@1(1m0s) b@1(1h0m0s)", "a@1(1m0s) b@1(1h0m0s)"))
			plain.expectAndAck(f.response("a@1 b@1", "a@1 b@1"))
			before := ttl.batch[0]
			left := time.Hour
			for range 5 {
				w.sleep(40 * time.Second)
				left -= 40 * time.Second
				w.heartbeat(f.short, "a")
				all := fmt.Sprintf("a@1(1m0s) b@1(%v)", left)
				ttl.expectAndAck(f.heartbeat("a", "a@1(1m0s)", all))
				plain.expectAndAck()
				got := ttl.batch[0]
				if f.variant == relaytest.SotW && got.Version != before.Version {
					t.Errorf("a heartbeat has the version %q, the set %q", got.Version, before.Version)
				}
				if a := got.Resource("a"); a.Version != before.Resource("a").Version {
					t.Errorf("a heartbeat is of version %q, the resource was of %q", a.Version, before.Resource("a").Version)
				}
			}
			w.sleep(time.Minute)
			ttl.expectAndAck(f.removal("a", fmt.Sprintf("b@1(%v)", left-time.Minute))...)
			plain.expectAndAck(f.removal("a", "b@1")...)
		})
	})
}

// A late subscriber hears of a heartbeat as of any other.
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

// A response that was merged while the client was slow holds the resource as it is, with
// what is left of its time, and no heartbeat beside it.
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

// A version that the origin gives the same content is told to nobody; so nobody is sent
// a heartbeat for it.
func TestR109_AnotherVersionOfTheSame(t *testing.T) {
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

// What the origin repeats in full is passed on as a heartbeat, and what it says of
// another version as nothing.
func TestR106_WhatIsNoHeartbeat(t *testing.T) {
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

// TestR111_SotWHasNoHeartbeats is TestR106 for an odd origin: nothing without content
// ever reaches SotW, whatever it is. (Every client of these tests looks for that.)
func TestR111_SotWHasNoHeartbeats(t *testing.T) {
	t.Parallel()
	for _, short := range []string{"cds", "eds", "sds", "acme", "vhds"} {
		for _, names := range []string{"*", "a b"} {
			if short == "sds" && names == "*" {
				continue // nobody has Secrets so (B.36)
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
					w.origin.Inject(&discoverypb.DeltaDiscoveryResponse{TypeUrl: typeURLs[short], Resources: []*discoverypb.Resource{r}})
					synctest.Wait()
				}
				w.set(short+" a@1 1m", short+" b@1 1m")
				w.heartbeat(short, "a", "b")
				w.settle()
				seen := make(map[string]bool)
				for _, r := range c.Responses() {
					for _, res := range r.Resources {
						if seen[res.Name] = true; res.Body == nil {
							t.Errorf("%s %s: %v holds a resource without content", short, names, r)
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

// The relay says of itself that nothing lives on: without heartbeats of the origin
// there are none.
func TestB18_NoHeartbeatsOfItsOwn(t *testing.T) {
	t.Parallel()
	ttlForms(t, func(t *testing.T, f ttlForm) {
		ttlBubble(t, nil, func(w *ttlWorld) {
			c := w.syncedClient(f.variant, ttlEnvoy, f.short, f.names)
			w.set(f.short+" a@1 2h", f.short+" b@1")
			c.expectAndAck(f.response("a@1(2h0m0s) b@1", "a@1(2h0m0s) b@1"))
			w.sleep(2*time.Hour - 1)
			c.expectAndAck()
		})
	})
}

// Many resources that live on together are told in responses of bounded size.
func TestB32_RenewalsAreCut(t *testing.T) {
	t.Parallel()
	const resources, size = 30, 200_000
	for _, names := range [][]string{{"*"}, nil} {
		ttlBubble(t, nil, func(w *ttlWorld) {
			var all []string
			refuse := true
			c := w.relay.Client(relaytest.ClientOptions{Node: ttlEnvoy, AutoAck: true, Reject: func(*relaytest.Response) error {
				if refuse {
					refuse = false
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
						Name: name, Version: "1", Ttl: durationpb.New(time.Minute), Resource: relaytest.Opaque(acmeThing, name, make([]byte, size)),
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
			var told []string
			for _, r := range c.Responses()[before:] {
				bytes := 0
				for _, res := range r.Resources {
					if bytes += len(res.Body.GetValue()); res.TTL != time.Minute {
						t.Errorf("%s has %v to live, want 1m", res.Name, res.TTL)
					}
				}
				if bytes > 3_500_000 {
					t.Errorf("a response of %d bytes", bytes)
				}
				told = append(told, r.Names()...)
			}
			if slices.Sort(told); !slices.Equal(told, all) {
				t.Errorf("got told of %d resources %q, want each of %d once", len(told), told, len(all))
			}
		})
	}
}
