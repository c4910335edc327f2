package upstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/upstream/reconcile"
)

// A Trace shows people what comes of one message of an origin.
type Trace interface {
	cache.Trace

	// Answered ends the trace of the message itself: the origin was told that it was taken, or, with an error, that
	// it was not.
	Answered(err error)

	// IDs returns what the message is called in logs.
	IDs() (traceID, spanID string)
}

// A Received is a message of an origin, or what was read of a directory.
type Received struct {
	Origin string    // its address, or the directory
	At     time.Time // when it came in, before it was decoded

	// Of a message alone.
	TypeURL, Version, Nonce string
	Resources, Removed      int
}

// A Request is one to an origin that clients' subscriptions have caused.
type Request struct {
	Origin  string // its address
	TypeURL string
	Names   int // that are subscribed to; a wildcard is one, and none is all in the legacy form
	At      time.Time

	// By are clients that were the first to want some of that, at most eight.
	By []cache.Demand
}

// CauseOf returns what a message is to the views that it changes.
func CauseOf(t Trace, at time.Time) cache.Cause {
	if t == nil {
		return cache.Cause{Received: at}
	}
	return cache.Cause{Received: at, Trace: t}
}

// traced returns a logger that says which trace its lines are about.
func withTraceIDs(log *slog.Logger, t Trace) *slog.Logger {
	traceID, spanID := t.IDs()
	return log.With(slog.String("trace_id", traceID), slog.String("span_id", spanID))
}

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

	// Check has changes held that break clients (B.46). Nil holds none.
	Check reconcile.Checker

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
func (c *Config) isResponseTooLarge(err error) bool {
	return status.Code(err) == codes.ResourceExhausted && strings.HasSuffix(err.Error(), fmt.Sprintf(" vs. %d)", c.MaxResponseBytes))
}

// A Protocol says in which variant of xDS an origin is spoken to.
type Protocol int

// The protocols that a session may speak.
const (
	// ProtocolAuto is Delta ADS, or SotW ADS with a target that does not implement
	// Delta.
	ProtocolAuto Protocol = iota
	// ProtocolDelta is Delta ADS only.
	ProtocolDelta
	// ProtocolSotW is SotW ADS only.
	ProtocolSotW
)

func (p Protocol) String() string { return [...]string{"auto", "delta", "sotw"}[p] }

// A Chain knows the relays above and below this one. Its methods may be called from any goroutine.
type Chain interface {
	// Token is what other relays know this one by.
	Token() string

	// Above takes the ways to an origin that a server has shown on a stream ([wire.ChainHeader]), until leave is called.
	// FAILED_PRECONDITION if the stream must not be used, since this relay is on one of them, or one is too long.
	Above(ways []string) (leave func(), err error)
}

// openTimeout bounds how long an attempt to open a stream takes: to connect, and
// to wait for an origin that allows fewer streams than there are views.
const openTimeout = 5 * time.Second

// ReconnectMax is how long it takes at most until a stream that was served is opened again.
const ReconnectMax = 500 * time.Millisecond

// jitter returns a duration between 80% and 120% of d.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}

// identified returns the context of a stream to a target, which says which relay opens it.
func (c *Config) withRelayToken(ctx context.Context) context.Context {
	if c.Chain == nil {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, wire.RelayHeader, c.Chain.Token())
}

// enterChain waits for the header of a stream, and takes what it says of the relays above, if anybody looks.
func (c *Config) registerChain(rpc grpc.ClientStream) (leave func(), err error) {
	if c.Chain == nil {
		return func() {}, nil
	}
	header, err := rpc.Header()
	if err != nil { // RecvMsg returns it
		return func() {}, nil
	}
	return c.Chain.Above(header.Get(wire.ChainHeader))
}
