package subscription

import (
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// A state is a subscription without its globs: what the client wants, what it holds and was sent, and the conversation.
type state struct {
	Traits
	*Client
	*Conversation
	want
	held
	sent
	errors pendingErrors

	Key       string    // of the type in the cache: its URL, or a collection
	wrap      wire.Wrap // SotW: which resources go in their Resource message (B.19)
	sendsTTLs bool      // the client is sent how long resources live (R104)
}

// sendsSets reports whether each response holds the complete set.
func (s *state) sendsSets() bool { return !s.Delta && s.FullState }

// position returns up to where the client was sent changes.
func (s *state) position() cache.Seq {
	if s.wildcard != nil {
		return s.sentUpTo
	}
	return s.scannedUpTo
}

// returning reports whether the client may hold what a complete set would lack.
func (s *state) returning() bool { return s.sendsSets() && s.initialVersion != "" }

// subscribeAll subscribes to the wildcard set.
func (s *state) subscribeAll() {
	if s.wildcard == nil {
		s.wildcard = s.Watch.SubscribeAll(s.Key)
		s.startAll()
		s.errors.wildcardAsked = true
	}
}

// unsubscribeAll unsubscribes from the wildcard set.
func (s *state) unsubscribeAll() {
	if s.wildcard != nil {
		s.Watch.UnsubscribeAll(s.wildcard)
		s.wildcard, s.initialVersions = nil, nil
		s.stopAll()
		s.closeReport()
	}
}

// OvertakenAt returns when types that refer to what the client was not sent may be sent nevertheless: not while a
// response is pending, or a set waits for content. A zero time is now.
func (s *state) OvertakenAt(now time.Time) (at time.Time) {
	if s.Blocked(now) {
		at = s.ackDeadline
	}
	if now.Before(s.contentUntil) {
		at = later(at, s.contentUntil)
	}
	return at
}

// AwaitsAll reports whether the client asked for the wildcard set and was sent nothing of it.
func (s *state) AwaitsAll() bool {
	return s.wildcard != nil && !s.wildcardStarted && !s.holdsSet
}

// takeNewNames takes the names from those that need a look that the client does not use yet. The newest generation
// answers for them, since no hint tells what changed before the client asked.
func (s *state) takeNewNames() (names []*cache.Name) {
	s.pendingNames = slices.DeleteFunc(s.pendingNames, func(n *cache.Name) bool {
		at, ok := s.find(n)
		if ok = ok && s.names[at].sent == 0; ok {
			names = append(names, n)
		}
		return ok
	})
	return names
}

// Repeats reports whether the request changes no names: in SotW, it lists the same names as the one before.
func (s *state) Repeats(r *wire.Request) bool {
	if s.Delta {
		return s.started && len(r.Subscribe)+len(r.Unsubscribe) == 0
	}
	return s.started && r.NamesSum == s.namesSum
}

// Answers reports whether the request is the answer to a response that waits for one.
func (s *state) Answers(r *wire.Request) bool {
	return s.pending && (s.answersNewest(r, s.Delta) || s.earlier.find(r) >= 0)
}

// AddError has the client sent an error for a name that it asked for and is not served.
func (s *state) AddError(name string, code codes.Code, message string) {
	s.errors.add(name, code, message)
}

// AddMisnamed has the client sent an error for an invalid name, once.
func (s *state) AddMisnamed(b wire.BadName) { s.errors.addMisnamed(b) }

// closeResponse records the outcome of the newest response; r is nil if it has no answer.
func (s *state) closeResponse(o cache.Outcome, r *wire.Request, now time.Time) {
	if s.Closed != nil {
		traceID, spanID := s.Closed(s.exchange(s.TypeURL, o, r, now))
		if o == cache.Refused {
			s.refusal.TraceID, s.refusal.SpanID = traceID, spanID
		}
	}
	s.pending, s.causedAt = false, 0
	if s.fanouts.unacked != nil {
		s.fanouts.close(o, now)
	}
}

func outcomeOf(r *wire.Request) cache.Outcome {
	if r.Refused {
		return cache.Refused
	}
	return cache.Accepted
}

// LeaveFanouts records that the client has left before it was sent or answered what is followed.
func (s *state) LeaveFanouts(now time.Time) {
	if s.pending {
		s.closeResponse(cache.Departed, nil, now)
	}
	s.fanouts.leave(now)
}
