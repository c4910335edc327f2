package conformance_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xdstender/tender/relay/relaytest"
)

// behavesAsEnvoy answers as an Envoy until nothing more comes, and returns what came: it asks
// for the endpoints of new clusters, and then accepts the response.
func (c *orderClient) behavesAsEnvoy(asked ...string) (all []string) {
	c.w.t.Helper()
	for {
		got := c.heard()
		if len(got) == 0 {
			c.w.pass(100 * time.Millisecond) // in which the relay asks the origin
			if got = c.heard(); len(got) == 0 {
				return all
			}
		}
		all = append(all, got...)
		for _, r := range c.read {
			if r.TypeURL == relaytest.ClusterType {
				for _, name := range r.Names() {
					if !slices.Contains(asked, name) {
						asked = append(asked, name)
						c.Subscribe(relaytest.EndpointType, name)
					}
				}
			}
			c.Ack(r)
		}
	}
}

// orderConfigured returns an Envoy that uses the EDS cluster a, listener l and route r.
func orderConfigured(w *orderWorld, v relaytest.Variant) *orderClient {
	w.t.Helper()
	w.change("cds a@1", "eds a@1", "lds l@1", "rds r@1")
	c := w.envoy(v).subscribe("cds", "")
	w.settle()
	c.behavesAsEnvoy()
	c.subscribe("lds", "")
	w.settle()
	c.behavesAsEnvoy("a")
	c.subscribe("rds", "r")
	w.settle()
	c.behavesAsEnvoy("a")
	w.pass(time.Minute)
	c.expect()
	return c
}

// checkOrder fails the test unless the responses came in this order, each the first with
// its text, and what is left is not one of them again.
func checkOrder(t *testing.T, got []string, want ...string) {
	t.Helper()
	at := -1
	for _, text := range want {
		next := slices.Index(got, text)
		if next <= at {
			t.Fatalf("got %q, want %q in this order", got, want)
		}
		at = next
	}
}

// TestH06_ChangeOfAllTypesArrivesInOrder: clusters, endpoints, listeners and routes that the
// origin changes at once arrive in this order, though endpoints wait for the answer to
// those that were resent.
func TestH06_ChangeOfAllTypesArrivesInOrder(t *testing.T) {
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			c := orderConfigured(w, v)
			for rev := 2; rev < 20; rev++ {
				var changes, want []string
				for _, what := range []string{"cds a", "eds a", "lds l", "rds r"} {
					changes = append(changes, fmt.Sprintf("%s@%d", what, rev))
					want = append(want, orderForm(v, fmt.Sprintf("%s@%d", what, rev)))
				}
				w.change(changes...)
				checkOrder(t, c.behavesAsEnvoy("a"), want...)
			}
		})
	})
}

// TestH06_ChangesFasterThanAnswers: while the origin changes all types faster than the client answers, routes go on to
// arrive, each after the clusters and endpoints that came with it.
func TestH06_ChangesFasterThanAnswers(t *testing.T) {
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			c := orderConfigured(w, v)
			newest, routes := map[string]int{}, 0
			for rev := 2; rev < 60; rev++ {
				w.change(fmt.Sprint("cds a@", rev), fmt.Sprint("eds a@", rev), fmt.Sprint("lds l@", rev), fmt.Sprint("rds r@", rev))
				for _, got := range c.heard() {
					short, rest, _ := strings.Cut(got, " ")
					_, at, _ := strings.Cut(rest, "@")
					n, err := strconv.Atoi(strings.Trim(at, "{}"))
					if err != nil {
						t.Fatalf("got %q: %v", got, err)
					}
					newest[short] = max(newest[short], n)
					if short == "rds" {
						routes++
						if newest["cds"] < n || newest["eds"] < n {
							t.Fatalf("routes %d came after clusters %d and endpoints %d", n, newest["cds"], newest["eds"])
						}
					}
				}
				for _, r := range c.read {
					c.Ack(r) // once the next change is on its way
				}
				w.pass(10 * time.Millisecond)
			}
			if routes < 5 {
				t.Errorf("%d responses with routes came while the origin changed 58 times", routes)
			}
		})
	})
}

// TestH06_RoutesWaitForEndpointsOfNewClusters: a listener and a route that came with a new
// cluster are sent once the client has asked for its endpoints and was sent them.
func TestH06_RoutesWaitForEndpointsOfNewClusters(t *testing.T) {
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			c := orderConfigured(w, v)
			for rev := 2; rev < 10; rev++ {
				name := fmt.Sprint("new-", rev)
				w.change("cds -new-"+fmt.Sprint(rev-1), "cds "+name+"@1", "eds "+name+"@1",
					fmt.Sprint("lds l@", rev), fmt.Sprint("rds r@", rev))
				got := c.behavesAsEnvoy("a", fmt.Sprint("new-", rev-1))
				clusters := slices.IndexFunc(got, func(r string) bool { return strings.Contains(r, name+"@1") })
				if clusters < 0 || !strings.HasPrefix(got[clusters], "cds") {
					t.Fatalf("got %q, want the new cluster first", got)
				}
				checkOrder(t, got, got[clusters], orderForm(v, "eds "+name+"@1"),
					orderForm(v, fmt.Sprint("lds l@", rev)), orderForm(v, fmt.Sprint("rds r@", rev)))
			}
		})
	})
}

// TestH06_NothingWaitsForEndpointsThatNobodyAsksFor: a client that accepts or refuses a
// cluster and asks for no endpoints gets what refers to it; one that says nothing, after
// the time that an ACK is waited for; so does one whose endpoints the origin never sends.
func TestH06_NothingWaitsForEndpointsThatNobodyAsksFor(t *testing.T) {
	tests := []struct {
		name   string
		answer func(c *orderClient)
		wait   time.Duration
	}{
		{"accepted", func(c *orderClient) { c.ack("cds") }, 0},
		{"refused", func(c *orderClient) { c.nack("cds") }, 0},
		{"not answered", func(*orderClient) {}, 5 * time.Second},
		{"no endpoints", func(c *orderClient) { c.subscribe("eds", "new").ack("cds") }, 5 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			orderVariants(t, func(t *testing.T, v relaytest.Variant) {
				orderBubble(t, nil, func(w *orderWorld) {
					w.origin.Change(func(b *relaytest.Behaviour) { b.SilentOnMissing = true })
					c := orderConfigured(w, v)
					w.change("cds new@1", "rds r@2")
					clusters := "cds new@1"
					if v == relaytest.SotW {
						clusters = "cds {a@1 new@1}"
					}
					c.expect(clusters)
					w.pass(time.Second / 2)
					c.expect()
					tt.answer(c)
					if tt.wait > 0 {
						w.pass(tt.wait - time.Second)
						c.expect()
						w.pass(time.Second / 2)
					}
					c.hears(orderForm(v, "rds r@2"))
				})
			})
		})
	}
}

// TestH06_LaterEndpointsExtendNothing: endpoints that go on changing while the client does
// not answer for those of a changed cluster hold routes back no longer than an ACK is
// waited for; those of other clusters do not hold them back at all.
func TestH06_LaterEndpointsExtendNothing(t *testing.T) {
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			c := orderConfigured(w, v)
			w.change("cds b@1", "eds b@1")
			c.behavesAsEnvoy("a")
			w.change("cds a@2")
			clusters := "cds a@2"
			if v == relaytest.SotW {
				clusters = "cds {a@2 b@1}"
			}
			c.expect(clusters, orderForm(v, "eds a@1"))
			w.change("eds b@2")
			w.change("rds r@2")
			c.hears(orderForm(v, "rds r@2"))
			for rev := range 49 {
				w.change(fmt.Sprint("eds a@", rev+2))
				w.change(fmt.Sprint("rds r@", rev+3))
				w.pass(100 * time.Millisecond)
				if got := c.heard(); len(got) > 0 {
					t.Fatalf("after %d changes: got %q, want nothing yet", rev+1, got)
				}
			}
			w.pass(100 * time.Millisecond)
			c.expect(orderForm(v, "eds a@50 b@2"), orderForm(v, "rds r@51"))
		})
	})
}

// TestH06_EndpointsThatAreGoneAreNotWaitedFor: the view holds no assignment that the
// origin has removed.
func TestH06_EndpointsThatAreGoneAreNotWaitedFor(t *testing.T) {
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			c := orderConfigured(w, v)
			w.change("eds a@2")
			c.expect(orderForm(v, "eds a@2")) // not answered, so that endpoints wait
			w.change("eds -a")
			w.change("cds a@2")
			w.change("rds r@2")
			c.expect(orderForm(v, "cds a@2"), orderForm(v, "rds r@2"))
		})
	})
}

// TestH06_WhoNeedsNoEndpointsNeverWaits: nothing waits on a stream without endpoints, nor
// for those that come from elsewhere.
func TestH06_WhoNeedsNoEndpointsNeverWaits(t *testing.T) {
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		t.Run("no endpoints on the stream", func(t *testing.T) {
			orderBubble(t, nil, func(w *orderWorld) {
				c := orderServed(w, v, false)
				w.change("cds c@2", "eds c@1", "lds l@2", "rds r@2")
				c.expect(orderForm(v, "cds c@2"), orderForm(v, "lds l@2"), orderForm(v, "rds r@2"))
			})
		})
		t.Run("endpoints from a file", func(t *testing.T) {
			orderBubble(t, nil, func(w *orderWorld) {
				c := orderConfigured(w, v)
				file := relaytest.Cluster("file")
				file.GetEdsClusterConfig().EdsConfig = &corepb.ConfigSource{
					ConfigSourceSpecifier: &corepb.ConfigSource_PathConfigSource{
						PathConfigSource: &corepb.PathConfigSource{Path: "/eds.json"},
					},
				}
				w.origin.Put(file)
				w.change("rds r@2")
				if got, want := c.heard(), orderForm(v, "rds r@2"); len(got) != 2 || got[1] != want {
					t.Errorf("got %q, want the cluster and %q at once", got, want)
				}
			})
		})
		t.Run("a stream for each type", func(t *testing.T) {
			orderBubble(t, nil, func(w *orderWorld) {
				w.change("cds a@1", "eds a@1", "rds r@1")
				streams := make(map[string]*orderClient)
				for _, short := range []string{"cds", "eds", "rds"} {
					streams[short] = w.dial(relaytest.ClientOptions{Variant: v, TypeURL: orderTypes[short]})
					streams[short].subscribe(short, map[string]string{"cds": "", "eds": "a", "rds": "r"}[short])
				}
				w.settle()
				for _, c := range streams {
					c.heard()
				}
				w.change("cds a@2", "rds r@2")
				streams["rds"].ack("rds")
				streams["rds"].hears(orderForm(v, "rds r@2"))
			})
		})
	})
}

// TestH06_WildcardOfEndpoints: a client that follows all endpoints asks for none, so they
// are waited for where the view holds them.
func TestH06_WildcardOfEndpoints(t *testing.T) {
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			c := orderWarm(w, relaytest.ClientOptions{Variant: v}, "*")
			c.subscribe("rds", "r")
			w.settle()
			c.hears(orderForm(v, "rds r@1"))
			w.change("eds b@2")
			c.expect(orderForm(v, "eds b@2")) // not answered
			w.change("cds a@2", "eds a@2", "rds r@2")
			clusters := "cds a@2"
			if v == relaytest.SotW {
				clusters = "cds {a@2 b@1}"
			}
			c.expect(clusters)
			c.ack("eds")
			c.expect(orderForm(v, "eds a@2"), orderForm(v, "rds r@2"))
		})
	})
}

// TestH06_ReturningClientGetsEndpointsFirst: while a client was away, a route moved to a
// new cluster. It gets the route after the endpoints, though it asks for all at once.
func TestH06_ReturningClientGetsEndpointsFirst(t *testing.T) {
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			orderConfigured(w, v) // so that the view knows all
			w.change("cds new@1", "eds new@1", "rds r@2")
			w.ready(v).subscribe("eds", "new")
			w.settle()
			c := w.envoy(v)
			c.returns(v, "cds", "", "a").returns(v, "eds", "a", "a").returns(v, "lds", "", "l").returns(v, "rds", "r", "r")
			checkOrder(t, c.behavesAsEnvoy("a"), orderForm(v, "cds a@1 new@1"), orderForm(v, "eds new@1"),
				orderForm(v, "lds l@1"), orderForm(v, "rds r@2"))
		})
	})
}

// TestH06_ControlPlane: the order holds with go-control-plane as the origin, over sockets.
func TestH06_ControlPlane(t *testing.T) {
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		t.Parallel()
		o := relaytest.NewControlPlane(t, relaytest.LinearCaches, nil, relaytest.Cluster("a"), relaytest.Endpoints("a", "127.0.0.1:1"),
			relaytest.Listener("l", "r"), relaytest.Route("r", []string{"*"}, "a"))
		c := startRelay(t, o.RelayOptions()).Client(relaytest.ClientOptions{Variant: v})
		c.Subscribe(relaytest.ClusterType)
		seen := make(map[string]bool) // type URL and name of what the client was sent
		envoy := func(until string) {
			for !seen[until] {
				r := c.Recv(t.Context())
				for _, res := range r.Resources {
					key := r.TypeURL + " " + res.Name + " " + res.Digest.String()
					seen[key] = true
					seen[r.TypeURL+" "+res.Name] = true
					if r.TypeURL == relaytest.ClusterType && !seen["asked "+res.Name] {
						seen["asked "+res.Name] = true
						c.Subscribe(relaytest.EndpointType, res.Name)
					}
				}
				c.Ack(r)
			}
		}
		envoy(relaytest.EndpointType + " a")
		c.Subscribe(relaytest.ListenerType)
		envoy(relaytest.ListenerType + " l")
		c.Subscribe(relaytest.RouteType, "r")
		envoy(relaytest.RouteType + " r")
		for i := range 20 {
			name := fmt.Sprint("new-", i)
			route := relaytest.Route("r", []string{"*"}, name)
			o.Put(relaytest.Cluster(name), relaytest.Endpoints(name, "127.0.0.1:1"), route)
			envoy(relaytest.RouteType + " r " + relaytest.DigestOf(route).String())
			if !seen[relaytest.EndpointType+" "+name] {
				t.Fatalf("the route to %s arrived before its endpoints", name)
			}
		}
	})
}
