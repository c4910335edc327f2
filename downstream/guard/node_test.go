package guard

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	xdspb "github.com/cncf/xds/go/xds/core/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// rawNode returns an encoded Node.
func rawNode(tb testing.TB, n *node) RawNode {
	tb.Helper()
	encoded := check.Must(proto.Marshal(n))
	return RawNode{Encoded: encoded, Size: len(encoded)}
}

// nodeOfBytes returns a Node with an encoded size.
func nodeOfBytes(tb testing.TB, size int) *node {
	tb.Helper()
	n := &node{Id: "n"}
	n.Cluster = strings.Repeat("x", size-proto.Size(n)-1-protowire.SizeVarint(uint64(size))) // tag, length
	if got := proto.Size(n); got != size {
		tb.Fatalf("size of the Node: %d bytes, want %d", got, size)
	}
	return n
}

// nodeOfValues returns a Node with a number of values: fields of structs, elements of lists of all kinds, and entries
// of maps.
func nodeOfValues(values int) *node {
	n := &node{
		Id: "n", Locality: &corepb.Locality{Region: "r", Zone: "z"}, ClientFeatures: []string{"a", "b"},
		DynamicParameters: map[string]*xdspb.ContextParams{"t": {Params: map[string]string{"k": "v"}}},
		Metadata:          &structpb.Struct{Fields: map[string]*structpb.Value{"inner": structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{}})}},
	}
	inner := n.GetMetadata().GetFields()["inner"].GetStructValue().GetFields()
	list := &structpb.ListValue{}
	inner["list"] = structpb.NewListValue(list)
	for have := 2 + 2 + 1 + 1; have < values; have++ { // the values above count first
		if have%2 == 0 {
			inner[fmt.Sprint(have)] = structpb.NewNumberValue(1)
		} else {
			list.Values = append(list.Values, structpb.NewNullValue())
		}
	}
	return n
}

// withNode returns the kept Node of a client with an address and a connection.
func (g *Guard) withNode(t *testing.T, host string, of *nodeCache, n *node) (*KeptNode, error) {
	t.Helper()
	address := &net.TCPAddr{IP: net.ParseIP(host), Port: 1}
	ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: address, AuthInfo: connInfo{nodes: of}})
	return g.WithNode(ctx, PeerOf(ctx), rawNode(t, n), func(*node) error { return nil })
}

// TestB35_NodeLimits: without its extensions, a Node has at most 256 KiB, 10,000 values and 2,000 levels of messages.
// With them, it has at most 1 MiB.
func TestB35_NodeLimits(t *testing.T) {
	deep := func(levels int) *node { // of lists, which are two messages each
		v := structpb.NewNullValue()
		for range levels {
			v = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{v}})
		}
		return &node{Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"k": v}}}
	}
	for _, tt := range []struct {
		name       string
		node       *node
		extensions int    // size of the extensions in bytes
		want       string // part of the error; empty if the Node is accepted
	}{
		{"256 KiB and a byte", nodeOfBytes(t, maxNodeContent+1), 0, "node of 262145 bytes without its extensions, at most 262144 are allowed (node_bytes)"},
		{"10,000 values", nodeOfValues(MaxNodeValues), 0, ""},
		{"10,001 values", nodeOfValues(MaxNodeValues + 1), 0, "node of more than 10000 values, counting list elements and fields of structs at any depth: no more are allowed (node_bytes)"},
		{"256 KiB and 80 KB of extensions", nodeOfBytes(t, maxNodeContent), 80_000, ""},
		{"1 MiB of extensions", &node{Id: "n"}, 1 << 20, "at most 1048576 are allowed (node_bytes)"},
		{"900 levels of lists", deep(900), 0, ""},
		{"1000 levels of lists", deep(1000), 0, "messages are nested too deeply"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			raw := rawNode(t, tt.node)
			raw.Size += tt.extensions
			kept, err := newGuard(Limits{}).WithNode(t.Context(), Peer{}, raw, func(n *node) error {
				if tt.node.DynamicParameters = nil; !proto.Equal(n, tt.node) {
					t.Errorf("decoded Node %v, want %v", n, tt.node)
				}
				return nil
			})
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("error %v, want none", err)
			case tt.want != "" && (status.Code(err) != codes.InvalidArgument || !strings.Contains(status.Convert(err).Message(), tt.want)):
				t.Errorf("error %v, want INVALID_ARGUMENT with %q", err, tt.want)
			}
			kept.Release()
		})
	}
}

// TestB35_TimeShareOfAPeer: after a turn, its slot stays taken for a multiple of its duration, up to a maximum. So the
// work of a peer takes at most a share of the time, after a burst for new clients.
func TestB35_TimeShareOfAPeer(t *testing.T) {
	for _, tt := range []struct {
		what         string
		work         work
		bytes        int
		took, period time.Duration // duration of each turn, and interval between two turns
		ahead        int           // turns of the burst
	}{
		{"Nodes of 4 KiB", decodeFirst, 4 << 10, 10 * time.Millisecond, 10 * time.Millisecond, 0},
		{"larger Nodes, share 1/32", decodeFirst, 4<<10 + 1, 10 * time.Millisecond, 320 * time.Millisecond, 100},
		{"Nodes with long turns", decodeFirst, 256 << 10, time.Second, 1400 * time.Millisecond, 77},
		{"later Nodes of clients, share 1/32", decodeLater, 10, 10 * time.Millisecond, 320 * time.Millisecond, 0},
		{"other work on 16 KiB", otherWork, 16 << 10, 10 * time.Millisecond, 10 * time.Millisecond, 0},
		{"other work on more than 16 KiB, share 1/8", otherWork, 16<<10 + 1, 10 * time.Millisecond, 80 * time.Millisecond, 0},
		{"other work with long turns", otherWork, 4 << 20, time.Second, 1100 * time.Millisecond, 0},
	} {
		for _, atOnce := range []int{1, 2} {
			t.Run(fmt.Sprint(tt.what, " at once ", atOnce), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &newGuard(Limits{}).nodes
					s.maxTurns = atOnce
					ended := make(chan bool)
					turns := func(w work, n int) (took time.Duration) {
						began := time.Now()
						for range atOnce {
							go func() { // awaited below
								for range n {
									done := check.Must(s.turn(t.Context(), "peer", w, tt.bytes))
									time.Sleep(tt.took)
									done()
								}
								ended <- true
							}()
						}
						for range atOnce {
							<-ended
						}
						return time.Since(began)
					}
					check.Equal(t, "duration of the burst", turns(tt.work, tt.ahead), time.Duration(tt.ahead)*tt.took)
					for w := range works {
						if w != tt.work {
							check.Equal(t, "duration of another kind of work", turns(w, 1), tt.took)
						}
					}
					want := 49*tt.period + tt.took // without the rest after the last turn
					if tt.ahead > 0 {
						rested := timeShares[tt.work].credit + time.Duration(tt.ahead+2)*tt.took
						want -= rested - time.Duration(tt.ahead)*tt.period
					}
					check.Equal(t, "duration of 50 further turns", turns(tt.work, 50), want)
					time.Sleep(time.Minute)
					synctest.Wait()
					check.Equal(t, "peers a minute later", len(s.peers), 0)
				})
			})
		}
	}
}

// TestB35_ConcurrentNodeDecodingIsLimited: at most half of the cores decode large Nodes of one peer. Small Nodes, and
// those of other peers, do not wait for them.
func TestB35_ConcurrentNodeDecodingIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(Limits{})
		decoding, open := make(chan bool, 100), make(chan struct{})
		comes := func(host string, bytes int, later bool) {
			raw := rawNode(t, nodeOfBytes(t, bytes))
			raw.Size += 80_000 // extensions of a stock Envoy
			raw.Later = later
			go func() { // ends once open is closed
				kept, err := g.WithNode(context.Background(), Peer{Host: host}, raw, func(*node) error {
					decoding <- true
					<-open
					return nil
				})
				if err != nil {
					t.Error(err)
				}
				kept.Release()
			}()
		}
		expect := func(when string, want int) {
			t.Helper()
			synctest.Wait()
			if n := len(decoding); n != want {
				t.Errorf("%s: decoding of %d Nodes has started, want %d", when, n, want)
			}
		}
		atOnce := max(1, runtime.GOMAXPROCS(0)/2)
		for range atOnce + 5 {
			comes("192.0.2.1", smallNode+100, false)
		}
		expect("large Nodes of one peer", atOnce)
		comes("192.0.2.2", smallNode+100, false)
		expect("a large Node of another peer", atOnce+1)
		comes("192.0.2.1", smallNode-100, false)
		expect("a small Node", atOnce+2)
		for range atOnce + 5 {
			comes("192.0.2.1", 100, true)
		}
		expect("small later Nodes of clients", 2*atOnce+2)
		close(open)
		time.Sleep(time.Second)
		expect("after all Nodes were decoded", 2*atOnce+12)
		check.Equal(t, "peers after all Nodes were decoded", len(g.nodes.peers), 0)
	})
}

// chargedTo returns the bytes that a peer is charged for its Nodes.
func (g *Guard) chargedTo(host string) (bytes int64) {
	g.nodes.mu.Lock()
	defer g.nodes.mu.Unlock()
	if of := g.nodes.peers[host]; of != nil {
		bytes = of.held
	}
	return bytes
}

// TestB35_KeptNodesAreSharedAndBounded: if the relay keeps Nodes, the streams of a connection share equal ones, which
// are charged to their peer. A Node that exceeds the limit is refused until others are released.
func TestB35_KeptNodesAreSharedAndBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, free, bound = 240 << 10, 16 << 10, maxPeerBytes // bytes of each Node, that do not count, and of a peer
		g := newGuard(Limits{})
		g.cfg.KeepNodes = func() bool { return true }
		var all []*KeptNode
		keep := func(host string, of *nodeCache, n *node) error {
			kept, err := g.withNode(t, host, of, n)
			if err == nil {
				all = append(all, kept)
			}
			return err
		}
		one, two := new(nodeCache), new(nodeCache)
		for range 5 {
			for _, of := range []*nodeCache{one, two} {
				check.OK(t, keep("192.0.2.1", of, nodeOfBytes(t, 40<<10)))
			}
		}
		if len(one.kept) != 1 || len(two.kept) != 1 {
			t.Errorf("the connections keep %d and %d Nodes, want 1 and 1", len(one.kept), len(two.kept))
		}
		shared := int64(2 * (40<<10 - free))
		check.Equal(t, "bytes charged for a Node of two connections", g.chargedTo("192.0.2.1"), shared)
		for i := range 4 { // of five streams of the first connection
			all[i].Release()
			all = slices.Delete(all, i, i+1)
		}
		check.Equal(t, "bytes charged after most streams of a connection have ended", g.chargedTo("192.0.2.1"), shared)
		most := (bound - shared) / (size - free) // further Nodes
		for i := range 300 {
			n := nodeOfBytes(t, size)
			n.Cluster = fmt.Sprint(i) + n.GetCluster()[len(fmt.Sprint(i)):]
			err := keep("192.0.2.1", one, n)
			if limit, _ := LimitOf(err); int64(i) >= most && (limit != LimitNodeBytes || status.Code(err) != codes.ResourceExhausted) ||
				int64(i) < most && err != nil {
				t.Fatalf("Node %d: error %v, want RESOURCE_EXHAUSTED with LimitNodeBytes from Node %d on", i, err, most)
			}
		}
		check.Equal(t, "bytes charged at the limit", g.chargedTo("192.0.2.1"), shared+most*(size-free))
		if err := keep("192.0.2.2", new(nodeCache), nodeOfBytes(t, 40<<10)); err != nil {
			t.Errorf("Node of another peer: error %v, want none", err)
		}
		for _, kept := range all {
			kept.Release()
		}
		if len(one.kept)+len(two.kept) != 0 || g.chargedTo("192.0.2.1")+g.chargedTo("192.0.2.2") != 0 {
			t.Errorf("after all were released: %d and %d Nodes kept, %d and %d bytes charged, want none",
				len(one.kept), len(two.kept), g.chargedTo("192.0.2.1"), g.chargedTo("192.0.2.2"))
		}
	})
}

// TestB35_UnneededNodesAreNotKept: if the relay does not keep Nodes, they are not charged, and only the part for
// operators is kept.
func TestB35_UnneededNodesAreNotKept(t *testing.T) {
	g := newGuard(Limits{})
	for _, size := range []int{1 << 10, 240 << 10} {
		kept := check.Must(g.withNode(t, "192.0.2.1", nil, nodeOfBytes(t, size)))
		if charged := g.chargedTo("192.0.2.1"); kept.encoded != "" || len(kept.Shown) > maxShown || charged != 0 {
			t.Errorf("%d bytes kept, %d shown, %d charged; want 0, at most %d, and 0", len(kept.encoded), len(kept.Shown), charged, maxShown)
		}
		kept.Release()
	}
}

// FuzzNode: an accepted Node equals the result of the generated decoder, except for extensions and unknown fields. A
// Node that the generated decoder accepts is refused only because of a limit.
func FuzzNode(f *testing.F) {
	extended := nodeOfValues(10)
	extended.Extensions = []*corepb.Extension{{Name: "envoy.filters.http.router", TypeUrls: []string{"a"}}, {}}
	for _, n := range []*node{{}, {Id: "n"}, nodeOfValues(20), extended, nodeOfBytes(f, 300)} {
		encoded := rawNode(f, n).Encoded
		f.Add(encoded)
		f.Add(append(encoded, encoded...))
	}
	f.Add([]byte("\x4a\x01\xff\x48\x01"))
	f.Fuzz(func(t *testing.T, encoded []byte) {
		want := new(node)
		refused := proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(encoded, want)
		want.Extensions = nil
		stripped, size, _, err := wire.TakeNode(protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), encoded), 1)
		if err != nil {
			if refused == nil {
				t.Fatalf("TakeNode(%q): %v, but proto.Unmarshal accepts it", encoded, err)
			}
			return
		}
		got, err := decode(RawNode{Encoded: stripped, Size: size}, true)
		_, limited := LimitOf(err)
		switch {
		case err != nil && refused == nil && !limited && !strings.Contains(err.Error(), "nested"):
			t.Fatalf("decode(%q): %v, but proto.Unmarshal accepts it", encoded, err)
		case err == nil && refused == nil && !proto.Equal(got, want):
			t.Fatalf("decode(%q) = %v, want %v", encoded, got, want)
		}
		if err == nil && len(got.GetExtensions()) > 0 {
			t.Fatalf("decode(%q) = %v, want no extensions", encoded, got)
		}
	})
}

// BenchmarkLargestNode measures the cost of identifying a client with a Node of the maximum size.
func BenchmarkLargestNode(b *testing.B) {
	n := nodeOfValues(MaxNodeValues - 10)
	n.Cluster = strings.Repeat("x", maxNodeContent-proto.Size(n)-10)
	raw := rawNode(b, n)
	for _, keep := range []bool{false, true} {
		b.Run(fmt.Sprintf("kept=%v", keep), func(b *testing.B) {
			g := newGuard(Limits{})
			g.cfg.KeepNodes = func() bool { return keep }
			b.ReportAllocs()
			for b.Loop() {
				kept := check.Must(g.WithNode(b.Context(), Peer{}, raw, func(*node) error { return nil }))
				kept.Release()
			}
		})
	}
}
