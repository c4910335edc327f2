package downstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// Config shapes a server. But for Views, the zero value of each field works.
type Config struct {
	// Views finds the view that serves a node. Required.
	Views Views

	// Identifier tells clients who serves them; it should be unique to the process
	// (R126). Empty means "tender".
	Identifier string

	// AckWait bounds how long a response waits for its answer before the next one
	// of its type is sent all the same. Zero means 5s.
	AckWait time.Duration

	// SendStall is how long a send may block before the stream is ended. Zero means
	// 60s.
	SendStall time.Duration

	// ColdWait is how long a stream waits for the first word of an origin that is
	// not there, and how long an origin has to be back before what it does not
	// mention counts as gone. Zero means 10s.
	ColdWait time.Duration

	// FirstRequestTimeout is how long a new stream may stay silent. Zero means 10s.
	FirstRequestTimeout time.Duration

	// ConnectionAge is how old the connection of a client gets before it is told to take
	// no more streams, which the gRPC server has to do: streams end themselves then, some
	// time between a tenth and somewhat more than a quarter of it later (B.33). It needs
	// [Server.Credentials]. Zero means that no age is too old.
	ConnectionAge time.Duration

	// ResponseBytes is the size at which a response that need not be complete ends;
	// the rest follows in further ones. Zero means 1 MiB.
	ResponseBytes int

	// MaxConnections bounds the connections of clients, MaxPeerConnections those of one host,
	// by [Server.Credentials] and [Server.ConnState]. Zero means 50,000 and 10,000.
	MaxConnections, MaxPeerConnections int

	// MaxUnreadBytes bounds the memory that the requests of all connections together take until they are handled, beyond 64 KiB
	// for each, and a fourth of it for those of one host: what is not whole or not read yet, decompressed, or waits.
	// What exceeds it is closed. It needs [Server.Credentials]. Zero means 1 GiB.
	MaxUnreadBytes int

	// PeerIPv6Prefix is how many bits of an IPv6 address make a peer. Zero means 64.
	PeerIPv6Prefix int

	// MaxStreams bounds the streams of the server, and the polls that are held beside
	// them. Zero means 50,000.
	MaxStreams int

	// MaxRequestRate bounds the requests a second of a stream that answer no response;
	// ten times as many may come at once. Those that are too many are read later. Zero
	// means 100.
	MaxRequestRate int

	// MaxFrameRate bounds the frames of HTTP/2 a second of a connection that answer no response; ten times
	// as many may come at once, and over all connections of one host four times as many of both, but for
	// 50 a second of each connection. 2 KiB more count as a frame, a frame of data, the beginning of a stream
	// or a poll as 10, and the reset of a stream as 50. A new connection is 100 of those of its host, of which
	// 50 seconds' worth may be spent so at once. Those that are too many are read later. It needs
	// [Server.Credentials]. Zero means 5,000.
	MaxFrameRate int

	// MaxNames bounds the resource names of a stream, and those of which its client says that it has
	// them. Zero means 100,000.
	MaxNames int

	// MaxGlobs bounds the globs of a stream, MaxGroupGlobs those that the clients of a view
	// follow. Zero means 1,000 and 10,000.
	MaxGlobs, MaxGroupGlobs int

	// MaxNameBytes bounds a resource name or type URL. Zero means 4 KiB.
	MaxNameBytes int

	// MaxNodeBytes bounds the encoded Node of a client, of which all but its extensions may be 256 KiB and 10,000 values at most, and
	// 64 times as many bytes what is kept of the Nodes of one peer, beside the first 16 KiB of each. Zero means 1 MiB.
	MaxNodeBytes int

	// MaxRequestBytes bounds a request, decompressed, where GzipRequests has those that are compressed accepted; of others, the
	// gRPC server sees to it. Zero means 4 MiB.
	MaxRequestBytes int
	GzipRequests    bool

	// MaxTypes bounds the types that are known to a view. Zero means 64.
	MaxTypes int

	// FullStateTypes and WildcardTypes are further types with these traits (B.17).
	FullStateTypes, WildcardTypes []string

	// NoEDSAfterCDS switches off that endpoints follow their changed cluster
	// (B.16).
	NoEDSAfterCDS bool

	// DynamicParameters lets the parameters that a client gives, with a name or in its
	// Node, choose among the variants of a resource (R122). Without it they are not
	// looked at.
	DynamicParameters bool

	// ContentVersions says that Delta versions are made from content, which no
	// reuse by the origin can confuse (B.2).
	ContentVersions bool

	// Loads takes load reports to the origin. Nil means that none are taken: clients
	// are told UNIMPLEMENTED (R139).
	Loads LoadOrigin

	// SumLoads has the reports of a group's clients summed; else each client has a
	// stream of its own to the origin (B.29).
	SumLoads bool

	// Probed returns why a relay below, which asks by a probe (wire.ProbeHeader) whether it would be
	// served, would not; nil if it would. Errors are gRPC statuses. Nil has probes be streams like others.
	Probed func() error

	// Chain knows the relays above and below this one. Nil if nobody looks.
	Chain Chain

	// Authorizer says who may be whom, and have what. Nil lets everybody be anybody, and have
	// anything.
	Authorizer Authorizer

	// Traces shows deliveries. Nil shows none.
	Traces *Traces

	// Served is called once many streams that came together have what they came for, so
	// that what it took to serve them can be given back. Nil if nobody wants to know.
	Served func()

	// Logger receives what happens to streams. Nil discards it.
	Logger *slog.Logger

	fullState, wildcard map[string]bool
}

func (c Config) withDefaults() (Config, error) {
	if c.Views == nil {
		return Config{}, errors.New("downstream: Views is nil")
	}
	c.AckWait = cmp.Or(c.AckWait, 5*time.Second)
	c.SendStall = cmp.Or(c.SendStall, time.Minute)
	c.ColdWait = cmp.Or(c.ColdWait, 10*time.Second)
	c.FirstRequestTimeout = cmp.Or(c.FirstRequestTimeout, 10*time.Second)
	c.ResponseBytes = cmp.Or(c.ResponseBytes, 1<<20)
	c.MaxConnections = cmp.Or(c.MaxConnections, 50_000)
	c.MaxPeerConnections = cmp.Or(c.MaxPeerConnections, 10_000)
	c.MaxUnreadBytes = cmp.Or(c.MaxUnreadBytes, 1<<30)
	c.MaxStreams = cmp.Or(c.MaxStreams, 50_000)
	c.PeerIPv6Prefix = cmp.Or(c.PeerIPv6Prefix, 64)
	c.MaxRequestRate = cmp.Or(c.MaxRequestRate, 100)
	c.MaxFrameRate = cmp.Or(c.MaxFrameRate, 5000)
	c.MaxNames = cmp.Or(c.MaxNames, 100_000)
	c.MaxNodeBytes = cmp.Or(c.MaxNodeBytes, 1<<20)
	c.MaxGlobs = cmp.Or(c.MaxGlobs, 1000)
	c.MaxGroupGlobs = cmp.Or(c.MaxGroupGlobs, 10_000)
	c.MaxNameBytes = cmp.Or(c.MaxNameBytes, 4<<10)
	c.MaxRequestBytes = cmp.Or(c.MaxRequestBytes, 4<<20)
	c.MaxTypes = cmp.Or(c.MaxTypes, 64)
	c.Identifier = cmp.Or(c.Identifier, "tender")
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.fullState, c.wildcard = make(map[string]bool), make(map[string]bool)
	for _, t := range c.FullStateTypes {
		c.fullState[t] = true
	}
	for _, t := range c.WildcardTypes {
		c.wildcard[t] = true
	}
	return c, nil
}

// checkNames refuses a request whose names are too long.
func (c *Config) checkNames(r *wire.Request) error {
	if len(r.TypeURL) > c.MaxNameBytes {
		return ExceedsAs(LimitNameBytes, codes.InvalidArgument, "type_url of %d bytes, at most %d are allowed", len(r.TypeURL), c.MaxNameBytes)
	}
	for name := range r.InitialVersions {
		if len(name) > c.MaxNameBytes {
			return c.tooLong(name)
		}
	}
	for _, names := range [][]string{r.Subscribe, r.Unsubscribe} {
		for _, name := range names {
			if len(name) > c.MaxNameBytes {
				return c.tooLong(name)
			}
		}
	}
	return nil
}

func (c *Config) tooLong(name string) error {
	return ExceedsAs(LimitNameBytes, codes.InvalidArgument, "resource name %.64q… of %d bytes, at most %d are allowed", name, len(name), c.MaxNameBytes)
}

// limits returns with what a request of a connection is read.
func (c *Config) limits(b *Account) wire.Limits {
	return wire.Limits{
		MaxBytes: c.MaxRequestBytes, MaxNames: c.MaxNames + maxOver, MaxNameBytes: c.MaxNameBytes, MaxNodeBytes: c.MaxNodeBytes,
		Parameters: c.DynamicParameters, Gzip: c.GzipRequests, Memory: b,
	}
}

// unreadable returns what a client is told whose request could not be decoded.
func (c *Config) unreadable(err error) error {
	switch _, limit := LimitOf(err); {
	case limit:
		return err
	case errors.Is(err, wire.ErrTooLarge):
		return Exceeds(LimitRequest, "%v", err)
	case errors.Is(err, wire.ErrTooLong):
		return ExceedsAs(LimitNameBytes, codes.InvalidArgument, "%v, at most %d are allowed", err, c.MaxNameBytes)
	default:
		return status.Error(codes.InvalidArgument, err.Error())
	}
}

// Views finds views.
type Views interface {
	// Join returns the group of a node, and counts the stream as one of its
	// members until the group's Leave is called. The peer is what the node's certificate says, or
	// else the host that its connection comes from; empty if that is none, as on a Unix socket. Errors are gRPC
	// statuses.
	Join(n *node, peer string) (Group, error)
}

// A Group is a set of nodes that an origin tells the same.
type Group struct {
	View  *cache.View
	Key   string // for people
	Node  *node  // whom the origin takes the group for; read-only
	Leave func() // may be called again

	// Counts are the group's. Nil counts nothing.
	Counts *Counts
}

// A Server serves views to xDS clients. Its methods may be called from any
// goroutine.
type Server struct {
	cfg              Config
	nackLog          LogLimiter
	badNameLog       LogLimiter
	loads            groups
	largeResponseLog LogLimiter
	denialLog        LogLimiter
	shares           *cache.Shares // of streams of all services, and of polls
	nodes            nodes
	streams          atomic.Int64 // of those that a drain waits for, and held polls

	connections    connections
	refusedConnLog LogLimiter
	throttleLog    LogLimiter
	polls          pollMemory
	pollers        sync.Map // net.Conn of a server of polls → func() that counts it out

	arrivals arrivals
	counters Counters
	accepted atomic.Uint64 // likewise
	numbers  atomic.Uint64 // given to streams
	registry registry
	queue    queue
	slots    Slots

	draining, hurried chan struct{} // closed to have streams end within a time, and at once
	drain, hurry      sync.Once
	drainBy           time.Time // when the last of them do; set before draining is closed
	spread            time.Duration

	idle  chan struct{} // closed once a draining server has no stream and no poll left
	idled sync.Once
}

// New returns a server. Errors: a missing Views.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg:              cfg,
		nackLog:          LogLimiter{limit: rate.NewLimiter(5, 20)},
		badNameLog:       LogLimiter{limit: rate.NewLimiter(5, 20)},
		loads:            groups{origin: cfg.Loads, byKey: make(map[string]*LoadGroup)},
		largeResponseLog: LogLimiter{limit: rate.NewLimiter(rate.Every(time.Minute), 5)},
		refusedConnLog:   LogLimiter{limit: rate.NewLimiter(rate.Every(time.Minute), 1)},
		throttleLog:      LogLimiter{limit: rate.NewLimiter(rate.Every(time.Minute), 1)},
		denialLog:        LogLimiter{limit: rate.NewLimiter(5, 20)},
		draining:         make(chan struct{}),
		hurried:          make(chan struct{}),
		slots:            NewSlots(),
		idle:             make(chan struct{}),
	}
	s.connections = connections{
		most: cfg.MaxConnections, mostOfPeer: cfg.MaxPeerConnections, mostUnread: int64(cfg.MaxUnreadBytes), frameRate: cfg.MaxFrameRate,
		peers: make(map[string]*peerUse),
	}
	s.nodes = nodes{most: nodesOfPeer * int64(cfg.MaxNodeBytes), of: make(map[string]*peerNodes)}
	s.shares = cache.NewShares(cfg.MaxStreams, cache.Tenth(cfg.MaxStreams))
	s.arrivals = arrivals{served: cfg.Served, turns: s.queue.taken, open: s.streams.Load}
	return s, nil
}

// Streams returns the number of open streams, held polls included.
func (s *Server) Streams() int { return int(s.streams.Load()) }

// Turns returns how often a stream was looked at because something that it may want has
// changed, or was asked for, and how often there was nothing to send.
func (s *Server) Turns() (all, idle int64) {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	return s.queue.turns, s.queue.idle
}

// serve serves a stream of one type, or an aggregated one if typeURL is empty.
func (s *Server) serve(rpc grpc.ServerStream, typeURL string, delta bool) error {
	leave, err := s.enter(rpc.Context())
	if err != nil {
		return err
	}
	defer leave()
	s.arrivals.came()
	st := &stream{
		server:  s,
		cfg:     &s.cfg,
		rpc:     rpc,
		account: AccountOf(rpc.Context()),
		typeURL: typeURL,
		delta:   delta,
		pace:    s.requestPace(),
		number:  s.numbers.Add(1),
		over:    make(chan error, 1),
	}
	if s.cfg.regranted() != nil {
		st.stale = make(chan struct{}, 1)
	}
	s.registry.add(st)
	defer s.registry.remove(st)
	err = st.run()
	s.counters.StreamEnded(err)
	s.clientDenied(err)
	return Status(err)
}

// requestPace bounds the requests of a stream.
func (s *Server) requestPace() *rate.Limiter {
	return rate.NewLimiter(rate.Limit(s.cfg.MaxRequestRate), 10*s.cfg.MaxRequestRate)
}

// enter counts a stream, which must call leave when it ends, or refuses it.
func (s *Server) enter(ctx context.Context) (leave func(), err error) {
	end, err := s.enterShare(s.cfg.PeerName(PeerOf(ctx)))
	if err != nil {
		s.counters.StreamEnded(err)
		return nil, err
	}
	s.streams.Add(1)
	s.accepted.Add(1)
	return func() {
		end()
		s.streams.Add(-1)
		s.checkIdle()
	}, nil
}

// A refusalLog writes what clients can cause at will, at a bounded rate, and says
// how much it left out.
type LogLimiter struct {
	limit   *rate.Limiter
	skipped atomic.Int64
}

// withholdDetail replaces what a client says of Secrets, which may quote them, so that no log, status or trace has it (B.36).
func withholdDetail(r *wire.Request) {
	if wire.IsSecret(r.TypeURL) && r.ErrorMessage != "" {
		r.ErrorMessage = fmt.Sprintf("%d bytes that may quote a Secret are not shown", len(r.ErrorMessage))
	}
}

func (l *LogLimiter) refused(to *client, r *wire.Request, as *Refusal) {
	if !l.Allow() {
		return
	}
	log := to.log()
	if as != nil && as.TraceID != "" {
		log = log.With(slog.String("trace_id", as.TraceID), slog.String("span_id", as.SpanID))
	}
	log.LogAttrs(context.Background(), slog.LevelWarn, "client refused a response",
		slog.String("type_url", r.TypeURL), slog.String("nonce", fmt.Sprintf("%.64s", r.Nonce)),
		slog.Int("code", int(r.ErrorCode)), slog.String("detail", fmt.Sprintf("%.2048s", r.ErrorMessage)),
		slog.Int64("others_left_out", l.skipped.Swap(0)))
}

// allow reports whether a line may be written now; if not, it counts it.
func (l *LogLimiter) Allow() bool {
	if l.limit.Allow() {
		return true
	}
	l.skipped.Add(1)
	return false
}

func (l *LogLimiter) misnamed(to *client, typeURL string, b wire.BadName) {
	if !l.Allow() {
		return
	}
	to.log().LogAttrs(context.Background(), slog.LevelWarn, "client asked for a name that cannot be",
		slog.String("type_url", typeURL), slog.String("name", b.Name), slog.Any("err", b.Err),
		slog.Int64("others_left_out", l.skipped.Swap(0)))
}

func (l *LogLimiter) refusedConnection(log *slog.Logger, peer string, err error) {
	if !l.Allow() {
		return
	}
	log.LogAttrs(context.Background(), slog.LevelWarn, "connection of a client was refused",
		slog.String("peer", peer), slog.Any("err", err), slog.Int64("others_left_out", l.skipped.Swap(0)))
}

// slowed tells of a peer of which is read no more than is allowed.
func (s *Server) throttled(peer string) {
	s.counters.refused[LimitFrames].Add(1)
	if s.throttleLog.Allow() {
		s.cfg.Logger.LogAttrs(context.Background(), slog.LevelWarn, "client sends more than it may, and is read later", slog.String("peer", peer),
			slog.String("limit", LimitFrames.String()), slog.Int64("others_left_out", s.throttleLog.skipped.Swap(0)))
	}
}

// oversized tells of a response that could not be cut and that not every client takes
// (B.32).
func (l *LogLimiter) oversized(to *client, typeURL string, body *wire.Body) {
	if body.Size() <= maxResponseBytes || !l.Allow() {
		return
	}
	to.log().LogAttrs(context.Background(), slog.LevelWarn, "response is larger than many clients take: 4 MiB is what gRPC allows by default",
		slog.String("type_url", typeURL), slog.String("version", body.Version()), slog.Int("bytes", body.Size()), slog.Int("resources", body.Len()),
		slog.Int64("others_left_out", l.skipped.Swap(0)))
}
