package upstream

import (
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
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
	waiting []*turn
	told    rate.Sometimes
}

// A turn is a stream that waits to be opened.
type turn struct{ waits bool }

// paceLook is how often a stream that waits is looked at, at least: others may have ceased to wait.
const paceLook = time.Second

func newStreamPace(cfg *Config) *streamPace {
	burst := float64(max(cfg.StreamBurst, 1))
	return &streamPace{burst: burst, minute: float64(cfg.StreamRate), left: burst, log: cfg.Logger, told: rate.Sometimes{First: 1, Interval: time.Minute}}
}

// take reports whether a stream may be opened now, which counts from then on. If not, it waits until take lets it, or leave is
// called, and take returns when to look again.
func (p *streamPace) take(l *turn, now time.Time) (next time.Time, ok bool) {
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
				p.log.Warn("upstream streams delayed by TENDER_ORIGIN_STREAM_RATE",
					slog.Int("waiting", len(p.waiting)), slog.Float64("per_minute", p.minute))
			})
		}
		return now.Add(min(time.Duration(short/p.minute*float64(time.Minute))+time.Millisecond, paceLook)), false
	}
	p.left--
	p.remove(l)
	return time.Time{}, true
}

// leave ends the wait of a stream.
func (p *streamPace) leave(l *turn) {
	if !l.waits {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(l)
}

func (p *streamPace) remove(l *turn) {
	p.waiting, l.waits = slices.DeleteFunc(p.waiting, func(o *turn) bool { return o == l }), false
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

const (
	// returnAfter is how long a target must have been reachable before the relay returns to
	// it, and lookBackEvery how often that is looked at.
	returnAfter   = 10 * time.Minute
	lookBackEvery = 5 * time.Second

	// lasting is how long a connection must have lasted for its end to be no break: servers
	// end those that carry nothing.
	lasting = time.Minute
)

// A reach is since when a target could be reached without a break. Its methods may be
// called from any goroutine, but for saw.
type reach struct {
	since atomic.Pointer[time.Time] // nil: it cannot

	readyAt time.Time // of watch: when the connection that is there came to be
}

// saw takes a state of the connection to the target. It belongs to watch.
func (r *reach) saw(state connectivity.State, now time.Time) {
	switch state {
	case connectivity.Ready:
		r.readyAt = now
		r.since.CompareAndSwap(nil, &now)
	case connectivity.TransientFailure:
		r.since.Store(nil)
	default:
		if !r.readyAt.IsZero() && now.Sub(r.readyAt) < lasting {
			r.since.Store(nil)
		}
		r.readyAt = time.Time{}
	}
}

// failed takes that a stream to the target failed, whatever its connection.
func (r *reach) failed(now time.Time) {
	if r.since.Load() != nil {
		r.since.Store(&now)
	}
}

// steady reports whether the target could be reached for long enough to return to it.
func (r *reach) steady(now time.Time) bool {
	since := r.since.Load()
	return since != nil && now.Sub(*since) >= returnAfter
}

// failuresInARow is how many attempts in a row must fail before an address is left: of one, a restart is the cause.
const failuresInARow = 2

// attempts tell whether to leave the address in use (B.40). That is about the address alone: what one view is told, such as that
// it may not ask, or nothing at all, says nothing about it. Its methods may be called from any goroutine.
type attempts struct {
	mu       sync.Mutex
	answered bool             // a stream had a response since the connection is up
	failures map[any]failures // by who uses the address: the sync of a view, or the session for load reports
}

// failures are those of one user, in a row.
type failures struct {
	asks        bool      // it has a stream that is answered by responses
	unconnected int       // for want of a connection
	at          time.Time // the last of them
	unavailable int       // of open streams that ended UNAVAILABLE without a response
}

// connected notes that there is a connection.
func (a *attempts) connected() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answered = false
	for by := range a.failures {
		a.failures[by] = failures{asks: a.failures[by].asks}
	}
}

// began notes that a view opens a stream.
func (a *attempts) began(by any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	of := a.failures[by]
	of.asks = true
	a.set(by, of)
}

// responded notes that a stream had a response.
func (a *attempts) responded() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answered = true
}

// unconnected notes that a stream was not opened, since there is no connection, and reports whether to leave the address.
// Streams that fail at once are one attempt.
func (a *attempts) unconnected(by any, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	of := a.failures[by]
	if now.Sub(of.at) < ReconnectMax {
		return false
	}
	of.unconnected, of.at = of.unconnected+1, now
	a.set(by, of)
	return of.unconnected >= failuresInARow
}

// ended notes that a view's stream, which was open, ended without a response, and reports whether to leave the address: a load
// balancer without servers takes connections and ends all streams.
func (a *attempts) ended(by any, err error) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	of := a.failures[by]
	if of.unavailable++; status.Code(err) != codes.Unavailable {
		of.unavailable = 0
	}
	a.set(by, of)
	for _, other := range a.failures {
		if other.asks && other.unavailable < failuresInARow {
			return false
		}
	}
	return !a.answered
}

// set records the failures of a user. The lock must be held.
func (a *attempts) set(by any, of failures) {
	if a.failures == nil {
		a.failures = make(map[any]failures)
	}
	a.failures[by] = of
}

// left forgets a view.
func (a *attempts) left(by any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.failures, by)
}
