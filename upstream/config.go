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

// A Trace records the effects of one response of an origin.
type Trace interface {
	cache.Trace

	// Answered ends the trace of the response itself. The relay has sent an ACK, or, if err is not nil, a NACK.
	Answered(err error)

	// IDs returns the IDs of the trace and its span, for log lines.
	IDs() (traceID, spanID string)
}

// A Received describes a response of an origin, or one read of a directory.
type Received struct {
	Origin string    // target of the origin, or the directory
	At     time.Time // receive time, before decoding

	// Only for a response.
	TypeURL, Version, Nonce string
	Resources, Removed      int
	Address                 string // of the server; empty if gRPC does not report it
	TraceParent             string // of the change, if the origin is a relay that traces it; unchecked
}

// A Request is a request to an origin that subscriptions of clients have caused.
type Request struct {
	Origin  string // target of the origin
	TypeURL string
	Names   int // names subscribed to: 1 for "*", 0 for a legacy wildcard
	At      time.Time

	// By lists the subscriptions of clients that caused the request, at most the first eight.
	By []cache.Demand
}

// CauseOf returns the cause of the view changes of a response that was received at the given time. t may be nil.
func CauseOf(t Trace, at time.Time) cache.Cause {
	if t == nil {
		return cache.Cause{Received: at}
	}
	return cache.Cause{Received: at, Trace: t}
}

// withTraceIDs returns a logger that adds the IDs of a trace to its lines.
func withTraceIDs(log *slog.Logger, t Trace) *slog.Logger {
	traceID, spanID := t.IDs()
	return log.With(slog.String("trace_id", traceID), slog.String("span_id", spanID))
}

// Config configures a session. Targets is required; the zero value of every other field selects its default.
type Config struct {
	// Targets are the gRPC targets of the origin in failover order. Required.
	Targets []string

	// Credentials authenticate the targets, and the relay to them. Nil means plaintext. CallCredentials are sent with
	// each stream; nil means none.
	Credentials     credentials.TransportCredentials
	CallCredentials credentials.PerRPCCredentials

	// Authority is the :authority of requests, and the name that the certificates of the targets must contain. Empty
	// means the address of each target.
	Authority string

	// DialOptions are added to the session's own, for tests.
	DialOptions []grpc.DialOption

	// Protocol is the xDS variant. Zero means Delta, or SotW if a target does not implement Delta.
	Protocol Protocol

	// Keepalive is the interval of HTTP/2 pings. Zero means 330s: many servers close connections that ping more often
	// than every five minutes.
	Keepalive time.Duration

	// MaxResponseBytes limits the size of a response. Zero means 256 MiB.
	MaxResponseBytes int

	// MaxResourceBytes limits the size of a resource. If a response contains a larger one, the relay keeps the cached
	// version of that resource and applies the rest (B.9). Zero means no limit.
	MaxResourceBytes int

	// StreamBurst limits the ADS streams that views open at once, after which they open 600 per minute. Streams over the
	// limit wait. Zero means no limit.
	StreamBurst int

	// FullResync requests all resources after a reconnect, instead of reporting the cached versions.
	FullResync bool

	// ContentVersions derives resource versions from content (B.2).
	ContentVersions bool

	// Linger is how long an unused subscription to a name is kept. One to a wildcard or a glob is kept for
	// [WildcardLinger]. Zero means 5m.
	Linger time.Duration

	// MaxLingering limits the unused names that are kept, MaxLingeringBytes the size of their resources. Zero means
	// 100,000 and 512 MiB. Only tests set them, because they have fewer names.
	MaxLingering, MaxLingeringBytes int

	// ColdWait is the time without a new name after which a set counts as complete (B.7). After a minute in total, it
	// counts as complete in any case. Zero means 10s.
	ColdWait time.Duration

	// MassDeleteHold is how long suspiciously large removals stay pending (B.15). Zero means 10m.
	MassDeleteHold time.Duration

	// Required reports whether only an operator removes a resource of a type; nil if the origin removes all.
	Required func(typeURL, name string) bool

	// Growth limits what may grow in one change (B.51). What grows more stays pending for MassDeleteHold. The zero value
	// limits nothing.
	Growth reconcile.GrowthLimit

	// HoldExplicit applies MassDeleteHold also to removals that the origin states explicitly for a complete set.
	HoldExplicit bool

	// Check finds changes that would break clients; these stay pending (B.46). Nil disables the check.
	Check reconcile.Checker

	// Prewarm lists types that every view subscribes to before any client does.
	Prewarm []string

	// Chain detects loops of relays. Nil disables the detection.
	Chain Chain

	// Trace starts the trace of a response. Nil disables tracing.
	Trace func(Received) Trace

	// Requested is called for each request that subscriptions of clients have caused. May be nil.
	Requested func(Request)

	// Logger receives the events of the session. Nil discards them.
	Logger *slog.Logger
}

// WildcardLinger returns how long an unused subscription to a wildcard or a glob is kept, given how long one to a name
// is. It is longer, because the relay would have to request many resources again.
func WildcardLinger(linger time.Duration) time.Duration { return 3 * linger }

// withDefaults returns the configuration with the default of every unset field. It returns an error if Targets is empty
// or Protocol is not one of the constants.
func (c Config) withDefaults() (Config, error) {
	if len(c.Targets) == 0 {
		return Config{}, errors.New("upstream: no target")
	}
	if c.Protocol < ProtocolAuto || c.Protocol > ProtocolSotW {
		return Config{}, fmt.Errorf("upstream: Protocol = %d, allowed: ProtocolAuto, ProtocolDelta, ProtocolSotW", c.Protocol)
	}
	c.Keepalive = cmp.Or(c.Keepalive, 330*time.Second)
	c.Linger = cmp.Or(c.Linger, 5*time.Minute)
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

// isResponseTooLarge reports whether a stream ended because a response exceeds MaxResponseBytes. It compares the text
// of the error, since an origin returns the same code for requests over its own limit.
func (c *Config) isResponseTooLarge(err error) bool {
	limit := fmt.Sprintf(" vs. %d)", c.MaxResponseBytes)
	return status.Code(err) == codes.ResourceExhausted && strings.HasSuffix(err.Error(), limit)
}

// A Protocol is the xDS variant that the relay uses with an origin.
type Protocol int

// The protocols that a session may speak.
const (
	// ProtocolAuto is Delta ADS, or SotW ADS if a target does not implement Delta.
	ProtocolAuto Protocol = iota
	// ProtocolDelta is Delta ADS only.
	ProtocolDelta
	// ProtocolSotW is SotW ADS only.
	ProtocolSotW
)

// String returns the name that TENDER_ORIGIN_PROTOCOL uses for the protocol.
func (p Protocol) String() string { return [...]string{"auto", "delta", "sotw"}[p] }

// A Chain detects loops of relays. Its methods may be called from any goroutine.
type Chain interface {
	// Token identifies this relay to other relays.
	Token() string

	// Above registers the paths to an origin that a server reports on a stream ([wire.ChainHeader]), until leave is
	// called. It returns FAILED_PRECONDITION if this relay is on one of the paths, or if one is too long. Then the
	// stream must not be used.
	Above(ways []string) (leave func(), err error)
}

// openTimeout limits an attempt to open a stream. That includes connecting, and waiting for an origin that allows fewer
// concurrent streams than there are views.
const openTimeout = 5 * time.Second

// ReconnectMax is the maximum delay before the relay reopens a stream that received responses.
const ReconnectMax = 500 * time.Millisecond

// jitter returns a random duration between 80% and 120% of d.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}

// withRelayToken adds the token of this relay to the metadata of a stream, if there is a Chain.
func (c *Config) withRelayToken(ctx context.Context) context.Context {
	if c.Chain == nil {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, wire.RelayHeader, c.Chain.Token())
}

// registerChain waits for the headers of a stream and registers the paths that they report, if there is a Chain. It
// returns an error if the stream would close a loop of relays. The caller must call leave when the stream ends.
func (c *Config) registerChain(rpc grpc.ClientStream) (header metadata.MD, leave func(), err error) {
	if c.Chain == nil {
		return nil, func() {}, nil
	}
	if header, err = rpc.Header(); err != nil { // RecvMsg returns the same error
		return nil, func() {}, nil
	}
	leave, err = c.Chain.Above(header.Get(wire.ChainHeader))
	return header, leave, err
}
