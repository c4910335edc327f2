package subscription

import (
	"iter"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/tier"
)

// A Sync says whether the client has what the view serves.
type Sync = tier.Sync

// rejections yields the rejections that may be active, newest first. If the client accepted a complete set since, none is.
func (s AtGeneration) rejections() iter.Seq[*Rejection] {
	return func(yield func(*Rejection) bool) {
		newest := s.Rejection()
		if newest == nil || s.sendsSets() && s.ackedAt.Time().After(newest.At) || !yield(newest) {
			return
		}
		for _, r := range newest.earlier {
			if !yield(r) {
				return
			}
		}
	}
}

// A lack is what a client lacks of a subscription, as far as the relay knows.
type lack struct {
	due     bool      // resources or removals are due
	oldest  cache.Seq // position of the oldest change that is due; 0 if no change is
	unknown bool      // see Unknown
}

// add records that a change is due.
func (l *lack) add(change cache.Seq) {
	if l.due = true; l.oldest == 0 || change < l.oldest {
		l.oldest = change
	}
}

// lacks returns what the client lacks of the generation. In contrast to [AtGeneration.Behind] it is exact, and it
// changes no position.
func (s AtGeneration) lacks() (l lack) {
	for part := range s.wildcards() {
		part.At(s.g).addMembersLacked(&l)
	}
	s.addNamesLacked(&l)
	l.unknown = l.unknown || s.mayHaveRejected()
	return l
}

// mayHaveRejected reports whether a rejected response may have had a current resource. For a resource that was newly
// requested, only a span of positions is known.
func (s AtGeneration) mayHaveRejected() bool {
	for r := range s.rejections() {
		if r.newlyRequested.after >= r.newlyRequested.upTo {
			continue
		}
		in := func(seq cache.Seq) bool { return (span{seq - 1, seq}).overlaps(r.newlyRequested) }
		for part := range s.wildcards() {
			if in(part.At(s.g).t.Wildcard.FirstAfter(r.newlyRequested.after)) {
				return true
			}
		}
		for _, n := range s.names {
			if _, seq := s.entryOf(n); in(seq) {
				return true
			}
		}
	}
	return false
}

// addMembersLacked adds what the client lacks of the wildcard set.
func (s AtGeneration) addMembersLacked(l *lack) {
	l.unknown = l.unknown || len(s.initialVersions) > 0
	l.due = l.due || len(s.resend)+len(s.unsubscribeReplies) > 0
	switch {
	case !s.sendAll:
		s.addMembersChanged(l)
	case s.settledEnough(s.Key) && !(sets{visible: s.visible}).lacksAwaited():
		l.due = true
	default:
		l.unknown = true // the origin has not sent the set
	}
}

// addMembersChanged adds the changes of the wildcard set that the client was not sent.
func (s AtGeneration) addMembersChanged(l *lack) {
	if s.t.Wildcard.Last() <= min(s.sentUpTo, s.removedUpTo) {
		return
	}
	for e := range s.t.Wildcard.Since(min(s.sentUpTo, s.removedUpTo)) {
		upTo := s.sentUpTo
		if !e.Present() {
			upTo = s.removedUpTo
		}
		if _, named := s.find(e.Name); !named && e.Seq > upTo {
			l.add(e.Seq)
			return
		}
	}
}

// addNamesLacked adds what the client lacks of the names that it subscribed to. It reads the entries of all names only
// if one of them may have changed.
func (s AtGeneration) addNamesLacked(l *lack) {
	changed := len(s.pendingNames) > 0 || s.t.Last() > s.scannedUpTo &&
		(s.sendsSets() || s.Watch.FirstHint(s.Key, s.scannedUpTo, s.g.Seq) <= s.g.Seq)
	for _, n := range s.names {
		if changed || n.sent == 0 {
			s.addNameLacked(l, n)
		}
	}
}

func (s AtGeneration) addNameLacked(l *lack, n subscribed) {
	switch e, seq := s.entryOf(n); {
	case e == nil:
		l.unknown = l.unknown || s.t.Errors(cache.ByName).Get(n.name) == nil // an error is an answer
	case seq <= n.sent:
	case e.Present():
		l.add(seq)
	case !s.confirmedAbsent(e) || s.mayReappear(e, n) || s.holdsAwaited(n):
		l.unknown = true
	case n.sent != 0 || s.Delta:
		l.add(seq)
	}
}

// lackedSince returns since when the client has lacked the oldest change that it was sent and has not accepted, or that
// is due; zero if there is none. What is due because the client asked for it has no time.
func (s AtGeneration) lackedSince(l lack) (since time.Time) {
	if sent := s.unacceptedSince(); sent != 0 {
		since = sent.Time()
	}
	if l.oldest > 0 {
		since = Earlier(since, s.Watch.View().Cause(l.oldest).Received)
	}
	return since
}
