package upstream

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

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
		s.cfg.Logger.Warn("origin failover to the next address", slog.String("origin", s.cfg.Targets[next]))
	}
}

// use makes another target the one in use, and reports whether it did: not if that has
// changed meanwhile.
func (s *Session) use(from, to int) bool {
	if from == to || !s.active.CompareAndSwap(int64(from), int64(to)) {
		return false
	}
	s.counters.count(func(s *Stats) { s.Failovers++ })
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

// Which of several targets is in use changes when a stream to it fails. Back to an earlier
// one the way is slow: it must have been reachable for a while (B.40). That is found out by
// a connection that is kept to it beside the one in use, since nothing less shows that
// somebody speaks HTTP/2 there.

// lookBack returns to earlier targets until ctx ends.
func (s *Session) lookBack(ctx context.Context) {
	ticker := time.NewTicker(lookBackEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			s.tryEarlier(time.Now())
		case <-ctx.Done():
			return
		}
	}
}

// tryEarlier keeps connected to the targets before the one in use, and makes the first of
// them that is steady the one in use.
func (s *Session) tryEarlier(now time.Time) {
	active := s.target()
	for i := range active {
		s.conns[i].Connect() // if it is idle
		if !s.up(i) || !s.links[i].reach.steady(now) || !s.use(active, i) {
			continue
		}
		s.cfg.Logger.Info("returning to an earlier origin address that is reachable again",
			slog.String("origin", s.cfg.Targets[i]), slog.Duration("reachable", returnAfter))
		return
	}
}
