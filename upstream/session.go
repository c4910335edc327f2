package upstream

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
)

// A Session is the connection to one origin. Its methods may be called from any
// goroutine.
type Session struct {
	cfg    Config
	conns  []*grpc.ClientConn // one for each target; those after the one in use are idle, until they were used
	active atomic.Int64       // index of the target in use

	toldNoDelta []atomic.Bool // of each target

	auditing  chan struct{} // one slot, taken by the audit that is made
	comparing chan struct{} // one slot, taken by the view whose content is compared

	counters counters
	pace     *streamPace

	links    []link                        // what is known of each target's connection
	failure  atomic.Pointer[Failure]       // the last one; nil if there was none
	changed  atomic.Pointer[chan struct{}] // see moved
	end      context.CancelFunc            // of lookBack
	watching sync.WaitGroup                // for watch and lookBack
}

// Connect begins to connect before anybody asks for anything.
func (s *Session) Connect() { s.conns[s.target()].Connect() }

// up reports whether the connection to a target is up.
func (s *Session) up(target int) bool { return s.conns[target].GetState() == connectivity.Ready }

// Close ends the connection. Syncs must have ended.
func (s *Session) Close() error {
	var errs []error
	for _, conn := range s.conns {
		errs = append(errs, conn.Close())
	}
	s.end()
	s.watching.Wait()
	return errors.Join(errs...)
}

// target returns the index of the target in use.
func (s *Session) target() int { return int(s.active.Load()) }

// tellNoDelta logs, once, that a target does not implement Delta.
func (s *Session) tellNoDelta(target int) {
	if s.toldNoDelta[target].CompareAndSwap(false, true) {
		s.cfg.Logger.Info("origin does not implement Delta ADS: using SotW", slog.String("origin", s.cfg.Targets[target]))
	}
}

// A link is what is known of the connection to a target.
type link struct {
	stood    atomic.Pointer[standing] // nil before the first connection
	reach    reach
	attempts attempts
}

type standing struct {
	up    bool
	since time.Time
}

func (l *link) standing() (up bool, since time.Time) {
	if s := l.stood.Load(); s != nil {
		return s.up, s.since
	}
	return false, time.Time{}
}

// A Failure is an error and when it was.
type Failure struct {
	Err error
	At  time.Time
}

// A Status says how an origin stands.
type Status struct {
	Targets []TargetStatus // in the order of failover

	// Connected reports whether there is a connection to the active target, Since when
	// that last changed; zero if there never was one.
	Connected bool
	Since     time.Time

	// Held is of how many resources the removal is held back (B.15).
	Held int

	// Waiting is how many streams views would open, and may not yet (Config.StreamRate).
	Waiting int

	// Failure is why a stream to the origin, or the attempt to open one, ended last. It
	// is zero if none did for a reason worth telling.
	Failure Failure
}

// A TargetStatus says how the connection to one target of an origin stands.
type TargetStatus struct {
	Target string
	Active bool // the one in use
	State  connectivity.State
}

// Status returns how the origin stands now.
func (s *Session) Status() Status {
	active := s.target()
	status := Status{Held: int(s.counters.Holding.Load()), Waiting: s.pace.wait()}
	for i, conn := range s.conns {
		status.Targets = append(status.Targets, TargetStatus{Target: s.cfg.Targets[i], Active: i == active, State: conn.GetState()})
	}
	status.Connected, status.Since = s.links[active].standing()
	if f := s.failure.Load(); f != nil {
		status.Failure = *f
	}
	return status
}

// noteEnd counts a stream that ended, and records why unless that was as it should be.
func (s *Session) noteEnd(err error) {
	s.counters.streamEnded(err)
	if err == nil || errors.Is(err, errResync) || errors.Is(err, context.Canceled) || errors.Is(err, io.EOF) {
		return
	}
	s.failure.Store(&Failure{err, time.Now()})
}

// watch follows the connection to a target until that is closed for good.
func (s *Session) watch(target int, conn *grpc.ClientConn) {
	l, c := &s.links[target], &s.counters
	for state := conn.GetState(); state != connectivity.Shutdown; state = conn.GetState() {
		l.reach.saw(state, time.Now())
		switch was, _ := l.standing(); {
		case !was && state == connectivity.Ready:
			l.stood.Store(&standing{true, time.Now()})
			l.attempts.connected()
			c.count(func(s *Stats) { s.Connected++ })
		case was && state != connectivity.Ready:
			l.stood.Store(&standing{false, time.Now()})
			c.count(func(s *Stats) { s.Lost++ })
		}
		conn.WaitForStateChange(context.Background(), state) // which Shutdown is
	}
}

// Stats returns what was done about the origin.
func (s *Session) Stats() Stats { return s.counters.read() }
