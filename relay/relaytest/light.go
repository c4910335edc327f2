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

	"github.com/xdstender/tender/relay/relaytest/wait"
)

// LightOptions configure a light client.
type LightOptions struct {
	// Variant is Delta or SotW.
	Variant Variant

	// Node is sent with the first request. Nil means EnvoyNode("light").
	Node *corepb.Node

	// TypeURL has the client open a stream of that type alone. Empty means an
	// aggregated stream.
	TypeURL string

	// OnResource, if set, sees each resource as it arrives, on the client's own
	// goroutine. The value is nil where there is no content. It must not keep the slices.
	OnResource func(typeURL string, name, value []byte)

	// OnRemoved, if set, sees each name that the client had and a response takes away, on
	// the client's own goroutine. It must not call the client.
	OnRemoved func(typeURL, name string)

	// Reject, if set, reports whether the client refuses a resource, on the client's own goroutine. It then refuses the
	// response, but for an Envoy's half: it has the rest of it, and of that resource what it had. It must not keep the slices.
	Reject func(typeURL string, name, value []byte) bool

	// OnOpen, if set, is called when the client has opened a stream, before anything
	// arrives on it.
	OnOpen func()
}

// Counts is how much a light client has received.
type Counts struct {
	Responses int // messages
	Resources int // in them
	Removed   int // names in removed_resources
	Bytes     int // of messages, uncompressed, without gRPC's framing
}

// A LightClient subscribes, accepts all responses unless its options reject them, and keeps only the version and a digest
// of each resource. It has one goroutine, and decodes no message in full. It checks the same rules as a [Client]. Methods
// may be called from any goroutine unless documented otherwise.
type LightClient struct {
	// Set by NewLightClient, read-only afterwards.
	tb      TB
	options LightOptions

	sending sync.Mutex // orders requests, as in Client

	// Guarded by sending.
	rpc       grpc.ClientStream
	requested bool

	mon wait.Monitor

	// Guarded by mon.
	cancel     context.CancelFunc
	done       chan struct{} // closed when the receiver has returned; nil before the first stream
	order      []string      // of subscribed
	subscribed map[string][]string
	versions   map[string]string // version_info that was accepted last, by type
	state      State
	counts     Counts
	paused     bool
	err        error // why the stream ended; nil while it lives

	// Owned by the receiver.
	envelope lightEnvelope
	names    map[string]string   // one string for each name ever seen
	present  map[string]struct{} // names of the response in hand
	nonces   map[uint64]struct{} // hashes, as there may be many
	seed     maphash.Seed
}

// NewLightClient opens a stream on conn, which need not be connected yet. The
// client is closed when tb ends.
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

// Reconnect ends the stream, if there is one, and opens another on conn, as a real client does. It keeps its state and
// subscriptions, and reports its versions. The stream ends with ctx. It returns the error of opening the stream; the
// client then has no stream.
func (c *LightClient) Reconnect(ctx context.Context, conn *grpc.ClientConn) error {
	c.Close()
	rpc, cancel, err := openStream(ctx, conn, c.options.Variant.Method(c.options.TypeURL), grpc.ForceCodecV2(BytesCodec{}))
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

// restate returns the first request of a type on a new stream. Locked.
func (c *LightClient) restate(typeURL string) proto.Message {
	names := c.subscribed[typeURL]
	if c.options.Variant == SotW {
		return c.request(typeURL, names, c.versions[typeURL], "")
	}
	held := make(map[string]string, len(c.state[typeURL]))
	for name, entry := range c.state[typeURL] {
		held[name] = entry.Version
	}
	return &discoverypb.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: names, InitialResourceVersions: held}
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

// Subscribe asks for names of a type, "*" or nothing for the wildcard. It may
// be called once for each type.
func (c *LightClient) Subscribe(typeURL string, names ...string) {
	c.mon.Lock()
	c.order = append(c.order, typeURL)
	c.subscribed[typeURL] = names
	c.mon.Unlock()
	c.send(c.request(typeURL, names, "", ""))
}

// State returns a copy of what the client has.
func (c *LightClient) State() State {
	c.mon.Lock()
	defer c.mon.Unlock()
	return c.state.Clone()
}

// Counts returns how much the client has received so far.
func (c *LightClient) Counts() Counts {
	c.mon.Lock()
	defer c.mon.Unlock()
	return c.counts
}

// WaitState waits until cond holds, which is evaluated after every response was
// applied and answered, and must neither keep the state nor call the client.
// It fails the test if the stream ends before or time runs out.
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

// WaitEnd waits until the stream has ended and returns its error, as
// [Client.WaitEnd] does.
func (c *LightClient) WaitEnd(ctx context.Context) error {
	c.tb.Helper()
	var end error
	if err := c.mon.Await(ctx, func() bool { end = c.err; return end != nil }); err != nil {
		c.tb.Fatalf("%v: wait for the end of the stream: %v", c, err)
	}
	return end
}

// Close ends the stream, if there is one, and waits until nothing more is received.
func (c *LightClient) Close() {
	c.mon.Lock()
	cancel := c.cancel
	c.mon.Unlock()
	if cancel != nil {
		cancel()
		c.wait()
	}
}

// wait returns once the receiver of the stream has.
func (c *LightClient) wait() {
	c.mon.Lock()
	done := c.done
	c.mon.Unlock()
	<-done
}

// String names the client in messages.
func (c *LightClient) String() string {
	return fmt.Sprintf("%v light client %q", c.options.Variant, c.options.Node.GetId())
}

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

func (c *LightClient) receive(rpc grpc.ClientStream, done chan struct{}) {
	defer close(done)
	var b raw
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

// handle checks and applies the response in the envelope, answers it, and then
// lets waiters look.
func (c *LightClient) handle(size int) {
	e := &c.envelope
	c.checkEnvelope(e)
	c.checkNames(e)
	refused := c.reject(e)
	if c.options.OnResource != nil {
		for i := range e.resources {
			c.options.OnResource(e.typeURL, e.resources[i].name, e.resources[i].value)
		}
	}
	c.mon.Lock()
	c.apply(e, size)
	if !refused {
		c.versions[e.typeURL] = e.version
	}
	names, version := c.subscribed[e.typeURL], c.versions[e.typeURL]
	c.mon.Unlock()

	answer := c.request(e.typeURL, names, version, e.nonce)
	if refused {
		makeNACK(answer)
	}
	c.send(answer)
	c.mon.Lock()
	c.mon.Changed()
	c.mon.Unlock()
}

// reject takes the resources out of the envelope that the client refuses, and reports whether there are any.
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

// makeNACK makes an answer a NACK.
func makeNACK(answer proto.Message) {
	why := &statuspb.Status{Code: int32(codes.InvalidArgument), Message: "the client refuses a resource"}
	switch r := answer.(type) {
	case *discoverypb.DiscoveryRequest:
		r.ErrorDetail = why
	case *discoverypb.DeltaDiscoveryRequest:
		r.ErrorDetail = why
	}
}

// apply applies a response to the state. The caller holds the lock.
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

// removeAll takes what the envelope removes, or leaves out of a complete set, out of the
// state. Locked.
func (c *LightClient) removeAll(e *lightEnvelope, entries map[string]Entry) {
	for _, name := range e.removed {
		c.remove(e.typeURL, entries, string(name))
	}
	if c.options.Variant != SotW || !fullState(e.typeURL) || len(entries) <= len(e.resources) {
		return
	}
	for name := range entries {
		if _, ok := c.present[name]; !ok {
			c.remove(e.typeURL, entries, name)
		}
	}
}

// remove takes a resource out of the state, if it is there. Locked.
func (c *LightClient) remove(typeURL string, entries map[string]Entry, name string) {
	if _, had := entries[name]; had && c.options.OnRemoved != nil {
		c.options.OnRemoved(typeURL, name)
	}
	delete(entries, name)
}

func (c *LightClient) checkEnvelope(e *lightEnvelope) {
	hash := maphash.String(c.seed, e.nonce)
	if _, ok := c.nonces[hash]; ok || e.nonce == "" {
		c.violation("its nonce is empty or was used on the stream before")
	}
	c.nonces[hash] = struct{}{}
	if c.options.Variant == SotW && e.version == "" {
		c.violation("version_info is empty")
	}
}

// checkNames fills present.
func (c *LightClient) checkNames(e *lightEnvelope) {
	clear(c.present)
	for i := range e.resources {
		r := &e.resources[i]
		if _, twice := c.present[string(r.name)]; twice || len(r.name) == 0 {
			c.violation("resource %q is in it twice, or has no name", r.name)
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
			c.violation("removed %q is in it before", name)
		}
		c.present[c.intern(name)] = struct{}{}
	}
}

func (c *LightClient) violation(format string, args ...any) {
	c.tb.Errorf("%v: response breaks the protocol: %s: %s nonce=%s", c,
		fmt.Sprintf(format, args...), short(c.envelope.typeURL), c.envelope.nonce)
}

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
		s += fmt.Sprintf("\n  %s subscribed to %s has %s", short(typeURL), list(names), list(c.state.Names(typeURL)))
	}
	return s
}
