package page

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestBackground verifies that a call starts only when a page asks for a result that is too old, that a slow call leaves
// a longer pause, and that close cancels a call.
func TestBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, takes := 0, 10*time.Millisecond
		b := newBackground(time.Second, func(ctx context.Context) int {
			calls++
			n := calls
			select {
			case <-time.After(takes):
			case <-ctx.Done():
			}
			return n
		})
		want := func(when string, result, called int) {
			t.Helper()
			synctest.Wait() // until a call that ends now has ended
			got, _ := b.latest(time.Now())
			synctest.Wait() // until a call that starts now has started
			if shown := 0; got != nil && *got != result || got == nil && result != shown || calls != called {
				t.Errorf("%s: result %v and %d calls, want %d and %d", when, got, calls, result, called)
			}
		}
		want("at first", 0, 1)
		want("during the call", 0, 1)
		time.Sleep(takes)
		want("after the call", 1, 1)
		time.Sleep(time.Second)
		takes = time.Second
		want("a second later", 1, 2)
		time.Sleep(takes)
		want("after a slow call", 2, 2)
		time.Sleep(19 * time.Second)
		want("during the pause", 2, 2)
		time.Sleep(time.Second)
		takes = time.Hour
		want("after the pause", 2, 3)
		b.close()
		want("after close", 3, 3)
	})
}
