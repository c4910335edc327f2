package downstream

import (
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/downstream/subscription"
)

// errOutrun ends a Delta stream for [subscription.ErrOutrun].
var errOutrun = guard.Ended(guard.EndedReturn, codes.Unavailable, "%v", subscription.ErrOutrun)

// A stream serves one client. Its receiver handles answers. A worker handles all other requests in the stream's turn,
// and sends what is due.
type stream struct {
	// Set at creation, read-only afterwards.
	server  *Server
	cfg     *Config
	rpc     grpc.ServerStream
	account *guard.Account // of its connection; nil if it is not charged
	typeURL string         // the only one served; empty on an aggregated stream
	delta   bool
	number  uint64 // of the server's streams

	turn   turnState
	served atomic.Bool // some response was sent: sent, for goroutines that do not hold the lock
	result chan error  // one slot: how the stream ended, for run

	grantStale chan struct{} // one slot: the grant may have to be renewed, for run; nil if grants do not change

	requestLimiter *rate.Limiter // of requests; used by the receiver alone
	lastNode       lastNode      // used by the receiver alone
	lock           lock          // guards what follows

	// Set by the first request.
	group    Group
	grant    Grant // nil if the client may have anything
	watch    *cache.Watch
	client   *client // for its subscriptions
	agent    subscription.Software
	wrap     bool // the client understands wrapped resources
	ttl      bool // and that resources expire
	keptNode *guard.KeptNode

	queued       []*queuedRequest             // to be handled when it is the stream's turn
	subs         []*subscription.Subscription // in the order of sending
	lastRevision uint64                       // revision of the last generation that was looked at
	nonces       uint64
	timer        *time.Timer // wakes the stream
	timerArmed   bool        // the timer may be running

	timerAt         time.Time         // when it fires, or is to
	startGeneration *cache.Generation // see beginning

	sent           bool // some response was sent
	startedAt      time.Time
	requestedAt    time.Time // when something was first asked for, nothing being sent
	clientClosedAt time.Time // when the client closed its side
	idle           bool      // at the last look nothing was due and nothing waited
	ended          bool      // or is about to, by run
	scheduledEnd   scheduledEnd

	// How many bytes were sent, and how many of these the client has read for
	// certain: it answered what came after them.
	bytesSent, bytesRead uint64

	stalledAt subscription.Moment // when the lock was lent the last time

	barrier barrier
}

// unanswered reports whether the client asked for a type, or a glob, and was sent nothing of it.
func (s *stream) awaitsFirstResponse() bool {
	return slices.ContainsFunc(s.subs, func(sub *subscription.Subscription) bool {
		return sub.AwaitsFirstResponse()
	})
}

// nameCount returns how many names the stream holds, over all its types.
func (s *stream) nameCount() (n int) {
	for _, sub := range s.subs {
		n += sub.Size()
	}
	return n
}

// of returns the stream's subscription to a type, nil if it has none. There are so few that a map would be slower and
// larger.
func (s *stream) subscription(typeURL string) *subscription.Subscription {
	for _, sub := range s.subs {
		if sub.TypeURL == typeURL {
			return sub
		}
	}
	return nil
}

// fixType sets the type of a request on a stream of one type, which need not have it (R009), and rejects another one.
// Requests of an aggregated stream must have a type (R010).
func (s *stream) resolveTypeURL(r *wire.Request) error {
	switch {
	case s.typeURL == "" && r.TypeURL == "":
		return status.Error(codes.InvalidArgument, "type_url is empty: on an aggregated stream each request names its type")
	case s.typeURL == "" || r.TypeURL == s.typeURL:
		return nil
	case r.TypeURL == "":
		r.TypeURL = s.typeURL
		return nil
	default:
		return status.Errorf(codes.InvalidArgument, "type_url is %.256q: this stream serves %q alone; an aggregated one serves any type", r.TypeURL, s.typeURL)
	}
}

// globCount returns the number of globs on the stream.
func (s *stream) globCount() (n int) {
	for _, sub := range s.subs {
		n += sub.GlobCount()
	}
	return n
}

// A receiver takes the requests of a stream and applies them.
type receiver struct{ *stream }

// An identification finds out whose stream it is, and what that client may have.
type identification struct{ *stream }

// A sender sends what is due to the client of a stream.
type sender struct{ *stream }

// A sendOrder says how far each type may be sent now, so that clients receive nothing before what it refers to (B.11).
type sendOrder struct{ *stream }

func (s *stream) receiver() receiver             { return receiver{s} }
func (s *stream) identification() identification { return identification{s} }
func (s *stream) sender() sender                 { return sender{s} }
func (s *stream) sendOrder() sendOrder           { return sendOrder{s} }
