package snapshot

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// TestB42_ACallThatEndsAsItCountsAsHanging: a call returns at the moment at which the relay gives it up, as after a pause
// of the process. Later calls are made.
func TestB42_ACallThatEndsAsItCountsAsHanging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 200 {
			d := startDisk(slog.New(slog.DiscardHandler))
			for range 2 { // the second waits for the first
				go func() { _ = d.call(func() error { time.Sleep(patience); return nil }) }()
			}
			time.Sleep(4 * patience)
			synctest.Wait()
			if err := d.call(func() error { return nil }); err != nil {
				d.stop()
				t.Fatalf("a call after that: %v, want none", err)
			}
			d.stop()
			synctest.Wait()
		}
	})
}
