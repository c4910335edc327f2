package downstream

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestEachHerdIsReportedOnce checks that a burst of many streams is reported once when it has been served, and that few
// new streams are not reported.
func TestEachHerdIsReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var busy atomic.Bool
		var open, served, turns atomic.Int64
		a := arrivals{
			onServed: func() { served.Add(1) },
			turns:    func() (int64, bool) { return turns.Load(), busy.Load() },
			open:     open.Load,
		}
		start := func(n int) {
			for range n {
				open.Add(1)
				turns.Add(1)
				a.streamStarted()
			}
		}
		for _, step := range []struct {
			name string
			do   func()
			want int64 // herds served so far
		}{
			{"few streams", func() { start(herdStreams - 1) }, 0},
			{"one more", func() { start(1) }, 1},
			{"a few later", func() { start(herdStreams / 5) }, 1},
			{"a herd, not served yet", func() { busy.Store(true); start(20 * herdStreams) }, 1},
			{"the same, served", func() { busy.Store(false) }, 2},
			{"less than a quarter of the open streams", func() { start(4 * herdStreams) }, 2},
			{"a quarter of the open streams", func() { start(4 * herdStreams) }, 3},
		} {
			step.do()
			time.Sleep(3 * herdPause)
			synctest.Wait()
			if got := served.Load(); got != step.want {
				t.Fatalf("%s: %d herds were served, want %d", step.name, got, step.want)
			}
		}
		start(herdStreams)
		for range 10 { // each pause is shorter than herdPause
			start(herdStreams)
			time.Sleep(herdPause - time.Nanosecond)
		}
		synctest.Wait()
		if got := served.Load(); got != 3 {
			t.Errorf("reported %d times while streams started, want none", got-3)
		}
		time.Sleep(herdPause)
		synctest.Wait()
		if got := served.Load(); got != 3 {
			t.Errorf("reported %d times before the end of herdPause, want none", got-3)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if got := served.Load(); got != 4 {
			t.Errorf("reported %d times after herdPause, want once", got-3)
		}
	})
}

// TestServerReportsHerd checks that all streams of a server count, even if they end immediately.
func TestServerReportsHerd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		view, _ := cache.New(cache.Config{})
		var served atomic.Int64
		server := check.Must(New(Config{Views: oneView{view}, HerdServed: func() { served.Add(1) }}))
		for range herdStreams {
			c := &answeringClient{requests: make(chan wire.Request)}
			close(c.requests)
			check.OK(t, server.serveStream(c, "", true))
		}
		time.Sleep(3 * herdPause)
		synctest.Wait()
		if got := served.Load(); got != 1 {
			t.Errorf("reported %d times, want once", got)
		}
	})
}
