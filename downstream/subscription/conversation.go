package subscription

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fanout"
	"github.com/xdstender/tender/cache/wire"
)

// staleWait bounds how long the wait for an answer goes on once a request carried an older nonce than that of the
// newest response (B.14).
const staleWait = 3 * time.Second

// A span is the positions after one, and up to the other; empty if there are none.
type span struct{ after, upTo cache.Seq }

// overlaps reports whether two spans have a position in common.
func (s span) overlaps(o span) bool { return max(s.after, o.after) < min(s.upTo, o.upTo) }

// join returns the smallest span that has both.
func (s span) join(o span) span {
	if s.after >= s.upTo {
		return o
	}
	if o.after >= o.upTo {
		return s
	}
	return span{min(s.after, o.after), max(s.upTo, o.upTo)}
}

// with returns the smallest span that has a position, too.
func (s span) with(p cache.Seq) span { return s.join(span{p - 1, p}) }

// A Conversation is the responses of one type on a stream and their answers. A type and its globs share one.
type Conversation struct {
	counter Counter
	fanouts fanouts

	// The newest response.
	nonce          string
	version        string
	bytes          int    // of its body
	endOffset      uint64 // bytes on the stream up to its end
	sentAt         time.Time
	ackDeadline    time.Time // when the wait for the answer ends (B.12)
	pending        bool      // it is not answered
	upTo           cache.Seq // up to where it has the changes
	newlyRequested span      // it has changes there too, of names that the client was not sent before

	sentAny    bool // some response was sent
	nackedAny  bool // some response was refused
	newRequest bool // the client has asked for something since the last look

	// Waits: at the last look, all of the type waited for clusters or their endpoints. The server sets it.
	Waits bool

	// Responses before the newest that the client has not accepted; nil if there is none, as nearly always.
	earlier *earlierResponses

	// For the status of the client. Each stream has these for each type: they are small.
	causedAt     Moment    // when the oldest change in the newest response was received; 0: no change caused it
	behindSince  Moment    // since when the client lacks something of it
	sentAfter    cache.Seq // it holds what changed after that, or after what the client refused
	ackedVersion string    // the version that the client accepted last
	ackedAt      Moment
	refusal      *Refusal // the newest
}

// Pending reports whether the newest response is not answered.
func (c *Conversation) Pending() bool { return c.pending }

// Nonce returns the nonce of the newest response.
func (c *Conversation) Nonce() string { return c.nonce }

// Deadline returns when the wait for the answer to the newest response ends.
func (c *Conversation) Deadline() time.Time { return c.ackDeadline }

// SentAny reports whether any response was sent.
func (c *Conversation) SentAny() bool { return c.sentAny }

// Refusal returns the newest refusal, nil if there is none.
func (c *Conversation) Refusal() *Refusal { return c.refusal }

// Blocked reports whether the next response waits for the answer to the newest. The wait is bounded, since clients
// may lawfully never answer (R038).
func (c *Conversation) Blocked(now time.Time) bool { return c.pending && now.Before(c.ackDeadline) }

// answersNewest reports whether a request answers the newest response: by its nonce, or, of a SotW client that sends
// none, by an error or the version alone.
func (c *Conversation) answersNewest(r *wire.Request, delta bool) bool {
	if r.Nonce != "" {
		return r.Nonce == c.nonce
	}
	return !delta && c.pending && (r.Refused || r.Version != "" && r.Version == c.version)
}

// sending records that a response leaves that holds what changed in a span, and, of names that the client was not sent before,
// in another one. It was received at some time; zero if the client asked for it. The response before it went up to a position.
func (c *Conversation) sending(changed, asked span, before cache.Seq, received, now time.Time) {
	caused := MomentOf(received)
	if c.newRequest || caused == 0 {
		received, caused = now, 0
	}
	if c.newRequest = false; c.pending {
		c.supersede(before)
	}
	if c.behindSince == 0 {
		c.sentAfter, c.newlyRequested, c.behindSince = changed.after, span{}, MomentOf(received)
	}
	c.upTo, c.newlyRequested = changed.upTo, c.newlyRequested.join(asked)
	if c.causedAt == 0 && c.sentAny { // the client waited for something else than the first one's cause
		c.causedAt = caused
	}
}

// accept records that the client accepts the newest response.
func (c *Conversation) accept(now time.Time) {
	if c.causedAt != 0 {
		c.counter.Propagated(c.causedAt.ago(now))
	}
	c.ackedVersion, c.ackedAt, c.behindSince, c.earlier = c.version, MomentOf(now), 0, nil
}

// refuse records that the client refuses the newest response or an unknown one. The client was sent changes up to a
// position; whole is set if each response holds the complete set.
func (c *Conversation) refuse(r *wire.Request, newest bool, upTo cache.Seq, whole bool, now time.Time) {
	version := "" // that of an unknown response is not known
	if newest {
		c.mergeEarlier()
	}
	if newest {
		upTo = c.upTo
	}
	if r.Nonce == c.nonce {
		version = c.version
	}
	c.refusal = newRefusal(r, c.refusal, whole, span{c.sentAfter, upTo}, version, now)
	c.refusal.newlyRequested = c.newlyRequested
}

// lackingSince returns when the oldest change was made that the client was sent and has not accepted; 0 if there is
// none.
func (c *Conversation) lackingSince() Moment {
	if u := c.earlier.oldest(); u != nil {
		return u.behindSince
	}
	return c.behindSince
}

// ackedUpTo returns up to where the client has accepted what it was sent, except for what it refused.
func (c *Conversation) ackedUpTo() cache.Seq {
	if u := c.earlier.oldest(); u != nil {
		return u.after
	}
	return c.sentAfter
}

// unanswered reports whether a response that the client has not answered has any change made after a position and up to
// another.
func (c *Conversation) unanswered(after, upTo cache.Seq) bool {
	if !c.pending {
		return false
	}
	of := span{after, upTo}
	return of.overlaps(span{c.sentAfter, c.upTo}) || of.overlaps(c.newlyRequested) ||
		c.earlier != nil && slices.ContainsFunc(c.earlier.list, func(u sentResponse) bool { return of.overlaps(u.span) || of.overlaps(u.newlyRequested) })
}

// exchange returns the newest response, with its outcome; answer is nil if the stream ended before.
func (c *Conversation) exchange(typeURL string, o fanout.Outcome, answer *wire.Request, now time.Time) Exchange {
	x := Exchange{
		TypeURL: typeURL, Version: c.version, Nonce: c.nonce, Bytes: c.bytes,
		Caused: c.causedAt.Time(), Sent: c.sentAt, Ended: now,
		Outcome: o, Fanouts: c.fanouts.unacked,
	}
	if answer != nil {
		x.Code, x.Detail = answer.ErrorCode, cut(answer.ErrorMessage, maxDetail)
	}
	return x
}

// String returns the newest response and its answer: "nonce=3 version=1 pending".
func (c *Conversation) String() string {
	if !c.sentAny {
		return "nothing sent"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "nonce=%s", c.nonce)
	if c.version != "" {
		fmt.Fprintf(&b, " version=%s", c.version)
	}
	if c.pending {
		b.WriteString(" pending")
	}
	if c.earlier != nil {
		fmt.Fprintf(&b, " unaccepted=%d", len(c.earlier.list))
	}
	if c.refusal != nil {
		fmt.Fprintf(&b, " refused=%s", c.refusal.Nonce)
	}
	return b.String()
}

// A sentResponse was sent before the newest and is not accepted: the client takes longer to answer than the relay
// waits (B.12).
type sentResponse struct {
	nonce          string
	version        string
	span                  // of the changes in it
	newlyRequested span   // likewise, see Conversation
	behindSince    Moment // since when the client lacks something of it
	causedAt       Moment // when the oldest change in it was received; 0: no change caused it
	endOffset      uint64 // bytes on the stream up to its end
}

// earlierResponses are those before the newest that the client has not accepted, the oldest first. A nil one is empty.
type earlierResponses struct{ list []sentResponse }

// maxEarlierResponses bounds the earlier responses of a type that are remembered. If a client is further behind, the
// answers to some do not count until it answers a later one.
const maxEarlierResponses = 16

// supersede notes that another response follows the newest one, which is not answered and holds what changed up to a
// position.
func (c *Conversation) supersede(upTo cache.Seq) {
	if c.earlier == nil {
		c.earlier = new(earlierResponses)
	}
	u := sentResponse{c.nonce, c.version, span{c.sentAfter, upTo}, c.newlyRequested, c.behindSince, c.causedAt, c.endOffset}
	list := c.earlier.list
	if n := len(list); n == maxEarlierResponses { // the last two become one
		u.after, u.newlyRequested, u.behindSince = list[n-1].after, u.newlyRequested.join(list[n-1].newlyRequested), list[n-1].behindSince
		list = list[:n-1]
	}
	c.earlier.list = append(list, u)
	c.behindSince, c.causedAt = 0, 0
}

// find returns which of the responses a request answers, -1 if none.
func (e *earlierResponses) find(r *wire.Request) int {
	if e == nil || r.Nonce == "" {
		return -1
	}
	return slices.IndexFunc(e.list, func(u sentResponse) bool { return u.nonce == r.Nonce })
}

// oldest returns the oldest of the responses, nil if there is none.
func (e *earlierResponses) oldest() *sentResponse {
	if e == nil {
		return nil
	}
	return &e.list[0]
}

// refuseEarlier records that the client refuses an earlier response.
func (c *Conversation) refuseEarlier(i int, r *wire.Request, whole bool, now time.Time) {
	u, oldest := &c.earlier.list[i], *c.earlier.oldest()
	u.after, u.behindSince = oldest.after, oldest.behindSince
	for _, before := range c.earlier.list[:i] {
		u.newlyRequested = u.newlyRequested.join(before.newlyRequested)
	}
	c.refusal = newRefusal(r, c.refusal, whole, u.span, u.version, now)
	c.refusal.newlyRequested = u.newlyRequested
	c.earlier.list = slices.Delete(c.earlier.list, 0, i)
}

// acceptEarlier records that the client accepts an earlier response, and returns up to where that went. The client has
// read all responses before it. Those that it did not refuse, it has accepted.
func (c *Conversation) acceptEarlier(i int, now time.Time) (upTo cache.Seq) {
	u := &c.earlier.list[i]
	if u.causedAt != 0 {
		c.counter.Propagated(now.Sub(u.causedAt.Time()))
	}
	c.ackedVersion, c.ackedAt, upTo = u.version, MomentOf(now), u.upTo
	if c.earlier.list = slices.Delete(c.earlier.list, 0, i+1); len(c.earlier.list) == 0 {
		c.earlier = nil
	}
	return upTo
}

// mergeEarlier counts what the client has not accepted of earlier responses to the newest one, which it answers.
func (c *Conversation) mergeEarlier() {
	if u := c.earlier.oldest(); u != nil {
		for _, before := range c.earlier.list {
			c.newlyRequested = c.newlyRequested.join(before.newlyRequested)
		}
		c.sentAfter, c.behindSince, c.earlier = u.after, u.behindSince, nil
	}
}

// A Refusal is a response that a client did not accept. It is immutable.
type Refusal struct {
	At             time.Time
	Nonce, Version string // of the response
	Code           int32  // of gRPC; UNKNOWN if the client sent none
	Detail         string // the client's error message, cut off after 2 KiB; of Secrets, only its length

	// TraceID and SpanID are those of the span that shows it; empty if nothing is traced.
	TraceID, SpanID string

	span                      // of the changes in the response
	newlyRequested span       // of changes in it, too: see Conversation
	earlier        []*Refusal // of the newest of a type: those before it, newest first
}

// Of reports whether the response had any change made after one position and up to another.
func (r *Refusal) Of(after, upTo cache.Seq) bool {
	of := span{after, upTo}
	return of.overlaps(r.span) || of.overlaps(r.newlyRequested)
}

// Bounds on what is kept of refusals: bytes of the client's words, and how many refusals of a type that the client
// did not undo by accepting a later response.
const (
	maxDetail   = 2 << 10
	maxNonce    = 64
	maxRefusals = 8
)

// newRefusal returns the refusal of a response, which r answers, that held what changed in a span. Earlier refusals stand
// beside it, unless each response holds the complete set.
func newRefusal(r *wire.Request, last *Refusal, whole bool, changed span, version string, now time.Time) *Refusal {
	var earlier []*Refusal
	switch {
	case last == nil || whole:
	case changed.upTo == last.upTo: // the same response once more
		changed.after, earlier = last.after, last.earlier
	default:
		changed.after = max(changed.after, last.upTo)
		alone := *last
		alone.earlier = nil
		earlier = append([]*Refusal{&alone}, last.earlier[:min(len(last.earlier), maxRefusals-2)]...)
	}
	return &Refusal{
		At: now, Nonce: strings.Clone(cut(r.Nonce, maxNonce)), Version: version,
		Code: cmp.Or(r.ErrorCode, int32(codes.Unknown)), Detail: strings.Clone(cut(r.ErrorMessage, maxDetail)),
		span: changed, earlier: earlier,
	}
}

// cut returns the beginning of a text that is longer than so many bytes.
func cut(text string, bytes int) string {
	if len(text) <= bytes {
		return text
	}
	return strings.ToValidUTF8(text[:bytes], "") + "…"
}

// fanouts are the changes that are followed on their way to all clients, as far as this client is part of that.
type fanouts struct {
	due     *fanout.List // the client is to be sent them
	unacked *fanout.List // the client was sent them and has not answered
}

// pass notes which changes the client was sent. Those are closed by the answer to the newest response, if that is
// pending. Otherwise the client needed none.
func (f *fanouts) pass(sent func(*fanout.Fanout) bool, pending bool, now time.Time) {
	before := f.due
	f.due = nil
	for l := before; l != nil; l = l.Others {
		switch change := l.Fanout; {
		case !sent(change):
			f.due = f.due.And(change)
		case pending:
			f.unacked = f.unacked.And(change)
		default:
			change.Done(fanout.NotNeeded, now)
		}
	}
	if f.unacked != nil && f.unacked.Others != nil {
		f.unacked = f.unacked.Open() // a client may never answer
	}
}

// close closes the changes that the client was sent.
func (f *fanouts) close(o fanout.Outcome, now time.Time) {
	for l := f.unacked; l != nil; l = l.Others {
		l.Done(o, now)
	}
	f.unacked = nil
}

// closeUpTo closes the changes of a type up to a position, which the client accepted by the answer to an earlier
// response. Removals that wait are closed by the answer to the newest response.
func (f *fanouts) closeUpTo(key string, lateRemovals bool, upTo cache.Seq, now time.Time) {
	before := f.unacked
	f.unacked = nil
	for l := before; l != nil; l = l.Others {
		if c := l.Fanout; c.Key == key && cache.Seq(c.Position) <= upTo && (!c.Removes || !lateRemovals) {
			c.Done(fanout.Accepted, now)
		} else {
			f.unacked = f.unacked.And(c)
		}
	}
}

// leave closes all changes, since the stream has ended.
func (f *fanouts) leave(now time.Time) {
	f.close(fanout.StreamClosed, now)
	f.unacked, f.due = f.due, nil
	f.close(fanout.StreamClosed, now)
}
