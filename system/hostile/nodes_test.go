package hostile_test

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"runtime"
	"runtime/metrics"
	"strings"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
)

// rulesForAll returns variables for authorization rules that allow every Node. With rules, streams keep the parts of
// the Node that rules may refer to.
func rulesForAll(t *testing.T) []string {
	t.Helper()
	ca, dir := certs.NewCA(t), t.TempDir()
	cert, key := ca.Sign(certs.Leaf{Names: []string{"127.0.0.2"}}).Write(t, dir)
	return []string{
		"TENDER_FIRST_REQUEST_TIMEOUT=5m", // hundreds of large requests take long on a busy machine
		"TENDER_TLS_LISTEN=127.0.0.2:0", "TENDER_TLS_CERT=" + cert, "TENDER_TLS_KEY=" + key, "TENDER_TLS_CLIENT_CA=" + certs.WriteFile(t, dir, "ca.pem", ca.PEM),
		"TENDER_AUTHZ=" + certs.WriteFile(t, dir, "authz.yaml", []byte("version: 1\nrules: [{name: all, identities: [anonymous]}]\n")),
	}
}

// largestNode returns a Node just below the limits: with 9,000 values of metadata and 80 KB of extensions.
func largestNode(id string) *corepb.Node {
	n := &corepb.Node{Id: id, Metadata: &structpb.Struct{Fields: make(map[string]*structpb.Value)}}
	for i := range 9000 {
		n.Metadata.Fields[fmt.Sprint(i)] = structpb.NewStringValue("0123456789")
	}
	for range 1000 {
		n.Extensions = append(n.Extensions, &corepb.Extension{Name: strings.Repeat("x", 76)})
	}
	return n
}

// encodedAs returns a Node whose encoding is the concatenation of the encoded parts, which a receiver merges. Clients
// need not encode the parts for each request.
func encodedAs(t *testing.T, parts ...*corepb.Node) *corepb.Node {
	t.Helper()
	var all []byte
	for _, n := range parts {
		encoded, err := proto.Marshal(n)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, encoded...)
	}
	raw := new(corepb.Node)
	raw.ProtoReflect().SetUnknown(all)
	return raw
}

// metadata returns a Node with one metadata field whose value has a size in bytes.
func metadata(key string, size int) *corepb.Node {
	return &corepb.Node{Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{key: structpb.NewStringValue(strings.Repeat("x", size))}}}
}

// join opens a stream with a Node. It returns nil if the first answer is a response, else the error. The stream ends
// with the test.
func (v *victim) join(conn *grpc.ClientConn, n *corepb.Node) error {
	stream, err := discoverypb.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(v.t.Context())
	if err != nil {
		return err
	}
	if err := stream.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: relaytest.ClusterType, Node: n, ResourceNamesSubscribe: []string{"a"}}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	_, err = stream.Recv()
	return err
}

// joinAll opens streams with the Nodes concurrently. It returns how many were served and how many exceeded
// the limit of kept Nodes.
func (v *victim) joinAll(conn *grpc.ClientConn, nodes iter.Seq[*corepb.Node]) (served, refused int) {
	v.t.Helper()
	answers := make(chan error)
	streams := 0
	for n := range nodes {
		streams++
		go func() { answers <- v.join(conn, n) }() // awaited below
	}
	for range streams {
		switch err := <-answers; {
		case err == nil:
			served++
		case status.Code(err) == codes.ResourceExhausted && strings.HasSuffix(status.Convert(err).Message(), "(node_bytes)"):
			refused++
		default:
			v.t.Errorf("a stream ended with %v, want a response or the limit of Nodes", err)
		}
	}
	return served, refused
}

// heap returns the live heap in bytes, as of a garbage collection. Later allocations do not count.
func heap() int64 {
	runtime.GC()
	runtime.GC() // frees the content of pools
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	return int64(live[0].Value.Uint64())
}

// repeated yields the nodes in turn, times in all.
func repeated(times int, nodes ...*corepb.Node) iter.Seq[*corepb.Node] {
	return func(yield func(*corepb.Node) bool) {
		for i := range times {
			if !yield(nodes[i%len(nodes)]) {
				return
			}
		}
	}
}

// TestB35_ManyStreamsWithALargeNode: with rules, the streams of one connection share one copy of a large Node,
// whatever the order of its fields. Extensions are not kept. (B.35)
func TestB35_ManyStreamsWithALargeNode(t *testing.T) {
	const connections, streams = 2, 30
	v := serve(t, rulesForAll(t)...)
	var conns []*grpc.ClientConn
	for range connections {
		conns = append(conns, v.Conn(from("127.0.0.3")))
	}
	id, a, b, extensions := &corepb.Node{Id: "n"}, metadata("a", 120<<10), metadata("b", 120<<10), &corepb.Node{Extensions: largestNode("").GetExtensions()}
	nodes := []*corepb.Node{encodedAs(t, id, extensions, a, b), encodedAs(t, id, b, a, extensions)}
	before := heap()
	v.during(func() {
		for _, conn := range conns {
			served, refused := v.joinAll(conn, repeated(streams, nodes...))
			if refused > 0 {
				t.Errorf("%d streams were served, %d refused, want all served", served, refused)
			}
		}
	})
	kept, most := heap()-before, int64(connections*(256<<10)+connections*streams*(100<<10))
	t.Logf("%d streams with a Node of %d bytes take %d bytes, clients included", connections*streams, proto.Size(nodes[0]), kept)
	if kept > most {
		t.Errorf("%d streams take %d bytes, want at most %d", connections*streams, kept, most)
	}
}

// TestB35_ManyLargeNodes: with rules, the total size of the kept Nodes of one client address is limited, and streams
// above the limit are refused. (B.35)
func TestB35_ManyLargeNodes(t *testing.T) {
	const connections, streams, bound, each = 2, 160, 64 << 20, 240 << 10
	v := serve(t, rulesForAll(t)...)
	var conns []*grpc.ClientConn
	for range connections {
		conns = append(conns, v.Conn(from("127.0.0.3")))
	}
	before := heap()
	v.during(func() {
		served, refused := 0, 0
		for i, conn := range conns {
			s, r := v.joinAll(conn, func(yield func(*corepb.Node) bool) {
				padding := strings.Repeat("x", each)
				for j := range streams {
					if !yield(&corepb.Node{Id: fmt.Sprint(i, j), Cluster: padding}) {
						return
					}
				}
			})
			served, refused = served+s, refused+r
		}
		if most := bound / (each - 16<<10); served > most || refused == 0 {
			t.Errorf("%d streams were served, %d refused, want at most %d served", served, refused, most)
		}
		if n := v.Stats().Refused[guard.LimitNodeBytes]; n != int64(refused) {
			t.Errorf("%d refusals are counted, want %d", n, refused)
		}
	})
	kept, most := heap()-before, int64(bound+connections*streams*(80<<10))
	t.Logf("the streams take %d bytes, clients included", kept)
	if kept > most {
		t.Errorf("the streams take %d bytes, want at most %d", kept, most)
	}
}

// TestB35_PollsWithALargeNode: the relay refuses polls with a Node of more than 256 KiB, and counts them. (B.35)
func TestB35_PollsWithALargeNode(t *testing.T) {
	v := serve(t)
	v.poll(strings.NewReader(`{"node":{"id":"n","metadata":{"k":"`+strings.Repeat("x", 257<<10)+`"}}}`), http.StatusBadRequest)
	if n := v.Stats().Refused[guard.LimitNodeBytes]; n != 1 {
		t.Errorf("%d refused Nodes of polls are counted, want 1", n)
	}
}
