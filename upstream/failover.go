package upstream

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// failuresInARow is how many attempts in a row must fail before an address is left: of one, a restart is the cause.
const failuresInARow = 2

// attempts tell whether to leave the address in use (B.40). That is about the address alone: what one view is told, such as that
// it may not ask, or nothing at all, says nothing about it. Its methods may be called from any goroutine.
type attempts struct {
	mu       sync.Mutex
	answered bool             // a stream had a response since the connection is up
	failures map[any]failures // by who uses the address: the mirror of a view, or the session for load reports
}

// failures are those of one user, in a row.
type failures struct {
	asks        bool      // it has a stream that is answered by responses
	unconnected int       // for want of a connection
	at          time.Time // the last of them
	unavailable int       // of open streams that ended UNAVAILABLE without a response
}

// connected notes that there is a connection.
func (a *attempts) connected() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answered = false
	for by := range a.failures {
		a.failures[by] = failures{asks: a.failures[by].asks}
	}
}

// began notes that a view opens a stream.
func (a *attempts) began(by any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	of := a.failures[by]
	of.asks = true
	a.set(by, of)
}

// responded notes that a stream had a response.
func (a *attempts) responded() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answered = true
}

// unconnected notes that a stream was not opened, since there is no connection, and reports whether to leave the address.
// Streams that fail at once are one attempt.
func (a *attempts) unconnected(by any, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	of := a.failures[by]
	if now.Sub(of.at) < ReconnectMax {
		return false
	}
	of.unconnected, of.at = of.unconnected+1, now
	a.set(by, of)
	return of.unconnected >= failuresInARow
}

// ended notes that a view's stream, which was open, ended without a response, and reports whether to leave the address: a load
// balancer without servers takes connections and ends all streams.
func (a *attempts) ended(by any, err error) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	of := a.failures[by]
	if of.unavailable++; status.Code(err) != codes.Unavailable {
		of.unavailable = 0
	}
	a.set(by, of)
	for _, other := range a.failures {
		if other.asks && other.unavailable < failuresInARow {
			return false
		}
	}
	return !a.answered
}

// set records the failures of a user. The lock must be held.
func (a *attempts) set(by any, of failures) {
	if a.failures == nil {
		a.failures = make(map[any]failures)
	}
	a.failures[by] = of
}

// left forgets a view.
func (a *attempts) left(by any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.failures, by)
}

// failed takes that a user's stream to a target ended without a response, or was not opened, and reports whether to leave the target.
func (s *Session) failed(target int, by any, err error) bool {
	if s.up(target) {
		return s.links[target].attempts.ended(by, err)
	}
	return s.links[target].attempts.unconnected(by, time.Now())
}

// leave moves on to the next address, unless that has been done already.
func (s *Session) leave(target int) {
	s.links[target].reach.failed(time.Now())
	if next := (target + 1) % len(s.conns); s.use(target, next) {
		s.cfg.Logger.Warn("changing to the next address of the origin", slog.String("origin", s.cfg.Targets[next]))
	}
}

// use makes another target the one in use, and reports whether it did: not if that has
// changed meanwhile.
func (s *Session) use(from, to int) bool {
	if from == to || !s.active.CompareAndSwap(int64(from), int64(to)) {
		return false
	}
	s.counters.failovers.Add(1)
	over := make(chan struct{})
	close(*s.changed.Swap(&over))
	return true
}

// moved returns a channel that is closed when another target is next made the one in use.
func (s *Session) moved() <-chan struct{} { return *s.changed.Load() }

// A Place is the address that a stream was opened to.
type Place struct {
	// Moved is closed once another address is in use; nil if there is only one.
	Moved <-chan struct{}

	session *Session
	target  int
}

// Stays reports whether a stream would still be opened there, but for addresses that failed since; and has
// Moved be closed for the next return.
func (at *Place) Stays() bool {
	at.Moved = at.session.moved() // before target, or a change could be missed
	return at.session.target() >= at.target
}

// OpenStream opens a stream of another service at the address in use, and returns where. An address that
// cannot be reached is left for the next one. Errors are gRPC statuses: UNAVAILABLE after 5s.
func (s *Session) OpenStream(ctx context.Context, desc *grpc.StreamDesc, method string) (rpc grpc.ClientStream, at Place, err error) {
	at.session = s
	if len(s.conns) > 1 {
		at.Moved = s.moved() // before target, or a change could be missed
	}
	at.target = s.target()
	own, cancel := context.WithCancel(s.cfg.identified(ctx))
	timeout := time.AfterFunc(openTimeout, cancel)
	rpc, err = s.conns[at.target].NewStream(own, desc, method)
	late := !timeout.Stop()
	if err == nil && !late {
		return rpc, at, nil
	}
	cancel()
	if ctx.Err() == nil && !s.up(at.target) && s.links[at.target].attempts.unconnected(s, time.Now()) {
		s.leave(at.target)
	}
	if late {
		err = status.Errorf(codes.Unavailable, "no stream to the origin within %v", openTimeout)
	}
	return nil, at, err
}
