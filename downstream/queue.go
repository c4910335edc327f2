package downstream

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/xdstender/tender/downstream/subscription"
)

// A queue holds the streams that may have something to send. A few workers serve them. Waking a goroutine per stream
// for each delivery would cost half as much CPU as the transport.
//
// Newcomers, which are streams that were sent no response yet, and streams with a request of many names wait in
// separate lines, one for each peer, which take turns. Their turns are long. Many of them at once must delay neither
// changes for the other streams, nor the newcomers of other peers (B.35).
type queue struct {
	mu          sync.Mutex
	served      fifo[*stream]
	newcomers   peerLines
	servedTurns int // turns of served streams since the last turn of a newcomer
	workers     int // running workers; they exit when the queue is empty
	maxWorkers  int // set by the first worker, because reading GOMAXPROCS takes a lock of the runtime

	turns     int64 // turns that have ended
	idleTurns int64 // those in which nothing was sent

	runTurn func(*stream) (sent bool) // [stream.takeTurn], which reports whether a response was sent
}

// turnsPerNewcomer is how many turns served streams get for each turn of a newcomer while both wait.
const turnsPerNewcomer = 8

// A fifo is a first-in, first-out queue.
type fifo[E any] struct {
	waiting []E // from index next on; zero before
	next    int
}

func (l *fifo[E]) size() int { return len(l.waiting) - l.next }

func (l *fifo[E]) push(e E) {
	if len(l.waiting) == cap(l.waiting) && l.next > len(l.waiting)/2 {
		// Under load the queue may never become empty, so move what waits to the front.
		n := copy(l.waiting, l.waiting[l.next:])
		clear(l.waiting[n:])
		l.waiting, l.next = l.waiting[:n], 0
	}
	l.waiting = append(l.waiting, e)
}

func (l *fifo[E]) pop() E {
	var zero E
	e := l.waiting[l.next]
	l.waiting[l.next] = zero
	if l.next++; l.next == len(l.waiting) {
		l.waiting, l.next = l.waiting[:0], 0
	}
	return e
}

// peerLines are queues of streams, one for each peer. The peers take turns, so that one with many streams does not
// delay the others.
type peerLines struct {
	lines map[string]*fifo[*stream] // by peer; none is empty
	peers fifo[string]              // those with a line, in the order of their turns
	all   int                       // number of streams
}

func (l *peerLines) size() int { return l.all }

func (l *peerLines) push(s *stream) {
	line := l.lines[s.peer]
	if line == nil {
		if l.lines == nil {
			l.lines = make(map[string]*fifo[*stream])
		}
		line = new(fifo[*stream])
		l.lines[s.peer] = line
		l.peers.push(s.peer)
	}
	line.push(s)
	l.all++
}

func (l *peerLines) pop() *stream {
	peer := l.peers.pop()
	line := l.lines[peer]
	s := line.pop()
	if line.size() > 0 {
		l.peers.push(peer)
	} else {
		delete(l.lines, peer)
	}
	l.all--
	return s
}

// push queues a stream, and starts a worker if there are fewer than GOMAXPROCS.
func (q *queue) push(s *stream) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if s.served.Load() && !s.asksMany.Load() {
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

// pop returns the next stream. It returns nil if the queue is empty; the worker must then exit. afterTurn is set if the
// worker has just ended a turn, and sent if that turn sent a response. One call does both, to take the lock once.
func (q *queue) pop(afterTurn, sent bool) *stream {
	q.mu.Lock()
	defer q.mu.Unlock()
	if afterTurn {
		q.turns++
	}
	if afterTurn && !sent {
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

// newcomerCount returns the number of queued streams that were sent no response yet, or have a request of many names.
func (q *queue) newcomerCount() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.newcomers.size()
}

// unflushedTurns is how many turns of served streams a worker takes before it flushes what they have sent. So several
// streams of one connection are written at once.
const unflushedTurns = 16

// work serves streams until the queue is empty. It flushes at the latest before a newcomer, whose turn may be long.
func (q *queue) work() {
	var sending [unflushedTurns]*stream
	waiting := 0
	flush := func() {
		for _, s := range sending[:waiting] {
			s.rpc.Flush()
		}
		waiting = 0
	}
	defer flush()
	for s := q.pop(false, false); s != nil; {
		if waiting == unflushedTurns || !s.served.Load() {
			flush()
		}
		sent := q.runTurn(s)
		if sent {
			sending[waiting] = s
			waiting++
		}
		s = q.pop(true, sent)
	}
}

const (
	// The values of a turnState.
	turnIdle    uint32 = iota // not queued
	turnQueued                // in the queue
	turnRunning               // a goroutine sends what is due
	turnRepeat                // the same, and the stream was woken since: it is queued again after the turn
)

// A turnState is the state of a stream in the queue. At most one goroutine at a time runs the turn of a stream, and no
// goroutine waits for a turn to end.
type turnState struct{ atomic.Uint32 }

// A lock is a mutex whose holder can lend it: the holder keeps exclusive use while it waits for the client to read,
// other goroutines that acquire the lock wait on a channel, and peek can still read the guarded state.
type lock struct {
	mu   sync.Mutex
	lent chan struct{} // closed by reclaim; nil if the lock is not lent
}

// acquire locks mu. It waits while the lock is lent, which may take as long as SendStall.
func (l *lock) acquire() {
	l.mu.Lock()
	for l.lent != nil {
		lent := l.lent
		l.mu.Unlock()
		<-lent
		l.mu.Lock()
	}
}

// tryAcquire is acquire if that need not wait. It reports whether it has locked mu.
func (l *lock) tryAcquire() bool {
	if !l.mu.TryLock() {
		return false
	}
	if l.lent != nil {
		l.mu.Unlock()
		return false
	}
	return true
}

// release unlocks mu after acquire, tryAcquire or peek.
func (l *lock) release() { l.mu.Unlock() }

// lend unlocks mu, but acquire blocks until reclaim. The caller holds the lock, and may change the guarded state only
// after reclaim.
func (l *lock) lend() {
	l.lent = make(chan struct{})
	l.mu.Unlock()
}

// reclaim ends lend. The caller holds the lock again.
func (l *lock) reclaim() {
	l.mu.Lock()
	close(l.lent)
	l.lent = nil
}

// peek locks mu without waiting for a stalled send, and reports whether there is one. The caller must only read the
// guarded state, and must call release.
func (l *lock) peek() (stalled bool) {
	l.mu.Lock()
	return l.lent != nil
}

// wake requests a turn for the stream. It may be called from any goroutine.
func (s *stream) wake() { s.requestTurn() }

// resourceChanged wakes the stream after a change of a resource that it watches. It counts the change as coalesced if
// the stream waits for a turn already.
func (s *stream) resourceChanged() {
	if !s.requestTurn() {
		s.server.coalesced.Add(1)
	}
}

// requestTurn requests a turn for the stream. It returns false if a turn was already requested and has not started.
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

// end sets the status with which the stream ends. The caller holds the lock and has checked that the stream has not
// ended.
func (s *stream) end(err error) {
	s.ended = true
	s.result <- err
	if s.conclude != nil {
		go s.conclude() // waits for the lock
	}
}

// endFor ends the stream with a status, unless it has ended. It may be called from any goroutine.
func (s *stream) endFor(err error) {
	s.lock.acquire()
	defer s.lock.release()
	if !s.ended {
		s.end(err)
	}
}

// setTimer sets the timer to wake the stream at next. It stops the timer if next is zero or [subscription.Forever].
func (s *stream) setTimer(next, now time.Time) {
	if s.timerArmed && next.Equal(s.timerAt) && now.Before(next) {
		return // the usual case: only the scheduled end is to come
	}
	s.timerAt = next
	switch {
	case !next.IsZero() && next != subscription.Forever:
		wait := time.Until(next)
		if wait <= 0 {
			s.wake() // the timer would fire immediately
			return
		}
		s.timer.Reset(wait)
		s.timerArmed = true
	case s.timerArmed:
		s.timer.Stop()
		s.timerArmed = false
	}
}
