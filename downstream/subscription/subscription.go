package subscription

import (
	"cmp"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fanout"
	"github.com/xdstender/tender/cache/wire"
)

// A state is a subscription without its globs: what the client wants, what it holds and was sent, and the conversation.
type state struct {
	Traits
	*Client
	*Conversation
	want
	reported
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
func (s *state) mayHoldMore() bool { return s.sendsSets() && s.initialVersion != "" }

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
func (s *state) closeResponse(o fanout.Outcome, r *wire.Request, now time.Time) {
	if s.Closed != nil {
		traceID, spanID := s.Closed(s.exchange(s.TypeURL, o, r, now))
		if o == fanout.Rejected {
			s.refusal.TraceID, s.refusal.SpanID = traceID, spanID
		}
	}
	s.pending, s.causedAt = false, 0
	if s.fanouts.unacked != nil {
		s.fanouts.close(o, now)
	}
}

// LeaveFanouts records that the client has left before it was sent or answered what is followed.
func (s *state) LeaveFanouts(now time.Time) {
	if s.pending {
		s.closeResponse(fanout.StreamClosed, nil, now)
	}
	s.fanouts.leave(now)
}

// A Subscription is what one stream wants of one type, what the client holds and was sent of it, and the
// conversation about it. A glob is a subscription of its own, beside that of its type (R132). It does no I/O, starts
// no goroutine and has no lock: it is guarded by the lock of its stream.
type Subscription struct {
	state

	// Of the type's own subscription.
	globs    globList
	nextPart int // which of it and of its globs comes next, see Parts

	// Of a glob.
	parent *Subscription // the type's own
	glob   string
}

// New returns the subscription of a client to a type, which wants nothing yet. Responses wrap resources as wrap says,
// and hold TTLs if ttls is set.
func New(c *Client, t Traits, wrap wire.Wrap, ttls bool, counter Counter) *Subscription {
	return &Subscription{state: state{
		Traits: t, Client: c, Conversation: &Conversation{counter: counter},
		Key: t.TypeURL, wrap: wrap, sendsTTLs: ttls,
	}}
}

// newGlob adds the subscription to a glob.
func (s *Subscription) newGlob(text string, now time.Time) *Subscription {
	s.explicit = true
	text = strings.Clone(text) // it may be a part of a larger string
	glob := &Subscription{state: state{
		Traits: s.Traits, Client: s.Client, Conversation: s.Conversation,
		Key: cache.Collection(s.TypeURL, text), wrap: s.wrap, sendsTTLs: s.sendsTTLs,
		want: want{started: true, explicit: true, since: now},
	}, glob: text, parent: s}
	if glob.wrap != wire.Unwrapped {
		glob.wrap = wire.WrapAll // or a SotW client would not learn the names (B.19)
	}
	glob.subscribeAll()
	at, _ := s.globs.search(text)
	s.globs = slices.Insert(s.globs, at, glob)
	return glob
}

// GlobCount returns the number of globs that the client subscribed to.
func (s *Subscription) GlobCount() int { return len(s.globs) }

// Wake has a glob looked at again, since something of it has changed.
func (s *Subscription) Wake(glob string) {
	if g := s.globs.find(glob); g != nil {
		g.idle = false
	}
}

// Has returns the names and globs of the subscription.
func (s *Subscription) Has() map[string]struct{} {
	has := make(map[string]struct{}, len(s.names)+len(s.globs))
	for _, n := range s.names {
		has[n.name.String()] = struct{}{}
	}
	for _, glob := range s.globs {
		has[glob.glob] = struct{}{}
	}
	return has
}

// Size returns how many names and globs the subscription keeps, including those that are not served.
func (s *Subscription) Size() int {
	return len(s.names) + len(s.unsubscribeReplies) + len(s.globs) + len(s.errors.misnamedSent) + len(s.Denied)
}

// wildcardOf returns the subscription to the wildcard set that a resource, which the client did not name, would be
// in: that of a glob or of the type. It returns nil if there is none.
func (s *Subscription) wildcardOf(name string) *Subscription {
	if glob, ok := wire.GlobOf(name); ok {
		if g := s.globs.find(glob); g != nil {
			return g
		}
	}
	if s.wildcard != nil {
		return s
	}
	return nil
}

// wildcards yields the subscriptions to wildcard sets: to that of the type, and to each glob.
func (s *Subscription) wildcards() iter.Seq[*Subscription] {
	return func(yield func(*Subscription) bool) {
		if s.wildcard != nil && !yield(s) {
			return
		}
		for _, glob := range s.globs {
			if !yield(glob) {
				return
			}
		}
	}
}

// separateGlobs returns the globs that are served on their own. A complete SotW set holds their resources; all other
// responses are of one glob.
func (s *Subscription) separateGlobs() []*Subscription {
	if s.sendsSets() {
		return nil
	}
	return s.globs
}

// Parts yields the type's own subscription and its globs, which share one pending response. It begins after the one
// that was sent something last, so that none keeps the others waiting. Idle globs are left out.
func (s *Subscription) Parts() iter.Seq[*Subscription] {
	return func(yield func(*Subscription) bool) {
		globs := s.separateGlobs()
		if len(globs) == 0 {
			yield(s)
			return
		}
		first, n := s.nextPart, 1+len(globs)
		for i := range n {
			at := (first + i) % n
			part := s
			if at > 0 {
				part = globs[at-1]
			}
			if part.idle {
				continue
			}
			nonce := s.nonce
			if !yield(part) {
				return
			}
			if s.nonce != nonce {
				s.nextPart = at + 1
			}
		}
	}
}

// Returns reports whether the client reported in its first request that it holds resources of the type.
func (s *Subscription) Returns() bool {
	return cmp.Or(s.parent, s).initialVersion != "" || s.initialCount > 0
}

// HeldAll reports whether the client was found to have a whole wildcard set when it came, or was sent it.
func (s *Subscription) HeldAll() bool {
	return s.holdsSet || s.wildcardStarted && s.initialCount > 0 || slices.ContainsFunc(s.globs, (*Subscription).HeldAll)
}

// Unanswered reports whether the client asked for the type, or for a glob, and was sent nothing of it.
func (s *Subscription) Unanswered() bool {
	return !s.sentAny && (s.wildcard != nil || len(s.names)+len(s.globs) > 0) ||
		slices.ContainsFunc(s.globs, func(glob *Subscription) bool { return glob.sendAll })
}

// Close unsubscribes from everything.
func (s *Subscription) Close() {
	for _, glob := range s.globs {
		glob.Close()
	}
	s.unsubscribeAll()
	s.closeReport()
	s.Watch.Unsubscribe(s.Key, s.Names())
	s.names = nil
}

// String returns what the client wants, how far it was sent that, and the conversation about it:
// "* names=2 | sent=7 removed=5 scanned=7 | nonce=3 pending".
func (s *Subscription) String() string {
	wants := s.want.String()
	if n := len(s.globs); n > 0 {
		wants = strings.TrimPrefix(wants+" globs="+strconv.Itoa(n), "nothing ")
	}
	return wants + " | " + s.sent.String() + " | " + s.Conversation.String()
}

// A globList has the globs of a type, sorted.
type globList []*Subscription

// names returns the globs.
func (l globList) names() (names []string) {
	for _, g := range l {
		names = append(names, g.glob)
	}
	return names
}

// search returns the index of a glob, or where it would be.
func (l globList) search(text string) (at int, have bool) {
	return slices.BinarySearchFunc(l, text, func(g *Subscription, text string) int { return cmp.Compare(g.glob, text) })
}

func (l globList) find(text string) *Subscription {
	if at, have := l.search(text); have {
		return l[at]
	}
	return nil
}

// drop ends the subscriptions to the globs among texts, and returns the rest.
func (l *globList) drop(texts []string) (rest []string) {
	if len(*l) == 0 {
		return texts
	}
	for _, text := range texts {
		if at, have := l.search(text); have {
			(*l)[at].Close()
			*l = slices.Delete(*l, at, at+1)
			continue
		}
		rest = append(rest, text)
	}
	return rest
}
