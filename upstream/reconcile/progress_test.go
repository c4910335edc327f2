package reconcile

import (
	"testing"
	"time"

	"github.com/xdstender/tender/cache"
)

// TestB7_Phases checks when the phase of a set changes. A set is settled after 150 ms without a response, or after 2s.
// It is confirmed after TENDER_COLD_WAIT without a new name, after a minute, or by a complete list. The content of a
// snapshot is confirmed after 15s without a response.
func TestB7_Phases(t *testing.T) {
	const quiet = 10 * time.Second
	responses := func(newNames bool, at ...time.Duration) (p Progress) {
		for _, d := range at {
			p.recordResponse(epoch.Add(d), newNames, quiet)
		}
		return p
	}
	var many []time.Duration
	for i := range 700 {
		many = append(many, time.Duration(i)*100*time.Millisecond)
	}
	listed, restored := responses(true, 0), Progress{versionsSent: epoch}
	listed.listed = true
	for _, tt := range []struct {
		name     string
		p        Progress
		after    time.Duration
		before   cache.Phase
		want     cache.Phase
		next     time.Duration // after epoch; zero is never
		complete time.Duration // of a stream that began at epoch
	}{
		{"no response", Progress{}, time.Hour, cache.Unknown, cache.Unknown, 0, ConfirmMax},
		{"response just now", responses(true, 0), 0, cache.Unknown, cache.Unknown, SettleQuiet, quiet},
		{"settled", responses(true, 0), SettleQuiet, cache.Unknown, cache.Settled, quiet, quiet},
		{"another response", responses(true, 0, time.Second), time.Second, cache.Unknown,
			cache.Unknown, time.Second + SettleQuiet, time.Second + quiet},
		{"no new name", responses(false, 0, time.Second), 2 * time.Second, cache.Unknown, cache.Settled, quiet, quiet},
		{"continuous responses", responses(true, many[:20]...), settleMax, cache.Unknown,
			cache.Settled, 1900*time.Millisecond + quiet, 1900*time.Millisecond + quiet},
		{"confirmed", responses(true, 0), quiet, cache.Settled, cache.Confirmed, 0, quiet},
		{"continuous new names", responses(true, many...), ConfirmMax, cache.Settled, cache.Confirmed, 0, ConfirmMax},
		{"complete list", listed, 0, cache.Unknown, cache.Confirmed, 0, 0},
		{"confirmed already", responses(true, 0), 0, cache.Confirmed, cache.Confirmed, 0, quiet},
		{"versions of a snapshot sent", restored, confirmSilence - 1, cache.Settled,
			cache.Settled, confirmSilence, ConfirmMax},
		{"versions sent, phase unknown", restored, confirmSilence - 1, cache.Unknown,
			cache.Unknown, confirmSilence, ConfirmMax},
		{"versions sent, no response for 15s", restored, confirmSilence, cache.Settled, cache.Confirmed, 0, ConfirmMax},
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
	if p.Settled(epoch.Add(SettleQuiet - 1)) {
		t.Error("settled before SettleQuiet")
	}
	if !p.Settled(epoch.Add(SettleQuiet)) {
		t.Error("not settled after SettleQuiet")
	}
	if restored.Settled(epoch.Add(time.Hour)) {
		t.Error("settled without a response")
	}
}
