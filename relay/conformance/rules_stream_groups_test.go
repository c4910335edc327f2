package conformance_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/relay/relaytest"
)

// groupedNode returns a node with all fields that may determine its group.
func groupedNode(change func(*corepb.Node)) *corepb.Node {
	n := relaytest.EnvoyNode("id-1")
	n.Locality = &corepb.Locality{Region: "r1", Zone: "z1", SubZone: "s1"}
	n.Metadata, _ = structpb.NewStruct(map[string]any{
		"env": "prod", "deep": map[string]any{"tier": 1.0, "other": "x"}, "list": []any{"a"},
	})
	if change != nil {
		change(n)
	}
	return n
}

func metadataOf(n *corepb.Node) map[string]any { return n.GetMetadata().AsMap() }

// Nodes form a group if they have equal configured fields and equal client features that change content (R143).
// The origin receives these fields, and otherwise the relay's own node.
func TestB4_WhatMakesAGroup(t *testing.T) {
	t.Parallel()
	overprovisioning := func(n *corepb.Node) {
		n.ClientFeatures = []string{"x", "envoy.lb.does_not_support_overprovisioning", "y"}
	}
	for _, tc := range []struct {
		name, by string
		change   func(*corepb.Node) // changes the second node
		groups   int
	}{
		{"the same", "user_agent_name", nil, 1},
		{"id counts only if configured", "user_agent_name", func(n *corepb.Node) { n.Id = "id-2" }, 1},
		{"id", "id", func(n *corepb.Node) { n.Id = "id-2" }, 2},
		{"cluster", "cluster", func(n *corepb.Node) { n.Cluster = "c2" }, 2},
		{"software", "user_agent_name", func(n *corepb.Node) { n.UserAgentName = "gRPC Go" }, 2},
		{"none", "none", func(n *corepb.Node) { n.UserAgentName, n.Id = "gRPC Go", "id-2" }, 1},
		{"minor version", "user_agent_version",
			func(n *corepb.Node) { n.GetUserAgentBuildVersion().Version.MinorNumber = 99 }, 1},
		{"major version", "user_agent_version",
			func(n *corepb.Node) { n.GetUserAgentBuildVersion().Version.MajorNumber = 2 }, 2},
		{"region", "locality.region", func(n *corepb.Node) { n.Locality.Region = "r2" }, 2},
		{"zone", "locality.zone", func(n *corepb.Node) { n.Locality.Zone = "z2" }, 2},
		{"zone, by region", "locality.region", func(n *corepb.Node) { n.Locality.Zone = "z2" }, 1},
		{"sub zone", "locality.sub_zone", func(n *corepb.Node) { n.Locality.SubZone = "s2" }, 2},
		{"metadata", "metadata.env", func(n *corepb.Node) { n.Metadata.Fields["env"] = structpb.NewStringValue("test") }, 2},
		{"other metadata", "metadata.env", func(n *corepb.Node) { n.Metadata.Fields["x"] = structpb.NewStringValue("test") },
			1},
		{"no metadata", "metadata.env", func(n *corepb.Node) { n.Metadata = nil }, 2},
		{"deep metadata", "metadata.deep.tier", func(n *corepb.Node) {
			n.Metadata.Fields["deep"].GetStructValue().Fields["tier"] = structpb.NewNumberValue(2)
		}, 2},
		{"beside deep metadata", "metadata.deep.tier", func(n *corepb.Node) {
			n.Metadata.Fields["deep"].GetStructValue().Fields["other"] = structpb.NewNumberValue(2)
		}, 1},
		{"kinds of metadata", "metadata.deep.tier", func(n *corepb.Node) {
			n.Metadata.Fields["deep"].GetStructValue().Fields["tier"] = structpb.NewStringValue("1")
		}, 2},
		{"beside a list", "metadata.list", func(n *corepb.Node) { n.Metadata.Fields["env"] = structpb.NewNullValue() }, 1},
		{"an item of a list", "metadata.list", func(n *corepb.Node) {
			n.Metadata.Fields["list"].GetListValue().Values[0] = structpb.NewStringValue("b")
		}, 2},
		{"a list of one, and what is in it", "metadata.list",
			func(n *corepb.Node) { n.Metadata.Fields["list"] = structpb.NewStringValue("a") }, 2},
		{"an object", "metadata.deep", func(n *corepb.Node) {
			n.Metadata.Fields["deep"].GetStructValue().Fields["other"] = structpb.NewStringValue("y")
		}, 2},
		{"a path through a list", "metadata.list.0", func(n *corepb.Node) { delete(n.Metadata.Fields, "list") }, 1},
		{"a path through a text", "metadata.env.x", func(n *corepb.Node) { delete(n.Metadata.Fields, "env") }, 1},
		{"null, and nothing", "metadata.none", func(n *corepb.Node) { n.Metadata.Fields["none"] = structpb.NewNullValue() },
			2},
		{"null, and its name", "metadata.env",
			func(n *corepb.Node) { n.Metadata.Fields["env"] = structpb.NewStringValue("null") }, 2},
		{"an empty text, and nothing", "metadata.none",
			func(n *corepb.Node) { n.Metadata.Fields["none"] = structpb.NewStringValue("") }, 2},
		{"no locality", "locality.region", func(n *corepb.Node) { n.Locality = nil }, 2},
		{"version as text", "user_agent_version", func(n *corepb.Node) {
			n.UserAgentVersionType = &corepb.Node_UserAgentVersion{UserAgentVersion: "1.36.0"}
		}, 2},
		{"no version", "user_agent_version", func(n *corepb.Node) { n.UserAgentVersionType = nil }, 2},
		{"a feature that changes content", "user_agent_name", overprovisioning, 2},
		{"a feature that changes content, by none", "none", overprovisioning, 2},
		{"another feature", "user_agent_name", func(n *corepb.Node) { n.ClientFeatures = []string{"x"} }, 1},
		{"all of it", "id,cluster,user_agent_name,user_agent_version,locality.region,metadata.env", nil, 1},
		// A field's content must not look like two fields.
		{"forged fields", "cluster,id", func(n *corepb.Node) { n.Cluster, n.Id = "edge,id=id-1", "" }, 2},
		{"forged feature", "user_agent_name", func(n *corepb.Node) {
			n.UserAgentName = "envoy,envoy.lb.does_not_support_overprovisioning"
		}, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			originBubble(t, func(t *testing.T, o *relaytest.Origin) {
				o.Put(relaytest.Cluster("a"))
				r := start(t, o, "TENDER_NODE_GROUP_BY="+tc.by)
				for _, change := range []func(*corepb.Node){nil, tc.change} {
					c := r.Client(relaytest.ClientOptions{Node: groupedNode(change)})
					c.Subscribe(typeCDS, "*")
					recvAndAck(t, c, typeCDS, "a")
				}
				if n := len(o.State().Streams); n != tc.groups {
					t.Errorf("%d groups, want %d", n, tc.groups)
				}
			})
		})
	}
}

// Different nodes have different group keys, whatever the clients write into their nodes. Otherwise a client could
// receive another client's configuration.
func TestB4_GroupsCannotBeForged(t *testing.T) {
	t.Parallel()
	const feature = "envoy.lb.does_not_support_overprovisioning"
	for _, tc := range []struct {
		by   string
		a, b *corepb.Node
	}{
		{"cluster,id", &corepb.Node{Cluster: "x,id=y"}, &corepb.Node{Cluster: "x", Id: "y,id="}},
		{"user_agent_name", &corepb.Node{UserAgentName: "envoy," + feature},
			&corepb.Node{UserAgentName: "envoy", ClientFeatures: []string{feature}}},
		{"id", &corepb.Node{Id: `"x"`}, &corepb.Node{Id: "x"}},
		{"id", &corepb.Node{Id: `a,b`}, &corepb.Node{Id: `"a,b"`}},
	} {
		originBubble(t, func(t *testing.T, o *relaytest.Origin) {
			r := start(t, o, "TENDER_NODE_GROUP_BY="+tc.by)
			for _, node := range []*corepb.Node{tc.a, tc.b} {
				c := r.Client(relaytest.ClientOptions{Node: node})
				c.Subscribe(typeCDS, "*")
				c.Recv(t.Context())
			}
			if n := len(o.State().Streams); n != 2 {
				t.Errorf("by %s: %v and %v make %d groups, want 2", tc.by, tc.a, tc.b, n)
			}
		})
	}
}

// The origin receives the relay's own node with the fields of the group key replaced, and no other field of a
// client.
func TestB4_WhatTheOriginSees(t *testing.T) {
	t.Parallel()
	own := []string{
		"TENDER_NODE_CLUSTER=relays", "TENDER_NODE_LOCALITY=ro/zo/so",
		`TENDER_NODE_METADATA={"env":"relay","deep":{"own":true},"mine":1}`,
	}
	for _, tc := range []struct {
		by     string
		change func(*corepb.Node)
		check  func(*corepb.Node) bool
	}{
		{"none", nil, func(n *corepb.Node) bool {
			return n.GetUserAgentName() == "tender" && n.GetUserAgentVersion() == "test" && n.GetLocality().GetZone() == "zo"
		}},
		{"user_agent_name", nil,
			func(n *corepb.Node) bool { return n.GetUserAgentName() == "envoy" && n.GetCluster() == "relays" }},
		{"id", nil, func(n *corepb.Node) bool { return n.GetId() == "id-1" }},
		{"cluster", nil, func(n *corepb.Node) bool { return n.GetCluster() == "edge" && n.GetId() == "tender/test" }},
		{"user_agent_version", nil, func(n *corepb.Node) bool {
			v := n.GetUserAgentBuildVersion().GetVersion()
			return v.GetMajorNumber() == 1 && v.GetMinorNumber() == 0
		}},
		{"user_agent_version", func(n *corepb.Node) {
			n.UserAgentVersionType = &corepb.Node_UserAgentVersion{UserAgentVersion: "v2.7.1"}
		}, func(n *corepb.Node) bool { return n.GetUserAgentVersion() == "2" }},
		{"locality.region", nil, func(n *corepb.Node) bool {
			return n.GetLocality().GetRegion() == "r1" && n.GetLocality().GetZone() == "zo"
		}},
		{"locality.sub_zone", nil, func(n *corepb.Node) bool {
			return n.GetLocality().GetSubZone() == "s1" && n.GetLocality().GetZone() == "zo"
		}},
		{"locality.zone", nil, func(n *corepb.Node) bool {
			return n.GetLocality().GetZone() == "z1" && n.GetLocality().GetRegion() == "ro"
		}},
		{"metadata.env", nil, func(n *corepb.Node) bool {
			m := metadataOf(n)
			return m["env"] == "prod" && m["mine"] == 1.0 && m["list"] == nil
		}},
		{"metadata.deep.tier", nil, func(n *corepb.Node) bool {
			deep, _ := metadataOf(n)["deep"].(map[string]any)
			return deep["tier"] == 1.0 && deep["own"] == true && deep["other"] == nil
		}},
		{"metadata.deep", nil, func(n *corepb.Node) bool {
			deep, _ := metadataOf(n)["deep"].(map[string]any)
			return deep["tier"] == 1.0 && deep["other"] == "x" && deep["own"] == nil
		}},
		{"metadata.list", nil, func(n *corepb.Node) bool {
			list, _ := metadataOf(n)["list"].([]any)
			return len(list) == 1 && list[0] == "a"
		}},
		{"metadata.env", func(n *corepb.Node) { n.Metadata.Fields["env"] = structpb.NewNullValue() },
			func(n *corepb.Node) bool {
				env, present := metadataOf(n)["env"]
				return present && env == nil
			}},
		{"metadata.deep.tier,metadata.deep", nil, func(n *corepb.Node) bool {
			deep, _ := metadataOf(n)["deep"].(map[string]any)
			return deep["tier"] == 1.0 && deep["other"] == "x"
		}},
		{"metadata.mine.part", func(n *corepb.Node) {
			n.Metadata.Fields["mine"] = structpb.NewStructValue(&structpb.Struct{
				Fields: map[string]*structpb.Value{"part": structpb.NewBoolValue(true)},
			})
		}, func(n *corepb.Node) bool { // replaces a field that is no object in the relay's metadata
			mine, _ := metadataOf(n)["mine"].(map[string]any)
			return mine["part"] == true
		}},
		// A field of the key that the client lacks is removed from the relay's metadata, too.
		{"metadata.env", func(n *corepb.Node) { n.Metadata = nil }, func(n *corepb.Node) bool {
			m := metadataOf(n)
			_, present := m["env"]
			return !present && m["mine"] == 1.0
		}},
		{"metadata.deep.own", nil, func(n *corepb.Node) bool {
			deep, _ := metadataOf(n)["deep"].(map[string]any)
			return deep["own"] == nil
		}},
		{"locality.zone", func(n *corepb.Node) { n.Locality = nil }, func(n *corepb.Node) bool {
			return n.GetLocality().GetZone() == "" && n.GetLocality().GetRegion() == "ro"
		}},
		{"none", func(n *corepb.Node) {
			n.ClientFeatures = []string{"own.secret", "envoy.config.require-any-fields-contain-struct"}
		}, func(n *corepb.Node) bool {
			return slices.Contains(n.GetClientFeatures(), "envoy.config.require-any-fields-contain-struct")
		}},
	} {
		t.Run(tc.by, func(t *testing.T) {
			originBubble(t, func(t *testing.T, o *relaytest.Origin) {
				o.Put(relaytest.Cluster("a"))
				c := start(t, o, append(own,
					"TENDER_NODE_GROUP_BY="+tc.by)...).Client(relaytest.ClientOptions{Node: groupedNode(tc.change)})
				c.Subscribe(typeCDS, "*")
				recvAndAck(t, c, typeCDS, "a")
				n := o.State().Last().Node
				if !tc.check(n) {
					t.Errorf("by %s: the origin got the node %v", tc.by, n)
				}
				if f := n.GetClientFeatures(); slices.Contains(f, "own.secret") ||
					!slices.Contains(f, "xds.config.supports-resource-ttl") {
					t.Errorf("by %s: the origin got the features %v", tc.by, f)
				}
			})
		})
	}
}

// The node that the origin receives for a group does not depend on which client was first.
func TestB4_NodeIsIndependentOfTheFirstClient(t *testing.T) {
	t.Parallel()
	nodesAt := func(t *testing.T, by string, nodes ...*corepb.Node) (shown []*corepb.Node) {
		originBubble(t, func(t *testing.T, o *relaytest.Origin) {
			r := start(t, o, "TENDER_NODE_GROUP_BY="+by)
			for _, n := range nodes {
				c := r.Client(relaytest.ClientOptions{Node: n})
				c.Subscribe(typeCDS, "*")
				c.Recv(t.Context())
			}
			for _, s := range o.State().Streams {
				shown = append(shown, s.Node)
			}
		})
		slices.SortFunc(shown, func(a, b *corepb.Node) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		return shown
	}
	one := groupedNode(nil)
	for _, tc := range []struct{ by, name string }{
		{"user_agent_name", "default"}, {"locality.region", "region"}, {"user_agent_version", "version"},
		{"metadata.env", "metadata"},
		{"metadata.deep", "object"},
	} {
		two := groupedNode(func(n *corepb.Node) {
			n.Id, n.Cluster, n.Locality.Zone = "id-2", "c2", "z2"
			n.Metadata.Fields["x"] = structpb.NewStringValue("y")
			n.UserAgentVersionType = &corepb.Node_UserAgentVersion{UserAgentVersion: "1.2.3"}
		})
		// It does not depend on unknown fields of the first client's node either.
		three := proto.CloneOf(one)
		version := three.GetUserAgentBuildVersion()
		for _, m := range []proto.Message{
			three, version, version.Version, three.Locality, three.Metadata, three.Metadata.Fields["env"],
			three.Metadata.Fields["deep"].GetStructValue(),
		} {
			m.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 4242, protowire.VarintType), 1))
		}
		if a, b := nodesAt(t, tc.by, one, three), nodesAt(t, tc.by, three, one); len(a) != 1 || len(b) != 1 ||
			!proto.Equal(a[0], b[0]) {
			t.Errorf("by %s: the origin got %v or %v with unknown fields, depending on the first client", tc.by, a, b)
		}
		a, b := nodesAt(t, tc.by, one, two), nodesAt(t, tc.by, two, one)
		if len(a) != len(b) || !slices.EqualFunc(a, b, func(x, y *corepb.Node) bool { return proto.Equal(x, y) }) {
			t.Errorf("by %s: the origin got %v or %v, depending on the first client", tc.by, a, b)
		}
	}
}

// The relay logs once per group that its clients differ in fields that the origin may use, other than those of the
// group key.
func TestB4_DifferencesInAGroupAreLoggedOnce(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		by, fields string // fields that the warning names; "" means no warning
		change     func(*corepb.Node)
	}{
		{"user_agent_name", "", func(n *corepb.Node) { n.Id = "id-2" }},
		{"user_agent_name", "fields=id ", func(n *corepb.Node) { n.Id = "router~10.0.0.1~x~y" }},
		{"user_agent_name", "fields=cluster ", func(n *corepb.Node) { n.Cluster = "c2" }},
		{"user_agent_name", "fields=locality ", func(n *corepb.Node) { n.Locality.Zone = "z2" }},
		{"user_agent_name", "fields=metadata ", func(n *corepb.Node) { n.Metadata = nil }},
		{"cluster", "", func(n *corepb.Node) { n.Cluster = "c2" }},
		{"metadata.env", "", func(n *corepb.Node) { n.Metadata.Fields["env"] = structpb.NewStringValue("x") }},
		{"locality.zone", "", func(n *corepb.Node) { n.Locality.Zone = "z2" }},
	} {
		originBubble(t, func(t *testing.T, o *relaytest.Origin) {
			r := start(t, o, "TENDER_NODE_GROUP_BY="+tc.by)
			for range 3 {
				for _, change := range []func(*corepb.Node){nil, tc.change} {
					c := r.Client(relaytest.ClientOptions{Node: groupedNode(change)})
					c.Subscribe(typeCDS, "*")
					c.Recv(t.Context())
				}
			}
			want := 0
			if tc.fields != "" {
				want = 1
			}
			if got := r.Log.Count("clients of one node group differ"); got != want || r.Log.Count(tc.fields) == 0 {
				t.Errorf("by %s: %d warnings, want %d with %q", tc.by, got, want, tc.fields)
			}
		})
	}
}

// B.4: a client whose Istio proxy type differs from the relay's is logged once per group, since istiod's
// configuration depends on the type. IDs of other forms have no type.
func TestB4_OtherProxyType(t *testing.T) {
	for _, tc := range []struct {
		own, id string
		want    int
	}{
		{"router~192.0.2.1~relay.tender~tender.svc.cluster.local", "sidecar~10.0.0.1~x.y~y.svc.cluster.local", 1},
		{"router~192.0.2.1~relay.tender~tender.svc.cluster.local", "router~10.0.0.1~x.y~y.svc.cluster.local", 0},
		{"router~192.0.2.1~relay.tender~tender.svc.cluster.local", "envoy-1", 0},
		{"tender", "sidecar~10.0.0.1~x.y~y.svc.cluster.local", 0},
	} {
		originBubble(t, func(t *testing.T, o *relaytest.Origin) {
			r := start(t, o, "TENDER_NODE_ID="+tc.own)
			for range 2 {
				c := r.Client(relaytest.ClientOptions{Node: groupedNode(func(n *corepb.Node) { n.Id = tc.id })})
				c.Subscribe(typeCDS, "*")
				c.Recv(t.Context())
			}
			if got := r.Log.Count("differ in Istio proxy type"); got != tc.want {
				t.Errorf("relay %s, client %s: %d warnings, want %d", tc.own, tc.id, got, tc.want)
			}
		})
	}
}

// By default Envoys and gRPC clients of a cluster are different groups. Client features that change content
// determine the group, in any order.
func TestR143_FeaturesMakeGroups(t *testing.T) {
	t.Parallel()
	const (
		anyStruct = "envoy.config.require-any-fields-contain-struct"
		noOver    = "envoy.lb.does_not_support_overprovisioning"
	)
	node := func(n *corepb.Node, features ...string) *corepb.Node {
		n.Cluster, n.ClientFeatures = "shop", features
		return n
	}
	envoy := func(features ...string) *corepb.Node { return node(relaytest.EnvoyNode("e"), features...) }
	grpc := node(relaytest.GRPCNode("g"), relaytest.GRPCNode("g").GetClientFeatures()...)
	for _, tc := range []struct {
		name   string
		a, b   *corepb.Node
		groups int
	}{
		{"gRPC and Envoy", envoy(), grpc, 2},
		{"gRPC and gRPC", grpc, proto.CloneOf(grpc), 1},
		{"Envoy with the features of gRPC", envoy(noOver, "xds.config.resource-in-sotw"), grpc, 2},
		{"both orders", envoy(anyStruct, "x", noOver), envoy(noOver, anyStruct), 1},
		{"twice is once", envoy(noOver, noOver), envoy(noOver), 1},
		{"one and the other", envoy(anyStruct), envoy(noOver), 2},
		{"one and both", envoy(anyStruct), envoy(anyStruct, noOver), 2},
		{"one and none", envoy(anyStruct), envoy(), 2},
		{"features that only Tender looks at", envoy("xds.config.resource-in-sotw"),
			envoy("envoy.lrs.supports_send_all_clusters"), 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
				o.Put(relaytest.Cluster("a"))
				r := start(t, o)
				for _, n := range []*corepb.Node{tc.a, tc.b} {
					c := r.Client(relaytest.ClientOptions{Variant: v, Node: n})
					c.Subscribe(typeCDS, "*")
					c.Ack(c.Recv(t.Context()))
				}
				if n := len(o.State().Streams); n != tc.groups {
					t.Errorf("%d groups, want %d", n, tc.groups)
				}
			})
		})
	}
}

// The origin receives the relay's own client features and those of the group, not the features that all clients
// have in common.
func TestB31_FeaturesSentToTheOrigin(t *testing.T) {
	t.Parallel()
	own := []string{"xds.config.supports-resource-ttl", "xds.config.resource-in-sotw"}
	clients := [][]string{
		nil,
		{"envoy.lb.does_not_support_overprovisioning", "a.b"},
		{"a.b", "xds.config.resource-in-sotw", "envoy.lrs.supports_send_all_clusters"},
		{"envoy.lb.does_not_support_overprovisioning", "envoy.config.require-any-fields-contain-struct"},
	}
	want := [][]string{own, append(slices.Clone(own), clients[1][0]),
		append(slices.Clone(own), clients[3][1], clients[3][0])}
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		r := start(t, o, "TENDER_NODE_GROUP_BY=none")
		for _, features := range clients {
			n := relaytest.EnvoyNode("n")
			n.ClientFeatures = features
			c := r.Client(relaytest.ClientOptions{Node: n})
			c.Subscribe(typeCDS, "*")
			c.Recv(t.Context())
		}
		var got [][]string
		for _, s := range o.State().Streams {
			got = append(got, s.Node.GetClientFeatures())
		}
		if !slices.EqualFunc(got, want, func(a, b []string) bool { return slices.Equal(a, b) }) {
			t.Errorf("the origin got the features %q, want %q", got, want)
		}
	})
}

// B.4: the status reports node groups with equal configuration. Groups without configuration are not counted, and
// endpoints are not compared.
func TestB4_EqualGroupsAreShown(t *testing.T) {
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(relaytest.Cluster("a"), relaytest.Route("r", []string{"*"}, "a"), relaytest.Endpoints("a", "127.0.0.1:80"))
		r := start(t, o, operated, "TENDER_NODE_GROUP_BY=cluster")
		group := func(name string) *relaytest.Client {
			return r.Client(relaytest.ClientOptions{AutoAck: true, Node: groupedNode(func(n *corepb.Node) { n.Cluster = name })})
		}
		wants := func(when string, n int) {
			t.Helper()
			sleep(time.Minute)
			if got := statusOf(t, r).Origins[0].EqualGroups; got != n {
				t.Errorf("%s: %d equal groups, want %d", when, got, n)
			}
		}
		third := group("third")
		third.Subscribe(relaytest.EndpointType, "a")
		wants("nothing but endpoints", 0)
		group("first").Subscribe(typeCDS)
		wants("one", 0)
		group("second").Subscribe(typeCDS)
		wants("two", 2)
		third.Subscribe(typeCDS)
		wants("three", 3)
		third.Subscribe(relaytest.RouteType, "r")
		wants("one has more", 2)
	})
}
