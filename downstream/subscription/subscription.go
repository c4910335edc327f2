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

// A state is a subscription without its globs.
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
	sendsTTLs bool      // the client is sent TTLs (R104)
}

// sendsSets reports whether each response holds the complete set.
func (s *state) sendsSets() bool { return !s.Delta && s.FullState }

// position returns the position up to which the client was sent changes.
func (s *state) position() cache.Seq {
	if s.wildcard != nil {
		return s.sentUpTo
	}
	return s.scannedUpTo
}

// mayHoldMore reports whether the client may hold resources that a complete set would lack, and so delete.
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

// DependentsUnblockedAt returns when types that refer to unsent resources of this type may be sent nevertheless. They
// wait while a response is pending or a set waits for content. A zero time means now.
func (s *state) DependentsUnblockedAt(now time.Time) (at time.Time) {
	if s.Blocked(now) {
		at = s.ackDeadline
	}
	if now.Before(s.contentUntil) {
		at = later(at, s.contentUntil)
	}
	return at
}

// AwaitsWildcard reports whether the client subscribed to the wildcard set and was sent nothing of it.
func (s *state) AwaitsWildcard() bool {
	return s.wildcard != nil && !s.wildcardStarted && !s.holdsSet
}

// takeNewNames takes the names that the client was not sent yet out of pendingNames. The newest generation answers for
// them, since the view has no hints of changes before the client subscribed.
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

// Repeats reports whether the request changes no names. A SotW request repeats the one before if it lists the same
// names.
func (s *state) Repeats(r *wire.Request) bool {
	if s.Delta {
		return s.started && len(r.Subscribe)+len(r.Unsubscribe) == 0
	}
	return s.started && r.NamesSum == s.namesSum
}

// Answers reports whether the request answers a pending response.
func (s *state) Answers(r *wire.Request) bool {
	return s.pending && (s.answersNewest(r, s.Delta) || s.earlier.find(r) >= 0)
}

// AddError queues an error for a name that the client subscribed to and is not served.
func (s *state) AddError(name string, code codes.Code, message string) {
	s.errors.add(name, code, message)
}

// AddMisnamed queues an error for an invalid name, once.
func (s *state) AddMisnamed(b wire.BadName) { s.errors.addMisnamed(b) }

// closeResponse ends the newest response, and returns its span. r is nil if it was not answered.
func (s *state) closeResponse(o fanout.Outcome, r *wire.Request, now time.Time) (traceID, spanID string) {
	u := s.newest(0)
	traceID, spanID = s.end(&u, o, o, r, now)
	s.pending, s.givenUp, s.fanouts.unacked = false, false, nil
	return traceID, spanID
}

// end ends a response: it exports its delivery with an outcome, and closes its fanouts with another. It returns the span
// of the delivery. r is nil if the response was not answered.
func (s *state) end(u *sentResponse, o, of fanout.Outcome, r *wire.Request, now time.Time) (traceID, spanID string) {
	if s.Closed != nil && !u.rejected && (!u.givenUp || o == fanout.Rejected) {
		traceID, spanID = s.Closed(u.exchange(s.TypeURL, o, r, now))
	}
	closeAll(u.fanouts, of, now)
	u.fanouts = nil
	return traceID, spanID
}

// endEarlier ends the first n of the earlier responses.
func (s *state) endEarlier(n int, o, of fanout.Outcome, now time.Time) {
	for i := range n {
		s.end(&s.earlier.list[i], o, of, nil, now)
	}
}

// GiveUp traces deliveries that are not answered within [fanout.GiveUp]. It returns when to call it again, zero if no
// response is unanswered or deliveries are not traced.
func (s *state) GiveUp(now time.Time) (next time.Time) {
	if s.Closed == nil {
		return next
	}
	giveUp := func(u *sentResponse) (givenUp bool) {
		at := u.sentAt.Time().Add(fanout.GiveUp)
		switch {
		case u.givenUp || u.rejected:
		case now.Before(at):
			next = Earlier(next, at)
			return false
		default:
			s.Closed(u.exchange(s.TypeURL, fanout.Unanswered, nil, at))
		}
		return true
	}
	for i := range s.earlier.len() {
		u := &s.earlier.list[i]
		u.givenUp = giveUp(u)
	}
	if s.pending {
		u := s.newest(0)
		s.givenUp = giveUp(&u)
	}
	return next
}

// CloseFanouts ends the responses that the client has not answered, and closes the fanouts that the client was not sent
// or has not answered, since the stream has ended.
func (s *state) CloseFanouts(now time.Time) {
	s.endEarlier(s.earlier.len(), fanout.StreamClosed, fanout.StreamClosed, now)
	s.earlier = nil
	if s.pending {
		s.closeResponse(fanout.StreamClosed, nil, now)
	}
	closeAll(s.fanouts.due, fanout.StreamClosed, now)
	s.fanouts.due = nil
}

// A Subscription is the subscription of one stream to one type, with what the client was sent and its answers. Each
// glob has a separate Subscription, which belongs to that of its type (R132). It does no I/O and starts no goroutine.
// The lock of its stream guards it.
type Subscription struct {
	state

	// Set only in the subscription of a type.
	globs    globList
	nextPart int // index of the next part to serve, see Parts

	// Set only in the subscription of a glob.
	parent *Subscription // the subscription of the type
	glob   string
}

// New returns an empty subscription of a client to a type. wrap selects the resources that responses wrap in a Resource
// message. With ttls, responses have TTLs.
func New(c *Client, t Traits, wrap wire.Wrap, ttls bool, counter Counter) *Subscription {
	return &Subscription{state: state{
		Traits: t, Client: c, Conversation: &Conversation{counter: counter},
		Key: t.TypeURL, wrap: wrap, sendsTTLs: ttls,
	}}
}

// newGlob adds the subscription to a glob.
func (s *Subscription) newGlob(text string, now time.Time) *Subscription {
	s.explicit = true
	text = strings.Clone(text) // it may keep a larger string in memory
	glob := &Subscription{state: state{
		Traits: s.Traits, Client: s.Client, Conversation: s.Conversation,
		Key: cache.Collection(s.TypeURL, text), wrap: s.wrap, sendsTTLs: s.sendsTTLs,
		want: want{started: true, explicit: true, since: now},
	}, glob: text, parent: s}
	if glob.wrap != wire.Unwrapped {
		glob.wrap = wire.WrapAll // otherwise a SotW client would not learn the names (B.19)
	}
	glob.subscribeAll()
	at, _ := s.globs.search(text)
	s.globs = slices.Insert(s.globs, at, glob)
	return glob
}

// GlobCount returns the number of globs that the client subscribed to.
func (s *Subscription) GlobCount() int { return len(s.globs) }

// WakeGlob marks a glob as not idle, since its set has changed.
func (s *Subscription) WakeGlob(glob string) {
	if g := s.globs.find(glob); g != nil {
		g.idle = false
	}
}

// NamesAndGlobs returns the names and globs of the subscription.
func (s *Subscription) NamesAndGlobs() map[string]struct{} {
	has := make(map[string]struct{}, len(s.names)+len(s.globs))
	for _, n := range s.names {
		has[n.name.String()] = struct{}{}
	}
	for _, glob := range s.globs {
		has[glob.glob] = struct{}{}
	}
	return has
}

// Size returns how many names and globs the subscription keeps in memory, including those that are not served.
func (s *Subscription) Size() int {
	return len(s.names) + len(s.unsubscribeReplies) + len(s.globs) + len(s.errors.misnamedSent) + len(s.Denied)
}

// wildcardOf returns the subscription whose wildcard set would contain a resource that the client did not name: that of
// a glob or of the type. It returns nil if there is none.
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

// wildcards yields the subscriptions that have a wildcard set: that of the type, and each glob.
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

// separateGlobs returns the globs that are served in separate responses. A complete SotW set includes all globs.
func (s *Subscription) separateGlobs() []*Subscription {
	if s.sendsSets() {
		return nil
	}
	return s.globs
}

// Parts yields the subscription of the type and its globs, which share one pending response. It starts after the part
// that was last sent a response, so that no part starves the others. It omits idle globs.
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

// Returning reports whether the client reported in its first request that it holds resources of the type.
func (s *Subscription) Returning() bool {
	return cmp.Or(s.parent, s).initialVersion != "" || s.initialCount > 0
}

// HasWildcardSet reports whether the client has a whole wildcard set, which it reported or was sent.
func (s *Subscription) HasWildcardSet() bool {
	return s.holdsSet || s.wildcardStarted && s.initialCount > 0 ||
		slices.ContainsFunc(s.globs, (*Subscription).HasWildcardSet)
}

// AwaitsFirstResponse reports whether the client subscribed to the type, or to a glob, and was sent nothing of it.
func (s *Subscription) AwaitsFirstResponse() bool {
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

// String returns what the client subscribed to, the positions, and the conversation, such as "* names=2 | sent=7
// removed=5 scanned=7 | nonce=3 pending".
func (s *Subscription) String() string {
	wants := s.want.String()
	if n := len(s.globs); n > 0 {
		wants = strings.TrimPrefix(wants+" globs="+strconv.Itoa(n), "nothing ")
	}
	return wants + " | " + s.sent.String() + " | " + s.Conversation.String()
}

// A globList has the globs of a type, sorted by text.
type globList []*Subscription

// names returns the globs.
func (l globList) names() (names []string) {
	for _, g := range l {
		names = append(names, g.glob)
	}
	return names
}

// search returns the index of a glob, or where to insert it.
func (l globList) search(text string) (at int, have bool) {
	return slices.BinarySearchFunc(l, text, func(g *Subscription, text string) int { return cmp.Compare(g.glob, text) })
}

func (l globList) find(text string) *Subscription {
	if at, have := l.search(text); have {
		return l[at]
	}
	return nil
}

// drop closes the subscriptions to the globs among texts, and returns the other texts.
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
