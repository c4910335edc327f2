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

// Counts counts the responses to the streams of one node group and their answers, by type. It is part of the group. The
// zero value is ready. Its methods may be called from any goroutine.
type Counts struct {
	types sync.Map // by type URL, *typeCounts
}

// TypeStats counts the responses of one type to the streams of a group, and their answers.
type TypeStats struct {
	Responses int64 // sent
	Bytes     int64 // of their bodies, before compression
	Acks      int64 // of clients
	Nacks     int64 // of clients

	// Propagation has, for each response that a change caused and the client accepted, the time from the receipt of the
	// origin's message, of the oldest change in the response. First responses, and responses to requests, are not
	// counted.
	Propagation Distribution

	// Fanout has, for each change that was followed, the time from the receipt of the origin's message to the answer of
	// the last client. GivenUp counts changes that some client did not answer within a minute, Unfollowed those that
	// were not followed because 16 changes of the type were already.
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

// Types returns the counters by type URL. Those of types that are not of the protocol are under the empty one.
func (c *Counts) Types() map[string]TypeStats {
	types := make(map[string]TypeStats)
	c.types.Range(func(typeURL, counts any) bool {
		types[typeURL.(string)] = counts.(*typeCounts).sum()
		return true
	})
	return types
}

// tally returns the counters of a type that a stream uses. Types that are not of the protocol share counters: clients
// may invent types.
func (c *Counts) tally(typeURL string, stream uint64) *tally {
	if c == nil {
		return nil
	}
	return &c.countersOf(typeURL).tallies[stream%tallyCount]
}

func (c *Counts) countersOf(typeURL string) *typeCounts {
	if !wire.Known(typeURL) {
		typeURL = ""
	}
	of, ok := c.types.Load(typeURL)
	if !ok {
		of, _ = c.types.LoadOrStore(typeURL, new(typeCounts))
	}
	return of.(*typeCounts)
}

// Followed counts a change whose fan-out is over, and is the [cache.Config.Fanout].
func (c *Counts) Followed(f *fanout.Fanout) {
	typeURL, _, _ := cache.SplitCollection(f.Key)
	switch of := c.countersOf(typeURL); {
	case f.Unfollowed:
		of.unfollowed.Add(1)
	case f.Unanswered() > 0:
		of.givenUp.Add(1)
	case f.Count(fanout.Accepted)+f.Count(fanout.Rejected) > 0:
		of.fanout.observe(f.Took())
	}
}

// tallies is the number of copies of the counters of a type, so that streams that send at the same time rarely write to
// the same cache line.
const tallyCount = 8

type typeCounts struct {
	tallies [tallyCount]tally

	fanout              durations
	givenUp, unfollowed atomic.Int64
}

// A tally is padded to whole cache lines.
type tally struct {
	responses, bytes, acks, nacks atomic.Int64
	propagation                   durations

	_ [24]byte
}

// Sent counts a response with a body of so many bytes.
func (t *tally) Sent(bytes int) {
	if t != nil {
		t.responses.Add(1)
		t.bytes.Add(int64(bytes))
	}
}

// Answered counts the answer to a response.
func (t *tally) Answered(refused bool) {
	switch {
	case t == nil:
	case refused:
		t.nacks.Add(1)
	default:
		t.acks.Add(1)
	}
}

// Propagated counts a change that a client accepted, and the time since its receipt.
func (t *tally) Propagated(took time.Duration) {
	if t != nil {
		t.propagation.observe(took)
	}
}

func (t *typeCounts) sum() (sum TypeStats) {
	for i := range t.tallies {
		at := &t.tallies[i]
		sum = sum.Plus(TypeStats{at.responses.Load(), at.bytes.Load(), at.acks.Load(), at.nacks.Load(), at.propagation.snapshot(), Distribution{}, 0, 0})
	}
	sum.Fanout, sum.GivenUp, sum.Unfollowed = t.fanout.snapshot(), t.givenUp.Load(), t.unfollowed.Load()
	return sum
}

// Bounds are the upper bounds of the buckets of a Distribution; one more bucket has what is longer.
var Bounds = [...]time.Duration{
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute,
}

// A Distribution is a histogram of durations.
type Distribution struct {
	Buckets [len(Bounds) + 1]int64 // each without those of the classes before it
	Sum     time.Duration
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
	return d
}

// durations counts a Distribution. The zero value is ready. Its methods may be called from any goroutine.
type durations struct {
	buckets [len(Bounds) + 1]atomic.Int64
	sum     atomic.Int64 // nanoseconds
}

// observe counts a duration. A negative one, after the clock was set back, counts as zero.
func (d *durations) observe(took time.Duration) {
	took = max(took, 0)
	class := 0
	for class < len(Bounds) && took > Bounds[class] {
		class++
	}
	d.buckets[class].Add(1)
	d.sum.Add(int64(took))
}

// read returns a copy.
func (d *durations) snapshot() (out Distribution) {
	for i := range d.buckets {
		out.Buckets[i] = d.buckets[i].Load()
	}
	out.Sum = time.Duration(d.sum.Load())
	return out
}

// Stats are the counters and gauges of a server.
type Stats struct {
	Connections int // open connections of clients

	// Unread is how many bytes of MaxUnreadBytes connections claim for buffered requests.
	Unread int64

	Streams  int   // open streams, held polls, and streams of load reports
	Accepted int64 // all of these so far

	// Turns counts how often a stream was looked at because something that it may want has changed, or was requested;
	// IdleTurns counts those without a response.
	Turns, IdleTurns int64

	Waiting int                    // first responses that wait for their turn
	Ended   map[guard.Ending]int64 // streams, by reason
	Refused map[guard.Limit]int64  // connections, streams and polls, by limit

	// Denied counts denied actions. After a denied name or Secret, the stream may go on.
	Denied map[guard.Denial]int64

	// Coalesced counts changes that reached a stream before an earlier change was sent, or before the client had
	// answered: one response has all of them.
	Coalesced int64

	// Throttled counts rate-limited requests, which were read later.
	Throttled int64
}

// Stats returns the counters of the server.
func (s *Server) Stats() Stats {
	stats := Stats{
		Streams:   s.Streams(),
		Accepted:  int64(s.accepted.Load()),
		Waiting:   s.queue.newcomerCount() + s.slots.Waiting(),
		Ended:     s.guard.Counters.Ended(),
		Refused:   s.guard.Counters.Refused(),
		Denied:    s.guard.Counters.Denied(),
		Coalesced: s.coalesced.Load(),
		Throttled: s.throttled.Load(),
	}
	stats.Connections, stats.Unread = s.guard.Usage()
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	stats.Turns, stats.IdleTurns = s.queue.turns, s.queue.idleTurns
	return stats
}
