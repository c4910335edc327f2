package conformance_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/controlplane"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

// actAsEnvoy acts as an Envoy until no response is due: it subscribes to the endpoints of new clusters and ACKs.
// It returns the responses. subscribed are the names whose endpoints the client has subscribed to.
func (c *worldClient) actAsEnvoy(subscribed ...string) (all []string) {
	c.w.t.Helper()
	for {
		got := c.received()
		if len(got) == 0 {
			c.w.sleep(100 * time.Millisecond) // until the relay has the endpoints from the origin
			if got = c.received(); len(got) == 0 {
				return all
			}
		}
		all = append(all, got...)
		for _, r := range c.batch {
			if r.TypeURL == relaytest.ClusterType {
				for _, name := range r.Names() {
					if !slices.Contains(subscribed, name) {
						subscribed = append(subscribed, name)
						c.Subscribe(relaytest.EndpointType, name)
					}
				}
			}
			c.Ack(r)
		}
	}
}

// configuredEnvoy returns an Envoy that has the EDS cluster a, listener l and route r.
func configuredEnvoy(w *world, v relaytest.Variant) *worldClient {
	w.t.Helper()
	w.change("cds a@1", "eds a@1", "lds l@1", "rds r@1")
	c := w.manualClient(v).subscribe("cds", "")
	w.settle()
	c.actAsEnvoy()
	c.subscribe("lds", "")
	w.settle()
	c.actAsEnvoy("a")
	c.subscribe("rds", "r")
	w.settle()
	c.actAsEnvoy("a")
	w.sleep(time.Minute)
	c.expect()
	return c
}

// checkOrder fails the test unless the responses contain want in this order.
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

// Clusters, endpoints, listeners and routes that the origin changes at once arrive in this order, even though
// endpoints wait for the ACK of resent ones.
func TestH06_ChangeOfAllTypesArrivesInOrder(t *testing.T) {
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		worldBubble(t, nil, func(w *world) {
			c := configuredEnvoy(w, v)
			for rev := 2; rev < 102; rev++ {
				var changes, want []string
				for _, what := range []string{"cds a", "eds a", "lds l", "rds r"} {
					changes = append(changes, fmt.Sprintf("%s@%d", what, rev))
					want = append(want, formatFor(v, fmt.Sprintf("%s@%d", what, rev)))
				}
				w.change(changes...)
				checkOrder(t, c.actAsEnvoy("a"), want...)
			}
		})
	})
}

// A listener and a route that depend on a new cluster are sent after the client has subscribed to the cluster's
// endpoints and received them.
func TestH06_RoutesWaitForEndpointsOfNewClusters(t *testing.T) {
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		worldBubble(t, nil, func(w *world) {
			c := configuredEnvoy(w, v)
			for rev := 2; rev < 10; rev++ {
				name := fmt.Sprint("new-", rev)
				w.change("cds -new-"+fmt.Sprint(rev-1), "cds "+name+"@1", "eds "+name+"@1",
					fmt.Sprint("lds l@", rev), fmt.Sprint("rds r@", rev))
				got := c.actAsEnvoy("a", fmt.Sprint("new-", rev-1))
				clusters := slices.IndexFunc(got, func(r string) bool { return strings.Contains(r, name+"@1") })
				if clusters < 0 || !strings.HasPrefix(got[clusters], "cds") {
					t.Fatalf("got %q, want the new cluster first", got)
				}
				checkOrder(t, got, got[clusters], formatFor(v, "eds "+name+"@1"),
					formatFor(v, fmt.Sprint("lds l@", rev)), formatFor(v, fmt.Sprint("rds r@", rev)))
			}
		})
	})
}

// While the origin changes all types faster than the client answers, routes still arrive, each after its clusters
// and endpoints.
func TestH06_ChangesFasterThanAnswers(t *testing.T) {
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		worldBubble(t, nil, func(w *world) {
			c := configuredEnvoy(w, v)
			newest, routes := map[string]int{}, 0
			for rev := 2; rev < 102; rev++ {
				w.change(fmt.Sprint("cds a@", rev), fmt.Sprint("eds a@", rev), fmt.Sprint("lds l@", rev), fmt.Sprint("rds r@", rev))
				for _, got := range c.received() {
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
							t.Fatalf("routes of revision %d arrived with clusters of revision %d and endpoints of revision %d", n,
								newest["cds"], newest["eds"])
						}
					}
				}
				for _, r := range c.batch {
					c.Ack(r) // after the next change
				}
				w.sleep(10 * time.Millisecond)
			}
			if routes < 9 {
				t.Errorf("got %d responses with routes during 100 changes, want at least 9", routes)
			}
		})
	})
}

// Routes do not wait for endpoints that the client reads from a file.
func TestH06_EndpointsFromAFile(t *testing.T) {
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		worldBubble(t, nil, func(w *world) {
			c := configuredEnvoy(w, v)
			file := relaytest.Cluster("file")
			file.GetEdsClusterConfig().EdsConfig = &corepb.ConfigSource{
				ConfigSourceSpecifier: &corepb.ConfigSource_PathConfigSource{
					PathConfigSource: &corepb.PathConfigSource{Path: "/eds.json"},
				},
			}
			w.origin.Put(file)
			w.change("rds r@2")
			if got, want := c.received(), formatFor(v, "rds r@2"); len(got) != 2 || got[1] != want {
				t.Errorf("got %q, want the cluster and %q at once", got, want)
			}
		})
	})
}

// The endpoints of a cluster are those of its EDS service name, if it has one.
func TestB16_ByServiceName(t *testing.T) {
	worldBubble(t, nil, func(w *world) {
		w.origin.Put(relaytest.Cluster("shop", "shop.svc"), relaytest.StaticCluster("static", "127.0.0.1:1"))
		w.change("eds shop.svc@1", "eds shop@1", "eds static@1")
		c := w.autoClient(relaytest.Delta).subscribe("cds", "").subscribe("eds", "shop shop.svc static")
		w.settle()
		c.received()
		changed := relaytest.Cluster("shop", "shop.svc")
		changed.AltStatName = "changed"
		w.origin.Put(changed)
		c.expect("cds shop@?", "eds shop.svc@1")
		w.origin.Put(relaytest.StaticCluster("static", "127.0.0.1:2"))
		c.expect("cds static@?")
	})
}

// referring returns a transport socket that refers to a Secret.
func referring(secret string) *corepb.TransportSocket {
	source := &corepb.ConfigSource{ConfigSourceSpecifier: &corepb.ConfigSource_Ads{Ads: &corepb.AggregatedConfigSource{}}}
	return &corepb.TransportSocket{Name: "tls", ConfigType: &corepb.TransportSocket_TypedConfig{
		TypedConfig: relaytest.Pack(&tlspb.CommonTlsContext{
			TlsCertificateSdsSecretConfigs: []*tlspb.SdsSecretConfig{{Name: secret, SdsConfig: source}},
		}),
	}}
}

// filteredListener returns a listener that refers to the Secret "key" and the extension configuration "filter".
func filteredListener(rev int) *listenerpb.Listener {
	l := relaytest.Listener("l", "r")
	l.StatPrefix = strconv.Itoa(rev)
	l.FilterChains[0].TransportSocket = referring("key")
	l.ListenerFilters = []*listenerpb.ListenerFilter{{Name: "filter", ConfigType: &listenerpb.ListenerFilter_ConfigDiscovery{
		ConfigDiscovery: &corepb.ExtensionConfigSource{
			ConfigSource: &corepb.ConfigSource{ConfigSourceSpecifier: &corepb.ConfigSource_Self{Self: &corepb.SelfConfigSource{}}},
			TypeUrls:     []string{"type.googleapis.com/x.Filter"},
		},
	}}}
	return l
}

// tlsCluster returns a cluster that refers to the Secret "ca".
func tlsCluster(rev int) *clusterpb.Cluster {
	c := relaytest.StaticCluster("c", "127.0.0.1:1")
	c.AltStatName, c.TransportSocket = strconv.Itoa(rev), referring("ca")
	return c
}

// Secrets and extension configurations follow the listener or the cluster that refers to them, once for each change, even if they
// have not changed. Without them, an Envoy warms the resource until a timeout and then uses it without certificates.
func TestB16_SecretsAndExtensionsFollow(t *testing.T) {
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		worldBubble(t, nil, func(w *world) {
			secrets := func(only string, all string) string { // complete sets for Envoy
				if v == relaytest.SotW {
					only = all
				}
				return formatFor(v, "sds "+only)
			}
			w.origin.Put(tlsCluster(1), filteredListener(1))
			w.change("sds ca@1", "sds key@1", "sds other@1", "ecds filter@1", "ecds other@1")
			c := w.manualClient(v).subscribe("cds", "").subscribe("lds", "").subscribe("sds", "ca key other").subscribe("ecds", "filter other")
			for range 3 {
				w.settle()
				c.received()
				c.ackBatch()
			}
			w.origin.Put(filteredListener(2))
			c.expectAndAck(formatFor(v, "lds l@?"), secrets("key@1", "ca@1 key@1 other@1"),
				map[relaytest.Variant]string{relaytest.Delta: "ecds filter@1", relaytest.SotW: "ecds {filter@1 other@1}"}[v])
			w.origin.Put(tlsCluster(2))
			c.expectAndAck(formatFor(v, "cds c@?"), secrets("ca@1", "ca@1 key@1 other@1"))
			w.sleep(time.Minute)
			c.expect()

			w.change("sds key@2")
			c.expect(secrets("key@2", "ca@1 key@2 other@1"))
			w.origin.Put(filteredListener(3))
			c.expect(formatFor(v, "lds l@?"),
				map[relaytest.Variant]string{relaytest.Delta: "ecds filter@1", relaytest.SotW: "ecds {filter@1 other@1}"}[v])
			c.ack("sds", "lds") // the Secret has waited for this ACK
			c.expect(secrets("key@2", "ca@1 key@2 other@1"))
		})
	})
}

// The order also holds with go-control-plane as the origin, over TCP.
func TestH06_ControlPlane(t *testing.T) {
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		t.Parallel()
		o := controlplane.New(t, controlplane.Linear, nil, relaytest.Cluster("a"),
			relaytest.Endpoints("a", "127.0.0.1:1"),
			relaytest.Listener("l", "r"), relaytest.Route("r", []string{"*"}, "a"))
		c := startRelay(t, instance.Of(o)).Client(relaytest.ClientOptions{Variant: v})
		c.Subscribe(relaytest.ClusterType)
		seen := make(map[string]bool) // type URL and name of received resources
		envoy := func(until string) {
			for !seen[until] {
				r := c.Recv(t.Context())
				for _, res := range r.Resources {
					key := r.TypeURL + " " + res.Name + " " + res.Digest.String()
					seen[key] = true
					seen[r.TypeURL+" "+res.Name] = true
					if r.TypeURL == relaytest.ClusterType && !seen["subscribed "+res.Name] {
						seen["subscribed "+res.Name] = true
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

// TestB5_AColdRelaySendsAllEndpointsAtOnce: a client that subscribes to thousands of endpoints that the relay does not
// have receives them in one response, because the relay requests them at once. An Envoy applies each response before it
// ACKs it, and a SotW Envoy does the work of all its clusters for each.
func TestB5_AColdRelaySendsAllEndpointsAtOnce(t *testing.T) {
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		names := make([]string, 3000)
		for i := range names {
			names[i] = fmt.Sprintf("cluster-%04d", i)
			o.Put(relaytest.Endpoints(names[i], "127.0.0.1:1"))
		}
		c := start(t, o).Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
		o.Put(relaytest.Cluster(names[0]))
		c.Subscribe(typeCDS)
		c.WaitState(t.Context(), func(s relaytest.State) bool { return len(s.Names(typeCDS)) == 1 })
		began := time.Now()
		c.Subscribe(typeEDS, names...)
		c.WaitState(t.Context(), func(s relaytest.State) bool { return len(s.Names(typeEDS)) == len(names) })
		if took := time.Since(began); took > 50*time.Millisecond {
			t.Errorf("got the endpoints after %v, want at once", took)
		}
		requests := 0
		for _, r := range o.State().Last().Requests {
			if r.Message.GetTypeUrl() == typeEDS && len(r.Message.GetResourceNamesSubscribe()) > 0 {
				requests++
			}
		}
		if got := len(c.Responses()) - 1; got != 1 || requests != 1 {
			t.Errorf("the origin got %d requests, and the client %d responses; want 1 of each", requests, got)
		}
	})
}
