package downstream

import (
	"cmp"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/quota"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/downstream/subscription"
)

// maxQueuedRequests limits the requests of a stream that wait for its turn, and largeRequestNames the names of one of
// them. Beyond these limits the receiver handles the queued requests, because a worker would delay the next streams.
const (
	maxQueuedRequests = 8
	largeRequestNames = 1000
)

// manyNames is the number of names in a request beyond which the stream waits with the newcomers of its peer.
const manyNames = 64

// A queuedRequest is handled in the stream's turn.
type queuedRequest struct {
	wire.Request
	identity *identity // nil if the request has no new Node
}

// receive reads requests until the client half-closes the stream or the stream ends. It decodes all requests into one
// value, which is empty while it waits for the next request.
func (s *stream) receive(from requests) {
	r := &wire.Request{Delta: s.delta, Limits: s.requestLimits()}
	r.Latest = new(wire.LatestNames)
	for more := true; more; r.Clear() {
		if err := from.RecvMsg(r); err != nil {
			s.receiveEnded(err)
			return
		}
		more = s.received(r)
	}
}

// received handles one request. It reports whether more may follow.
func (s *stream) received(r *wire.Request) (more bool) {
	s.asked.Store(true)
	var wait time.Duration
	if s.isReport(r) {
		more, wait = s.acceptReport(r)
	} else {
		ident := s.identityIn(r)
		s.awaitNames(r)
		more, wait = s.accept(r, ident)
	}
	if wait > 0 {
		s.throttle(wait)
	}
	return more
}

// A pushed stream receives what package transport passes to it. It implements [transport.Receiver].
type pushed struct {
	*stream
	latest wire.LatestNames
	left   *wire.Request // by Offer, for Continue
	leave  func()        // see start
	endRPC func(error)   // ends the stream in its transport
}

// pushedRequests has requests without content. A stream holds one only while it handles it.
var pushedRequests = sync.Pool{New: func() any { return new(wire.Request) }}

// Offer implements transport.Receiver. An answer to a response is handled at once, unless a turn is under way.
func (p *pushed) Offer(request []byte) (done bool) {
	r := p.decode(request)
	if p.answerNow(r) {
		p.drop(r)
		return true
	}
	p.left = r
	return false
}

// Continue implements transport.Receiver.
func (p *pushed) Continue() {
	r := p.left
	p.left = nil
	p.received(r)
	p.drop(r)
}

// Receive implements transport.Receiver.
func (p *pushed) Receive(request []byte) {
	r := p.decode(request)
	p.received(r)
	p.drop(r)
}

// Closed implements transport.Receiver.
func (p *pushed) Closed(err error) { p.receiveEnded(err) }

func (p *pushed) decode(request []byte) *wire.Request {
	r := pushedRequests.Get().(*wire.Request)
	r.Delta, r.Limits, r.Size = p.delta, p.requestLimits(), wire.Framed(len(request))
	r.Latest = &p.latest
	if p.delta {
		r.Err = r.Decode(request)
		return r
	}
	// An ACK repeats all names. The codec neither copies nor parses them.
	_ = wire.Codec{}.Unmarshal(mem.BufferSlice{mem.SliceBuffer(request)}, r) // the error is in r
	return r
}

func (p *pushed) drop(r *wire.Request) {
	*r = wire.Request{}
	pushedRequests.Put(r)
}

// answerNow handles a request that only answers a response, if the lock is free. It reports whether it has.
func (s *stream) answerNow(r *wire.Request) bool {
	if r.Err != nil || listed(r) > 0 || !s.lastNode.seen || s.lastNode.view == nil ||
		!s.repeatsNode(guard.RawNode{Encoded: r.Node, Size: r.NodeBytes, Later: true}) || !s.lock.tryAcquire() {
		return false
	}
	defer s.lock.release()
	sub := s.subscription(cmp.Or(r.TypeURL, s.typeURL))
	if s.ended || len(s.queued) > 0 || sub == nil || !sub.Answers(r) || !isOnlyAnswer(sub, r) {
		return false
	}
	s.handleAnswer(sub, r, time.Now())
	return true
}

// throttle delays the next request of a client that exceeds its rate limit.
func (s *stream) throttle(wait time.Duration) {
	s.server.throttled.Add(1)
	select {
	case <-time.After(wait):
	case <-s.rpc.Context().Done():
	}
}

// awaitNames waits until the budgets of names of the client's peer allow a request. A client can subscribe to names and
// unsubscribe from them faster than the relay can (B.35). Names that other clients of the group use are cheap, so a
// fleet behind one address does not wait. The caller must not hold the lock.
func (s *stream) awaitNames(r *wire.Request) {
	if s.lastNode.view == nil || listed(r) == 0 { // the Node was refused, or the request is an answer
		return
	}
	s.lock.acquire() // not while other requests of the peer wait for this one: a send may block
	kept := s.nameCount()
	s.lock.release()
	_ = s.server.guard.AwaitNames(s.rpc.Context(), s.peer, func() guard.NameCount {
		n := countNames(r, s.lastNode.view)
		n.Kept = kept
		return n
	}) // an error means that the stream has ended
}

// countNames counts the names of a request of a client that a view serves.
func countNames(r *wire.Request, v *cache.View) guard.NameCount {
	return guard.NameCount{Listed: listed(r), Unknown: v.Unknown(r.TypeURL, r.Subscribe)}
}

// listed returns how many names a request has. An answer that repeats those of the request before has none.
func listed(r *wire.Request) int {
	return len(r.Subscribe) + len(r.Unsubscribe) + len(r.InitialVersions)
}

// accept handles a request, or queues it. It reports whether more requests may follow, and how long to wait before the
// next one if the client exceeds its rate limit. Answers to responses do not count towards that limit.
//
// A request that only answers a response is handled immediately. Any other request waits for the stream's turn.
// Handling it would permanently grow the stack of the receiver to 8 KiB, and each stream has a receiver. Queued
// requests are answered together, by the newest of each type (R034).
func (s *stream) accept(r *wire.Request, ident *identity) (more bool, wait time.Duration) {
	s.lock.acquire()
	defer s.lock.release()
	now := time.Now()
	sub := s.subscription(cmp.Or(r.TypeURL, s.typeURL))
	if sub == nil || !sub.Answers(r) {
		wait = s.requestLimiter.ReserveN(now, 1).DelayFrom(now)
	}
	switch {
	case s.ended:
		s.account.Release(r.Size)
		ident.release()
	case ident == nil && len(s.queued) == 0 && isOnlyAnswer(sub, r):
		s.handleAnswer(sub, r, now)
	default:
		s.queued = append(s.queued, &queuedRequest{*r, ident})
		if listed(r) > manyNames {
			s.asksMany.Store(true)
		}
		if len(s.queued) > maxQueuedRequests || listed(r) > largeRequestNames {
			s.handleQueued(now)
		}
		s.wake()
	}
	return !s.ended, wait
}

// receiveEnded handles the queued requests after the client has half-closed the stream, or after a read error.
func (s *stream) receiveEnded(err error) {
	s.lock.acquire()
	defer s.lock.release()
	now := time.Now()
	s.handleQueued(now)
	s.clientSideClosed(guard.ReceiveStatus(err), now)
}

// isOnlyAnswer reports whether a request is an ACK that changes no names. Such a request needs none of the checks of
// handle, because the request with these names has passed them.
func isOnlyAnswer(sub *subscription.Subscription, r *wire.Request) bool {
	return sub != nil && r.Err == nil && !r.Rejected && len(r.InitialVersions) == 0 && sub.Repeats(r)
}

// handleAnswer handles a request for which isOnlyAnswer is true.
func (s *stream) handleAnswer(sub *subscription.Subscription, r *wire.Request, now time.Time) {
	s.applyRequest(sub, r, now)
	s.account.Release(r.Size)
	if s.scheduledEnd.due(now) || !s.idle { // an idle stream waits for no answer
		s.wake()
	}
}

// handleQueued handles the queued requests. It drops them if the stream has ended.
func (s *stream) handleQueued(now time.Time) {
	for _, r := range s.queued {
		if s.ended {
			r.identity.release()
		} else if err := s.handle(&r.Request, r.identity, now); err != nil {
			s.end(err)
		}
		s.account.Release(r.Size)
	}
	s.queued = nil
	s.asksMany.Store(false)
}

// handle handles a request and the identity from its Node. The error ends the stream.
func (s *stream) handle(r *wire.Request, ident *identity, now time.Time) error {
	if r.Err != nil {
		return s.cfg.requestError(r.Err)
	}
	if err := s.resolveTypeURL(r); err != nil {
		return err
	}
	redactSecretDetail(r)
	if err := s.applyIdentity(ident); err != nil {
		return err
	}
	if err := cmp.Or(s.checkType(r.TypeURL), checkNameSizes(r)); err != nil {
		return err
	}
	sub, err := s.ensureSubscription(r.TypeURL)
	if err != nil {
		return err
	}
	if err := s.filterNames(sub, r); err != nil {
		return err
	}
	s.applyRequest(sub, r, now)
	return nil
}

// applyRequest applies a request whose type and names were checked.
func (s *stream) applyRequest(sub *subscription.Subscription, r *wire.Request, now time.Time) {
	before := s.usage()
	bytesRead, rejected := sub.ApplyRequest(r, now)
	if rejected {
		s.server.logNACK(s.client, r, sub.Rejection())
		if o := s.group.Observer; o != nil && sub.SentAny() {
			at := sub.At(s.group.View.Generation())
			o.Rejected(sub.TypeURL, sub.Rejection(), func(c *subscription.Change) bool {
				_, subscribed := at.Answer(c)
				return subscribed
			})
		}
		if s.cfg.Rejected != nil {
			s.cfg.Rejected()
		}
	}
	s.bytesRead = max(s.bytesRead, bytesRead)
	if s.client.debugEnabled() {
		s.client.log().Debug("request handled", slog.String("type_url", sub.TypeURL), slog.Bool("rejected", rejected),
			slog.String("subscription", sub.String()))
	}
	s.admitOverLimit(before, now)
}

// filterNames removes the names from a request that the client may not subscribe to. It does not change a request that
// repeats its names.
func (s *stream) filterNames(sub *subscription.Subscription, r *wire.Request) error {
	switch {
	case sub.Repeats(r):
		return nil
	case r.Repeated: // its names were in the previous request, which must have been handled
		return status.Errorf(codes.Internal, "the request repeats names of %s that the relay does not have", r.TypeURL)
	}
	if s.cfg.DynamicParameters {
		r.Parameterise(s.dynamicParameters()[r.TypeURL].GetParams())
	}
	s.addMisnamed(sub, r.Canonicalise())
	if err := s.removeDenied(sub, r); err != nil {
		return err
	}
	s.dropOverLimit(sub, r)
	return nil
}

// addMisnamed records invalid names. The relay does not request them from an origin. A client that understands
// resource_errors is sent an error for each (B.23).
func (s *stream) addMisnamed(sub *subscription.Subscription, bad []wire.BadName) {
	for _, b := range bad {
		sub.MarkExplicit() // otherwise a subscription without names would mean the wildcard
		s.server.logBadName(s.client, sub.TypeURL, b)
		if sub.Errors && s.nameCount() < s.cfg.MaxNames {
			sub.AddMisnamed(b)
		}
	}
}

// ensureSubscription returns the stream's subscription to a type, and creates it if there is none.
func (s *stream) ensureSubscription(typeURL string) (*subscription.Subscription, error) {
	if sub := s.subscription(typeURL); sub != nil {
		return sub, nil
	}
	if err := s.checkTypeLimit(typeURL); err != nil {
		return nil, err
	}
	sub := subscription.New(&s.client.Client, subscription.TraitsOf(typeURL, s.agent), s.wrapOf(typeURL),
		s.ttl && (s.delta || s.wrap), s.group.Counts.tally(typeURL, s.number))
	at, _ := slices.BinarySearchFunc(s.subs, sub, func(a, b *subscription.Subscription) int {
		if a.Rank != b.Rank {
			return a.Rank - b.Rank
		}
		return -1 // insert after equal ranks
	})
	s.subs = slices.Insert(s.subs, at, sub)
	return sub, nil
}

// maxTypes limits the types of a view. Once half of them are in use, one peer may use maxPeerTypes that the protocol
// does not define.
const (
	maxTypes     = 64
	maxPeerTypes = 8
)

// checkTypeLimit returns an error if a type that is new to the stream exceeds a limit. The types of the protocol are
// always allowed. A client that invents types must not lock out other clients.
func (s *stream) checkTypeLimit(typeURL string) error {
	inView, types := s.group.View.HasType(typeURL)
	if inView || wire.Known(typeURL) {
		return nil
	}
	peer, share, used := s.watch.Peer(), maxPeerTypes, 0
	for _, sub := range s.subs {
		if !wire.Known(sub.TypeURL) {
			used++
		}
	}
	used = max(used, s.group.View.TypesOf(peer))
	if peer == "" {
		share = maxTypes
	}
	switch types = max(types, len(s.subs)); {
	case types >= maxTypes:
		return guard.Exceeds(guard.LimitTypes, "type %q: at most %d types are allowed", typeURL, maxTypes)
	case quota.Room(maxTypes, share, types, used) == 0:
		return guard.Exceeds(guard.LimitTypes,
			"type %q: clients of %s may use at most %d non-standard types while more than half of %d types are in use",
			typeURL, peer, share, maxTypes)
	default:
		return nil
	}
}

// wrapOf returns which resources of a type a SotW client receives in a Resource message.
func (s *stream) wrapOf(typeURL string) wire.Wrap {
	switch {
	case s.delta || !s.wrap:
		return wire.Unwrapped
	case wire.Known(typeURL):
		return wire.WrapDetails
	default:
		return wire.WrapAll // a resource of an unknown type has its name only in the wrapper
	}
}

// clientSideClosed records that the client has half-closed the stream, or ends the stream with a read error. A client
// that has half-closed the stream is still answered.
func (s *stream) clientSideClosed(err error, now time.Time) {
	switch {
	case s.ended:
	case err != nil || s.watch == nil:
		s.end(guard.Lost(err))
	default:
		s.clientClosedAt = now
		s.wake()
	}
}
