package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

// TestGetNode verifies the Node that tender get sends: of a file with a Node or with a bootstrap, and of flags, which
// replace what the file has.
func TestGetNode(t *testing.T) {
	nodes := make(chan *corepb.Node, 1)
	address := serveXDS(t, script{
		delta: func(stream discoverypb.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
			r, err := stream.Recv()
			nodes <- r.GetNode()
			return err
		},
		sotw: func(stream discoverypb.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
			r, err := stream.Recv()
			nodes <- r.GetNode()
			return err
		},
	})
	file := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	bootstrap := file("bootstrap.yaml", "admin: {}\nnode:\n  id: edge-1\n  cluster: edge\n  locality: {zone: z}\n  metadata:\n    NAMESPACE: shop\n    LABELS: {app: web}\nstatic_resources: {}\n")
	node := file("node.json", `{"id": "g", "user_agent_name": "gRPC Go", "client_features": ["a"]}`)
	for _, tt := range []struct{ args, want string }{
		{"--node-file " + bootstrap, `{"id": "edge-1", "cluster": "edge", "user_agent_name": "envoy", "locality": {"zone": "z"}, "metadata": {"NAMESPACE": "shop", "LABELS": {"app": "web"}}}`},
		{
			"--node-file " + bootstrap + " --node-id me --cluster other --locality eu/eu-1 --metadata NAMESPACE=pay=1 --metadata LABELS.app=cart --metadata LABELS.v=2 --user-agent x",
			`{"id": "me", "cluster": "other", "user_agent_name": "x", "locality": {"region": "eu", "zone": "eu-1"}, "metadata": {"NAMESPACE": "pay=1", "LABELS": {"app": "cart", "v": "2"}}}`,
		},
		{"--node-file " + node, `{"id": "g", "user_agent_name": "gRPC Go", "client_features": ["a"]}`},
		{"--sotw --node-file " + node, `{"id": "g", "user_agent_name": "gRPC Go", "client_features": ["a", "xds.config.resource-in-sotw"]}`},
		{"--node-id a --locality //rack --metadata a=", `{"id": "a", "user_agent_name": "tender-get", "user_agent_version": "` + version + `", "locality": {"sub_zone": "rack"}, "metadata": {"a": ""}}`},
	} {
		execute(append([]string{"get", "-a", address, "cds"}, strings.Fields(tt.args)...)...)
		got, want := <-nodes, new(corepb.Node)
		if err := protojson.Unmarshal([]byte(tt.want), want); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(got, want) {
			t.Errorf("tender get %s sends %v, want %v", tt.args, got, want)
		}
	}
	two := file("two.yaml", "id: a\n---\nid: b\n")
	for args, want := range map[string]string{
		"--node-file " + two:            "the file has 2 Nodes, want one",
		"--node-file /nowhere/x":        "no such file",
		"--metadata NAMESPACE":          "--metadata=NAMESPACE: want key=text",
		"--metadata a..b=c":             "--metadata=a..b=c: want key=text",
		"--locality a/b/c/d":            "--locality=a/b/c/d: want region/zone/sub_zone",
		"--node-file " + node + " -o x": "--output=x: want one of",
	} {
		if code, _, stderr := execute(append([]string{"get", "-a", address, "cds"}, strings.Fields(args)...)...); code == exitOK || !strings.Contains(stderr, want) {
			t.Errorf("tender get %s: code %d, %s, want %q", args, code, stderr, want)
		}
	}
}

// TestGetWarnsOfGroups verifies that tender get warns before it opens a node group, and is served as a client of the
// group of --node-file.
func TestGetWarnsOfGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		o.Put(relaytest.Cluster("web"))
		r := startRemote(t, instance.Options{Origins: []*relaytest.Origin{o}, Env: []string{"TENDER_NODE_GROUP_BY=user_agent_name,metadata.NAMESPACE"}})
		shop := []string{"--user-agent", "envoy", "--metadata", "NAMESPACE=shop"}
		const warning = "has no node group "
		for _, tt := range []struct {
			args []string
			want string
		}{
			{nil, warning + "user_agent_name=tender-get,NAMESPACE=: it opens"},
			{shop, warning + "user_agent_name=envoy,NAMESPACE=shop: it opens"},
			{shop, ""}, // the group is open now
			{[]string{"--group", "user_agent_name=envoy,NAMESPACE=shop"}, ""},
			{[]string{"--user-agent", "x"}, "--group selects another one: user_agent_name=envoy,NAMESPACE=shop; user_agent_name=tender-get,NAMESPACE="},
		} {
			code, stdout, stderr := execute(append(r.get, tt.args...)...)
			if code != exitOK || stdout != "web\n" || !strings.Contains(stderr, tt.want) || tt.want == "" && stderr != "" {
				t.Errorf("tender get %v: code %d, %s, %s, want web and the warning %q", tt.args, code, stdout, stderr, tt.want)
			}
		}
		for args, want := range map[string]string{
			"--group NAMESPACE=pay":                        "--group=NAMESPACE=pay: the relay at ",
			"--group NAMESPACE=pay --node-file node.yaml":  "--group and --node-file exclude one another",
			"--group NAMESPACE=pay -a tender.example:1800": "only for a relay of this host",
		} {
			if code, _, stderr := execute(append(r.get, strings.Fields(args)...)...); code == exitOK || !strings.Contains(stderr, want) {
				t.Errorf("tender get %s: code %d, %s, want %q", args, code, stderr, want)
			}
		}
	})
}
