package downstream

import (
	"errors"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/subscription"
)

// errOutrun ends a Delta stream that is further behind than the view remembers
// removals: the client returns, says what it holds, and is told the difference
// (B.11).
var errOutrun = ended(EndedReturn, codes.Unavailable, "the stream has fallen too far behind, connect again")

// A stream serves one client. Its receiver handles answers; all other requests a worker
// handles when it is the stream's turn, and sends what these and changes give cause to.
type stream struct {
	// Set at creation, read-only afterwards.
	server  *Server
	cfg     *Config
	rpc     grpc.ServerStream
	backlog *backlog // of its connection; nil if nobody counts
	typeURL string   // the only one served; empty on an aggregated stream
	delta   bool
	number  uint64 // of the server's streams

	turn   turn
	served atomic.Bool // something was sent, as sent says to who holds the lock
	over   chan error  // one slot: how the stream ended, for run

	stale chan struct{} // one slot: the grant may have to be renewed, for run; nil if grants do not change

	pace *rate.Limiter // of requests; used by the receiver alone
	met  introduction  // likewise
	lock lock          // guards what follows

	// Set by the first request.
	group  Group
	grant  Grant // nil if the client may have anything
	watch  *cache.Watch
	client *client // for its subscriptions
	agent  subscription.Software
	wrap   bool // the client understands wrapped resources
	ttl    bool // and that resources expire
	kept   *keptNode

	waiting []*waiting                   // to be handled when it is the stream's turn
	subs    []*subscription.Subscription // in the order of sending
	edition uint64                       // of the last head that was looked at
	nonces  uint64
	timer   *time.Timer // wakes the stream
	armed   bool        // the timer may be running

	armedFor time.Time // when it fires, or is to

	sent   bool // some response was sent
	begun  time.Time
	asked  time.Time // when something was first asked for, nothing being sent
	closed time.Time // when the client said that it asks for nothing more
	idle   bool      // at the last look nothing was owed nor waited for
	ended  bool      // or is about to, by run
	leave  departure

	// How many bytes were sent, and how many of these the client has read for
	// certain: it answered what came after them.
	written, read uint64

	lentAt subscription.Moment // when the lock was lent the last time

	barrier barrier
}

// closing reports whether a client that has closed its side was answered, or has
// waited long enough; if not, it returns when to look again.
func (s *stream) closing(next time.Time) (until time.Time, over bool) {
	if s.closed.IsZero() {
		return next, false
	}
	until = s.closed.Add(s.cfg.ColdWait)
	return subscription.Earlier(next, until), !s.unanswered() || !time.Now().Before(until)
}

// unanswered reports whether the client asked for a type, or a glob, of which it was
// sent nothing.
func (s *stream) unanswered() bool {
	return slices.ContainsFunc(s.subs, func(sub *subscription.Subscription) bool {
		return sub.Unanswered()
	})
}

// handle takes a request, and whom it introduces. Its error ends the stream.
func (s *stream) handle(r *wire.Request, who *identity, now time.Time) error {
	if r.Err != nil {
		return s.cfg.unreadable(r.Err)
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
		s.client.log().Debug("request handled", slog.String("type_url", r.TypeURL), slog.String("nonce", r.Nonce),
			slog.Bool("refused", refused), slog.String("subscription", sub.String()))
	}
	s.admitRefused()
	return nil
}

// lookAtNames leaves in a request the names that the client may have, unless it repeats those that it has.
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

// of returns the stream's subscription of a type, nil if it has none. There are so few
// that a map would be slower, and larger than what it is for.
func (s *stream) of(typeURL string) *subscription.Subscription {
	for _, sub := range s.subs {
		if sub.TypeURL == typeURL {
			return sub
		}
	}
	return nil
}

// subscription returns the stream's subscription of a type, a new one if need be.
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
		return Exceeds(LimitTypes, "type %q is one too many: at most %d types are served", typeURL, s.cfg.MaxTypes)
	case cache.Room(s.cfg.MaxTypes, share, types, own) == 0:
		return Exceeds(LimitTypes, "type %q is one too many for %s: at most %d types that are not of the protocol are served to one peer while there are more than half of %d",
			typeURL, peer, share, s.cfg.MaxTypes)
	default:
		return nil
	}
}

// wrapOf returns which resources of a type a SotW client gets in their message.
func (s *stream) wrapOf(typeURL string) wire.Wrap {
	switch {
	case s.delta || !s.wrap:
		return wire.Bare
	case wire.Known(typeURL):
		return wire.WrapTelling
	default:
		return wire.WrapEveryone // nobody else could say what it is called
	}
}

// features reports what a client said that it understands, in the spellings that
// there are (R142).
func features(n *node) (wrap, ttl bool) {
	for _, f := range n.GetClientFeatures() {
		switch f {
		case "xds.config.resource-in-sotw", "xds.config.supports-resource-in-sotw", "envoy.config.resource-in-sotw":
			wrap = true
		case "xds.config.supports-resource-ttl", "envoy.config.supports-resource-ttl":
			ttl = true
		}
	}
	return wrap, ttl
}

// globs returns the number of globs on the stream.
func (s *stream) globCount() (n int) {
	for _, sub := range s.subs {
		n += sub.GlobCount()
	}
	return n
}

// misnamed takes note of names that cannot be: nobody is asked for them, and a client
// that understands it is told why (B.23).
func (s *stream) addMisnamed(sub *subscription.Subscription, bad []wire.BadName) {
	for _, b := range bad {
		sub.Explicit() // to ask for what cannot be is not to ask for everything
		s.server.names.misnamed(s.client, sub.TypeURL, b)
		if sub.Errors && s.nameCount() < s.cfg.MaxNames {
			sub.AddMisnamed(b)
		}
	}
}

// refused records a NACK: nothing is resent until the origin changes something
// (B.10).
func (s *stream) refused(sub *subscription.Subscription, r *wire.Request) {
	s.server.nacks.refused(s.client, r, sub.Refusal())
}

// A pass is one look at what the client must be told.
type pass struct {
	subscription.Look           // see barrier for its cut
	next              time.Time // when to look again; zero: when something happens

	// waiting is set while a type that may refer to clusters has changes that were
	// not sent, so that removals must not overtake them.
	removalsWait bool

	// mayBlock is set if the one who sends may wait for the client.
	mayBlock bool

	// held is set if something may be owed that waits for an answer.
	answersWait bool

	// How far dependent types may be read, and whether they wait altogether, once that
	// is known (see barrier).
	limit            cache.Seq
	shut, limitKnown bool
}

func (p *pass) wakeAt(t time.Time) { p.next = subscription.Earlier(p.next, t) }

// more notes that a type has more than was sent of it.
func (p *pass) moreDue(sub *subscription.Subscription) {
	p.removalsWait = p.removalsWait || !sub.LateRemovals
}

// flush sends what the client must be told now. It returns when to look again if nothing
// happens before. Without mayBlock it ends with errMayBlock before a send that may block;
// what was sent is sent.
func (s *stream) flush(now time.Time, mayBlock bool) (next time.Time, err error) {
	for {
		p := &pass{Look: subscription.Look{Newest: s.group.View.Generation(), Now: now}, mayBlock: mayBlock}
		p.Cut = s.cut(p)
		next, err = s.flushCut(p)
		if err != nil || !s.cutEnded(p) {
			return next, err
		}
	}
}

// flushCut sends what the client must be told now, in make-before-break order: additions
// and changes, then the removals that waited for them (B.11).
func (s *stream) flushCut(p *pass) (next time.Time, err error) {
	s.idle = false
	now := p.Now
	s.joinFanouts(now)
	_, p.Muted = s.cold(p.Newest, now)
	s.wakeGlobs(p.Newest)
	for _, sub := range s.subs {
		for part := range sub.Parts() {
			if err := s.serve(p, part); err != nil {
				return time.Time{}, err
			}
		}
	}
	if !p.limitKnown {
		s.settleBatches(p)
	}
	if err := s.flushRemovals(p); err != nil {
		return time.Time{}, err
	}
	followed := p.Newest.Seq
	for _, sub := range s.subs {
		followed = min(followed, sub.EndTurn(&p.Look))
	}
	s.watch.PassHints(followed)
	s.holdCut(p)
	err = s.checkCold(p)
	s.idle = p.next.IsZero() && !p.removalsWait && !p.answersWait
	return p.next, err
}

// rouse has globs looked at again of which something has changed.
func (s *stream) wakeGlobs(h *cache.Generation) {
	since := s.edition
	if s.edition = h.Revision; s.globCount() == 0 {
		return // as with nearly all
	}
	for t := range h.ChangedSince(since) {
		typeURL, glob, is := cache.SplitCollection(t.URL)
		if sub := s.of(typeURL); is && sub != nil {
			sub.Wake(glob)
		}
	}
}

// flushRemovals sends the removals that waited, if nothing that may refer to what is
// gone is left to be sent.
func (s *stream) flushRemovals(p *pass) error {
	if p.removalsWait {
		return nil
	}
	for _, typeURL := range []string{wire.EndpointType, wire.ClusterType} {
		sub := s.of(typeURL)
		if sub == nil {
			continue
		}
		for part := range sub.Parts() {
			if err := s.serveRemovals(p, part); err != nil {
				return err
			}
		}
	}
	return nil
}

// serve sends one type's additions and changes.
func (s *stream) serve(p *pass, sub *subscription.Subscription) error {
	if s.blocked(p, sub) {
		s.postpone(p, sub)
		return nil
	}
	if s.mayNotBlock(p) {
		return errMayBlock
	}
	limit, ahead := s.limit(p, sub)
	if sub.Waits = ahead; ahead {
		p.answersWait = true
		p.moreDue(sub)
		return nil
	}
	r, until, err := sub.Next(&p.Look, limit)
	if err != nil {
		return errOutrun
	}
	p.wakeAt(until)
	if limit < p.Cut.Seq && sub.At(p.Of(sub)).Behind() {
		p.moreDue(sub)
	}
	if r.Body == nil {
		return nil
	}
	if r.Cut {
		p.moreDue(sub)
	}
	if err := s.send(p, sub, &r); err != nil {
		return err
	}
	p.answersWait = p.answersWait || !sub.At(p.Of(sub)).RemovalsSent()
	if sub.At(p.Of(sub)).Behind() {
		p.wakeAt(sub.Deadline()) // the rest follows its answer, or the end of the wait for it
	}
	return nil
}

// postpone leaves a type alone until its newest response is answered.
func (s *stream) postpone(p *pass, sub *subscription.Subscription) {
	p.answersWait = true
	if sub.At(p.Of(sub)).Behind() {
		s.server.counters.coalesced.Add(1)
		p.wakeAt(sub.Deadline())
		p.moreDue(sub)
	}
}

// blocked reports whether a type waits for the answer to its newest response. Who has
// closed its side answers nothing.
func (s *stream) blocked(p *pass, sub *subscription.Subscription) bool {
	return s.closed.IsZero() && sub.Blocked(p.Now)
}

// serveRemovals sends the removals of a type that were held back.
func (s *stream) serveRemovals(p *pass, sub *subscription.Subscription) error {
	if sub.Blocked(p.Now) {
		p.answersWait = p.answersWait || !sub.At(p.Cut).RemovalsSent()
		return nil // serve has seen to the timer
	}
	if s.mayNotBlock(p) {
		return errMayBlock
	}
	r, until := sub.Removals(&p.Look)
	p.wakeAt(until)
	if r.Body == nil {
		return nil
	}
	p.answersWait = true // serve looks at the type again after the answer
	err := s.send(p, sub, &r)
	if r.Cut {
		p.wakeAt(sub.Deadline()) // or after the wait for it
	}
	return err
}

// send sends a response, and sees to it that endpoints follow the clusters that need them.
func (s *stream) send(p *pass, sub *subscription.Subscription, r *subscription.Response) error {
	s.nonces++
	nonce := strconv.FormatUint(s.nonces, 10)
	resp := &wire.Response{Body: r.Body, Nonce: nonce}
	if !sub.SentAny() {
		resp.ControlPlane = s.cfg.Identifier
	}
	s.server.large.oversized(s.client, sub.TypeURL, r.Body)
	if err := s.transmit(resp); err != nil {
		return err
	}
	const overhead = 16 // tags and lengths, generously
	if !s.sent {
		s.sent = true
		s.served.Store(true)
	}
	s.backlog.wrote(r.Body.Size())
	s.server.audit(s.client, s.grant, r.Secrets)
	s.written += uint64(r.Body.Size() + len(nonce) + len(resp.ControlPlane) + overhead)
	sentAt := p.Now
	if p.mayBlock {
		sentAt = time.Now()
	}
	sub.NoteSent(r, nonce, s.group.View, s.written, sentAt)
	if sub.TypeURL == wire.ClusterType {
		s.resendEndpoints(p, r.Endpoints)
		s.awaitEndpoints(p, sub, r.Endpoints, r.After)
		s.keepCut(p)
	}
	return nil
}

// renewEndpoints marks the endpoints of clusters that were just sent: an Envoy
// warms such a cluster until it gets them, changed or not (B.16).
func (s *stream) resendEndpoints(p *pass, names []string) {
	eds := s.of(wire.EndpointType)
	if eds == nil || len(names) == 0 || s.cfg.NoEDSAfterCDS || s.agent.GRPC {
		return
	}
	eds.At(p.Newest).Resend(names)
}

// inlineBytes is how much may be un-ACKed on a stream for a send not to block:
// what gRPC lets a stream buffer. Responses that are not waited for any more count
// until a later one is answered, or small ones would fill the buffer unseen.
const inlineBytes = 64 << 10

// mustWait reports whether a send may block, and this one must not.
func (s *stream) mayNotBlock(p *pass) bool { return !p.mayBlock && s.written-s.read >= inlineBytes }

// transmit sends a response. A send that may block, because the client is slow
// to read, is watched: one that takes longer than the limit ends the stream, for
// a client that cannot be told anything must not stay stale for ever (B.12).
func (s *stream) transmit(r *wire.Response) error {
	unacked := s.written - s.read
	if unacked < inlineBytes {
		return s.rpc.SendMsg(r)
	}
	ctx := s.rpc.Context()
	s.lentAt = subscription.MomentOf(time.Now())
	s.lock.lend()
	defer s.lock.giveBack()
	done := make(chan error, 1)
	// Ends at the latest when the stream does.
	go func() { done <- s.rpc.SendMsg(r) }()
	stall := time.NewTimer(s.cfg.SendStall)
	defer stall.Stop()
	select {
	case err := <-done:
		return err
	case <-stall.C:
		s.client.log().Warn("client does not read", slog.Duration("stalled", s.cfg.SendStall), slog.Uint64("unacked_bytes", unacked))
		return ended(EndedStalled, codes.Unavailable, "the client has not read for %v", s.cfg.SendStall)
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// cold reports whether nothing can be sent, since the relay knows nothing of what the
// client asked for and the origin is not there; and since when.
func (s *stream) cold(g *cache.Generation, now time.Time) (since time.Time, cold bool) {
	if s.sent {
		return since, false
	}
	asks := false
	for _, sub := range s.subs {
		if sub.At(g).Answerable() {
			return since, false
		}
		for from := range sub.At(g).Sources() {
			asks = true
			if from.Connected {
				return since, false
			}
			if from.Lost.After(since) {
				since = from.Lost
			}
		}
	}
	if !asks {
		return since, false // who asks for nothing lacks nothing
	}
	if s.asked.IsZero() {
		s.asked = now
	}
	if s.asked.After(since) {
		since = s.asked
	}
	return since, true
}

// checkCold ends a stream that is cold for too long: without a response, so that a
// client that has another server goes there (B.8).
func (s *stream) checkCold(p *pass) error {
	since, cold := s.cold(p.Newest, p.Now)
	if !cold {
		return nil
	}
	until := since.Add(s.cfg.ColdWait)
	if p.Now.Before(until) {
		p.wakeAt(until)
		return nil
	}
	return ended(EndedCold, codes.Unavailable, "the origin cannot be reached, and nothing is known of what was asked for")
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
	s.kept.leave()
	s.kept = nil
	if s.client.debugs() {
		s.client.log().Debug("stream ended", slog.Bool("delta", s.delta), slog.Uint64("responses", s.nonces))
	}
}

// recvStatus returns the status with which a stream ends when its receiver does.
func recvStatus(err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case status.Code(err) == codes.ResourceExhausted:
		return Exceeds(LimitRequest, "%s", status.Convert(err).Message()) // for the counters: the client knows by now
	default:
		return err
	}
}
