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

	"github.com/xdstender/tender/relay/relaytest/memnet"
	"github.com/xdstender/tender/relay/relaytest/proxy"
	"github.com/xdstender/tender/relay/relaytest/wait"
)

// OriginOptions configure an origin. The zero value is a correct origin on a free loopback port.
type OriginOptions struct {
	// Address to listen on, host:port. Empty means a free port of 127.0.0.1. In
	// memory it is any name; empty means "origin".
	Address string

	// Memory replaces the socket by an in-memory network that only
	// DialOptions reach, which is what a testing/synctest bubble needs.
	Memory bool

	// ServerOptions go to the gRPC server: credentials, keepalive, limits.
	ServerOptions []grpc.ServerOption

	// Register adds services to each gRPC server that the origin starts. Nil adds
	// none.
	Register func(grpc.ServiceRegistrar)

	// Behaviour is how the origin begins; Change alters it.
	Behaviour Behaviour
}

// Behaviour is how an origin answers. The zero value is what the protocol asks.
type Behaviour struct {
	// Manual leaves the streams opened from now on to the caller: they are
	// recorded and never answered.
	Manual bool

	// SotW makes it an origin that speaks SotW only: streams of the variant that it
	// does not speak end with UNIMPLEMENTED. It holds for streams that are opened from
	// now on.
	SotW bool

	// Wrap puts each resource of a SotW response into a Resource message, with its
	// name and version. Those that have aliases, or no body, always are.
	Wrap bool

	// SilentOnMissing sends nothing for names that do not exist, like go-control-plane, instead of removals. Names in
	// initial_resource_versions are still removed.
	SilentOnMissing bool

	// IgnoreIRV ignores initial_resource_versions: it sends everything, and no removals.
	IgnoreIRV bool

	// EmptyVersions leaves out the versions of the resources, as Istio does.
	EmptyVersions bool

	// Duplicate lists every resource twice in each response, against the
	// protocol.
	Duplicate bool

	// NamedOnly reports which resources are not part of the wildcard set. Nil
	// means none. It must not call the origin.
	NamedOnly func(typeURL, name string) bool

	// Unresolved reports which names that do not exist are answered as aliases
	// that mean nothing: with a resource that has neither body nor version.
	// Nil means none. It must not call the origin.
	Unresolved func(typeURL, name string) bool

	// SilentProbes leaves a relay without an answer that asks whether it would be served.
	SilentProbes bool

	// Delay holds back each automatic response for this long. Order is kept.
	Delay time.Duration

	// SystemVersion is the system_version_info of automatic responses, or their
	// version_info, which without it is another one for each response.
	SystemVersion string

	// ControlPlane is the control_plane.identifier of automatic responses;
	// empty leaves the field out.
	ControlPlane string
}

// An Origin is a scripted ADS server of Delta or SotW. Methods may be called from any goroutine unless documented
// otherwise.
//
// The embedded Content is for nodes without a Content of [Origin.For].
type Origin struct {
	*Content

	// Set by NewOrigin, read-only afterwards.
	tb      TB
	options OriginOptions
	memory  *memnet.Network // nil on a real socket
	address string          // where Restart listens again

	// running has the accept loop, the servers and the receivers of the
	// streams. Stop waits for it.
	running sync.WaitGroup

	mon wait.Monitor

	// Guarded by mon.
	behaviour  Behaviour
	contents   []*Content // the default one last
	record     OriginState
	streams    []*OriginStream // as in record.Streams
	accepted   int             // streams that Accept returned
	rejections []*rejection
	frozen     bool
	listener   net.Listener // nil when stopped
	gate       *gate
	servers    []*grpc.Server // the last one takes new connections
}

// NewOrigin starts an origin that stops by itself when tb ends.
func NewOrigin(tb TB, opts OriginOptions) *Origin {
	tb.Helper()
	o := &Origin{tb: tb, options: opts, behaviour: opts.Behaviour, address: opts.Address}
	if opts.Memory {
		o.memory = &memnet.Network{}
		o.address = cmp.Or(o.address, "origin")
	}
	o.address = cmp.Or(o.address, "127.0.0.1:0")
	o.Content = newContent(o, func(*corepb.Node) bool { return true })
	o.contents = []*Content{o.Content}
	if err := o.start(); err != nil {
		tb.Fatalf("start origin: %v", err)
	}
	wait.Cleanup(tb, o.Stop)
	return o
}

// Target returns the gRPC target of the origin. It stays the same for ever.
func (o *Origin) Target() string { return "passthrough:///" + o.address }

// Addr returns the host:port of the origin, or its name in memory.
func (o *Origin) Addr() string { return o.address }

// RelayOptions are those of a relay of the origin.
func (o *Origin) RelayOptions() RelayOptions { return RelayOptions{Origins: []*Origin{o}} }

// DialOptions returns what a client without TLS needs to reach Target.
func (o *Origin) DialOptions() []grpc.DialOption { return DialOptions(o) }

// DialOptions returns what a client without TLS needs to reach any of several
// origins, which are all in memory, under different names, or all on sockets.
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
			return nil, fmt.Errorf("no origin is called %q", name)
		}
		return m.Dial(ctx)
	}))
}

// Dial returns a connection to the origin, with more options if given, which is
// closed when tb ends.
func (o *Origin) Dial(opts ...grpc.DialOption) *grpc.ClientConn {
	o.tb.Helper()
	conn, err := grpc.NewClient(o.Target(), append(o.DialOptions(), opts...)...)
	if err != nil {
		o.tb.Fatalf("dial origin: %v", err)
	}
	wait.Cleanup(o.tb, func() { _ = conn.Close() }) // fails only if closed before
	return conn
}

// Change alters the behaviour. It holds for what is answered from now on; Manual
// and SotW for streams that are opened from now on.
func (o *Origin) Change(f func(*Behaviour)) {
	o.mon.Lock()
	defer o.mon.Unlock()
	f(&o.behaviour)
}

// SetControlPlane changes Behaviour.ControlPlane.
func (o *Origin) SetControlPlane(id string) {
	o.Change(func(b *Behaviour) { b.ControlPlane = id })
}

// For returns a new, empty Content for the nodes that match reports, which sees
// the Node of a stream's first request and must not call the origin. Where
// several match, the first one made wins. A stream belongs to one Content from
// its first request to its end.
func (o *Origin) For(match func(*corepb.Node) bool) *Content {
	c := newContent(o, match)
	o.mon.Lock()
	defer o.mon.Unlock()
	o.contents = slices.Insert(o.contents, len(o.contents)-1, c)
	return c
}

// Inject sends resp, as it is, on every open Delta stream that has asked for its
// type. Where it has no nonce, each stream puts in its own.
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

// A rejection is how some nodes are refused.
type rejection struct {
	match  func(*corepb.Node) bool
	status *status.Status
}

// Refuse ends the streams of the nodes that match reports, and all that they open until allow, with a
// status. match must not call the origin.
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

// Stop closes the listener, connections and streams of the origin. Its content and records stay.
func (o *Origin) Stop() {
	o.mon.Lock()
	listener, servers, g := o.listener, o.servers, o.gate
	o.listener, o.servers, o.gate = nil, nil, nil
	o.mon.Unlock()
	if listener == nil {
		return
	}
	_ = listener.Close() // the accept loop ends by it
	_ = g.Close()
	for _, server := range servers {
		server.Stop()
	}
	o.running.Wait()
}

// Restart stops the origin, if it runs, and starts it on the same address with
// what it holds. (Clear it before to have it come back empty.)
func (o *Origin) Restart() {
	o.tb.Helper()
	o.Stop()
	if err := o.start(); err != nil {
		o.tb.Fatalf("restart origin: %v", err)
	}
}

// GoAway sends GOAWAY on every connection, as a server that drains: streams go
// on until the peers end them, and new connections are accepted.
func (o *Origin) GoAway() {
	o.mon.Lock()
	defer o.mon.Unlock()
	if o.listener == nil {
		return
	}
	draining := o.servers[len(o.servers)-1]
	o.serve()
	o.running.Go(draining.GracefulStop) // ends with the streams, or by Stop
}

// Freeze makes the origin hold still with its connections open: nothing is
// read from them or written to them until Freeze(false).
func (o *Origin) Freeze(frozen bool) {
	o.mon.Lock()
	defer o.mon.Unlock()
	o.frozen = frozen
	o.mon.Changed()
}

// Accept returns the next stream that no Accept has returned yet. It fails the
// test if there is none in time.
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

// WaitFor waits until cond holds, which is evaluated after every change of the
// record and must neither keep it nor call the origin. It fails the test,
// naming what was waited for, if that does not come to pass in time.
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

// serve makes a new server the one that takes new connections. Locked.
func (o *Origin) serve() {
	opts := append(slices.Clone(o.options.ServerOptions),
		grpc.ForceServerCodecV2(BytesCodec{}), grpc.WaitForHandlers(true))
	server, g := grpc.NewServer(opts...), newGate(o.listener.Addr())
	discoverypb.RegisterAggregatedDiscoveryServiceServer(server, service{origin: o})
	if o.options.Register != nil {
		o.options.Register(server)
	}
	o.servers, o.gate = append(o.servers, server), g
	o.running.Go(func() { _ = server.Serve(g) }) // ends, without news, when the server is stopped
}

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

// service is the gRPC face of an origin.
type service struct {
	discoverypb.UnimplementedAggregatedDiscoveryServiceServer
	origin *Origin
}

func (s service) DeltaAggregatedResources(rpc discoverypb.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return s.origin.serveStream(rpc, false)
}

func (s service) StreamAggregatedResources(rpc discoverypb.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return s.origin.serveStream(rpc, true)
}
