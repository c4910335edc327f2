package demo

import (
	"hash/maphash"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// A content is a hash of the type, name and value of a resource.
type content uint64

var contentSeed = maphash.MakeSeed()

// contentOf returns the content of a resource. A nil value stands for a removed resource.
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

// stampAge is how long the time of a change is kept. A later delivery is not measured. The final comparison with the
// origin still checks that every client received the change.
const stampAge = 10 * time.Minute

// A meter measures the time from a change at the origin until each client receives it. The origin and the clients share
// the clock of the process. The methods are safe for concurrent use.
type meter struct {
	changes    atomic.Int64
	deliveries atomic.Int64 // of changed resources, to clients
	delays     histogram

	mu   sync.RWMutex
	made map[content]time.Time // when the origin got each content; guarded by mu
}

func newMeter() *meter { return &meter{made: make(map[content]time.Time)} }

// stamp records the time of a change. The origin must call it before it publishes the contents.
func (m *meter) stamp(now time.Time, contents ...content) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range contents {
		m.made[c] = now
	}
}

// trim drops the times of changes that are older than stampAge.
func (m *meter) trim(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for c, at := range m.made {
		if now.Sub(at) > stampAge {
			delete(m.made, c)
		}
	}
}

// A reading holds the counters of a meter at one moment, or their difference between two moments.
type reading struct {
	changes, deliveries int64
	delays              distribution
}

// now returns the counters since the start.
func (m *meter) now() reading { return reading{m.changes.Load(), m.deliveries.Load(), m.delays.now()} }

// since returns the difference between r and an earlier reading, which may be zero.
func (r reading) since(earlier reading) reading {
	return reading{r.changes - earlier.changes, r.deliveries - earlier.deliveries, r.delays.since(earlier.delays)}
}

// delivered records that a client received content at a time. Content without a stamp is older than the first change
// and is not counted.
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
	most   atomic.Int64 // longest duration in nanoseconds, exact
}

// slotsPerOctave is the number of slots between two powers of two nanoseconds. It must be a power of two.
const slotsPerOctave = 32

// add counts a duration. A negative duration counts as zero.
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

// slotOf returns the index of the slot that counts a duration of n nanoseconds.
func slotOf(n uint64) int {
	if n < slotsPerOctave {
		return int(n)
	}
	octave := bits.Len64(n) - bits.Len64(slotsPerOctave) // number of low bits to drop, at least 0
	return (octave+1)*slotsPerOctave + int(n>>octave) - slotsPerOctave
}

// middle returns the midpoint of the durations that a slot counts.
func middle(slot int) time.Duration {
	if slot < slotsPerOctave {
		return time.Duration(slot)
	}
	octave := slot/slotsPerOctave - 1
	lower := uint64(slot%slotsPerOctave+slotsPerOctave) << octave
	return time.Duration(lower + uint64(1)<<octave/2)
}

// A distribution holds the counts of a histogram at one moment, or their difference between two moments.
type distribution struct {
	counts []int64 // by slot
	total  int64   // sum of counts
}

// now returns the counts so far. Durations that are added concurrently may be missing.
func (h *histogram) now() distribution {
	d := distribution{counts: make([]int64, len(h.counts))}
	for i := range h.counts {
		n := h.counts[i].Load()
		d.counts[i] = n
		d.total += n
	}
	return d
}

// since returns the difference between d and an earlier distribution.
func (d distribution) since(earlier distribution) distribution {
	out := distribution{counts: make([]int64, len(d.counts)), total: d.total - earlier.total}
	copy(out.counts, d.counts)
	for i, n := range earlier.counts {
		out.counts[i] -= n
	}
	return out
}

// percentile returns the duration that p percent of the durations do not exceed. ok is false if d is empty.
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
