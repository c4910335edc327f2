package relay

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/cache"
)

// TestB43_AuditTimeIsLimited checks that an audit works for auditWork in each auditTick.
func TestB43_AuditTimeIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, pauses := time.Now(), 0
		proceed := pacer(t.Context())
		for range 100 {
			time.Sleep(time.Millisecond) // a piece of work
			before := time.Now()
			if !proceed() {
				t.Fatal("pacer returned false before ctx was canceled")
			}
			if time.Since(before) > 0 {
				pauses++
			}
		}
		if got, want := time.Since(began), 20*auditTick+100*time.Millisecond; got != want || pauses != 20 {
			t.Errorf("100 ms of work: took %v with %d pauses, want %v with 20", got, pauses, want)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		proceed = pacer(ctx)
		time.Sleep(auditWork)
		if proceed() {
			t.Error("pacer returned true after ctx was canceled")
		}
	})
}

// TestB43_PersistentFaultsAreLoggedOnce logs a bounded number of faults, each once, and counts them in each pass.
func TestB43_PersistentFaultsAreLoggedOnce(t *testing.T) {
	var log strings.Builder
	a := &auditor{log: slog.New(slog.NewTextHandler(&log, nil))}
	view, w := cache.New(cache.Config{})
	view.Watch().Subscribe("t", strings.Split("abcdefghijklmnopqrst", ""))
	w.TakeDemand()
	watch := view.Watch()
	for _, name := range strings.Split("abcdefghijklmnopqrst", "") {
		watch.Subscribe("t", []string{name})
	}
	watch.Close() // a fault: its names are still counted
	v := auditedView{view, "all", "all"}
	noPause := func() bool { return true }
	faults := a.audit(v, nil, noPause)
	if len(faults) != 20 || a.stats().Faults != 20 {
		t.Errorf("got %d faults and %+v, want 20", len(faults), a.stats())
	}
	if got := strings.Count(log.String(), "level=ERROR"); got != maxAuditLines+1 ||
		!strings.Contains(log.String(), "more=10") {
		t.Errorf("got %d lines, want %d, the last with the number of further faults:\n%s", got, maxAuditLines, log.String())
	}
	log.Reset()
	if again := a.audit(v, faults, noPause); len(again) != 20 || log.Len() > 0 || a.stats().Faults != 40 {
		t.Errorf("again: got %d faults, log %q and %+v, want 20 counted and none logged", len(again), log.String(), a.stats())
	}
}
