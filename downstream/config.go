package downstream

import (
	"cmp"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/downstream/loadreport"
	"github.com/xdstender/tender/downstream/subscription"
)

// Config shapes a server. The zero value of each field but Views works.
type Config struct {
	// Views finds the view that serves a node. Required.
	Views Views

	// Identifier is the ControlPlane.identifier in responses; it should be unique to the process (R126). Empty means
	// "tender".
	Identifier string

	// AckWait bounds how long a response waits for the answer to the previous one of its type. Zero means 5s.
	AckWait time.Duration

	// SendStall is how long a send may block before the stream is ended. Zero means 60s.
	SendStall time.Duration

	// ColdWait is how long a stream without a response waits for an unreachable origin, and how long an origin must be
	// connected before what it does not mention counts as removed. Zero means 10s.
	ColdWait time.Duration

	// FirstRequestTimeout bounds the wait for the first request of a stream. Zero means 10s.
	FirstRequestTimeout time.Duration

	// ConnectionAge is the age at which the gRPC server tells a client to open no more streams on its connection. The
	// streams end themselves between a tenth and a bit more than a quarter of it later (B.33). It needs
	// [guard.Guard.Credentials]. Zero means no maximum.
	ConnectionAge time.Duration

	// ResponseBytes is the size from which a response that may be partial is divided. Zero means 1 MiB.
	ResponseBytes int

	// Limits bound connections, streams, frames, Nodes and buffered requests.
	guard.Limits

	// MaxRequestRate bounds the requests a second of a stream that do not answer a response, with bursts of ten times as
	// many. Further ones are read later. Zero means 100.
	MaxRequestRate int

	// MaxNames bounds the resource names of a stream, and those in its initial_resource_versions. Zero means 100,000.
	MaxNames int

	// MaxGlobs bounds the globs of a stream, MaxGroupGlobs those of all clients of a view. Zero means 1,000 and 10,000.
	MaxGlobs, MaxGroupGlobs int

	// MaxNameBytes bounds a resource name or type URL. Zero means 4 KiB.
	MaxNameBytes int

	// MaxRequestBytes bounds a decompressed request, where GzipRequests accepts compressed ones; the gRPC server bounds
	// others. Zero means 4 MiB.
	MaxRequestBytes int
	GzipRequests    bool

	// MaxTypes bounds the types of a view. Zero means 64.
	MaxTypes int

	// FullStateTypes and WildcardTypes are further types with these traits (B.17).
	FullStateTypes, WildcardTypes []string

	// NoEDSAfterCDS disables sending the endpoints of changed clusters again (B.16).
	NoEDSAfterCDS bool

	// DynamicParameters has the parameters of names and Nodes choose among the variants of a resource (R122). Otherwise
	// they are ignored.
	DynamicParameters bool

	// ContentVersions says that Delta versions are hashes of the content, which no reuse by the origin can confuse
	// (B.2).
	ContentVersions bool

	// Loads is the origin of load reports. Nil rejects them with UNIMPLEMENTED (R139).
	Loads loadreport.Origin

	// SumLoads sums the reports of the clients of a group; otherwise each client has a stream of its own to the origin
	// (B.29).
	SumLoads bool

	// Probed returns nil if this relay would serve a client, which a relay below asks by a probe (wire.ProbeHeader), or
	// else a gRPC status with the reason. Nil serves probes as other streams.
	ProbeStatus func() error

	// Chain knows the relays above and below this one. Nil without any.
	Chain Chain

	// Authorizer decides which Nodes clients may use, and what they may request. Nil allows everything.
	Authorizer Authorizer

	// Traces exports spans of deliveries. Nil exports none.
	Traces *Traces

	// Served is called once many streams that began together were served, so that the memory that this took can be given
	// back. May be nil.
	HerdServed func()

	// Logger receives the server's log. Nil discards it.
	Logger *slog.Logger

	subscriptions subscription.Settings
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
	c.Limits = guard.WithDefaults(c.Limits)
	c.MaxRequestRate = cmp.Or(c.MaxRequestRate, 100)
	c.MaxNames = cmp.Or(c.MaxNames, 100_000)
	c.MaxGlobs = cmp.Or(c.MaxGlobs, 1000)
	c.MaxGroupGlobs = cmp.Or(c.MaxGroupGlobs, 10_000)
	c.MaxNameBytes = cmp.Or(c.MaxNameBytes, 4<<10)
	c.MaxRequestBytes = cmp.Or(c.MaxRequestBytes, 4<<20)
	c.MaxTypes = cmp.Or(c.MaxTypes, 64)
	c.Identifier = cmp.Or(c.Identifier, "tender")
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.subscriptions = subscription.Settings{
		AckWait: c.AckWait, ColdWait: c.ColdWait, ResponseBytes: c.ResponseBytes, ContentVersions: c.ContentVersions,
		FullState: make(map[string]bool), LegacyWildcard: make(map[string]bool),
	}
	for _, t := range c.FullStateTypes {
		c.subscriptions.FullState[t] = true
	}
	for _, t := range c.WildcardTypes {
		c.subscriptions.LegacyWildcard[t] = true
	}
	return c, nil
}

// checkNames rejects a request whose names are too long.
func (c *Config) checkNameSizes(r *wire.Request) error {
	if len(r.TypeURL) > c.MaxNameBytes {
		return guard.ExceedsAs(guard.LimitNameBytes, codes.InvalidArgument, "type_url of %d bytes, at most %d are allowed", len(r.TypeURL), c.MaxNameBytes)
	}
	for name := range r.InitialVersions {
		if len(name) > c.MaxNameBytes {
			return c.nameTooLong(name)
		}
	}
	for _, names := range [][]string{r.Subscribe, r.Unsubscribe} {
		for _, name := range names {
			if len(name) > c.MaxNameBytes {
				return c.nameTooLong(name)
			}
		}
	}
	return nil
}

func (c *Config) nameTooLong(name string) error {
	return guard.ExceedsAs(guard.LimitNameBytes, codes.InvalidArgument, "resource name %.64q… of %d bytes, at most %d are allowed", name, len(name), c.MaxNameBytes)
}

// limits returns the bounds of a request that is charged to an account.
func (c *Config) requestLimits(b *guard.Account) wire.Limits {
	return wire.Limits{
		MaxBytes: c.MaxRequestBytes, MaxNames: c.MaxNames + maxOverLimit, MaxNameBytes: c.MaxNameBytes, MaxNodeBytes: c.MaxNodeBytes,
		Parameters: c.DynamicParameters, Gzip: c.GzipRequests, Memory: b,
	}
}

// maxOver bounds the names over a limit that a stream remembers, to subscribe to them once there is room. The client is
// sent no error for further ones.
const maxOverLimit = 1000

// requestError returns the error that ends a stream for a request that could not be decoded.
func (c *Config) requestError(err error) error {
	switch _, limit := guard.LimitOf(err); {
	case limit:
		return err
	case errors.Is(err, wire.ErrTooLarge):
		return guard.Exceeds(guard.LimitRequest, "%v", err)
	case errors.Is(err, wire.ErrTooLong):
		return guard.ExceedsAs(guard.LimitNameBytes, codes.InvalidArgument, "%v, at most %d are allowed", err, c.MaxNameBytes)
	default:
		return status.Error(codes.InvalidArgument, err.Error())
	}
}

// Views finds views.
type Views interface {
	// Join returns the group of a node, and counts the stream as a member until the group's Leave is called. Errors are
	// gRPC statuses.
	Join(n *node, by Caller) (Group, error)
}

// A Caller is who opened a stream, as far as its Node does not say.
type Caller struct {
	Peer  string // the identity of the client's certificate, or else its host; empty on a Unix socket
	Relay bool   // the client is another relay, whatever software its Node names
}

// A Group is a set of nodes that an origin sends the same resources.
type Group struct {
	View  *cache.View
	Key   string // for logs and operators
	Node  *node  // that the origin takes the group for; read-only
	Leave func() // may be called again

	// Failure returns why the last request of the group to an origin failed; nil if none has. It must not wait. Nil is
	// unknown.
	Failure func() error

	// Counts is the group's. Nil counts nothing.
	Counts *Counts

	// Observer is of the one stream. Nil observes nothing.
	Observer Observer
}

// An Observer is told what the client of one stream does. Its methods must not wait: they are called while the stream is
// locked. Polls over REST and streams of load reports have none.
type Observer interface {
	// Refused is called when the client refused a response of a type, the newest or an earlier one.
	Refused(typeURL string, r *subscription.Refusal)

	// Left is called when the client ended the stream, or its connection was lost: not when the relay ended the stream, or
	// had begun to (B.33).
	Disconnected()
}

// An Authorizer decides which Nodes a client may use, and what it may request (B.36, B.37). Its methods may be called
// from any goroutine.
type Authorizer interface {
	// Authorize returns the grant of a peer with a Node, which it must not keep. The error, of [guard.Denies], rejects
	// the client.
	Authorize(p guard.Peer, n *node) (Grant, error)

	// Changed returns a channel that is closed once Authorize may return something else than before. Nil if that never
	// happens.
	Changed() <-chan struct{}
}

// A Grant is what a client may request. It does not change.
type Grant interface {
	// Identity returns the client's identity for logs.
	Identity() string

	// Type returns an error, of [guard.Denies], if the client may not request a type.
	Type(typeURL string) error

	// RestrictsNames reports whether Name must be called for the names of a type.
	RestrictsNames(typeURL string) bool

	// Name returns an error, of [guard.Denies], if the client may not request a name of a type, which may be the
	// wildcard. Names are canonical and without parameters.
	Name(typeURL, name string) error
}

// A Chain knows the relays above and below this one. Its methods may be called from any goroutine.
type Chain interface {
	// Below counts a stream that comes through relays with these tokens ([wire.RelayHeader]), until leave is called, and
	// returns the paths to the origins ([wire.ChainHeader]). If one of the relays turns out to be above this one, end is
	// called once, from any goroutine. The error is FAILED_PRECONDITION if one already is, or the chain is too long.
	Below(tokens []string, end func(error)) (ways []string, leave func(), err error)
}

// authorize returns the grant of a peer with a Node, nil without an Authorizer.
func (c *Config) authorize(p guard.Peer, n *node) (Grant, error) {
	if c.Authorizer == nil {
		return nil, nil
	}
	return c.Authorizer.Authorize(p, n)
}

// rulesChanged returns a channel that is closed once grants may have changed.
func (c *Config) grantsChanged() <-chan struct{} {
	if c.Authorizer == nil {
		return nil
	}
	return c.Authorizer.Changed()
}

// A node is the Node of a client.
type node = corepb.Node

// A Server serves views to xDS clients. Its methods may be called from any
// goroutine.
type Server struct {
	// Read-only after construction.
	cfg   Config
	guard *guard.Guard
	loads *loadreport.Server

	// Each has its own lock, or is atomic.
	streams       atomic.Int64  // those that a drain waits for: open streams and held polls
	accepted      atomic.Uint64 // all streams and polls so far
	streamNumbers atomic.Uint64 // given to streams
	coalesced     atomic.Int64  // see Stats
	throttled     atomic.Int64  // see Stats
	polls         pollHistory
	arrivals      arrivals
	registry      sync.Map // open streams by number, *stream
	queue         queue
	slots         guard.Slots

	nackLog, badNameLog, largeResponseLog, denialLog guard.LogLimiter

	draining, stopping  chan struct{} // closed to have streams end within a time, and at once
	drainOnce, stopOnce sync.Once
	drainBy             time.Time // when the last of them do; set before draining is closed
	drainSpread         time.Duration

	idle     chan struct{} // closed once a draining server has no stream and no poll left
	idleOnce sync.Once
}
