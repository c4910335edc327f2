package upstream

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/connectivity"
)

// Which of several targets is in use changes when a stream to it fails. Back to an earlier
// one the way is slow: it must have been reachable for a while (B.40). That is found out by
// a connection that is kept to it beside the one in use, since nothing less shows that
// somebody speaks HTTP/2 there.

const (
	// returnAfter is how long a target must have been reachable before the relay returns to
	// it, and lookBackEvery how often that is looked at.
	returnAfter   = 10 * time.Minute
	lookBackEvery = 5 * time.Second

	// lasting is how long a connection must have lasted for its end to be no break: servers
	// end those that carry nothing.
	lasting = time.Minute
)

// A reach is since when a target could be reached without a break. Its methods may be
// called from any goroutine, but for saw.
type reach struct {
	since atomic.Pointer[time.Time] // nil: it cannot

	readyAt time.Time // of watch: when the connection that is there came to be
}

// saw takes a state of the connection to the target. It belongs to watch.
func (r *reach) saw(state connectivity.State, now time.Time) {
	switch state {
	case connectivity.Ready:
		r.readyAt = now
		r.since.CompareAndSwap(nil, &now)
	case connectivity.TransientFailure:
		r.since.Store(nil)
	default:
		if !r.readyAt.IsZero() && now.Sub(r.readyAt) < lasting {
			r.since.Store(nil)
		}
		r.readyAt = time.Time{}
	}
}

// failed takes that a stream to the target failed, whatever its connection.
func (r *reach) failed(now time.Time) {
	if r.since.Load() != nil {
		r.since.Store(&now)
	}
}

// steady reports whether the target could be reached for long enough to return to it.
func (r *reach) steady(now time.Time) bool {
	since := r.since.Load()
	return since != nil && now.Sub(*since) >= returnAfter
}

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
		s.cfg.Logger.Info("returning to an earlier address of the origin, which has been reachable long enough",
			slog.String("origin", s.cfg.Targets[i]), slog.Duration("reachable", returnAfter))
		return
	}
}
