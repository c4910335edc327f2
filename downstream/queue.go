package downstream

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/xdstender/tender/downstream/subscription"
)

// A queue holds the streams that may have something to send. A few workers serve them: waking a goroutine of each stream
// for each delivery would cost half as much as the transport.
//
// Streams that were sent nothing yet wait in a line of their own. Their first responses are large, and many of them at
// once must not delay changes for the other streams (B.35).
type queue struct {
	mu          sync.Mutex
	served      fifo
	newcomers   fifo
	servedTurns int // turns of served streams since the last turn of a new stream
	workers     int // running ones; they end when the queue is empty
	maxWorkers  int // workers that may run, set by the first: to read GOMAXPROCS takes a lock of the runtime

	turns, idleTurns int64 // turns so far, and those of them in which nothing was sent

	runTurn func(*stream) (sent bool) // [stream.takeTurn]
}

// patience is how many served streams may have a turn before a new stream has one.
const turnsPerNewcomer = 8

// A line is a first-in, first-out queue of streams.
type fifo struct {
	streams []*stream // from next on
	next    int
}

func (l *fifo) size() int { return len(l.streams) - l.next }

func (l *fifo) push(s *stream) {
	if len(l.streams) == cap(l.streams) && l.next > len(l.streams)/2 {
		// Under load the line may never become empty: reuse the room of streams that have left it.
		n := copy(l.streams, l.streams[l.next:])
		clear(l.streams[n:])
		l.streams, l.next = l.streams[:n], 0
	}
	l.streams = append(l.streams, s)
}

func (l *fifo) pop() *stream {
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
	if q.workers == 0 {
		q.maxWorkers = runtime.GOMAXPROCS(0)
	}
	if q.workers < q.maxWorkers {
		q.workers++
		go q.work()
	}
}

// pop returns the next stream; nil ends the worker. The worker passes whether it had a turn before, and whether that
// turn sent anything.
func (q *queue) pop(had, sent bool) *stream {
	q.mu.Lock()
	defer q.mu.Unlock()
	if had {
		q.turns++
	}
	if had && !sent {
		q.idleTurns++
	}
	switch served, newcomers := q.served.size() > 0, q.newcomers.size() > 0; {
	case newcomers && (!served || q.servedTurns >= turnsPerNewcomer):
		q.servedTurns = 0
		return q.newcomers.pop()
	case served:
		q.servedTurns++
		return q.served.pop()
	default:
		q.workers--
		return nil
	}
}

// waiting returns the number of new streams in the queue.
func (q *queue) newcomerCount() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.newcomers.size()
}

// taken returns the number of turns that have ended, and whether any stream has a turn or waits for one.
func (q *queue) progress() (turns int64, busy bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.turns, q.workers > 0
}

func (q *queue) work() {
	for s := q.pop(false, false); s != nil; {
		s = q.pop(true, q.runTurn(s))
	}
}

const (
	turnIdle    uint32 = iota // nothing to do
	turnQueued                // waits for a turn
	turnRunning               // a goroutine sends what is due
	turnRepeat                // the same, and the stream was woken since
)

// A turn is the state of a stream in the queue. Only one goroutine at a time looks for what a stream has to send. No
// goroutine waits for another one to do so.
type turnState struct{ atomic.Uint32 }

// A lock is a mutex. A holder calls lend before it waits for the client to read; other goroutines then wait on a channel.
type lock struct {
	mu   sync.Mutex
	lent chan struct{} // closed by giveBack; nil if the lock is not lent
}

func (l *lock) acquire() {
	l.mu.Lock()
	for l.lent != nil {
		lent := l.lent
		l.mu.Unlock()
		<-lent
		l.mu.Lock()
	}
}

func (l *lock) release() { l.mu.Unlock() }

// lend keeps the lock until giveBack, while peek may still read what it guards. The caller holds the lock.
func (l *lock) lend() {
	l.lent = make(chan struct{})
	l.mu.Unlock()
}

func (l *lock) reclaim() {
	l.mu.Lock()
	close(l.lent)
	l.lent = nil
}

// peek locks mu without waiting for a stalled send, and reports whether there is one. The caller may read what the lock
// guards, and must call leave.
func (l *lock) peek() (stalled bool) {
	l.mu.Lock()
	return l.lent != nil
}

// wake gives the stream a turn. It may be called from any goroutine.
func (s *stream) wake() { s.requestTurn() }

// changed wakes the stream after a change of a resource that it watches.
func (s *stream) resourceChanged() {
	if !s.requestTurn() {
		s.server.coalesced.Add(1)
	}
}

// turned gives the stream a turn, and reports false if the stream already waits for one.
func (s *stream) requestTurn() bool {
	for {
		switch at := s.turn.Load(); {
		case at == turnIdle && s.turn.CompareAndSwap(turnIdle, turnQueued):
			s.server.queue.push(s)
			return true
		case at == turnRunning && s.turn.CompareAndSwap(turnRunning, turnRepeat):
			return true
		case at == turnQueued, at == turnRepeat:
			return false
		}
	}
}

// end has run end the stream, with a status.
func (s *stream) end(err error) {
	s.ended = true
	s.result <- err
}

// endFor has run end the stream, with a status, unless it ends already. Any goroutine may call it.
func (s *stream) endFor(err error) {
	s.lock.acquire()
	defer s.lock.release()
	if !s.ended {
		s.end(err)
	}
}

// rearm sets the timer for the next look; a zero time is none.
func (s *stream) setTimer(next, now time.Time) {
	if s.timerArmed && next.Equal(s.timerAt) && now.Before(next) {
		return // as nearly always, when all that is to come is the stream's end
	}
	s.timerAt = next
	switch {
	case !next.IsZero() && next != subscription.Forever:
		wait := time.Until(next)
		if wait <= 0 {
			s.wake() // as the timer would, at once
			return
		}
		s.timer.Reset(wait)
		s.timerArmed = true
	case s.timerArmed:
		s.timer.Stop()
		s.timerArmed = false
	}
}

// A herd is a burst of new streams, as after a restart of a fleet or of the relay: at least herdStreams, and a quarter of
// all open streams. It has been served once no stream began and nothing was sent for herdPause.
const (
	herdStreams  = 500
	herdFraction = 4
	herdPause    = 250 * time.Millisecond
)

// arrivals detects when a herd has been served.
type arrivals struct {
	onServed func()                          // called for each herd; may be nil
	turns    func() (taken int64, busy bool) // of the queue
	open     func() int64                    // streams

	mu         sync.Mutex
	newStreams int64       // streams that began since the last herd was served
	lastTurns  int64       // turns at the last check
	timer      *time.Timer // runs while there may be a herd
}

// arrived counts a new stream.
func (a *arrivals) streamStarted() {
	if a.onServed == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch a.newStreams++; {
	case a.newStreams < herdStreams:
	case a.timer == nil:
		a.timer = time.AfterFunc(herdPause, a.check)
	default:
		a.timer.Reset(herdPause)
	}
}

// check calls served if a herd has been served.
func (a *arrivals) check() {
	if a.herdServed() {
		a.onServed()
	}
}

func (a *arrivals) herdServed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.newStreams < max(herdStreams, a.open()/herdFraction) {
		return false
	}
	taken, busy := a.turns()
	if quiet := !busy && taken == a.lastTurns; !quiet {
		a.lastTurns = taken
		a.timer.Reset(herdPause)
		return false
	}
	a.newStreams = 0
	return true
}
