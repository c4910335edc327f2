package downstream

import (
	"cmp"
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
	"github.com/xdstender/tender/downstream/guard"
)

// errOutrun ends a Delta stream that is further behind than the view remembers
// removals: the client returns, says what it holds, and is told the difference
// (B.11).
var errOutrun = guard.Ended(guard.EndedReturn, codes.Unavailable, "the stream has fallen too far behind, connect again")

// A stream serves one client. Its receiver handles answers; all other requests a worker
// handles when it is the stream's turn, and sends what these and changes give cause to.
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
	served atomic.Bool // something was sent, as sent says to who holds the lock
	over   chan error  // one slot: how the stream ended, for run

	stale chan struct{} // one slot: the grant may have to be renewed, for run; nil if grants do not change

	pace       *rate.Limiter // of requests; used by the receiver alone
	introduced introduction  // likewise
	lock       lock          // guards what follows

	// Set by the first request.
	group  Group
	grant  Grant // nil if the client may have anything
	watch  *cache.Watch
	client *client // for its subscriptions
	agent  agent
	wrap   bool // the client understands wrapped resources
	ttl    bool // and that resources expire
	kept   *guard.KeptNode

	waiting []*waiting      // to be handled when it is the stream's turn
	subs    []*subscription // in the order of sending
	edition uint64          // of the last head that was looked at
	nonces  uint64
	timer   *time.Timer // wakes the stream
	armed   bool        // the timer may be running

	armedFor time.Time // when it fires, or is to

	sent   bool // some response was sent
	begun  time.Time
	asked  time.Time // when something was first asked for, nothing being sent
	closed time.Time // when the client said that it asks for nothing more
	rested bool      // at the last look nothing was owed nor waited for
	ended  bool      // or is about to, by run
	leave  departure

	// How many bytes were sent, and how many of these the client has read for
	// certain: it answered what came after them.
	written, read uint64

	lentAt moment // when the lock was lent the last time

	barrier barrier
}

// closing reports whether a client that has closed its side was answered, or has
// waited long enough; if not, it returns when to look again.
func (s *stream) closing(next time.Time) (until time.Time, over bool) {
	if s.closed.IsZero() {
		return next, false
	}
	until = s.closed.Add(s.cfg.ColdWait)
	return earlier(next, until), !s.unanswered() || !time.Now().Before(until)
}

// unanswered reports whether the client asked for a type, or a glob, of which it was
// sent nothing.
func (s *stream) unanswered() bool {
	return slices.ContainsFunc(s.subs, func(sub *subscription) bool {
		return !sub.answered && (sub.wildcard != nil || len(sub.names)+len(sub.globs) > 0) ||
			slices.ContainsFunc(sub.globs, func(glob *subscription) bool { return glob.fresh })
	})
}

// handle takes a request, and whom it introduces. Its error ends the stream.
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
	if err := s.lookAtNames(sub, r); err != nil {
		return err
	}
	if earlier := sub.earlier.find(r); earlier >= 0 {
		s.read = max(s.read, sub.earlier.list[earlier].through)
	}
	if sub.request(r, now) {
		s.refused(sub, r)
	}
	if !sub.pending {
		s.read = max(s.read, sub.through)
	}
	s.admitRefused()
	return nil
}

// lookAtNames leaves in a request the names that the client may have, unless it repeats those that it has.
func (s *stream) lookAtNames(sub *subscription, r *wire.Request) error {
	switch {
	case sub.repeats(r):
		return nil
	case r.Repeated: // the request before, which has them, was handled before
		return status.Errorf(codes.Internal, "the names of %s are not known that this request repeats", r.TypeURL)
	}
	if s.cfg.DynamicParameters {
		r.Parameterise(s.dynamic()[r.TypeURL].GetParams())
	}
	s.misnamed(sub, r.Canonicalise())
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
func (s *stream) of(typeURL string) *subscription {
	for _, sub := range s.subs {
		if sub.typeURL == typeURL {
			return sub
		}
	}
	return nil
}

// subscription returns the stream's subscription of a type, a new one if need be.
func (s *stream) subscription(typeURL string) (*subscription, error) {
	if sub := s.of(typeURL); sub != nil {
		return sub, nil
	}
	if err := s.typeOver(typeURL); err != nil {
		return nil, err
	}
	sub := &subscription{
		traits:       s.cfg.traitsOf(typeURL, s.agent),
		conversation: &conversation{tally: s.group.Counts.tally(typeURL, s.number)},
		client:       s.client,
		key:          typeURL,
		wrap:         s.wrapOf(typeURL),
		ttl:          s.ttl && (s.delta || s.wrap),
	}
	at, _ := slices.BinarySearchFunc(s.subs, sub, func(a, b *subscription) int {
		if a.rank != b.rank {
			return a.rank - b.rank
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
		if !wire.Known(sub.typeURL) {
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
		return wire.Bare
	case wire.Known(typeURL):
		return wire.WrapTelling
	default:
		return wire.WrapEveryone // nobody else could say what it is called
	}
}

// globs returns the number of globs on the stream.
func (s *stream) globs() (n int) {
	for _, sub := range s.subs {
		n += len(sub.globs)
	}
	return n
}

// misnamed takes note of names that cannot be: nobody is asked for them, and a client
// that understands it is told why (B.23).
func (s *stream) misnamed(sub *subscription, bad []wire.BadName) {
	for _, b := range bad {
		sub.explicit = true // to ask for what cannot be is not to ask for everything
		s.server.logBadName(s.client, sub.typeURL, b)
		if sub.errors && s.held() < s.cfg.MaxNames {
			sub.failures.misnamed(b)
		}
	}
}

// refused records a NACK: nothing is resent until the origin changes something
// (B.10).
func (s *stream) refused(sub *subscription, r *wire.Request) {
	s.server.logNACK(s.client, r, sub.refusal)
}

// A pass is one look at what the client must be told.
type pass struct {
	head *cache.Generation // the newest
	cut  *cache.Generation // what clusters and dependent types are read from (see barrier); mostly the same
	now  time.Time
	next time.Time // when to look again; zero: when something happens

	// waiting is set while a type that may refer to clusters has changes that were
	// not sent, so that removals must not overtake them.
	waiting bool

	// silent is set while the stream may have to end without a response (B.8).
	silent bool

	// mayBlock is set if the one who sends may wait for the client.
	mayBlock bool

	// held is set if something may be owed that waits for an answer.
	held bool

	// How far dependent types may be read, and whether they wait altogether, once that
	// is known (see barrier).
	limit            cache.Seq
	shut, limitKnown bool
}

func (p *pass) at(t time.Time) { p.next = earlier(p.next, t) }

// more notes that a type has more than was sent of it.
func (p *pass) more(sub *subscription) { p.waiting = p.waiting || !sub.lateRemovals }

// flush sends what the client must be told now. It returns when to look again if nothing
// happens before. Without mayBlock it ends with errMayBlock before a send that may block;
// what was sent is sent.
func (s *stream) flush(now time.Time, mayBlock bool) (next time.Time, err error) {
	for {
		p := &pass{head: s.group.View.Generation(), now: now, mayBlock: mayBlock}
		p.cut = s.cut(p)
		next, err = s.flushCut(p)
		if err != nil || !s.uncut(p) {
			return next, err
		}
	}
}

// flushCut sends what the client must be told now, in make-before-break order: additions
// and changes, then the removals that waited for them (B.11).
func (s *stream) flushCut(p *pass) (next time.Time, err error) {
	s.rested = false
	now := p.now
	s.joinFanouts(now)
	_, p.silent = s.cold(p.head, now)
	s.rouse(p.head)
	for _, sub := range s.subs {
		for part := range sub.inTurn() {
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
	followed := p.head.Seq
	for _, sub := range s.subs {
		sub.asked = sub.asked && sub.waits // what is not answered by now, a change will
		sub.passed()
		sub.rest(p.head)
		if sub.reaching != nil {
			sub.passFanouts(now)
		}
		followed = min(followed, sub.followedTo(p.of(sub)))
	}
	s.watch.PassHints(followed)
	s.holdCut(p)
	err = s.checkCold(p)
	s.rested = p.next.IsZero() && !p.waiting && !p.held
	return p.next, err
}

// rouse has globs looked at again of which something has changed.
func (s *stream) rouse(h *cache.Generation) {
	since := s.edition
	if s.edition = h.Revision; s.globs() == 0 {
		return // as with nearly all
	}
	for t := range h.ChangedSince(since) {
		typeURL, glob, is := cache.SplitCollection(t.URL)
		if sub := s.of(typeURL); is && sub != nil {
			if g := sub.findGlob(glob); g != nil {
				g.atRest = false
			}
		}
	}
}

// flushRemovals sends the removals that waited, if nothing that may refer to what is
// gone is left to be sent.
func (s *stream) flushRemovals(p *pass) error {
	if p.waiting {
		return nil
	}
	for _, typeURL := range []string{wire.EndpointType, wire.ClusterType} {
		sub := s.of(typeURL)
		if sub == nil {
			continue
		}
		for part := range sub.inTurn() {
			if err := s.serveRemovals(p, part); err != nil {
				return err
			}
		}
	}
	return nil
}

// serve sends one type's additions and changes.
func (s *stream) serve(p *pass, sub *subscription) error {
	t := p.of(sub).Type(sub.key)
	if s.blocked(p, sub) {
		s.postpone(p, sub, t)
		return nil
	}
	if s.mustWait(p) {
		return errMayBlock
	}
	limit, ahead := s.limit(p, sub, t)
	if sub.waits = ahead; ahead {
		p.held = true
		p.more(sub)
		return nil
	}
	after := sub.position()
	r, g, until, err := sub.nextOf(p, limit)
	if err != nil {
		return err
	}
	p.at(until)
	if limit < p.cut.Seq && sub.behind(t) {
		p.more(sub)
	}
	if r == nil {
		return nil
	}
	if r.cut {
		p.more(sub)
	}
	if err := s.send(p, g, sub, r, after, after); err != nil {
		return err
	}
	p.held = p.held || !sub.removalsTold(t)
	if sub.behind(t) {
		p.at(sub.until) // the rest follows its answer, or the end of the wait for it
	}
	return nil
}

// postpone leaves a type alone until its newest response is answered.
func (s *stream) postpone(p *pass, sub *subscription, t *cache.Type) {
	p.held = true
	if sub.behind(t) {
		s.server.coalesced.Add(1)
		p.at(sub.until)
		p.more(sub)
	}
}

// blocked reports whether a type waits for the answer to its newest response. Who has
// closed its side answers nothing.
func (s *stream) blocked(p *pass, sub *subscription) bool {
	return s.closed.IsZero() && sub.blocked(p.now)
}

// nextOf is next from the cut of a pass, or of the newest head for names that the client
// asked for since, and returns the head.
func (s *subscription) nextOf(p *pass, limit cache.Seq) (r *reply, g *cache.Generation, until time.Time, err error) {
	g = p.of(s)
	if g == p.head {
		r, until, err = s.next(p, g, g.Type(s.key), limit)
		return r, g, until, err
	}
	asked := s.takeAsked()
	s.older = true
	r, until, err = s.next(p, g, g.Type(s.key), limit)
	s.older = false
	if s.owing = append(s.owing, asked...); err == nil && r == nil && len(asked) > 0 {
		g = p.head
		r, until, err = s.next(p, g, g.Type(s.key), limit)
	}
	return r, g, until, err
}

// next returns the additions and changes that the client is to be sent.
func (s *subscription) next(p *pass, g *cache.Generation, t *cache.Type, limit cache.Seq) (r *reply, until time.Time, err error) {
	s.failures.silent = p.silent
	switch {
	case !s.delta && s.fullState:
		r, until = s.fullSet(g, t, limit, p.now)
	case !s.delta && s.grouped:
		r, err = s.group(g, t, limit, p.now)
	default:
		r, err = s.changes(g, t, limit, p.now)
	}
	until = earlier(until, s.failures.lookAt)
	if r == nil && err == nil && s.delta && !s.lateRemovals {
		var again time.Time
		r, again = s.forgotten(g, t, p.now)
		until = earlier(until, again)
	}
	return r, until, err
}

// serveRemovals sends the removals of a type that were held back.
func (s *stream) serveRemovals(p *pass, sub *subscription) error {
	t := p.cut.Type(sub.key)
	if sub.blocked(p.now) {
		p.held = p.held || !sub.removalsTold(t)
		return nil // serve has seen to the timer
	}
	if s.mustWait(p) {
		return errMayBlock
	}
	var r *reply
	var until time.Time
	after := cmp.Or(sub.removed, p.cut.Seq) // who only names things has no such position
	if sub.delta {
		if r = sub.removals(p.cut, t); r == nil {
			r, until = sub.forgotten(p.cut, t, p.now)
		}
	} else if sub.fullState {
		r, until = sub.finalSet(p.cut, t, p.now)
	} else {
		r = sub.lateFailures(p.cut, t, p.now)
	}
	p.at(until)
	if r == nil {
		return nil
	}
	p.held = true // serve looks at the type again after the answer
	err := s.send(p, p.cut, sub, r, after, sub.position())
	if r.cut {
		p.at(sub.until) // or after the wait for it
	}
	return err
}

// send sends a response made from a head, which holds what changed after a position, where the client was told of
// changes and additions up to another before, and sees to it that
// endpoints follow the clusters that need them.
func (s *stream) send(p *pass, g *cache.Generation, sub *subscription, r *reply, after, before cache.Seq) error {
	s.nonces++
	nonce := strconv.FormatUint(s.nonces, 10)
	resp := &wire.Response{Body: r.body, Nonce: nonce}
	if !sub.answered {
		resp.ControlPlane = s.cfg.Identifier
	}
	s.server.logLargeResponse(s.client, sub.typeURL, r.body)
	if err := s.transmit(resp); err != nil {
		return err
	}
	const overhead = 16 // tags and lengths, generously
	if !s.sent {
		s.sent = true
		s.served.Store(true)
	}
	sub.tally.sent(r.body.Size())
	s.account.Responded(r.body.Size())
	s.server.logSecrets(s.client, s.grant, r.secrets)
	s.written += uint64(r.body.Size() + len(nonce) + len(resp.ControlPlane) + overhead)
	sentAt := p.now
	if p.mayBlock {
		sentAt = time.Now()
	}
	sub.noteTold(after, before, sub.wantedSince(s.group.View, g, after), sentAt)
	sub.responded(nonce, r.body, s.written, sentAt)
	if sub.reaching != nil {
		cmp.Or(sub.parent, sub).passFanouts(sentAt)
	}
	if sub.typeURL == wire.ClusterType {
		s.renewEndpoints(p, r.eds)
		s.awaitEndpoints(p, sub, r.eds, after)
		s.keepCut(p)
	}
	return nil
}

// renewEndpoints marks the endpoints of clusters that were just sent: an Envoy
// warms such a cluster until it gets them, changed or not (B.16).
func (s *stream) renewEndpoints(p *pass, names []string) {
	eds := s.of(wire.EndpointType)
	if eds == nil || len(names) == 0 || s.cfg.NoEDSAfterCDS || s.agent.grpc {
		return
	}
	t := p.head.Type(wire.EndpointType)
	for i, n := range s.watch.Find(wire.EndpointType, names) {
		if at, ok := eds.find(n); ok {
			if e, _ := t.Lookup(n); e.Present() && eds.names[at].sent != 0 {
				eds.names[at].sent = 0
				eds.owing = append(eds.owing, n)
			}
		} else if by := eds.memberOf(names[i]); by != nil && !by.fresh {
			by.again, by.atRest = append(by.again, names[i]), false
		}
	}
}

// inlineBytes is how much may be un-ACKed on a stream for a send not to block:
// what gRPC lets a stream buffer. Responses that are not waited for any more count
// until a later one is answered, or small ones would fill the buffer unseen.
const inlineBytes = 64 << 10

// mustWait reports whether a send may block, and this one must not.
func (s *stream) mustWait(p *pass) bool { return !p.mayBlock && s.written-s.read >= inlineBytes }

// transmit sends a response. A send that may block, because the client is slow
// to read, is watched: one that takes longer than the limit ends the stream, for
// a client that cannot be told anything must not stay stale for ever (B.12).
func (s *stream) transmit(r *wire.Response) error {
	unacked := s.written - s.read
	if unacked < inlineBytes {
		return s.rpc.SendMsg(r)
	}
	ctx := s.rpc.Context()
	s.lentAt = momentOf(time.Now())
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
		return guard.Ended(guard.EndedStalled, codes.Unavailable, "the client has not read for %v", s.cfg.SendStall)
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
		if sub.answerable(g) {
			return since, false
		}
		for from := range sub.sources(g) {
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
	since, cold := s.cold(p.head, p.now)
	if !cold {
		return nil
	}
	until := since.Add(s.cfg.ColdWait)
	if p.now.Before(until) {
		p.at(until)
		return nil
	}
	return guard.Ended(guard.EndedCold, codes.Unavailable, "the origin cannot be reached, and nothing is known of what was asked for")
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
		sub.close()
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
