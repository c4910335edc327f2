package downstream

import (
	"context"
	"fmt"
	"net"
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
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
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

// introduceEncoded returns what a stream is told of a Node.
func introduceEncoded(t *testing.T, encoded []byte) error {
	t.Helper()
	view, _ := cache.New(cache.Config{})
	s := newTestStream(t, view, Config{})
	s.met.made = false
	r := &wire.Request{Delta: true, MaxNodeBytes: s.cfg.MaxNodeBytes}
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
	_, raw, err := decodeReport(protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), encoded))
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
	switch {
	case reply.Code == 400:
		return status.Error(codes.InvalidArgument, strings.ReplaceAll(reply.Body.String(), `\u0026`, "&"))
	default:
		return nil // it was read
	}
}

// A peerClient is an eager one that comes from an address, of a connection.
func peerClient(ctx context.Context, host string, nodes *keptNodes, encoded []byte) *eagerClient {
	ctx = peer.NewContext(ctx, &peer.Peer{Addr: &net.TCPAddr{IP: net.ParseIP(host), Port: 1}, AuthInfo: connection{nodes: nodes}})
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
		close(views.open)
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
		close(views.open)
		synctest.Wait()
		expect("in the end", atOnce+7)
		cancel()
		synctest.Wait()
		if n := len(server.nodes.of); n != 0 {
			t.Errorf("%d peers are remembered, want none", n)
		}
	})
}

// rules are an Authorizer that grants everything until it is told otherwise.
type rules struct {
	mu      sync.Mutex
	changed chan struct{}
	asked   []string // ids
	denies  bool
}

func (a *rules) Authorize(_ Peer, n *node) (Grant, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, n.GetId())
	if a.denies {
		return nil, Denies(DeniedNode, "no more")
	}
	return anything{}, nil
}

func (a *rules) Changed() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.changed
}

func (a *rules) change(denies bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.denies = denies
	close(a.changed)
	a.changed = make(chan struct{})
}

// anything is a grant of all.
type anything struct{}

func (anything) Identity() string          { return "anybody" }
func (anything) Type(string) error         { return nil }
func (anything) LimitsNames(string) bool   { return false }
func (anything) Name(string, string) error { return nil }

// B.35: with rules, the streams of a connection keep what is equal of their Nodes once, charged to their peer, and nothing of the
// extensions. What is over the bound is refused, and what is given up makes room.
func TestB35_NodesThatAreKeptAreSharedAndBounded(t *testing.T) {
	view, _ := cache.New(cache.Config{})
	server, err := New(Config{Views: oneView{view}, Authorizer: &rules{changed: make(chan struct{})}})
	if err != nil {
		t.Fatal(err)
	}
	var streams []*stream
	joins := func(of *keptNodes, host string, encoded []byte) error {
		s := &stream{
			server: server, cfg: &server.cfg, rpc: peerClient(t.Context(), host, of, nil), delta: true,
			over: make(chan error, 1), timer: time.NewTimer(time.Hour),
		}
		s.turn.Store(taken) // no worker sends
		r := &wire.Request{Delta: true}
		if err := r.Decode(firstRequest(encoded)); err != nil {
			t.Fatal(err)
		}
		err := s.say(r, time.Now())
		if err == nil {
			streams = append(streams, s)
		}
		return err
	}
	held := func(host string) (bytes int64) {
		if share := server.nodes.of[host]; share != nil {
			bytes = share.held
		}
		return bytes
	}

	encoded := marshalNode(t, withExtensions(nodeOfBytes(t, 240<<10), 80_000))
	one, two := new(keptNodes), new(keptNodes)
	before := liveHeap()
	for range 500 {
		for _, of := range []*keptNodes{one, two} {
			if err := joins(of, "192.0.2.1", encoded); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(one.kept) != 1 || len(two.kept) != 1 {
		t.Errorf("the connections keep %d and %d Nodes, want one each", len(one.kept), len(two.kept))
	}
	if got, want := held("192.0.2.1"), int64(2*(240-16)<<10); got != want {
		t.Errorf("the peer is charged %d bytes, want %d", got, want)
	}
	if got := liveHeap() - before; got > 1000*4<<10+2*300<<10 {
		t.Errorf("1000 streams of two connections take %d bytes, want a few KiB each and their Node twice", got)
	}

	var refused int
	for i := range 400 { // each says something else
		n := nodeOfBytes(t, 240<<10)
		n.Id = string(rune('a' + i%26))
		n.Cluster = fmt.Sprint(i) + n.GetCluster()[len(fmt.Sprint(i)):]
		if err := joins(one, "192.0.2.1", marshalNode(t, n)); err != nil {
			if limit, is := LimitOf(err); !is || limit != LimitNodeBytes || status.Code(err) != codes.ResourceExhausted {
				t.Fatalf("refused with %v, want RESOURCE_EXHAUSTED and the limit", err)
			}
			refused++
		}
	}
	const bound = 64 << 20
	if got := held("192.0.2.1"); got > bound || got < bound-512<<10 || refused == 0 {
		t.Errorf("the peer is charged %d bytes, %d streams were refused, want nearly all of %d and some", got, refused, bound)
	}
	if got := liveHeap() - before; got > bound+1400*20<<10 {
		t.Errorf("the streams take %d bytes, want at most %d and a few KiB each", got, bound)
	}
	if err := joins(new(keptNodes), "192.0.2.2", encoded); err != nil {
		t.Errorf("another peer is refused: %v", err)
	}
	for _, s := range streams {
		s.close()
	}
	if len(one.kept)+len(two.kept)+len(server.nodes.of) != 0 {
		t.Errorf("%d and %d Nodes are kept and %d peers charged for streams that have ended", len(one.kept), len(two.kept), len(server.nodes.of))
	}
}

// B.35: without rules that may change, nothing is charged for a Node, and no more of it is kept than is shown.
func TestB35_WithoutRulesNodesAreNotKept(t *testing.T) {
	view, _ := cache.New(cache.Config{})
	server, err := New(Config{Views: oneView{view}})
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{1 << 10, 240 << 10} {
		kept, err := server.meet(t.Context(), Peer{Host: "192.0.2.1"}, rawNode{marshalNode(t, nodeOfBytes(t, size)), size}, func(*node) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		if kept.encoded != "" || len(kept.shown) > maxShown || len(server.nodes.of) != 0 {
			t.Errorf("%d bytes are kept, %d shown, and %d peers charged", len(kept.encoded), len(kept.shown), len(server.nodes.of))
		}
		kept.leave()
	}
}

// B.37: a client whose first request waits for its turn while the rules change is held to the new ones, as is one that is served.
func TestB37_RulesThatChangeWhileARequestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		view, _ := cache.New(cache.Config{})
		a := &rules{changed: make(chan struct{})}
		server, err := New(Config{Views: oneView{view}, Authorizer: a})
		if err != nil {
			t.Fatal(err)
		}
		s := &stream{
			server: server, cfg: &server.cfg, rpc: peerClient(t.Context(), "192.0.2.1", nil, marshalNode(t, &node{Id: "a"})), delta: true,
			over: make(chan error, 1), stale: make(chan struct{}, 1), pace: server.requestPace(),
		}
		s.turn.Store(queued) // no worker comes
		ended := make(chan error)
		go func() { ended <- s.run() }()
		synctest.Wait()
		if len(s.waiting) != 1 {
			t.Fatalf("%d requests wait, want 1", len(s.waiting))
		}
		a.change(true)
		synctest.Wait()
		s.flushed(true)
		if denial, is := DenialOf(<-ended); !is || denial != DeniedNode {
			t.Errorf("ended with another error than of the new rules")
		}
		if want := "a a"; strings.Join(a.asked, " ") != want {
			t.Errorf("rules were asked about %q, want %q", a.asked, want)
		}
	})
}

// B.35: a stream that ends while a request waits is in no group, and keeps nothing.
func TestB35_AStreamThatEndsBeforeItsTurn(t *testing.T) {
	view, _ := cache.New(cache.Config{})
	v := &clusterViews{views: map[string]*cache.View{"": view}}
	server, err := New(Config{Views: v})
	if err != nil {
		t.Fatal(err)
	}
	nodes := new(keptNodes)
	s := &stream{server: server, cfg: &server.cfg, rpc: peerClient(t.Context(), "192.0.2.1", nodes, nil), delta: true, over: make(chan error, 1), timer: time.NewTimer(time.Hour), pace: server.requestPace()}
	s.turn.Store(queued) // no worker comes
	ask := func() {
		s.receives(&wire.Request{Delta: true, TypeURL: wire.ClusterType, Node: marshalNode(t, &node{Id: "a"})})
	}
	ask()
	if v.in != 1 || len(nodes.kept) != 1 {
		t.Fatalf("%d streams are in a group, %d Nodes are kept, want 1 and 1", v.in, len(nodes.kept))
	}
	if err := s.finish(errOutrun); err == nil {
		t.Fatal("it ended without an error")
	}
	if v.in != 0 || len(nodes.kept) != 0 {
		t.Errorf("%d streams are in a group, %d Nodes are kept after the end, want none", v.in, len(nodes.kept))
	}
	s.met = introduction{}
	ask() // comes too late
	if v.in != 0 || len(nodes.kept) != 0 {
		t.Errorf("%d streams are in a group, %d Nodes are kept for a request after the end, want none", v.in, len(nodes.kept))
	}
}

// FuzzNode: a Node that is accepted is what the generated decoder makes of it, but for its extensions and what that does not know; and
// what the generated decoder accepts is refused for a limit only.
func FuzzNode(f *testing.F) {
	for _, n := range []*node{{}, {Id: "n"}, nodeOfValues(20), withExtensions(nodeOfValues(10), 100), nodeOfBytes(f, 300)} {
		encoded := marshalNode(f, n)
		f.Add(encoded)
		f.Add(append(encoded, encoded...))
	}
	f.Add([]byte("\x4a\x01\xff\x48\x01"))
	server, err := New(Config{Views: oneView{}, DynamicParameters: true})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, encoded []byte) {
		want := new(node)
		refused := proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(encoded, want)
		want.Extensions = nil
		stripped, size, _, err := wire.TakeNode(protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), encoded), 1)
		if err != nil {
			if refused == nil {
				t.Fatalf("%q is refused: %v", encoded, err)
			}
			return
		}
		got, err := server.cfg.node(rawNode{stripped, size})
		_, limited := LimitOf(err)
		switch {
		case err != nil && refused == nil && !limited && !strings.Contains(err.Error(), "in one another"):
			t.Fatalf("%q is refused: %v", encoded, err)
		case err == nil && refused == nil && !proto.Equal(got, want):
			t.Fatalf("%q is %v, want %v", encoded, got, want)
		}
		if err == nil && len(got.GetExtensions()) > 0 {
			t.Fatalf("%q has extensions: %v", encoded, got)
		}
	})
}

// FuzzSkimNode: a poll that is looked through is the request that it was, but for the extensions of its Node, of which nothing is left.
func FuzzSkimNode(f *testing.F) {
	for _, seed := range []string{
		`{"node":{"id":"n","extensions":[{"name":"a]\"","category":"}"},{}],"cluster":"c"},"resource_names":["extensions",":"]}`,
		`{"\u006eode" : {"\u0065xtensions" : [ [] ] , "metadata":{"extensions":[1,2]}},"extensions":[]}`,
		`{"node":{"extensions":null}}`, `{"node":{"extensions":[`, `{"x":{"node":{"extensions":[{}]}},"node":[]}`, `["node":{`, `{"node":1}]]`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		body := []byte(text)
		before, after := new(discoverypb.DiscoveryRequest), new(discoverypb.DiscoveryRequest)
		errBefore := tolerant.Unmarshal([]byte(text), before)
		size, err := skimNode(body)
		if size < 0 || size > len(text) || len(body) != len(text) {
			t.Fatalf("%q has a Node of %d bytes, %d are left of %d", text, size, len(body), len(text))
		}
		if err != nil || errBefore != nil {
			return
		}
		if err := tolerant.Unmarshal(body, after); err != nil {
			t.Fatalf("%q is refused as %q: %v", text, body, err)
		}
		if len(after.GetNode().GetExtensions()) > 0 {
			t.Fatalf("%q has extensions as %q", text, body)
		}
		if before.GetNode() != nil {
			before.Node.Extensions = nil
		}
		if !proto.Equal(before, after) {
			t.Fatalf("%q is %v, want %v", text, after, before)
		}
	})
}
