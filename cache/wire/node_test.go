package wire_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	loadpb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/wire"
)

// TestB35_LargeNodesAreNotKept: a Node that exceeds the limit, in any number of fields, is not kept, but its size is
// reported.
func TestB35_LargeNodesAreNotKept(t *testing.T) {
	half := marshal(t, &corepb.Node{Id: strings.Repeat("x", 600)})
	for _, tt := range []struct {
		name  string
		parts int
		kept  int
	}{
		{"half", 1, len(half)},
		{"two halves", 2, 0},
		{"three halves", 3, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := wire.Request{Limits: wire.Limits{MaxNodeBytes: 1000}}
			if err := r.Decode(bytes.Repeat([]byte(bytesField(2, half)), tt.parts)); err != nil {
				t.Fatal(err)
			}
			if r.Node == nil || len(r.Node) != tt.kept || r.NodeBytes != tt.parts*len(half) {
				t.Errorf("kept %d of %d bytes, want %d of %d", len(r.Node), r.NodeBytes, tt.kept, tt.parts*len(half))
			}
		})
	}
}

// TestB35_ExtensionsAreSkipped at any position in a Node.
func TestB35_ExtensionsAreSkipped(t *testing.T) {
	many := &corepb.Node{}
	for range 1000 {
		many.Extensions = append(many.Extensions, &corepb.Extension{Name: strings.Repeat("x", 80)})
	}
	first, extensions, last := marshal(t, &corepb.Node{Id: "a"}), marshal(t, many), marshal(t, &corepb.Node{Cluster: "b"})
	rest := append(bytes.Clone(first), last...)
	all := bytes.Join([][]byte{extensions, first, extensions, last, extensions}, nil)
	r := wire.Request{}
	if err := r.Decode(marshal(t, &discoverypb.DiscoveryRequest{Node: nodeOf(t, all)})); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(r.Node, rest) || r.NodeBytes != len(all) {
		t.Errorf("kept %d of %d bytes, want %d of %d", len(r.Node), r.NodeBytes, len(rest), len(all))
	}
}

// nodeOf decodes a Node.
func nodeOf(t *testing.T, encoded []byte) *corepb.Node {
	t.Helper()
	n := new(corepb.Node)
	n.ProtoReflect().SetUnknown(encoded)
	return n
}

// TestTakeNode: TakeNode separates a message from its Node at any position.
func TestTakeNode(t *testing.T) {
	report := &loadpb.LoadStatsRequest{ClusterStats: []*endpointpb.ClusterStats{{ClusterName: "a"}, {ClusterName: "b"}}}
	stats, node := marshal(t, report), bytesField(1, marshal(t, richNode()))
	without := richNode()
	without.Extensions = nil
	for _, tt := range []struct {
		name  string
		msg   []byte
		nodes int
	}{
		{"none", stats, 0},
		{"first", join(node, stats), 1},
		{"last", join(stats, node), 1},
		{"several fields", join(node, stats, node), 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, size, rest, err := wire.TakeNode(tt.msg, 1)
			if err != nil || (got != nil) != (tt.nodes > 0) || size != tt.nodes*proto.Size(richNode()) {
				t.Fatalf("got a Node of %d bytes: %q, %v", size, got, err)
			}
			if !bytes.Equal(rest, stats) {
				t.Errorf("got rest %q, want %q", rest, stats)
			}
			if tt.nodes == 1 {
				n := new(corepb.Node)
				receive(t, got, n)
				wantMessage(t, "node", n, without)
			}
		})
	}
	for _, bad := range [][]byte{{0xff}, bytesField(1, "\xff")} {
		if _, _, _, err := wire.TakeNode(bad, 1); !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("TakeNode(%q): %v, want ErrMalformed", bad, err)
		}
	}
}
