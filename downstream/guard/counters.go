package guard

import (
	"sync/atomic"
)

// Counters count ended streams and rejected clients. The zero value is ready.
type Counters struct {
	ended   [endings]atomic.Int64
	refused [limits]atomic.Int64
	denied  [denials]atomic.Int64
}

// StreamEnded counts a stream that ended with err, which may be nil.
func (c *Counters) StreamEnded(err error) {
	c.ended[endingOf(err)].Add(1)
	c.Rejected(err)
}

// Rejected counts an error of [Exceeds] or [Denies]. It ignores other errors.
func (c *Counters) Rejected(err error) {
	if l, is := LimitOf(err); is {
		c.refused[l].Add(1)
	}
	if d, is := DenialOf(err); is {
		c.denied[d].Add(1)
	}
}

// Ended returns the number of streams that ended, by reason.
func (c *Counters) Ended() map[Ending]int64 { return read[Ending](c.ended[:]) }

// Refused returns how often each limit was reached.
func (c *Counters) Refused() map[Limit]int64 { return read[Limit](c.refused[:]) }

// Denied returns how often each action was denied.
func (c *Counters) Denied() map[Denial]int64 { return read[Denial](c.denied[:]) }

func read[K ~int](counters []atomic.Int64) map[K]int64 {
	values := make(map[K]int64, len(counters))
	for i := range counters {
		values[K(i)] = counters[i].Load()
	}
	return values
}
