package relay_test

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest"
)

// A running relay, as a client meets it.
type running struct {
	*relay.Relay
	t      testing.TB
	dial   []grpc.DialOption
	target string
	memory bool
	rest   func(context.Context) (net.Conn, error) // dials the address of polls
	cancel context.CancelFunc
	ended  chan error
}

// start runs a relay of an origin, configured by further variables
// ("TENDER_ACK_WAIT=1s"), until the test ends. An origin in memory gets a relay in
// memory, so that both live in a synctest bubble; else all goes over sockets.
func start(t testing.TB, o *relaytest.Origin, inMemory bool, env ...string) *running {
	t.Helper()
	return startSeveral(t, o, nil, inMemory, env...)
}

// startSeveral is start with further origins by name, each with its targets in
// failover order. Each needs a route in TENDER_ROUTES. In memory, no two targets have
// the same address.
func startSeveral(t testing.TB, first *relaytest.Origin, further map[string][]*relaytest.Origin, inMemory bool, env ...string) *running {
	t.Helper()
	all := slices.Concat(append(slices.Collect(maps.Values(further)), []*relaytest.Origin{first})...)
	return run(t, configure(t, first, further, env), relaytest.DialOptions(all...), inMemory)
}

// below runs another relay, of which this one is the origin, until the test ends.
func (r *running) below(env ...string) *running {
	r.t.Helper()
	cfg, err := relay.LoadConfig(append([]string{"TENDER_LISTEN=127.0.0.1:0", "TENDER_NODE_ID=tender/below"}, env...))
	if err != nil {
		r.t.Fatal(err)
	}
	cfg.Origin = []string{r.target}
	return run(r.t, cfg, r.dial, r.memory)
}

// run runs a relay; in memory, dial reaches its origins.
func run(t testing.TB, cfg relay.Config, dial []grpc.DialOption, inMemory bool) *running {
	t.Helper()
	opts := relay.Options{Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})), Version: "test"}
	r := &running{t: t, memory: inMemory, ended: make(chan error, 1), dial: []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}}
	if inMemory {
		l := bufconn.Listen(1 << 20)
		rest := newPipeListener()
		opts.Listeners, opts.RESTListeners, opts.DialOptions = []net.Listener{l}, []net.Listener{rest}, dial
		r.rest = rest.dial
		r.target = "passthrough:///relay"
		r.dial = append(r.dial, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	}
	cfg.RESTListen = []string{"127.0.0.1:0"}
	var err error
	if r.Relay, err = relay.New(cfg, opts); err != nil {
		t.Fatal(err)
	}
	if !inMemory {
		r.target = r.Addrs()[0].String()
		r.rest = func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", r.RESTAddrs()[0].String())
		}
	}
	r.run()
	return r
}

// startFiles runs a relay of a file origin until the test ends, over sockets.
func startFiles(t testing.TB, dir string, env ...string) *running {
	t.Helper()
	r := &running{t: t, ended: make(chan error, 1), dial: []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}}
	cfg, err := relay.LoadConfig(append([]string{"TENDER_LISTEN=127.0.0.1:0", "TENDER_ORIGIN=file://" + dir}, env...))
	if err != nil {
		t.Fatal(err)
	}
	logger := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	if r.Relay, err = relay.New(cfg, relay.Options{Logger: logger, Version: "test"}); err != nil {
		t.Fatal(err)
	}
	r.target = r.Addrs()[0].String()
	r.run()
	return r
}

// run runs the relay until the test ends.
func (r *running) run() {
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() { r.ended <- r.Run(ctx) }() // awaited by stop
	r.t.Cleanup(r.stop)
}

// configure returns the configuration of a relay of origins.
func configure(t testing.TB, first *relaytest.Origin, further map[string][]*relaytest.Origin, env []string) relay.Config {
	t.Helper()
	env = append([]string{"TENDER_LISTEN=127.0.0.1:0", "TENDER_NODE_ID=tender/test"}, env...)
	names := slices.Sorted(maps.Keys(further))
	for i, name := range names {
		names[i] = name + "=" + name + ":1" // a target in its place: no variable holds one in memory
	}
	if len(names) > 0 {
		env = append(env, "TENDER_ORIGINS="+strings.Join(names, ";"))
	}
	cfg, err := relay.LoadConfig(env)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Origin = []string{first.Target()}
	for i, o := range cfg.Origins {
		if targets := further[o.Name]; targets != nil {
			cfg.Origins[i].Targets = nil
			for _, target := range targets {
				cfg.Origins[i].Targets = append(cfg.Origins[i].Targets, target.Target())
			}
		}
	}
	return cfg
}

// stop ends the relay and waits until it has ended. It may be called again.
func (r *running) stop() {
	r.t.Helper()
	r.cancel()
	if err, first := <-r.ended; first {
		close(r.ended)
		if err != nil {
			r.t.Errorf("relay ended: %v", err)
		}
	}
}

// conn returns a new connection to the relay, which ends with the test.
func (r *running) conn() *grpc.ClientConn {
	r.t.Helper()
	conn, err := grpc.NewClient(r.target, r.dial...)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// client returns a client on a connection of its own.
func (r *running) client(opts relaytest.ClientOptions) *relaytest.Client {
	r.t.Helper()
	return relaytest.NewClient(r.t, r.conn(), opts)
}
