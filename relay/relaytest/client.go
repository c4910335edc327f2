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

// ClientOptions configure a client. The zero value is a manual Delta client that identifies as an Envoy.
type ClientOptions struct {
	// Variant is Delta or SotW.
	Variant Variant

	// Node is sent with the first request of a stream. If nil, it is EnvoyNode("client").
	Node *corepb.Node

	// NodeAlways sends the Node with every request, as Envoy does by default.
	NodeAlways bool

	// TypeURL opens a stream of one type instead of an aggregated stream. The client may then request this type only.
	TypeURL string

	// ImplicitType omits type_url from the requests on a stream of one type.
	ImplicitType bool

	// AutoAck sends an ACK or a NACK for each response.
	AutoAck bool

	// Reject returns an error for responses that AutoAck answers by a NACK; the error becomes the detail. If nil, all
	// responses are accepted. It must not call the client.
	Reject func(*Response) error
}

// A Client is an xDS client with one stream at a time. It checks each response against the rules of the protocol. Its
// methods may be called from any goroutine unless documented otherwise.
type Client struct {
	// Immutable after NewClient.
	tb       TB
	options  ClientOptions
	features features

	// sending orders requests: a request that was built from an earlier state is sent earlier. It is locked before mon. It
	// is held while a message is sent; mon is not.
	sending sync.Mutex
	stream  *clientStream // written with both sending and mon locked; read with either

	mon wait.Monitor

	// Guarded by mon.
	subs      *subscriptions
	responses []*Response
	read      int // number of responses that Recv, Fence or WaitState have returned
	paused    bool
	journal   journal
}

// NewClient opens a stream on conn, which need not be connected yet. The client is closed when tb ends.
func NewClient(tb TB, conn *grpc.ClientConn, opts ClientOptions) *Client {
	tb.Helper()
	if opts.Node == nil {
		opts.Node = EnvoyNode("client")
	}
	if opts.Variant.Method(opts.TypeURL) == "" {
		tb.Fatalf("%v client: the protocol has no stream for %s in this variant", opts.Variant, opts.TypeURL)
	}
	c := &Client{
		tb:       tb,
		options:  opts,
		features: featuresOf(opts.Node),
		subs:     newSubscriptions(opts.Variant),
	}
	c.open(conn)
	wait.Cleanup(tb, c.Close)
	return c
}

// Send sends a request of the client's variant without changes, and records the names in it.
func (c *Client) Send(req proto.Message) {
	c.send(func() proto.Message { return req })
}

// Subscribe subscribes to names of a type, or to the wildcard ("*"). Without names, it sends a request without names,
// which on a new stream is the legacy wildcard.
func (c *Client) Subscribe(typeURL string, names ...string) {
	c.send(func() proto.Message { return c.withNode(c.subs.of(typeURL).subscribe(c.options.Variant, names)) })
}

// Unsubscribe unsubscribes from names of a type, or from the wildcard ("*").
func (c *Client) Unsubscribe(typeURL string, names ...string) {
	c.send(func() proto.Message { return c.withNode(c.subs.of(typeURL).unsubscribe(c.options.Variant, names)) })
}

// Ack sends an ACK for a response, and applies the response to the state.
func (c *Client) Ack(resp *Response) {
	c.sending.Lock()
	defer c.sending.Unlock()
	c.sendLocked(func() proto.Message { return c.withNode(c.subs.answer(resp, nil)) })
	c.mon.Lock()
	defer c.mon.Unlock()
	c.subs.apply(resp)
	c.mon.Changed()
}

// Nack sends a NACK for a response.
func (c *Client) Nack(resp *Response, detail string) {
	c.send(func() proto.Message { return c.withNode(c.subs.answer(resp, errors.New(detail))) })
}

// Recv returns the next response. It fails the test on a timeout, or if the stream has ended.
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

// TryRecv returns the next response, or nil if none has arrived. In a synctest bubble, after synctest.Wait, nil means
// that nothing was sent.
func (c *Client) TryRecv() *Response {
	c.mon.Lock()
	defer c.mon.Unlock()
	return c.next()
}

// State returns a copy of the accepted resources to which the client is subscribed.
func (c *Client) State() State {
	c.mon.Lock()
	defer c.mon.Unlock()
	return c.subs.resources.Clone()
}

// Responses returns all responses so far, over all streams, including unread ones.
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
		if met = cond(c.subs.resources); met {
			c.read = len(c.responses)
		}
		return met || c.stream.ended
	})
	c.failUnless("wait for state", err, met)
}

// Pause stops reading from the stream, to simulate a slow client. One response may still be received; it is checked and
// answered after Resume.
func (c *Client) Pause() { c.pause(true) }

// Resume ends a Pause.
func (c *Client) Resume() { c.pause(false) }

// CloseSend closes the sending side of the stream.
func (c *Client) CloseSend() {
	c.sending.Lock()
	defer c.sending.Unlock()
	_ = c.stream.rpc.CloseSend() // if the stream has ended, Recv returns the error
}

// WaitEnd waits until the stream has ended, and returns its error: io.EOF for OK, else a gRPC status. It fails the test
// on a timeout.
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

// Reconnect closes the stream and opens another on conn, as a real client does. The client keeps its state and
// subscriptions, and reports its versions (version_info, initial_resource_versions).
func (c *Client) Reconnect(conn *grpc.ClientConn) {
	c.tb.Helper()
	c.Close()
	c.mon.Lock()
	order := slices.Clone(c.subs.order)
	c.mon.Unlock()
	c.open(conn)
	for _, typeURL := range order {
		c.send(func() proto.Message {
			if req := c.subs.of(typeURL).restate(c.options.Variant, c.subs.resources[typeURL]); req != nil {
				return c.withNode(req)
			}
			return nil
		})
	}
}

// Close closes the stream, and waits until its receiver has ended.
func (c *Client) Close() {
	c.mon.Lock()
	stream := c.stream
	c.paused = false
	c.mon.Changed()
	c.mon.Unlock()
	stream.cancel()
	<-stream.done
}

// String returns the name of the client in messages.
func (c *Client) String() string {
	if c.options.TypeURL != "" {
		return fmt.Sprintf("%v client %q of %s", c.options.Variant, c.options.Node.GetId(), ShortType(c.options.TypeURL))
	}
	return fmt.Sprintf("%v client %q", c.options.Variant, c.options.Node.GetId())
}

func (c *Client) pause(paused bool) {
	c.mon.Lock()
	defer c.mon.Unlock()
	c.paused = paused
	c.mon.Changed()
}

// next returns the first unread response, or nil. The caller must hold the lock.
func (c *Client) next() *Response {
	if c.read == len(c.responses) {
		return nil
	}
	c.read++
	return c.responses[c.read-1]
}

// failUnless fails the test if a wait returned an error, or if ok is false because the stream has ended.
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

// dump returns the state and the last events of the client, for the log of a failed test.
func (c *Client) dump() string {
	c.mon.Lock()
	defer c.mon.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "%v: %d responses, %d read", c, len(c.responses), c.read)
	for _, typeURL := range c.subs.order {
		fmt.Fprintf(&b, "\n  %s subscribed to %s has %s", ShortType(typeURL),
			list(c.subs.byType[typeURL].names), list(c.subs.resources.Names(typeURL)))
	}
	for _, line := range c.journal {
		b.WriteString("\n  " + line)
	}
	return b.String()
}

// A journal has the last events of a client.
type journal []string

func (j *journal) add(format string, args ...any) {
	const most = 40
	*j = append(*j, fmt.Sprintf(format, args...))
	if len(*j) > 2*most {
		*j = slices.Clone((*j)[most:])
	}
}
