package guard

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/quota"
)

// Config configures a [Guard].
type Config struct {
	Limits // with defaults, see [WithDefaults]

	// Own reports whether a gRPC service counts its streams itself, by [Guard.EnterStream], and releases its requests
	// itself.
	Own func(service any) bool

	// KeepNodes reports whether Nodes will be needed again, by [Guard.WithKept].
	KeepNodes func() bool

	// DynamicParameters enables the dynamic parameters of Nodes; otherwise they are dropped.
	DynamicParameters bool

	// Draining is closed when the server drains, which ends pauses.
	Draining <-chan struct{}

	Logger *slog.Logger
}

// A Guard limits the resources that the clients of a server use.
type Guard struct {
	Counters *Counters

	// Read-only after construction.
	cfg Config

	// Each of these has its own lock.
	connections connections
	handshakes  handshakes
	nodes       nodes
	names       names
	streams     *quota.Pool // of all services, and polls
}

// New returns a guard.
func New(cfg Config) *Guard {
	return &Guard{
		Counters:    NewCounters(cfg.Logger),
		cfg:         cfg,
		connections: newConnections(cfg.Limits),
		handshakes:  newHandshakes(),
		nodes:       nodes{maxTurns: max(1, runtime.GOMAXPROCS(0)/2), peers: make(map[string]*peerNodes)},
		names:       newNames(cfg.Limits),
		streams:     quota.NewPool(cfg.MaxStreams, quota.Tenth(cfg.MaxStreams)),
	}
}

// Usage returns the number of open connections, and the bytes of [Limits.MaxUnreadBytes] that they claim.
func (g *Guard) Usage() (connections int, unread int64) {
	c := &g.connections
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open, c.claimed
}

// EnterStream counts a stream or a poll of a peer or refuses it. The caller must call leave when it ends.
func (g *Guard) EnterStream(peer string) (leave func(), err error) {
	share, over := g.streams.Take(peer)
	switch {
	case over == nil:
		return sync.OnceFunc(share.Release), nil
	case over.PerPeer:
		return nil, Exceeds(LimitStreams, "%d streams and polls of %s are open, at most %d of one peer are allowed "+
			"while more than half of %d are open", over.Used, peer, over.Limit, over.Total)
	default:
		return nil, Exceeds(LimitStreams, "%d streams and polls are open, as many as allowed", over.Used)
	}
}

// EnterPoll waits if the host of a poll is rate-limited, until ctx ends or the server drains at the latest. It reports
// whether the poll may be served.
func (g *Guard) EnterPoll(ctx context.Context, host string) (allowed bool) {
	wait, began, allowed := g.connections.admitPoll(host, time.Now())
	g.reportThrottled(host, began)
	if allowed {
		g.pause(ctx, wait)
	}
	return allowed
}

// StreamInterceptor counts the streams of services that do not do so themselves, such as health and reflection. They
// share the limit with all other streams (B.35).
func (g *Guard) StreamInterceptor(
	service any, rpc grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler,
) error {
	if g.cfg.Own(service) {
		return handle(service, rpc)
	}
	peer := PeerName(PeerOf(rpc.Context()))
	leave, err := g.EnterStream(peer)
	if err != nil {
		g.Counters.RequestRefused(LimitStreams, peer, "", err)
		return err
	}
	defer leave()
	return handle(service, chargedStream{rpc, AccountOf(rpc.Context())})
}

// UnaryInterceptor releases the requests of unary calls.
func (g *Guard) UnaryInterceptor(
	ctx context.Context, r any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
) (any, error) {
	a := AccountOf(ctx)
	answer, err := handle(ctx, r)
	a.Release(framedSize(r))
	a.Responded(framedSize(answer))
	return answer, err
}

var (
	errThrottled    = errors.New("too many frames or connections in a short time")
	errTooManyNames = errors.New("too many names in a short time")
)

// reportThrottled counts and logs that a peer has become rate-limited, if began is set.
func (g *Guard) reportThrottled(peer string, began bool) {
	if began {
		g.Counters.Refused("client rate-limited", LimitFrames, peer, errThrottled)
	}
}

// connectionRefused counts and logs a connection that is closed.
func (g *Guard) connectionRefused(peer string, err error) {
	if cause, is := CauseOf(err); is {
		g.Counters.Refused("client connection refused", cause, peer, err)
	}
}

// pause waits, until ctx ends or the server drains at the latest.
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

// enterConnection counts a connection of a peer or refuses it. The caller must call leave when the connection ends.
func (g *Guard) enterConnection(peer string) (leave func(), err error) {
	if leave, err = g.connections.enter(peer); err != nil {
		g.connectionRefused(peer, err)
	}
	return leave, err
}

// Turn waits until the CPU time share of a peer allows work on so many bytes for a request. Small work does not wait.
// The caller must call done after the work. The error is that of ctx, if it ends before.
func (g *Guard) Turn(ctx context.Context, peer string, bytes int) (done func(), err error) {
	return g.nodes.turn(ctx, peer, otherWork, bytes)
}

// AwaitNames waits until the budgets of a peer allow a request with names, and charges it. The requests of a peer wait in
// order. Their sum counts: many small requests wait as long as a large one. count is called again while the request
// waits. The caller must not hold a lock. The error is that of ctx, if it ends before. A drain ends the wait.
func (g *Guard) AwaitNames(ctx context.Context, peer string, count func() NameCount) error {
	return g.names.await(ctx, g.cfg.Draining, peer, count, func() {
		g.Counters.Refused("client rate-limited", LimitNameRate, peer, errTooManyNames)
	})
}

// WithNode decodes a client's Node and calls use with it. It returns the kept Node, which the stream must release. use
// must not keep the decoded Node, which is many times as large. Decoding may wait and take long, so goroutines that
// serve other clients must not call WithNode, and callers must not hold a lock.
func (g *Guard) WithNode(ctx context.Context, from Peer, raw RawNode, use func(*node) error) (*KeptNode, error) {
	if err := CheckNode(raw); err != nil {
		return nil, err
	}
	peer := PeerName(from)
	release, err := g.nodes.hold(peer, len(raw.Encoded))
	if err != nil {
		return nil, err
	}
	defer release()
	w := decodeFirst
	if raw.Later {
		w = decodeLater
	}
	done, err := g.nodes.turn(ctx, peer, w, len(raw.Encoded))
	if err != nil {
		return nil, err
	}
	defer done()
	n, err := decode(raw, g.cfg.DynamicParameters)
	if err != nil {
		return nil, err
	}
	release() // keep charges for the kept Node
	kept, err := g.keep(nodeCacheOf(ctx), peer, n)
	if err != nil {
		return nil, err
	}
	if err := use(n); err != nil {
		kept.Release()
		return nil, err
	}
	return kept, nil
}

// WithKept decodes a Node that was kept because of [Config.KeepNodes], and calls use with it, as WithNode does.
func (g *Guard) WithKept(ctx context.Context, from Peer, kept *KeptNode, use func(*node) error) error {
	done, err := g.nodes.turn(ctx, PeerName(from), otherWork, len(kept.encoded))
	if err != nil {
		return err
	}
	defer done()
	n := new(node)
	_ = proto.Unmarshal([]byte(kept.encoded), n) // cannot fail, since keep has encoded it
	return use(n)
}

// keep returns the kept form of a Node. Streams of a connection share equal Nodes, even if their encodings differ,
// which they may do since maps have no order.
func (g *Guard) keep(cache *nodeCache, peer string, n *node) (*KeptNode, error) {
	const parameter = 128 // overhead of a dynamic parameter, in bytes
	all := &node{
		Id: n.GetId(), Cluster: n.GetCluster(), Locality: n.GetLocality(), Metadata: n.GetMetadata(),
		DynamicParameters: n.GetDynamicParameters(), ClientFeatures: n.GetClientFeatures(),
		UserAgentName: n.GetUserAgentName(), UserAgentVersionType: n.GetUserAgentVersionType(),
	}
	kept := &KeptNode{Parameters: n.GetDynamicParameters(), uncharge: func() {}}
	size := 0
	if g.cfg.KeepNodes() || len(kept.Parameters) > 0 {
		kept.encoded = encodeNode(all)
		size = len(kept.encoded)
		kept.Shown = kept.encoded
	}
	if size == 0 || size > maxShown {
		kept.Shown = shownOf(all)
	}
	for _, params := range kept.Parameters {
		size += parameter * (1 + len(params.GetParams()))
	}
	kept.sum = sha256.Sum256([]byte(cmp.Or(kept.encoded, kept.Shown)))
	return cache.share(kept, func() (err error) {
		kept.uncharge, err = g.nodes.hold(peer, size)
		return err
	})
}
