package downstream

import (
	"context"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// A scriptedClient is a stream without a transport, whose requests the test chooses.
type scriptedClient struct {
	grpcCall
	ctx      context.Context
	requests chan wire.Request
	mu       sync.Mutex
	nonces   []string      // guarded by mu
	reads    chan struct{} // if not nil, SendMsg blocks until it receives from or the test closes this channel
}

func (c *scriptedClient) Context() context.Context { return c.ctx }

func (c *scriptedClient) SendMsg(m any) error {
	c.mu.Lock()
	c.nonces = append(c.nonces, m.(*wire.Response).Nonce)
	c.mu.Unlock()
	if c.reads != nil {
		<-c.reads
	}
	return nil
}

func (c *scriptedClient) RecvMsg(m any) error {
	r, more := <-c.requests
	if !more {
		return io.EOF
	}
	*m.(*wire.Request) = r
	return nil
}

// sent returns the nonces of the responses that the client was sent.
func (c *scriptedClient) sent() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.nonces)
}

// request sends a request of clusters, and waits until the server is idle.
func (c *scriptedClient) request(r wire.Request) {
	r.Delta, r.TypeURL = true, wire.ClusterType
	c.requests <- r
	synctest.Wait()
}

// answer sends an ACK of the newest response, or a NACK if detail is not empty.
func (c *scriptedClient) answer(detail string) {
	nonces := c.sent()
	c.request(wire.Request{Nonce: nonces[len(nonces)-1], Rejected: detail != "", ErrorCode: int32(codes.InvalidArgument),
		ErrorMessage: detail})
}

// serveScripted serves an aggregated Delta stream until the end of the test.
func serveScripted(t *testing.T, server *Server) *scriptedClient {
	t.Helper()
	c := &scriptedClient{ctx: t.Context(), requests: make(chan wire.Request)}
	done := make(chan error, 1)
	go func() { done <- server.serveStream(c, "", true) }()
	t.Cleanup(func() {
		close(c.requests)
		if err := <-done; err != nil {
			t.Errorf("the stream ended with %v", err)
		}
	})
	synctest.Wait()
	return c
}

// resourceStates returns the state of each resource that a stream subscribed to, by name.
func resourceStates(server *Server, number uint64) map[string]string {
	out := make(map[string]string)
	for _, r := range server.Resources(number) {
		out[r.Entry.Name.String()] = r.State.String()
	}
	return out
}

// TestB30_ClientAndResourceStatus checks the status of a stream, its types and its resources. The transcripts of package
// subscription have the states of types and resources.
func TestB30_ClientAndResourceStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		view, w := cache.New(cache.Config{})
		server := check.Must(New(Config{Views: oneView{view}}))
		w.SetConnected(true)
		putClusters(t, w, "1", 0, 1)
		w.SetPhase(wire.ClusterType, cache.Confirmed)
		c := serveScripted(t, server)
		number := slices.Collect(server.Clients())[0].Number
		encoded := marshalNode(t, &corepb.Node{
			Id: "n1", Cluster: "shop", Extensions: []*corepb.Extension{{Name: "a.filter"}},
		})
		c.request(wire.Request{Node: encoded, Subscribe: []string{"*"}})
		time.Sleep(time.Second)
		a, b := benchName(0), benchName(1)
		want := func(when string, states map[string]string, lag time.Duration, rejection string) {
			t.Helper()
			if diff := cmp.Diff(states, resourceStates(server, number)); diff != "" {
				t.Errorf("%s, resource states (-want +got):\n%s", when, diff)
			}
			s, open := server.Client(number)
			if !open || s.NodeID() != "n1" || s.Node().GetCluster() != "shop" || len(s.Node().GetExtensions()) > 0 || !s.Delta ||
				len(s.Types) != 1 {
				t.Fatalf("%s: %+v, open: %v; want a Delta stream of one type and node n1 without extensions", when, s, open)
			}
			got := s.Types[0]
			if got.Lag != lag || got.Rejected != (rejection != "") || got.Rejected && got.Rejection.Detail != rejection {
				t.Errorf("%s: %+v, rejection %+v; want a lag of %v and the rejection %q", when, got, got.Rejection, lag, rejection)
			}
			holders := server.Holders(wire.ClusterType, a)
			if len(holders) != 1 || holders[0].Stream != number || holders[0].State.String() != states[a] {
				t.Errorf("%s: Holders(%s) = %+v, want one stream in state %s", when, a, holders, states[a])
			}
		}
		want("a second after the first response", map[string]string{a: "sent", b: "sent"}, time.Second, "")
		c.answer("")
		want("after its ACK", map[string]string{a: "accepted", b: "accepted"}, 0, "")
		putClusters(t, w, "2", 0)
		synctest.Wait()
		c.answer("no such filter")
		want("after a NACK", map[string]string{a: "rejected", b: "accepted"}, 0, "no such filter")
		if got := server.Holders(wire.ClusterType, "nothing"); len(got) != 0 {
			t.Errorf("Holders(nothing) = %+v, want none", got)
		}
	})
}

// TestB30_StatusDoesNotWaitForStalledClient checks that the status of streams can be read while a send is blocked, and
// that the blocked stream is reported as stalled.
func TestB30_StatusDoesNotWaitForStalledClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		view, w := cache.New(cache.Config{})
		server := check.Must(New(Config{Views: oneView{view}}))
		w.SetConnected(true)
		for i := range 200 { // of 1 KiB each: more than inlineBytes
			w.Apply(cache.Wildcard, wire.Update{TypeURL: wire.ClusterType,
				Resources: []*wire.Resource{benchResource(t, wire.ClusterType, i, "1")}})
		}
		w.SetPhase(wire.ClusterType, cache.Confirmed)
		c := serveScripted(t, server)
		c.request(wire.Request{Node: []byte{}, Subscribe: []string{"*"}})
		time.Sleep(6 * time.Second) // longer than AckWait
		c.reads = make(chan struct{})
		w.Apply(cache.Wildcard, wire.Update{TypeURL: wire.ClusterType,
			Resources: []*wire.Resource{benchResource(t, wire.ClusterType, 0, "2")}})
		synctest.Wait()
		stalled := time.Now()
		time.Sleep(10 * time.Second)
		for s := range server.Clients() {
			if !s.Stalled.Equal(stalled) || s.Unread < inlineBytes || s.Types[0].Lag < 10*time.Second {
				t.Errorf("status of a client that does not read is %+v, want stalled since %v", s, stalled)
			}
		}
		check.Equal(t, "resources of a stalled client", len(resourceStates(server, 1)), 200)
		close(c.reads)
		synctest.Wait()
		c.answer("")
		if s, _ := server.Client(1); !s.Stalled.IsZero() || s.Unread > 0 {
			t.Errorf("after the client has read, its status is %+v, want not stalled", s)
		}
	})
}

// A crowdClient is a stream without a transport, whose client accepts each response. Its context may call a function.
type crowdClient struct {
	grpcCall
	ctx      context.Context
	requests chan wire.Request
	received *atomic.Int64 // responses to all clients
	asked    func()        // if not nil, Context calls it
}

func (c *crowdClient) Context() context.Context {
	if c.asked != nil {
		c.asked()
	}
	return c.ctx
}

func (c *crowdClient) SendMsg(m any) error {
	r := m.(*wire.Response)
	c.received.Add(1)
	c.requests <- wire.Request{Delta: true, TypeURL: wire.ClusterType, Nonce: r.Nonce} // has room: one response is unanswered
	return nil
}

func (c *crowdClient) RecvMsg(m any) error {
	r, more := <-c.requests
	if !more {
		return io.EOF
	}
	*m.(*wire.Request) = r
	return nil
}

// TestB30_ListingLocksOneStream checks that a list of 10,000 clients locks one stream while it reads its state, and none while the
// caller filters and encodes: then a change is delivered to all clients.
func TestB30_ListingLocksOneStream(t *testing.T) {
	const crowd, every = 10_000, 2_500
	synctest.Test(t, func(t *testing.T) {
		view, w := cache.New(cache.Config{})
		server := check.Must(New(Config{Views: oneView{view}}))
		w.SetConnected(true)
		putClusters(t, w, "1", 0)
		w.SetPhase(wire.ClusterType, cache.Confirmed)
		var received atomic.Int64
		var serving sync.WaitGroup
		clients := make([]*crowdClient, crowd)
		for i := range clients {
			clients[i] = &crowdClient{ctx: t.Context(), requests: make(chan wire.Request, 2), received: &received}
			clients[i].requests <- wire.Request{Delta: true, TypeURL: wire.ClusterType, Node: []byte{}, Subscribe: []string{"*"}}
			serving.Go(func() { check.OK(t, server.serveStream(clients[i], "", true)) })
		}
		synctest.Wait()
		check.Equal(t, "first responses", received.Swap(0), crowd)

		streams := server.openStreams()
		locked := func() (n int) {
			for _, s := range streams {
				if !s.lock.tryAcquire() {
					n++
					continue
				}
				s.lock.release()
			}
			return n
		}
		var listing atomic.Bool
		reads := 0
		for _, c := range clients {
			c.asked = func() {
				if !listing.Load() { // it is sent a change
					return
				}
				if reads++; reads%every == 0 {
					check.Equal(t, "locked streams while the state of one is read", locked(), 1)
				}
			}
		}
		listing.Store(true)
		listed, version := 0, "1"
		for s := range server.Clients() {
			if listed++; listed%every != 0 {
				continue
			}
			listing.Store(false)
			if n := locked(); n > 0 {
				t.Fatalf("%d streams are locked between two clients, want none", n)
			}
			check.Equal(t, "state of the client", s.Types[0].Sync, InSync)
			version += "+"
			putClusters(t, w, version, 0)
			synctest.Wait()
			check.Equal(t, "clients that a change reaches meanwhile", received.Swap(0), crowd)
			listing.Store(true)
		}
		listing.Store(false)
		check.Equal(t, "listed clients", listed, crowd)
		check.Equal(t, "reads", reads, crowd)
		for _, c := range clients {
			close(c.requests)
		}
		serving.Wait()
	})
}
