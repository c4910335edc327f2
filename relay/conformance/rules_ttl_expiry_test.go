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

// What the origin does not say again is gone when its time is up, for all clients,
// with the origin there or not, and not a moment before.
func TestR107_ExpiryIsRemoval(t *testing.T) {
	t.Parallel()
	ttlForms(t, func(t *testing.T, f ttlForm) {
		for _, up := range []bool{true, false} {
			ttlBubble(t, nil, func(w *ttlWorld) {
				ttl, plain := w.syncedClient(f.variant, ttlEnvoy, f.short, f.names), w.syncedClient(f.variant, plainEnvoy, f.short, f.names)
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

// A resource that expired and comes back is sent to all who want it, whatever they
// were sent before.
func TestR107_ComesBack(t *testing.T) {
	t.Parallel()
	ttlForms(t, func(t *testing.T, f ttlForm) {
		ttlBubble(t, nil, func(w *ttlWorld) {
			ttl, plain := w.syncedClient(f.variant, ttlEnvoy, f.short, f.names), w.syncedClient(f.variant, plainEnvoy, f.short, f.names)
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

// Who comes when part of the time is over is told the rest of it.
func TestR108_LateSubscriberGetsTheRest(t *testing.T) {
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
				again := w.client(f.variant, ttlEnvoy, f.short, f.names) // at the same position as the one before
				again.expectAndAck(f.response(want, want))
			}
			first.expectAndAck()
		})
	})
}

// Nothing has to be asked for again while it lives: a client that returns is told what
// is left, although it holds the very version (C31); others are not sent it again.
func TestC31_B3_ReturningClientIsSentWhatMayHaveExpired(t *testing.T) {
	t.Parallel()
	tests := []struct {
		short, names string
	}{{"cds", ""}, {"cds", "*"}, {"cds", "a b"}, {"lds", ""}, {"rds", "a b"}, {"acme", "*"}}
	for _, tt := range tests {
		t.Run(tt.short+" "+tt.names, func(t *testing.T) {
			ttlBubble(t, nil, func(w *ttlWorld) {
				w.syncedClient(relaytest.Delta, plainEnvoy, tt.short, tt.names)
				w.set(tt.short+" a@1 1h", tt.short+" b@1")
				ttl, plain := w.syncedClient(relaytest.Delta, ttlEnvoy, tt.short, tt.names), w.syncedClient(relaytest.Delta, plainEnvoy, tt.short, tt.names)
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

// A complete set that holds what expires, or may have lost some, is sent although the
// client's version is that of the set.
func TestC31_B3_NoSkipWithTTLs(t *testing.T) {
	t.Parallel()
	tests := []struct {
		what   string
		change func(w *ttlWorld)
		want   string // at a client with TTLs
		plain  string // at one without; "" is nothing
	}{
		{"a TTL in the set", func(w *ttlWorld) { w.set("cds a@1 1h") }, "cds {a@1(1h0m0s) b@1}", "cds {a@1 b@1}"},
		{"one that was removed", func(w *ttlWorld) { w.set("cds a@1 1m"); w.set("cds a@1") }, "cds {a@1 b@1}", ""},
		{"gone and back", func(w *ttlWorld) { w.set("cds a@1 1m"); w.sleep(time.Minute); w.set("cds a@1") }, "cds {a@1 b@1}", "cds {a@1 b@1}"},
		{"none ever", func(*ttlWorld) {}, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.what, func(t *testing.T) {
			ttlBubble(t, nil, func(w *ttlWorld) {
				w.syncedClient(relaytest.SotW, plainEnvoy, "cds", "")
				w.set("cds a@1", "cds b@1")
				ttl, plain := w.syncedClient(relaytest.SotW, ttlEnvoy, "cds", ""), w.syncedClient(relaytest.SotW, plainEnvoy, "cds", "")
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

// Whoever asks for a name that has expired has the origin asked again, and waits for
// what it says.
func TestR107_NewcomerHasTheOriginAsked(t *testing.T) {
	t.Parallel()
	for _, short := range []string{"cds", "eds", "acme"} {
		for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
			for _, has := range []bool{true, false} {
				t.Run(fmt.Sprintf("%v/%s/origin has it=%t", v, short, has), func(t *testing.T) {
					f := ttlForm{v, short, "a"}
					ttlBubble(t, nil, func(w *ttlWorld) {
						first := w.syncedClient(v, ttlEnvoy, short, "a")
						w.set(short + " a@1 1m")
						w.sleep(time.Minute)
						first.ackPending()
						asked := func() (n int) {
							for _, r := range w.origin.State().Requests(typeURLs[short]) {
								if slices.Contains(r.Message.GetResourceNamesSubscribe(), "a") {
									n++
								}
							}
							return n
						}
						before := asked()
						if !has {
							w.origin.Remove(typeURLs[short], "a")
							synctest.Wait()
							first.ackPending()
						}
						late := w.client(v, ttlEnvoy, short, "a")
						w.sleep(20 * time.Millisecond)
						switch {
						case has:
							late.expectAndAck(f.response("a@1(1m0s)", "a@1(1m0s)"))
							if n := asked() - before; n != 1 {
								t.Errorf("the origin was asked %d times more, want once", n)
							}
						case asked() != before:
							t.Error("the origin has said that there is none, and was asked again")
						default:
							late.expectAndAck(f.removal("a", "")...)
						}
					})
				})
			}
		}
	}
}

// To a newcomer, what has expired is unknown and not gone, while the origin is asked or
// cannot be: its stream ends as cold, so that it goes where there is an origin. One who
// holds it is told.
func TestR107_NewcomerWhileTheOriginIsDown(t *testing.T) {
	t.Parallel()
	for _, short := range []string{"lds", "eds"} {
		for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
			t.Run(fmt.Sprintf("%v/%s", v, short), func(t *testing.T) {
				f := ttlForm{v, short, "a"}
				ttlBubble(t, []string{"TENDER_COLD_WAIT=10s"}, func(w *ttlWorld) {
					holds := w.syncedClient(v, plainEnvoy, short, "a")
					w.set(short+" a@1 1m", short+" b@1")
					holds.ackPending()
					holds.Close()
					w.stop()
					w.sleep(time.Minute)
					newcomer := w.client(v, plainEnvoy, short, "a")
					holds.Reconnect(w.relay.Conn())
					w.sleep(5 * time.Second)
					holds.expectAndAck(f.removal("a", "")...)
					newcomer.expectAndAck()
					w.sleep(20 * time.Second)
					if got := newcomer.received(); len(got) > 0 {
						t.Errorf("the newcomer got %q, want nothing", got)
					}
					if err := newcomer.WaitEnd(w.t.Context()); err == nil {
						t.Error("the newcomer's stream ended in peace")
					}
				})
			})
		}
	}
}

// The first complete set waits for what the origin says of a name that has expired, as
// it does for one that was never asked for, and no longer.
func TestB7_R107_FirstSetWaitsForWhatExpired(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"", "xdstp://example.com/envoy.config.cluster.v3.Cluster/"} {
		for _, has := range []bool{true, false} {
			ttlBubble(t, nil, func(w *ttlWorld) {
				a, b := prefix+"a", prefix+"b"
				f := ttlForm{relaytest.SotW, "cds", a + " " + b}
				first := w.syncedClient(f.variant, plainEnvoy, f.short, f.names)
				w.set("cds "+a+"@1 1m", "cds "+b+"@1")
				w.sleep(time.Minute)
				first.ackPending()
				w.origin.Change(func(b *relaytest.Behaviour) { b.Delay, b.SilentOnMissing = 2*time.Second, true })
				if !has {
					w.origin.Clear() // and says nothing of it
				}
				late := w.client(f.variant, plainEnvoy, f.short, f.names)
				w.sleep(time.Millisecond)
				_, other := w.resource("cds " + b + "@2") // wakes the client's stream
				w.origin.Inject(&discoverypb.DeltaDiscoveryResponse{TypeUrl: relaytest.ClusterType, Resources: []*discoverypb.Resource{other}})
				w.sleep(1900 * time.Millisecond)
				late.expectAndAck()
				if has {
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

// A SotW client that reports a version is not answered before the set is confirmed, a minute after the relay was
// connected at the latest. Until then no heartbeat reaches it, so what it holds may expire there; then it is sent all
// with what is left.
func TestB7_R108_RenewedBeforeTheSetIsConfirmed(t *testing.T) {
	t.Parallel()
	for _, short := range []string{"cds", "acme"} {
		t.Run(short, func(t *testing.T) {
			worldBubble(t, []string{"TENDER_COLD_WAIT=10m"}, func(world *world) {
				w := &ttlWorld{world}
				w.set(short+" a@1 20s", short+" b@1")
				c := w.syncedClient(relaytest.SotW, ttlEnvoy, short, "*")
				w.heartbeat(short, "a")
				c.ackPending()
				c.Reconnect(w.relay.Conn())
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

// A relay that has been silent for longer than a heartbeat took is asked for what it
// believes to be here.
func TestR106_HeartbeatOfWhatHasExpired(t *testing.T) {
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
				t.Errorf("the origin believes that the relay has a: got %v", got)
			}
		})
	})
}

// Without TTLs everything stays, however long the origin is away.
func TestR112_WithoutTTLAllStays(t *testing.T) {
	t.Parallel()
	for _, f := range []ttlForm{
		{relaytest.Delta, "cds", "*"}, {relaytest.SotW, "lds", "a b"}, {relaytest.Delta, "rds", "a b"}, {relaytest.SotW, "acme", "*"},
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
			w.sleep(time.Hour)
			c.expectAndAck()
		})
	}
}

// Through relays in a row, no client is ever told a longer time than the origin gave,
// and heartbeats get through.
func TestR107_ChainNeverLengthens(t *testing.T) {
	t.Parallel()
	ttlForms(t, func(t *testing.T, f ttlForm) {
		ttlBubble(t, nil, func(w *ttlWorld) {
			below := w.relay.downstreamRelay()
			follow := func(r *running) *worldClient {
				c := w.dialAt(r, relaytest.ClientOptions{Variant: f.variant, Node: ttlEnvoy}).subscribe(f.short, f.names)
				w.settle()
				c.ackPending()
				return c
			}
			clients := []*worldClient{follow(w.relay), follow(below)}
			w.set(f.short+" a@1 1m", f.short+" b@1")
			for _, c := range clients {
				c.expectAndAck(f.response("a@1(1m0s) b@1", "a@1(1m0s) b@1"))
			}
			deadline := time.Now().Add(time.Minute)
			for range 3 {
				w.sleep(25 * time.Second)
				late := follow(below)
				for _, r := range late.Responses() {
					if a := r.Resource("a"); a != nil && r.At.Add(a.TTL) != deadline {
						t.Errorf("told %v to live at %v, want until %v", a.TTL, r.At, deadline)
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

// A file lives for as long as it is there, whatever it says.
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
