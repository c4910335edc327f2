package page

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/xdstender/tender/downstream"
)

// The interval of samples, and the maximum number of points that a history returns: those of one hour.
const (
	sampleInterval = 5 * time.Second
	maxPoints      = int(time.Hour / sampleInterval)
)

// A Sample has the counts of a relay at one time.
type Sample struct {
	At      time.Time
	Streams int                  // open streams
	Counts  map[GroupType]Counts // since the start of the groups

	// Latency is the distribution of the time from the receipt of a change to the ACK of a client.
	Latency downstream.Distribution
}

// A GroupType is a type of one node group.
type GroupType struct{ Group, TypeURL string }

// Counts are the numbers of responses of a type that were sent to a group, and of NACKs.
type Counts struct{ Deliveries, Rejections int64 }

// A Point has the rates between two samples.
type Point struct {
	At         time.Time // time of the second sample
	Streams    float64
	Deliveries float64 // per second
	Rejections float64 // per second
	P50, P99   float64 // of the latency, in seconds; NaN without an ACK
}

// A History has the points of the last hour. Its zero value is empty.
type History struct {
	mu     sync.Mutex
	points []Point // oldest first; up to 2*maxPoints, so that Add moves them once an hour
	last   Sample
	rates  map[GroupType]Rates
}

// Rates are the rates of one type in one group, per second.
type Rates struct{ Deliveries, Rejections float64 }

// Run takes samples until ctx ends.
func (h *History) Run(ctx context.Context, read func() Sample) {
	ticker := time.NewTicker(sampleInterval)
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
	for key, counts := range s.Counts {
		earlier := before.Counts[key]                                                         // zero for a new group
		if counts.Deliveries < earlier.Deliveries || counts.Rejections < earlier.Rejections { // the group started again
			earlier = Counts{}
		}
		r := Rates{
			float64(counts.Deliveries-earlier.Deliveries) / seconds,
			float64(counts.Rejections-earlier.Rejections) / seconds,
		}
		h.rates[key] = r
		p.Deliveries += r.Deliveries
		p.Rejections += r.Rejections
	}
	p.P50, p.P99 = quantile(s.Latency, before.Latency, 0.5), quantile(s.Latency, before.Latency, 0.99)
	if len(h.points) == 2*maxPoints {
		h.points = append(h.points[:0], h.points[maxPoints:]...)
	}
	h.points = append(h.points, p)
}

// Points returns the points of the last hour, oldest first.
func (h *History) Points() []Point {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]Point(nil), h.points[max(0, len(h.points)-maxPoints):]...)
}

// Rates returns the rates between the last two samples. The caller must not change the map.
func (h *History) Rates() map[GroupType]Rates {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rates
}

// quantile returns a quantile, in seconds, of the values of d that are not in before. It interpolates within a bucket.
// For values above all bounds, it returns the last bound; without values, NaN.
func quantile(d, before downstream.Distribution, q float64) float64 {
	for i, n := range before.Buckets {
		d.Buckets[i] = max(d.Buckets[i]-n, 0) // counts decrease when a group is removed
	}
	if d.Count() == 0 {
		return math.NaN()
	}
	rank, below, lower := q*float64(d.Count()), 0.0, 0.0
	for i, upper := range downstream.Bounds {
		n := float64(d.Buckets[i])
		if below+n >= rank && n > 0 {
			return lower + (upper.Seconds()-lower)*(rank-below)/n
		}
		below, lower = below+n, upper.Seconds()
	}
	return lower
}
