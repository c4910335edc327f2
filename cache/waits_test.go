package cache

import (
	"slices"
	"testing"
	"time"

	"github.com/xdstender/tender/cache/fanout"
)

// A tracedCause records the calls of Waits.
type tracedCause struct{ waits []time.Time }

func (c *tracedCause) Applied(Application) fanout.Span { return nil }

func (*tracedCause) Waited(string, time.Time, time.Time) {}

func (c *tracedCause) Waits(at time.Time) { c.waits = append(c.waits, at) }

// TestTracesOfChangesThatWait: Waits is called for the trace of a message if some of its changes wait.
func TestTracesOfChangesThatWait(t *testing.T) {
	var now Waiting
	o := newOrigin(t,
		Config{Cohorts: 1, Waits: func(typeURL string) bool { return typeURL == acme },
			Waiting: func(_ int, w Waiting) { now = w }})
	o.SetConnected(true)
	put := func(name, content string) (waits []time.Time) {
		cause := new(tracedCause)
		o.SetCause(Cause{Trace: cause})
		o.put(Wildcard, name, content, content)
		o.SetCause(Cause{})
		return cause.waits
	}
	if waits := put("a", "a1"); waits != nil {
		t.Errorf("first state waits since %v", waits)
	}
	o.SetPhase(acme, Confirmed)
	if waits := put("a", "a2"); !slices.Equal(waits, []time.Time{now.Changed}) {
		t.Errorf("change waits since %v, want %v", waits, now.Changed)
	}
	if waits := put("b", "b1"); !slices.Equal(waits, []time.Time{now.Changed}) {
		t.Errorf("second change waits since %v, want %v", waits, now.Changed)
	}
	if waits := put("a", "a1"); waits != nil {
		t.Errorf("change back to the served state waits since %v", waits)
	}
	o.put(Wildcard, "c", "1", "c1") // without a trace
	o.typeURL = "passes"
	if waits := put("d", "d1"); waits != nil {
		t.Errorf("change of a passing type waits since %v", waits)
	}
}
