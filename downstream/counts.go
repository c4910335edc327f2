package downstream

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// Counts count what the streams of one node group were sent and what they answered, by
// type. The zero value is ready; whoever has the group has them, and they end with it. Its
// methods may be called from any goroutine.
type Counts struct {
	types sync.Map // by type URL, *typeCounts
}

// TypeStats are what the streams of a group were sent of one type, and what they answered.
type TypeStats struct {
	Responses int64 // that were sent
	Bytes     int64 // of their bodies, before compression
	Acks      int64 // responses that clients took
	Nacks     int64 // responses that clients refused

	// Propagation has, of each response that a change caused and that its client accepted, how long that took
	// from when the origin's message was received: of several changes in one response, the oldest. First
	// responses, and what clients asked for, are not in it.
	Propagation Distribution

	// Fanout has, of each change that was followed, how long it took from when the origin's message was
	// received to the answer of the last client. ContentDroppedAt counts changes that some client did not answer in a
	// minute, and Unfollowed those that were not followed, since enough of the type were already.
	Fanout              Distribution
	GivenUp, Unfollowed int64
}

// Plus returns the sums of both.
func (s TypeStats) Plus(o TypeStats) TypeStats {
	return TypeStats{
		s.Responses + o.Responses, s.Bytes + o.Bytes, s.Acks + o.Acks, s.Nacks + o.Nacks,
		s.Propagation.Plus(o.Propagation), s.Fanout.Plus(o.Fanout), s.GivenUp + o.GivenUp, s.Unfollowed + o.Unfollowed,
	}
}

// Types returns what was counted, by type URL; under the empty one, of types that the
// protocol does not know.
func (c *Counts) Types() map[string]TypeStats {
	types := make(map[string]TypeStats)
	c.types.Range(func(typeURL, counts any) bool {
		types[typeURL.(string)] = counts.(*typeCounts).sum()
		return true
	})
	return types
}

// tally returns where a stream counts a type. What the protocol does not know is counted
// together: clients may make types up.
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

// Followed counts a change that is over, as [cache.Config.Fanout] tells of it.
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

// tallies is in how many places streams count, so that those who send at the same time
// seldom meet at one: what is counted there is then in the cache of their processor.
const tallies = 8

type typeCounts struct {
	tallies [tallies]tally

	fanout              durations
	givenUp, unfollowed atomic.Int64
}

// A tally has lines of the processor's cache for itself.
type tally struct {
	responses, bytes, acks, nacks atomic.Int64
	propagation                   durations

	_ [24]byte
}

// Sent counts a response whose body has so many bytes.
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

// Propagated counts a change that a client has accepted, so long after the relay received it.
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
