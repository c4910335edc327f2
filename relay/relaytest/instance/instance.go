// Package instance runs relays in the process of a test, on sockets or in memory.
//
// It is apart from package relaytest, so that tests of single packages with a scripted origin or client do not link the
// whole relay.
//
// The package is not a stable API: programs that embed Tender use package relay.
package instance

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/logs"
	"github.com/xdstender/tender/relay/relaytest/memnet"
	"github.com/xdstender/tender/relay/relaytest/wait"
)

// relayBuffer is the buffer size of a connection to a relay in memory, in bytes per direction.
const relayBuffer = 64 << 10

// Options configure the relay of [Start]. The zero value is a relay on sockets with the origin in Env.
type Options struct {
	// Origins are the targets of the primary origin in failover order. If empty, TENDER_ORIGIN in Env applies.
	Origins []*relaytest.Origin

	// Named has the targets of each further origin. TENDER_ROUTES in Env routes to them.
	Named map[string][]*relaytest.Origin

	// Target is the gRPC target of the primary origin if that is not an Origin. In memory, Options.DialOptions must
	// reach it.
	Target string

	// Above is a relay that is the primary origin, instead of Origins.
	Above *Relay

	// Memory replaces the sockets of the relay by pipes, which a testing/synctest bubble requires. A relay is also in
	// memory if an origin or the relay Above is. In memory, the relay pings clients only if Pings is set: in hours of
	// virtual time, pings would be half of the work.
	Memory, Pings bool

	// Env has TENDER_ variables. They override the defaults: free ports of 127.0.0.1, no admin address, and the node ID
	// tender/test.
	Env []string

	// Options are options of the relay. Start adds those that the other fields require. Without a Logger, Relay.Log
	// and the output of the test receive the log.
	Options relay.Options
}

// An Origin is an origin in the process of the test, scripted or a control plane.
type Origin interface {
	// Target is its gRPC target.
	Target() string
	// Memory is its network, nil for sockets.
	Memory() *memnet.Network
}

// Of returns the options of a relay of one origin.
func Of(o Origin) Options {
	opts := Options{Target: o.Target()}
	if memory := o.Memory(); memory != nil {
		opts.Memory, opts.Options.DialOptions = true, []grpc.DialOption{memory.DialOption()}
	}
	return opts
}

// A Relay is a running relay, with the means to connect to it. Its fields may be changed between calls.
type Relay struct {
	*relay.Relay

	// Target and DialOptions connect a gRPC client to the relay.
	Target      string
	DialOptions []grpc.DialOption

	// Log is the log of the relay, unless its options have a logger.
	Log logs.Log

	// Listener accepts the gRPC clients of a relay in memory.
	Listener *memnet.Listener

	// DialREST and DialAdmin connect to the addresses for polls and for operators.
	DialREST, DialAdmin func(context.Context) (net.Conn, error)

	// Cancel starts a drain. Drain also waits for the end of the relay.
	Cancel context.CancelFunc

	tb     wait.TB
	memory bool
	ended  chan error // closed once its value has been received
}

// Start runs a relay until tb ends. The test fails if the relay ends with an error.
func Start(tb wait.TB, opts Options) *Relay {
	tb.Helper()
	r := &Relay{tb: tb, ended: make(chan error, 1),
		DialOptions: []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}}
	all := slices.Concat(append(slices.Collect(maps.Values(opts.Named)), opts.Origins)...)
	r.memory = opts.Memory || opts.Above != nil && opts.Above.memory ||
		slices.ContainsFunc(all, func(o *relaytest.Origin) bool { return o.Memory() != nil })
	cfg := configure(tb, opts)
	relayOpts := r.options(opts, all)
	if r.memory {
		r.listenInMemory(cfg, &relayOpts)
	}
	var err error
	if r.Relay, err = relay.New(cfg, relayOpts); err != nil {
		tb.Fatalf("start the relay: %v", err)
	}
	if !r.memory {
		r.Target = r.Addrs()[0].String()
		r.DialREST, r.DialAdmin = dialFirst(r.RESTAddrs()), dialFirst(r.AdminAddrs())
	}
	var ctx context.Context
	ctx, r.Cancel = context.WithCancel(context.Background())
	go func() { r.ended <- r.Run(ctx) }() // awaited by Drain
	wait.Cleanup(tb, r.Stop)
	return r
}

// AwaitReady waits until the relay is ready. The test fails if that takes longer than relaytest.Patience.
func (r *Relay) AwaitReady() {
	r.tb.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(relaytest.Patience); r.Ready() != nil; <-tick.C {
		if time.Now().After(end) {
			r.tb.Fatalf("the relay does not become ready: %v", r.Ready())
		}
	}
}

// options returns the options for relay.New.
func (r *Relay) options(opts Options, origins []*relaytest.Origin) relay.Options {
	relayOpts := opts.Options
	switch {
	case opts.Above != nil:
		relayOpts.DialOptions = slices.Concat(opts.Above.DialOptions, relayOpts.DialOptions)
	case r.memory && len(origins) > 0:
		relayOpts.DialOptions = append(relaytest.DialOptions(origins...), relayOpts.DialOptions...)
	}
	if relayOpts.Logger == nil {
		relayOpts.Logger = slog.New(slog.NewTextHandler(io.MultiWriter(&r.Log, logs.OutputOf(r.tb)),
			&slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	relayOpts.Version = cmp.Or(relayOpts.Version, "test")
	if r.memory && !opts.Pings {
		relayOpts.PingAfter = 1000 * time.Hour
	}
	return relayOpts
}

// Transport returns the value of TENDER_TRANSPORT for the relays of tests: that of the test process, which also applies
// to relays in processes of their own.
func Transport() string { return cmp.Or(os.Getenv("TENDER_TRANSPORT"), relay.TransportGRPC) }

// configure returns the configuration of a relay.
func configure(tb wait.TB, opts Options) relay.Config {
	tb.Helper()
	env := slices.Concat(opts.Env, []string{
		"TENDER_TRANSPORT=" + Transport(), "TENDER_LISTEN=127.0.0.1:0", "TENDER_ADMIN_LISTEN=off", "TENDER_NODE_ID=tender/test",
	})
	names := slices.Sorted(maps.Keys(opts.Named))
	if len(names) > 0 {
		for i, name := range names {
			names[i] = name + "=" + name + ":1" // a placeholder, replaced below: variables cannot contain targets in memory
		}
		env = append(env, "TENDER_ORIGINS="+strings.Join(names, ";"))
	}
	cfg, err := relay.LoadConfig(env)
	if err != nil {
		tb.Fatalf("configure the relay: %v", err)
	}
	switch {
	case opts.Above != nil:
		cfg.Origin = []string{opts.Above.Target}
	case opts.Target != "":
		cfg.Origin = []string{opts.Target}
	case len(opts.Origins) > 0:
		cfg.Origin = targets(opts.Origins)
	}
	for i, o := range cfg.Origins {
		if named := opts.Named[o.Name]; named != nil {
			cfg.Origins[i].Targets = targets(named)
		}
	}
	return cfg
}

func targets(origins []*relaytest.Origin) (targets []string) {
	for _, o := range origins {
		targets = append(targets, o.Target())
	}
	return targets
}

// listenInMemory replaces the listeners of the addresses in cfg by pipes.
func (r *Relay) listenInMemory(cfg relay.Config, opts *relay.Options) {
	listen := func(addrs []string) ([]net.Listener, func(context.Context) (net.Conn, error)) {
		if len(addrs) == 0 {
			return nil, dialFirst(nil)
		}
		l := memnet.Listen(relayBuffer)
		return []net.Listener{l}, l.Dial
	}
	r.Listener = memnet.Listen(relayBuffer)
	r.Target, r.DialOptions = "passthrough:///relay", append(r.DialOptions, r.Listener.DialOption())
	opts.Listeners = []net.Listener{r.Listener}
	opts.RESTListeners, r.DialREST = listen(cfg.RESTListen)
	opts.AdminListeners, r.DialAdmin = listen(cfg.AdminListen)
}

// dialFirst returns a function that connects to the first of the addresses.
func dialFirst(addrs []net.Addr) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		if len(addrs) == 0 {
			return nil, errors.New("the relay has no such address")
		}
		return new(net.Dialer).DialContext(ctx, addrs[0].Network(), addrs[0].String())
	}
}

// Stop stops the relay without a drain period, and waits for its end. It may be called more than once.
func (r *Relay) Stop() {
	r.StopNow()
	r.Drain()
}

// Drain drains the relay and waits for its end.
func (r *Relay) Drain() {
	r.tb.Helper()
	r.Cancel()
	if err, first := <-r.ended; first {
		close(r.ended)
		if err != nil {
			r.tb.Errorf("relay ended: %v", err)
		}
	}
}

// Conn returns a new connection to the relay, which is closed when the test ends.
func (r *Relay) Conn(opts ...grpc.DialOption) *grpc.ClientConn {
	r.tb.Helper()
	conn, err := grpc.NewClient(r.Target, slices.Concat(r.DialOptions, opts)...)
	if err != nil {
		r.tb.Fatalf("connect to the relay: %v", err)
	}
	wait.Cleanup(r.tb, func() { _ = conn.Close() }) // fails only if it was closed before
	return conn
}

// Client returns a client on a connection of its relayOpts.
func (r *Relay) Client(opts relaytest.ClientOptions) *relaytest.Client {
	r.tb.Helper()
	return relaytest.NewClient(r.tb, r.Conn(), opts)
}
