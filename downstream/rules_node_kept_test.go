package downstream

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// A testAuthorizer is an Authorizer that grants everything until change denies everything.
type testAuthorizer struct {
	mu         sync.Mutex
	changed    chan struct{}
	authorized []string // ids of authorized Nodes
	denies     bool
}

func (a *testAuthorizer) Authorize(_ guard.Peer, n *node) (Grant, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.authorized = append(a.authorized, n.GetId())
	if a.denies {
		return nil, guard.Denies(guard.DeniedNode, "no more")
	}
	return allowAll{}, nil
}

func (a *testAuthorizer) Changed() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.changed
}

// change changes the rules.
func (a *testAuthorizer) change(denies bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.denies = denies
	close(a.changed)
	a.changed = make(chan struct{})
}

// allowAll is a Grant that allows everything.
type allowAll struct{}

func (allowAll) Identity() string           { return "anybody" }
func (allowAll) Type(string) error          { return nil }
func (allowAll) RestrictsNames(string) bool { return false }
func (allowAll) Name(string, string) error  { return nil }

// A tcpConn is a connection from an address.
type tcpConn struct {
	net.Conn
	host string
}

func (c tcpConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(c.host), Port: 1} }

// handshake accepts a connection of a host, and returns its AuthInfo.
func handshake(t *testing.T, s *Server, host string) credentials.AuthInfo {
	t.Helper()
	_, info, err := s.guard.Credentials(insecure.NewCredentials()).ServerHandshake(tcpConn{host: host})
	check.OK(t, err)
	return info
}

// B.35: with an Authorizer, the streams of a connection share a large Node without its extensions, regardless of the
// order of its fields. A peer is charged for the Nodes of its connections, and streams that have ended keep nothing.
func TestB35_StreamsOfOneConnectionShareNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Bytes of a shared Node, of other Nodes, that do not count in each, and of a peer.
		const shared, other, free, bound = 30 << 10, 240 << 10, 16 << 10, 64 * guard.MaxNodeBytes
		view, _ := cache.New(cache.Config{})
		server, err := New(Config{Views: oneView{view}, Authorizer: &testAuthorizer{changed: make(chan struct{})}})
		check.OK(t, err)
		var streams []*stream
		join := func(connection credentials.AuthInfo, encoded []byte) error {
			s := &stream{
				server: server, cfg: &server.cfg, rpc: peerClient(t.Context(), "192.0.2.1", connection, nil), delta: true,
				result: make(chan error, 1), timer: time.NewTimer(time.Hour),
			}
			s.turn.Store(turnRunning) // no worker runs the turn
			r := &wire.Request{Delta: true}
			check.OK(t, r.Decode(firstRequest(encoded)))
			err := s.handleNow(r, time.Now())
			if err == nil {
				streams = append(streams, s)
			}
			return err
		}
		connections := []credentials.AuthInfo{handshake(t, server, "192.0.2.1"), handshake(t, server, "192.0.2.1")}
		one := marshalNode(t, &node{Id: "n", Extensions: []*corepb.Extension{{Name: strings.Repeat("x", 30_000)}}})
		two := marshalNode(t, nodeOfBytes(t, shared)) // the fields of both are merged, in any order
		for i := range 20 {
			encoded := [][]byte{slices.Concat(one, two), slices.Concat(two, one)}
			check.OK(t, join(connections[i%2], encoded[i/2%2]))
		}
		kept := make(map[*guard.KeptNode]int)
		for _, s := range streams {
			kept[s.keptNode]++
		}
		if len(kept) != 2 {
			t.Errorf("20 streams of two connections keep %d Nodes, want 2", len(kept))
		}
		for i := range bound / (other - free) { // a stream that changes its Node keeps only the newest
			n := nodeOfBytes(t, other)
			n.Id = string(rune('a' + i%20))
			encoded := marshalNode(t, n)
			r := &wire.Request{Delta: true, TypeURL: wire.ClusterType, Node: encoded, NodeBytes: len(encoded)}
			check.OK(t, streams[0].handleNow(r, time.Now()))
		}
		// fill joins streams with different Nodes, and returns how many the limit of the peer allows.
		fill := func() (joined int) {
			for i := range 300 {
				n := nodeOfBytes(t, other)
				n.Cluster = fmt.Sprint(i) + n.GetCluster()[len(fmt.Sprint(i)):]
				if err := join(connections[0], marshalNode(t, n)); err == nil {
					joined++
				} else if limit, ok := guard.LimitOf(err); !ok || limit != guard.LimitNodeBytes ||
					status.Code(err) != codes.ResourceExhausted {
					t.Fatalf("refused with %v, want RESOURCE_EXHAUSTED and the limit", err)
				}
			}
			return joined
		}
		for round, before := range []int{2*(shared-free) + other - free, 0} { // bytes that the peer is charged
			want := (bound - before) / (other - free)
			check.Equal(t, fmt.Sprintf("streams with different Nodes in round %d", round), fill(), want)
			for _, s := range streams {
				s.close()
			}
			streams = nil
		}
	})
}

// B.37: new rules also apply to a client whose first request was queued when the rules changed.
func TestB37_RulesChangeWhileRequestIsQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		view, _ := cache.New(cache.Config{})
		a := &testAuthorizer{changed: make(chan struct{})}
		server := check.Must(New(Config{Views: oneView{view}, Authorizer: a}))
		c := peerClient(t.Context(), "192.0.2.1", nil, marshalNode(t, &node{Id: "a"}))
		s := &stream{
			server: server, cfg: &server.cfg, delta: true, rpc: c,
			result: make(chan error, 1), requestLimiter: rate.NewLimiter(rate.Inf, 1),
		}
		s.turn.Store(turnQueued) // no worker runs the turn
		ended := make(chan error)
		go func() { ended <- s.run(c) }()
		synctest.Wait()
		if len(s.queued) != 1 {
			t.Fatalf("%d requests are queued, want 1", len(s.queued))
		}
		a.change(true)
		synctest.Wait()
		s.flushTurn(true)
		if denial, ok := guard.DenialOf(<-ended); !ok || denial != guard.DeniedNode {
			t.Errorf("stream ended with denial %v (%v), want %v", denial, ok, guard.DeniedNode)
		}
		if want := "a a"; strings.Join(a.authorized, " ") != want {
			t.Errorf("authorized Nodes %q, want %q", a.authorized, want)
		}
	})
}

// B.35: a stream that ends while a request is queued leaves its group and keeps no Node.
func TestB35_StreamEndsBeforeItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		view, _ := cache.New(cache.Config{})
		v := &clusterViews{views: map[string]*cache.View{"": view}}
		server := check.Must(New(Config{Views: v, Authorizer: &testAuthorizer{changed: make(chan struct{})}}))
		encoded := marshalNode(t, &node{Id: strings.Repeat("n", 240<<10)})
		for i := range 310 { // the Nodes of 300 streams would exceed the limit of the peer
			s := &stream{server: server, cfg: &server.cfg, rpc: peerClient(t.Context(), "192.0.2.1", nil, nil), delta: true,
				result: make(chan error, 1), timer: time.NewTimer(time.Hour), requestLimiter: rate.NewLimiter(rate.Inf, 1)}
			s.turn.Store(turnQueued) // no worker runs the turn
			request := func() {
				s.acceptRequest(&wire.Request{Delta: true, TypeURL: wire.ClusterType, Node: encoded, NodeBytes: len(encoded)})
			}
			request()
			if v.members != 1 || s.queued[0].identity.keptNode == nil {
				t.Fatalf("stream %d: %d streams are in a group, want 1 that keeps its Node", i, v.members)
			}
			if err := s.finish(errOutrun); err == nil {
				t.Fatal("the stream ended without an error")
			}
			check.Equal(t, "streams in a group after the end", v.members, 0)
			s.lastNode = lastNode{}
			request() // after the end
			check.Equal(t, "streams in a group for a request after the end", v.members, 0)
		}
	})
}
