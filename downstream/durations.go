package downstream

import (
	"sync/atomic"
	"time"
)

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
func (d *durations) read() (out Distribution) {
	for i := range d.buckets {
		out.Buckets[i] = d.buckets[i].Load()
	}
	out.Sum = time.Duration(d.sum.Load())
	return out
}
