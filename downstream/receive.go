package downstream

import (
	"cmp"
	"math"
	"time"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
)

// maxWaiting is how many requests of a stream may wait for its turn, and manyNames how many names one of them may have.
// If a client sends more, its receiver handles them: a worker would keep the next streams waiting.
const (
	maxWaiting = 8
	manyNames  = 1000
)

// A waiting request is handled in the stream's turn.
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
		done := s.awaitShare(r)
		var wait time.Duration
		more, wait = s.received(r, who, err)
		done()
		if wait > 0 {
			s.server.throttled.Add(1)
			select {
			case <-time.After(wait):
			case <-s.rpc.Context().Done():
			}
		}
	}
}

// awaitShare waits for its peer's share of time if a request subscribes to more than manyNames names that the
// client's node group does not know: a client can invent names faster than the relay can subscribe to them (B.35).
// Names that the group knows cost little, so a fleet behind one address does not wait. The receiver calls awaitShare
// without the stream's lock, and done once the request was handled.
func (s *stream) awaitShare(r *wire.Request) (done func()) {
	done = func() {}
	if len(r.Subscribe) <= manyNames || s.introduced.view == nil || s.introduced.view.Unknown(r.TypeURL, r.Subscribe, manyNames) <= manyNames {
		return done
	}
	ctx := s.rpc.Context()
	if turn, err := s.server.guard.Turn(ctx, s.cfg.PeerName(guard.PeerOf(ctx)), math.MaxInt); err == nil {
		done = turn
	}
	return done
}

// received takes a request and the identity that it introduces, or the end of the client's side. It reports whether
// more may come, and how long to wait before reading it, if the client is over its rate limit. A request that only
// answers a response is handled at once. Any other waits for the stream's turn: handling it makes a goroutine's stack
// grow to 8 KiB for good, and each stream has a receiver. Those that wait are answered together, by the newest of
// each type (R034).
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

// awaited reports whether a request is the answer to a response, which does not count against the rate limit.
func (s *stream) awaited(r *wire.Request) bool {
	sub := s.of(cmp.Or(r.TypeURL, s.typeURL))
	return sub != nil && sub.Answers(r)
}

// answers reports whether a request changes no names and refuses nothing.
func (s *stream) answers(r *wire.Request) bool {
	sub := s.of(cmp.Or(r.TypeURL, s.typeURL))
	return sub != nil && r.Err == nil && !r.Refused && sub.Repeats(r)
}

// answered handles a request that changes no names.
func (s *stream) answered(r *wire.Request, who *identity, now time.Time) {
	err := s.handle(r, who, now)
	s.account.Release(r.Size)
	if err != nil {
		s.end(err)
		return
	}
	if s.leave.due(now) || !s.idle { // else nothing waits for it, and what changes wakes the stream
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

// noMore records that the client's side has ended. A client that only closed it is still answered.
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
