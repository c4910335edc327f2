package downstream

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/downstream/subscription"
)

// errWouldBlock ends a flush before a send that may block.
var errWouldBlock = errors.New("the client may be slow to read")

// flush sends the responses that are due now. It returns when to flush again if no event occurs before. Without
// mayBlock it returns errWouldBlock before a send that may block; it has sent the responses before that one. The caller
// holds the lock.
func (s *stream) flush(now time.Time, mayBlock bool) (next time.Time, err error) {
	for {
		p := &pass{Turn: subscription.Turn{Newest: s.group.View.Generation(), Now: now}, mayBlock: mayBlock}
		p.Cut = s.currentCut(p)
		next, err = s.flushCut(p)
		if err != nil || !s.cutEnded(p) && !p.resendsEarlier {
			return next, err
		}
	}
}

// flushCut sends the responses that are due in one cut, in make-before-break order: first additions and updates, then
// the delayed removals (B.11).
func (s *stream) flushCut(p *pass) (next time.Time, err error) {
	s.idle = false
	now := p.Now
	s.joinFanouts(now)
	_, p.Muted = s.coldSince(p.Newest, now)
	s.wakeGlobs(p.Newest)
	for _, sub := range s.subs {
		for part := range sub.Parts() {
			if err := s.sendChanges(p, part); err != nil {
				return time.Time{}, err
			}
		}
	}
	if !p.limitKnown {
		s.removeFinishedBatches(p)
	}
	if err := s.flushRemovals(p); err != nil {
		return time.Time{}, err
	}
	passed := p.Newest.Seq
	for _, sub := range s.subs {
		passed = min(passed, sub.EndTurn(&p.Turn))
	}
	s.watch.PassHints(passed)
	s.finishCut(p)
	if err = s.sendHalts(p); err == nil {
		err = s.checkCold(p)
	}
	s.idle = p.next.IsZero() && !p.removalsBlocked && !p.awaitsAnswer
	return p.next, err
}

// wakeGlobs marks globs that have changed since the last flush as not idle.
func (s *stream) wakeGlobs(g *cache.Generation) {
	since := s.lastRevision
	if s.lastRevision = g.Revision; s.globCount() == 0 {
		return // the usual case
	}
	for t := range g.ChangedSince(since) {
		typeURL, glob, ok := cache.SplitCollection(t.URL)
		if sub := s.subscription(typeURL); ok && sub != nil {
			sub.WakeGlob(glob)
		}
	}
}

// flushRemovals sends the delayed removals, unless changes are unsent that may still refer to the removed resources.
func (s *stream) flushRemovals(p *pass) error {
	if p.removalsBlocked {
		return nil
	}
	for _, sub := range slices.Backward(s.subs) {
		if !sub.LateRemovals() {
			continue
		}
		for part := range sub.Parts() {
			if err := s.sendRemovals(p, part); err != nil {
				return err
			}
		}
	}
	return nil
}

// sendChanges sends the additions and updates of a type or a glob.
func (s *stream) sendChanges(p *pass, sub *subscription.Subscription) error {
	if until := s.waitUntil(p, sub); !until.IsZero() {
		s.postpone(p, sub, until)
		return nil
	}
	if s.wouldBlock(p) {
		return errWouldBlock
	}
	limit, waits := s.readLimit(p, sub)
	if sub.WaitsForClusters = waits; waits {
		p.awaitsAnswer = true
		p.moreDue(sub)
		return nil
	}
	r, until, err := sub.Next(&p.Turn, limit)
	if err != nil {
		return errOutrun
	}
	p.wakeAt(until)
	if g := p.GenerationFor(sub); r.MoreDue() || limit < g.Seq && sub.At(g).Behind() {
		p.moreDue(sub)
	}
	if r.Body == nil {
		return nil
	}
	if err := s.send(p, sub, &r); err != nil {
		return err
	}
	p.awaitsAnswer = p.awaitsAnswer || !sub.At(p.GenerationFor(sub)).AllRemovalsSent()
	if sub.At(p.GenerationFor(sub)).Behind() {
		p.wakeAt(sub.Deadline()) // more follows after the answer or the ACK timeout
	}
	return nil
}

// postpone delays changes of a type until a response is answered, or a time.
func (s *stream) postpone(p *pass, sub *subscription.Subscription, until time.Time) {
	p.awaitsAnswer = true
	if sub.At(p.GenerationFor(sub)).Behind() {
		s.server.coalesced.Add(1)
		p.wakeAt(until)
		p.moreDue(sub)
	}
}

// sendRemovals sends the delayed removals of a type or a glob.
func (s *stream) sendRemovals(p *pass, sub *subscription.Subscription) error {
	if sub.Blocked(p.Now) {
		p.awaitsAnswer = p.awaitsAnswer || !sub.At(p.GenerationFor(sub)).AllRemovalsSent()
		return nil // sendChanges has set the timer
	}
	if s.wouldBlock(p) {
		return errWouldBlock
	}
	r, until := sub.Removals(&p.Turn)
	p.wakeAt(until)
	if r.Body == nil {
		return nil
	}
	p.awaitsAnswer = true // the answer wakes the stream
	err := s.send(p, sub, &r)
	if r.Truncated {
		p.wakeAt(sub.Deadline()) // or the ACK timeout does
	}
	return err
}

// send sends a response and records it. It schedules what the resources in it refer to.
func (s *stream) send(p *pass, sub *subscription.Subscription, r *subscription.Response) error {
	s.nonces++
	nonce := strconv.FormatUint(s.nonces, 10)
	resp := &wire.Response{Body: r.Body, Nonce: nonce, Gzip: s.gzip, Secret: s.gzip && wire.IsSecret(sub.TypeURL)}
	if !sub.SentAny() {
		resp.ControlPlane = s.cfg.Identifier
	}
	if s.tracing {
		resp.TraceParent = sub.TraceParent()
	}
	s.server.logLargeResponse(s.client, sub.TypeURL, r.Body)
	if err := s.transmit(resp); err != nil {
		return err
	}
	if s.gzip {
		s.server.saved.Add(int64(resp.Saved))
	}
	const overhead = 16 // tags and lengths, an upper bound
	if !s.sent {
		s.sent = true
		s.served.Store(true)
	}
	s.account.Responded(r.Body.Size())
	s.server.logSecrets(s.client, s.grant, r.Secrets)
	s.bytesSent += uint64(r.Body.Size() + len(nonce) + len(resp.ControlPlane) + len(resp.TraceParent) + overhead)
	sentAt := p.Now
	if p.mayBlock {
		sentAt = time.Now()
	}
	sub.RecordSent(r, nonce, s.group.View, s.bytesSent, sentAt)
	s.resendReferenced(p, sub, r.Refers)
	if sub.Order == schema.Clusters {
		s.startBatch(p, sub, r.Refers.Of(wire.EndpointType), r.After)
		s.startCut(p)
	}
	return nil
}

// resendReferenced schedules what resources of a type that were just sent refer to, even if unchanged. Envoy warms a changed cluster
// or listener until it receives its endpoints, Secrets and extensions, and then uses it without them (B.16).
func (s *stream) resendReferenced(p *pass, sent *subscription.Subscription, refers *wire.References) {
	if refers == nil || !s.resends() {
		return
	}
	for i, names := range refers {
		sub := s.subscription(wire.Referenced[i])
		if sub == nil || len(names) == 0 {
			continue
		}
		sub.At(p.GenerationFor(sub)).Resend(names)
		p.resendsEarlier = p.resendsEarlier || sub.Rank < sent.Rank
	}
}

// inlineBytes is the number of unanswered bytes of a stream below which a send does not block: gRPC buffers that many.
// Responses count until they or later ones are answered, even after the ACK timeout. Otherwise many small responses
// would fill the buffer.
const inlineBytes = 64 << 10

// wouldBlock reports whether a send may block in a pass that must not block.
func (s *stream) wouldBlock(p *pass) bool {
	return !p.mayBlock && s.bytesSent-s.bytesRead >= inlineBytes
}

// transmit sends a response. A send that may block, because the client reads slowly, is limited by SendStall. After
// that the stream ends, because a client that cannot be sent anything would stay stale (B.12).
func (s *stream) transmit(r *wire.Response) error {
	unacked := s.bytesSent - s.bytesRead
	if unacked < inlineBytes {
		return guard.Lost(s.rpc.SendMsg(r))
	}
	ctx := s.rpc.Context()
	s.stalledAt = subscription.MomentOf(time.Now())
	s.lock.lend()
	defer s.lock.reclaim()
	done := make(chan error, 1)
	// Only the select below waits for this goroutine. It exits at the latest when the stream ends.
	go func() { done <- s.rpc.SendMsg(r) }()
	stall := time.NewTimer(s.cfg.SendStall)
	defer stall.Stop()
	select {
	case err := <-done:
		return guard.Lost(err)
	case <-stall.C:
		s.client.log().Warn("client does not read", slog.Duration("stalled", s.cfg.SendStall),
			slog.Uint64("unacked_bytes", unacked))
		return guard.Ended(guard.EndedStalled, codes.Unavailable, "the client has not read for %v", s.cfg.SendStall)
	case <-ctx.Done():
		return guard.Lost(status.FromContextError(ctx.Err()).Err())
	}
}

// coldSince reports whether nothing can be sent because the cache has no resource that the client subscribed to, and no
// origin of these resources is connected. It returns since when.
func (s *stream) coldSince(g *cache.Generation, now time.Time) (since time.Time, cold bool) {
	if s.sent {
		return since, false
	}
	subscribed := false
	for _, sub := range s.subs {
		if sub.At(g).Answerable() {
			return since, false
		}
		for from := range sub.At(g).Sources() {
			subscribed = true
			if from.Connected {
				return since, false
			}
			if from.Lost.After(since) {
				since = from.Lost
			}
		}
	}
	if !subscribed {
		return since, false
	}
	if s.requestedAt.IsZero() {
		s.requestedAt = now
	}
	if s.requestedAt.After(since) {
		since = s.requestedAt
	}
	return since, true
}

// checkCold ends a stream that is cold for longer than ColdWait, without a response. A client that has another server
// then connects to it (B.8).
func (s *stream) checkCold(p *pass) error {
	since, cold := s.coldSince(p.Newest, p.Now)
	if !cold {
		return nil
	}
	until := since.Add(s.cfg.ColdWait)
	if p.Now.Before(until) {
		p.wakeAt(until)
		return nil
	}
	return guard.Ended(guard.EndedCold, codes.Unavailable, "%s", s.group.coldMessage())
}

// coldMessage returns the status message for a stream without cached configuration. It contains the error of the
// origin, if there is one.
func (g *Group) coldMessage() string {
	const uncached = "no cached configuration for this subscription"
	var failure error
	if g.Failure != nil {
		failure = g.Failure()
	}
	st, isStatus := status.FromError(failure)
	switch {
	case failure == nil:
		return "control plane unreachable and " + uncached
	case !isStatus || st.Code() == codes.Unavailable || st.Code() == codes.DeadlineExceeded:
		return fmt.Sprintf("control plane unreachable and %s: %.256s", uncached, st.Message())
	default:
		return fmt.Sprintf("control plane refused the request (%s: %.256s) and %s", st.Code(), st.Message(), uncached)
	}
}

// haltsEvery is the minimum time between two messages about halts on a stream.
const haltsEvery = 200 * time.Millisecond

// TellHalts tells relays below what Config.Halts returns now. It may be called from any goroutine.
func (s *Server) TellHalts() {
	s.haltsMark.Add(1)
	s.registry.Range(func(_, st any) bool {
		if st := st.(*stream); st.halts != nil {
			st.wake()
		}
		return true
	})
}

// sendHalts tells the client what rollouts have halted, if it asked and does not know it.
func (s *stream) sendHalts(p *pass) error {
	h := s.halts
	if h == nil {
		return nil
	}
	mark := s.server.haltsMark.Load() // before Halts, so that no change is missed
	if h.current && h.mark == mark {
		return nil
	}
	if until := h.at.Add(haltsEvery); p.Now.Before(until) {
		p.wakeAt(until)
		return nil
	}
	if s.wouldBlock(p) {
		return errWouldBlock
	}
	halts := s.cfg.Halts(s.group.Key, s.grant)
	if h.current, h.mark = true, mark; h.last != nil && bytes.Equal(h.last, halts) {
		return nil
	}
	h.at, h.last = p.Now, halts
	body := wire.NewHaltsBody(halts)
	if err := s.transmit(&wire.Response{Body: body, Gzip: s.gzip}); err != nil {
		return err
	}
	s.account.Responded(body.Size())
	s.bytesSent += uint64(body.Size())
	return nil
}
