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
)

// takeTurn sends what is due. If a send may have to wait for a slow client, a goroutine of the stream's own does so: other
// streams must not wait (B.12). It reports whether anything was sent, or may be.
func (s *stream) takeTurn() (sent bool) {
	s.turn.Store(turnRunning)
	all, sent := s.flushTurn(false)
	s.endTurn(all)
	return sent || !all
}

// endTurn ends a turn in which all was sent, or else leaves it to a goroutine that may wait. Nobody waits for that
// goroutine: it ends the turn itself, at the latest when the stream ends.
func (s *stream) endTurn(all bool) {
	switch {
	case !all:
		go func() {
			free := s.awaitSlot()
			all, _ := s.flushTurn(true)
			free()
			s.endTurn(all)
		}()
	case !s.turn.CompareAndSwap(turnRunning, turnIdle): // something happened meanwhile
		s.turn.Store(turnQueued)
		s.server.queue.push(s)
	}
}

// errMayBlock ends a flush that may have to wait for the client.
var errWouldBlock = errors.New("the client may be slow to read")

// run serves the stream until its client leaves or breaks the protocol, or the server drains. Its error is the stream's
// status.
//
// The handler of gRPC only waits here. The receiver's goroutine also starts the stream: the handler's stack has gRPC's
// large frames, and with those of the start it would need 8 KiB for the whole life of the stream, and not 4.
func (s *stream) run() error {
	var leave func()
	started := make(chan error, 1)
	go func() { // ends when the RPC does, which is as soon as run returns
		err := s.start(&leave)
		started <- err
		if err == nil {
			s.receiver().receive()
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	defer leave()
	return s.wait()
}

// start begins the stream, or rejects it. What leave is set to must be called once the stream has ended.
func (s *stream) start(leave *func()) error {
	left, err := s.server.enterStream(s.rpc.Context())
	if err != nil {
		return err
	}
	s.server.arrivals.streamStarted()
	s.server.registry.Store(s.number, s)
	out := func() {
		s.server.registry.Delete(s.number)
		left()
	}
	leaveChain, err := s.server.enterChain(s.rpc, s.endFor)
	if err != nil {
		out()
		return err
	}
	*leave = func() {
		leaveChain()
		out()
	}
	s.begin(time.Now())
	return nil
}

// wait waits until the stream ends, and returns its status. It renews the grant of the client meanwhile.
func (s *stream) wait() error {
	draining, regranted := s.server.draining, s.cfg.grantsChanged()
	for {
		select {
		case <-regranted:
			regranted = s.cfg.grantsChanged()
			s.identification().renewGrant()
		case <-s.grantStale:
			s.identification().renewGrant()
		case err := <-s.result:
			return s.finish(err)
		case <-draining:
			s.scheduleDrain()
			draining = nil
		case <-s.server.stopping:
			return s.finish(errDrained)
		}
	}
}

func (s *stream) begin(now time.Time) {
	s.lock.acquire()
	defer s.lock.release()
	s.startedAt = now
	s.scheduledEnd = scheduledEnd{at: guard.Expiry(s.rpc.Context(), s.cfg.ConnectionAge), reason: guard.EndedAged}
	s.timer, s.timerArmed = time.AfterFunc(s.cfg.FirstRequestTimeout, s.wake), true
}

// finish ends the stream and returns its status. If the stream has just ended by itself, that status counts and not that
// of a drain.
func (s *stream) finish(err error) error {
	s.lock.acquire()
	defer s.lock.release()
	if errors.Is(err, errDrained) {
		if err = s.closeStatus(guard.EndedDrained); s.ended {
			err = <-s.result
		}
	}
	s.ended = true
	s.receiver().handleQueued(time.Now()) // gives back what they were charged with
	s.timer.Stop()
	if by := s.group.Observer; by != nil && s.clientDisconnected(err) {
		by.Disconnected()
	}
	s.close()
	return err
}

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
		s.client.log().Debug("stream ended", slog.Bool("delta", s.delta), slog.Uint64("responses", s.nonces))
	}
}

// flushed takes the lock, handles the requests that wait, and sends what is due. It reports whether that was all, and
// whether anything was sent. Without mayBlock, it stops before a send that may wait for a slow client.
func (s *stream) flushTurn(mayBlock bool) (all, sent bool) {
	s.lock.acquire()
	defer s.lock.release()
	before, now := s.nonces, time.Now()
	s.receiver().handleQueued(now)
	all = s.sendDue(now, mayBlock)
	return all, s.nonces != before
}

// sendDue sends what is due, and sets the timer for the next look. The caller holds the lock.
func (s *stream) sendDue(now time.Time, mayBlock bool) (all bool) {
	switch {
	case s.ended, s.endIfDue(now):
		return true
	case s.watch == nil:
		if !now.Before(s.startedAt.Add(s.cfg.FirstRequestTimeout)) {
			s.end(guard.Ended(guard.EndedSilent, codes.DeadlineExceeded, "no request within %v", s.cfg.FirstRequestTimeout))
		}
		return true
	}
	next, err := s.sender().flush(now, mayBlock)
	if errors.Is(err, errWouldBlock) {
		return false
	}
	over := false
	if err == nil {
		next, over = s.answeredAfterClose(next)
	}
	if err != nil || over {
		s.end(err)
		return true
	}
	s.setTimer(s.nextCheck(next, now), now)
	return true
}

// admit waits for a slot if the stream has first responses to send.
func (s *stream) awaitSlot() (free func()) {
	s.lock.acquire()
	first := s.awaitsFirstResponse()
	s.lock.release()
	if !first {
		return func() {}
	}
	return s.server.slots.Take()
}

// serve serves a stream of one type, or an aggregated one if typeURL is empty.
func (s *Server) serveStream(rpc grpc.ServerStream, typeURL string, delta bool) error {
	err := s.newStream(rpc, typeURL, delta).run()
	return s.streamEnded(err)
}

func (s *Server) newStream(rpc grpc.ServerStream, typeURL string, delta bool) *stream {
	st := &stream{
		server:         s,
		cfg:            &s.cfg,
		rpc:            rpc,
		account:        guard.AccountOf(rpc.Context()),
		typeURL:        typeURL,
		delta:          delta,
		requestLimiter: rate.NewLimiter(rate.Limit(s.cfg.MaxRequestRate), 10*s.cfg.MaxRequestRate),
		number:         s.streamNumbers.Add(1),
		result:         make(chan error, 1),
	}
	if s.cfg.grantsChanged() != nil {
		st.grantStale = make(chan struct{}, 1)
	}
	return st
}

// enter counts a stream, which must call leave when it ends, or rejects it.
func (s *Server) enterStream(ctx context.Context) (leave func(), err error) {
	end, err := s.guard.EnterStream(s.cfg.PeerName(guard.PeerOf(ctx)))
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

// streamEnded counts a stream that ended with an error, and returns the status that the client is sent.
func (s *Server) streamEnded(err error) error {
	s.guard.Counters.StreamEnded(err)
	s.logDenied(err)
	return guard.Status(err)
}
