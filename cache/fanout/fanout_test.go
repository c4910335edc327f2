package fanout

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// ended returns a function to give New, and a function that says how often it was called.
func ended() (onEnd func(*Fanout), times func() int) {
	n := 0
	return func(*Fanout) { n++ }, func() int { return n }
}

// TestFanoutEndsWhenAllStreamsAreDone: not before the writer has released it, and once.
func TestFanoutEndsWhenAllStreamsAreDone(t *testing.T) {
	onEnd, times := ended()
	f := New("type", 7, onEnd)
	f.Received = time.Now()
	f.RecordTimes(3)
	var streams [4]atomic.Pointer[List]
	for i := range streams {
		f.Join(&streams[i])
	}
	for i, o := range []Outcome{Accepted, Rejected, NotNeeded} {
		streams[i].Load().Done(o, f.Received.Add(time.Duration(3-i)*time.Second))
	}
	f.Release()
	if times() != 0 || f.Unanswered() != 1 {
		t.Errorf("ended %d times with %d streams unanswered, want it open with one", times(), f.Unanswered())
	}
	streams[3].Load().Done(StreamClosed, f.Received.Add(time.Hour))
	if times() != 1 || f.Streams() != 4 || f.Count(Accepted) != 1 || f.Count(StreamClosed) != 1 {
		t.Errorf("ended %d times, of %d streams %d accepted and %d closed, want once, 4, 1 and 1", times(), f.Streams(), f.Count(Accepted), f.Count(StreamClosed))
	}
	if got := f.Took(); got != time.Hour {
		t.Errorf("took %v, want 1h, until the last client has left", got)
	}
	answers := f.Times()
	if slices.Sort(answers); !slices.Equal(answers, []time.Duration{2 * time.Second, 3 * time.Second}) {
		t.Errorf("clients answered after %v, want 2s and 3s", answers)
	}
	if f.Next() != 0 || f.Next() != 1 {
		t.Error("events are not numbered from 0")
	}
}

// TestFanoutAtNoStream ends when the writer releases it.
func TestFanoutAtNoStream(t *testing.T) {
	onEnd, times := ended()
	if New("type", 1, onEnd).Release(); times() != 1 {
		t.Errorf("ended %d times, want once", times())
	}
}

// TestListHasOpenFanouts: a stream drops those that have ended without it.
func TestListHasOpenFanouts(t *testing.T) {
	onEnd, _ := ended()
	var stream atomic.Pointer[List]
	first, second := New("type", 1, onEnd), New("type", 2, onEnd)
	first.Join(&stream)
	second.Join(&stream)
	if l := stream.Load(); l.Fanout != second || l.Others.Fanout != first || l.Others.Others != nil {
		t.Errorf("got %+v, want the second and the first", l)
	}
	first.end()
	if l := stream.Load().Open(); l.Fanout != second || l.Others != nil {
		t.Errorf("got %+v, want the second alone", l)
	}
}

// TestTrackerFollowsABoundedNumber of changes of each type, and gives up what takes too long.
func TestTrackerFollowsABoundedNumber(t *testing.T) {
	onEnd, times := ended()
	var tracker Tracker
	begin := func(key string, at time.Time) *Fanout {
		f := New(key, 1, onEnd)
		f.Began = at
		tracker.Add(f)
		return f
	}
	now := time.Now()
	first := begin("a", now)
	for range maxOpen - 1 {
		begin("a", now.Add(time.Second))
	}
	if f := begin("a", now); !f.Unfollowed {
		t.Errorf("change %d of a type is followed", maxOpen+1)
	}
	if f := begin("b", now.Add(time.Second)); f.Unfollowed {
		t.Error("a change of another type is not followed")
	}
	if tracker.EndOld(now.Add(GiveUp)); times() != 1 || !first.ended.Load() {
		t.Errorf("%d fan-outs were given up, want the oldest", times())
	}
	if f := begin("a", now); f.Unfollowed {
		t.Error("the place of one that has ended is not free")
	}
}

// TestOutcomesHaveTheNamesOfTraces that dashboards may use.
func TestOutcomesHaveTheNamesOfTraces(t *testing.T) {
	var names []string
	for o := range outcomes {
		names = append(names, o.String())
	}
	if want := []string{"accepted", "rejected", "needless", "disconnected", "superseded", "unanswered"}; !slices.Equal(names, want) {
		t.Errorf("got %q, want %q", names, want)
	}
}
