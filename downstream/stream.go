package downstream

import (
	"log/slog"
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
	account *guard.Account // of its connection; nil if nobody counts
	typeURL string         // the only one served; empty on an aggregated stream
	delta   bool
	number  uint64 // of the server's streams

	turn   turn
	served atomic.Bool // some response was sent: sent, for goroutines that do not hold the lock
	over   chan error  // one slot: how the stream ended, for run

	stale chan struct{} // one slot: the grant may have to be renewed, for run; nil if grants do not change

	pace       *rate.Limiter // of requests; used by the receiver alone
	introduced introduction  // used by the receiver alone
	lock       lock          // guards what follows

	// Set by the first request.
	group  Group
	grant  Grant // nil if the client may have anything
	watch  *cache.Watch
	client *client // for its subscriptions
	agent  subscription.Software
	wrap   bool // the client understands wrapped resources
	ttl    bool // and that resources expire
	kept   *guard.KeptNode

	waiting []*waiting                   // to be handled when it is the stream's turn
	subs    []*subscription.Subscription // in the order of sending
	edition uint64                       // revision of the last generation that was looked at
	nonces  uint64
	timer   *time.Timer // wakes the stream
	armed   bool        // the timer may be running

	armedFor time.Time // when it fires, or is to

	sent   bool // some response was sent
	begun  time.Time
	asked  time.Time // when something was first asked for, nothing being sent
	closed time.Time // when the client said that it asks for nothing more
	idle   bool      // at the last look nothing was due and nothing waited
	ended  bool      // or is about to, by run
	leave  departure

	// How many bytes were sent, and how many of these the client has read for
	// certain: it answered what came after them.
	written, read uint64

	lentAt subscription.Moment // when the lock was lent the last time

	barrier barrier
}

// closing reports whether a client that has closed its side was answered, or has waited for TENDER_COLD_WAIT. If not, it
// returns when to look again.
func (s *stream) closing(next time.Time) (until time.Time, over bool) {
	if s.closed.IsZero() {
		return next, false
	}
	until = s.closed.Add(s.cfg.ColdWait)
	return subscription.Earlier(next, until), !s.unanswered() || !time.Now().Before(until)
}

// unanswered reports whether the client asked for a type, or a glob, and was sent nothing of it.
func (s *stream) unanswered() bool {
	return slices.ContainsFunc(s.subs, func(sub *subscription.Subscription) bool {
		return sub.Unanswered()
	})
}

// handle takes a request, and the identity that it introduces. Its error ends the stream.
func (s *stream) handle(r *wire.Request, who *identity, now time.Time) error {
	if r.Err != nil {
		return s.cfg.requestError(r.Err)
	}
	if err := s.fixType(r); err != nil {
		return err
	}
	withholdDetail(r)
	if err := s.identify(who); err != nil {
		return err
	}
	if err := s.checkRequest(r); err != nil {
		return err
	}
	sub, err := s.subscription(r.TypeURL)
	if err != nil {
		return err
	}
	if err := s.filterNames(sub, r); err != nil {
		return err
	}
	read, refused := sub.Request(r, now)
	if refused {
		s.refused(sub, r)
	}
	s.read = max(s.read, read)
	if s.client.debugs() {
		s.client.log().Debug("request handled", slog.String("type_url", r.TypeURL), slog.Bool("refused", refused),
			slog.String("subscription", sub.String()))
	}
	s.admitRefused()
	return nil
}

// filterNames leaves in a request the names that the client may have. A request that repeats its names stays as it is.
func (s *stream) filterNames(sub *subscription.Subscription, r *wire.Request) error {
	switch {
	case sub.Repeats(r):
		return nil
	case r.Repeated: // the request before, which has them, was handled before
		return status.Errorf(codes.Internal, "the names of %s are not known that this request repeats", r.TypeURL)
	}
	if s.cfg.DynamicParameters {
		r.Parameterise(s.dynamic()[r.TypeURL].GetParams())
	}
	s.addMisnamed(sub, r.Canonicalise())
	if err := s.restrict(sub, r); err != nil {
		return err
	}
	s.limitNames(sub, r)
	return nil
}

// checkRequest refuses what the client may not ask for, and names that are too long.
func (s *stream) checkRequest(r *wire.Request) error {
	if err := s.checkType(r.TypeURL); err != nil {
		return err
	}
	return s.cfg.checkNames(r)
}

// of returns the stream's subscription to a type, nil if it has none. There are so few that a map would be slower and
// larger.
func (s *stream) of(typeURL string) *subscription.Subscription {
	for _, sub := range s.subs {
		if sub.TypeURL == typeURL {
			return sub
		}
	}
	return nil
}

// subscription returns the stream's subscription to a type, a new one if it has none.
func (s *stream) subscription(typeURL string) (*subscription.Subscription, error) {
	if sub := s.of(typeURL); sub != nil {
		return sub, nil
	}
	if err := s.typeOver(typeURL); err != nil {
		return nil, err
	}
	sub := subscription.New(&s.client.Client, s.cfg.subscriptions.TraitsOf(typeURL, s.agent), s.wrapOf(typeURL),
		s.ttl && (s.delta || s.wrap), s.group.Counts.tally(typeURL, s.number))
	at, _ := slices.BinarySearchFunc(s.subs, sub, func(a, b *subscription.Subscription) int {
		if a.Rank != b.Rank {
			return a.Rank - b.Rank
		}
		return -1 // after its equals
	})
	s.subs = slices.Insert(s.subs, at, sub)
	return sub, nil
}

// leastTypes is the smallest part of [Config.MaxTypes] that one peer may ask for once half of it is known.
const leastTypes = 8

// typeOver returns why a type that is new to the stream is over a limit, nil if it is not. The protocol's own types
// are always served: a client that makes types up must not shut all others out.
func (s *stream) typeOver(typeURL string) error {
	known, types := s.group.View.HasType(typeURL)
	if known || wire.Known(typeURL) {
		return nil
	}
	peer, share, own := s.watch.Peer(), max(s.cfg.MaxTypes/10, leastTypes), 0
	for _, sub := range s.subs {
		if !wire.Known(sub.TypeURL) {
			own++
		}
	}
	own = max(own, s.group.View.TypesOf(peer))
	if peer == "" {
		share = s.cfg.MaxTypes
	}
	switch types = max(types, len(s.subs)); {
	case types >= s.cfg.MaxTypes:
		return guard.Exceeds(guard.LimitTypes, "type %q is one too many: at most %d types are served", typeURL, s.cfg.MaxTypes)
	case cache.Room(s.cfg.MaxTypes, share, types, own) == 0:
		return guard.Exceeds(guard.LimitTypes, "type %q is one too many for %s: at most %d types that are not of the protocol are served to one peer while there are more than half of %d",
			typeURL, peer, share, s.cfg.MaxTypes)
	default:
		return nil
	}
}

// wrapOf returns which resources of a type a SotW client gets in their message.
func (s *stream) wrapOf(typeURL string) wire.Wrap {
	switch {
	case s.delta || !s.wrap:
		return wire.Unwrapped
	case wire.Known(typeURL):
		return wire.WrapDetails
	default:
		return wire.WrapAll // nobody else could say what it is called
	}
}

// globs returns the number of globs on the stream.
func (s *stream) globCount() (n int) {
	for _, sub := range s.subs {
		n += sub.GlobCount()
	}
	return n
}

// addMisnamed records invalid names: no origin is asked for them, and a client that understands resource_errors is told
// why (B.23).
func (s *stream) addMisnamed(sub *subscription.Subscription, bad []wire.BadName) {
	for _, b := range bad {
		sub.Explicit() // to ask for what cannot be is not to ask for everything
		s.server.logBadName(s.client, sub.TypeURL, b)
		if sub.Errors && s.nameCount() < s.cfg.MaxNames {
			sub.AddMisnamed(b)
		}
	}
}

// refused records a NACK: nothing is resent until the origin changes something
// (B.10).
func (s *stream) refused(sub *subscription.Subscription, r *wire.Request) {
	s.server.logNACK(s.client, r, sub.Refusal())
}

func (s *stream) close() {
	for _, r := range s.waiting {
		r.from.drop()
	}
	s.waiting = nil
	if s.watch == nil {
		return
	}
	for _, sub := range s.subs {
		sub.Close()
	}
	s.watch.Close()
	s.leaveFanouts(time.Now())
	s.group.Leave()
	s.kept.Release()
	s.kept = nil
	if s.client.debugs() {
		s.client.log().Debug("stream ended", slog.Bool("delta", s.delta), slog.Uint64("responses", s.nonces))
	}
}
