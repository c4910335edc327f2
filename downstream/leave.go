package downstream

import (
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/downstream/guard"
)

// errDrained stands for the end of a stream that has to end at once.
var errDrained = errors.New("the server drains")

// Drain ends all streams, each at a random moment within spread, and those that begin
// meanwhile: with OK where the client was served, which clients take as a reason to
// connect elsewhere and not as an error. A client that was not waits until all others have
// gone, for its first response; one that came with all that there is was, though it was sent nothing. Held polls are answered within the same time. Drain
// returns once all have ended, and what they reported was passed on.
//
// It may be called again while it runs, with a spread of zero, which ends at once what is
// left.
func (s *Server) Drain(spread time.Duration) {
	s.drain.Do(func() {
		s.drainBy, s.spread = time.Now().Add(spread), spread
		close(s.draining)
	})
	if spread == 0 {
		s.stop.Do(func() { close(s.stopping) })
	}
	s.checkIdle()
	<-s.idle
	s.loads.Wait()
}

// departure returns when one of the streams of a draining server ends.
func (s *Server) departure() time.Time { return s.drainBy.Add(-rand.N(s.spread + 1)) }

// checkIdle notes that a draining server has no stream left. One that comes after
// that ends at once.
func (s *Server) checkIdle() {
	select {
	case <-s.draining:
		if s.streams.Load() == 0 {
			s.idled.Do(func() { close(s.idle) })
		}
	default:
	}
}

// A departure is when a stream ends itself, and why.
type departure struct {
	at  time.Time // zero: it does not
	why guard.Ending
	end time.Time // when it does so even without a response; zero: never
}

// due reports whether it is time.
func (d *departure) due(now time.Time) bool { return !d.at.IsZero() && !now.Before(d.at) }

// depart has the stream end itself, since the server drains.
func (s *stream) depart() {
	s.lock.take()
	s.leave.why, s.leave.end = guard.EndedDrained, s.server.drainBy
	s.leave.at = earlier(s.leave.at, s.server.departure())
	s.lock.leave()
	s.wake()
}

// leaves ends the stream if it is time to: not before the first response, and if that is
// possible not while one is unanswered (B.33). It reports whether there is nothing more
// to send: to a stream that only waits for an answer nothing is.
func (s *stream) leaves(now time.Time) bool {
	if !s.leave.due(now) || !s.satisfied() && (s.leave.end.IsZero() || now.Before(s.leave.end)) {
		return false
	}
	until := s.leave.at.Add(s.cfg.AckWait)
	if s.sent && now.Before(until) && slices.ContainsFunc(s.subs, func(sub *subscription) bool { return sub.blocked(now) }) {
		s.rearm(until, now)
		return true
	}
	s.end(s.closeStatus(s.leave.why))
	return true
}

// leaving returns when to look again, given when there is something else to look for.
func (s *stream) leaving(next, now time.Time) time.Time {
	if s.leave.due(now) {
		return earlier(next, s.leave.end)
	}
	return earlier(next, s.leave.at)
}

// satisfied reports whether the client was sent something, or had all of something that it asked
// for, to which silence is the answer (B.3).
func (s *stream) satisfied() bool {
	return s.sent || slices.ContainsFunc(s.subs, (*subscription).hadAll)
}

// hadAll reports whether the client was found to have all members when it came.
func (s *subscription) hadAll() bool {
	return s.synced || s.begunAll && s.knownN > 0 || slices.ContainsFunc(s.globs, (*subscription).hadAll)
}

// closeStatus ends the stream as its client likes it best: when it was served, OK is no
// error to it; before, it must not think that it was (R134).
func (s *stream) closeStatus(why guard.Ending) error {
	if s.satisfied() {
		return guard.Ended(why, codes.OK, "")
	}
	return guard.Ended(why, codes.Unavailable, "the relay is shutting down")
}
