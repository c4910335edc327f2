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

// TestAHerdIsServedOnce: who wants to know is told when many streams have come together
// and have what they came for, once for each herd, and not of the few that come and go.
func TestEachHerdIsReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var busy atomic.Bool
		var open, served, turns atomic.Int64
		a := arrivals{
			onServed: func() { served.Add(1) },
			turns:    func() (int64, bool) { return turns.Load(), busy.Load() },
			open:     open.Load,
		}
		come := func(n int) {
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
			{"few streams", func() { come(herdStreams - 1) }, 0},
			{"one more", func() { come(1) }, 1},
			{"some that come later", func() { come(herdStreams / 5) }, 1},
			{"a herd, not served yet", func() { busy.Store(true); come(20 * herdStreams) }, 1},
			{"the same, served", func() { busy.Store(false) }, 2},
			{"less than a fourth of those there are", func() { come(4 * herdStreams) }, 2},
			{"the rest of that", func() { come(4 * herdStreams) }, 3},
		} {
			step.do()
			time.Sleep(3 * herdPause)
			synctest.Wait()
			if got := served.Load(); got != step.want {
				t.Fatalf("%s: %d herds were served, want %d", step.name, got, step.want)
			}
		}
		come(herdStreams)
		for range 10 { // no pause is long enough
			come(herdStreams)
			time.Sleep(herdPause - time.Nanosecond)
		}
		synctest.Wait()
		if got := served.Load(); got != 3 {
			t.Errorf("told %d times while streams came, want not at all", got-3)
		}
		time.Sleep(herdPause) // in which nothing is sent
		synctest.Wait()
		if got := served.Load(); got != 3 {
			t.Errorf("told %d times while they were sent something, want not at all", got-3)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if got := served.Load(); got != 4 {
			t.Errorf("told %d times after they had come, want once", got-3)
		}
	})
}

// TestAServerCountsArrivals: all streams count, whatever becomes of them.
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
			t.Errorf("told %d times, want once", got)
		}
	})
}
