package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"

	"github.com/xdstender/tender/cache/wire"
)

// New returns a session; nothing is sent before a view wants something. Errors: a
// target that gRPC cannot parse.
func New(cfg Config) (*Session, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(context.Background())
	s := &Session{
		cfg:         cfg,
		end:         end,
		toldNoDelta: make([]atomic.Bool, len(cfg.Targets)),
		auditing:    make(chan struct{}, 1),
		comparing:   make(chan struct{}, 1),
		links:       make([]link, len(cfg.Targets)),
		pace:        newStreamPace(&cfg),
	}
	for _, target := range cfg.Targets {
		conn, err := grpc.NewClient(target, cfg.dialOptions()...)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open origin %q: %w", target, err), s.Close())
		}
		s.conns = append(s.conns, conn)
	}
	over := make(chan struct{})
	s.changed.Store(&over)
	for i, conn := range s.conns {
		s.watching.Go(func() { s.watch(i, conn) }) // ended and awaited by Close
	}
	if len(s.conns) > 1 {
		s.watching.Go(func() { s.lookBack(ctx) }) // likewise
	}
	return s, nil
}

// The address of a dead origin, or of a link that drops everything, is found by
// the kernel: most servers would take frequent HTTP/2 pings amiss (B.34). For what was sent
// and is not acknowledged, gRPC sets TCP_USER_TIMEOUT to the timeout of pings.
var tcpKeepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}

// windowBytes is the flow-control window of the connection and its streams. It is
// fixed, since probing for a better one costs a ping for each message.
const windowBytes = 4 << 20

func (c *Config) dialOptions() []grpc.DialOption {
	var options []grpc.DialOption
	if c.CallCredentials != nil {
		options = append(options, grpc.WithPerRPCCredentials(c.CallCredentials))
	}
	if c.Authority != "" {
		options = append(options, grpc.WithAuthority(c.Authority))
	}
	options = append(options,
		grpc.WithTransportCredentials(c.Credentials),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"pick_first":{"shuffleAddressList":true}}]}`),
		grpc.WithDisableRetry(),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(wire.Codec{}), grpc.MaxCallRecvMsgSize(c.MaxResponseBytes)),
		grpc.WithStaticStreamWindowSize(windowBytes),
		grpc.WithStaticConnWindowSize(windowBytes),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: c.Keepalive, Timeout: 20 * time.Second}),
		// When to open a stream again is the view sync's decision; the connection tries on
		// its own, often enough to be there by then.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: openTimeout,
		}),
		grpc.WithContextDialer(dial),
		grpc.WithIdleTimeout(0),
	)
	return append(options, c.DialOptions...)
}

func dial(ctx context.Context, address string) (net.Conn, error) {
	network := "tcp"
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", strings.TrimPrefix(path, "//")
	}
	d := net.Dialer{KeepAliveConfig: tcpKeepAlive}
	return d.DialContext(ctx, network, address)
}
