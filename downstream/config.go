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

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/downstream/loadreport"
	"github.com/xdstender/tender/downstream/subscription"
)

// Config configures a server. The zero value of each field except Views works.
type Config struct {
	// Views assigns a node to the view that serves it. Required.
	Views Views

	// Identifier is the ControlPlane.identifier in responses. It should be unique to the process (R126). Empty means
	// "tender".
	Identifier string

	// AckWait is how long a response waits for the ACK or NACK of the previous response of its type. Zero means 5s.
	AckWait time.Duration

	// SendStall is how long a send may block before the stream ends. Zero means 60s.
	SendStall time.Duration

	// ColdWait is how long a stream that was sent no response waits for an unreachable origin. It is also how long an
	// origin must be connected before a resource that it did not send counts as removed. Zero means 10s.
	ColdWait time.Duration

	// FirstRequestTimeout bounds the wait for the first request of a stream. Zero means 10s.
	FirstRequestTimeout time.Duration

	// ConnectionAge is the maximum age of a connection. The gRPC server then sends GOAWAY, and the streams end after
	// another 10 to 27 percent of it (B.33). It requires [guard.Guard.Credentials]. Zero means no maximum.
	ConnectionAge time.Duration

	// ResponseBytes is the size in bytes above which a response that may be partial is split. Zero means 1 MiB.
	ResponseBytes int

	// Limits limit connections, streams, frames, Nodes and buffered requests.
	guard.Limits

	// MaxRequestRate limits the requests per second of a stream that do not answer a response, with bursts of ten times
	// that number. The relay delays reading further requests. Zero means 100.
	MaxRequestRate int

	// MaxNames limits the resource names of a stream, and those in its initial_resource_versions. Zero means 100,000.
	MaxNames int

	// NoResend disables resending the Secrets, extension configurations and endpoints of changed clusters and listeners (B.16).
	NoResend bool

	// DynamicParameters selects the variant of a resource by the parameters of its name and of the Node (R122). If false,
	// parameters are ignored.
	DynamicParameters bool

	// ContentVersions is set if Delta versions are hashes of the content, so that different content never has the same
	// version (B.2).
	ContentVersions bool

	// Rejected is called after a client rejected a response. It must not block, because the stream is locked meanwhile. Nil
	// calls nothing.
	Rejected func()

	// Gzip compresses the responses to clients that accept it (B.32).
	Gzip bool

	// Loads is the origin that receives load reports. Nil refuses streams of load reports with UNIMPLEMENTED (R139).
	Loads loadreport.Origin

	// SumLoads forwards the sum of the load reports of a group. If false, each client has a separate stream to the origin
	// (B.29).
	SumLoads bool

	// ProbeStatus answers a probe (wire.ProbeHeader) from a relay that considers this one as its origin. It returns nil if
	// this relay would serve the probing relay, otherwise a gRPC status. Nil serves probes as ordinary streams.
	ProbeStatus func() error

	// Chain detects cycles of relays. Nil detects none.
	Chain Chain

	// Halts returns what rollouts have halted of the resources of a group, for a relay below that has a grant, which may be
	// nil. It is encoded as that relay reads it (B.55). It must not block. Nil tells nothing.
	Halts func(group string, grant Grant) []byte

	// Authorizer decides which Nodes clients may use and which resources they may request. Nil allows everything.
	Authorizer Authorizer

	// Traces exports a span for each selected delivery. Nil exports none.
	Traces *Traces

	// Logger receives the log of the server. Nil discards it.
	Logger *slog.Logger

	subscriptions subscription.Settings
}

func (c Config) withDefaults() (Config, error) {
	if c.Views == nil {
		return Config{}, errors.New("downstream: Views is nil")
	}
	if c.Gzip && !wire.Compresses() {
		return Config{}, errors.New("downstream: this program has replaced the compressor gzip of gRPC, which Gzip needs")
	}
	c.AckWait = cmp.Or(c.AckWait, 5*time.Second)
	c.SendStall = cmp.Or(c.SendStall, time.Minute)
	c.ColdWait = cmp.Or(c.ColdWait, 10*time.Second)
	c.FirstRequestTimeout = cmp.Or(c.FirstRequestTimeout, 10*time.Second)
	c.ResponseBytes = cmp.Or(c.ResponseBytes, 1<<20)
	c.Limits = guard.WithDefaults(c.Limits)
	c.MaxRequestRate = cmp.Or(c.MaxRequestRate, 100)
	c.MaxNames = cmp.Or(c.MaxNames, 100_000)
	c.Identifier = cmp.Or(c.Identifier, "tender")
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.subscriptions = subscription.Settings{
		AckWait: c.AckWait, ColdWait: c.ColdWait, ResponseBytes: c.ResponseBytes, ContentVersions: c.ContentVersions,
	}
	return c, nil
}

// maxNameBytes limits the length of a resource name, with its parameters, and of a type URL.
const maxNameBytes = 4 << 10

// checkNameSizes returns an error if the type URL or a name in a request exceeds maxNameBytes.
func checkNameSizes(r *wire.Request) error {
	if len(r.TypeURL) > maxNameBytes {
		return guard.ExceedsAs(guard.LimitNameBytes, codes.InvalidArgument,
			"type_url of %d bytes, at most %d are allowed", len(r.TypeURL), maxNameBytes)
	}
	for name := range r.InitialVersions {
		if len(name) > maxNameBytes {
			return nameTooLong(name)
		}
	}
	for _, names := range [][]string{r.Subscribe, r.Unsubscribe} {
		for _, name := range names {
			if len(name) > maxNameBytes {
				return nameTooLong(name)
			}
		}
	}
	return nil
}

func nameTooLong(name string) error {
	return guard.ExceedsAs(guard.LimitNameBytes, codes.InvalidArgument,
		"resource name %.64q… of %d bytes, at most %d are allowed", name, len(name), maxNameBytes)
}

// requestLimits returns the limits for decoding a request whose memory is charged to account b.
func (c *Config) requestLimits(b *guard.Account) wire.Limits {
	return wire.Limits{
		MaxNodeBytes: guard.MaxNodeBytes, MaxNames: c.MaxNames + maxOverLimit, MaxNameBytes: maxNameBytes,
		Parameters: c.DynamicParameters, Memory: b,
	}
}

// maxOverLimit is how many names over a limit a stream remembers. It subscribes to them once usage is below the limit.
// For further names, the client gets no resource error.
const maxOverLimit = 1000

// requestError returns the error that ends a stream after a request that cannot be decoded.
func (c *Config) requestError(err error) error {
	switch _, limit := guard.LimitOf(err); {
	case limit:
		return err
	case errors.Is(err, wire.ErrText):
		return guard.Refuses(guard.InvalidText, "%v", err)
	case errors.Is(err, wire.ErrTooLong):
		return guard.ExceedsAs(guard.LimitNameBytes, codes.InvalidArgument, "%v, at most %d are allowed", err, maxNameBytes)
	default:
		return guard.Refuses(guard.InvalidMessage, "%v", err)
	}
}

// Views assigns nodes to views.
type Views interface {
	// Join returns the group of a node. The stream counts as a member of the group until it calls the group's Leave.
	// Errors are gRPC statuses.
	Join(n *node, by Caller) (Group, error)
}

// A Caller has the properties of a client that its Node does not contain.
type Caller struct {
	Peer  string // identity in the client certificate, otherwise the host; empty on a Unix socket
	Relay bool   // whether the client is another relay, regardless of the software in its Node
}

// A Group is a set of nodes to which the origin sends the same resources.
type Group struct {
	View  *cache.View
	Key   string // for logs and operators
	Node  *node  // the Node that the relay sends to the origin for the group; read-only
	Leave func() // idempotent

	// Failure returns the error of the group's last failed request to an origin, or nil. It must not block. A nil Failure
	// means that the error is unknown.
	Failure func() error

	// Counts counts the responses to all streams of the group. Nil counts nothing.
	Counts *Counts

	// Observer receives the events of the stream that joined, not of the group. Nil observes nothing.
	Observer Observer
}

// An Observer receives the NACKs and the disconnect of one client stream. Its methods must not block, because they are
// called while the stream is locked. REST polls and streams of load reports have no observer.
type Observer interface {
	// Rejected is called when the client rejected a response of a type: the newest response or an earlier one. subscribes
	// reports whether the client subscribes to any of a change now; it may be called only before Rejected returns.
	Rejected(typeURL string, r *subscription.Rejection, subscribes func(*subscription.Change) bool)

	// Disconnected is called when the client ended the stream, or its connection was lost. It is not called if the relay
	// ended the stream, or had already started to end it (B.33).
	Disconnected()
}

// An Authorizer decides which Nodes a client may use and which resources it may request (B.36, B.37). Its methods may
// be called from any goroutine.
type Authorizer interface {
	// Authorize returns the grant of a peer that uses a Node. It must not retain the Node. An error of [guard.Denies]
	// refuses the client.
	Authorize(p guard.Peer, n *node) (Grant, error)

	// Changed returns a channel that is closed when the rules change, so that grants must be renewed. Nil means that the
	// rules never change.
	Changed() <-chan struct{}
}

// A Grant lists what a client may request. It is immutable.
type Grant interface {
	// Identity returns the identity of the client for logs.
	Identity() string

	// Type returns an error of [guard.Denies] if the client may not request a type.
	Type(typeURL string) error

	// RestrictsNames reports whether the names of a type must be checked with Name.
	RestrictsNames(typeURL string) bool

	// Name returns an error of [guard.Denies] if the client may not request a resource name or the wildcard of a type. The
	// name is canonical and has no parameters.
	Name(typeURL, name string) error
}

// A Chain detects cycles of relays. Its methods may be called from any goroutine.
type Chain interface {
	// Below registers a client stream that passed through relays with these tokens ([wire.RelayHeader]), until leave is
	// called. It returns the paths from this relay to the origins ([wire.ChainHeader]). If one of the relays is later
	// found on such a path, the stream is part of a cycle: end is called once, from any goroutine. The error is
	// FAILED_PRECONDITION if the cycle exists already or the chain is too long.
	Below(tokens []string, end func(error)) (paths []string, leave func(), err error)
}

// authorize returns the grant of a peer that uses a Node. The grant is nil without an Authorizer.
func (c *Config) authorize(p guard.Peer, n *node) (Grant, error) {
	if c.Authorizer == nil {
		return nil, nil
	}
	return c.Authorizer.Authorize(p, n)
}

// grantsChanged returns a channel that is closed when grants must be renewed. It is nil if grants never change.
func (c *Config) grantsChanged() <-chan struct{} {
	if c.Authorizer == nil {
		return nil
	}
	return c.Authorizer.Changed()
}

// A node is the Node of a client.
type node = corepb.Node

// A Server serves views to xDS clients. Its methods may be called from any goroutine.
type Server struct {
	// Read-only after construction.
	cfg   Config
	guard *guard.Guard
	loads *loadreport.Server

	// Each is atomic or has its own lock.
	streams       atomic.Int64  // open streams and held polls; a drain waits for all of them
	accepted      atomic.Uint64 // total number of streams and polls
	streamNumbers atomic.Uint64 // the number of the newest stream
	coalesced     atomic.Int64  // see Stats
	throttled     atomic.Int64  // see Stats
	saved         atomic.Int64  // see Stats
	polls         pollHistory
	registry      sync.Map // open streams, *stream by number
	grantWatch    grantWatch
	queue         queue
	haltsMark     atomic.Uint64 // number of calls of TellHalts
	slots         guard.Slots

	nackLog, badNameLog, largeResponseLog, reportLog guard.LogLimiter

	draining            chan struct{} // closed when a drain starts: streams end within drainSpread
	stopping            chan struct{} // closed when the remaining streams must end immediately
	drainOnce, stopOnce sync.Once
	drainBy             time.Time // end of the drain; set before draining is closed
	drainSpread         time.Duration

	idle     chan struct{} // closed when a draining server has no stream and no poll
	idleOnce sync.Once
}
