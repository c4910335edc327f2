package upstream

import (
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/connectivity"
)

// A streamLimiter is a token bucket that limits the ADS streams that the views of an origin open (B.35). A stream
// without a token waits; the limiter serves waiters in order of arrival. An attempt that fails without a connection
// returns its token. The methods may be called from any goroutine.
type streamLimiter struct {
	burst float64 // no limit if 0
	log   *slog.Logger

	// Guarded by mu.
	mu         sync.Mutex
	tokens     float64         // streams that may be opened now
	refilledAt time.Time       // when tokens were last added; zero before the first call of allow
	waiting    []*streamWaiter // in order of arrival
	logLimit   rate.Sometimes
	logged     bool // streams that wait were logged, and not their end
}

// A streamWaiter is a stream that may have to wait. Only the loop that opens the stream may use it.
type streamWaiter struct{ waiting bool }

// limiterPoll is the longest interval between two calls of allow for a waiting stream. The stream may be allowed before
// the computed time, because earlier waiters may call stopWaiting.
const limiterPoll = time.Second

// streamsPerMinute limits the streams that views open to an origin, after a burst.
const streamsPerMinute = 600

// newStreamLimiter returns a limiter with a full bucket. If cfg.StreamBurst is zero, it limits nothing.
func newStreamLimiter(cfg *Config) *streamLimiter {
	burst := float64(cfg.StreamBurst)
	return &streamLimiter{
		burst: burst, tokens: burst,
		log: cfg.Logger, logLimit: rate.Sometimes{First: 1, Interval: time.Minute},
	}
}

// allow takes a token for a stream and returns true, or makes the stream wait. In this case, the caller must call allow
// again at next, or stopWaiting.
func (p *streamLimiter) allow(l *streamWaiter, now time.Time) (next time.Time, ok bool) {
	if p.burst == 0 {
		return time.Time{}, true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refill(now)
	place := slices.Index(p.waiting, l)
	if place < 0 {
		place = len(p.waiting)
	}
	if short := float64(place+1) - p.tokens; short > 0 {
		if place == len(p.waiting) {
			p.waiting, l.waiting = append(p.waiting, l), true
			p.logLimit.Do(func() {
				p.logged = true
				p.log.Warn("upstream streams delayed by the rate limit",
					slog.Int("waiting", len(p.waiting)), slog.Int("per_minute", streamsPerMinute))
			})
		}
		return now.Add(min(time.Duration(short/streamsPerMinute*float64(time.Minute))+time.Millisecond, limiterPoll)), false
	}
	p.tokens--
	p.remove(l)
	return time.Time{}, true
}

// spare reports whether more than half of the tokens are there and no stream waits. Isolated streams use only these
// tokens, so that a client that adds subscriptions which end streams does not delay the streams of other views.
func (p *streamLimiter) spare(now time.Time) bool {
	if p.burst == 0 {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refill(now)
	return len(p.waiting) == 0 && p.tokens > p.burst/2
}

// refill adds the tokens since the last call. The caller must hold mu.
func (p *streamLimiter) refill(now time.Time) {
	if passed := now.Sub(p.refilledAt); passed > 0 {
		if !p.refilledAt.IsZero() {
			p.tokens = min(p.tokens+passed.Minutes()*streamsPerMinute, p.burst)
		}
		p.refilledAt = now
	}
}

// stopWaiting removes a stream from the queue, if it is there.
func (p *streamLimiter) stopWaiting(l *streamWaiter) {
	if !l.waiting {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(l)
}

// remove removes a stream from the queue. The caller must hold mu.
func (p *streamLimiter) remove(l *streamWaiter) {
	p.waiting, l.waiting = slices.DeleteFunc(p.waiting, func(o *streamWaiter) bool { return o == l }), false
	if len(p.waiting) == 0 && p.logged {
		p.log.Info("upstream streams no longer delayed by the rate limit")
		p.logged = false
	}
}

// refund returns the token of a stream that was never opened.
func (p *streamLimiter) refund() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tokens = min(p.tokens+1, p.burst)
}

// waitingCount returns the number of streams that wait.
func (p *streamLimiter) waitingCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiting)
}

const (
	// failBackAfter is how long an earlier target must have been reachable before the session fails back to it.
	// failBackInterval is how often the session checks that.
	failBackAfter    = 10 * time.Minute
	failBackInterval = 5 * time.Second

	// minConnectionLife is the age from which the close of a connection does not count as an interruption: servers
	// close idle connections.
	minConnectionLife = time.Minute
)

// A reachability records since when a target has been reachable without interruption. Its methods may be called from
// any goroutine, except observe, which belongs to one.
type reachability struct {
	reachableSince atomic.Pointer[time.Time] // nil while the target is unreachable

	readyAt time.Time // start of the current connection, zero if there is none; belongs to observe
}

// observe records a state of the connection to the target.
func (r *reachability) observe(state connectivity.State, now time.Time) {
	switch state {
	case connectivity.Ready:
		r.readyAt = now
		r.reachableSince.CompareAndSwap(nil, &now)
	case connectivity.TransientFailure:
		r.reachableSince.Store(nil)
	default:
		if !r.readyAt.IsZero() && now.Sub(r.readyAt) < minConnectionLife {
			r.reachableSince.Store(nil)
		}
		r.readyAt = time.Time{}
	}
}

// streamFailed makes the time start over, because a stream to the target failed.
func (r *reachability) streamFailed(now time.Time) {
	if r.reachableSince.Load() != nil {
		r.reachableSince.Store(&now)
	}
}

// stable reports whether the target has been reachable for failBackAfter.
func (r *reachability) stable(now time.Time) bool {
	since := r.reachableSince.Load()
	return since != nil && now.Sub(*since) >= failBackAfter
}

// failoverThreshold is how many consecutive attempts must fail before the session leaves an address or fails over. A
// single failure may be a restart of the target.
const failoverThreshold = 2

// A failureTracker decides when the session leaves the address that it is connected to, or its active target (B.40).
// Only failures of the address count. An error that concerns one view does not, nor does silence. Its methods may be
// called from any goroutine.
type failureTracker struct {
	mu        sync.Mutex
	responded bool                 // a stream received a response since the connection came up
	byUser    map[any]userFailures // a user is the sync of a view, a probe, or the session for load reports
}

// userFailures are the consecutive failures of one user of a target.
type userFailures struct {
	usesADS            bool // its streams receive ADS responses, unlike those of load reports
	connectFailures    int  // attempts that failed because there was no connection
	lastConnectFailure time.Time
	streamFailures     int // open streams that ended without a response
}

// connectionUp resets all failures, because there is a new connection.
func (a *failureTracker) connectionUp() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.responded = false
	a.reset()
}

// reset resets the failures of all users. The caller must hold mu.
func (a *failureTracker) reset() {
	for by := range a.byUser {
		a.byUser[by] = userFailures{usesADS: a.byUser[by].usesADS}
	}
}

// streamStarted records that a user opens an ADS stream.
func (a *failureTracker) streamStarted(by any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	of := a.byUser[by]
	of.usesADS = true
	a.store(by, of)
}

// responseReceived records that a stream received a response.
func (a *failureTracker) responseReceived() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.responded = true
}

// connectFailed records that a stream was not opened because there was no connection. It reports whether to fail over.
// Failures of one user within ReconnectMax count once.
func (a *failureTracker) connectFailed(by any, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	of := a.byUser[by]
	if now.Sub(of.lastConnectFailure) < ReconnectMax {
		return false
	}
	of.connectFailures, of.lastConnectFailure = of.connectFailures+1, now
	a.store(by, of)
	return of.connectFailures >= failoverThreshold
}

// streamFailed records that an open stream ended without a response. It reports whether to leave the address: the ADS
// streams of all users fail, and none received a response. A load balancer without backends accepts connections and
// ends all streams. So does a server that is overloaded, has lost its database, or refuses the token of the relay, with
// any code. The failures of all users then start over.
func (a *failureTracker) streamFailed(by any) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	of := a.byUser[by]
	of.streamFailures++
	a.store(by, of)
	for _, other := range a.byUser {
		if other.usesADS && other.streamFailures < failoverThreshold {
			return false
		}
	}
	if a.responded {
		return false
	}
	a.reset()
	return true
}

// store sets the failures of a user. The caller must hold mu.
func (a *failureTracker) store(by any, of userFailures) {
	if a.byUser == nil {
		a.byUser = make(map[any]userFailures)
	}
	a.byUser[by] = of
}

// forget removes a user.
func (a *failureTracker) forget(by any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.byUser, by)
}
