package guard

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"

	"github.com/xdstender/tender/cache"
)

// Config shapes a [Guard].
type Config struct {
	Limits // of which zeros must have been replaced, see [WithDefaults]

	// Own reports whether a gRPC service takes shares of streams itself, by [Guard.EnterStream], and releases its
	// requests itself.
	Own func(service any) bool

	// KeepNodes reports whether Nodes will be needed again, by [Guard.WithKept].
	KeepNodes func() bool

	// DynamicParameters keeps the dynamic parameters of Nodes.
	DynamicParameters bool

	// Draining is closed when the server drains, which ends pauses.
	Draining <-chan struct{}

	Logger *slog.Logger
}

// A Guard bounds what the clients of a server take.
type Guard struct {
	Counters Counters

	// Read-only after construction.
	cfg Config

	// Each has its own lock.
	connections connections
	nodes       nodes
	streams     *cache.Shares // of all services, and polls

	refusedConnLog, throttleLog LogLimiter
}

// New returns a guard.
func New(cfg Config) *Guard {
	perMinute := rate.Every(time.Minute)
	return &Guard{
		cfg:            cfg,
		connections:    newConnections(cfg.Limits),
		nodes:          nodes{most: nodesOfPeer * int64(cfg.MaxNodeBytes), peers: make(map[string]*peerNodes)},
		streams:        cache.NewShares(cfg.MaxStreams, cache.Tenth(cfg.MaxStreams)),
		refusedConnLog: NewLogLimiter(perMinute, 1),
		throttleLog:    NewLogLimiter(perMinute, 1),
	}
}

// Usage returns the number of open connections, and the bytes of [Limits.MaxUnreadBytes] that they claim.
func (g *Guard) Usage() (connections int, unread int64) {
	c := &g.connections
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open, c.claimed
}

// EnterStream counts a stream or a poll of a peer, which must call leave when it ends, or rejects it.
func (g *Guard) EnterStream(peer string) (leave func(), err error) {
	share, over := g.streams.Take(peer)
	switch {
	case over == nil:
		return sync.OnceFunc(share.Give), nil
	case over.OfPeer:
		return nil, Exceeds(LimitStreams, "%d streams and polls of %s are open, at most %d of one peer are allowed while more than half of %d are open",
			over.Used, peer, over.Most, over.Total)
	default:
		return nil, Exceeds(LimitStreams, "%d streams and polls are open, as many as allowed", over.Used)
	}
}

// EnterPoll has a poll of a host wait if that is rate-limited, until ctx ends or the server drains, and reports
// whether it may be served.
func (g *Guard) EnterPoll(ctx context.Context, host string) (allowed bool) {
	wait, began, allowed := g.connections.poll(host, time.Now())
	g.throttled(host, began)
	if allowed {
		g.pause(ctx, wait)
	}
	return allowed
}

// StreamInterceptor counts the streams of services that do not count themselves, such as health and reflection: they
// have the same bound as all others (B.35).
func (g *Guard) StreamInterceptor(service any, rpc grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if g.cfg.Own(service) {
		return handle(service, rpc)
	}
	leave, err := g.EnterStream(g.cfg.PeerName(PeerOf(rpc.Context())))
	if err != nil {
		g.Counters.Rejected(err)
		return err
	}
	defer leave()
	return handle(service, chargedStream{rpc, AccountOf(rpc.Context())})
}

// UnaryInterceptor releases the requests of unary calls.
func (g *Guard) UnaryInterceptor(ctx context.Context, r any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	a := AccountOf(ctx)
	answer, err := handle(ctx, r)
	a.Release(framedSize(r))
	a.Responded(framedSize(answer))
	return answer, err
}

// throttled counts and logs that a peer has become rate-limited, if that is so.
func (g *Guard) throttled(peer string, began bool) {
	if !began {
		return
	}
	g.Counters.refused[LimitFrames].Add(1)
	if g.throttleLog.Allow() {
		g.cfg.Logger.LogAttrs(context.Background(), slog.LevelWarn, "client rate-limited", slog.String("peer", peer), slog.String("limit", LimitFrames.String()), g.throttleLog.Suppressed())
	}
}

// connectionRejected counts and logs a connection that is closed.
func (g *Guard) connectionRejected(peer string, err error) {
	g.Counters.Rejected(err)
	if g.refusedConnLog.Allow() {
		g.cfg.Logger.LogAttrs(context.Background(), slog.LevelWarn, "client connection rejected", slog.String("peer", peer), slog.Any("err", err), g.refusedConnLog.Suppressed())
	}
}

// pause waits, until ctx ends or the server drains.
func (g *Guard) pause(ctx context.Context, wait time.Duration) {
	if wait == 0 {
		return
	}
	select {
	case <-time.After(wait):
	case <-ctx.Done():
	case <-g.cfg.Draining:
	}
}
