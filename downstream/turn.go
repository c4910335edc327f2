package downstream

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/downstream/subscription"
	"github.com/xdstender/tender/downstream/transport"
)

// takeTurn runs a turn of the stream in a worker. If a send may block, another goroutine continues the turn, so that
// other streams do not wait (B.12). It reports whether a response was sent or may be sent by that goroutine.
func (s *stream) takeTurn() (sent bool) {
	s.turn.Store(turnRunning)
	all, sent := s.flushTurn(false)
	s.endTurn(all)
	return sent || !all
}

// endTurn ends a turn if all due responses were sent. Otherwise it continues the turn in a goroutine that may block.
// That goroutine ends the turn, at the latest when the stream ends; no other goroutine waits for it.
func (s *stream) endTurn(all bool) {
	switch {
	case !all:
		go func() {
			free := s.awaitSlot()
			all, _ := s.flushTurn(true)
			s.rpc.Flush()
			free()
			s.endTurn(all)
		}()
	case !s.turn.CompareAndSwap(turnRunning, turnIdle): // the stream was woken during the turn
		s.turn.Store(turnQueued)
		s.server.queue.push(s)
	}
}

// run serves the stream until the client closes it or violates the protocol, or until the server drains. It returns the
// status of the stream.
//
// The handler goroutine of gRPC only waits. The receiver goroutine also starts the stream. The stack of the handler has
// large frames of gRPC. With the frames of the start it would need 8 KiB instead of 4 while the stream is open.
func (s *stream) run(requests requests) error {
	var leave func()
	started := make(chan error, 1)
	go func() { // exits when the RPC ends, which is as soon as run returns
		err := s.start(&leave)
		started <- err
		if err == nil {
			s.receive(requests)
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	defer leave()
	return s.finish(<-s.result)
}

// start registers the stream, or refuses it. If there is no error, the caller must call *leave when the stream has
// ended.
func (s *stream) start(leave *func()) error {
	leaveServer, err := s.server.enterStream(s.peer)
	if err != nil {
		return err
	}
	leaveChain, err := s.server.enterChain(s.rpc, s.halts != nil, s.endFor)
	if err != nil {
		leaveServer()
		return err
	}
	s.begin(time.Now())
	unregister := s.server.register(s)
	*leave = func() {
		leaveChain()
		unregister()
		leaveServer()
	}
	s.followDrain()
	return nil
}

// followDrain schedules the end of a stream that was opened while the server drains or stops. [Server.Drain] does so
// for the streams that it finds.
func (s *stream) followDrain() {
	select {
	case <-s.server.stopping:
		s.stop()
	case <-s.server.draining:
		s.scheduleDrain()
	default:
	}
}

// begin starts the timeout for the first request, and schedules the end of the stream because of ConnectionAge.
func (s *stream) begin(now time.Time) {
	s.lock.acquire()
	defer s.lock.release()
	s.startedAt = now
	s.scheduledEnd = scheduledEnd{at: guard.Expiry(s.rpc.Context(), s.cfg.ConnectionAge), reason: guard.EndedAged}
	s.timer, s.timerArmed = time.AfterFunc(s.cfg.FirstRequestTimeout, s.wake), true
}

// finish closes the stream, which has ended with err, and returns err.
func (s *stream) finish(err error) error {
	s.lock.acquire()
	defer s.lock.release()
	s.ended = true
	s.handleQueued(time.Now()) // releases their memory
	s.timer.Stop()
	if o := s.group.Observer; o != nil && s.clientDisconnected(err) {
		o.Disconnected()
	}
	s.close()
	return err
}

// close releases everything that the stream holds. The caller holds the lock.
func (s *stream) close() {
	for _, r := range s.queued {
		r.identity.release()
	}
	s.queued = nil
	if s.watch == nil {
		return
	}
	for _, sub := range s.subs {
		sub.Close()
	}
	s.watch.Close()
	s.leaveFanouts(time.Now())
	s.group.Leave()
	s.keptNode.Release()
	s.keptNode = nil
	if s.client.debugEnabled() {
		s.client.log().Debug("client stream closed", slog.Bool("delta", s.delta), slog.Uint64("responses", s.nonces))
	}
}

// flushTurn handles the queued requests and sends the responses that are due. It reports whether it sent all of them,
// and whether it sent any. Without mayBlock, it stops before a send that may block.
func (s *stream) flushTurn(mayBlock bool) (all, sent bool) {
	s.lock.acquire()
	defer s.lock.release()
	before, now := s.bytesSent, time.Now()
	s.handleQueued(now)
	all = s.sendDue(now, mayBlock)
	return all, s.bytesSent != before
}

// sendDue sends the responses that are due, and sets the timer for the next flush. It reports whether it sent all of
// them. The caller holds the lock.
func (s *stream) sendDue(now time.Time, mayBlock bool) (all bool) {
	switch {
	case s.ended, s.endIfDue(now):
		return true
	case s.watch == nil:
		if !s.asked.Load() && !now.Before(s.startedAt.Add(s.cfg.FirstRequestTimeout)) {
			s.end(guard.Ended(guard.EndedSilent, codes.DeadlineExceeded, "no request within %v", s.cfg.FirstRequestTimeout))
		}
		return true
	}
	next, err := s.flush(now, mayBlock)
	if errors.Is(err, errWouldBlock) {
		return false
	}
	done := false
	if err == nil {
		next, done = s.answeredAfterClose(next)
	}
	if err != nil || done {
		s.end(err)
		return true
	}
	s.setTimer(s.nextCheck(subscription.Earlier(next, s.giveUpDeliveries(now)), now), now)
	return true
}

// awaitSlot waits for a slot if the stream has a first response to send. The caller must call free after the send.
func (s *stream) awaitSlot() (free func()) {
	s.lock.acquire()
	awaits := s.awaitsFirstResponse()
	s.lock.release()
	if !awaits {
		return func() {}
	}
	return s.server.slots.Take()
}

// serveStream serves a stream of one type, or an aggregated stream if typeURL is empty.
func (s *Server) serveStream(rpc grpc.ServerStream, typeURL string, delta bool) error {
	st := s.newStream(grpcCall{rpc}, typeURL, delta)
	err := st.run(rpc)
	return s.streamEnded(rpc.Context(), st.nodeLabel(), err)
}

// newStream returns a stream of one type, or an aggregated stream if typeURL is empty.
func (s *Server) newStream(rpc call, typeURL string, delta bool) *stream {
	relay := len(relayTokens(rpc.Context())) > 0
	st := &stream{
		server:         s,
		cfg:            &s.cfg,
		rpc:            rpc,
		account:        guard.AccountOf(rpc.Context()),
		peer:           guard.PeerName(guard.PeerOf(rpc.Context())),
		relay:          relay,
		tracing:        s.cfg.Traces != nil && relay,
		gzip:           s.cfg.Gzip && rpc.Compress(),
		typeURL:        typeURL,
		delta:          delta,
		requestLimiter: rate.NewLimiter(rate.Limit(s.cfg.MaxRequestRate), 10*s.cfg.MaxRequestRate),
		number:         s.streamNumbers.Add(1),
		result:         make(chan error, 1),
	}
	if relay && typeURL == "" && s.cfg.Halts != nil && asksForHalts(rpc.Context()) {
		st.halts = new(toldHalts)
	}
	return st
}

// open serves a stream of package transport, as serveStream does one of grpc-go. It does not block.
func (s *Server) open(rpc *transport.Stream, typeURL string, delta bool) transport.Receiver {
	p := &pushed{stream: s.newStream(rpc, typeURL, delta), endRPC: rpc.End}
	if err := p.start(&p.leave); err != nil {
		rpc.End(s.streamEnded(rpc.Context(), "", err))
		return nil
	}
	p.lock.acquire()
	defer p.lock.release()
	if p.conclude = p.concluded; p.ended {
		go p.concluded() // waits for the lock
	}
	return p
}

// concluded ends the stream, which has a result.
func (p *pushed) concluded() {
	err := p.finish(<-p.result)
	p.leave()
	p.endRPC(p.server.streamEnded(p.rpc.Context(), p.nodeLabel(), err))
}

// enterStream counts a stream against the limits, or refuses it. The caller must call leave when the stream ends.
func (s *Server) enterStream(peer string) (leave func(), err error) {
	end, err := s.guard.EnterStream(peer)
	if err != nil {
		return nil, err
	}
	s.streams.Add(1)
	s.accepted.Add(1)
	return func() {
		end()
		s.streams.Add(-1)
		s.checkIdle()
	}, nil
}

// streamEnded counts a stream that ended with an error, and returns the status for the client. node is the label of the
// client's Node, empty if it is unknown.
func (s *Server) streamEnded(ctx context.Context, node string, err error) error {
	s.guard.Counters.StreamEnded(guard.PeerName(guard.PeerOf(ctx)), node, err)
	return guard.Status(err)
}
