package page

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/xdstender/tender/downstream"
)

// How often a history takes a sample, and how many it keeps: those of an hour.
const (
	interval = 5 * time.Second
	kept     = int(time.Hour / interval)
)

// A Sample is what a relay had counted at a moment.
type Sample struct {
	At      time.Time
	Streams int                  // that were open
	Counts  map[GroupType]Counts // since the groups began

	// Latency is how long changes took from the origin until clients accepted them.
	Latency downstream.Distribution
}

// A GroupType is a type of one node group.
type GroupType struct{ Group, TypeURL string }

// Counts count what the streams of a group were sent of a type, and what they refused of it.
type Counts struct{ Deliveries, Refusals int64 }

// A Point is what happened between two samples.
type Point struct {
	At         time.Time // of the second one
	Streams    float64
	Deliveries float64 // a second
	Refusals   float64 // per second
	P50, P99   float64 // of the latency, in seconds; not a number if nothing was accepted
}

// A History has samples of the last hour of a relay. Its zero value is empty.
type History struct {
	mu     sync.Mutex
	points []Point // oldest first; up to twice as many as are kept, so that they are moved once an hour
	last   Sample
	rates  map[GroupType]Rates
}

// Rates are those of one type in one group, a second.
type Rates struct{ Deliveries, Refusals float64 }

// Run takes samples until ctx ends.
func (h *History) Run(ctx context.Context, read func() Sample) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		h.Add(read())
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// Add adds a sample.
func (h *History) Add(s Sample) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.last
	h.last = s
	seconds := s.At.Sub(before.At).Seconds()
	if before.At.IsZero() || seconds <= 0 {
		return
	}
	h.rates = make(map[GroupType]Rates, len(s.Counts))
	p := Point{At: s.At, Streams: float64(s.Streams)}
	for of, counts := range s.Counts {
		had := before.Counts[of] // zero for a new group
		if counts.Deliveries < had.Deliveries || counts.Refusals < had.Refusals {
			had = Counts{}
		}
		r := Rates{float64(counts.Deliveries-had.Deliveries) / seconds, float64(counts.Refusals-had.Refusals) / seconds}
		h.rates[of] = r
		p.Deliveries += r.Deliveries
		p.Refusals += r.Refusals
	}
	p.P50, p.P99 = quantile(s.Latency, before.Latency, 0.5), quantile(s.Latency, before.Latency, 0.99)
	if len(h.points) == 2*kept {
		h.points = append(h.points[:0], h.points[kept:]...)
	}
	h.points = append(h.points, p)
}

// Points returns those of the last hour, oldest first.
func (h *History) Points() []Point {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]Point(nil), h.points[max(0, len(h.points)-kept):]...)
}

// Rates returns those between the last two samples. The map must not be changed.
func (h *History) Rates() map[GroupType]Rates {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rates
}

// quantile returns how many seconds it took at most in that part of the cases that came after an earlier reading, as
// far as the classes tell: of what is above all of them it is the last bound. It is not a number if there are no such
// cases.
func quantile(d, before downstream.Distribution, part float64) float64 {
	for i, n := range before.Buckets {
		d.Buckets[i] = max(d.Buckets[i]-n, 0) // the counts of removed groups are lost
	}
	if d.Count() == 0 {
		return math.NaN()
	}
	rank, below, lower := part*float64(d.Count()), 0.0, 0.0
	for i, upper := range downstream.Bounds {
		n := float64(d.Buckets[i])
		if below+n >= rank && n > 0 {
			return lower + (upper.Seconds()-lower)*(rank-below)/n
		}
		below, lower = below+n, upper.Seconds()
	}
	return lower
}
