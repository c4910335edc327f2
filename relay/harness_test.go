package relay_test

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest"
)

// A running relay, as a client meets it.
type running struct {
	*relay.Relay
	t        testing.TB
	dial     []grpc.DialOption
	target   string
	memory   bool
	listener *relaytest.PipeListener                 // if in memory
	rest     func(context.Context) (net.Conn, error) // dials the address of polls
	admin    func(context.Context) (net.Conn, error) // dials that of operators
	cancel   context.CancelFunc
	ended    chan error
}

// TestMain has properties checked by 50 histories each, unless -rapid.checks says otherwise: the race
// detector makes one of virtual hours half a second, and each run takes others.
func TestMain(m *testing.M) {
	flag.Parse()
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "rapid.checks" })
	if !said {
		if err := flag.Set("rapid.checks", "50"); err != nil {
			panic(err) // there is this flag
		}
	}
	os.Exit(m.Run())
}

// pinging is a variable of start's: in memory, a relay pings its clients for it. Of most tests,
// which take virtual hours, pings would be half the work.
const pinging = "PINGING=on"

// operated is likewise: in memory, a relay has an address for operators for it. For those who look
// there it remembers what was, every few seconds of those hours.
const operated = "TENDER_ADMIN_LISTEN=127.0.0.1:0"

// relayBuffer is how many bytes a connection to a relay in memory holds each way.
const relayBuffer = 64 << 10

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
	all := []*relaytest.Origin{first}
	named := make(map[string][]string)
	for name, targets := range further {
		for _, o := range targets {
			all, named[name] = append(all, o), append(named[name], o.Target())
		}
	}
	env = append([]string{"TENDER_NODE_ID=tender/test"}, env...)
	return startAt(t, first.Target(), named, relaytest.DialOptions(all...), inMemory, env)
}

// startFiles runs a relay of a directory, until the test ends.
func startFiles(t testing.TB, dir string, env ...string) *running {
	t.Helper()
	return startAt(t, "file://"+dir, nil, nil, false, env)
}

// below runs another relay, of which this one is the origin, until the test ends.
func (r *running) below(env ...string) *running {
	r.t.Helper()
	return startAt(r.t, r.target, nil, r.dial, r.memory, append([]string{"TENDER_NODE_ID=tender/below"}, env...))
}

// startAt runs a relay of the origin at target, and of further ones by name; in
// memory, dial reaches them.
func startAt(t testing.TB, target string, further map[string][]string, dial []grpc.DialOption, inMemory bool, env []string) *running {
	t.Helper()
	opts := relay.Options{Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})), Version: "test"}
	return startWith(t, target, further, dial, inMemory, env, opts)
}

// startWith is startAt with options of the test's own.
func startWith(t testing.TB, target string, further map[string][]string, dial []grpc.DialOption, inMemory bool, env []string, opts relay.Options) *running {
	t.Helper()
	r := &running{t: t, memory: inMemory, ended: make(chan error, 1), dial: []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}}
	if inMemory {
		l, rest := relaytest.ListenPipe(relayBuffer), relaytest.ListenPipe(relayBuffer)
		if !slices.Contains(env, pinging) {
			opts.PingAfter = 1000 * time.Hour
		}
		opts.Listeners, opts.RESTListeners, opts.DialOptions = []net.Listener{l}, []net.Listener{rest}, dial
		r.rest, r.listener = rest.Dial, l
		r.admin = func(context.Context) (net.Conn, error) { return nil, errors.New("a relay that is not operated") }
		if slices.Contains(env, operated) {
			admin := relaytest.ListenPipe(relayBuffer)
			opts.AdminListeners, r.admin = []net.Listener{admin}, admin.Dial
		}
		r.target = "passthrough:///relay"
		r.dial = append(r.dial, l.DialOption())
	}
	var err error
	if r.Relay, err = relay.New(configure(t, target, further, env), opts); err != nil {
		t.Fatal(err)
	}
	if !inMemory {
		r.target = r.Addrs()[0].String()
		r.rest = func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", r.RESTAddrs()[0].String())
		}
		r.admin = func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", r.AdminAddrs()[0].String())
		}
	}
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
func configure(t testing.TB, target string, further map[string][]string, env []string) relay.Config {
	t.Helper()
	env = append(append([]string{"TENDER_LISTEN=127.0.0.1:0"}, env...), "TENDER_ADMIN_LISTEN=off", "TENDER_CONNECTION_AGE=off", "TENDER_SECRETS=loopback") // unless env has them: many tests take virtual hours
	var named []string
	for _, name := range slices.Sorted(maps.Keys(further)) {
		named = append(named, name+"="+name+":1") // in the place of targets that no variable holds
	}
	if len(named) > 0 {
		env = append(env, "TENDER_ORIGINS="+strings.Join(named, ";"))
	}
	cfg, err := relay.LoadConfig(env)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Origin, cfg.RESTListen = []string{target}, []string{"127.0.0.1:0"}
	for i, o := range cfg.Origins {
		if targets := further[o.Name]; targets != nil {
			cfg.Origins[i].Targets = targets
		}
	}
	return cfg
}

// stop ends the relay at once and waits until it has ended. It may be called again.
func (r *running) stop() {
	r.t.Helper()
	r.StopNow()
	r.drain()
}

// drain has the relay let its clients go, and waits until it has ended.
func (r *running) drain() {
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
