package downstream

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

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

	turn func(*stream) (sent bool) // [stream.takeTurn]
}

// patience is how many turns of served streams may pass before a new stream has one.
const patience = 8

// A line holds streams in the order in which they came.
type line struct {
	streams []*stream // from next on
	next    int
}

func (l *line) size() int { return len(l.streams) - l.next }

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
	switch served, newcomers := q.served.size() > 0, q.newcomers.size() > 0; {
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
	return q.newcomers.size()
}

// taken returns how many turns have ended, and whether a stream waits for one or has it.
func (q *queue) taken() (turns int64, busy bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.turns, q.workers > 0
}

func (q *queue) work() {
	for s := q.pop(false, false); s != nil; {
		s = q.pop(true, q.turn(s))
	}
}

const (
	resting uint32 = iota // until something happens
	queued
	taken // somebody sends what there is to send
	again // the same, and meanwhile something happened
)

// A turn is the state of a stream in the queue. Only one goroutine at a time looks at what a stream has to send, and none
// waits for another to do so.
type turn struct{ atomic.Uint32 }

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

// peek takes the lock to read what it guards, but does not wait for a client that does not
// read: who has lent the lock changes nothing until it is given back, which leave lets it.
func (l *lock) peek() (stalled bool) {
	l.mu.Lock()
	return l.lent != nil
}

// wake gives the stream a turn. It may be called from anywhere.
func (s *stream) wake() { s.turned() }

// changed wakes the stream since something that it watches has changed.
func (s *stream) changed() {
	if !s.turned() {
		s.server.coalesced.Add(1)
	}
}

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

// A herd is many streams that begin together, as when a fleet or its relay restarts: at least herdStreams, and a quarter
// of all that are open. It has been served once no stream began and nothing was sent for herdPause.
const (
	herdStreams  = 500
	herdFraction = 4
	herdPause    = 250 * time.Millisecond
)

// arrivals says when a herd has been served.
type arrivals struct {
	served func()                          // called for each herd; nil if nobody wants to know
	turns  func() (taken int64, busy bool) // of the queue
	open   func() int64                    // streams

	mu    sync.Mutex
	fresh int64       // streams that came since the last herd was served
	taken int64       // turns, when last looked at
	timer *time.Timer // runs while there may be a herd
}

// arrived counts a stream that begins.
func (a *arrivals) arrived() {
	if a.served == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch a.fresh++; {
	case a.fresh < herdStreams:
	case a.timer == nil:
		a.timer = time.AfterFunc(herdPause, a.check)
	default:
		a.timer.Reset(herdPause)
	}
}

// check calls served if a herd has been served.
func (a *arrivals) check() {
	if a.herdServed() {
		a.served()
	}
}

func (a *arrivals) herdServed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fresh < max(herdStreams, a.open()/herdFraction) {
		return false
	}
	taken, busy := a.turns()
	if quiet := !busy && taken == a.taken; !quiet {
		a.taken = taken
		a.timer.Reset(herdPause)
		return false
	}
	a.fresh = 0
	return true
}
