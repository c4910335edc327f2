package downstream

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/downstream/subscription"
)

// A queue holds the streams that may have something to send, for a few workers. A goroutine for each stream would have
// to be woken for each delivery, which costs half as much as the transport.
//
// New streams, which were sent nothing yet, have a queue of their own: they are never refused, but their first responses
// are large, and many of them at once must not delay changes for streams that are served (B.35).
type queue struct {
	mu        sync.Mutex
	served    line
	newcomers line
	passed    int // turns of the served since a newcomer had one
	workers   int // that run; they end when nothing is left

	turns, idle int64 // how many were taken, and in how many of them nothing was sent
}

// patience is how many turns of served streams may pass before a new stream has one.
const patience = 8

// A line holds streams in the order in which they came.
type line struct {
	streams []*stream // from next on
	next    int
}

func (l *line) len() int { return len(l.streams) - l.next }

func (l *line) push(s *stream) {
	if len(l.streams) == cap(l.streams) && l.next > len(l.streams)/2 {
		// Under load the line may never be empty: what has left it makes room.
		n := copy(l.streams, l.streams[l.next:])
		clear(l.streams[n:])
		l.streams, l.next = l.streams[:n], 0
	}
	l.streams = append(l.streams, s)
}

func (l *line) pop() *stream {
	s := l.streams[l.next]
	l.streams[l.next] = nil
	if l.next++; l.next == len(l.streams) {
		l.streams, l.next = l.streams[:0], 0
	}
	return s
}

func (q *queue) push(s *stream) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if s.served.Load() {
		q.served.push(s)
	} else {
		q.newcomers.push(s)
	}
	if q.workers < runtime.GOMAXPROCS(0) {
		q.workers++
		go q.work()
	}
}

// pop returns the stream whose turn it is, or nil, and then the worker ends. The worker passes whether it had a turn
// before, and whether it sent anything in that.
func (q *queue) pop(had, sent bool) *stream {
	q.mu.Lock()
	defer q.mu.Unlock()
	if had {
		q.turns++
	}
	if had && !sent {
		q.idle++
	}
	switch served, newcomers := q.served.len() > 0, q.newcomers.len() > 0; {
	case newcomers && (!served || q.passed >= patience):
		q.passed = 0
		return q.newcomers.pop()
	case served:
		q.passed++
		return q.served.pop()
	default:
		q.workers--
		return nil
	}
}

// waiting returns how many new streams wait for their turn.
func (q *queue) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.newcomers.len()
}

// taken returns how many turns have ended, and whether a stream waits for one or has it.
func (q *queue) taken() (turns int64, busy bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.turns, q.workers > 0
}

func (q *queue) work() {
	for s := q.pop(false, false); s != nil; {
		s = q.pop(true, s.takeTurn())
	}
}

// A turn is the state of a stream in the queue. Only one goroutine at a time looks at what a stream has to send, and none
// waits for another to do so.
type turn struct{ atomic.Uint32 }

const (
	resting uint32 = iota // until something happens
	queued
	taken // somebody sends what there is to send
	again // the same, and meanwhile something happened
)

// A lock is a mutex. A holder that may wait for the client to read calls lend, and others then wait on a channel.
type lock struct {
	mu   sync.Mutex
	lent chan struct{} // closed when it is given back
}

func (l *lock) take() {
	l.mu.Lock()
	for l.lent != nil {
		lent := l.lent
		l.mu.Unlock()
		<-lent
		l.mu.Lock()
	}
}

func (l *lock) leave() { l.mu.Unlock() }

// lend keeps the lock until giveBack, while peek may still read what it guards. The caller holds the lock.
func (l *lock) lend() {
	l.lent = make(chan struct{})
	l.mu.Unlock()
}

func (l *lock) giveBack() {
	l.mu.Lock()
	close(l.lent)
	l.lent = nil
}

// changed wakes the stream since something that it watches has changed.
func (s *stream) changed() {
	if !s.turned() {
		s.server.coalesced.Add(1)
	}
}

// wake gives the stream a turn. It may be called from anywhere.
func (s *stream) wake() { s.turned() }

// turned gives the stream a turn, and reports whether it did not have one to come already.
func (s *stream) turned() bool {
	for {
		switch at := s.turn.Load(); {
		case at == resting && s.turn.CompareAndSwap(resting, queued):
			s.server.queue.push(s)
			return true
		case at == taken && s.turn.CompareAndSwap(taken, again):
			return true
		case at == queued, at == again:
			return false
		}
	}
}

// takeTurn sends what is due. If a send may have to wait for a slow client, a goroutine of the stream's own does so: other
// streams must not wait (B.12). It reports whether anything was sent, or may be.
func (s *stream) takeTurn() (sent bool) {
	s.turn.Store(taken)
	all, sent := s.flushed(false)
	s.endTurn(all)
	return sent || !all
}

// endTurn ends a turn in which all was sent, or else leaves it to a goroutine that may wait. Nobody waits for that
// goroutine: it ends the turn itself, at the latest when the stream ends.
func (s *stream) endTurn(all bool) {
	switch {
	case !all:
		go func() {
			free := s.admit()
			all, _ := s.flushed(true)
			free()
			s.endTurn(all)
		}()
	case !s.turn.CompareAndSwap(taken, resting): // something happened meanwhile
		s.turn.Store(queued)
		s.server.queue.push(s)
	}
}

// errMayBlock ends a flush that may have to wait for the client.
var errMayBlock = errors.New("the client may be slow to read")

// run serves the stream until its client leaves or breaks the protocol, or the server drains. Its error is the stream's
// status.
func (s *stream) run() error {
	leave, err := s.server.enterChain(s.rpc, s.endFor)
	if err != nil {
		return err
	}
	defer leave()
	s.begin(time.Now())
	// The receiver ends when the RPC does, which is as soon as run returns.
	go s.receive()
	draining, regranted := s.server.draining, s.cfg.rulesChanged()
	for {
		select {
		case <-regranted:
			regranted = s.cfg.rulesChanged()
			s.regrant()
		case <-s.stale:
			s.regrant()
		case err := <-s.over:
			return s.finish(err)
		case <-draining:
			s.depart()
			draining = nil
		case <-s.server.stopping:
			return s.finish(errDrained)
		}
	}
}

func (s *stream) begin(now time.Time) {
	s.lock.take()
	defer s.lock.leave()
	s.begun = now
	s.leave = departure{at: guard.Expiry(s.rpc.Context(), s.cfg.ConnectionAge), why: guard.EndedAged}
	s.timer, s.armed = time.AfterFunc(s.cfg.FirstRequestTimeout, s.wake), true
}

// end has run end the stream, with a status.
func (s *stream) end(err error) {
	s.ended = true
	s.over <- err
}

// endFor has run end the stream, with a status, unless it ends already. Any goroutine may call it.
func (s *stream) endFor(err error) {
	s.lock.take()
	defer s.lock.leave()
	if !s.ended {
		s.end(err)
	}
}

// finish ends the stream and returns its status. If the stream has just ended by itself, that status counts and not that
// of a drain.
func (s *stream) finish(err error) error {
	s.lock.take()
	defer s.lock.leave()
	if errors.Is(err, errDrained) {
		if err = s.closeStatus(guard.EndedDrained); s.ended {
			err = <-s.over
		}
	}
	s.ended = true
	s.handleWaiting(time.Now()) // gives back what they were charged with
	s.timer.Stop()
	s.close()
	return err
}

// flushed takes the lock, handles the requests that wait, and sends what is due. It reports whether that was all, and
// whether anything was sent. Without mayBlock, it stops before a send that may wait for a slow client.
func (s *stream) flushed(mayBlock bool) (all, sent bool) {
	s.lock.take()
	defer s.lock.leave()
	before, now := s.nonces, time.Now()
	s.handleWaiting(now)
	all = s.sendDue(now, mayBlock)
	return all, s.nonces != before
}

// sendDue sends what is due, and sets the timer for the next look. The caller holds the lock.
func (s *stream) sendDue(now time.Time, mayBlock bool) (all bool) {
	switch {
	case s.ended, s.leaves(now):
		return true
	case s.watch == nil:
		if !now.Before(s.begun.Add(s.cfg.FirstRequestTimeout)) {
			s.end(guard.Ended(guard.EndedSilent, codes.DeadlineExceeded, "no request within %v", s.cfg.FirstRequestTimeout))
		}
		return true
	}
	next, err := s.flush(now, mayBlock)
	if errors.Is(err, errMayBlock) {
		return false
	}
	over := false
	if err == nil {
		next, over = s.closing(next)
	}
	if err != nil || over {
		s.end(err)
		return true
	}
	s.rearm(s.leaving(next, now), now)
	return true
}

// rearm sets the timer for the next look; a zero time is none.
func (s *stream) rearm(next, now time.Time) {
	if s.armed && next.Equal(s.armedFor) && now.Before(next) {
		return // as nearly always, when all that is to come is the stream's end
	}
	s.armedFor = next
	switch {
	case !next.IsZero() && next != subscription.Forever:
		wait := time.Until(next)
		if wait <= 0 {
			s.wake() // as the timer would, at once
			return
		}
		s.timer.Reset(wait)
		s.armed = true
	case s.armed:
		s.timer.Stop()
		s.armed = false
	}
}

// admit waits for a slot if the stream has first responses to send.
func (s *stream) admit() (free func()) {
	s.lock.take()
	first := s.unanswered()
	s.lock.leave()
	if !first {
		return func() {}
	}
	return s.server.slots.Take()
}
