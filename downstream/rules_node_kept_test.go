package downstream

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

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
	joins := func(of *nodeCache, host string, encoded []byte) error {
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
		server.nodes.mu.Lock()
		defer server.nodes.mu.Unlock()
		if share := server.nodes.of[host]; share != nil {
			bytes = share.held
		}
		return bytes
	}

	encoded := marshalNode(t, withExtensions(nodeOfBytes(t, 40<<10), 80_000))
	one, two := new(nodeCache), new(nodeCache)
	before := liveHeap()
	for range 500 {
		for _, of := range []*nodeCache{one, two} {
			if err := joins(of, "192.0.2.1", encoded); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(one.kept) != 1 || len(two.kept) != 1 {
		t.Errorf("the connections keep %d and %d Nodes, want one each", len(one.kept), len(two.kept))
	}
	if got, want := held("192.0.2.1"), int64(2*(40-16)<<10); got != want {
		t.Errorf("the peer is charged %d bytes, want %d", got, want)
	}
	if got := liveHeap() - before; got > 1000*4<<10+2*100<<10 {
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
	if err := joins(new(nodeCache), "192.0.2.2", encoded); err != nil {
		t.Errorf("another peer is refused: %v", err)
	}
	for _, s := range streams {
		s.close()
	}
	if len(one.kept)+len(two.kept) != 0 || held("192.0.2.1")+held("192.0.2.2") != 0 {
		t.Errorf("%d and %d Nodes are kept and %d and %d bytes charged for streams that have ended",
			len(one.kept), len(two.kept), held("192.0.2.1"), held("192.0.2.2"))
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
		kept, err := server.WithNode(t.Context(), Peer{Host: "192.0.2.1"}, RawNode{marshalNode(t, nodeOfBytes(t, size)), size}, func(*node) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		server.nodes.mu.Lock()
		charged := int64(0)
		for _, share := range server.nodes.of {
			charged += share.held
		}
		server.nodes.mu.Unlock()
		if kept.encoded != "" || len(kept.Shown) > maxShown || charged != 0 {
			t.Errorf("%d bytes are kept, %d shown, and %d charged", len(kept.encoded), len(kept.Shown), charged)
		}
		kept.Release()
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
	nodes := new(nodeCache)
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
