package cache

import (
	"testing"
	"time"
)

func TestB43_TimelineRemembersTheNewestChanges(t *testing.T) {
	var l timeline
	if got := l.causeAt(1).Received; !got.IsZero() {
		t.Errorf("without changes: causeAt(1) = %v, want none", got)
	}
	start := time.Unix(1000, 0)
	at := func(p Seq) time.Time { return start.Add(time.Duration(p) * time.Second) }
	for p := Seq(2); p <= 3*maxCauses; p += 2 { // each advances the view by two positions
		l.record(p, Cause{Received: at(p)})
		if got := l.causeAt(p).Received; got != at(p) {
			t.Fatalf("causeAt(%d) = %v, want %v", p, got, at(p))
		}
		if got := l.causeAt(p - 1).Received; got != at(p) {
			t.Fatalf("causeAt(%d) = %v, want %v, the cause of the next position", p-1, got, at(p))
		}
		if got := l.causeAt(p + 1).Received; !got.IsZero() {
			t.Fatalf("causeAt(%d) = %v, want none: it is in the future", p+1, got)
		}
	}
	oldest := Seq(3*maxCauses - 2*(maxCauses-1))
	for p := oldest; p <= 3*maxCauses; p += 2 {
		if got := l.causeAt(p).Received; got != at(p) {
			t.Fatalf("causeAt(%d) = %v, want %v", p, got, at(p))
		}
	}
	if got := l.causeAt(1).Received; got != at(oldest) {
		t.Errorf("causeAt(1) = %v, want the oldest recorded cause, %v", got, at(oldest))
	}
}
