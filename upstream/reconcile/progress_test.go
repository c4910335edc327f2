package reconcile

import (
	"testing"
	"time"

	"github.com/xdstender/tender/cache"
)

// TestB7_Phases: a set is settled after 150 ms without a response, or 2s, and confirmed after TENDER_COLD_WAIT without
// a new name, or a minute, or a complete list, or 15s of silence on what a snapshot holds.
func TestB7_Phases(t *testing.T) {
	const quiet = 10 * time.Second
	responses := func(news bool, at ...time.Duration) (p Progress) {
		for _, d := range at {
			p.recordResponse(epoch.Add(d), news, quiet)
		}
		return p
	}
	var many []time.Duration
	for i := range 700 {
		many = append(many, time.Duration(i)*100*time.Millisecond)
	}
	complete, told := responses(true, 0), Progress{versionsSent: epoch}
	complete.listed = true
	for _, tt := range []struct {
		name     string
		p        Progress
		after    time.Duration
		before   cache.Phase
		want     cache.Phase
		next     time.Duration // after epoch; zero is never
		complete time.Duration // of a stream that began at epoch
	}{
		{"nothing came", Progress{}, time.Hour, cache.Unknown, cache.Unknown, 0, ConfirmMax},
		{"just now", responses(true, 0), 0, cache.Unknown, cache.Unknown, SettleQuiet, quiet},
		{"settled", responses(true, 0), SettleQuiet, cache.Unknown, cache.Settled, quiet, quiet},
		{"another response", responses(true, 0, time.Second), time.Second, cache.Unknown, cache.Unknown, time.Second + SettleQuiet, time.Second + quiet},
		{"no new name", responses(false, 0, time.Second), 2 * time.Second, cache.Unknown, cache.Settled, quiet, quiet},
		{"without end", responses(true, many[:20]...), settleMax, cache.Unknown, cache.Settled, 1900*time.Millisecond + quiet, 1900*time.Millisecond + quiet},
		{"confirmed", responses(true, 0), quiet, cache.Settled, cache.Confirmed, 0, quiet},
		{"new names without end", responses(true, many...), ConfirmMax, cache.Settled, cache.Confirmed, 0, ConfirmMax},
		{"a list", complete, 0, cache.Unknown, cache.Confirmed, 0, 0},
		{"confirmed already", responses(true, 0), 0, cache.Confirmed, cache.Confirmed, 0, quiet},
		{"told", told, confirmSilence - 1, cache.Settled, cache.Settled, confirmSilence, ConfirmMax},
		{"told what is not known", told, confirmSilence - 1, cache.Unknown, cache.Unknown, confirmSilence, ConfirmMax},
		{"told, and silent", told, confirmSilence, cache.Settled, cache.Confirmed, 0, ConfirmMax},
	} {
		phase, next := tt.p.Phase(epoch.Add(tt.after), tt.before, quiet)
		want := time.Time{}
		if tt.next > 0 {
			want = epoch.Add(tt.next)
		}
		if phase != tt.want || next != want {
			t.Errorf("%s: %v until %v, want %v until %v", tt.name, phase, next, tt.want, want)
		}
		if at := tt.p.CompleteAt(epoch, quiet).Sub(epoch); at != tt.complete {
			t.Errorf("%s: complete after %v, want %v", tt.name, at, tt.complete)
		}
	}
	p := responses(true, 0)
	if p.Settled(epoch.Add(SettleQuiet-1)) || !p.Settled(epoch.Add(SettleQuiet)) || told.Settled(epoch.Add(time.Hour)) {
		t.Error("settled too early, too late, or without a response")
	}
}
