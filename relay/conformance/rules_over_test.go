package conformance_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/relaytest"
)

// H15: names over a limit are refused individually. Clients that support resource_errors get an error. There is
// no removal, the log names the limit, and the stream stays open.
func TestH15_NamesOverALimitAreRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		limit guard.Limit
		value int
		names []string // the last name exceeds the limit
	}{
		{guard.LimitNames, 3, []string{"a", "b", "c"}}, // the client has another name of another type
		{guard.LimitOriginNames, 2, []string{"a", "b", "c"}},
	} {
		t.Run(tt.limit.String(), func(t *testing.T) {
			originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
				o.Put(relaytest.Endpoints("e"))
				for _, name := range []string{"a", "b", "c"} {
					o.Put(domainRoute(name, "1"))
				}
				r := start(t, o, fmt.Sprintf("%v=%d", tt.limit, tt.value))
				over := tt.names[len(tt.names)-1]
				for _, node := range []string{"envoy", "grpc"} {
					opts := tp3(v)
					if node == "envoy" {
						opts.Node = relaytest.EnvoyNode("envoy")
					}
					opts.AutoAck = true
					c := r.Client(opts)
					if tt.limit == guard.LimitNames {
						c.Subscribe(typeEDS, "e")
					}
					c.Subscribe(typeRDS, tt.names...)
					c.Subscribe(typeLDS, "*")
					sleep(time.Minute)
					errs := 0
					for _, resp := range c.Responses() {
						if len(resp.Removed) > 0 {
							t.Errorf("%s: got a removal: %v", node, resp)
						}
						for _, e := range resp.Errors {
							if errs++; e.Name != over || e.Code.String() != "ResourceExhausted" ||
								!strings.HasSuffix(e.Message, "("+tt.limit.String()+")") {
								t.Errorf("%s: got the error %v, want RESOURCE_EXHAUSTED for %s with the limit", node, e, over)
							}
						}
					}
					if want := map[string]int{"grpc": 1}[node]; errs != want {
						t.Errorf("%s: got %d errors, want %d", node, errs, want)
					}
					if got := c.State().Names(typeRDS); len(got) != 2 {
						t.Errorf("%s: got %q, want the first two", node, got)
					}
					o.Put(relaytest.Listener("l", fmt.Sprint(node)))
					synctest.Wait()
					if c.Ended() || !c.State().Has(typeLDS, "l") {
						t.Errorf("%s: other types of the stream are not served: %v", node, c.State())
					}
					c.Close()
					time.Sleep(time.Hour) // longer than the linger of names
				}
				if n := r.Log.Count("resource names over a limit are not served"); n != 2 ||
					!strings.Contains(r.Log.String(), "limit="+tt.limit.String()) {
					t.Errorf("logged the limit %d times, want 2 lines that name it:\n%s", n, r.Log.String())
				}
				if n := r.Stats().Refused[tt.limit]; n != 2 {
					t.Errorf("counted %d refused names, want 2", n)
				}
			})
		})
	}
}

// H15: refused names are served once the limit permits.
func TestH15_RefusedNamesAreServedLater(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		for _, name := range []string{"a", "b", "c"} {
			o.Put(domainRoute(name, "1"))
			o.Put(relaytest.Endpoints(name))
		}
		c := start(t, o, "TENDER_MAX_NAMES=3").Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
		c.Subscribe(typeEDS, "a", "b")
		c.Subscribe(typeRDS, "a", "b", "c")
		expectServed := func(when string, want ...string) {
			t.Helper()
			sleep(time.Second)
			if got := c.State().Names(typeRDS); !slices.Equal(got, want) {
				t.Errorf("%s: the client has %q, want %q", when, got, want)
			}
		}
		expectServed("two over the limit", "a")
		c.Unsubscribe(typeEDS, "a")
		expectServed("room for one", "a", "b")
		c.Unsubscribe(typeRDS, "c")
		c.Unsubscribe(typeEDS, "b")
		expectServed("the last one unsubscribed", "a", "b")
		o.Put(domainRoute("b", "2"))
		expectServed("a change", "a", "b")
		if got := o.State().Names(typeRDS); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("subscriptions at the origin are %q, want a and b", got)
		}
	})
}

// H15: a reconnecting client that subscribes to a name over a limit gets no removal of it, neither in Delta nor by
// a complete set without it.
func TestH15_NothingIsRemovedForALimit(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		for _, name := range []string{"a", "b", "c"} {
			o.Put(relaytest.Cluster(name))
		}
		o.Change(func(b *relaytest.Behaviour) {
			b.NamedOnly = func(_, name string) bool { return name == "c" }
		})
		c := start(t, o, "TENDER_MAX_NAMES=2").Client(relaytest.ClientOptions{Variant: v})
		names := []string{"a", "b", "c"}
		if v == relaytest.Delta {
			names = append(names, "*")
			c.Send(returningDelta(relaytest.EnvoyNode("client"), typeCDS, names, unknownVersions("c", "a")))
		} else {
			c.Send(returningSotW(typeCDS, "of another relay", names...))
		}
		sleep(settled)
		for resp := c.TryRecv(); resp != nil; resp = c.TryRecv() {
			if resp.SotW() || len(resp.Removed) > 0 {
				t.Errorf("the client got %v, which removes c", resp)
			}
			c.Ack(resp)
			synctest.Wait()
		}
		if c.Ended() {
			t.Error("the stream ended")
		}
	})
}

// H15: initial_resource_versions over the limit are ignored, so the client is sent these resources.
func TestH15_InitialVersionsOverTheLimit(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		names := numberedNames(20)
		holds := make(map[string]string)
		for _, name := range names {
			o.Set(typeCDS, name, relaytest.Cluster(name), "1")
			holds[name] = "1"
		}
		c := start(t, o, "TENDER_MAX_NAMES=12").Client(relaytest.ClientOptions{Variant: relaytest.Delta, AutoAck: true})
		c.Send(&discoverypb.DeltaDiscoveryRequest{Node: relaytest.EnvoyNode("client"), TypeUrl: typeCDS,
			InitialResourceVersions: holds})
		sleep(time.Minute)
		if got := len(c.State()[typeCDS]); got != 8 || c.Ended() {
			t.Errorf("the client got %d clusters, want the 8 over the limit", got)
		}
	})
}

// H15: removals of many resources are split into responses of limited size, each sent after the ACK of the
// previous one: held-back removals, and those for a reconnecting client.
func TestH15_RemovalsAreSplit(t *testing.T) {
	t.Parallel()
	names := make([]string, 800)
	for i := range names {
		names[i] = fmt.Sprintf("%04d-%s", i, strings.Repeat("n", 4000))
	}
	check := func(t *testing.T, c *relaytest.Client, what string) {
		t.Helper()
		var removed []string
		for resp := c.TryRecv(); resp != nil; resp = c.TryRecv() {
			if size := len(strings.Join(resp.Removed, "")); size > 1<<20+5000 {
				t.Errorf("%s: got a response with %d bytes of removals", what, size)
			}
			removed = append(removed, resp.Removed...)
			sleep(time.Second) // the next part waits for the ACK
			if next := c.TryRecv(); next != nil {
				t.Fatalf("%s: got %d removals before the ACK of the previous response", what, len(next.Removed))
			}
			c.Ack(resp)
			synctest.Wait()
		}
		slices.Sort(removed)
		if !slices.Equal(removed, names) {
			t.Errorf("%s: got %d removals, want each of %d once", what, len(removed), len(names))
		}
	}
	for _, typeURL := range []string{typeCDS, typeLDS} {
		t.Run(shortName(typeURL), func(t *testing.T) {
			originBubble(t, func(t *testing.T, o *relaytest.Origin) {
				o.Apply(func(tx *relaytest.Tx) {
					for _, name := range append(names, "stays") {
						tx.Put(opaque(typeURL, name, "1"))
					}
				})
				r := startMuted(t, o, "TENDER_MASS_DELETE_HOLD=1s", "TENDER_ACK_WAIT=10m")
				c := r.Client(relaytest.ClientOptions{Variant: relaytest.Delta})
				c.Subscribe(typeURL, "*")
				time.Sleep(confirmTimeout)
				for resp := c.TryRecv(); resp != nil; resp = c.TryRecv() {
					c.Ack(resp)
					synctest.Wait()
				}
				o.Apply(func(tx *relaytest.Tx) {
					for _, name := range names {
						tx.Remove(typeURL, name)
					}
				})
				synctest.Wait()
				check(t, c, "changes")

				returning := r.Client(relaytest.ClientOptions{Variant: relaytest.Delta})
				returning.Send(returningDelta(relaytest.EnvoyNode("client"), typeURL, []string{"*"}, unknownVersions(names...)))
				sleep(time.Minute)
				check(t, returning, "a reconnecting client")
			})
		})
	}
}

// unknownVersions returns initial versions that the relay does not know.
func unknownVersions(names ...string) map[string]string {
	versions := make(map[string]string)
	for _, name := range names {
		versions[name] = "of another relay"
	}
	return versions
}
