package conformance_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

// Names of authorities with and without routes.
const (
	westX = "xdstp://west/acme.Thing/x"
	eastX = "xdstp://east/acme.Thing/x"
	noneX = "xdstp:///acme.Thing/x"
)

// The route of an authority selects the origin, then that of all authorities, then that of the type, then the
// first origin. Names without an authority use the route of their type.
func TestR129_RoutesSelectTheOrigin(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		routes      string
		first, west []string
	}{
		{"authority:west=west", []string{"acme plain", "acme " + eastX, "acme " + noneX}, []string{"acme " + westX}},
		{"authority:*=west", []string{"acme plain"}, []string{"acme " + westX, "acme " + eastX, "acme " + noneX}},
		{"authority:*=west;authority:east=default", []string{"acme plain", "acme " + eastX},
			[]string{"acme " + westX, "acme " + noneX}},
		{"type:" + typeURLs["acme"] + "=west;authority:east=default", []string{"acme " + eastX},
			[]string{"acme plain", "acme " + westX, "acme " + noneX}},
		{"type:" + typeURLs["acme"] + "=west;authority:*=default",
			[]string{"acme " + westX, "acme " + eastX, "acme " + noneX}, []string{"acme plain"}},
		{"type:cds=west", []string{"acme plain", "acme " + westX, "acme " + eastX, "acme " + noneX}, nil},
	} {
		t.Run(tt.routes, func(t *testing.T) {
			eachVariant(t, func(t *testing.T, v relaytest.Variant) {
				originsBubble(t, tt.routes, nil, func(first, west *world) {
					for _, name := range []string{"plain", westX, eastX, noneX} {
						first.change("acme " + name + "@1")
						west.change("acme " + name + "@2")
					}
					c := xdstpClient(first, v).subscribe("acme", "plain "+westX+" "+eastX+" "+noneX)
					first.settle()
					first.expectSubscribed(tt.first...)
					west.expectSubscribed(tt.west...)
					var want []string
					for _, subscription := range tt.first {
						want = append(want, subscription+"@1")
					}
					for _, subscription := range tt.west {
						want = append(want, subscription+"@2")
					}
					first.expectChanges(c, want...)
				})
			})
		})
	}
}

// A change at one origin does not change versions of types from another origin. Types of different origins have no
// order between them.
func TestR025_VersionsPerOrigin(t *testing.T) {
	t.Parallel()
	originsBubble(t, "type:eds=west", nil, func(first, west *world) {
		first.origin.Change(func(b *relaytest.Behaviour) { b.SystemVersion = "first-7" })
		west.origin.Change(func(b *relaytest.Behaviour) { b.SystemVersion = "west-9" })
		first.change("cds a@1", "cds b@1", "eds a@9")
		west.change("eds a@1", "eds b@1", "cds a@9")
		c := first.manualClient(relaytest.SotW).subscribe("cds", "").subscribe("eds", "a b")
		d := first.manualClient(relaytest.Delta).subscribe("cds", "").subscribe("eds", "a b")
		first.settle()
		first.expectChanges(c, "cds a@1", "cds b@1", "eds a@1", "eds b@1")
		first.expectChanges(d, "cds a@1", "cds b@1", "eds a@1", "eds b@1")
		cds, eds := c.last[typeURLs["cds"]], c.last[typeURLs["eds"]]
		for _, tt := range []struct {
			response *relaytest.Response
			system   string
		}{{cds, "first-7~"}, {eds, "west-9~"}} {
			if r := tt.response; len(r.Version) < len(tt.system) || r.Version[:len(tt.system)] != tt.system {
				t.Errorf("%v: want a version with the prefix %q", r, tt.system)
			}
		}
		first.expectSubscribed("cds *")
		west.expectSubscribed("eds a", "eds b")

		west.change("eds a@2")
		first.expectChanges(c, "eds a@2")
		first.expectChanges(d, "eds a@2")
		first.sleep(settled)
		c.expect()
		later := first.manualClient(relaytest.SotW).subscribe("cds", "").subscribe("eds", "a b")
		first.expectChanges(later, "cds a@1", "cds b@1", "eds a@2", "eds b@1")
		if got := later.last[typeURLs["cds"]].Version; got != cds.Version {
			t.Errorf("the clusters' version is %q, want %q, since no cluster changed", got, cds.Version)
		}
		if got := later.last[typeURLs["eds"]].Version; got == eds.Version {
			t.Errorf("the endpoints' version is still %q after a change", got)
		}
		// Responses of different origins may arrive in any order.
		west.change("eds a@3")
		first.change("cds a@2")
		got := d.received()
		d.ackBatch() // clusters wait for the answer to their endpoints
		got = append(got, d.received()...)
		if !slices.Equal(got, []string{"eds a@3", "cds a@2", "eds a@3"}) && !slices.Equal(got, []string{"cds a@2", "eds a@3"}) {
			t.Errorf("got %q, want both", got)
		}
	})
}

// An origin has one connection, for any number of groups and clients. It has streams only for groups that
// subscribe to its resources.
func TestR014_OneConnectionToEachOrigin(t *testing.T) {
	t.Parallel()
	originsBubble(t, "type:eds=west;authority:west=west", []string{"TENDER_NODE_GROUP_BY=cluster"},
		func(first, west *world) {
			first.change("cds a@1", "acme "+eastX+"@1")
			west.change("eds a@1", "acme "+westX+"@1")
			client := func(cluster string, v relaytest.Variant, wants ...string) *worldClient {
				node := relaytest.EnvoyNode("n")
				node.Cluster = cluster
				c := first.dial(relaytest.ClientOptions{Variant: v, Node: node})
				for i := 0; i < len(wants); i += 2 {
					c.subscribe(wants[i], wants[i+1])
				}
				return c
			}
			for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
				client("red", v, "cds", "", "eds", "a", "acme", westX)
				client("blue", v, "cds", "")
				client("green", v, "acme", eastX)
			}
			first.settle()
			clusters := func(w *world) (out []string) {
				for _, s := range w.origin.State().Streams {
					out = append(out, s.Node.GetCluster())
				}
				slices.Sort(out)
				return out
			}
			if got := clusters(first); !slices.Equal(got, []string{"blue", "red", "tender"}) {
				t.Errorf("the first origin has streams of %q, want one for each group with clusters, and one for shared names", got)
			}
			if got := clusters(west); !slices.Equal(got, []string{"red", "tender"}) {
				t.Errorf("the second origin has streams of %q, want one for the group with endpoints, and one for shared names",
					got)
			}
			for _, w := range []*world{first, west} {
				if n := w.origin.State().Connections; n != 1 {
					t.Errorf("got %d connections, want 1", n)
				}
			}
		})
}

// A second origin fails over between its addresses in order, too, without effect on the first one.
func TestB40_OriginsFailOverIndependently(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var all []*relaytest.Origin
		for _, name := range []string{"first", "west-1", "west-2"} {
			o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true, Address: name})
			o.Put(relaytest.Cluster(name), relaytest.Endpoints("a", "127.0.0.1:80"+string(rune('0'+len(all)))))
			all = append(all, o)
		}
		r := startRelay(t, instance.Options{Origins: all[:1], Named: map[string][]*relaytest.Origin{"west": all[1:]}},
			"TENDER_ROUTES=type:eds=west")
		c := r.Client(relaytest.ClientOptions{AutoAck: true})
		c.Subscribe(relaytest.ClusterType)
		c.Subscribe(relaytest.EndpointType, "a")
		expectFrom := func(endpointsOf int) {
			t.Helper()
			sleep(time.Minute)
			if got, want := c.State().Digest(relaytest.EndpointType, "a"),
				all[endpointsOf].Resources().Digest(relaytest.EndpointType, "a"); got != want {
				t.Errorf("the endpoints are not those of %s", all[endpointsOf].Addr())
			}
			if !c.State().Has(relaytest.ClusterType, "first") {
				t.Errorf("got the clusters %v, want those of the first origin", c.State()[relaytest.ClusterType])
			}
		}
		expectFrom(1)
		all[1].Stop()
		expectFrom(2)
		if n := len(all[0].State().Streams); n != 1 {
			t.Errorf("got %d streams at the first origin, want 1", n)
		}
	})
}

// A relay is ready once the first origin is reachable, independent of other origins.
func TestB8_ReadinessFollowsTheFirstOrigin(t *testing.T) {
	t.Parallel()
	originsBubble(t, "type:eds=west", nil, func(first, west *world) {
		status := func() healthpb.HealthCheckResponse_ServingStatus {
			resp, err := healthpb.NewHealthClient(first.relay.Conn()).Check(first.t.Context(), &healthpb.HealthCheckRequest{})
			if err != nil {
				t.Fatal(err)
			}
			return resp.GetStatus()
		}
		west.stop()
		first.sleep(time.Minute)
		if got := status(); got != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("with only the first origin: got %v, want SERVING", got)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		west := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true, Address: "west"})
		west.Put(relaytest.Endpoints("a"))
		o.Stop()
		r := startRelay(t, instance.Options{Origins: []*relaytest.Origin{o},
			Named: map[string][]*relaytest.Origin{"west": {west}}}, "TENDER_ROUTES=type:eds=west")
		c := r.Client(relaytest.ClientOptions{})
		c.Subscribe(relaytest.EndpointType, "a")
		recvAndAck(t, c, relaytest.EndpointType, "a") // served, although the relay is not ready
		resp, err := healthpb.NewHealthClient(r.Conn()).Check(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil || resp.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
			t.Errorf("with only the second origin: got %v, %v, want NOT_SERVING", resp, err)
		}
	})
}

// Each origin gets the streams of each group, and may send each group other resources.
func TestR052_GroupsOfSeveralOrigins(t *testing.T) {
	t.Parallel()
	originsBubble(t, "type:eds=west", []string{"TENDER_NODE_GROUP_BY=cluster"}, func(first, west *world) {
		for i, cluster := range []string{"red", "blue"} {
			of := func(n *corepb.Node) bool { return n.GetCluster() == cluster }
			first.origin.For(of).Put(first.n.Message("cds", "of-"+cluster, i+1))
			west.origin.For(of).Put(first.n.Message("eds", "a", i+1))
		}
		for i, cluster := range []string{"red", "blue"} {
			node := relaytest.EnvoyNode("n")
			node.Cluster = cluster
			c := first.dial(relaytest.ClientOptions{Node: node}).subscribe("cds", "").subscribe("eds", "a")
			first.settle()
			number := string(rune('1' + i))
			first.expectChanges(c, "cds of-"+cluster+"@"+number, "eds a@"+number)
		}
	})
}

// A relay supports 32 origins. Each receives only the subscriptions that are routed to it.
func TestB40_MaxOrigins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		further := make(map[string][]*relaytest.Origin)
		var routes, names []string
		for i := range 31 {
			name := fmt.Sprintf("o%d", i)
			other := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true, Address: name})
			names = append(names, "xdstp://"+name+"/acme.Thing/x")
			other.Put(relaytest.Opaque(typeURLs["acme"], names[i], nil))
			further[name], routes = []*relaytest.Origin{other}, append(routes, "authority:"+name+"="+name)
		}
		r := startRelay(t, instance.Options{Origins: []*relaytest.Origin{o}, Named: further},
			"TENDER_ROUTES="+strings.Join(routes, ";"))
		c := r.Client(relaytest.ClientOptions{AutoAck: true})
		c.Subscribe(typeURLs["acme"], names...)
		c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(typeURLs["acme"], names...) })
	})
}

// Either the control plane or the files may be the first origin. Files serve names and globs of their authority; a
// name that is in no file does not exist.
func TestR129_AFileOriginBesideAControlPlane(t *testing.T) {
	t.Parallel()
	const (
		rds  = relaytest.RouteType
		name = "xdstp://files/envoy.config.route.v3.RouteConfiguration/dir/"
	)
	for first, routes := range map[string]string{
		"the control plane": "type:rds=other;authority:files=other",
		"the files":         "type:cds=other",
	} {
		t.Run("first are "+first, func(t *testing.T) {
			o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
			o.Put(relaytest.Cluster("a"), relaytest.Route("plain", []string{"not.example"}, "wrong"))
			dir := t.TempDir()
			write := func(version string, names ...string) {
				var b strings.Builder
				for _, n := range names {
					fmt.Fprintf(&b, "- {'@type': %s, name: '%s', virtual_hosts: [{name: v%s, domains: ['*']}]}\n", rds, n, version)
				}
				if err := os.WriteFile(filepath.Join(dir, "routes.yaml"), []byte(b.String()), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write("1", "plain", name+"a", name+"b", name+"deep/c")
			target, other := o.Addr(), "file://"+dir
			if first == "the files" {
				target, other = other, target
			}
			r := startRelay(t, instance.Options{Target: target}, "TENDER_ROUTES="+routes, "TENDER_ORIGINS=other="+other)
			clients := r.bothVariants(relaytest.ClientOptions{Node: wrapNode()}, func(c *relaytest.Client) {
				c.Subscribe(relaytest.ClusterType)
				c.Subscribe(rds, "plain", name+"none", name+"*")
				c.WaitState(t.Context(), func(s relaytest.State) bool {
					return s.Has(relaytest.ClusterType, "a") && s.Has(rds, "plain", name+"a", name+"b")
				})
			})
			d := r.Client(relaytest.ClientOptions{})
			d.Subscribe(rds, name+"none", "xdstp://files/envoy.config.route.v3.RouteConfiguration/empty/*")
			var removed []string
			for range 2 {
				resp := d.Recv(t.Context())
				removed = append(removed, resp.Removed...)
				d.Ack(resp)
			}
			if slices.Sort(removed); !slices.Equal(removed,
				[]string{name + "none", "xdstp://files/envoy.config.route.v3.RouteConfiguration/empty/*"}) {
				t.Errorf("got the removals %q, want those of the name and the glob that are in no file", removed)
			}
			write("2", "plain", name+"a", name+"b", name+"c")
			for _, c := range clients {
				c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(rds, "plain", name+"a", name+"b", name+"c") })
			}
			if names := o.State().Names(rds); len(names) != 0 {
				t.Errorf("the control plane got subscriptions to %q, want none", names)
			}
		})
	}
}
