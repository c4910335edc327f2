package downstream

import (
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/downstream/subscription"
)

// Drain ends all streams, including new ones, each at a random time within spread. Streams that were served end with
// OK, so that clients connect elsewhere without reporting an error; a client that was already up to date counts as
// served. Other streams wait for their first response, until the end of spread at the latest. Held polls are answered
// within the same time. Drain returns when all streams have ended and their load reports were forwarded.
//
// Drain may be called again meanwhile with a spread of zero, which ends the remaining streams immediately.
func (s *Server) Drain(spread time.Duration) {
	s.drainOnce.Do(func() {
		s.drainBy, s.drainSpread = time.Now().Add(spread), spread
		close(s.draining)
		s.eachStream((*stream).scheduleDrain)
	})
	if spread == 0 {
		s.stopOnce.Do(func() {
			close(s.stopping)
			s.eachStream((*stream).stop)
		})
	}
	s.checkIdle()
	<-s.idle
	s.loads.Wait()
}

// randomEndTime returns a random time within the spread, at which a stream of a draining server ends.
func (s *Server) randomEndTime() time.Time { return s.drainBy.Add(-rand.N(s.drainSpread + 1)) }

// checkIdle closes idle once a draining server has no stream left. Later streams end immediately.
func (s *Server) checkIdle() {
	select {
	case <-s.draining:
		if s.streams.Load() == 0 {
			s.idleOnce.Do(func() { close(s.idle) })
		}
	default:
	}
}

// A scheduledEnd is the time at which the relay ends a stream, and the reason.
type scheduledEnd struct {
	at       time.Time // zero: never
	reason   guard.Ending
	deadline time.Time // when the stream ends even without a first response; zero: never
}

// due reports whether the time has come.
func (d *scheduledEnd) due(now time.Time) bool { return !d.at.IsZero() && !now.Before(d.at) }

// scheduleDrain schedules the end of the stream, because the server drains.
func (s *stream) scheduleDrain() {
	s.lock.acquire()
	s.scheduledEnd.reason, s.scheduledEnd.deadline = guard.EndedDrained, s.server.drainBy
	s.scheduledEnd.at = subscription.Earlier(s.scheduledEnd.at, s.server.randomEndTime())
	s.lock.release()
	s.wake()
}

// stop ends the stream immediately, because the server stops.
func (s *stream) stop() {
	s.lock.acquire()
	defer s.lock.release()
	if !s.ended {
		s.end(s.closeStatus(guard.EndedDrained))
	}
}

// endIfDue ends the stream at its scheduled time: not before the first response, and if possible not while a response
// is unanswered (B.33). It reports whether nothing more may be sent. That is also true while the stream only waits for
// an answer.
func (s *stream) endIfDue(now time.Time) bool {
	end := &s.scheduledEnd
	mayWait := end.deadline.IsZero() || now.Before(end.deadline)
	if !end.due(now) || !s.satisfied() && mayWait {
		return false
	}
	awaitsAnswer := slices.ContainsFunc(s.subs, func(sub *subscription.Subscription) bool { return sub.Blocked(now) })
	if until := end.at.Add(s.cfg.AckWait); s.sent && now.Before(until) && awaitsAnswer {
		s.setTimer(until, now)
		return true
	}
	s.end(s.closeStatus(end.reason))
	return true
}

// nextCheck returns the earlier of next and the scheduled end.
func (s *stream) nextCheck(next, now time.Time) time.Time {
	if s.scheduledEnd.due(now) {
		return subscription.Earlier(next, s.scheduledEnd.deadline)
	}
	return subscription.Earlier(next, s.scheduledEnd.at)
}

// satisfied reports whether the client was sent a response, or reported that it already holds a wildcard set that is
// current (B.3).
func (s *stream) satisfied() bool {
	return s.sent || slices.ContainsFunc(s.subs, (*subscription.Subscription).HasWildcardSet)
}

// closeStatus returns the status of a stream that the relay ends: OK if the client was served. Otherwise it is an
// error, so that the client does not consider itself served (R134).
func (s *stream) closeStatus(why guard.Ending) error {
	if s.satisfied() {
		return guard.Ended(why, codes.OK, "")
	}
	return guard.Ended(why, codes.Unavailable, "the relay is shutting down")
}

// answeredAfterClose reports whether the client has half-closed the stream and either was answered or has waited for
// TENDER_COLD_WAIT. Otherwise it returns when to check again.
func (s *stream) answeredAfterClose(next time.Time) (until time.Time, done bool) {
	if s.clientClosedAt.IsZero() {
		return next, false
	}
	until = s.clientClosedAt.Add(s.cfg.ColdWait)
	return subscription.Earlier(next, until), !s.awaitsFirstResponse() || !time.Now().Before(until)
}

// clientDisconnected reports whether the client ended the stream or its connection was lost, and not because of a
// drain, the maximum age of the connection, or a limit. gRPC reports a connection that the guard closed for a limit as
// lost.
func (s *stream) clientDisconnected(err error) bool {
	select {
	case <-s.server.draining:
		return false
	default:
		return guard.ByClient(err) && !s.scheduledEnd.due(time.Now()) && !s.account.Refused()
	}
}
