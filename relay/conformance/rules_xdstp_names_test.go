package conformance_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/relay/relaytest"
)

// Names of one directory, in canonical spelling.
const (
	shop   = "xdstp://one/acme.Thing/shop/"
	shopAB = shop + "x?a=1&b=2"
)

// spellings are other ways to write shopAB.
var spellings = []string{shop + "x?b=2&a=1", "xdstp://%6fne/acme.Thing/shop%2Fx?b=%32&a=1", shop + "%78?b=2&%61=1"}

// TestR128_OneSubscriptionForAllSpellings: equal names are one name to the origin, and
// to clients, who are answered in the canonical spelling, whatever the origin's.
func TestR128_OneSubscriptionForAllSpellings(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.manual()
			var clients []*orderClient
			for _, name := range append(spellings, shopAB) {
				clients = append(clients, xdstpClient(w, v).subscribe("acme", name))
			}
			w.pass(time.Second)
			if !w.origin.State().Subscribed(orderTypes["acme"], shopAB) || len(w.origin.State().Requests(orderTypes["acme"])) != 1 {
				t.Fatalf("the origin was asked for more than the canonical name, once:\n%v", w.origin.State())
			}
			stream := w.accept()
			for i, spelling := range append(spellings, shopAB) {
				w.say(stream, "acme "+spelling+"@"+string(rune('1'+i)))
				for _, c := range clients {
					c.hears(orderForm(v, "acme "+shopAB+"@"+string(rune('1'+i))))
				}
			}
			w.say(stream, "acme -"+spellings[0])
			for _, c := range clients {
				if v == relaytest.Delta {
					c.hears("acme -" + shopAB)
				}
				c.expect()
			}
		})
	})
}

// TestR128_OneNameInOneRequest: two spellings of one name are one name of the client's,
// given up by either, and what it says it holds may be spelled in any way.
func TestR128_OneNameInOneRequest(t *testing.T) {
	t.Parallel()
	orderBubble(t, nil, func(w *orderWorld) {
		w.change("acme " + shopAB + "@1")
		c := w.envoy(relaytest.Delta)
		c.subscribe("acme", spellings[0]+" "+spellings[1])
		w.settle()
		c.hears("acme " + shopAB + "@1")
		version := c.last[orderTypes["acme"]].Resources[0].Version
		c.unsubscribe("acme", spellings[2])
		w.change("acme " + shopAB + "@2")
		c.expect()

		w.change("acme " + shopAB + "@1")
		back := w.envoy(relaytest.Delta)
		back.Send(&discoverypb.DeltaDiscoveryRequest{Node: relaytest.EnvoyNode("n"), TypeUrl: orderTypes["acme"],
			ResourceNamesSubscribe: []string{spellings[1]}, InitialResourceVersions: map[string]string{spellings[0]: version}})
		w.settle()
		back.expect() // it holds just this
		w.change("acme " + shopAB + "@3")
		back.hears("acme " + shopAB + "@3")
	})
}

// malformed names, none of which any resource can have.
var malformed = []string{
	shop + "x?a=1&a=2", shop + "x?=1", shop + "x#entry=y", "xdstp://one", "xdstp://one/acme.Thing", "xdstp://one/acme.Thing/",
	"xdstp://one//x", "xdstp://one/no type/x", "xdstp://one/acme.Thing/%", "xdstp://%zz/acme.Thing/x", shop + "x?a=%",
}

// TestX23_MalformedNamesAreNeverSentOn: nobody is asked for a name that cannot be, and
// who asks for nothing else asks for nothing: neither for everything, nor is the
// stream ended. Clients that understand it are told UNAVAILABLE, once.
func TestX23_MalformedNamesAreNeverSentOn(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		node   *corepb.Node
		errors bool
	}{{"envoy", relaytest.EnvoyNode("n"), false}, {"grpc", relaytest.GRPCNode("n"), true}} {
		t.Run(tt.name, func(t *testing.T) {
			orderVariants(t, func(t *testing.T, v relaytest.Variant) {
				orderBubble(t, nil, func(w *orderWorld) {
					w.change("acme "+shop+"x@1", "acme plain@1", "cds plain@1", "cds other@1")
					for _, short := range []string{"acme", "cds"} { // which have a legacy wildcard
						for _, name := range malformed {
							c := w.dial(relaytest.ClientOptions{Variant: v, Node: tt.node})
							c.Subscribe(orderTypes[short], name)
							w.pass(time.Minute)
							var told []string
							for r := c.TryRecv(); r != nil; r = c.TryRecv() {
								told = append(told, xdstpErrors(t, r)...)
								if c.Ack(r); len(r.Resources)+len(r.Removed) > 0 {
									t.Errorf("%s %q is answered: %v", short, name, r)
								}
							}
							if tt.errors != (len(told) == 1) || tt.errors && !strings.HasPrefix(told[0], name+": "+codes.Unavailable.String()) {
								t.Errorf("%s %q: told %q", short, name, told)
							}
							w.pass(time.Minute)
							if r := c.TryRecv(); r != nil {
								t.Errorf("%s %q: told once more: %v", short, name, r)
							}
							c.subscribe(short, "plain") // its stream lives
							w.pass(time.Second)
							c.hears(orderForm(v, short+" plain@1"))
						}
					}
					for _, short := range []string{"acme", "cds"} {
						if !w.origin.State().Subscribed(orderTypes[short], "plain") {
							t.Errorf("the origin was asked for something else:\n%v", w.origin.State())
						}
					}
				})
			})
		})
	}
}

// xdstpErrors returns the errors of a response, as "name: Code".
func xdstpErrors(t *testing.T, r *relaytest.Response) (out []string) {
	t.Helper()
	var errs []*discoverypb.ResourceError
	switch m := r.Message.(type) {
	case *discoverypb.DeltaDiscoveryResponse:
		errs = m.GetResourceErrors()
	case *discoverypb.DiscoveryResponse:
		errs = m.GetResourceErrors()
	}
	for _, e := range errs {
		out = append(out, e.GetResourceName().GetName()+": "+codes.Code(e.GetErrorDetail().GetCode()).String())
	}
	return out
}

// TestX23_BesideGoodNames: a name that cannot be takes nothing from the others, and to
// give one up is no way to ask for everything.
func TestX23_BesideGoodNames(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.change("acme "+shop+"x@1", "acme plain@1", "cds a@1", "cds b@1")
			c := w.envoy(v).subscribe("acme", shop+"x "+malformed[0]).subscribe("cds", malformed[0]+" a")
			w.settle()
			w.takes(c, "cds a@1", "acme "+shop+"x@1")
			if v == relaytest.Delta {
				d := w.envoy(v)
				d.Send(&discoverypb.DeltaDiscoveryRequest{Node: relaytest.EnvoyNode("n"), TypeUrl: orderTypes["cds"],
					ResourceNamesUnsubscribe: []string{malformed[0]}})
				w.settle()
				d.expect()
			}
			if w.origin.State().Type(orderTypes["cds"]).Wildcard {
				t.Errorf("the origin was asked for everything:\n%v", w.origin.State())
			}
		})
	})
}

// TestB23_NoNameIsLikeAnother: names that only look like xdstp are opaque.
func TestB23_NoNameIsLikeAnother(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			names := []string{"xdstp:one?b=2&a=1", "shop/*", "XDSTP://one/acme.Thing/x?b=2&a=1", "http://one/x?b=2&a=1&a=2"}
			for _, name := range names {
				w.change("acme " + name + "@1")
			}
			c := w.envoy(v).subscribe("acme", strings.Join(names, " "))
			w.settle()
			c.hears(orderForm(v, "acme "+xdstpList(names, "@1")))
			if !w.origin.State().Subscribed(orderTypes["acme"], names...) {
				t.Errorf("the origin was asked for something else:\n%v", w.origin.State())
			}
		})
	})
}

// xdstpList writes resources as a response lists them.
func xdstpList(names []string, suffix string) string {
	var out []string
	for _, name := range names {
		out = append(out, name+suffix)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// TestR130_GroupsShareNames: what is called by an xdstp name is the same for every
// node: two groups have one subscription, for which the relay presents itself.
func TestR130_GroupsShareNames(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, []string{"TENDER_NODE_GROUP_BY=cluster"}, func(w *orderWorld) {
			w.change("acme "+shop+"x@1", "acme plain@1")
			var clients []*orderClient
			for _, cluster := range []string{"red", "blue"} {
				node := relaytest.EnvoyNode("n")
				node.Cluster = cluster
				c := w.dial(relaytest.ClientOptions{Variant: v, Node: node}).subscribe("acme", shop+"x plain "+shop+"none")
				clients = append(clients, c)
			}
			w.settle()
			for _, c := range clients {
				w.takes(c, "acme "+shop+"x@1", "acme plain@1", "acme -"+shop+"none")
			}
			asked := make(map[string][]string) // by cluster of the node
			for _, s := range w.origin.State().Streams {
				asked[s.Node.GetCluster()] = append(asked[s.Node.GetCluster()], slices.Sorted(maps.Keys(s.Type(orderTypes["acme"]).Names))...)
			}
			want := map[string][]string{"tender": {shop + "none", shop + "x"}, "red": {"plain"}, "blue": {"plain"}}
			if diff := cmp.Diff(want, asked); diff != "" {
				t.Errorf("names by cluster of the node (-want +got):\n%s", diff)
			}
			w.change("acme " + shop + "x@2")
			for _, c := range clients {
				c.hears(orderForm(v, "acme "+shop+"x@2"))
			}
			// One that both want is given up when neither does.
			clients[0].Close()
			w.pass(time.Hour)
			w.change("acme " + shop + "x@3")
			clients[1].hears(orderForm(v, "acme "+shop+"x@3"))
			clients[1].Close()
			w.pass(time.Hour)
			if open := w.origin.State().Open(); len(open) != 0 {
				t.Errorf("streams are left:\n%v", w.origin.State())
			}
		})
	})
}

// unsubscribe gives names up.
func (c *orderClient) unsubscribe(short string, names ...string) {
	c.Unsubscribe(orderTypes[short], names...)
	synctest.Wait()
}

// takes fails the test unless just these changes came since the last time, in whatever
// responses, and accepts them.
func (w *orderWorld) takes(c *orderClient, want ...string) {
	w.t.Helper()
	var got []string
	for responses := c.heard(); len(responses) > 0; responses = c.heard() {
		for i, response := range responses {
			short, rest, _ := strings.Cut(response, " ")
			for _, part := range strings.Fields(strings.Trim(rest, "{}")) {
				got = append(got, short+" "+part)
			}
			c.Ack(c.read[i])
		}
	}
	want = slices.DeleteFunc(want, func(s string) bool {
		return strings.Contains(s, " -") && strings.HasPrefix(c.String(), "sotw") // which cannot say so
	})
	slices.Sort(got)
	got = slices.Compact(got) // endpoints may follow their cluster (B.16)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		w.t.Fatalf("%v: got %q, want %q", c.Client, got, want)
	}
}

// TestR130_ReturnsAreNotAnsweredTooSoon: what a group took of shared names goes with the
// last client that named them, and a client that comes back is not told that they are
// gone because they are not here yet (R075): though the wildcard of the group, which is
// another origin's word, has a member of that name.
func TestR130_ReturnsAreNotAnsweredTooSoon(t *testing.T) {
	t.Parallel()
	const x = "xdstp://one/envoy.config.cluster.v3.Cluster/shop/x"
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.change("cds "+x+"@1", "cds plain@1")
			w.ready(v).subscribe("cds", "")
			c := w.ready(v).subscribe("cds", x+" plain")
			for range 3 {
				w.pass(time.Minute)
				c.heard()
				c.Reconnect(w.relay.Conn())
				if v == relaytest.SotW {
					c.expect("cds {plain@1 " + x + "@1}")
				}
				c.expect()
			}
		})
	})
}

// TestR143_FeaturesThatChangeContentKeepNamesApart: of two clients that differ in one,
// the origin may say different things under one name.
func TestR143_FeaturesThatChangeContentKeepNamesApart(t *testing.T) {
	t.Parallel()
	const feature = "envoy.lb.does_not_support_overprovisioning"
	has := func(n *corepb.Node) bool { return slices.Contains(n.GetClientFeatures(), feature) }
	orderBubble(t, []string{"TENDER_NODE_GROUP_BY=cluster"}, func(w *orderWorld) {
		w.change("acme " + shop + "x@1")
		with := w.origin.For(has)
		with.Set(orderTypes["acme"], shop+"x", w.message("acme", shop+"x", 2), "")
		var clients []*orderClient
		for i, cluster := range []string{"red", "blue", "red", "blue"} {
			node := relaytest.EnvoyNode("n")
			if node.Cluster = cluster; i > 1 {
				node.ClientFeatures = []string{"other", feature}
			}
			clients = append(clients, w.dial(relaytest.ClientOptions{Node: node}).subscribe("acme", shop+"x"))
		}
		w.settle()
		for i, c := range clients {
			c.hears("acme " + shop + "x@" + []string{"1", "1", "2", "2"}[i])
		}
		var seen []bool
		for _, s := range w.origin.State().Streams {
			seen = append(seen, has(s.Node))
		}
		if !slices.Equal(seen, []bool{false, true}) {
			t.Errorf("streams with the feature: %v, want one of two\n%v", seen, w.origin.State())
		}
		if own := proto.CloneOf(w.origin.State().Streams[0].Node); own.GetId() != "tender/test" || own.GetCluster() != "tender" {
			t.Errorf("the origin sees %v, want the relay's own node", own)
		}
	})
}

// wrapNode is a node of software that is told the names of what it gets, in SotW too.
func wrapNode() *corepb.Node {
	n := relaytest.EnvoyNode("n")
	n.ClientFeatures = []string{"xds.config.resource-in-sotw"}
	return n
}

// TestR130_WhatGroupsShareEndsWithTheLast: a group that makes room for another takes
// nothing from those that stay, and what was shared ends when no group is left that
// takes part; then it may begin again.
func TestR130_WhatGroupsShareEndsWithTheLast(t *testing.T) {
	t.Parallel()
	env := []string{"TENDER_NODE_GROUP_BY=cluster", "TENDER_MAX_GROUPS=2", "TENDER_WILDCARD_LINGER=1m", "TENDER_LINGER=10m"}
	orderBubble(t, env, func(w *orderWorld) {
		w.change("acme "+shop+"x@1", "acme "+mall+"x@1")
		client := func(cluster, names string, features ...string) *orderClient {
			node := relaytest.EnvoyNode("n")
			node.Cluster, node.ClientFeatures = cluster, features
			return w.dial(relaytest.ClientOptions{Node: node}).subscribe("acme", names)
		}
		red, blue := client("red", shop+"x "+mallGlob), client("blue", shop+"x")
		w.settle()
		w.takes(red, "acme "+shop+"x@1", "acme "+mall+"x@1")
		blue.hears("acme " + shop + "x@1")
		red.Close()
		synctest.Wait()
		green := client("green", mallGlob) // in the place of red
		w.settle()
		green.hears("acme " + mall + "x@1")
		w.change("acme "+shop+"x@2", "acme "+mall+"x@2")
		blue.hears("acme " + shop + "x@2")
		green.hears("acme " + mall + "x@2")
		if s := w.origin.State(); len(s.Streams) != 1 {
			t.Errorf("%d streams for what all share, want 1\n%v", len(s.Streams), s)
		}
		blue.Close()
		w.pass(time.Hour)
		w.change("acme " + mall + "x@3")
		green.hears("acme " + mall + "x@3")
		if !w.origin.State().Subscribed(orderTypes["acme"], mallGlob) {
			t.Errorf("want what is left:\n%v", w.origin.State())
		}

		other := client("blue", shop+"x", "envoy.config.require-any-fields-contain-struct")
		w.settle()
		other.hears("acme " + shop + "x@2")
		green.Close()
		w.pass(time.Hour)
		if open := w.origin.State().Open(); len(open) != 1 || len(open[0].Node.GetClientFeatures()) == len(w.origin.State().Streams[0].Node.GetClientFeatures()) {
			t.Errorf("want the stream of the one feature alone:\n%v", w.origin.State())
		}
		other.Close()
		w.pass(time.Hour)
		if open := w.origin.State().Open(); len(open) != 0 {
			t.Errorf("streams are left:\n%v", w.origin.State())
		}
		again := client("red", shop+"x "+mallGlob)
		w.settle()
		w.takes(again, "acme "+shop+"x@2", "acme "+mall+"x@3")
	})
}

// TestR130_SharedNamesHaveAllTheirTraits: one test of each thing that is told of names
// elsewhere, for names that groups share: that they expire, what is wrong with them,
// that they are absent anew after a reconnect, and that they are stale for ever.
func TestR130_SharedNamesHaveAllTheirTraits(t *testing.T) {
	t.Parallel()
	orderBubble(t, nil, func(w *orderWorld) {
		typeURL := orderTypes["acme"]
		node := relaytest.GRPCNode("n")
		node.ClientFeatures = append(node.ClientFeatures, "xds.config.supports-resource-ttl")
		w.change("acme " + shop + "stale@1")
		w.origin.SetRaw(typeURL, &discoverypb.Resource{Name: shop + "brief", Version: "1", Ttl: durationpb.New(time.Minute),
			Resource: w.message("acme", shop+"brief", 1).(*anypb.Any)})
		c := w.dial(relaytest.ClientOptions{Node: node, AutoAck: true})
		c.subscribe("acme", shop+"stale "+shop+"brief "+shop+"none "+shop+"denied")
		w.pass(20 * time.Second)
		c.heard()
		late := w.dial(relaytest.ClientOptions{Node: node, AutoAck: true}).subscribe("acme", shop+"brief")
		late.heard()
		if got := late.read[0].Resources[0].TTL.Round(time.Second); got != 40*time.Second {
			t.Errorf("a late client is told that it lives for %v, want 40s", got)
		}
		w.pass(41 * time.Second)
		c.expect("acme -" + shop + "brief")

		w.origin.Inject(&discoverypb.DeltaDiscoveryResponse{TypeUrl: typeURL, ResourceErrors: []*discoverypb.ResourceError{{
			ResourceName: &discoverypb.ResourceName{Name: shop + "denied"}, ErrorDetail: &statuspb.Status{Code: int32(codes.PermissionDenied)}}}})
		c.heard()
		if len(c.read) != 1 || !slices.Equal(xdstpErrors(t, c.read[0]), []string{shop + "denied: PermissionDenied"}) {
			t.Errorf("told %v, want what is wrong", c.read)
		}

		w.stop()
		w.pass(3 * time.Minute)
		c.expect()
		down := w.dial(relaytest.ClientOptions{Node: node, AutoAck: true}).subscribe("acme", shop+"stale "+shop+"none "+shop+"new")
		down.expect("acme " + shop + "stale@1")
		w.pass(3 * time.Minute)
		down.heard()
		if len(down.read) != 1 || !slices.Equal(xdstpErrors(t, down.read[0]), []string{shop + "new: Unavailable"}) {
			t.Errorf("told %v, want that the new one cannot be asked for", down.read)
		}
		w.restart()
		w.takes(down, "acme -"+shop+"none", "acme -"+shop+"new")
	})
}
