package upstream

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
)

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

// A Failure is an error and when it was.
type Failure struct {
	Err error
	At  time.Time
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

// watch follows the connection to a target until that is closed for good.
func (s *Session) watch(target int, conn *grpc.ClientConn) {
	l, c := &s.links[target], &s.counters
	for state := conn.GetState(); state != connectivity.Shutdown; state = conn.GetState() {
		l.reach.saw(state, time.Now())
		switch was, _ := l.standing(); {
		case !was && state == connectivity.Ready:
			l.stood.Store(&standing{true, time.Now()})
			l.attempts.connected()
			c.connected.Add(1)
		case was && state != connectivity.Ready:
			l.stood.Store(&standing{false, time.Now()})
			c.lost.Add(1)
		}
		conn.WaitForStateChange(context.Background(), state) // which Shutdown is
	}
}
