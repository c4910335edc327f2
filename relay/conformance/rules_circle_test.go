package conformance_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// A circleClient is a client whose streams say that they come through relays.
type circleClient struct {
	*relaytest.Client
	mu     sync.Mutex
	header func() (metadata.MD, error) // guarded by mu; of the newest stream
}

// through returns a client whose streams come through relays with these tokens; none is what all clients but relays say.
func (r *running) through(v relaytest.Variant, tokens ...string) *circleClient {
	r.t.Helper()
	c := new(circleClient)
	add := func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		for _, token := range tokens {
			ctx = metadata.AppendToOutgoingContext(ctx, wire.RelayHeader, token)
		}
		stream, err := open(ctx, desc, conn, method, opts...)
		if err == nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.header = stream.Header
		}
		return stream, err
	}
	conn, err := grpc.NewClient(r.Target, append(slices.Clone(r.DialOptions), grpc.WithStreamInterceptor(add))...)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	c.Client = relaytest.NewClient(r.t, conn, relaytest.ClientOptions{Variant: v, AutoAck: true})
	return c
}

// ways returns the ways to origins that the client was shown.
func (c *circleClient) ways(t *testing.T) (ways [][]string) {
	t.Helper()
	c.mu.Lock()
	header := c.header
	c.mu.Unlock()
	md, err := header()
	if err != nil {
		t.Fatal(err)
	}
	for _, way := range md.Get(wire.ChainHeader) {
		ways = append(ways, strings.Split(way, ","))
	}
	return ways
}

// B.41: nothing that a client says of relays, in its Node or in the headers of its stream, reaches the stream that the relay has
// for its group, or opens that anew: a client could have the origin refuse the group, and so every client of it.
func TestB41_ClientsLeaveTheUpstreamStreamAlone(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(chainResources("1")...)
		r := start(t, o)
		envoy := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
		envoy.Subscribe(typeCDS)
		envoy.Recv(t.Context())
		time.Sleep(20 * time.Second)
		before := o.State().Open()[0]
		sent := len(envoy.Responses())

		liar := r.through(v, "0123", before.Header.Get(wire.RelayHeader)[0][:8])
		liar.Subscribe(typeCDS)
		liar.Recv(t.Context())
		node := relaytest.EnvoyNode("client")
		node.Metadata, _ = structpb.NewStruct(map[string]any{"xds_relay": map[string]any{"via": []any{"a", "b", "tender/test"}}})
		other := r.Client(relaytest.ClientOptions{Variant: v, Node: node, AutoAck: true})
		other.Subscribe(typeCDS)
		other.Recv(t.Context())
		time.Sleep(time.Hour)
		synctest.Wait()
		state := o.State()
		if len(state.Streams) != 1 || len(state.Open()) != 1 {
			t.Fatalf("the origin had %d streams, want 1", len(state.Streams))
		}
		if tokens := state.Streams[0].Header.Get(wire.RelayHeader); len(tokens) != 1 || strings.Contains(state.Streams[0].Node.String(), "xds_relay") {
			t.Errorf("the origin was told of the relays %q, and by the node %v; want this relay alone, by its token", tokens, state.Streams[0].Node)
		}
		if all := envoy.Responses(); len(all) != sent {
			t.Errorf("the first client was sent %v, though nothing changed", all[sent:])
		}
	})
}

// B.41: a stream ends that comes through this relay, through one above it, or through too many; no other does. Clients that are
// no relays are told nothing of relays, and relays nothing but tokens.
func TestB41_CirclesEndTheirStreamAlone(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(chainResources("1")...)
		top := start(t, o)
		below := top.downstreamRelay()
		envoy := below.through(v)
		envoy.Subscribe(typeCDS)
		if resp := envoy.Recv(t.Context()); len(resp.Resources) != 3 || resp.ControlPlane != "" && strings.Contains(resp.ControlPlane, "tender/test") {
			t.Errorf("a client was sent %v by %q, want three clusters, and nothing of the relay above", resp.Names(), resp.ControlPlane)
		}
		if ways := envoy.ways(t); len(ways) != 0 {
			t.Errorf("a client that is no relay was shown the ways %q", ways)
		}
		relay := below.through(v, "f00d")
		relay.Subscribe(typeCDS)
		relay.Recv(t.Context())
		ways := relay.ways(t)
		if len(ways) != 1 || len(ways[0]) != 2 || ways[0][0] == ways[0][1] {
			t.Fatalf("a relay was shown the ways %q, want one of two relays", ways)
		}
		for _, tt := range []struct {
			name   string
			tokens []string
			says   string // "" is served
		}{
			{"itself", ways[0][:1], "form a circle"},
			{"the one above", ways[0][1:], "form a circle"},
			{"the one above, long ago", []string{ways[0][1], "a"}, "form a circle"},
			{"four", []string{"a", "b", "c", "d"}, ""},
			{"five", []string{"a", "b", "c", "d", "e"}, "at most 4"},
			{"what is no token", []string{"", ",", strings.Repeat("x", 1000)}, ""},
		} {
			c := below.through(v, tt.tokens...)
			c.Subscribe(typeCDS)
			if tt.says == "" {
				c.Recv(t.Context())
				continue
			}
			if err := c.WaitEnd(t.Context()); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%s: ended with %v, want FAILED_PRECONDITION and %q", tt.name, err, tt.says)
			}
		}
		if got := below.Stats().Ended[guard.EndedChain]; got != 4 {
			t.Errorf("counted %d chains, want 4", got)
		}
		o.Put(relaytest.Cluster("d"))
		for _, c := range []*circleClient{envoy, relay} {
			c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(typeCDS, "a", "b", "c", "d") })
		}
	})
}

// B.41: where a relay learns that a client of it is above it, that stream of the client ends, and no other.
func TestB41_ALaterCircleEndsTheStreamThatClosesIt(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(chainResources("1")...)
		top := start(t, o)
		seer := top.through(v, "f00d")
		seer.Subscribe(typeCDS)
		seer.Recv(t.Context())
		above := seer.ways(t)[0][0]

		below := top.downstreamRelay() // which has no stream to the origin until a client comes
		same, other := below.through(v, "a", above), below.through(v, "b")
		for _, c := range []*circleClient{same, other} {
			c.Subscribe(typeCDS)
		}
		if err := same.WaitEnd(t.Context()); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("the client that is above ended with %v, want FAILED_PRECONDITION", err)
		}
		other.Recv(t.Context())
		if other.Ended() {
			t.Error("the stream of another relay has ended")
		}
	})
}

// B.41: streams of load reports go round in a circle no more than those of ADS. Those that are passed through say all the relays
// that they came through.
func TestB41_LoadReportsInACircle(t *testing.T) {
	t.Parallel()
	loadBubble(t, func(t *testing.T, o *relaytest.Origin, loads *loadOrigin) {
		r := start(t, o, "TENDER_LRS=passthrough")
		report := func(tokens ...string) *loadPeer {
			return r.reports(relaytest.EnvoyNode("below"), metadata.MD{wire.RelayHeader: tokens})
		}
		first := report("a", "b")
		tokens := loads.stream(t, 0).header.Get(wire.RelayHeader)
		if len(tokens) != 3 || !slices.Equal(tokens[:2], []string{"a", "b"}) {
			t.Fatalf("came through %q, want a, b and this relay", tokens)
		}
		first.disconnect()
		report("a", tokens[2]).expectEnd(codes.FailedPrecondition)
		report("a", "b", "c", "d", "e").expectEnd(codes.FailedPrecondition)
		if n := loads.streamCount(); n != 1 {
			t.Errorf("the origin had %d streams, want the first alone", n)
		}
		if got := r.Stats().Ended[guard.EndedChain]; got != 2 {
			t.Errorf("counted %d chains, want 2", got)
		}
	})
}

// B.41: two relays that name each other are told so, by the log and by the clients' streams, which end as those of any relay
// without an origin. Once one has an origin that is a control plane, both serve.
func TestB41_TwoRelaysOfEachOther(t *testing.T) {
	t.Parallel() // it waits for relays that back off
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(chainResources("1")...)
	link := proxy.New(t, "127.0.0.1:1")
	a := startRelay(t, relaytest.RelayOptions{Target: link.Addr()}, "TENDER_COLD_WAIT=1s")
	b := startRelay(t, relaytest.RelayOptions{Target: a.Target}, "TENDER_COLD_WAIT=1s")
	link.Forward(b.Addrs()[0].String())
	for _, r := range []*running{a, b} {
		c := r.Client(relaytest.ClientOptions{})
		c.Subscribe(typeCDS)
		if err := c.WaitEnd(t.Context()); status.Code(err) != codes.Unavailable {
			t.Errorf("ended with %v, want %v", err, codes.Unavailable)
		}
	}
	b.Log.Await(t, 0, "relays form a circle")
	a.Log.Await(t, 0, "relays form a circle")

	marks := []int{a.Log.Len(), b.Log.Len()}
	link.Forward(o.Addr())
	link.Cut()
	for i, r := range []*running{a, b} {
		r.Log.Await(t, marks[i], "response applied")
		c := r.Client(relaytest.ClientOptions{})
		c.Subscribe(typeCDS)
		recvAndAck(t, c, typeCDS, "a", "b", "c")
	}
}
