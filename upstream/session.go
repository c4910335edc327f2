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
	conns  []*grpc.ClientConn // one per target; a target after the active one is idle until a failover uses it
	active atomic.Int64       // index of the active target

	noDeltaLogged []atomic.Bool // one per target: its lack of Delta has been logged

	auditSlot      chan struct{} // capacity 1: held by the running audit
	comparisonSlot chan struct{} // capacity 1: held by the view that compares content

	counters counters
	limiter  *streamLimiter

	links        []link                        // state of the connection to each target
	failure      atomic.Pointer[Failure]       // the latest failure; nil if there was none
	targetChange atomic.Pointer[chan struct{}] // closed at the next change of the active target; see targetChanged
	stopFailBack context.CancelFunc            // stops failBackLoop
	watchers     sync.WaitGroup                // the goroutines of watch and failBackLoop
}

// Connect starts to connect to the active target before a view needs it.
func (s *Session) Connect() { s.conns[s.target()].Connect() }

// up reports whether the connection to a target is ready. target is an index of conns.
func (s *Session) up(target int) bool { return s.conns[target].GetState() == connectivity.Ready }

// Close closes the connections. The caller must have ended all syncs.
func (s *Session) Close() error {
	var errs []error
	for _, conn := range s.conns {
		errs = append(errs, conn.Close())
	}
	s.stopFailBack()
	s.watchers.Wait()
	return errors.Join(errs...)
}

// target returns the index of the active target.
func (s *Session) target() int { return int(s.active.Load()) }

// logNoDelta logs that a target does not implement Delta, once per target.
func (s *Session) logNoDelta(target int) {
	if s.noDeltaLogged[target].CompareAndSwap(false, true) {
		s.cfg.Logger.Info("origin does not implement Delta ADS: using SotW", slog.String("origin", s.cfg.Targets[target]))
	}
}

// A link is the state of the connection to a target.
type link struct {
	state        atomic.Pointer[linkState] // nil before the first connection
	reachability reachability
	failures     failureTracker
	addresses    addresses
	failed       atomic.Pointer[Failure] // why the session failed over from the target; nil once it returned
}

// A linkState is whether a connection is up, and since when. It is immutable.
type linkState struct {
	up    bool
	since time.Time
}

// connected reports whether the connection is up, and the time of the last change. The time is zero if there was no
// connection yet.
func (l *link) connected() (up bool, since time.Time) {
	if s := l.state.Load(); s != nil {
		return s.up, s.since
	}
	return false, time.Time{}
}

// A Status is the state of an origin.
type Status struct {
	Targets []TargetStatus // in the order of failover

	// Connected reports whether the connection to the active target is up. Since is the time of the last change; zero
	// if there was no connection yet.
	Connected bool
	Since     time.Time

	// Waiting is the number of streams that the rate limit delays.
	Waiting int

	// Failure is the latest error of a stream, or of an attempt to open one. Zero if there was none.
	Failure Failure

	// Failed has the addresses that the session does not use because connections or streams to them failed (B.40):
	// targets before the active one, and addresses of names.
	Failed []FailedAddress
}

// A TargetStatus is the state of the connection to one target of an origin.
type TargetStatus struct {
	Target string
	Active bool // the session uses this target
	State  connectivity.State
}

// Status returns the state of the origin.
func (s *Session) Status() Status {
	active := s.target()
	status := Status{Waiting: s.limiter.waitingCount()}
	for i, conn := range s.conns {
		target := TargetStatus{Target: s.cfg.Targets[i], Active: i == active, State: conn.GetState()}
		status.Targets = append(status.Targets, target)
		if f := s.links[i].failed.Load(); f != nil && i < active {
			status.Failed = append(status.Failed, FailedAddress{target.Target, "", *f})
		}
		status.Failed = append(status.Failed, s.links[i].addresses.failed(target.Target)...)
	}
	status.Connected, status.Since = s.links[active].connected()
	if f := s.failure.Load(); f != nil {
		status.Failure = *f
	}
	return status
}

// recordStreamEnd counts a stream that ended, or an attempt to open one, and records its error. It returns the recorded
// failure; nil if the end was expected.
func (s *Session) recordStreamEnd(err error) *Failure {
	s.counters.countStreamEnd(err)
	if err == nil || errors.Is(err, errResync) || errors.Is(err, context.Canceled) || errors.Is(err, io.EOF) {
		return nil
	}
	f := &Failure{err, time.Now()}
	s.failure.Store(f)
	return f
}

// noAddresses is part of gRPC's error for a name that resolves to no address. That error names neither the target nor
// DNS.
const noAddresses = "produced zero addresses"

// explainUnresolved returns err, or an error that names the target if its name did not resolve.
func explainUnresolved(target string, err error) error {
	if err == nil || status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), noAddresses) {
		return err
	}
	return status.Errorf(codes.Unavailable, "the name in %s does not resolve to an address; check the name and DNS", target)
}

// watch records the state of the connection to a target until the connection is closed.
func (s *Session) watch(target int, conn *grpc.ClientConn) {
	l, c := &s.links[target], &s.counters
	for state := conn.GetState(); state != connectivity.Shutdown; state = conn.GetState() {
		l.reachability.observe(state, time.Now())
		switch was, _ := l.connected(); {
		case !was && state == connectivity.Ready:
			l.state.Store(&linkState{true, time.Now()})
			l.failures.connectionUp()
			c.update(func(s *Stats) { s.Connected++ })
		case was && state != connectivity.Ready:
			l.state.Store(&linkState{false, time.Now()})
			c.update(func(s *Stats) { s.Lost++ })
		}
		if state == connectivity.TransientFailure {
			l.addresses.restore() // the others are unreachable
		}
		conn.WaitForStateChange(context.Background(), state) // also returns at Shutdown
	}
}

// Stats returns the counters of the origin.
func (s *Session) Stats() Stats { return s.counters.snapshot() }

// attemptFailed records that a stream to a target ended without a response, or was not opened, and why. After too many
// failures, the session leaves the address, or fails over. by is the user of the stream, such as the sync of a view.
// address is that of the server; empty if it is unknown.
func (s *Session) attemptFailed(target int, by any, address string, err error) {
	l, why := &s.links[target], Failure{explainEnd(explainUnresolved(s.cfg.Targets[target], err)), time.Now()}
	switch {
	case !s.up(target):
		if l.failures.connectFailed(by, why.At) {
			s.failOver(target, why)
		}
	case !l.failures.streamFailed(by):
	case l.addresses.leave(address, why):
		s.cfg.Logger.Warn("origin address ends all streams: connecting to another address of its name",
			slog.String("origin", s.cfg.Targets[target]), slog.String("address", address), slog.Any("err", why.Err))
	default:
		s.failOver(target, why)
	}
}

// explainEnd returns err, or an error with a description if a stream ended without an error.
func explainEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New("the origin closed the stream without a response")
	}
	return err
}

// failOver makes the target after the given one active, unless the active target has changed already.
func (s *Session) failOver(target int, why Failure) {
	s.links[target].reachability.streamFailed(why.At)
	if next := (target + 1) % len(s.conns); s.switchTarget(target, next) {
		s.links[target].failed.Store(&why)
		s.cfg.Logger.Warn("origin failover to the next address",
			slog.String("origin", s.cfg.Targets[next]), slog.Any("err", why.Err))
	}
}

// switchTarget changes the active target. It returns false if another goroutine has changed it since.
func (s *Session) switchTarget(from, to int) bool {
	if from == to || !s.active.CompareAndSwap(int64(from), int64(to)) {
		return false
	}
	s.links[to].failed.Store(nil)
	s.counters.update(func(s *Stats) { s.Failovers++ })
	next := make(chan struct{})
	close(*s.targetChange.Swap(&next))
	return true
}

// targetChanged returns a channel that is closed at the next change of the active target.
func (s *Session) targetChanged() <-chan struct{} { return *s.targetChange.Load() }

// A StreamTarget is the target that a stream was opened to.
type StreamTarget struct {
	// Changed is closed once another target is active; nil if the origin has only one.
	Changed <-chan struct{}

	session *Session
	target  int
}

// MayStay reports whether the stream may stay on its target: the session has not failed back to an earlier one. It
// replaces Changed by a channel that the next change closes.
func (at *StreamTarget) MayStay() bool {
	at.Changed = at.session.targetChanged() // before target, or a change could be missed
	return at.session.target() >= at.target
}

// OpenStream opens a stream of another service to the active target, and returns the target too. If the target is
// unreachable, the session fails over to the next one. Errors are gRPC statuses: UNAVAILABLE after 5s.
func (s *Session) OpenStream(
	ctx context.Context, desc *grpc.StreamDesc, method string,
) (rpc grpc.ClientStream, at StreamTarget, err error) {
	at.session = s
	if len(s.conns) > 1 {
		at.Changed = s.targetChanged() // before target, or a change could be missed
	}
	at.target = s.target()
	own, cancel := context.WithCancel(s.cfg.withRelayToken(ctx))
	timeout := time.AfterFunc(openTimeout, cancel)
	rpc, err = s.conns[at.target].NewStream(own, desc, method)
	late := !timeout.Stop()
	if err == nil && !late {
		return rpc, at, nil
	}
	cancel()
	if late {
		err = status.Errorf(codes.Unavailable, "no stream to the origin within %v", openTimeout)
	}
	if now := time.Now(); ctx.Err() == nil && !s.up(at.target) && s.links[at.target].failures.connectFailed(s, now) {
		s.failOver(at.target, Failure{explainUnresolved(s.cfg.Targets[at.target], err), now})
	}
	return nil, at, err
}

// The active target changes when a stream to it fails. The session fails back to an earlier target only after that has
// been reachable for failBackAfter (B.40). So it keeps a connection to each earlier target: only a connection proves
// that a server speaks HTTP/2 there.

// failBackLoop fails back to earlier targets until ctx ends.
func (s *Session) failBackLoop(ctx context.Context) {
	ticker := time.NewTicker(failBackInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			s.failBack(time.Now())
		case <-ctx.Done():
			return
		}
	}
}

// failBack connects to the targets before the active one, and activates the first of them that is stable.
func (s *Session) failBack(now time.Time) {
	active := s.target()
	for i := range active {
		s.conns[i].Connect() // no effect unless it is idle
		if !s.up(i) || !s.links[i].reachability.stable(now) || !s.switchTarget(active, i) {
			continue
		}
		s.cfg.Logger.Info("returning to an earlier origin address that is reachable again",
			slog.String("origin", s.cfg.Targets[i]), slog.Duration("reachable", failBackAfter))
		return
	}
}

// New returns a session. It connects when the first view needs the origin. The caller must call Close.
//
// Errors: the configuration is invalid, or gRPC cannot parse a target.
func New(cfg Config) (*Session, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Session{
		cfg:            cfg,
		stopFailBack:   stop,
		noDeltaLogged:  make([]atomic.Bool, len(cfg.Targets)),
		auditSlot:      make(chan struct{}, 1),
		comparisonSlot: make(chan struct{}, 1),
		links:          make([]link, len(cfg.Targets)),
		limiter:        newStreamLimiter(&cfg),
	}
	for i, target := range cfg.Targets {
		conn, err := grpc.NewClient(target, append(cfg.dialOptions(), s.links[i].addresses.dialOption(target))...)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open origin %q: %w", target, err), s.Close())
		}
		s.conns = append(s.conns, conn)
	}
	next := make(chan struct{})
	s.targetChange.Store(&next)
	for i, conn := range s.conns {
		s.watchers.Go(func() { s.watch(i, conn) }) // ended and awaited by Close
	}
	if len(s.conns) > 1 {
		s.watchers.Go(func() { s.failBackLoop(ctx) }) // ended and awaited by Close
	}
	return s, nil
}

// tcpKeepAlive detects a dead origin, or a link that drops all packets. HTTP/2 pings cannot be as frequent, because
// most servers close connections with frequent pings (B.34). For unacknowledged data, gRPC sets TCP_USER_TIMEOUT to the
// ping timeout.
var tcpKeepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}

// windowBytes is the flow-control window of the connection and of its streams. It is static, since a dynamic window
// costs a ping per message.
const windowBytes = 4 << 20

// dialOptions returns the options of each connection. DialOptions come last and take precedence.
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
		// The view sync decides when to reopen a stream. gRPC reconnects earlier than that.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second,
			},
			MinConnectTimeout: openTimeout,
		}),
		grpc.WithContextDialer(dial),
		grpc.WithIdleTimeout(0),
	)
	return append(options, c.DialOptions...)
}

// dial connects to an address that gRPC has resolved, with tcpKeepAlive. A prefix "unix:" selects a Unix socket.
func dial(ctx context.Context, address string) (net.Conn, error) {
	network := "tcp"
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", strings.TrimPrefix(path, "//")
	}
	d := net.Dialer{KeepAliveConfig: tcpKeepAlive}
	return d.DialContext(ctx, network, address)
}
