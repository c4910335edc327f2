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

// A scriptedClient is a stream without a transport, whose requests the test chooses.
type scriptedClient struct {
	grpc.ServerStream
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
	c.request(wire.Request{Nonce: nonces[len(nonces)-1], Refused: detail != "", ErrorCode: int32(codes.InvalidArgument),
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

// TestB30_ClientAndResourceStatus takes resources of one client through all states: not sent, sent, accepted and
// refused. It checks the status of the client in each state.
func TestB30_ClientAndResourceStatus(t *testing.T) {
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
		typeStatus := func() TypeStatus {
			s, open := server.Client(number)
			if !open || len(s.Types) != 1 {
				t.Fatalf("Client(%d) = %+v, %v; want an open stream of one type", number, s, open)
			}
			return s.Types[0]
		}
		wantStates := func(when string, want map[string]string) {
			t.Helper()
			if diff := cmp.Diff(want, resourceStates(server, number)); diff != "" {
				t.Errorf("%s, resource states (-want +got):\n%s", when, diff)
			}
		}
		a, b := benchName(0), benchName(1)

		n, err := proto.Marshal(&corepb.Node{
			Id: "n1", Cluster: "shop", Extensions: []*corepb.Extension{{Name: "a.filter"}},
		})
		check.OK(t, err)
		c.request(wire.Request{Node: n, Subscribe: []string{"*"}})
		s, _ := server.Client(number)
		if s.NodeID() != "n1" || s.Node().GetCluster() != "shop" || len(s.Node().GetExtensions()) > 0 || !s.Delta {
			t.Errorf("stream status is %+v, want node n1 of cluster shop without extensions", s)
		}
		wantStates("before the first answer", map[string]string{a: "sent", b: "sent"})

		time.Sleep(time.Second)
		if got := typeStatus(); !got.Pending || got.Lag != time.Second || got.Accepted != "" {
			t.Errorf("a second after the first response: %+v, want it pending, and a lag of 1s", got)
		}
		c.answer("")
		got := typeStatus()
		if got.Pending || got.Lag != 0 || got.Accepted != got.Version || !got.AcceptedAt.Equal(time.Now()) {
			t.Errorf("after its ACK: %+v, want nothing pending, no lag, and the version accepted", got)
		}
		wantStates("after the ACK", map[string]string{a: "accepted", b: "accepted"})

		put("2", 0)
		wantStates("after a change", map[string]string{a: "sent", b: "accepted"})
		time.Sleep(100 * time.Millisecond)
		put("3", 1)
		wantStates("while an answer is pending", map[string]string{a: "sent", b: "not_sent"})
		time.Sleep(100 * time.Millisecond)
		if got := typeStatus(); got.Lag != 200*time.Millisecond {
			t.Errorf("lag is %v, want 200ms, the age of the older of two changes", got.Lag)
		}
		c.answer("no such filter")
		wantStates("after a NACK", map[string]string{a: "refused", b: "sent"})
		if got := typeStatus(); !got.Refused || got.Refusal.Detail != "no such filter" || got.Lag != 200*time.Millisecond ||
			got.Refusal.Version != "2" {
			t.Errorf("after a NACK: %+v, refusal %+v; want its detail, version 2, and a lag of 200ms", got, got.Refusal)
		}
		c.answer("")
		wantStates("after the next ACK", map[string]string{a: "refused", b: "accepted"})
		if got := typeStatus(); !got.Refused || got.Lag != 0 {
			t.Errorf("after the ACK of another resource: %+v, want an active refusal and no lag", got)
		}
		put("4", 1)
		c.answer("nor such a listener")
		wantStates("after a NACK of the other resource", map[string]string{a: "refused", b: "refused"})
		if got := typeStatus(); !got.Refused || got.Refusal.Detail != "nor such a listener" {
			t.Errorf("after two NACKs, the active refusal is %+v, want the newer", got.Refusal)
		}
		put("5", 1)
		c.answer("")
		wantStates("after the ACK of the resource refused last", map[string]string{a: "refused", b: "accepted"})
		if got := typeStatus(); !got.Refused || got.Refusal.Detail != "no such filter" {
			t.Errorf("after the ACK of the resource refused last, the active refusal is %+v, want the older", got.Refusal)
		}
		put("6", 0)
		c.answer("")
		wantStates("after the refused resource has changed", map[string]string{a: "accepted", b: "accepted"})
		if got := typeStatus(); got.Refused || got.Refusal == nil {
			t.Errorf("after an ACK, refused is %v and the last refusal %+v, want false and a refusal", got.Refused, got.Refusal)
		}

		for i := range 16 { // more refusals than the server keeps
			put(fmt.Sprint("a", i), 0)
			c.answer("no")
			put(fmt.Sprint("b", i), 1)
			c.answer("")
		}
		put("7", 0)
		c.answer("")
		wantStates("after many ACKs and NACKs", map[string]string{a: "accepted", b: "accepted"})

		if got := server.Holders(wire.ClusterType, a); len(got) != 1 || got[0].Stream != number || got[0].State != Accepted {
			t.Errorf("Holders(%s) = %+v, want one stream in state accepted", a, got)
		}
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
