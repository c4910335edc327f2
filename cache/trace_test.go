package cache

import (
	"testing"
	"time"
)

func TestB43_TimelineRemembersTheNewestChanges(t *testing.T) {
	var l timeline
	if got := l.causeAt(1).Received; !got.IsZero() {
		t.Errorf("nothing has happened: of(1) = %v, want none", got)
	}
	start := time.Unix(1000, 0)
	at := func(p Seq) time.Time { return start.Add(time.Duration(p) * time.Second) }
	for p := Seq(2); p <= 3*maxCauses; p += 2 { // each brings the view two positions on
		l.record(p, Cause{Received: at(p)})
		if got := l.causeAt(p).Received; got != at(p) {
			t.Fatalf("of(%d) = %v, want %v", p, got, at(p))
		}
		if got := l.causeAt(p - 1).Received; got != at(p) {
			t.Fatalf("of(%d) = %v, want %v: it was passed then", p-1, got, at(p))
		}
		if got := l.causeAt(p + 1).Received; !got.IsZero() {
			t.Fatalf("of(%d) = %v, want none: it is to come", p+1, got)
		}
	}
	oldest := Seq(3*maxCauses - 2*(maxCauses-1))
	for p := oldest; p <= 3*maxCauses; p += 2 {
		if got := l.causeAt(p).Received; got != at(p) {
			t.Fatalf("of(%d) = %v, want %v", p, got, at(p))
		}
	}
	if got := l.causeAt(1).Received; got != at(oldest) {
		t.Errorf("of(1) = %v, want that of the oldest that is remembered, %v", got, at(oldest))
	}
}
