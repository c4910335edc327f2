package relaytest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest/wait"
)

// Variant is how a client speaks.
type Variant int

// The variants.
const (
	Delta Variant = iota
	SotW
)

// String returns "delta" or "sotw", for the names of subtests.
func (v Variant) String() string {
	if v == SotW {
		return "sotw"
	}
	return "delta"
}

// ClientOptions configure a client. The zero value is a manual Delta client that identifies as an Envoy.
type ClientOptions struct {
	// Variant is Delta or SotW.
	Variant Variant

	// Node is sent with the first request of a stream. Nil means
	// EnvoyNode("client").
	Node *corepb.Node

	// NodeAlways sends the Node with every request, as Envoy does by default.
	NodeAlways bool

	// TypeURL has the client open a stream of that type alone, which is the
	// only one that it may ask for. Empty means an aggregated stream.
	TypeURL string

	// ImplicitType leaves type_url out of every request on a stream of one type.
	ImplicitType bool

	// AutoAck has the client answer each response by itself.
	AutoAck bool

	// Reject, with AutoAck, decides which responses are NACKed: those for which
	// it returns an error, which becomes the detail. Nil accepts all. It must
	// not call the client.
	Reject func(*Response) error
}

// A Client is an xDS client on one stream. It checks every response against the rules of the protocol. Methods may be
// called from any goroutine unless documented otherwise.
type Client struct {
	// Set by NewClient, read-only afterwards.
	tb       TB
	options  ClientOptions
	features features

	// sending orders requests: what is decided from the state goes out before
	// anything decided later. It is taken before mon, and alone may be held
	// while a message is sent, as there is no other use for a stream then.
	sending sync.Mutex
	stream  *clientStream // guarded by sending and mon together; either is enough to read

	mon wait.Monitor

	// Guarded by mon.
	subscriptions map[string]*subscription
	order         []string // type URLs by first request
	state         State
	aliases       map[string]map[string][]string // as state
	responses     []*Response
	read          int // responses that Recv, Fence or WaitState are past
	paused        bool
	journal       []string
}

// NewClient opens a stream on conn, which need not be connected yet. The client
// is closed when tb ends.
func NewClient(tb TB, conn *grpc.ClientConn, opts ClientOptions) *Client {
	tb.Helper()
	if opts.Node == nil {
		opts.Node = EnvoyNode("client")
	}
	if opts.Variant.Method(opts.TypeURL) == "" {
		tb.Fatalf("%v client: the protocol has no such stream of %s", opts.Variant, opts.TypeURL)
	}
	c := &Client{
		tb:            tb,
		options:       opts,
		features:      featuresOf(opts.Node),
		subscriptions: make(map[string]*subscription),
		state:         make(State),
		aliases:       make(map[string]map[string][]string),
	}
	c.open(conn)
	wait.Cleanup(tb, c.Close)
	return c
}

// Send sends a request of the client's variant as it is, without a Node where
// it has none. The client keeps account of the names in it.
func (c *Client) Send(req proto.Message) {
	c.send(func() proto.Message { return req })
}

// Subscribe asks for more names of a type, or for the wildcard ("*"). Without
// names it sends a request without names, which on a fresh stream is the
// legacy form of the wildcard.
func (c *Client) Subscribe(typeURL string, names ...string) {
	c.send(func() proto.Message { return c.withNode(c.subscription(typeURL).subscribe(c.options.Variant, names)) })
}

// Unsubscribe gives names up, or the wildcard ("*").
func (c *Client) Unsubscribe(typeURL string, names ...string) {
	c.send(func() proto.Message { return c.withNode(c.subscription(typeURL).unsubscribe(c.options.Variant, names)) })
}

// Ack accepts a response and applies it to the client's state.
func (c *Client) Ack(resp *Response) {
	c.sending.Lock()
	defer c.sending.Unlock()
	c.sendLocked(func() proto.Message { return c.acknowledge(resp, nil) })
	c.mon.Lock()
	defer c.mon.Unlock()
	c.apply(resp)
	c.mon.Changed()
}

// Nack refuses a response.
func (c *Client) Nack(resp *Response, detail string) {
	c.send(func() proto.Message { return c.acknowledge(resp, errors.New(detail)) })
}

// Recv returns the next response. It fails the test if there is none in time
// or the stream has ended.
func (c *Client) Recv(ctx context.Context) *Response {
	c.tb.Helper()
	var resp *Response
	err := c.mon.Await(ctx, func() bool {
		resp = c.next()
		return resp != nil || c.stream.ended
	})
	c.failUnless("receive response", err, resp != nil)
	return resp
}

// TryRecv returns the next response if it is there already, else nil. In a
// synctest bubble, after synctest.Wait, nil means that nothing was sent.
func (c *Client) TryRecv() *Response {
	c.mon.Lock()
	defer c.mon.Unlock()
	return c.next()
}

// State returns a copy of what the client has accepted and still wants.
func (c *Client) State() State {
	c.mon.Lock()
	defer c.mon.Unlock()
	return c.state.Clone()
}

// Responses returns every response so far, over all streams, read or not.
func (c *Client) Responses() []*Response {
	c.mon.Lock()
	defer c.mon.Unlock()
	return slices.Clone(c.responses)
}

// WaitState waits until cond returns true. cond is evaluated after every response (with AutoAck: after the ACK was
// sent); it must neither keep the state nor call the client. Responses received until then count as read. The test
// fails if the stream ends or the timeout expires.
func (c *Client) WaitState(ctx context.Context, cond func(State) bool) {
	c.tb.Helper()
	met := false
	err := c.mon.Await(ctx, func() bool {
		if met = cond(c.state); met {
			c.read = len(c.responses)
		}
		return met || c.stream.ended
	})
	c.failUnless("wait for state", err, met)
}

// Fence shows that nothing is on its way to the client. It calls change, which
// must have the origin change the one resource name of a type, to which the
// client is subscribed, and fails the test unless the next response is that
// change and nothing else. A full-state response may hold other resources if
// they are as the client has them. The response is accepted.
func (c *Client) Fence(ctx context.Context, typeURL, name string, change func()) *Response {
	c.tb.Helper()
	return c.fence(ctx, typeURL, name, change, func(State, *Response) bool { return false })
}

// FenceReconnected is Fence for a client that has returned: responses before the change that repeat what it has, or that it lacks, do
// not count (B.3).
func (c *Client) FenceReconnected(ctx context.Context, typeURL, name string, change func()) *Response {
	c.tb.Helper()
	return c.fence(ctx, typeURL, name, change, changesNothing)
}

// fence is Fence, but responses before the change do not count that ignore returns true for.
func (c *Client) fence(ctx context.Context, typeURL, name string, change func(), ignore func(State, *Response) bool) *Response {
	c.tb.Helper()
	before := c.State()
	change()
	for {
		resp := c.Recv(ctx)
		if !c.options.AutoAck {
			c.Ack(resp)
		}
		what := unexpected(before, resp, typeURL, name)
		if what == "" {
			return resp
		}
		if !ignore(before, resp) {
			c.tb.Fatalf("%v: the next response is not the change of %s %q alone: %s\n got %v\n%s",
				c, short(typeURL), name, what, resp, c.dump())
		}
	}
}

// Pause stops reading from the stream, so that a server finds a slow client.
// One response may still be taken from the transport; it is shown, checked and
// answered only after Resume.
func (c *Client) Pause() { c.pause(true) }

// Resume ends a Pause.
func (c *Client) Resume() { c.pause(false) }

// CloseSend ends the client's side of the stream.
func (c *Client) CloseSend() {
	c.sending.Lock()
	defer c.sending.Unlock()
	_ = c.stream.rpc.CloseSend() // if the stream has ended, Recv returns the error
}

// WaitEnd waits until the stream has ended and returns its error: io.EOF for
// OK, else a gRPC status. It fails the test if that does not come to pass in
// time.
func (c *Client) WaitEnd(ctx context.Context) error {
	c.tb.Helper()
	var end error
	if err := c.mon.Await(ctx, func() bool { end = c.stream.err; return c.stream.ended }); err != nil {
		c.tb.Fatalf("%v: wait for the end of the stream: %v\n%s", c, err, c.dump())
	}
	return end
}

// Ended reports whether the stream has ended.
func (c *Client) Ended() bool {
	c.mon.Lock()
	defer c.mon.Unlock()
	return c.stream.ended
}

// Reconnect ends the stream and opens one on conn, as a real client does. It keeps its state and subscriptions, and
// reports its versions (version_info, initial_resource_versions).
func (c *Client) Reconnect(conn *grpc.ClientConn) {
	c.tb.Helper()
	c.Close()
	c.mon.Lock()
	order := slices.Clone(c.order)
	c.mon.Unlock()
	c.open(conn)
	for _, typeURL := range order {
		c.send(func() proto.Message {
			if req := c.subscription(typeURL).restate(c.options.Variant, c.state[typeURL]); req != nil {
				return c.withNode(req)
			}
			return nil
		})
	}
}

// Close ends the stream and waits until nothing more is received.
func (c *Client) Close() {
	c.mon.Lock()
	stream := c.stream
	c.paused = false
	c.mon.Changed()
	c.mon.Unlock()
	stream.cancel()
	<-stream.done
}

// String names the client in messages.
func (c *Client) String() string {
	if c.options.TypeURL != "" {
		return fmt.Sprintf("%v client %q of %s", c.options.Variant, c.options.Node.GetId(), short(c.options.TypeURL))
	}
	return fmt.Sprintf("%v client %q", c.options.Variant, c.options.Node.GetId())
}

func (c *Client) pause(paused bool) {
	c.mon.Lock()
	defer c.mon.Unlock()
	c.paused = paused
	c.mon.Changed()
}

// next returns the first response not read, if any. Locked.
func (c *Client) next() *Response {
	if c.read == len(c.responses) {
		return nil
	}
	c.read++
	return c.responses[c.read-1]
}

func (c *Client) failUnless(what string, err error, ok bool) {
	c.tb.Helper()
	switch {
	case err != nil:
		c.tb.Fatalf("%v: %s: %v\n%s", c, what, err, c.dump())
	case !ok:
		c.mon.Lock()
		end := c.stream.err
		c.mon.Unlock()
		c.tb.Fatalf("%v: %s: the stream has ended: %v\n%s", c, what, end, c.dump())
	}
}

// logEvent keeps the last events for dump. Locked.
func (c *Client) logEvent(format string, args ...any) {
	const most = 40
	c.journal = append(c.journal, fmt.Sprintf(format, args...))
	if len(c.journal) > 2*most {
		c.journal = slices.Clone(c.journal[most:])
	}
}

// dump returns the conversation for the log of a failed test.
func (c *Client) dump() string {
	c.mon.Lock()
	defer c.mon.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "%v: %d responses, %d read", c, len(c.responses), c.read)
	for _, typeURL := range c.order {
		fmt.Fprintf(&b, "\n  %s subscribed to %s has %s", short(typeURL),
			list(c.subscriptions[typeURL].names), list(c.state.Names(typeURL)))
	}
	for _, line := range c.journal {
		b.WriteString("\n  " + line)
	}
	return b.String()
}
