package relaytest

import (
	"context"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// A clientStream is a gRPC stream of a client.
type clientStream struct {
	rpc    grpc.ClientStream
	cancel context.CancelFunc
	done   chan struct{} // closed when the receiver has returned

	// Guarded by the client's mon.
	nonces    map[string]struct{}
	requested bool // a request was sent
	ended     bool
	err       error
}

// open opens a stream and starts its receiver.
func (c *Client) open(conn *grpc.ClientConn) {
	c.tb.Helper()
	rpc, cancel, err := openStream(c.tb.Context(), conn, c.options.Variant.Method(c.options.TypeURL))
	if err != nil {
		c.tb.Fatalf("%v: open stream: %v", c, err)
	}
	stream := &clientStream{
		rpc: rpc, cancel: cancel, done: make(chan struct{}), nonces: make(map[string]struct{}),
	}
	c.sending.Lock()
	c.mon.Lock()
	c.stream = stream
	c.subs.reset()
	c.mon.Unlock()
	c.sending.Unlock()
	go c.receive(stream) // Close waits for it
}

// openStream opens a stream, which ends when cancel is called or ctx ends. It waits for the connection for at most
// Patience.
func openStream(
	ctx context.Context, conn *grpc.ClientConn, method string, opts ...grpc.CallOption,
) (grpc.ClientStream, context.CancelFunc, error) {
	ctx, cancel := context.WithCancel(ctx)
	impatient := time.AfterFunc(Patience, cancel)
	defer impatient.Stop()
	desc := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	rpc, err := conn.NewStream(ctx, desc, method, append(opts, grpc.WaitForReady(true))...)
	if err != nil {
		cancel()
		return nil, nil, err
	}
	return rpc, cancel, nil
}

// send sends the request that build returns, unless it is nil. build is called with both locks held.
func (c *Client) send(build func() proto.Message) {
	c.sending.Lock()
	defer c.sending.Unlock()
	c.sendLocked(build)
}

// sendLocked is send for callers that hold sending.
func (c *Client) sendLocked(build func() proto.Message) {
	c.mon.Lock()
	req := build()
	if req == nil {
		c.mon.Unlock()
		return
	}
	c.subs.recordNames(req, c.paused)
	if c.options.ImplicitType {
		req = withoutType(req)
	}
	c.mon.Changed()
	stream := c.stream
	stream.requested = true
	c.journal.add("> %s", describe(req))
	c.mon.Unlock()
	_ = stream.rpc.SendMsg(req) // if the stream has ended, Recv returns the error
}

// withNode adds the Node to a request if required. The caller must hold the lock.
func (c *Client) withNode(req proto.Message) proto.Message {
	if c.stream.requested && !c.options.NodeAlways {
		return req
	}
	switch r := req.(type) {
	case *discoverypb.DiscoveryRequest:
		r.Node = c.options.Node
	case *discoverypb.DeltaDiscoveryRequest:
		r.Node = c.options.Node
	}
	return req
}

// withoutType returns a copy of a request without type_url.
func withoutType(req proto.Message) proto.Message {
	req = proto.Clone(req) // the caller may reuse it
	switch r := req.(type) {
	case *discoverypb.DiscoveryRequest:
		r.TypeUrl = ""
	case *discoverypb.DeltaDiscoveryRequest:
		r.TypeUrl = ""
	}
	return req
}

// receive receives and publishes responses until the stream ends.
func (c *Client) receive(stream *clientStream) {
	defer close(stream.done)
	for {
		var msg proto.Message = &discoverypb.DeltaDiscoveryResponse{}
		if c.options.Variant == SotW {
			msg = &discoverypb.DiscoveryResponse{}
		}
		err := stream.rpc.RecvMsg(msg)
		// Not bounded by Patience: Close ends a Pause.
		_ = c.mon.Wait(context.Background(), func() bool { return !c.paused })
		if err != nil {
			c.mon.Lock()
			stream.ended, stream.err = true, err
			c.journal.add("< end: %v", err)
			c.mon.Changed()
			c.mon.Unlock()
			return
		}
		c.publish(stream, NewResponse(msg))
	}
}

// publish answers a response if AutoAck is set, and then makes it visible. A test that waits for a response can rely on
// its ACK.
func (c *Client) publish(stream *clientStream, resp *Response) {
	resp.At = time.Now()
	var rejected error
	if c.options.AutoAck && c.options.Reject != nil {
		rejected = c.options.Reject(resp)
	}
	c.sending.Lock()
	defer c.sending.Unlock()
	c.mon.Lock()
	broken := append(resp.violations(c.options.Variant, c.features, stream.nonces), c.subs.invalidHeartbeats(resp)...)
	c.journal.add("< %v", resp)
	c.mon.Unlock()
	for _, rule := range broken {
		c.tb.Errorf("%v: response violates the protocol: %s: %v", c, rule, resp)
	}
	if c.options.AutoAck {
		c.sendLocked(func() proto.Message { return c.withNode(c.subs.answer(resp, rejected)) })
	}
	c.mon.Lock()
	defer c.mon.Unlock()
	if c.options.AutoAck && rejected == nil {
		c.subs.apply(resp)
	}
	c.responses = append(c.responses, resp)
	c.mon.Changed()
}
