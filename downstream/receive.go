package downstream

import (
	"cmp"
	"log/slog"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache/quota"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/downstream/subscription"
)

// maxWaiting is how many requests of a stream may wait for its turn, and manyNames how many names one of them may have.
// If a client sends more, its receiver handles them: a worker would keep the next streams waiting.
const (
	maxQueuedRequests = 8
	largeRequestNames = 1000
)

// A waiting request is handled in the stream's turn.
type queuedRequest struct {
	wire.Request
	identity *identity // the identity in the request; nil if it has no new one
}

// receive takes requests until the client closes its side or the stream ends. All of them are decoded into one value,
// which holds nothing while no request comes.
func (s receiver) receive() {
	r := &wire.Request{Delta: s.delta, Limits: s.cfg.requestLimits(s.account)}
	r.Latest = new(wire.LatestNames)
	for more := true; more; r.Clear() {
		more = s.receiveNext(r)
	}
}

// receiveNext waits for a request and takes it. It reports whether more may come.
func (s receiver) receiveNext(r *wire.Request) (more bool) {
	if err := s.rpc.RecvMsg(r); err != nil {
		s.receiveEnded(err)
		return false
	}
	ident := s.identification().identityIn(r)
	done := s.awaitShare(r)
	more, wait := s.accept(r, ident)
	if done != nil {
		done()
	}
	if wait > 0 {
		s.throttle(wait)
	}
	return more
}

// throttle waits before the next request of a client that is over its rate limit.
func (s receiver) throttle(wait time.Duration) {
	s.server.throttled.Add(1)
	select {
	case <-time.After(wait):
	case <-s.rpc.Context().Done():
	}
}

// awaitShare waits for its peer's share of time if a request subscribes to more than manyNames names that the
// client's node group does not know: a client can invent names faster than the relay can subscribe to them (B.35).
// Names that the group knows cost little, so a fleet behind one address does not wait. The receiver calls awaitShare
// without the stream's lock, and done, unless it is nil, once the request was handled.
func (s receiver) awaitShare(r *wire.Request) (done func()) {
	if len(r.Subscribe) <= largeRequestNames || s.lastNode.view == nil ||
		s.lastNode.view.Unknown(r.TypeURL, r.Subscribe, largeRequestNames) <= largeRequestNames {
		return nil
	}
	ctx := s.rpc.Context()
	done, err := s.server.guard.Turn(ctx, s.cfg.PeerName(guard.PeerOf(ctx)), math.MaxInt)
	if err != nil {
		return nil // the stream has ended
	}
	return done
}

// received takes a request and the identity that it introduces. It reports whether more may come, and how long to wait
// before reading it, if the client is over its rate limit: answers to responses do not count. A request that only
// answers a response is handled at once. Any other waits for the stream's turn: handling it makes a goroutine's stack
// grow to 8 KiB for good, and each stream has a receiver. Those that wait are answered together, by the newest of
// each type (R034).
func (s receiver) accept(r *wire.Request, ident *identity) (more bool, wait time.Duration) {
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
		if len(s.queued) > maxQueuedRequests ||
			len(r.Subscribe)+len(r.Unsubscribe)+len(r.InitialVersions) > largeRequestNames {
			s.handleQueued(now)
		}
		s.wake()
	}
	return !s.ended, wait
}

// receiveEnded takes the end of the client's side.
func (s receiver) receiveEnded(err error) {
	s.lock.acquire()
	defer s.lock.release()
	now := time.Now()
	s.handleQueued(now)
	s.clientSideClosed(guard.ReceiveStatus(err), now)
}

// onlyAnswers reports whether a request changes nothing of a subscription, and refuses no response. Then nothing in it
// needs a check that handle makes, but what the request before it passed.
func isOnlyAnswer(sub *subscription.Subscription, r *wire.Request) bool {
	return sub != nil && r.Err == nil && !r.Refused && len(r.InitialVersions) == 0 && sub.Repeats(r)
}

// answered handles a request that onlyAnswers.
func (s receiver) handleAnswer(sub *subscription.Subscription, r *wire.Request, now time.Time) {
	s.applyRequest(sub, r, now)
	s.account.Release(r.Size)
	if s.scheduledEnd.due(now) || !s.idle { // else nothing waits for it, and what changes wakes the stream
		s.wake()
	}
}

// handleWaiting handles the requests that wait, unless the stream ends.
func (s receiver) handleQueued(now time.Time) {
	for _, r := range s.queued {
		if s.ended {
			r.identity.release()
		} else if err := s.handle(&r.Request, r.identity, now); err != nil {
			s.end(err)
		}
		s.account.Release(r.Size)
	}
	s.queued = nil
}

// handle takes a request, and the identity that it introduces. Its error ends the stream.
func (s receiver) handle(r *wire.Request, ident *identity, now time.Time) error {
	if r.Err != nil {
		return s.cfg.requestError(r.Err)
	}
	if err := s.resolveTypeURL(r); err != nil {
		return err
	}
	redactSecretDetail(r)
	if err := s.identification().applyIdentity(ident); err != nil {
		return err
	}
	if err := cmp.Or(s.identification().checkType(r.TypeURL), s.cfg.checkNameSizes(r)); err != nil {
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

// update has a subscription take a request whose type and names were checked.
func (s receiver) applyRequest(sub *subscription.Subscription, r *wire.Request, now time.Time) {
	read, refused := sub.ApplyRequest(r, now)
	if refused {
		s.server.logNACK(s.client, r, sub.Refusal())
		if by := s.group.Observer; by != nil && sub.SentAny() {
			by.Refused(sub.TypeURL, sub.Refusal())
		}
	}
	s.bytesRead = max(s.bytesRead, read)
	if s.client.debugEnabled() {
		s.client.log().Debug("request handled", slog.String("type_url", sub.TypeURL), slog.Bool("refused", refused),
			slog.String("subscription", sub.String()))
	}
	s.admitOverLimit()
}

// filterNames leaves in a request the names that the client may have. A request that repeats its names stays as it is.
func (s receiver) filterNames(sub *subscription.Subscription, r *wire.Request) error {
	switch {
	case sub.Repeats(r):
		return nil
	case r.Repeated: // the request before, which has them, was handled before
		return status.Errorf(codes.Internal, "the names of %s are not known that this request repeats", r.TypeURL)
	}
	if s.cfg.DynamicParameters {
		r.Parameterise(s.identification().dynamicParameters()[r.TypeURL].GetParams())
	}
	s.addMisnamed(sub, r.Canonicalise())
	if err := s.identification().removeDenied(sub, r); err != nil {
		return err
	}
	s.dropOverLimit(sub, r)
	return nil
}

// addMisnamed records invalid names: no origin is asked for them, and a client that understands resource_errors is told
// why (B.23).
func (s receiver) addMisnamed(sub *subscription.Subscription, bad []wire.BadName) {
	for _, b := range bad {
		sub.MarkExplicit() // to ask for what cannot be is not to ask for everything
		s.server.logBadName(s.client, sub.TypeURL, b)
		if sub.Errors && s.nameCount() < s.cfg.MaxNames {
			sub.AddMisnamed(b)
		}
	}
}

// subscription returns the stream's subscription to a type, a new one if it has none.
func (s receiver) ensureSubscription(typeURL string) (*subscription.Subscription, error) {
	if sub := s.subscription(typeURL); sub != nil {
		return sub, nil
	}
	if err := s.checkTypeLimit(typeURL); err != nil {
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
const minPeerTypes = 8

// typeOver returns why a type that is new to the stream is over a limit, nil if it is not. The protocol's own types
// are always served: a client that makes types up must not shut all others out.
func (s receiver) checkTypeLimit(typeURL string) error {
	known, types := s.group.View.HasType(typeURL)
	if known || wire.Known(typeURL) {
		return nil
	}
	peer, share, own := s.watch.Peer(), max(s.cfg.MaxTypes/10, minPeerTypes), 0
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
		return guard.Exceeds(guard.LimitTypes, "type %q is one too many: at most %d types are served", typeURL,
			s.cfg.MaxTypes)
	case quota.Room(s.cfg.MaxTypes, share, types, own) == 0:
		return guard.Exceeds(guard.LimitTypes,
			"type %q is one too many for %s: at most %d types that are not of the protocol are served to one peer while there are more than half of %d",
			typeURL, peer, share, s.cfg.MaxTypes)
	default:
		return nil
	}
}

// wrapOf returns which resources of a type a SotW client gets in their message.
func (s receiver) wrapOf(typeURL string) wire.Wrap {
	switch {
	case s.delta || !s.wrap:
		return wire.Unwrapped
	case wire.Known(typeURL):
		return wire.WrapDetails
	default:
		return wire.WrapAll // only the wrapper has its name
	}
}

// noMore records that the client's side has ended. A client that only closed it is still answered.
func (s receiver) clientSideClosed(err error, now time.Time) {
	switch {
	case s.ended:
	case err != nil || s.watch == nil:
		s.end(guard.Lost(err))
	default:
		s.clientClosedAt = now
		s.wake()
	}
}
