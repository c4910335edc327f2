package relaytest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest/codec"
	"github.com/xdstender/tender/relay/relaytest/wait"
)

// LightOptions configure a light client.
type LightOptions struct {
	// Variant is Delta or SotW.
	Variant Variant

	// Node is sent with the first request. If nil, it is EnvoyNode("light").
	Node *corepb.Node

	// TypeURL opens a stream of one type instead of an aggregated stream.
	TypeURL string

	// OnResource, if set, is called with each received resource, in the goroutine of the client. The value is nil if there
	// is no content. It must not keep the slices.
	OnResource func(typeURL string, name, value []byte)

	// OnRemoved, if set, is called with each name that a response removes from the state, in the goroutine of the client.
	// It must not call the client.
	OnRemoved func(typeURL, name string)

	// Reject, if set, reports whether the client rejects a resource, in the goroutine of the client. The client then sends
	// a NACK, but applies the other resources of the response as an Envoy does. It must not keep the slices.
	Reject func(typeURL string, name, value []byte) bool

	// OnOpen, if set, is called when the client has opened a stream, before the first response.
	OnOpen func()
}

// Counts are the numbers of messages that a light client has received.
type Counts struct {
	Responses int // number of messages
	Resources int // number of resources in them
	Removed   int // number of names in removed_resources
	Bytes     int // size of messages, uncompressed, without gRPC framing
}

// A LightClient subscribes, accepts all responses unless its options reject them, and keeps only the version and a
// digest of each resource. It has one goroutine, and does not decode messages in full. It checks the same rules as a
// [Client]. Its methods may be called from any goroutine unless documented otherwise.
type LightClient struct {
	// Immutable after NewLightClient.
	tb      TB
	options LightOptions

	sending sync.Mutex // orders requests, as Client.sending

	// Guarded by sending.
	rpc       grpc.ClientStream
	requested bool

	mon wait.Monitor

	// Guarded by mon.
	cancel     context.CancelFunc
	done       chan struct{} // closed when the receiver has ended; nil before the first stream
	order      []string      // type URLs in the order of subscription
	subscribed map[string][]string
	versions   map[string]string // last accepted version_info by type
	state      State
	counts     Counts
	paused     bool
	err        error // error of the ended stream; nil while it is open

	// Owned by the receiver.
	envelope lightEnvelope
	names    map[string]string   // interned names
	present  map[string]struct{} // names in the current response
	nonces   map[uint64]struct{} // hashes of nonces, to save memory
	seed     maphash.Seed
}

// NewLightClient opens a stream on conn, which need not be connected yet. The client is closed when tb ends.
func NewLightClient(tb TB, conn *grpc.ClientConn, opts LightOptions) *LightClient {
	tb.Helper()
	c := newLightClient(tb, opts)
	if err := c.Reconnect(tb.Context(), conn); err != nil {
		tb.Fatalf("%v: open stream: %v", c, err)
	}
	wait.Cleanup(tb, c.Close)
	return c
}

func newLightClient(tb TB, opts LightOptions) *LightClient {
	if opts.Node == nil {
		opts.Node = EnvoyNode("light")
	}
	return &LightClient{
		tb:         tb,
		options:    opts,
		subscribed: make(map[string][]string),
		versions:   make(map[string]string),
		state:      make(State),
		names:      make(map[string]string),
		present:    make(map[string]struct{}),
		seed:       maphash.MakeSeed(),
	}
}

// Reconnect closes the stream, if there is one, and opens another on conn, as a real client does. The client keeps its
// state and subscriptions, and reports its versions. The stream ends with ctx. If the stream cannot be opened,
// Reconnect returns the error, and the client has no stream.
func (c *LightClient) Reconnect(ctx context.Context, conn *grpc.ClientConn) error {
	c.Close()
	method := c.options.Variant.Method(c.options.TypeURL)
	rpc, cancel, err := openStream(ctx, conn, method, grpc.ForceCodecV2(codec.Bytes{}))
	if err != nil {
		return err
	}
	done := make(chan struct{})
	c.sending.Lock()
	c.rpc, c.requested = rpc, false
	c.sending.Unlock()
	c.mon.Lock()
	c.cancel, c.done, c.err = cancel, done, nil
	var requests []proto.Message
	for _, typeURL := range c.order {
		requests = append(requests, c.restate(typeURL))
	}
	c.mon.Unlock()
	c.nonces = make(map[uint64]struct{})
	if c.options.OnOpen != nil {
		c.options.OnOpen()
	}
	go c.receive(rpc, done) // Close waits for it
	for _, req := range requests {
		c.send(req)
	}
	return nil
}

// restate returns the first request of a type on a new stream. The caller must hold the lock.
func (c *LightClient) restate(typeURL string) proto.Message {
	names := c.subscribed[typeURL]
	if c.options.Variant == SotW {
		return c.request(typeURL, names, c.versions[typeURL], "")
	}
	held := make(map[string]string, len(c.state[typeURL]))
	for name, entry := range c.state[typeURL] {
		held[name] = entry.Version
	}
	return &discoverypb.DeltaDiscoveryRequest{
		TypeUrl: typeURL, ResourceNamesSubscribe: names, InitialResourceVersions: held,
	}
}

// Pause stops reading from the stream, as [Client.Pause] does.
func (c *LightClient) Pause() { c.pause(true) }

// Resume ends a Pause.
func (c *LightClient) Resume() { c.pause(false) }

func (c *LightClient) pause(paused bool) {
	c.mon.Lock()
	defer c.mon.Unlock()
	c.paused = paused
	c.mon.Changed()
}

// Subscribe subscribes to names of a type, or to the wildcard for "*" or no names. It may be called once per type.
func (c *LightClient) Subscribe(typeURL string, names ...string) {
	c.mon.Lock()
	c.order = append(c.order, typeURL)
	c.subscribed[typeURL] = names
	c.mon.Unlock()
	c.send(c.request(typeURL, names, "", ""))
}

// State returns a copy of the state of the client.
func (c *LightClient) State() State {
	c.mon.Lock()
	defer c.mon.Unlock()
	return c.state.Clone()
}

// Counts returns the numbers of messages received so far.
func (c *LightClient) Counts() Counts {
	c.mon.Lock()
	defer c.mon.Unlock()
	return c.counts
}

// WaitState waits until cond returns true. cond is evaluated after every response was applied and answered; it must
// neither keep the state nor call the client. The test fails if the stream ends or the timeout expires.
func (c *LightClient) WaitState(ctx context.Context, cond func(State) bool) {
	c.tb.Helper()
	met := false
	err := c.mon.Await(ctx, func() bool {
		met = cond(c.state)
		return met || c.err != nil
	})
	if err != nil || !met {
		c.mon.Lock()
		defer c.mon.Unlock()
		c.tb.Fatalf("%v: wait for state: %v, stream ended: %v\n%s", c, err, c.err, c.dump())
	}
}

// WaitEnd waits until the stream has ended, and returns its error, as [Client.WaitEnd] does.
func (c *LightClient) WaitEnd(ctx context.Context) error {
	c.tb.Helper()
	var end error
	if err := c.mon.Await(ctx, func() bool { end = c.err; return end != nil }); err != nil {
		c.tb.Fatalf("%v: wait for the end of the stream: %v", c, err)
	}
	return end
}

// Close closes the stream, if there is one, and waits until its receiver has ended.
func (c *LightClient) Close() {
	c.mon.Lock()
	cancel := c.cancel
	c.mon.Unlock()
	if cancel != nil {
		cancel()
		c.wait()
	}
}

// wait waits until the receiver of the stream has ended.
func (c *LightClient) wait() {
	c.mon.Lock()
	done := c.done
	c.mon.Unlock()
	<-done
}

// String returns the name of the client in messages.
func (c *LightClient) String() string {
	return fmt.Sprintf("%v light client %q", c.options.Variant, c.options.Node.GetId())
}

// request returns a request of the variant. A Delta request with a nonce is an ACK without names.
func (c *LightClient) request(typeURL string, names []string, version, nonce string) proto.Message {
	if c.options.Variant == SotW {
		return &discoverypb.DiscoveryRequest{TypeUrl: typeURL, ResourceNames: names,
			VersionInfo: version, ResponseNonce: nonce}
	}
	if nonce != "" {
		names = nil
	}
	return &discoverypb.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: names, ResponseNonce: nonce}
}

// send sends a request, with the Node if it is the first of the stream.
func (c *LightClient) send(req proto.Message) {
	c.sending.Lock()
	defer c.sending.Unlock()
	if !c.requested {
		c.requested = true
		switch r := req.(type) {
		case *discoverypb.DiscoveryRequest:
			r.Node = c.options.Node
		case *discoverypb.DeltaDiscoveryRequest:
			r.Node = c.options.Node
		}
	}
	_ = c.rpc.SendMsg(req) // if the stream has ended, the receiver returns the error
}

// receive receives and handles responses until the stream ends.
func (c *LightClient) receive(rpc grpc.ClientStream, done chan struct{}) {
	defer close(done)
	var b codec.Raw
	for {
		err := rpc.RecvMsg(&b)
		if err == nil {
			err = c.envelope.parse(b, c.options.Variant)
		}
		if err == nil {
			err = c.mon.Wait(rpc.Context(), func() bool { return !c.paused })
		}
		if err != nil {
			c.mon.Lock()
			c.err = err
			c.mon.Changed()
			c.mon.Unlock()
			return
		}
		c.handle(len(b))
	}
}

// handle checks, applies and answers the response in the envelope, and then wakes waiters.
func (c *LightClient) handle(size int) {
	e := &c.envelope
	c.checkEnvelope(e)
	c.checkNames(e)
	rejected := c.reject(e)
	if c.options.OnResource != nil {
		for i := range e.resources {
			c.options.OnResource(e.typeURL, e.resources[i].name, e.resources[i].value)
		}
	}
	c.mon.Lock()
	c.apply(e, size)
	if !rejected {
		c.versions[e.typeURL] = e.version
	}
	names, version := c.subscribed[e.typeURL], c.versions[e.typeURL]
	c.mon.Unlock()

	answer := c.request(e.typeURL, names, version, e.nonce)
	if rejected {
		makeNACK(answer)
	}
	c.send(answer)
	c.mon.Lock()
	c.mon.Changed()
	c.mon.Unlock()
}

// reject removes the rejected resources from the envelope, and reports whether there are any.
func (c *LightClient) reject(e *lightEnvelope) bool {
	if c.options.Reject == nil {
		return false
	}
	all := len(e.resources)
	e.resources = slices.DeleteFunc(e.resources, func(r lightResource) bool {
		return r.hasBody && c.options.Reject(e.typeURL, r.name, r.value)
	})
	return len(e.resources) < all
}

// makeNACK turns an ACK into a NACK.
func makeNACK(answer proto.Message) {
	why := &statuspb.Status{Code: int32(codes.InvalidArgument), Message: "the client rejects a resource"}
	switch r := answer.(type) {
	case *discoverypb.DiscoveryRequest:
		r.ErrorDetail = why
	case *discoverypb.DeltaDiscoveryRequest:
		r.ErrorDetail = why
	}
}

// apply applies a response to the state. The caller must hold the lock.
func (c *LightClient) apply(e *lightEnvelope, size int) {
	entries := c.state.entries(e.typeURL)
	for i := range e.resources {
		r := &e.resources[i]
		entry := Entry{Version: e.version}
		if c.options.Variant == Delta {
			entry.Version = string(r.version)
		}
		name := c.intern(r.name)
		if r.hasBody {
			entry.Digest = sha256.Sum256(r.value)
		} else if old, had := entries[name]; had && (c.options.Variant == SotW || old.Version == entry.Version) {
			continue // a heartbeat
		}
		entries[name] = entry
	}
	c.removeAll(e, entries)
	c.counts.Responses++
	c.counts.Resources += len(e.resources)
	c.counts.Removed += len(e.removed)
	c.counts.Bytes += size
}

// removeAll removes the resources that the envelope removes, or that are absent from a complete set. The caller must
// hold the lock.
func (c *LightClient) removeAll(e *lightEnvelope, entries map[string]Entry) {
	for _, name := range e.removed {
		c.remove(e.typeURL, entries, string(name))
	}
	if c.options.Variant != SotW || !FullState(e.typeURL) || len(entries) <= len(e.resources) {
		return
	}
	for name := range entries {
		if _, ok := c.present[name]; !ok {
			c.remove(e.typeURL, entries, name)
		}
	}
}

// remove removes a resource from the state, if it is present. The caller must hold the lock.
func (c *LightClient) remove(typeURL string, entries map[string]Entry, name string) {
	if _, had := entries[name]; had && c.options.OnRemoved != nil {
		c.options.OnRemoved(typeURL, name)
	}
	delete(entries, name)
}

// checkEnvelope checks the nonce and the version of a response.
func (c *LightClient) checkEnvelope(e *lightEnvelope) {
	hash := maphash.String(c.seed, e.nonce)
	if _, ok := c.nonces[hash]; ok || e.nonce == "" {
		c.violation("the nonce is empty, or a duplicate on this stream")
	}
	c.nonces[hash] = struct{}{}
	if c.options.Variant == SotW && e.version == "" {
		c.violation("version_info is empty")
	}
}

// checkNames checks the names and types of resources, and fills present.
func (c *LightClient) checkNames(e *lightEnvelope) {
	clear(c.present)
	for i := range e.resources {
		r := &e.resources[i]
		if _, twice := c.present[string(r.name)]; twice || len(r.name) == 0 {
			c.violation("resource %q is a duplicate, or has no name", r.name)
		}
		c.present[c.intern(r.name)] = struct{}{}
		if r.hasBody && string(r.typeURL) != e.typeURL {
			c.violation("resource %q has type %s", r.name, r.typeURL)
		}
		if c.options.Variant == SotW && !r.hasBody {
			c.violation("resource %q has no content", r.name)
		}
		if c.options.Variant == Delta && len(r.version) == 0 {
			c.violation("resource %q has no version", r.name)
		}
	}
	for _, name := range e.removed {
		if _, twice := c.present[string(name)]; twice {
			c.violation("removed %q is also a resource, or a duplicate", name)
		}
		c.present[c.intern(name)] = struct{}{}
	}
}

func (c *LightClient) violation(format string, args ...any) {
	c.tb.Errorf("%v: response violates the protocol: %s: %s nonce=%s", c,
		fmt.Sprintf(format, args...), ShortType(c.envelope.typeURL), c.envelope.nonce)
}

// intern returns a name as a string, without an allocation for known names.
func (c *LightClient) intern(name []byte) string {
	s, ok := c.names[string(name)]
	if !ok {
		s = string(name)
		c.names[s] = s
	}
	return s
}

func (c *LightClient) dump() string {
	s := fmt.Sprintf("%+v", c.counts)
	for typeURL, names := range c.subscribed {
		s += fmt.Sprintf("\n  %s subscribed to %s has %s", ShortType(typeURL), list(names), list(c.state.Names(typeURL)))
	}
	return s
}
