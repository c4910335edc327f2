package downstream

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fanout"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
)

// Counts counts the responses to the streams of one node group, and their ACKs and NACKs, by type. The zero value is
// ready to use. Its methods may be called from any goroutine.
type Counts struct {
	types sync.Map // *typeCounts by type URL
}

// TypeStats has the counters of one type for the streams of a group.
type TypeStats struct {
	Responses int64 // sent responses
	Bytes     int64 // of response bodies, before compression
	Acks      int64 // from clients
	Nacks     int64 // from clients

	// Propagation has the time from the receipt of the origin's message to the ACK, for each accepted response that a
	// change caused. It counts from the oldest change in the response. It excludes first responses and responses that a
	// request caused.
	Propagation Distribution

	// Fanout has the time from the receipt of the origin's message until the last client has answered or left, for each
	// tracked change. GivenUp counts tracked changes that some client did not answer within a minute. Unfollowed counts changes
	// that were not tracked because 16 changes of the type were tracked already.
	Fanout              Distribution
	GivenUp, Unfollowed int64
}

// Plus returns the sum of both.
func (s TypeStats) Plus(o TypeStats) TypeStats {
	return TypeStats{
		s.Responses + o.Responses, s.Bytes + o.Bytes, s.Acks + o.Acks, s.Nacks + o.Nacks,
		s.Propagation.Plus(o.Propagation), s.Fanout.Plus(o.Fanout), s.GivenUp + o.GivenUp, s.Unfollowed + o.Unfollowed,
	}
}

// Types returns the counters by type URL. The key of types that the protocol does not define is empty.
func (c *Counts) Types() map[string]TypeStats {
	types := make(map[string]TypeStats)
	c.types.Range(func(typeURL, counts any) bool {
		types[typeURL.(string)] = counts.(*typeCounts).sum()
		return true
	})
	return types
}

// tally returns the counters that a stream uses for a type; nil for nil Counts. Types that the protocol does not define
// share counters, because clients can invent types.
func (c *Counts) tally(typeURL string, stream uint64) *tally {
	if c == nil {
		return nil
	}
	return &c.countersOf(typeURL).tallies[stream%tallyCount]
}

// countersOf returns the counters of a type, and creates them on first use.
func (c *Counts) countersOf(typeURL string) *typeCounts {
	if !wire.Known(typeURL) {
		typeURL = ""
	}
	counters, ok := c.types.Load(typeURL)
	if !ok {
		counters, _ = c.types.LoadOrStore(typeURL, new(typeCounts))
	}
	return counters.(*typeCounts)
}

// Followed counts a change whose fan-out has ended. It is a [cache.Config.Fanout].
func (c *Counts) Followed(f *fanout.Fanout) {
	typeURL, _, _ := cache.SplitCollection(f.Key)
	switch counters := c.countersOf(typeURL); {
	case f.Unfollowed:
		counters.unfollowed.Add(1)
	case f.Unanswered() > 0:
		counters.givenUp.Add(1)
	case f.Count(fanout.Accepted)+f.Count(fanout.Rejected) > 0:
		counters.fanout.observe(f.Took())
		if f.Span != nil && f.Span.Sampled() {
			traceID, spanID := f.Span.IDs()
			counters.fanout.newest.Store(&Exemplar{traceID, spanID, f.Took(), f.Received.Add(f.Took())})
		}
	}
}

// tallyCount is the number of copies of the counters of a type. Streams are spread over the copies, so that they rarely
// write to the same cache line.
const tallyCount = 8

// A typeCounts has the counters of one type.
type typeCounts struct {
	tallies [tallyCount]tally

	fanout              durations
	givenUp, unfollowed atomic.Int64
}

// A tally is padded to whole cache lines.
type tally struct {
	responses, bytes, acks, nacks atomic.Int64
	propagation                   durations

	_ [16]byte
}

// Sent counts a response with the size of its body.
func (t *tally) Sent(bytes int) {
	if t != nil {
		t.responses.Add(1)
		t.bytes.Add(int64(bytes))
	}
}

// Answered counts an ACK, or a NACK if rejected.
func (t *tally) Answered(rejected bool) {
	switch {
	case t == nil:
	case rejected:
		t.nacks.Add(1)
	default:
		t.acks.Add(1)
	}
}

// Propagated counts an accepted change, with the time from its receipt to the ACK.
func (t *tally) Propagated(took time.Duration) {
	if t != nil {
		t.propagation.observe(took)
	}
}

// traced records the span of an accepted change.
func (t *tally) traced(e *Exemplar) {
	if t != nil {
		t.propagation.newest.Store(e)
	}
}

// sum returns the sum over all copies.
func (t *typeCounts) sum() (sum TypeStats) {
	for i := range t.tallies {
		at := &t.tallies[i]
		sum = sum.Plus(TypeStats{at.responses.Load(), at.bytes.Load(), at.acks.Load(), at.nacks.Load(),
			at.propagation.snapshot(), Distribution{}, 0, 0})
	}
	sum.Fanout, sum.GivenUp, sum.Unfollowed = t.fanout.snapshot(), t.givenUp.Load(), t.unfollowed.Load()
	return sum
}

// Bounds are the upper bounds of the buckets of a Distribution. An additional last bucket has longer durations.
var Bounds = [...]time.Duration{
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute,
}

// A Distribution is a histogram of durations.
type Distribution struct {
	Buckets [len(Bounds) + 1]int64 // not cumulative
	Sum     time.Duration

	// Newest is the newest of the durations that have a span; nil if none has one.
	Newest *Exemplar
}

// An Exemplar is one duration of a Distribution, with the span of what took so long. It is read-only.
type Exemplar struct {
	TraceID, SpanID string // hexadecimal digits
	Took            time.Duration
	Ended           time.Time
}

// Count returns the number of durations.
func (d Distribution) Count() (n int64) {
	for _, in := range d.Buckets {
		n += in
	}
	return n
}

// Plus returns the sum of both.
func (d Distribution) Plus(o Distribution) Distribution {
	for i, n := range o.Buckets {
		d.Buckets[i] += n
	}
	d.Sum += o.Sum
	if d.Newest == nil || o.Newest != nil && o.Newest.Ended.After(d.Newest.Ended) {
		d.Newest = o.Newest
	}
	return d
}

// A durations is a Distribution that is being counted. The zero value is ready to use. Its methods may be called from
// any goroutine.
type durations struct {
	buckets [len(Bounds) + 1]atomic.Int64
	sum     atomic.Int64 // nanoseconds
	newest  atomic.Pointer[Exemplar]
}

// observe counts a duration. A negative duration, after the clock was set back, counts as zero.
func (d *durations) observe(took time.Duration) {
	took = max(took, 0)
	class := 0
	for class < len(Bounds) && took > Bounds[class] {
		class++
	}
	d.buckets[class].Add(1)
	d.sum.Add(int64(took))
}

// snapshot returns the current counts.
func (d *durations) snapshot() (out Distribution) {
	for i := range d.buckets {
		out.Buckets[i] = d.buckets[i].Load()
	}
	out.Sum, out.Newest = time.Duration(d.sum.Load()), d.newest.Load()
	return out
}

// Stats are the counters and gauges of a server.
type Stats struct {
	Connections int // open client connections

	// Unread is the number of bytes of MaxUnreadBytes that connections have claimed for buffered requests.
	Unread int64

	Streams  int   // open streams, held polls and streams of load reports
	Accepted int64 // total number of streams and polls

	// Turns counts the turns of streams: a stream gets a turn after a request or after a change of a resource that it may
	// need. IdleTurns counts the turns in which no response was sent.
	Turns, IdleTurns int64

	Waiting int                    // first responses that wait for a turn or a slot
	Ended   map[guard.Ending]int64 // ended streams by reason

	// Refused counts refused connections, handshakes, requests, streams and polls. The stream may continue after a
	// denied name or Secret.
	Refused map[guard.Cause]int64

	// Coalesced counts changes that reached a stream before an earlier change was sent or answered. One response then has
	// all of them.
	Coalesced int64

	// Throttled counts requests that were read later because of MaxRequestRate.
	Throttled int64

	// Saved is the number of bytes by which compression has made the sent responses smaller.
	Saved int64
}

// Streams returns the number of open streams and held polls.
func (s *Server) Streams() int { return int(s.streams.Load()) }

// Stats returns the counters of the server.
func (s *Server) Stats() Stats {
	stats := Stats{
		Streams:   s.Streams(),
		Accepted:  int64(s.accepted.Load()),
		Waiting:   s.queue.newcomerCount() + s.slots.Waiting(),
		Ended:     s.guard.Counters.Ended(),
		Refused:   s.guard.Counters.Causes(),
		Coalesced: s.coalesced.Load(), Saved: s.saved.Load(),
		Throttled: s.throttled.Load(),
	}
	stats.Connections, stats.Unread = s.guard.Usage()
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	stats.Turns, stats.IdleTurns = s.queue.turns, s.queue.idleTurns
	return stats
}
