package upstream

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// A streamPace bounds the ADS streams that the views of an origin open: so many at once, and so many a minute (B.35). Those that are
// too many wait, in the order in which they came. What was never opened, for want of a connection, does not count. The methods may
// be called from any goroutine.
type streamPace struct {
	burst, minute float64 // minute 0: nothing is bounded
	log           *slog.Logger

	// Guarded by mu.
	mu      sync.Mutex
	left    float64 // that may be opened at once
	at      time.Time
	waiting []*adsStream
	told    rate.Sometimes
}

// paceLook is how often a stream that waits is looked at, at least: others may have ceased to wait.
const paceLook = time.Second

func newStreamPace(cfg *Config) *streamPace {
	burst := float64(max(cfg.StreamBurst, 1))
	return &streamPace{burst: burst, minute: float64(cfg.StreamRate), left: burst, log: cfg.Logger, told: rate.Sometimes{First: 1, Interval: time.Minute}}
}

// take reports whether a line may open a stream now, which counts from then on. If not, the line waits until take lets it, or leave is
// called, and take returns when to look again.
func (p *streamPace) take(l *adsStream, now time.Time) (next time.Time, ok bool) {
	if p.minute == 0 {
		return time.Time{}, true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if passed := now.Sub(p.at); passed > 0 {
		if !p.at.IsZero() {
			p.left = min(p.left+passed.Minutes()*p.minute, p.burst)
		}
		p.at = now
	}
	place := slices.Index(p.waiting, l)
	if place < 0 {
		place = len(p.waiting)
	}
	if short := float64(place+1) - p.left; short > 0 {
		if place == len(p.waiting) {
			p.waiting, l.waits = append(p.waiting, l), true
			p.told.Do(func() {
				p.log.Warn("streams to the origin wait: views open more than TENDER_ORIGIN_STREAM_RATE allows",
					slog.Int("waiting", len(p.waiting)), slog.Float64("per_minute", p.minute))
			})
		}
		return now.Add(min(time.Duration(short/p.minute*float64(time.Minute))+time.Millisecond, paceLook)), false
	}
	p.left--
	p.remove(l)
	return time.Time{}, true
}

// leave has a line wait no more.
func (p *streamPace) leave(l *adsStream) {
	if !l.waits {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(l)
}

func (p *streamPace) remove(l *adsStream) {
	p.waiting, l.waits = slices.DeleteFunc(p.waiting, func(o *adsStream) bool { return o == l }), false
}

// unopened takes back a stream that was never opened.
func (p *streamPace) unopened() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = min(p.left+1, p.burst)
}

// wait returns how many streams wait.
func (p *streamPace) wait() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiting)
}
