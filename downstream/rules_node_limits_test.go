package downstream

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	xdspb "github.com/cncf/xds/go/xds/core/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// marshalNode returns an encoded Node.
func marshalNode(tb testing.TB, n *node) []byte {
	tb.Helper()
	encoded, err := proto.Marshal(n)
	if err != nil {
		tb.Fatal(err)
	}
	return encoded
}

// nodeOfBytes returns a Node that has so many when it is encoded.
func nodeOfBytes(tb testing.TB, size int) *node {
	tb.Helper()
	n := &node{Id: "n"}
	n.Cluster = strings.Repeat("x", size-proto.Size(n)-1-protowire.SizeVarint(uint64(size))) // tag, length
	if got := proto.Size(n); got != size {
		tb.Fatalf("the Node has %d bytes, want %d", got, size)
	}
	return n
}

// nodeOfValues returns a Node with so many values: fields of structs, elements of lists of all kinds, and entries of maps.
func nodeOfValues(values int) *node {
	n := &node{
		Id: "n", Locality: &corepb.Locality{Region: "r", Zone: "z"}, ClientFeatures: []string{"a", "b"},
		DynamicParameters: map[string]*xdspb.ContextParams{"t": {Params: map[string]string{"k": "v"}}},
		Metadata:          &structpb.Struct{Fields: map[string]*structpb.Value{"inner": structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{}})}},
	}
	inner := n.GetMetadata().GetFields()["inner"].GetStructValue().GetFields()
	list := &structpb.ListValue{}
	inner["list"] = structpb.NewListValue(list)
	for have := 2 + 2 + 1 + 1; have < values; have++ {
		if have%2 == 0 {
			inner[fmt.Sprint(have)] = structpb.NewNumberValue(1)
		} else {
			list.Values = append(list.Values, structpb.NewNullValue())
		}
	}
	return n
}

// withExtensions adds extensions to a Node, in so many bytes at least.
func withExtensions(n *node, size int) *node {
	n = proto.CloneOf(n)
	for before := proto.Size(n); proto.Size(n) < before+size; {
		for range 100 {
			n.Extensions = append(n.Extensions, &corepb.Extension{Name: "envoy.filters.http.router", Category: "envoy.filters.http", TypeUrls: []string{"a", "b"}})
		}
	}
	return n
}

// B.35: a Node has 256 KiB, 10,000 values and 2,000 levels beside its extensions at most, and 1 MiB with them. Streams, polls and load
// reports hold it to the same.
func TestB35_WhatANodeMayHave(t *testing.T) {
	deep := func(levels int) *node { // of lists, which are two messages each
		v := structpb.NewNullValue()
		for range levels {
			v = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{v}})
		}
		return &node{Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"k": v}}}
	}
	for _, tt := range []struct {
		name string
		node *node
		want string // in the error; empty if it is accepted
	}{
		{"of an Envoy", &node{Id: "n", UserAgentName: "envoy"}, ""},
		{"256 KiB", nodeOfBytes(t, maxNodeContent), ""},
		{"a byte more", nodeOfBytes(t, maxNodeContent+1), "node of 262145 bytes without its extensions, at most 262144 are allowed (TENDER_MAX_NODE_BYTES)"},
		{"10,000 values", nodeOfValues(maxNodeValues), ""},
		{"a value more", nodeOfValues(maxNodeValues + 1), "node of more than 10000 values, counting list elements and fields of structs at any depth: no more are allowed (TENDER_MAX_NODE_BYTES)"},
		{"80 KB of extensions", withExtensions(&node{Id: "n"}, 80_000), ""},
		{"extensions, and 256 KiB", withExtensions(nodeOfBytes(t, maxNodeContent), 80_000), ""},
		{"1 MiB of extensions", withExtensions(&node{Id: "n"}, 1<<20), "at most 1048576 are allowed (TENDER_MAX_NODE_BYTES)"},
		{"900 levels of lists", deep(900), ""},
		{"1000 levels of lists", deep(1000), "more than 2000 messages are in one another"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			encoded := marshalNode(t, tt.node)
			check := func(door string, err error) {
				t.Helper()
				switch {
				case tt.want == "" && err != nil:
					t.Errorf("%s refuses it: %v", door, err)
				case tt.want != "" && (status.Code(err) != codes.InvalidArgument || !strings.Contains(status.Convert(err).Message(), tt.want)):
					t.Errorf("%s answers %v, want INVALID_ARGUMENT and %q", door, err, tt.want)
				}
			}
			check("a stream", introduceEncoded(t, encoded))
			check("a load report", reportEncoded(t, encoded))
			body, err := protojson.Marshal(tt.node)
			if err != nil {
				t.Fatal(err)
			}
			if size := len(body); size <= 1<<20 || tt.want != "" { // in JSON, a Node may be larger
				check("a poll", pollOf(t, body))
			}
		})
	}
}

// B.35: the limits are four times what Envoys were recorded to send, at least.
func TestB35_ARecordedNodeIsFarBelowTheLimits(t *testing.T) {
	recorded := stockNode(t)
	r := &wire.Request{Delta: true}
	if err := r.Decode(firstRequest(recorded)); err != nil {
		t.Fatal(err)
	}
	left := maxNodeValues
	if err := countValues(r.Node, nodeDescriptor, maxNodeDepth, &left); err != nil {
		t.Fatal(err)
	}
	if r.NodeBytes != 61_090 || len(r.Node) != 174 || maxNodeValues-left != 4 {
		t.Errorf("the Node has %d bytes, %d without its extensions, and %d values, want 61090, 174 and 4", r.NodeBytes, len(r.Node), maxNodeValues-left)
	}
	if 4*r.NodeBytes > 1<<20 || 4*len(r.Node) > maxNodeContent || 4*(maxNodeValues-left) > maxNodeValues {
		t.Error("the limits are less than four times that")
	}
}

// B.35: who has had a large Node decoded leaves the place to others for seven times as long, but not for long.
func TestB35_LargeNodesTakeAnEighthOfTheTime(t *testing.T) {
	for _, tt := range []struct{ took, rest time.Duration }{
		{10 * time.Millisecond, 70 * time.Millisecond},
		{time.Minute, maxNodeRest},
	} {
		t.Run(tt.took.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := nodes{of: make(map[string]*peerNodes)}
				decode := func() (done func()) {
					done, err := s.decode(t.Context(), "peer", largeNode+1)
					if err != nil {
						t.Fatal(err)
					}
					return done
				}
				var all []func()
				for range max(1, runtime.GOMAXPROCS(0)/2) {
					all = append(all, decode())
				}
				time.Sleep(tt.took)
				for _, done := range all {
					done()
				}
				began := time.Now()
				decode()()
				if waited := time.Since(began); waited != tt.rest {
					t.Errorf("after Nodes that took %v the next waited %v, want %v", tt.took, waited, tt.rest)
				}
				synctest.Wait()
				if n := len(s.of); n != 0 {
					t.Errorf("%d peers are remembered, want none", n)
				}
			})
		})
	}
}

// introduceEncoded returns what a stream is told of a Node.
func introduceEncoded(t *testing.T, encoded []byte) error {
	t.Helper()
	view, _ := cache.New(cache.Config{})
	s := newTestStream(t, view, Config{})
	s.met.made = false
	r := &wire.Request{Delta: true, Limits: wire.Limits{MaxNodeBytes: s.cfg.MaxNodeBytes}}
	if err := r.Decode(firstRequest(encoded)); err != nil {
		t.Fatal(err)
	}
	who := s.introduce(r)
	if who.err == nil {
		who.drop()
	}
	return who.err
}

// reportEncoded returns what a stream of load reports is told of a Node.
func reportEncoded(t *testing.T, encoded []byte) error {
	t.Helper()
	view, _ := cache.New(cache.Config{})
	server, err := New(Config{Views: oneView{view}, SumLoads: true})
	if err != nil {
		t.Fatal(err)
	}
	s := &loadStream{server: server, cfg: &server.cfg}
	_, raw, err := s.decode(&loadMessage{bytes: protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), encoded)})
	if err != nil {
		t.Fatal(err)
	}
	who, err := s.identify(t.Context(), raw)
	if err == nil {
		who.drop()
	}
	return err
}

// pollOf returns what a poll is told of a Node in JSON.
func pollOf(t *testing.T, inJSON []byte) error {
	t.Helper()
	s, _, _ := restServer(t)
	reply := restPoll(t.Context(), s, "1", `{"node":`+string(inJSON)+`,"resource_names":["a"]}`)
	if reply.Code == http.StatusBadRequest {
		return status.Error(codes.InvalidArgument, reply.Body.String())
	}
	return nil // it was read
}

// A peerClient is an eager one that comes from an address, of a connection.
func peerClient(ctx context.Context, host string, nodes *nodeCache, encoded []byte) *eagerClient {
	ctx = peer.NewContext(ctx, &peer.Peer{Addr: &net.TCPAddr{IP: net.ParseIP(host), Port: 1}, AuthInfo: connInfo{nodes: nodes}})
	first := true
	return &eagerClient{ctx: ctx, sent: make(chan *wire.Response, 10), next: func() (wire.Request, error) {
		if !first {
			<-ctx.Done()
			return wire.Request{}, ctx.Err()
		}
		first = false
		return wire.Request{Delta: true, TypeURL: wire.ClusterType, Node: encoded, NodeBytes: len(encoded)}, nil
	}}
}

// A gate holds up whoever joins with the id "held" until it is opened.
type gate struct {
	oneView
	open    chan struct{}
	joins   atomic.Int64 // with that id, that have begun
	workers atomic.Int64 // that have come
}

func (g *gate) Join(n *node, peer string) (Group, error) {
	if strings.Contains(string(debug.Stack()), "(*queue).work") {
		g.workers.Add(1)
	}
	if n.GetId() == "held" {
		g.joins.Add(1)
		<-g.open
	}
	return g.oneView.Join(n, peer)
}

// B.35: however long it takes to find out who clients are, others are served: no worker does it, and nobody who looks at the streams
// waits for it.
func TestB35_WhoClientsAreIsFoundOutByNoWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		view, w := cache.New(cache.Config{})
		w.SetConnected(true)
		w.SetPhase(wire.ClusterType, cache.Confirmed)
		views := &gate{oneView: oneView{view}, open: make(chan struct{})}
		server, err := New(Config{Views: views, FirstRequestTimeout: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		open := sync.OnceFunc(func() { close(views.open) })
		defer open()
		held := 4 * runtime.GOMAXPROCS(0)
		for range held {
			c := peerClient(ctx, "192.0.2.1", nil, marshalNode(t, &node{Id: "held"}))
			go func() { _ = server.serve(c, "", true) }()
		}
		synctest.Wait()
		if n := views.joins.Load(); n != int64(held) {
			t.Fatalf("%d clients are being looked at, want %d", n, held)
		}
		neighbour := peerClient(ctx, "192.0.2.1", nil, marshalNode(t, &node{Id: "neighbour"}))
		go func() { _ = server.serve(neighbour, "", true) }()
		synctest.Wait()
		if len(neighbour.sent) != 1 {
			t.Errorf("the neighbour was sent %d responses, want 1", len(neighbour.sent))
		}
		if n := len(slices.Collect(server.Clients())); n != held+1 {
			t.Errorf("%d streams are seen, want %d", n, held+1)
		}
		open()
		synctest.Wait()
		if n := views.workers.Load(); n != 0 {
			t.Errorf("%d clients were looked at by workers, want none", n)
		}
		cancel()
		synctest.Wait()
	})
}

// B.35: large Nodes of one peer are decoded by half of the cores at most; small ones, and those of other peers, do not wait for them.
func TestB35_LargeNodesOfAPeerWaitForOneAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		view, _ := cache.New(cache.Config{})
		views := &gate{oneView: oneView{view}, open: make(chan struct{})}
		server, err := New(Config{Views: views, FirstRequestTimeout: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		open := sync.OnceFunc(func() { close(views.open) })
		defer open()
		comes := func(host string, large bool) {
			n := &node{Id: "held"}
			if large {
				n.Cluster = strings.Repeat("x", largeNode)
			}
			c := peerClient(ctx, host, nil, marshalNode(t, n))
			go func() { _ = server.serve(c, "", true) }()
		}
		atOnce := max(1, runtime.GOMAXPROCS(0)/2)
		for range atOnce + 5 {
			comes("192.0.2.1", true)
		}
		synctest.Wait()
		expect := func(when string, want int) {
			t.Helper()
			if n := views.joins.Load(); n != int64(want) {
				t.Errorf("%s: %d clients are being looked at, want %d", when, n, want)
			}
		}
		expect("large ones of one peer", atOnce)
		comes("192.0.2.2", true)
		synctest.Wait()
		expect("another peer's", atOnce+1)
		comes("192.0.2.1", false)
		synctest.Wait()
		expect("a small one", atOnce+2)
		open()
		synctest.Wait()
		expect("in the end", atOnce+7)
		cancel()
		synctest.Wait()
		if n := len(server.nodes.of); n != 0 {
			t.Errorf("%d peers are remembered, want none", n)
		}
	})
}
