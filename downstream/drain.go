package downstream

import (
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/downstream/subscription"
)

// errDrained ends a stream at once.
var errDrained = errors.New("the server drains")

// Drain ends all streams, also new ones, each at a random time within spread. Streams that were served end with OK,
// which clients take as a reason to connect elsewhere and not as an error; a client that was already up to date counts
// as served. Others wait for their first response, at most until all others have ended. Held polls are answered within
// the same time. Drain returns once all streams have ended and their load reports were passed on.
//
// Drain may be called again meanwhile with a spread of zero, which ends all remaining streams at once.
func (s *Server) Drain(spread time.Duration) {
	s.drainOnce.Do(func() {
		s.drainBy, s.drainSpread = time.Now().Add(spread), spread
		close(s.draining)
	})
	if spread == 0 {
		s.stopOnce.Do(func() { close(s.stopping) })
	}
	s.checkIdle()
	<-s.idle
	s.loads.Wait()
}

// departure returns a random time at which a stream of a draining server ends.
func (s *Server) randomEndTime() time.Time { return s.drainBy.Add(-rand.N(s.drainSpread + 1)) }

// checkIdle closes idle once a draining server has no stream left. Streams that begin after that end at once.
func (s *Server) checkIdle() {
	select {
	case <-s.draining:
		if s.streams.Load() == 0 {
			s.idleOnce.Do(func() { close(s.idle) })
		}
	default:
	}
}

// A departure is the time at which a stream ends itself, and the reason.
type scheduledEnd struct {
	at       time.Time // zero: never
	reason   guard.Ending
	deadline time.Time // when the stream ends even without a response; zero: never
}

// due reports whether the time has come.
func (d *scheduledEnd) due(now time.Time) bool { return !d.at.IsZero() && !now.Before(d.at) }

// depart has the stream end itself, because the server drains.
func (s *stream) scheduleDrain() {
	s.lock.acquire()
	s.scheduledEnd.reason, s.scheduledEnd.deadline = guard.EndedDrained, s.server.drainBy
	s.scheduledEnd.at = subscription.Earlier(s.scheduledEnd.at, s.server.randomEndTime())
	s.lock.release()
	s.wake()
}

// leaves ends the stream if its time has come: not before the first response, and if possible not while a response is
// unanswered (B.33). It reports whether nothing more must be sent: a stream that only waits for an answer is sent
// nothing.
func (s *stream) endIfDue(now time.Time) bool {
	if !s.scheduledEnd.due(now) || !s.satisfied() && (s.scheduledEnd.deadline.IsZero() ||
		now.Before(s.scheduledEnd.deadline)) {
		return false
	}
	until := s.scheduledEnd.at.Add(s.cfg.AckWait)
	if s.sent && now.Before(until) && slices.ContainsFunc(s.subs,
		func(sub *subscription.Subscription) bool { return sub.Blocked(now) }) {
		s.setTimer(until, now)
		return true
	}
	s.end(s.closeStatus(s.scheduledEnd.reason))
	return true
}

// leaving returns the time of the next look, which is next or earlier.
func (s *stream) nextCheck(next, now time.Time) time.Time {
	if s.scheduledEnd.due(now) {
		return subscription.Earlier(next, s.scheduledEnd.deadline)
	}
	return subscription.Earlier(next, s.scheduledEnd.at)
}

// satisfied reports whether the client was sent a response, or was already up to date with something that it requested
// (B.3).
func (s *stream) satisfied() bool {
	return s.sent || slices.ContainsFunc(s.subs, (*subscription.Subscription).HasWildcardSet)
}

// closeStatus returns the status of a stream that ends itself: OK if the client was served. Otherwise it is an error, so
// that the client does not take itself for served (R134).
func (s *stream) closeStatus(why guard.Ending) error {
	if s.satisfied() {
		return guard.Ended(why, codes.OK, "")
	}
	return guard.Ended(why, codes.Unavailable, "the relay is shutting down")
}

// closing reports whether a client that has closed its side was answered, or has waited for TENDER_COLD_WAIT. If not, it
// returns when to look again.
func (s *stream) answeredAfterClose(next time.Time) (until time.Time, over bool) {
	if s.clientClosedAt.IsZero() {
		return next, false
	}
	until = s.clientClosedAt.Add(s.cfg.ColdWait)
	return subscription.Earlier(next, until), !s.awaitsFirstResponse() || !time.Now().Before(until)
}

// left reports whether the client ended the stream, or its connection was lost, and the relay did not cause that by a
// drain, by the maximum age of a connection or by a limit. gRPC reports a connection that a limit closed as lost.
func (s *stream) clientDisconnected(err error) bool {
	select {
	case <-s.server.draining:
		return false
	default:
		return guard.ByClient(err) && !s.scheduledEnd.due(time.Now()) && !s.account.Rejected()
	}
}
