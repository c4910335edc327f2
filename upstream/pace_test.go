package upstream

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestB35_StreamRateLimit: views open a limited number of streams at once and per minute, in order of arrival. A waiter
// that gives up delays no other, and a stream that was never opened does not count.
func TestB35_StreamRateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		p := newStreamLimiter(&Config{StreamBurst: 3, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		lines := make([]adsStream, 10)
		take := func(i int, want bool) {
			t.Helper()
			if next, ok := p.allow(&lines[i].waiter, time.Now()); ok != want || !ok && (!next.After(time.Now()) || time.Until(next) > limiterPoll) {
				t.Errorf("allow stream %d: %t (next call in %v), want %t", i, ok, time.Until(next), want)
			}
		}
		for i := range 3 {
			take(i, true)
		}
		for range 2 {
			take(3, false)
			take(4, false)
		}
		check.Equal(t, "waiting streams", p.waitingCount(), 2)
		time.Sleep(time.Minute / streamsPerMinute)
		take(4, false) // stream 3 is before it in the queue
		take(3, true)
		take(5, false)
		p.stopWaiting(&lines[4].waiter)
		time.Sleep(time.Minute / streamsPerMinute)
		take(5, true)
		take(6, false)
		p.refund()
		take(6, true)
		time.Sleep(time.Hour)
		for i := range 3 {
			take(i, true)
		}
		take(3, false)
		p.stopWaiting(&lines[3].waiter)
		p.stopWaiting(&lines[3].waiter)
		check.Equal(t, "waiting streams", p.waitingCount(), 0)
		for _, line := range []string{"upstream streams delayed by the rate limit", "upstream streams no longer delayed"} {
			check.Equal(t, line, strings.Count(log.String(), line), 2) // the second time an hour later
		}
		unbounded := newStreamLimiter(&Config{})
		for range 1000 {
			if _, ok := unbounded.allow(&lines[0].waiter, time.Now()); !ok {
				t.Fatal("a stream waits although there is no limit")
			}
		}
	})
}

// TestB35_StreamRateLimitUnderChurn: the rate and the burst limit the streams opened per minute, even if nine of ten
// waiting streams give up. The limit is used up.
func TestB35_StreamRateLimitUnderChurn(t *testing.T) {
	p := newStreamLimiter(&Config{StreamBurst: 20, Logger: slog.New(slog.DiscardHandler)})
	opened, waiting, now := 0, []*adsStream{}, epoch
	for range 60 * 100 { // each 10ms, a stream arrives
		if waiting = append(waiting, new(adsStream)); len(waiting) > 50 {
			p.stopWaiting(&waiting[0].waiter)
			waiting = waiting[1:]
		}
		waiting = slices.DeleteFunc(waiting, func(l *adsStream) bool {
			_, ok := p.allow(&l.waiter, now)
			if ok {
				opened++
			}
			return ok
		})
		now = now.Add(10 * time.Millisecond)
	}
	check.Equal(t, "streams opened until 59.99s", opened, streamsPerMinute-1+20)
}
