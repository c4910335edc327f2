package demo

import (
	"hash/maphash"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// A content identifies a resource as it was at some moment: its type, name and
// bytes.
type content uint64

var contentSeed = maphash.MakeSeed()

// contentOf returns the content of a resource; value is nil for one that is not
// there.
func contentOf(typeURL, name string, value []byte) content {
	var h maphash.Hash
	h.SetSeed(contentSeed)
	_, _ = h.WriteString(typeURL) // never fails
	_ = h.WriteByte(0)
	_, _ = h.WriteString(name)
	_ = h.WriteByte(0)
	_, _ = h.Write(value)
	return content(h.Sum64())
}

// stampAge is how long a change is remembered. A client that learns of it later
// is not measured; that all of them learned is seen at the end.
const stampAge = 10 * time.Minute

// A meter measures the time from a change at the origin to each client that has
// it. Both are in this process and look at the same clock. Its methods may be
// called from any goroutine.
type meter struct {
	changes    atomic.Int64
	deliveries atomic.Int64 // of changed resources, to clients
	delays     histogram

	// made is guarded by mu, and holds when content became the origin's.
	mu   sync.RWMutex
	made map[content]time.Time
}

func newMeter() *meter { return &meter{made: make(map[content]time.Time)} }

// stamp records that contents are about to become the origin's.
func (m *meter) stamp(now time.Time, contents ...content) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range contents {
		m.made[c] = now
	}
}

// trim forgets what was made long ago.
func (m *meter) trim(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for c, at := range m.made {
		if now.Sub(at) > stampAge {
			delete(m.made, c)
		}
	}
}

// A reading is what a meter counted up to one moment, or between two.
type reading struct {
	changes, deliveries int64
	delays              distribution
}

func (m *meter) now() reading { return reading{m.changes.Load(), m.deliveries.Load(), m.delays.now()} }

// since returns what r has more than an earlier reading, which may be zero.
func (r reading) since(earlier reading) reading {
	return reading{r.changes - earlier.changes, r.deliveries - earlier.deliveries, r.delays.since(earlier.delays)}
}

// delivered records that a client received content at a time. Content from before the first change has no stamp and does
// not count.
func (m *meter) delivered(c content, at time.Time) {
	m.mu.RLock()
	made, ok := m.made[c]
	m.mu.RUnlock()
	if ok {
		m.deliveries.Add(1)
		m.delays.add(at.Sub(made))
	}
}

// A histogram counts durations from microseconds to minutes, with an error of 2% and a fixed size.
type histogram struct {
	counts [64 * slotsPerOctave]atomic.Int64
	most   atomic.Int64 // the longest, exactly, in nanoseconds
}

// slotsPerOctave is how many slots there are from one power of two nanoseconds
// to the next. It is a power of two.
const slotsPerOctave = 32

func (h *histogram) add(d time.Duration) {
	n := max(int64(d), 0)
	h.counts[slotOf(uint64(n))].Add(1)
	for {
		most := h.most.Load()
		if n <= most || h.most.CompareAndSwap(most, n) {
			return
		}
	}
}

func slotOf(n uint64) int {
	if n < slotsPerOctave {
		return int(n)
	}
	octave := bits.Len64(n) - bits.Len64(slotsPerOctave) // of the upper bits, at least 0
	return (octave+1)*slotsPerOctave + int(n>>octave) - slotsPerOctave
}

// middle returns the middle of the durations of a slot.
func middle(slot int) time.Duration {
	if slot < slotsPerOctave {
		return time.Duration(slot)
	}
	octave := slot/slotsPerOctave - 1
	lower := uint64(slot%slotsPerOctave+slotsPerOctave) << octave
	return time.Duration(lower + uint64(1)<<octave/2)
}

// A distribution is what a histogram held at one moment, or gained between two.
type distribution struct {
	counts []int64
	total  int64
}

func (h *histogram) now() distribution {
	d := distribution{counts: make([]int64, len(h.counts))}
	for i := range h.counts {
		n := h.counts[i].Load()
		d.counts[i] = n
		d.total += n
	}
	return d
}

// since returns what d has more than an earlier distribution.
func (d distribution) since(earlier distribution) distribution {
	out := distribution{counts: make([]int64, len(d.counts)), total: d.total - earlier.total}
	copy(out.counts, d.counts)
	for i, n := range earlier.counts {
		out.counts[i] -= n
	}
	return out
}

// percentile returns the duration that p percent do not exceed; ok is false if
// there are none.
func (d distribution) percentile(p float64) (_ time.Duration, ok bool) {
	if d.total == 0 {
		return 0, false
	}
	rank := max(int64(math.Ceil(float64(d.total)*p/100)), 1)
	for slot, n := range d.counts {
		if rank -= n; rank <= 0 {
			return middle(slot), true
		}
	}
	return 0, false
}
