package relaytest

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/relay/relaytest/codec"
	"github.com/xdstender/tender/relay/relaytest/memnet"
	"github.com/xdstender/tender/relay/relaytest/proxy"
	"github.com/xdstender/tender/relay/relaytest/wait"
)

// OriginOptions configure an origin. The zero value is a correct origin on a free loopback port.
type OriginOptions struct {
	// Address is the host:port to listen on. If empty, it is a free port of 127.0.0.1. In memory it is any name; if empty,
	// "origin".
	Address string

	// Memory replaces the socket by an in-memory network, which a testing/synctest bubble requires. Only connections with
	// DialOptions reach it.
	Memory bool

	// ServerOptions are options of the gRPC server: credentials, keepalive, limits.
	ServerOptions []grpc.ServerOption

	// Register, if set, adds services to each gRPC server that the origin starts.
	Register func(grpc.ServiceRegistrar)

	// Behaviour is the initial behaviour. Change modifies it.
	Behaviour Behaviour
}

// Behaviour configures the responses of an origin. The zero value follows the protocol.
type Behaviour struct {
	// Manual leaves new streams to the test: their requests are recorded, but not answered.
	Manual bool

	// SotW makes the origin implement SotW only instead of Delta only. Streams of the other variant end with
	// UNIMPLEMENTED. It applies to new streams.
	SotW bool

	// Wrap wraps each resource of a SotW response in a Resource message with its name and version. Resources with aliases,
	// or without a body, are always wrapped.
	Wrap bool

	// SilentOnMissing sends nothing for names that do not exist, as go-control-plane does, instead of removals. Names in
	// initial_resource_versions are still removed.
	SilentOnMissing bool

	// IgnoreIRV ignores initial_resource_versions: it sends all resources, and no removals.
	IgnoreIRV bool

	// EmptyVersions omits the versions of resources, as Istio does.
	EmptyVersions bool

	// Duplicate repeats all resources in each response, which violates the protocol.
	Duplicate bool

	// NamedOnly reports which resources are not part of the wildcard set. If nil, all are. It must not call the origin.
	NamedOnly func(typeURL, name string) bool

	// Unresolved reports which missing names are answered as unresolved aliases: with a resource without body and version.
	// If nil, none are. It must not call the origin.
	Unresolved func(typeURL, name string) bool

	// Ends reports whether the origin ends a stream with UNKNOWN that subscribes to a name; "*" is the wildcard, also in
	// the legacy form. If nil, it ends none. It must not call the origin.
	Ends func(typeURL, name string) bool

	// SilentProbes does not answer the probes of relays.
	SilentProbes bool

	// Delay delays each automatic response. The order of responses is kept.
	Delay time.Duration

	// SystemVersion is the system_version_info of automatic Delta responses, and the version_info of SotW responses. If it
	// is empty, each SotW response has a new version_info.
	SystemVersion string

	// ControlPlane is the control_plane.identifier of automatic responses. If it is empty, the field is not set.
	ControlPlane string
}

// An Origin is a scripted ADS server of Delta or SotW. Its methods may be called from any goroutine unless documented
// otherwise.
type Origin struct {
	*Content

	// Immutable after NewOrigin.
	tb      TB
	options OriginOptions
	memory  *memnet.Network // nil on a real socket
	address string          // address of Restart

	// running counts the accept loop, the servers and the receivers of streams. Stop waits for it.
	running sync.WaitGroup

	mon wait.Monitor

	// Guarded by mon.
	behaviour  Behaviour
	contents   []*Content // the default Content is last
	record     OriginState
	streams    []*OriginStream // same order as record.Streams
	accepted   int             // number of streams that Accept has returned
	rejections []*rejection
	frozen     bool
	listener   net.Listener // nil when stopped
	gate       *gate
	servers    []*grpc.Server // the last one takes new connections
}

// NewOrigin starts an origin, which stops when tb ends.
func NewOrigin(tb TB, opts OriginOptions) *Origin {
	tb.Helper()
	o := &Origin{tb: tb, options: opts, behaviour: opts.Behaviour, address: opts.Address}
	if opts.Memory {
		o.memory = &memnet.Network{}
		o.address = cmp.Or(o.address, "origin")
	}
	if o.address == "" {
		o.address = proxy.FreeAddress(tb)
	}
	o.Content = newContent(o, func(*corepb.Node) bool { return true })
	o.contents = []*Content{o.Content}
	if err := o.start(); err != nil {
		tb.Fatalf("start origin: %v", err)
	}
	wait.Cleanup(tb, o.Stop)
	return o
}

// Target returns the gRPC target of the origin, which does not change.
func (o *Origin) Target() string { return "passthrough:///" + o.address }

// Addr returns the host:port of the origin, or its name in memory.
func (o *Origin) Addr() string { return o.address }

// Memory returns the network of the origin, or nil on a real socket.
func (o *Origin) Memory() *memnet.Network { return o.memory }

// DialOptions returns the dial options for a plaintext connection to Target.
func (o *Origin) DialOptions() []grpc.DialOption { return DialOptions(o) }

// DialOptions returns the dial options for plaintext connections to several origins. These are all in memory, with
// different names, or all on sockets.
func DialOptions(origins ...*Origin) []grpc.DialOption {
	opts := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	byName := make(map[string]*memnet.Network)
	for _, o := range origins {
		if o.memory != nil {
			byName[o.address] = o.memory
		}
	}
	if len(byName) == 0 {
		return opts
	}
	return append(opts, grpc.WithContextDialer(func(ctx context.Context, name string) (net.Conn, error) {
		m := byName[name]
		if m == nil {
			return nil, fmt.Errorf("no origin has the name %q", name)
		}
		conn, err := m.Dial(ctx)
		if err != nil {
			return nil, err
		}
		return namedConn{conn, name}, nil
	}))
}

// A namedConn is a connection in memory whose remote address is the name that was dialed.
type namedConn struct {
	net.Conn
	name string
}

// RemoteAddr implements net.Conn.
func (c namedConn) RemoteAddr() net.Addr { return &net.UnixAddr{Name: c.name, Net: "memory"} }

// Dial returns a connection to the origin, which is closed when tb ends.
func (o *Origin) Dial(opts ...grpc.DialOption) *grpc.ClientConn {
	o.tb.Helper()
	conn, err := grpc.NewClient(o.Target(), append(o.DialOptions(), opts...)...)
	if err != nil {
		o.tb.Fatalf("dial origin: %v", err)
	}
	wait.Cleanup(o.tb, func() { _ = conn.Close() }) // fails only if it was closed before
	return conn
}

// Change modifies the behaviour for later responses. Manual and SotW apply to new streams.
func (o *Origin) Change(f func(*Behaviour)) {
	o.mon.Lock()
	defer o.mon.Unlock()
	f(&o.behaviour)
}

// SetControlPlane changes Behaviour.ControlPlane.
func (o *Origin) SetControlPlane(id string) {
	o.Change(func(b *Behaviour) { b.ControlPlane = id })
}

// For returns a new, empty Content for the nodes for which match returns true. match receives the Node of the first
// request of a stream, and must not call the origin. If several match, the Content that was created first is used. A
// stream keeps its Content until it ends.
func (o *Origin) For(match func(*corepb.Node) bool) *Content {
	c := newContent(o, match)
	o.mon.Lock()
	defer o.mon.Unlock()
	o.contents = slices.Insert(o.contents, len(o.contents)-1, c)
	return c
}

// Inject sends resp on every open Delta stream with a request for its type. If resp has no nonce, each stream adds its
// own.
func (o *Origin) Inject(resp *discoverypb.DeltaDiscoveryResponse) {
	o.mon.Lock()
	defer o.mon.Unlock()
	for _, s := range o.streams {
		if s.record.Types[resp.GetTypeUrl()] != nil && !s.record.SotW {
			s.enqueue(s.withNonce(resp), 0)
		}
	}
	o.mon.Changed()
}

// A rejection is the status for streams of some nodes.
type rejection struct {
	match  func(*corepb.Node) bool
	status *status.Status
}

// Refuse ends the streams of the nodes for which match returns true with a status, and rejects their new streams until
// allow is called. match must not call the origin.
func (o *Origin) Refuse(match func(*corepb.Node) bool, st *status.Status) (allow func()) {
	o.mon.Lock()
	defer o.mon.Unlock()
	r := &rejection{match: match, status: st}
	o.rejections = append(o.rejections, r)
	for _, s := range o.streams {
		if s.content != nil && match(s.record.Node) {
			s.enqueueOutgoing(outgoing{message: st})
		}
	}
	return func() {
		o.mon.Lock()
		defer o.mon.Unlock()
		o.rejections = slices.DeleteFunc(o.rejections, func(other *rejection) bool { return other == r })
	}
}

// Stop closes the listener, connections and streams of the origin. Its content and records are kept.
func (o *Origin) Stop() {
	o.mon.Lock()
	listener, servers, g := o.listener, o.servers, o.gate
	o.listener, o.servers, o.gate = nil, nil, nil
	o.mon.Unlock()
	if listener == nil {
		return
	}
	_ = listener.Close() // ends the accept loop
	_ = g.Close()
	for _, server := range servers {
		server.Stop()
	}
	o.running.Wait()
}

// Restart stops the origin, if it runs, and starts it on the same address with the same content.
func (o *Origin) Restart() {
	o.tb.Helper()
	o.Stop()
	if err := o.start(); err != nil {
		o.tb.Fatalf("restart origin: %v", err)
	}
}

// GoAway sends GOAWAY on every connection, as a draining server. Streams continue until the peers close them, and new
// connections are accepted.
func (o *Origin) GoAway() {
	o.mon.Lock()
	defer o.mon.Unlock()
	if o.listener == nil {
		return
	}
	draining := o.servers[len(o.servers)-1]
	o.serve()
	o.running.Go(draining.GracefulStop) // ends with the streams, or with Stop
}

// Freeze suspends the origin with open connections: nothing is read or written until Freeze(false).
func (o *Origin) Freeze(frozen bool) {
	o.mon.Lock()
	defer o.mon.Unlock()
	o.frozen = frozen
	o.mon.Changed()
}

// Accept returns the next stream that Accept has not returned yet. It fails the test on a timeout.
func (o *Origin) Accept(ctx context.Context) *OriginStream {
	o.tb.Helper()
	var s *OriginStream
	err := o.mon.Await(ctx, func() bool {
		if o.accepted == len(o.streams) {
			return false
		}
		s = o.streams[o.accepted]
		o.accepted++
		return true
	})
	if err != nil {
		o.tb.Fatalf("accept stream: %v\n%v", err, o.State())
	}
	return s
}

// AcceptOpen is Accept of the next stream that has not ended.
func (o *Origin) AcceptOpen(ctx context.Context) *OriginStream {
	o.tb.Helper()
	for {
		if s := o.Accept(ctx); !s.State().Ended {
			return s
		}
	}
}

// WaitFor waits until cond returns true. cond is evaluated after every change of the record; it must neither keep the
// record nor call the origin. On a timeout, the test fails, and what names the condition in the message.
func (o *Origin) WaitFor(ctx context.Context, what string, cond func(*OriginState) bool) {
	o.tb.Helper()
	if err := o.mon.Await(ctx, func() bool { return cond(&o.record) }); err != nil {
		o.tb.Fatalf("wait for %s at the origin: %v\n%v", what, err, o.State())
	}
}

// State returns a copy of the record.
func (o *Origin) State() *OriginState {
	o.mon.Lock()
	defer o.mon.Unlock()
	return o.record.clone()
}

// start listens on the address and starts a server.
func (o *Origin) start() error {
	listener, err := o.listen()
	if err != nil {
		return err
	}
	if o.memory == nil {
		o.address = listener.Addr().String()
	}
	o.mon.Lock()
	defer o.mon.Unlock()
	o.listener = listener
	o.serve()
	o.running.Go(func() { o.accept(listener) }) // ends with the listener, in Stop
	return nil
}

func (o *Origin) listen() (net.Listener, error) {
	if o.memory != nil {
		return o.memory.Listen(), nil
	}
	listener, err := proxy.ListenAgain(o.address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", o.address, err)
	}
	return listener, nil
}

// serve starts a new gRPC server for new connections. The caller must hold the lock.
func (o *Origin) serve() {
	opts := append(slices.Clone(o.options.ServerOptions),
		grpc.ForceServerCodecV2(codec.Bytes{}), grpc.WaitForHandlers(true))
	server, g := grpc.NewServer(opts...), newGate(o.listener.Addr())
	discoverypb.RegisterAggregatedDiscoveryServiceServer(server, service{origin: o})
	if o.options.Register != nil {
		o.options.Register(server)
	}
	o.servers, o.gate = append(o.servers, server), g
	o.running.Go(func() { _ = server.Serve(g) }) // ends when the server is stopped
}

// accept accepts connections until the listener is closed, and passes them to the current server.
func (o *Origin) accept(listener net.Listener) {
	for {
		c, err := listener.Accept()
		if err != nil {
			return // closed by Stop
		}
		o.mon.Lock()
		o.record.Connections++
		o.record.OpenConnections++
		g := o.gate
		o.mon.Changed()
		o.mon.Unlock()
		tracked := &connection{Conn: c, origin: o}
		if g == nil {
			_ = tracked.Close() // Stop has begun
			return
		}
		g.pass(tracked)
	}
}

// service implements the ADS service of an origin.
type service struct {
	discoverypb.UnimplementedAggregatedDiscoveryServiceServer
	origin *Origin
}

func (s service) DeltaAggregatedResources(
	rpc discoverypb.AggregatedDiscoveryService_DeltaAggregatedResourcesServer,
) error {
	return s.origin.serveStream(rpc, false)
}

func (s service) StreamAggregatedResources(
	rpc discoverypb.AggregatedDiscoveryService_StreamAggregatedResourcesServer,
) error {
	return s.origin.serveStream(rpc, true)
}
