package subscription

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fanout"
	"github.com/xdstender/tender/cache/wire"
)

// staleWait bounds the wait for the answer to the newest response once a request carried an older nonce (B.14).
const staleWait = 3 * time.Second

// A span is a half-open interval of positions: after < p <= upTo.
type span struct{ after, upTo cache.Seq }

// overlaps reports whether two spans have a position in common.
func (s span) overlaps(o span) bool { return max(s.after, o.after) < min(s.upTo, o.upTo) }

// join returns the smallest span that contains both.
func (s span) join(o span) span {
	if s.after >= s.upTo {
		return o
	}
	if o.after >= o.upTo {
		return s
	}
	return span{min(s.after, o.after), max(s.upTo, o.upTo)}
}

// with returns the smallest span that contains s and p.
func (s span) with(p cache.Seq) span { return s.join(span{p - 1, p}) }

// A delivery has the names that a response adds and removes at a Delta client, for types whose resources exclude one another (B.11).
// Clients share it, so that it is not modified after the response was built. Nil is empty.
type delivery struct{ added, removed []string }

// removes reports whether the response has removals.
func (d *delivery) removes() bool { return d != nil && len(d.removed) > 0 }

// after returns this delivery and an earlier one as one. It has each name once, so that it does not grow if a client never answers.
func (d *delivery) after(earlier *delivery) *delivery {
	if d == nil || earlier == nil {
		return cmp.Or(d, earlier)
	}
	var added rejections
	added.add(earlier)
	added.forget(d)
	added.add(d)
	removed := d.removed
	if len(removed) == 0 {
		removed = earlier.removed
	}
	return &delivery{slices.Sorted(maps.Keys(added)), removed}
}

// rejections are the names in rejected responses that the client was not sent since. Nil is empty.
type rejections map[string]struct{}

// add adds what a rejected response has.
func (r *rejections) add(d *delivery) {
	if d == nil {
		return
	}
	for _, name := range d.added {
		if *r == nil {
			*r = make(rejections)
		}
		(*r)[name] = struct{}{}
	}
}

// forget drops the names of a newer response: the answer to that decides about them.
func (r rejections) forget(d *delivery) {
	if d == nil || len(r) == 0 {
		return
	}
	for _, name := range d.added {
		delete(r, name)
	}
	for _, name := range d.removed {
		delete(r, name)
	}
}

// A Conversation has the responses of one type on a stream and their answers. A type and its globs share one.
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
	pending        bool      // it is unanswered
	givenUp        bool      // it is pending, and its delivery was traced as unanswered
	upTo           cache.Seq // position up to which it has changes
	newlyRequested span      // further changes in it, of names that the client was sent for the first time

	uncounted uint32 // responses whose answers were not counted

	sentAny    bool // any response was sent
	nackedAny  bool // any response was rejected
	newRequest bool // the client changed its subscription since the last turn

	// WaitsForClusters: in the last turn, the whole type waited for clusters or their endpoints. The server sets it.
	WaitsForClusters bool

	// Responses before the newest that the client has not accepted; nil if there are none, which is usual.
	earlier *earlierResponses

	// For the status of the client. Each stream has these for each type, so they are small.
	causedAt     Moment    // when the oldest change in the newest response was received; 0: no change caused it
	behindSince  Moment    // since when the client lacks a change that is in it
	sentAfter    cache.Seq // the response has the changes after this position, or after the rejected ones
	ackedVersion string    // the last version that the client accepted
	ackedAt      Moment
	rejection    *Rejection // the newest NACK

	// The names in the newest response, and those that the client rejected.
	has      *delivery
	rejected rejections
}

// Pending reports whether the newest response is unanswered.
func (c *Conversation) Pending() bool { return c.pending }

// Nonce returns the nonce of the newest response.
func (c *Conversation) Nonce() string { return c.nonce }

// Deadline returns when the wait for the answer to the newest response ends.
func (c *Conversation) Deadline() time.Time { return c.ackDeadline }

// SentAny reports whether any response was sent on this stream.
func (c *Conversation) SentAny() bool { return c.sentAny }

// Rejection returns the newest NACK, nil if there is none.
func (c *Conversation) Rejection() *Rejection { return c.rejection }

// Blocked reports whether the next response waits for the answer to the newest. The wait is bounded, since the protocol
// allows clients to never answer (R038).
func (c *Conversation) Blocked(now time.Time) bool { return c.pending && now.Before(c.ackDeadline) }

// answersNewest reports whether a request answers the newest response: by its nonce or, for a SotW client that sends
// none, by an error or the version.
func (c *Conversation) answersNewest(r *wire.Request, delta bool) bool {
	if r.Nonce != "" {
		return r.Nonce == c.nonce
	}
	return !delta && c.pending && (r.Rejected || r.Version != "" && r.Version == c.version)
}

// recordSending records that a response with the changes in a span is sent. It also has the newlyRequested changes, of
// names that the client is sent for the first time. before is the position up to which earlier responses went. received
// is when the oldest change was received; zero if the client requested the response. It returns an earlier response that
// is forgotten, or nil.
func (c *Conversation) recordSending(
	changed, newlyRequested span, before cache.Seq, received, now time.Time,
) (forgotten *sentResponse) {
	caused := MomentOf(received)
	if c.newRequest || caused == 0 {
		received, caused = now, 0
	}
	c.uncounted++
	if c.newRequest = false; c.pending {
		forgotten = c.supersede(before)
	}
	if c.behindSince == 0 {
		c.sentAfter, c.newlyRequested, c.behindSince = changed.after, span{}, MomentOf(received)
	}
	c.upTo, c.newlyRequested = changed.upTo, c.newlyRequested.join(newlyRequested)
	if c.causedAt == 0 && c.sentAny { // the first response answers a request, no change caused it
		c.causedAt = caused
	}
	return forgotten
}

// countAnswer counts an answer once for each response: that to the earlier response at an index, to the newest, or to
// an unknown one if index is negative. It reports whether this is the first answer to the response. A client that
// changes its names repeats the nonce of a response that it has answered.
func (c *Conversation) countAnswer(index int, newest, rejected bool) (first bool) {
	switch {
	case newest:
		first = c.pending
	case index >= 0:
		first = !c.earlier.list[index].rejected
	default:
		first = c.forgotten() > 0
	}
	if first {
		c.uncounted--
		c.counter.Answered(rejected)
	}
	return first
}

// forgotten returns the number of responses without an answer whose nonces are not remembered.
func (c *Conversation) forgotten() int {
	n := int(c.uncounted)
	if c.pending {
		n--
	}
	for i := range c.earlier.len() {
		if !c.earlier.list[i].rejected {
			n--
		}
	}
	return n
}

// accept records an ACK of the newest response.
func (c *Conversation) accept(now time.Time) {
	if c.causedAt != 0 {
		c.counter.Propagated(c.causedAt.ago(now))
	}
	c.ackedVersion, c.ackedAt, c.behindSince, c.earlier, c.has = c.version, MomentOf(now), 0, nil, nil
}

// reject records a NACK of the newest response or of an unknown one. upTo is the position up to which the client was
// sent changes. With whole, each response holds the complete set. removedSince reports whether the NACK is of earlier responses,
// too, after which the client was sent removals.
func (c *Conversation) reject(r *wire.Request, newest bool, upTo cache.Seq, whole bool, now time.Time) (removedSince bool) {
	version := "" // of an unknown response
	if newest {
		removedSince = c.has.removes() && c.earlier != nil
		c.mergeEarlier()
		c.rejected.add(c.has)
		upTo, c.has = c.upTo, nil
	}
	if r.Nonce == c.nonce {
		version = c.version
	}
	c.rejection = newRejection(r, c.rejection, whole, span{c.sentAfter, upTo}, version, now)
	c.rejection.newlyRequested = c.newlyRequested
	return removedSince
}

// unacceptedSince returns when the oldest change was made that the client was sent and has not accepted; 0 if there is
// none.
func (c *Conversation) unacceptedSince() Moment {
	if u := c.earlier.oldest(); u != nil {
		return u.behindSince
	}
	return c.behindSince
}

// ackedUpTo returns the position up to which the client has accepted the changes that it did not reject.
func (c *Conversation) ackedUpTo() cache.Seq {
	if u := c.earlier.oldest(); u != nil {
		return u.after
	}
	return c.sentAfter
}

// awaitsAnswerFor reports whether an unanswered response has any change after one position and up to another.
func (c *Conversation) awaitsAnswerFor(after, upTo cache.Seq) bool {
	if !c.pending {
		return false
	}
	of := span{after, upTo}
	if of.overlaps(span{c.sentAfter, c.upTo}) || of.overlaps(c.newlyRequested) {
		return true
	}
	return c.earlier != nil && slices.ContainsFunc(c.earlier.list, func(u sentResponse) bool {
		return of.overlaps(u.span) || of.overlaps(u.newlyRequested)
	})
}

// newest returns the newest response as a sentResponse with changes up to a position.
func (c *Conversation) newest(upTo cache.Seq) sentResponse {
	return sentResponse{
		nonce: c.nonce, version: c.version, span: span{c.sentAfter, upTo}, newlyRequested: c.newlyRequested,
		behindSince: c.behindSince, causedAt: c.causedAt, endOffset: c.endOffset, has: c.has,
		sentAt: MomentOf(c.sentAt), bytes: c.bytes, givenUp: c.givenUp, fanouts: c.fanouts.unacked,
	}
}

// exchange returns the response and its outcome. answer is nil if there is none.
func (u *sentResponse) exchange(typeURL string, o fanout.Outcome, answer *wire.Request, ended time.Time) Exchange {
	x := Exchange{
		TypeURL: typeURL, Version: u.version, Nonce: u.nonce, Bytes: u.bytes,
		Caused: u.causedAt.Time(), Sent: u.sentAt.Time(), Ended: ended,
		Outcome: o, Fanouts: u.fanouts,
	}
	if answer != nil {
		x.Code, x.Detail = answer.ErrorCode, cut(answer.ErrorMessage, maxDetail)
	}
	return x
}

// String returns the newest response and its answer, such as "nonce=3 version=1 pending".
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
	if c.rejection != nil {
		fmt.Fprintf(&b, " rejected=%s", c.rejection.Nonce)
	}
	return b.String()
}

// A sentResponse is a response before the newest that the client has not accepted. There is one if the client takes
// longer to answer than the relay waits (B.12).
type sentResponse struct {
	nonce          string
	version        string
	span                  // of the changes in it
	newlyRequested span   // further changes in it, see Conversation
	behindSince    Moment // since when the client lacks something of it
	causedAt       Moment // when the oldest change in it was received; 0: no change caused it
	endOffset      uint64 // bytes on the stream up to its end
	has            *delivery
	rejected       bool // the client has rejected it

	// For traces.
	sentAt  Moment
	bytes   int          // of its body
	givenUp bool         // its delivery was traced as unanswered
	fanouts *fanout.List // tracked changes in it that no answer has closed
}

// earlierResponses are the responses before the newest that the client has not accepted, oldest first. Nil is empty.
type earlierResponses struct{ list []sentResponse }

// maxEarlierResponses bounds the remembered earlier responses of a type. Beyond that, an answer may only count once the
// client answers a later response.
const maxEarlierResponses = 16

// supersede records that another response follows the newest one, which is unanswered and has changes up to upTo. It
// returns a response that is merged into that and forgotten, or nil.
func (c *Conversation) supersede(upTo cache.Seq) (forgotten *sentResponse) {
	if c.earlier == nil {
		c.earlier = new(earlierResponses)
	}
	u := c.newest(upTo)
	list := c.earlier.list
	if n := len(list); n == maxEarlierResponses { // the last two become one
		last := list[n-1]
		forgotten = &last
		u.after, u.newlyRequested, u.behindSince = last.after, u.newlyRequested.join(last.newlyRequested), last.behindSince
		u.has = u.has.after(last.has)
		for l := last.fanouts; l != nil; l = l.Others {
			u.fanouts = u.fanouts.And(l.Fanout)
		}
		list = list[:n-1]
	}
	c.earlier.list = append(list, u)
	c.behindSince, c.causedAt, c.givenUp, c.fanouts.unacked = 0, 0, false, nil
	return forgotten
}

// find returns the index of the response that a request answers, -1 if none.
func (e *earlierResponses) find(r *wire.Request) int {
	if e == nil || r.Nonce == "" {
		return -1
	}
	return slices.IndexFunc(e.list, func(u sentResponse) bool { return u.nonce == r.Nonce })
}

// len returns the number of responses.
func (e *earlierResponses) len() int {
	if e == nil {
		return 0
	}
	return len(e.list)
}

// oldest returns the oldest of the responses, nil if there is none.
func (e *earlierResponses) oldest() *sentResponse {
	if e == nil {
		return nil
	}
	return &e.list[0]
}

// rejectEarlier records a NACK of the earlier response at an index, and reports whether a later response has removals.
func (c *Conversation) rejectEarlier(i int, r *wire.Request, whole bool, now time.Time) (removedSince bool) {
	u, oldest := &c.earlier.list[i], *c.earlier.oldest()
	u.after, u.behindSince = oldest.after, oldest.behindSince
	for _, before := range c.earlier.list[:i] {
		u.newlyRequested = u.newlyRequested.join(before.newlyRequested)
		c.rejected.add(before.has)
	}
	c.rejected.add(u.has)
	u.has, u.rejected = nil, true
	for _, later := range append(slices.Clone(c.earlier.list[i+1:]), sentResponse{has: c.has}) {
		c.rejected.forget(later.has)
		removedSince = removedSince || later.has.removes()
	}
	c.rejection = newRejection(r, c.rejection, whole, u.span, u.version, now)
	c.rejection.newlyRequested = u.newlyRequested
	c.earlier.list = slices.Delete(c.earlier.list, 0, i)
	return removedSince
}

// acceptEarlier records an ACK of the earlier response at an index. The client has read all responses before it, and
// accepted those that it did not reject.
func (c *Conversation) acceptEarlier(i int, now time.Time) {
	u := &c.earlier.list[i]
	if u.causedAt != 0 {
		c.counter.Propagated(now.Sub(u.causedAt.Time()))
	}
	c.ackedVersion, c.ackedAt = u.version, MomentOf(now)
	if c.earlier.list = slices.Delete(c.earlier.list, 0, i+1); len(c.earlier.list) == 0 {
		c.earlier = nil
	}
}

// mergeEarlier merges the unaccepted earlier responses into the newest one, which the client answers.
func (c *Conversation) mergeEarlier() {
	if u := c.earlier.oldest(); u != nil {
		for _, before := range c.earlier.list {
			c.newlyRequested = c.newlyRequested.join(before.newlyRequested)
			c.rejected.add(before.has)
		}
		c.sentAfter, c.behindSince, c.earlier = u.after, u.behindSince, nil
	}
}

// A Rejection is a response that a client rejected (NACK). It is immutable.
type Rejection struct {
	At             time.Time
	Nonce, Version string // of the response
	Code           int32  // of gRPC; UNKNOWN if the client sent none
	Detail         string // the client's error message, truncated to 2 KiB; for Secrets, only its length

	// TraceID and SpanID identify the trace span of the response; empty without tracing.
	TraceID, SpanID string

	span                        // of the changes in the response
	newlyRequested span         // further changes in it, see Conversation
	earlier        []*Rejection // set only in the newest of a type: those before it, newest first
}

// HasChange reports whether the response had any change after one position and up to another.
func (r *Rejection) HasChange(after, upTo cache.Seq) bool {
	of := span{after, upTo}
	return of.overlaps(r.span) || of.overlaps(r.newlyRequested)
}

// Bounds on the memory of rejections: bytes of the client's strings, and the number of remembered rejections of a type.
const (
	maxDetail     = 2 << 10
	maxNonce      = 64
	maxRejections = 8
)

// newRejection returns the rejection of a response that r answers and that has the changes in a span. It keeps earlier
// rejections, unless each response holds the complete set (whole).
func newRejection(r *wire.Request, last *Rejection, whole bool, changed span, version string, now time.Time) *Rejection {
	var earlier []*Rejection
	var traceID, spanID string
	switch {
	case last == nil || whole:
	case changed.upTo == last.upTo: // a second NACK of the same response
		changed.after, earlier = last.after, last.earlier
		traceID, spanID = last.TraceID, last.SpanID
	default:
		changed.after = max(changed.after, last.upTo)
		alone := *last
		alone.earlier = nil
		earlier = append([]*Rejection{&alone}, last.earlier[:min(len(last.earlier), maxRejections-2)]...)
	}
	return &Rejection{
		At: now, Nonce: strings.Clone(cut(r.Nonce, maxNonce)), Version: version,
		Code: cmp.Or(r.ErrorCode, int32(codes.Unknown)), Detail: strings.Clone(cut(r.ErrorMessage, maxDetail)),
		TraceID: traceID, SpanID: spanID,
		span: changed, earlier: earlier,
	}
}

// cut truncates a text to a number of bytes.
func cut(text string, bytes int) string {
	if len(text) <= bytes {
		return text
	}
	return strings.ToValidUTF8(text[:bytes], "") + "…"
}

// fanouts are the tracked changes ([fanout.Fanout]) that concern this client.
type fanouts struct {
	due     *fanout.List // not sent to the client yet
	unacked *fanout.List // sent with the newest response and unanswered
}

// markSent finds the due changes that the client was sent. The answer to the newest response closes their fanouts, if
// one is pending. Otherwise the client needed no response for them, and they are closed now.
func (f *fanouts) markSent(sent func(*fanout.Fanout) bool, pending bool, now time.Time) {
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
		f.unacked = f.unacked.Open() // drop closed ones, since a client may never answer
	}
}

// closeAll closes all of the fanouts with an outcome.
func closeAll(fanouts *fanout.List, o fanout.Outcome, now time.Time) {
	for l := fanouts; l != nil; l = l.Others {
		l.Done(o, now)
	}
}
