package subscription

import (
	"reflect"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestH14_MomentsAreMonotonic: lags of clients are measured by the monotonic clock, which operators cannot set.
func TestH14_MomentsAreMonotonic(t *testing.T) {
	at := time.Now().Add(-time.Minute)
	m := MomentOf(at)
	if got := m.Time(); !got.Equal(at) || reflect.DeepEqual(got, got.Round(0)) || got.Sub(at) != 0 {
		t.Errorf("the moment of %v is %v, want the same with its monotonic reading", at, got)
	}
	if got := m.ago(at.Add(3 * time.Second)); got != 3*time.Second {
		t.Errorf("it is %v ago, want 3s", got)
	}
	check.Equal(t, "the moment a nanosecond later", MomentOf(at.Add(1)), m+1)
	if none := MomentOf(time.Time{}); none != 0 || !none.Time().IsZero() {
		t.Errorf("no time is %d, which is %v", none, none.Time())
	}
}
