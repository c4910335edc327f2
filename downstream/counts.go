package downstream

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
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
	return &c.typ(typeURL).tallies[stream%tallies]
}

func (c *Counts) typ(typeURL string) *typeCounts {
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
func (c *Counts) Followed(f *cache.Fanout) {
	typeURL, _, _ := cache.SplitCollection(f.Key)
	switch of := c.typ(typeURL); {
	case f.Unfollowed:
		of.unfollowed.Add(1)
	case f.Unanswered() > 0:
		of.givenUp.Add(1)
	case f.Count(cache.Accepted)+f.Count(cache.Refused) > 0:
		of.fanout.observe(f.Took())
	}
}

// tallies is the number of copies of the counters of a type, so that streams that send at the same time rarely write to
// the same cache line.
const tallies = 8

type typeCounts struct {
	tallies [tallies]tally

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
		sum = sum.Plus(TypeStats{at.responses.Load(), at.bytes.Load(), at.acks.Load(), at.nacks.Load(), at.propagation.read(), Distribution{}, 0, 0})
	}
	sum.Fanout, sum.GivenUp, sum.Unfollowed = t.fanout.read(), t.givenUp.Load(), t.unfollowed.Load()
	return sum
}
