package downstream

import (
	"cmp"
	"context"
	"time"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
)

// maxWaiting is how many requests of a stream may wait for its turn, and manyNames how
// many names one of them may have. The receiver handles those of a client that sends
// more, which would hold up the streams that are next.
const (
	maxWaiting = 8
	manyNames  = 1000
)

// A waiting request is to be handled when it is the stream's turn.
type waiting struct {
	wire.Request
	from *identity // whom it introduces; nil if nobody
}

// receive takes requests until the client closes its side or the stream ends.
func (s *stream) receive() {
	r := new(wire.Request)
	limits := s.cfg.limits(s.account)
	limits.Latest = new(wire.LatestNames)
	for more := true; more; {
		*r = wire.Request{Delta: s.delta, Limits: limits}
		err := s.rpc.RecvMsg(r)
		var who *identity
		if err == nil {
			who = s.introduce(r)
		}
		var wait time.Duration
		if more, wait = s.received(r, who, err); wait > 0 {
			s.server.throttled.Add(1)
			sleep(s.rpc.Context(), wait)
		}
	}
}

// sleep waits, but not longer than ctx lasts.
func sleep(ctx context.Context, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// received takes a request and whom it introduces, or the end of the client's side, and reports whether there
// may be more, and when: of a client that sends more than it may, the rest stays with it
// until then. One that only answers a response is handled at once. Any other waits for
// the stream's turn, since what it takes to handle one makes a goroutine's stack grow to
// 8 KiB for good, and each stream has a receiver; those that wait are answered together,
// by the newest one of each type (R034).
func (s *stream) received(r *wire.Request, who *identity, err error) (more bool, wait time.Duration) {
	s.lock.take()
	defer s.lock.leave()
	now := time.Now()
	if err == nil && !s.awaited(r) {
		wait = s.pace.ReserveN(now, 1).DelayFrom(now)
	}
	switch {
	case s.ended:
		s.account.Release(r.Size)
		who.drop()
	case err != nil:
		s.handleWaiting(now)
		s.noMore(guard.ReceiveStatus(err), now)
	case len(s.waiting) == 0 && s.answers(r):
		s.answered(r, who, now)
	default:
		s.waiting = append(s.waiting, &waiting{*r, who})
		if len(s.waiting) > maxWaiting || len(r.Subscribe)+len(r.Unsubscribe)+len(r.InitialVersions) > manyNames {
			s.handleWaiting(now)
		}
		s.wake()
	}
	return err == nil && !s.ended, wait
}

// awaited reports whether a request is the answer to a response, which the relay itself
// has caused.
func (s *stream) awaited(r *wire.Request) bool {
	sub := s.of(cmp.Or(r.TypeURL, s.typeURL))
	return sub != nil && sub.pending && (sub.answers(r) || sub.earlier.find(r) >= 0)
}

// answers reports whether a request accepts a response, or answers none, and asks for
// nothing.
func (s *stream) answers(r *wire.Request) bool {
	sub := s.of(cmp.Or(r.TypeURL, s.typeURL))
	return sub != nil && r.Err == nil && !r.Refused && sub.repeats(r)
}

// answered handles a request that asks for nothing.
func (s *stream) answered(r *wire.Request, who *identity, now time.Time) {
	err := s.handle(r, who, now)
	s.account.Release(r.Size)
	if err != nil {
		s.end(err)
		return
	}
	if s.leave.due(now) || !s.rested { // else nothing waits for it, and what changes wakes the stream
		s.wake()
	}
}

// handleWaiting handles the requests that wait, unless the stream ends.
func (s *stream) handleWaiting(now time.Time) {
	for _, r := range s.waiting {
		if s.ended {
			r.from.drop()
		} else if err := s.handle(&r.Request, r.from, now); err != nil {
			s.end(err)
		}
		s.account.Release(r.Size)
	}
	s.waiting = nil
}

// noMore takes how the client's side ended. Who has only closed it is still answered.
func (s *stream) noMore(err error, now time.Time) {
	switch {
	case s.ended:
	case err != nil || s.watch == nil:
		s.end(err)
	default:
		s.closed = now
		s.wake()
	}
}
