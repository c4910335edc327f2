package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache/wire"
)

// A Session is the connection to one origin. Its methods may be called from any goroutine.
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

// Connect begins to connect before any view needs the origin.
func (s *Session) Connect() { s.conns[s.target()].Connect() }

// up reports whether the connection to a target is up.
func (s *Session) up(target int) bool { return s.conns[target].GetState() == connectivity.Ready }

// Close ends the connection. Syncs must have ended.
func (s *Session) Close() error {
	var errs []error
	for _, conn := range s.conns {
		errs = append(errs, conn.Close())
	}
	s.end()
	s.watching.Wait()
	return errors.Join(errs...)
}

// target returns the index of the target in use.
func (s *Session) target() int { return int(s.active.Load()) }

// tellNoDelta logs, once, that a target does not implement Delta.
func (s *Session) tellNoDelta(target int) {
	if s.toldNoDelta[target].CompareAndSwap(false, true) {
		s.cfg.Logger.Info("origin does not implement Delta ADS: using SotW", slog.String("origin", s.cfg.Targets[target]))
	}
}

// A link is the state of the connection to a target.
type link struct {
	stood    atomic.Pointer[standing] // nil before the first connection
	reach    reach
	attempts attempts
}

type standing struct {
	up    bool
	since time.Time
}

func (l *link) standing() (up bool, since time.Time) {
	if s := l.stood.Load(); s != nil {
		return s.up, s.since
	}
	return false, time.Time{}
}

// A Failure is an error and its time.
type Failure struct {
	Err error
	At  time.Time
}

// A Status is the state of an origin.
type Status struct {
	Targets []TargetStatus // in the order of failover

	// Connected reports whether there is a connection to the active target. Since is when that changed last; zero if there
	// never was one.
	Connected bool
	Since     time.Time

	// Held is the number of resources whose removal is held back (B.15).
	Held int

	// Waiting is the number of streams that are delayed by Config.StreamRate.
	Waiting int

	// Failure is why a stream to the origin, or the attempt to open one, failed last. Zero if none did.
	Failure Failure
}

// A TargetStatus is the state of the connection to one target of an origin.
type TargetStatus struct {
	Target string
	Active bool // the one in use
	State  connectivity.State
}

// Status returns the state of the origin.
func (s *Session) Status() Status {
	active := s.target()
	status := Status{Held: int(s.counters.Holding.Load()), Waiting: s.pace.wait()}
	for i, conn := range s.conns {
		status.Targets = append(status.Targets, TargetStatus{Target: s.cfg.Targets[i], Active: i == active, State: conn.GetState()})
	}
	status.Connected, status.Since = s.links[active].standing()
	if f := s.failure.Load(); f != nil {
		status.Failure = *f
	}
	return status
}

// noteEnd counts a stream that ended, and records the error unless the end was expected. It returns what it recorded.
func (s *Session) noteEnd(err error) *Failure {
	s.counters.streamEnded(err)
	if err == nil || errors.Is(err, errResync) || errors.Is(err, context.Canceled) || errors.Is(err, io.EOF) {
		return nil
	}
	f := &Failure{err, time.Now()}
	s.failure.Store(f)
	return f
}

// unresolved is part of gRPC's error for a name without addresses. That error names neither the target nor DNS.
const unresolved = "produced zero addresses"

// explain returns err, or an error that names the target if its name did not resolve.
func explain(target string, err error) error {
	if err == nil || status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), unresolved) {
		return err
	}
	return status.Errorf(codes.Unavailable, "the name in %s does not resolve to an address; check the name and DNS", target)
}

// watch follows the connection to a target until it is shut down.
func (s *Session) watch(target int, conn *grpc.ClientConn) {
	l, c := &s.links[target], &s.counters
	for state := conn.GetState(); state != connectivity.Shutdown; state = conn.GetState() {
		l.reach.saw(state, time.Now())
		switch was, _ := l.standing(); {
		case !was && state == connectivity.Ready:
			l.stood.Store(&standing{true, time.Now()})
			l.attempts.connected()
			c.count(func(s *Stats) { s.Connected++ })
		case was && state != connectivity.Ready:
			l.stood.Store(&standing{false, time.Now()})
			c.count(func(s *Stats) { s.Lost++ })
		}
		conn.WaitForStateChange(context.Background(), state) // which Shutdown is
	}
}

// Stats returns the counters of the origin.
func (s *Session) Stats() Stats { return s.counters.read() }

// failed notes that a stream to a target ended without a response, or was not opened, and reports whether to leave the
// target. The stream is counted for by.
func (s *Session) failed(target int, by any, err error) bool {
	if s.up(target) {
		return s.links[target].attempts.ended(by, err)
	}
	return s.links[target].attempts.unconnected(by, time.Now())
}

// leave makes the next target the one in use, unless the target in use has changed already.
func (s *Session) leave(target int) {
	s.links[target].reach.failed(time.Now())
	if next := (target + 1) % len(s.conns); s.use(target, next) {
		s.cfg.Logger.Warn("origin failover to the next address", slog.String("origin", s.cfg.Targets[next]))
	}
}

// use makes another target the one in use. It reports false if the target in use has changed meanwhile.
func (s *Session) use(from, to int) bool {
	if from == to || !s.active.CompareAndSwap(int64(from), int64(to)) {
		return false
	}
	s.counters.count(func(s *Stats) { s.Failovers++ })
	over := make(chan struct{})
	close(*s.changed.Swap(&over))
	return true
}

// moved returns a channel that is closed at the next change of the target in use.
func (s *Session) moved() <-chan struct{} { return *s.changed.Load() }

// A Place is the address that a stream was opened to.
type Place struct {
	// Moved is closed once another address is in use; nil if there is only one.
	Moved <-chan struct{}

	session *Session
	target  int
}

// Stays reports whether the session has not returned to an earlier address since. It replaces Moved, which is then closed
// by the next change.
func (at *Place) Stays() bool {
	at.Moved = at.session.moved() // before target, or a change could be missed
	return at.session.target() >= at.target
}

// OpenStream opens a stream of another service at the address in use, and returns that. If the address cannot be reached,
// the session moves to the next one. Errors are gRPC statuses: UNAVAILABLE after 5s.
func (s *Session) OpenStream(ctx context.Context, desc *grpc.StreamDesc, method string) (rpc grpc.ClientStream, at Place, err error) {
	at.session = s
	if len(s.conns) > 1 {
		at.Moved = s.moved() // before target, or a change could be missed
	}
	at.target = s.target()
	own, cancel := context.WithCancel(s.cfg.identified(ctx))
	timeout := time.AfterFunc(openTimeout, cancel)
	rpc, err = s.conns[at.target].NewStream(own, desc, method)
	late := !timeout.Stop()
	if err == nil && !late {
		return rpc, at, nil
	}
	cancel()
	if ctx.Err() == nil && !s.up(at.target) && s.links[at.target].attempts.unconnected(s, time.Now()) {
		s.leave(at.target)
	}
	if late {
		err = status.Errorf(codes.Unavailable, "no stream to the origin within %v", openTimeout)
	}
	return nil, at, err
}

// The target in use changes when a stream to it fails. The session returns to an earlier target only after that has been
// reachable for a while (B.40), so it keeps a connection to each earlier target: only a connection shows that a server
// speaks HTTP/2 there.

// lookBack returns to earlier targets until ctx ends.
func (s *Session) lookBack(ctx context.Context) {
	ticker := time.NewTicker(lookBackEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			s.tryEarlier(time.Now())
		case <-ctx.Done():
			return
		}
	}
}

// tryEarlier keeps the connections to the targets before the one in use, and makes the first steady one of them the one
// in use.
func (s *Session) tryEarlier(now time.Time) {
	active := s.target()
	for i := range active {
		s.conns[i].Connect() // if it is idle
		if !s.up(i) || !s.links[i].reach.steady(now) || !s.use(active, i) {
			continue
		}
		s.cfg.Logger.Info("returning to an earlier origin address that is reachable again",
			slog.String("origin", s.cfg.Targets[i]), slog.Duration("reachable", returnAfter))
		return
	}
}

// New returns a session. It sends nothing before a view needs the origin. Errors: a target that gRPC cannot parse.
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
		s.watching.Go(func() { s.lookBack(ctx) }) // ended and awaited by Close
	}
	return s, nil
}

// The kernel detects a dead origin, or a link that drops all packets: most servers end connections with frequent HTTP/2
// pings (B.34). For data that is not acknowledged, gRPC sets TCP_USER_TIMEOUT to the timeout of pings.
var tcpKeepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}

// windowBytes is the flow-control window of the connection and its streams. It is fixed, since a dynamic window costs a
// ping for each message.
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
		// The view sync decides when to open a stream again. gRPC connects again by itself, early enough for that.
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
