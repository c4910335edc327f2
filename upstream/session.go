package upstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache/wire"
)

// Config shapes a session. But for Targets, the zero value of each field works.
type Config struct {
	// Targets are the origin's gRPC targets in the order of failover. Required.
	Targets []string

	// Credentials say who the targets must be and what they are told about the relay.
	// Nil means plaintext. CallCredentials go with each stream; nil means none.
	Credentials     credentials.TransportCredentials
	CallCredentials credentials.PerRPCCredentials

	// Authority is what the targets are called in requests, and whose name they must bear if
	// Credentials go by names. Empty means the address of each.
	Authority string

	// DialOptions are added to the session's own, for tests.
	DialOptions []grpc.DialOption

	// Protocol is the variant of xDS that the origin is spoken to in. Zero means
	// Delta, or SotW if a target does not implement Delta.
	Protocol Protocol

	// Keepalive is how often HTTP/2 pings look after the connection. Zero means
	// 330s: servers end connections that ping more often than every five minutes.
	Keepalive time.Duration

	// MaxResponseBytes bounds a response. Zero means 256 MiB.
	MaxResponseBytes int

	// MaxResourceBytes bounds a resource in a response: of one that is larger, what was there before
	// stays, and the rest of the response is applied (B.9). Zero means no bound.
	MaxResourceBytes int

	// StreamRate bounds the ADS streams that views open, in a minute; StreamBurst is how many may be opened at once before. Those that
	// are too many wait. Zero means no bound.
	StreamRate, StreamBurst int

	// FullResync asks for everything after a reconnect, and does not tell the origin
	// what is known.
	FullResync bool

	// ContentVersions makes resource versions from content (B.2).
	ContentVersions bool

	// Linger and WildcardLinger are how long a subscription outlives its last
	// client. Zero means 5m and 15m.
	Linger, WildcardLinger time.Duration

	// MaxLingering bounds the names that linger, MaxLingeringBytes their resources.
	// Zero means 100,000 and 512 MiB.
	MaxLingering, MaxLingeringBytes int

	// ColdWait is how long a set has to be without a new name to be complete, at most a minute in all (B.7). Zero means 10s.
	ColdWait time.Duration

	// MassDeleteHold is how long removals that are too many to be believed are held back (B.15). Zero means 10m.
	MassDeleteHold time.Duration

	// HoldExplicit holds them back also if the origin states them when it has said all of the set.
	HoldExplicit bool

	// Prewarm lists types that every view subscribes to without a client.
	Prewarm []string

	// Chain knows the relays above and below this one. Nil if nobody looks.
	Chain Chain

	// Trace begins the trace of each response. Nil if nobody looks.
	Trace func(Received) Trace

	// Requested is told of requests that clients' subscriptions have caused. Nil if nobody looks.
	Requested func(Request)

	// Logger receives what happens to the session. Nil discards it.
	Logger *slog.Logger
}

func (c Config) withDefaults() (Config, error) {
	if len(c.Targets) == 0 {
		return Config{}, errors.New("upstream: no target")
	}
	if c.Protocol < ProtocolAuto || c.Protocol > ProtocolSotW {
		return Config{}, fmt.Errorf("upstream: Protocol = %d, allowed: ProtocolAuto, ProtocolDelta, ProtocolSotW", c.Protocol)
	}
	c.Keepalive = cmp.Or(c.Keepalive, 330*time.Second)
	c.Linger = cmp.Or(c.Linger, 5*time.Minute)
	c.WildcardLinger = cmp.Or(c.WildcardLinger, 15*time.Minute)
	c.ColdWait = cmp.Or(c.ColdWait, 10*time.Second)
	c.MassDeleteHold = cmp.Or(c.MassDeleteHold, 10*time.Minute)
	c.MaxResponseBytes = cmp.Or(c.MaxResponseBytes, 256<<20)
	c.MaxLingering = cmp.Or(c.MaxLingering, 100_000)
	c.MaxLingeringBytes = cmp.Or(c.MaxLingeringBytes, 512<<20)
	if c.Credentials == nil {
		c.Credentials = insecure.NewCredentials()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// tooLarge reports whether a stream has ended since a response is larger than allowed: an
// origin says the same of requests, with its own limit.
func (c *Config) tooLarge(err error) bool {
	return status.Code(err) == codes.ResourceExhausted && strings.HasSuffix(err.Error(), fmt.Sprintf(" vs. %d)", c.MaxResponseBytes))
}

// A Session is the connection to one origin. Its methods may be called from any
// goroutine.
type Session struct {
	cfg    Config
	conns  []*grpc.ClientConn // one for each target; those after the one in use are idle, until they were used
	active atomic.Int64       // index of the target in use

	toldNoDelta []atomic.Bool // of each target

	auditing  chan struct{} // one slot, taken by the audit that is made
	comparing chan struct{} // one slot, taken by the view whose content is compared

	counters counters
	pace     *streamPace

	links    []link                        // what is known of each target's connection
	failure  atomic.Pointer[Failure]       // the last one; nil if there was none
	changed  atomic.Pointer[chan struct{}] // see moved
	end      context.CancelFunc            // of lookBack
	watching sync.WaitGroup                // for watch and lookBack
}

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

// Connect begins to connect before anybody asks for anything.
func (s *Session) Connect() { s.conns[s.target()].Connect() }

// up reports whether the connection to a target is up.
func (s *Session) up(target int) bool { return s.conns[target].GetState() == connectivity.Ready }

// Close ends the connection. Mirrors must have ended.
func (s *Session) Close() error {
	var errs []error
	for _, conn := range s.conns {
		errs = append(errs, conn.Close())
	}
	s.end()
	s.watching.Wait()
	return errors.Join(errs...)
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
		// When to open a stream again is the mirror's decision; the connection tries on
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

// target returns the index of the target in use.
func (s *Session) target() int { return int(s.active.Load()) }

// jitter returns a duration between 80% and 120% of d.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}
