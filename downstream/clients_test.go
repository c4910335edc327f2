package downstream

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// A scriptedClient is a stream without a transport: the test says what it asks, and sees
// what it is sent. One that does not read has sends wait until it does.
type scriptedClient struct {
	grpc.ServerStream
	ctx      context.Context
	requests chan wire.Request
	mu       sync.Mutex
	nonces   []string      // guarded by mu
	reads    chan struct{} // nil: at once
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

// ask sends a request, and waits until all that follows from it is done.
func (c *scriptedClient) ask(r wire.Request) {
	r.Delta, r.TypeURL = true, wire.ClusterType
	c.requests <- r
	synctest.Wait()
}

// answer accepts the newest response, or refuses it with words.
func (c *scriptedClient) answer(words string) {
	nonces := c.sent()
	c.ask(wire.Request{Nonce: nonces[len(nonces)-1], Refused: words != "", ErrorCode: int32(codes.InvalidArgument),
		ErrorMessage: words})
}

// serveScripted serves a client of Delta until the test ends it.
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

// states returns how the stream stands with its resources, by name.
func states(server *Server, number uint64) map[string]string {
	out := make(map[string]string)
	for _, r := range server.Resources(number) {
		out[r.Entry.Name.String()] = r.State.String()
	}
	return out
}

// TestB30_ClientsAndWhatTheyHave walks one client through what may become of a resource:
// not sent, sent, accepted, refused, and what of it its status says.
func TestB30_ClientsAndWhatTheyHave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		view, w := cache.New(cache.Config{})
		server, err := New(Config{Views: oneView{view}})
		check.OK(t, err)
		put := func(version string, i ...int) {
			u := wire.Update{TypeURL: wire.ClusterType, SystemVersion: version}
			for _, i := range i {
				u.Resources = append(u.Resources, benchResource(t, wire.ClusterType, i, version))
			}
			w.Apply(cache.Wildcard, u)
			synctest.Wait()
		}
		w.SetConnected(true)
		put("1", 0, 1)
		w.SetPhase(wire.ClusterType, cache.Confirmed)

		c := serveScripted(t, server)
		number := slices.Collect(server.Clients())[0].Number
		stands := func() TypeStatus {
			s, open := server.Client(number)
			if !open || len(s.Types) != 1 {
				t.Fatalf("Client(%d) = %+v, %v; want an open stream of one type", number, s, open)
			}
			return s.Types[0]
		}
		wantStates := func(when string, want map[string]string) {
			t.Helper()
			if diff := cmp.Diff(want, states(server, number)); diff != "" {
				t.Errorf("%s, resources stand so (-want +got):\n%s", when, diff)
			}
		}
		a, b := benchName(0), benchName(1)

		n, err := proto.Marshal(&corepb.Node{
			Id: "n1", Cluster: "shop", Extensions: []*corepb.Extension{{Name: "a.filter"}},
		})
		check.OK(t, err)
		c.ask(wire.Request{Node: n, Subscribe: []string{"*"}})
		s, _ := server.Client(number)
		if s.NodeID() != "n1" || s.Node().GetCluster() != "shop" || len(s.Node().GetExtensions()) > 0 || !s.Delta {
			t.Errorf("the stream stands as %+v, want the node n1 of shop without its extensions", s)
		}
		wantStates("before the first answer", map[string]string{a: "sent", b: "sent"})

		time.Sleep(time.Second) // of the bubble
		if got := stands(); !got.Pending || got.Lag != time.Second || got.Accepted != "" {
			t.Errorf("a second after the first response: %+v, want it pending, and a lag of 1s", got)
		}
		c.answer("")
		if got := stands(); got.Pending || got.Lag != 0 || got.Accepted != got.Version || !got.AcceptedAt.Equal(time.Now()) {
			t.Errorf("after its ACK: %+v, want nothing pending, no lag, and the version accepted", got)
		}
		wantStates("after the ACK", map[string]string{a: "accepted", b: "accepted"})

		put("2", 0)
		wantStates("after a change", map[string]string{a: "sent", b: "accepted"})
		time.Sleep(100 * time.Millisecond)
		put("3", 1)
		wantStates("while the client owes an answer", map[string]string{a: "sent", b: "not_sent"})
		time.Sleep(100 * time.Millisecond)
		if got := stands(); got.Lag != 200*time.Millisecond {
			t.Errorf("the older of two changes was made 200ms ago, the lag is %v", got.Lag)
		}
		c.answer("no such filter")
		wantStates("after a NACK", map[string]string{a: "refused", b: "sent"})
		if got := stands(); !got.Refused || got.Refusal.Detail != "no such filter" || got.Lag != 200*time.Millisecond ||
			got.Refusal.Version != "2" {
			t.Errorf("after a NACK: %+v, refusal %+v; want its words, its version 2, and a lag of 200ms still", got, got.Refusal)
		}
		c.answer("")
		wantStates("after the next ACK", map[string]string{a: "refused", b: "accepted"})
		if got := stands(); !got.Refused || got.Lag != 0 {
			t.Errorf("after the ACK of another resource: %+v, want that the refusal stands, and no lag", got)
		}
		put("4", 1)
		c.answer("nor such a listener")
		wantStates("after a NACK of the other resource", map[string]string{a: "refused", b: "refused"})
		if got := stands(); !got.Refused || got.Refusal.Detail != "nor such a listener" {
			t.Errorf("after two NACKs, the refusal that stands is %+v, want the newer", got.Refusal)
		}
		put("5", 1)
		c.answer("")
		wantStates("after the ACK of what was refused last", map[string]string{a: "refused", b: "accepted"})
		if got := stands(); !got.Refused || got.Refusal.Detail != "no such filter" {
			t.Errorf("after the ACK of what was refused last, the refusal that stands is %+v, want the older", got.Refusal)
		}
		put("6", 0)
		c.answer("")
		wantStates("after the refused resource has changed", map[string]string{a: "accepted", b: "accepted"})
		if got := stands(); got.Refused || got.Refusal == nil {
			t.Errorf("after an ACK, the client's last word is a refusal: %v; the refusal that is remembered: %+v", got.Refused,
				got.Refusal)
		}

		for i := range 16 { // twice as many refusals as are kept
			put(fmt.Sprint("a", i), 0)
			c.answer("no")
			put(fmt.Sprint("b", i), 1)
			c.answer("")
		}
		put("7", 0)
		c.answer("")
		wantStates("after many of both", map[string]string{a: "accepted", b: "accepted"})

		if got := server.Holders(wire.ClusterType, a); len(got) != 1 || got[0].Stream != number || got[0].State != Accepted {
			t.Errorf("Holders(%s) = %+v, want the one stream, which accepted it", a, got)
		}
		if got := server.Holders(wire.ClusterType, "nothing"); len(got) != 0 {
			t.Errorf("Holders(nothing) = %+v, want none", got)
		}
	})
}

// TestB30_AStuckClientHoldsUpNoLook holds that to look at a stream waits for no client: that
// of one that does not read is seen to be stalled.
func TestB30_AStuckClientHoldsUpNoLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		view, w := cache.New(cache.Config{})
		server := check.Must(New(Config{Views: oneView{view}}))
		w.SetConnected(true)
		for i := range 200 { // of 1 KiB each: more than gRPC takes off a stream's hands
			w.Apply(cache.Wildcard, wire.Update{TypeURL: wire.ClusterType,
				Resources: []*wire.Resource{benchResource(t, wire.ClusterType, i, "1")}})
		}
		w.SetPhase(wire.ClusterType, cache.Confirmed)
		c := serveScripted(t, server)
		c.ask(wire.Request{Node: []byte{}, Subscribe: []string{"*"}})
		time.Sleep(6 * time.Second) // the wait for its answer is over
		c.reads = make(chan struct{})
		w.Apply(cache.Wildcard, wire.Update{TypeURL: wire.ClusterType,
			Resources: []*wire.Resource{benchResource(t, wire.ClusterType, 0, "2")}})
		synctest.Wait()
		stalled := time.Now()
		time.Sleep(10 * time.Second)
		for s := range server.Clients() {
			if !s.Stalled.Equal(stalled) || s.Unread < inlineBytes || s.Types[0].Lag < 10*time.Second {
				t.Errorf("a client that does not read stands as %+v, want it stalled since %v", s, stalled)
			}
		}
		check.Equal(t, "resources of a stalled client are seen", len(states(server, 1)), 200)
		close(c.reads)
		synctest.Wait()
		c.answer("")
		if s, _ := server.Client(1); !s.Stalled.IsZero() || s.Unread > 0 {
			t.Errorf("once it reads, the client stands as %+v", s)
		}
	})
}
