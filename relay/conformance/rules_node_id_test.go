package conformance_test

import (
	"slices"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/relay/relaytest"
)

// With a template in TENDER_NODE_ID, each group has its own node ID. Envoy Gateway selects resources by cluster,
// and caches them by node ID.
func TestB4_AnIDForEachGroup(t *testing.T) {
	for _, tc := range []struct {
		id, by string
		change func(*corepb.Node) // changes a node in the cluster edge with the metadata of groupedNode
		want   []string           // IDs of that node, of the changed one, and of shared names
	}{
		{"tender/{cluster}", "cluster", func(n *corepb.Node) { n.Cluster = "far" },
			[]string{"tender/edge", "tender/far", "tender/own"}},
		{"{locality.zone}|{user_agent_version}|{user_agent_name}", "locality.zone,user_agent_name,user_agent_version",
			func(n *corepb.Node) {
				n.Locality = nil
				n.UserAgentVersionType = &corepb.Node_UserAgentVersion{UserAgentVersion: "2.3"}
			}, []string{"z1|1|envoy", "|v2|envoy", "|vtest|tender"}},
		{"{metadata.env}~{metadata.deep.tier}+{metadata.list}", "metadata.env,metadata.deep.tier,metadata.list",
			func(n *corepb.Node) {
				n.Metadata.Fields["env"] = structpb.NewStringValue("{cluster}") // braces in a client's value are not replaced
				delete(n.Metadata.Fields, "deep")
			}, []string{`prod~1+["a"]`, `{cluster}~+["a"]`, "~+"}},
		{"tender-{metadata.env}", "metadata.env",
			func(n *corepb.Node) { n.Metadata.Fields["env"] = structpb.NewNullValue() },
			[]string{"tender-prod", "tender-null", "tender-"}},
		{"tender/{cluster}", "cluster,id", func(n *corepb.Node) { n.Id = "id-2" }, []string{"id-1", "id-2", "tender/own"}},
	} {
		t.Run(tc.id+" by "+tc.by, func(t *testing.T) {
			originBubble(t, func(t *testing.T, o *relaytest.Origin) {
				o.Put(relaytest.Cluster("a"))
				r := start(t, o, "TENDER_NODE_ID="+tc.id, "TENDER_NODE_CLUSTER=own", "TENDER_NODE_GROUP_BY="+tc.by)
				for _, change := range []func(*corepb.Node){nil, tc.change} {
					c := r.Client(relaytest.ClientOptions{Node: groupedNode(change)})
					c.Subscribe(typeCDS, "*")
					recvAndAck(t, c, typeCDS, "a")
				}
				c := r.Client(relaytest.ClientOptions{Node: groupedNode(nil)})
				c.Subscribe(typeCDS, "xdstp://one/envoy.config.cluster.v3.Cluster/none")
				c.Recv(t.Context())
				var got []string
				for _, s := range o.State().Streams {
					got = append(got, s.Node.GetId())
				}
				if !slices.Equal(got, tc.want) {
					t.Errorf("the origin got the IDs %q, want %q", got, tc.want)
				}
			})
		})
	}
}
