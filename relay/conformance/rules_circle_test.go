package conformance_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/instance"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// A circleClient is a client whose streams have the headers of relays.
type circleClient struct {
	*relaytest.Client
	mu     sync.Mutex
	header func() (metadata.MD, error) // guarded by mu; of the newest stream
}

// through returns a client with the relay tokens of a chain; none for clients that are not relays.
func (r *running) through(v relaytest.Variant, tokens ...string) *circleClient {
	r.t.Helper()
	c := new(circleClient)
	add := func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer,
		opts ...grpc.CallOption) (grpc.ClientStream, error) {
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

// chains returns the chains to origins that the relay announced to the client.
func (c *circleClient) chains(t *testing.T) (chains [][]string) {
	t.Helper()
	c.mu.Lock()
	header := c.header
	c.mu.Unlock()
	md, err := header()
	if err != nil {
		t.Fatal(err)
	}
	for _, way := range md.Get(wire.ChainHeader) {
		chains = append(chains, strings.Split(way, ","))
	}
	return chains
}

// B.41: relay information in a client's Node or headers does not reach the origin's stream of its group, and does
// not reopen it. Otherwise a client could make the origin refuse its whole group.
func TestB41_ClientChainsDoNotReachTheOrigin(t *testing.T) {
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

		forger := r.through(v, "0123", before.Header.Get(wire.RelayHeader)[0][:8])
		forger.Subscribe(typeCDS)
		forger.Recv(t.Context())
		node := relaytest.EnvoyNode("client")
		node.Metadata, _ = structpb.NewStruct(map[string]any{"xds_relay": map[string]any{"via": []any{"a", "b",
			"tender/test"}}})
		other := r.Client(relaytest.ClientOptions{Variant: v, Node: node, AutoAck: true})
		other.Subscribe(typeCDS)
		other.Recv(t.Context())
		sleep(settled)
		state := o.State()
		if len(state.Streams) != 1 || len(state.Open()) != 1 {
			t.Fatalf("the origin had %d streams, want 1", len(state.Streams))
		}
		if tokens := state.Streams[0].Header.Get(wire.RelayHeader); len(tokens) != 1 ||
			strings.Contains(state.Streams[0].Node.String(), "xds_relay") {
			t.Errorf("the origin got the relay tokens %q and the node %v, want only this relay's token", tokens,
				state.Streams[0].Node)
		}
		if all := envoy.Responses(); len(all) != sent {
			t.Errorf("the first client got %v without a change", all[sent:])
		}
	})
}

// B.41: a stream ends if its chain contains this relay or one above it, or too many relays. Only relays are told
// about chains, and only by tokens.
func TestB41_CircularStreamsAreEnded(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(chainResources("1")...)
		top := start(t, o)
		lower := top.downstreamRelay()
		envoy := lower.through(v)
		envoy.Subscribe(typeCDS)
		if resp := envoy.Recv(t.Context()); len(resp.Resources) != 3 ||
			resp.ControlPlane != "" && strings.Contains(resp.ControlPlane, "tender/test") {
			t.Errorf("a client got %v from %q, want three clusters, and not the upper relay's identifier", resp.Names(),
				resp.ControlPlane)
		}
		if chains := envoy.chains(t); len(chains) != 0 {
			t.Errorf("a client that is no relay got the chains %q", chains)
		}
		relay := lower.through(v, "f00d")
		relay.Subscribe(typeCDS)
		relay.Recv(t.Context())
		chains := relay.chains(t)
		if len(chains) != 1 || len(chains[0]) != 2 || chains[0][0] == chains[0][1] {
			t.Fatalf("a relay got the chains %q, want one of two relays", chains)
		}
		for _, tt := range []struct {
			name    string
			tokens  []string
			message string // "" means that the stream is served
		}{
			{"itself", chains[0][:1], "form a cycle"},
			{"the one above", chains[0][1:], "form a cycle"},
			{"the one above, long ago", []string{chains[0][1], "a"}, "form a cycle"},
			{"four", []string{"a", "b", "c", "d"}, ""},
			{"five", []string{"a", "b", "c", "d", "e"}, "at most 4"},
			{"invalid tokens", []string{"", ",", strings.Repeat("x", 1000)}, ""},
		} {
			c := lower.through(v, tt.tokens...)
			c.Subscribe(typeCDS)
			if tt.message == "" {
				c.Recv(t.Context())
				continue
			}
			if err := c.WaitEnd(t.Context()); status.Code(err) != codes.FailedPrecondition ||
				!strings.Contains(err.Error(), tt.message) {
				t.Errorf("%s: the stream ended with %v, want FAILED_PRECONDITION and %q", tt.name, err, tt.message)
			}
		}
		if got := lower.Stats().Ended[guard.EndedChain]; got != 4 {
			t.Errorf("counted %d streams ended for their chain, want 4", got)
		}
		o.Put(relaytest.Cluster("d"))
		for _, c := range []*circleClient{envoy, relay} {
			c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(typeCDS, "a", "b", "c", "d") })
		}
	})
}

// B.41: if a relay connects to its origin later, it ends the stream of a client that is above it, and no other.
func TestB41_LaterCircleEndsTheClientStream(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(chainResources("1")...)
		top := start(t, o)
		probe := top.through(v, "f00d")
		probe.Subscribe(typeCDS)
		probe.Recv(t.Context())
		above := probe.chains(t)[0][0]

		lower := top.downstreamRelay() // connects to its origin for its first client
		upperClient, other := lower.through(v, "a", above), lower.through(v, "b")
		for _, c := range []*circleClient{upperClient, other} {
			c.Subscribe(typeCDS)
		}
		if err := upperClient.WaitEnd(t.Context()); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("the stream of the upper relay ended with %v, want FAILED_PRECONDITION", err)
		}
		other.Recv(t.Context())
		if other.Ended() {
			t.Error("the stream of another relay ended")
		}
	})
}

// B.41: circles of load report streams are ended, too. In passthrough mode the relay adds its token to those of
// the client.
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
			t.Fatalf("got the tokens %q, want a, b and this relay's", tokens)
		}
		first.disconnect()
		report("a", tokens[2]).expectEnd(codes.FailedPrecondition)
		report("a", "b", "c", "d", "e").expectEnd(codes.FailedPrecondition)
		if n := loads.streamCount(); n != 1 {
			t.Errorf("the origin had %d streams, want 1", n)
		}
		if got := r.Stats().Ended[guard.EndedChain]; got != 2 {
			t.Errorf("counted %d streams ended for their chain, want 2", got)
		}
	})
}

// B.41: two relays that are each other's origin log it, and end clients' streams as any relay without an origin
// does. Once one has a control plane, both serve.
func TestB41_TwoRelaysOfEachOther(t *testing.T) {
	t.Parallel() // waits for the backoff of relays
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(chainResources("1")...)
	link := proxy.New(t, "127.0.0.1:1")
	a := startRelay(t, instance.Options{Target: link.Addr()}, "TENDER_COLD_WAIT=1s")
	b := startRelay(t, instance.Options{Target: a.Target}, "TENDER_COLD_WAIT=1s")
	link.Forward(b.Addrs()[0].String())
	for _, r := range []*running{a, b} {
		c := r.Client(relaytest.ClientOptions{})
		c.Subscribe(typeCDS)
		if err := c.WaitEnd(t.Context()); status.Code(err) != codes.Unavailable {
			t.Errorf("the stream ended with %v, want %v", err, codes.Unavailable)
		}
	}
	b.Log.Await(t, 0, "relays form a cycle")
	a.Log.Await(t, 0, "relays form a cycle")

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
