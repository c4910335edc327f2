package downstream

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/tier"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/downstream/subscription"
)

// errOutrun ends a Delta stream after [subscription.ErrOutrun].
var errOutrun = guard.Ended(guard.EndedReturn, codes.Unavailable, "%v", subscription.ErrOutrun)

// A call is the gRPC stream of a client, as its transport provides it. Its methods may be called from any goroutine,
// but SendMsg only by one at a time.
type call interface {
	Context() context.Context // ends with the stream
	SetHeader(metadata.MD) error
	SendHeader(metadata.MD) error

	// SendMsg queues a [*wire.Response]. It blocks while the transport has inlineBytes or more of the stream in its
	// queue.
	SendMsg(m any) error

	// Compress reports whether the client accepts compressed responses (B.32), and announces them.
	Compress() bool

	// Flush starts writing what SendMsg has queued. It does not block. A transport may also write earlier.
	Flush()
}

// requests are what a call of grpc-go receives.
type requests interface{ RecvMsg(m any) error }

// A grpcCall is a call of grpc-go, which writes in a goroutine of its own.
type grpcCall struct{ grpc.ServerStream }

// Flush implements call.
func (grpcCall) Flush() {}

// Compress implements call.
func (c grpcCall) Compress() bool { return grpc.SetSendCompressor(c.Context(), gzip.Name) == nil }

// A stream serves one client. Its receiver handles requests that only answer a response. A worker handles other
// requests in the stream's turn, and sends the responses that are due.
type stream struct {
	// Set at creation, read-only afterwards.
	server  *Server
	cfg     *Config
	rpc     call
	account *guard.Account // of its connection; nil if its memory is not charged
	peer    string         // name of its peer
	typeURL string         // of its only type; empty on an aggregated stream
	delta   bool
	number  uint64 // unique in the server
	relay   bool   // the client is a relay, as its header says
	tracing bool   // the client is a relay, to which the traces of changes are passed on
	gzip    bool   // responses are compressed

	turn   turnState
	served atomic.Bool // same as sent, but readable without the lock
	asked  atomic.Bool // a request was received, which may wait for the share of its peer

	asksMany atomic.Bool  // a queued request has more than manyNames
	result   chan error   // one slot: the status of a stream that has ended
	conclude func()       // ends a stream of package transport once it has a result; guarded by lock
	renewals atomic.Int32 // requests to renew the grant since a goroutine has started to do so

	requestLimiter *rate.Limiter // used only by the receiver
	lastNode       lastNode      // used only by the receiver
	lock           lock          // guards the following fields

	// Set by the first request.
	group    Group
	grant    Grant // nil if the client may request everything
	watch    *cache.Watch
	client   *client // shared by its subscriptions
	agent    subscription.Software
	wrap     bool // the client supports Resource messages in SotW responses
	ttl      bool // the client supports TTLs
	keptNode *guard.KeptNode

	queued       []*queuedRequest             // requests to be handled in the next turn
	subs         []*subscription.Subscription // in send order
	lastRevision uint64                       // revision of the generation that the last flush read
	nonces       uint64
	timer        *time.Timer // wakes the stream
	timerArmed   bool        // the timer may be running
	overLimitAt  time.Time   // when names over a limit were last checked or recorded

	timerAt time.Time // when the timer fires, if it is armed

	sent           bool // a response was sent
	startedAt      time.Time
	requestedAt    time.Time // time of the first subscription; only set while no response was sent
	clientClosedAt time.Time // when the client half-closed the stream; zero if it has not
	idle           bool      // the last flush left nothing due and nothing pending
	ended          bool      // the stream has ended, or its result is set
	scheduledEnd   scheduledEnd

	// Bytes sent, and how many of these the client has certainly read, because it answered a later response.
	bytesSent, bytesRead uint64

	stalledAt subscription.Moment // when the current or last send that may block started

	reported reported // only of a relay
	halts    *toldHalts

	barrier barrier
}

// A toldHalts is what a stream was told of halts of rollouts (B.55). Only a stream that asked for it is told, at its start and
// after each change, beside its responses: what it is told has no nonce, and no answer.
type toldHalts struct {
	current bool   // nothing has changed since mark
	mark    uint64 // value of Server.haltsMark
	at      time.Time
	last    []byte // nil before the first message
}

// asksForHalts reports whether the client of a stream asks for halts.
func asksForHalts(ctx context.Context) bool {
	return len(metadata.ValueFromIncomingContext(ctx, wire.HaltsHeader)) > 0
}

// eachStream calls do for each open stream, in a goroutine: do may wait for the lock of the stream.
func (s *Server) eachStream(do func(*stream)) {
	s.registry.Range(func(_, st any) bool {
		go do(st.(*stream))
		return true
	})
}

// awaitsFirstResponse reports whether the client subscribed to a type or a glob and was sent no response for it.
func (s *stream) awaitsFirstResponse() bool {
	return slices.ContainsFunc(s.subs, func(sub *subscription.Subscription) bool {
		return sub.AwaitsFirstResponse()
	})
}

// nameCount returns the number of names that the stream keeps, over all types.
func (s *stream) nameCount() (n int) {
	for _, sub := range s.subs {
		n += sub.Size()
	}
	return n
}

// subscription returns the stream's subscription to a type, or nil. It uses no map, because a map of so few types would
// be slower and larger.
func (s *stream) subscription(typeURL string) *subscription.Subscription {
	for _, sub := range s.subs {
		if sub.TypeURL == typeURL {
			return sub
		}
	}
	return nil
}

// requestLimits returns the limits for decoding a request of the client. Only a relay may report.
func (s *stream) requestLimits() wire.Limits {
	limits := s.cfg.requestLimits(s.account)
	if s.relay {
		limits.MaxReportBytes = tier.MaxBytes
	}
	return limits
}

// resends reports whether the client is sent again what changed resources refer to (B.16).
func (s *stream) resends() bool { return !s.cfg.NoResend && !s.agent.GRPC }

// resolveTypeURL sets the type of a request on a stream of one type, where clients may omit it (R009), and returns an
// error for another type. Requests on an aggregated stream must have a type (R010).
func (s *stream) resolveTypeURL(r *wire.Request) error {
	switch {
	case s.typeURL == "" && r.TypeURL == "":
		return guard.Refuses(guard.InvalidType, "type_url is empty: on an aggregated stream each request names its type")
	case s.typeURL == "" || r.TypeURL == s.typeURL:
		return nil
	case r.TypeURL == "":
		r.TypeURL = s.typeURL
		return nil
	default:
		return guard.Refuses(guard.InvalidType,
			"type_url is %.256q: this stream serves %q alone; an aggregated one serves any type", r.TypeURL, s.typeURL)
	}
}

// globCount returns the number of globs on the stream.
func (s *stream) globCount() (n int) {
	for _, sub := range s.subs {
		n += sub.GlobCount()
	}
	return n
}
