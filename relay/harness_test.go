package relay_test

import (
	"context"
	"log/slog"
	"net"
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
	cancel context.CancelFunc
	ended  chan error
}

// start runs a relay of an origin, configured by further variables
// ("TENDER_ACK_WAIT=1s"), until the test ends. An origin in memory gets a relay in
// memory, so that both live in a synctest bubble; else all goes over sockets.
func start(t testing.TB, o *relaytest.Origin, inMemory bool, env ...string) *running {
	t.Helper()
	var dial []grpc.DialOption
	if inMemory {
		dial = o.DialOptions()
	}
	return startAt(t, o.Target(), dial, inMemory, env...)
}

// below runs another relay, in memory, whose origin is r, which is in memory too.
func (r *running) below(env ...string) *running {
	r.t.Helper()
	return startAt(r.t, r.target, r.dial, true, env...)
}

func startAt(t testing.TB, target string, dial []grpc.DialOption, inMemory bool, env ...string) *running {
	t.Helper()
	opts := relay.Options{Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})), Version: "test"}
	env = append([]string{"TENDER_LISTEN=127.0.0.1:0", "TENDER_NODE_ID=tender/test"}, env...)
	r := &running{t: t, ended: make(chan error, 1), dial: []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}}
	if inMemory {
		l := bufconn.Listen(1 << 20)
		opts.Listeners, opts.DialOptions = []net.Listener{l}, dial
		r.target = "passthrough:///relay"
		r.dial = append(r.dial, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	}
	cfg, err := relay.LoadConfig(env)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Origin = []string{target}
	if r.Relay, err = relay.New(cfg, opts); err != nil {
		t.Fatal(err)
	}
	if !inMemory {
		r.target = r.Addrs()[0].String()
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() { r.ended <- r.Run(ctx) }() // awaited by stop
	t.Cleanup(r.stop)
	return r
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
