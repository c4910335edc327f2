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
				ttl, plain := w.follow(f.variant, ttlEnvoy, f.short, f.names), w.follow(f.variant, plainEnvoy, f.short, f.names)
				w.give(f.short+" a@1 1m", f.short+" b@1")
				ttl.skip()
				plain.skip()
				w.pass(20 * time.Second)
				if !up {
					w.stop()
				}
				w.pass(40*time.Second - 1)
				ttl.hears()
				plain.hears()
				w.pass(1)
				ttl.hears(f.removal("a", "b@1")...)
				plain.hears(f.removal("a", "b@1")...)
				w.pass(2 * time.Minute)
				ttl.hears()
				plain.hears()
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
			ttl, plain := w.follow(f.variant, ttlEnvoy, f.short, f.names), w.follow(f.variant, plainEnvoy, f.short, f.names)
			w.give(f.short + " b@1")
			ttl.skip()
			plain.skip()
			for _, rev := range []string{"1", "1", "2", "2"} {
				w.give(f.short + " a@" + rev + " 1m")
				ttl.hears(f.response("a@"+rev+"(1m0s)", "a@"+rev+"(1m0s) b@1"))
				plain.hears(f.response("a@"+rev, "a@"+rev+" b@1"))
				w.pass(time.Minute)
				ttl.hears(f.removal("a", "b@1")...)
				plain.hears(f.removal("a", "b@1")...)
			}
		})
	})
}

// Who comes when part of the time is over is told the rest of it.
func TestR108_LateSubscriberGetsTheRest(t *testing.T) {
	t.Parallel()
	ttlForms(t, func(t *testing.T, f ttlForm) {
		ttlBubble(t, nil, func(w *ttlWorld) {
			first := w.follow(f.variant, ttlEnvoy, f.short, f.names)
			w.give(f.short+" a@1 1m", f.short+" b@1 2m")
			first.hears(f.response("a@1(1m0s) b@1(2m0s)", "a@1(1m0s) b@1(2m0s)"))
			for passed := 15 * time.Second; passed < time.Minute; passed += 15 * time.Second {
				w.pass(15 * time.Second)
				want := fmt.Sprintf("a@1(%v) b@1(%v)", time.Minute-passed, 2*time.Minute-passed)
				late := w.client(f.variant, ttlEnvoy, f.short, f.names)
				late.hears(f.response(want, want))
				again := w.client(f.variant, ttlEnvoy, f.short, f.names) // at the same position as the one before
				again.hears(f.response(want, want))
			}
			first.hears()
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
				w.follow(relaytest.Delta, plainEnvoy, tt.short, tt.names)
				w.give(tt.short+" a@1 1h", tt.short+" b@1")
				ttl, plain := w.follow(relaytest.Delta, ttlEnvoy, tt.short, tt.names), w.follow(relaytest.Delta, plainEnvoy, tt.short, tt.names)
				w.pass(30*time.Minute - 20*time.Second)
				ttl.Reconnect(w.relay.Conn())
				plain.Reconnect(w.relay.Conn())
				w.settle()
				ttl.hears(tt.short + " a@1(30m0s)")
				plain.hears()
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
		{"a TTL in the set", func(w *ttlWorld) { w.give("cds a@1 1h") }, "cds {a@1(1h0m0s) b@1}", "cds {a@1 b@1}"},
		{"one that was removed", func(w *ttlWorld) { w.give("cds a@1 1m"); w.give("cds a@1") }, "cds {a@1 b@1}", ""},
		{"gone and back", func(w *ttlWorld) { w.give("cds a@1 1m"); w.pass(time.Minute); w.give("cds a@1") }, "cds {a@1 b@1}", "cds {a@1 b@1}"},
		{"none ever", func(*ttlWorld) {}, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.what, func(t *testing.T) {
			ttlBubble(t, nil, func(w *ttlWorld) {
				w.follow(relaytest.SotW, plainEnvoy, "cds", "")
				w.give("cds a@1", "cds b@1")
				ttl, plain := w.follow(relaytest.SotW, ttlEnvoy, "cds", ""), w.follow(relaytest.SotW, plainEnvoy, "cds", "")
				ttl.Close()
				plain.Close()
				tt.change(w)
				ttl.Reconnect(w.relay.Conn())
				plain.Reconnect(w.relay.Conn())
				synctest.Wait()
				for c, want := range map[*orderClient]string{ttl: tt.want, plain: tt.plain} {
					if want == "" {
						c.hears()
					} else {
						c.hears(want)
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
						first := w.follow(v, ttlEnvoy, short, "a")
						w.give(short + " a@1 1m")
						w.pass(time.Minute)
						first.skip()
						asked := func() (n int) {
							for _, r := range w.origin.State().Requests(orderTypes[short]) {
								if slices.Contains(r.Message.GetResourceNamesSubscribe(), "a") {
									n++
								}
							}
							return n
						}
						before := asked()
						if !has {
							w.origin.Remove(orderTypes[short], "a")
							synctest.Wait()
							first.skip()
						}
						late := w.client(v, ttlEnvoy, short, "a")
						w.pass(20 * time.Millisecond)
						switch {
						case has:
							late.hears(f.response("a@1(1m0s)", "a@1(1m0s)"))
							if n := asked() - before; n != 1 {
								t.Errorf("the origin was asked %d times more, want once", n)
							}
						case asked() != before:
							t.Error("the origin has said that there is none, and was asked again")
						default:
							late.hears(f.removal("a", "")...)
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
					holds := w.follow(v, plainEnvoy, short, "a")
					w.give(short+" a@1 1m", short+" b@1")
					holds.skip()
					holds.Close()
					w.stop()
					w.pass(time.Minute)
					newcomer := w.client(v, plainEnvoy, short, "a")
					holds.Reconnect(w.relay.Conn())
					w.pass(5 * time.Second)
					holds.hears(f.removal("a", "")...)
					newcomer.hears()
					w.pass(20 * time.Second)
					if got := newcomer.heard(); len(got) > 0 {
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
				first := w.follow(f.variant, plainEnvoy, f.short, f.names)
				w.give("cds "+a+"@1 1m", "cds "+b+"@1")
				w.pass(time.Minute)
				first.skip()
				w.origin.Change(func(b *relaytest.Behaviour) { b.Delay, b.SilentOnMissing = 2*time.Second, true })
				if !has {
					w.origin.Clear() // and says nothing of it
				}
				late := w.client(f.variant, plainEnvoy, f.short, f.names)
				w.pass(time.Millisecond)
				_, other := w.resource("cds " + b + "@2") // wakes the client's stream
				w.origin.Inject(&discoverypb.DeltaDiscoveryResponse{TypeUrl: relaytest.ClusterType, Resources: []*discoverypb.Resource{other}})
				w.pass(1900 * time.Millisecond)
				late.hears()
				if has {
					w.pass(200 * time.Millisecond)
					late.hears(fmt.Sprintf("cds {%s@1 %s@2}", a, b))
					return
				}
				w.pass(8 * time.Second)
				late.hears()
				w.pass(200 * time.Millisecond)
				late.hears(fmt.Sprintf("cds {%s@2}", b))
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
			orderBubble(t, []string{"TENDER_COLD_WAIT=10m"}, func(world *orderWorld) {
				w := &ttlWorld{world}
				w.give(short+" a@1 20s", short+" b@1")
				c := w.follow(relaytest.SotW, ttlEnvoy, short, "*")
				w.beat(short, "a")
				c.skip()
				c.Reconnect(w.relay.Conn())
				for range 4 {
					w.pass(12 * time.Second)
					w.beat(short, "a")
					c.hears()
				}
				w.pass(2 * time.Second)
				c.hears(short + " {a@1(18s) b@1}")
				w.beat(short, "a")
				c.hears(ttlForm{relaytest.SotW, short, "*"}.beat("a", "a@1(20s)", "a@1(20s) b@1"))
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
			c := w.follow(f.variant, ttlEnvoy, f.short, f.names)
			w.give(f.short+" a@1 1m", f.short+" b@1")
			w.pass(2 * time.Minute)
			c.skip()
			w.beat(f.short, "a")
			w.pass(100 * time.Millisecond)
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
			c := w.follow(f.variant, ttlEnvoy, f.short, f.names)
			w.give(f.short+" a@1", f.short+" b@1")
			c.skip()
			w.stop()
			for range 4 {
				w.pass(15 * time.Minute)
				c.hears()
				late := w.client(f.variant, ttlEnvoy, f.short, f.names)
				late.hears(f.response("a@1 b@1", "a@1 b@1"))
			}
			w.origin.Restart()
			w.pass(time.Hour)
			c.hears()
		})
	}
}

// Through relays in a row, no client is ever told a longer time than the origin gave,
// and heartbeats get through.
func TestR107_ChainNeverLengthens(t *testing.T) {
	t.Parallel()
	ttlForms(t, func(t *testing.T, f ttlForm) {
		ttlBubble(t, nil, func(w *ttlWorld) {
			below := w.relay.below()
			follow := func(r *running) *orderClient {
				c := w.dialAt(r, relaytest.ClientOptions{Variant: f.variant, Node: ttlEnvoy}).subscribe(f.short, f.names)
				w.settle()
				c.skip()
				return c
			}
			clients := []*orderClient{follow(w.relay), follow(below)}
			w.give(f.short+" a@1 1m", f.short+" b@1")
			for _, c := range clients {
				c.hears(f.response("a@1(1m0s) b@1", "a@1(1m0s) b@1"))
			}
			deadline := time.Now().Add(time.Minute)
			for range 3 {
				w.pass(25 * time.Second)
				late := follow(below)
				for _, r := range late.Responses() {
					if a := r.Resource("a"); a != nil && r.At.Add(a.TTL) != deadline {
						t.Errorf("told %v to live at %v, want until %v", a.TTL, r.At, deadline)
					}
				}
				late.Close()
				w.beat(f.short, "a")
				deadline = time.Now().Add(time.Minute)
				for _, c := range clients {
					c.hears(f.beat("a", "a@1(1m0s)", "a@1(1m0s) b@1"))
				}
			}
			w.stop()
			w.pass(time.Until(deadline) - 1)
			for _, c := range clients {
				c.hears()
			}
			w.pass(1)
			for _, c := range clients {
				c.hears(f.removal("a", "b@1")...)
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
