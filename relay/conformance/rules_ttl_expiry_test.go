package conformance_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/relay/relaytest"
)

// A resource whose TTL the origin does not renew is removed from every client exactly when the TTL ends, even
// while the origin is down.
func TestR107_ExpiryIsRemoval(t *testing.T) {
	t.Parallel()
	ttlForms(t, func(t *testing.T, f ttlForm) {
		for _, up := range []bool{true, false} {
			ttlBubble(t, nil, func(w *ttlWorld) {
				ttl, plain := w.ttlAndPlain(f.variant, f.short, f.names)
				w.set(f.short+" a@1 1m", f.short+" b@1")
				ttl.ackPending()
				plain.ackPending()
				w.sleep(20 * time.Second)
				if !up {
					w.stop()
				}
				w.sleep(40*time.Second - 1)
				ttl.expectAndAck()
				plain.expectAndAck()
				w.sleep(1)
				ttl.expectAndAck(f.removal("a", "b@1")...)
				plain.expectAndAck(f.removal("a", "b@1")...)
				w.sleep(2 * time.Minute)
				ttl.expectAndAck()
				plain.expectAndAck()
			})
		}
	})
}

// An expired resource that the origin sends again reaches every subscriber, even if its content and version are
// unchanged.
func TestR107_ExpiredResourceIsSetAgain(t *testing.T) {
	t.Parallel()
	ttlForms(t, func(t *testing.T, f ttlForm) {
		ttlBubble(t, nil, func(w *ttlWorld) {
			ttl, plain := w.ttlAndPlain(f.variant, f.short, f.names)
			w.set(f.short + " b@1")
			ttl.ackPending()
			plain.ackPending()
			for _, rev := range []string{"1", "1", "2", "2"} {
				w.set(f.short + " a@" + rev + " 1m")
				ttl.expectAndAck(f.response("a@"+rev+"(1m0s)", "a@"+rev+"(1m0s) b@1"))
				plain.expectAndAck(f.response("a@"+rev, "a@"+rev+" b@1"))
				w.sleep(time.Minute)
				ttl.expectAndAck(f.removal("a", "b@1")...)
				plain.expectAndAck(f.removal("a", "b@1")...)
			}
		})
	})
}

// A client that subscribes later receives the remaining TTL.
func TestR108_LateSubscriberGetsTheRemainingTTL(t *testing.T) {
	t.Parallel()
	ttlForms(t, func(t *testing.T, f ttlForm) {
		ttlBubble(t, nil, func(w *ttlWorld) {
			first := w.syncedClient(f.variant, ttlEnvoy, f.short, f.names)
			w.set(f.short+" a@1 1m", f.short+" b@1 2m")
			first.expectAndAck(f.response("a@1(1m0s) b@1(2m0s)", "a@1(1m0s) b@1(2m0s)"))
			for passed := 15 * time.Second; passed < time.Minute; passed += 15 * time.Second {
				w.sleep(15 * time.Second)
				want := fmt.Sprintf("a@1(%v) b@1(%v)", time.Minute-passed, 2*time.Minute-passed)
				late := w.client(f.variant, ttlEnvoy, f.short, f.names)
				late.expectAndAck(f.response(want, want))
				again := w.client(f.variant, ttlEnvoy, f.short, f.names) // same resources as the client before
				again.expectAndAck(f.response(want, want))
			}
			first.expectAndAck()
		})
	})
}

// A reconnecting Delta client is sent the resources that have a TTL, with the remaining time, even if its versions
// are current (C31): they may have expired at the client. A client without TTL support is sent nothing.
func TestC31_B3_ReconnectingClientGetsTTLs(t *testing.T) {
	t.Parallel()
	tests := []struct {
		short, names string
	}{{"cds", ""}, {"cds", "*"}, {"cds", "a b"}, {"lds", ""}, {"rds", "a b"}, {"acme", "*"}}
	for _, tt := range tests {
		t.Run(tt.short+" "+tt.names, func(t *testing.T) {
			ttlBubble(t, nil, func(w *ttlWorld) {
				w.syncedClient(relaytest.Delta, plainEnvoy, tt.short, tt.names)
				w.set(tt.short+" a@1 1h", tt.short+" b@1")
				ttl, plain := w.ttlAndPlain(relaytest.Delta, tt.short, tt.names)
				w.sleep(30*time.Minute - 20*time.Second)
				ttl.Reconnect(w.relay.Conn())
				plain.Reconnect(w.relay.Conn())
				w.settle()
				ttl.expectAndAck(tt.short + " a@1(30m0s)")
				plain.expectAndAck()
			})
		})
	}
}

// A client's matching version_info does not suppress a complete set that has TTLs. Nor does it if resources may
// have expired at the client while it was disconnected.
func TestC31_B3_NoSkipWithTTLs(t *testing.T) {
	t.Parallel()
	tests := []struct {
		what   string
		change func(w *ttlWorld)
		want   string // for the client with TTL support
		plain  string // for the client without; "" means no response
	}{
		{"a TTL in the set", func(w *ttlWorld) { w.set("cds a@1 1h") }, "cds {a@1(1h0m0s) b@1}", "cds {a@1 b@1}"},
		{"a TTL that was removed", func(w *ttlWorld) { w.set("cds a@1 1m"); w.set("cds a@1") }, "cds {a@1 b@1}", ""},
		{"expired and set again", func(w *ttlWorld) { w.set("cds a@1 1m"); w.sleep(time.Minute); w.set("cds a@1") },
			"cds {a@1 b@1}", "cds {a@1 b@1}"},
		{"no TTL at any time", func(*ttlWorld) {}, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.what, func(t *testing.T) {
			ttlBubble(t, nil, func(w *ttlWorld) {
				w.syncedClient(relaytest.SotW, plainEnvoy, "cds", "")
				w.set("cds a@1", "cds b@1")
				ttl, plain := w.ttlAndPlain(relaytest.SotW, "cds", "")
				ttl.Close()
				plain.Close()
				tt.change(w)
				ttl.Reconnect(w.relay.Conn())
				plain.Reconnect(w.relay.Conn())
				synctest.Wait()
				for c, want := range map[*worldClient]string{ttl: tt.want, plain: tt.plain} {
					if want == "" {
						c.expectAndAck()
					} else {
						c.expectAndAck(want)
					}
				}
			})
		})
	}
}

// A new subscription to an expired name makes the relay subscribe to it at the origin again. The client waits for
// the origin's response.
func TestR107_NewSubscriptionFetchesExpired(t *testing.T) {
	t.Parallel()
	for _, short := range []string{"cds", "eds", "acme"} {
		for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
			for _, served := range []bool{true, false} {
				t.Run(fmt.Sprintf("%v/%s/origin serves it=%t", v, short, served), func(t *testing.T) {
					f := ttlForm{v, short, "a"}
					ttlBubble(t, nil, func(w *ttlWorld) {
						first := w.syncedClient(v, ttlEnvoy, short, "a")
						w.set(short + " a@1 1m")
						w.sleep(time.Minute)
						first.ackPending()
						subscriptions := func() (n int) {
							for _, r := range w.origin.State().Requests(typeURLs[short]) {
								if slices.Contains(r.Message.GetResourceNamesSubscribe(), "a") {
									n++
								}
							}
							return n
						}
						before := subscriptions()
						if !served {
							w.origin.Remove(typeURLs[short], "a")
							synctest.Wait()
							first.ackPending()
						}
						late := w.client(v, ttlEnvoy, short, "a")
						w.sleep(20 * time.Millisecond)
						switch {
						case served:
							late.expectAndAck(f.response("a@1(1m0s)", "a@1(1m0s)"))
							if n := subscriptions() - before; n != 1 {
								t.Errorf("the origin got %d more subscriptions, want 1", n)
							}
						case subscriptions() != before:
							t.Error("the origin removed the resource and got another subscription")
						default:
							late.expectAndAck(f.removal("a", "")...)
						}
					})
				})
			}
		}
	}
}

// While the origin is down, a new client's stream for an expired resource ends as for any resource that is not
// cached. An expired resource is not known to be removed. A reconnecting client that holds the resource is sent
// the removal.
func TestR107_NewClientWhileTheOriginIsDown(t *testing.T) {
	t.Parallel()
	for _, short := range []string{"lds", "eds"} {
		for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
			t.Run(fmt.Sprintf("%v/%s", v, short), func(t *testing.T) {
				f := ttlForm{v, short, "a"}
				ttlBubble(t, []string{"TENDER_COLD_WAIT=10s"}, func(w *ttlWorld) {
					returning := w.syncedClient(v, plainEnvoy, short, "a")
					w.set(short+" a@1 1m", short+" b@1")
					returning.ackPending()
					returning.Close()
					w.stop()
					w.sleep(time.Minute)
					newClient := w.client(v, plainEnvoy, short, "a")
					returning.Reconnect(w.relay.Conn())
					w.sleep(5 * time.Second)
					returning.expectAndAck(f.removal("a", "")...)
					newClient.expectAndAck()
					w.sleep(20 * time.Second)
					if got := newClient.received(); len(got) > 0 {
						t.Errorf("the new client got %q, want no response", got)
					}
					if err := newClient.WaitEnd(w.t.Context()); err == nil {
						t.Error("the new client's stream ended with OK, want an error")
					}
				})
			})
		}
	}
}

// The first complete set waits for the origin's response to an expired name, as for a name that was never
// subscribed to, for at most 10 seconds.
func TestB7_R107_FirstSetWaitsForExpiredNames(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"", "xdstp://example.com/envoy.config.cluster.v3.Cluster/"} {
		for _, served := range []bool{true, false} {
			ttlBubble(t, nil, func(w *ttlWorld) {
				a, b := prefix+"a", prefix+"b"
				f := ttlForm{relaytest.SotW, "cds", a + " " + b}
				first := w.syncedClient(f.variant, plainEnvoy, f.short, f.names)
				w.set("cds "+a+"@1 1m", "cds "+b+"@1")
				w.sleep(time.Minute)
				first.ackPending()
				w.origin.Change(func(b *relaytest.Behaviour) { b.Delay, b.SilentOnMissing = 2*time.Second, true })
				if !served {
					w.origin.Clear() // without sending a removal
				}
				late := w.client(f.variant, plainEnvoy, f.short, f.names)
				w.sleep(time.Millisecond)
				_, other := w.resource("cds " + b + "@2") // wakes the client's stream
				w.origin.Inject(&discoverypb.DeltaDiscoveryResponse{TypeUrl: relaytest.ClusterType,
					Resources: []*discoverypb.Resource{other}})
				w.sleep(1900 * time.Millisecond)
				late.expectAndAck()
				if served {
					w.sleep(200 * time.Millisecond)
					late.expectAndAck(fmt.Sprintf("cds {%s@1 %s@2}", a, b))
					return
				}
				w.sleep(8 * time.Second)
				late.expectAndAck()
				w.sleep(200 * time.Millisecond)
				late.expectAndAck(fmt.Sprintf("cds {%s@2}", b))
			})
		}
	}
}

// A SotW client that returns from another relay is not answered before the set is confirmed, one minute after the relay
// connected at the latest.
// Until then it receives no heartbeats, so its resources may expire. The answer therefore holds the complete set
// with the remaining TTLs.
func TestB7_R108_RenewedBeforeTheSetIsConfirmed(t *testing.T) {
	t.Parallel()
	for _, short := range []string{"cds", "acme"} {
		t.Run(short, func(t *testing.T) {
			worldBubble(t, []string{"TENDER_COLD_WAIT=10m"}, func(world *world) {
				w := &ttlWorld{world}
				w.set(short+" a@1 20s", short+" b@1")
				w.syncedClient(relaytest.SotW, ttlEnvoy, short, "*")
				w.heartbeat(short, "a")
				c := w.dial(relaytest.ClientOptions{Variant: relaytest.SotW, Node: ttlEnvoy})
				c.Send(&discoverypb.DiscoveryRequest{
					Node: ttlEnvoy, TypeUrl: typeURLs[short], VersionInfo: "r1.of-another-set", ResourceNames: []string{"*"},
				})
				for range 4 {
					w.sleep(12 * time.Second)
					w.heartbeat(short, "a")
					c.expectAndAck()
				}
				w.sleep(2 * time.Second)
				c.expectAndAck(short + " {a@1(18s) b@1}")
				w.heartbeat(short, "a")
				c.expectAndAck(ttlForm{relaytest.SotW, short, "*"}.heartbeat("a", "a@1(20s)", "a@1(20s) b@1"))
			})
		})
	}
}

// A heartbeat for a resource that has expired at the relay makes the relay fetch the resource again.
func TestR106_HeartbeatOfAnExpiredResource(t *testing.T) {
	t.Parallel()
	ttlForms(t, func(t *testing.T, f ttlForm) {
		ttlBubble(t, nil, func(w *ttlWorld) {
			c := w.syncedClient(f.variant, ttlEnvoy, f.short, f.names)
			w.set(f.short+" a@1 1m", f.short+" b@1")
			w.sleep(2 * time.Minute)
			c.ackPending()
			w.heartbeat(f.short, "a")
			w.sleep(100 * time.Millisecond)
			got := c.TryRecv()
			if got == nil || got.Resource("a") == nil || got.Resource("a").Body == nil || got.Resource("a").TTL != time.Minute {
				t.Errorf("after a heartbeat for the expired resource a: got %v, want a with its content and a TTL of 1m", got)
			}
		})
	})
}

// Resources without a TTL are kept for as long as the origin is down.
func TestR112_WithoutTTLAllStays(t *testing.T) {
	t.Parallel()
	for _, f := range []ttlForm{
		{relaytest.Delta, "cds", "*"}, {relaytest.SotW, "lds", "a b"}, {relaytest.Delta, "rds", "a b"},
		{relaytest.SotW, "acme", "*"},
	} {
		ttlBubble(t, nil, func(w *ttlWorld) {
			c := w.syncedClient(f.variant, ttlEnvoy, f.short, f.names)
			w.set(f.short+" a@1", f.short+" b@1")
			c.ackPending()
			w.stop()
			for range 4 {
				w.sleep(15 * time.Minute)
				c.expectAndAck()
				late := w.client(f.variant, ttlEnvoy, f.short, f.names)
				late.expectAndAck(f.response("a@1 b@1", "a@1 b@1"))
			}
			w.origin.Restart()
			w.sleep(settled)
			c.expectAndAck()
		})
	}
}

// A chain of relays never extends a TTL, and passes heartbeats on.
func TestR107_ChainNeverLengthens(t *testing.T) {
	t.Parallel()
	ttlForms(t, func(t *testing.T, f ttlForm) {
		ttlBubble(t, nil, func(w *ttlWorld) {
			lower := w.relay.downstreamRelay()
			subscribe := func(r *running) *worldClient {
				c := w.dialAt(r, relaytest.ClientOptions{Variant: f.variant, Node: ttlEnvoy}).subscribe(f.short, f.names)
				w.settle()
				c.ackPending()
				return c
			}
			clients := []*worldClient{subscribe(w.relay), subscribe(lower)}
			w.set(f.short+" a@1 1m", f.short+" b@1")
			for _, c := range clients {
				c.expectAndAck(f.response("a@1(1m0s) b@1", "a@1(1m0s) b@1"))
			}
			deadline := time.Now().Add(time.Minute)
			for range 2 {
				w.sleep(25 * time.Second)
				late := subscribe(lower)
				for _, r := range late.Responses() {
					if a := r.Resource("a"); a != nil && r.At.Add(a.TTL) != deadline {
						t.Errorf("got a TTL of %v at %v, want one that ends at %v", a.TTL, r.At, deadline)
					}
				}
				late.Close()
				w.heartbeat(f.short, "a")
				deadline = time.Now().Add(time.Minute)
				for _, c := range clients {
					c.expectAndAck(f.heartbeat("a", "a@1(1m0s)", "a@1(1m0s) b@1"))
				}
			}
			w.stop()
			w.sleep(time.Until(deadline) - 1)
			for _, c := range clients {
				c.expectAndAck()
			}
			w.sleep(1)
			for _, c := range clients {
				c.expectAndAck(f.removal("a", "b@1")...)
			}
		})
	})
}

// A TTL in a file is ignored: the resource stays for as long as the file exists.
func TestR107_FilesDoNotExpire(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := fmt.Sprintf("- '@type': %s\n  name: a\n  ttl: 1s\n  version: '1'\n  resource: {'@type': %q, name: a}\n",
		"type.googleapis.com/envoy.service.discovery.v3.Resource", relaytest.ClusterType)
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r := startFiles(t, dir)
	for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
		c := r.Client(relaytest.ClientOptions{Variant: v, Node: ttlEnvoy, AutoAck: true})
		c.Subscribe(relaytest.ClusterType)
		if got := c.Recv(t.Context()).Resource("a"); got == nil || got.TTL != 0 {
			t.Errorf("%v: got %+v, want a without a TTL", v, got)
		}
	}
}
