package cache

import (
	"testing"
	"time"
	"unsafe"

	"github.com/xdstender/tender/cache/fanout"
)

// withClockSet returns a time with a wall clock that is set by some whole seconds, and an unchanged monotonic clock
// reading.
func withClockSet(t *testing.T, at time.Time, by time.Duration) time.Time {
	t.Helper()
	old := at
	fields := (*struct {
		wall uint64 // with a monotonic reading, seconds from bit 30 on
		ext  int64
		loc  *time.Location
	})(unsafe.Pointer(&at))
	fields.wall += uint64(by/time.Second) << 30
	if at.Sub(old) != 0 || !at.Round(0).Equal(old.Round(0).Add(by)) {
		t.Fatalf("%v became %v: time.Time has another layout than this test expects", old, at)
	}
	return at
}

// TestH14_RequestTimesOfNames: if the clock is set back by an hour, clients do not wait an hour longer for the response
// to a request.
func TestH14_RequestTimesOfNames(t *testing.T) {
	o := newOrigin(t, Config{})
	names := o.subscribe(o.view.Watch(), "a", "b")
	at := time.Now()
	o.Asked(names, at)
	if got := withClockSet(t, at.Add(2*time.Second), -time.Hour).Sub(names[1].Asked()); got != 2*time.Second {
		t.Errorf("requested %v ago, want 2s", got)
	}
	o.put(ByName, "a", "1", "x")
	answered := names[1].RequestAnswered()
	if got := withClockSet(t, time.Now(), -time.Hour).Sub(answered); answered.IsZero() || got < 0 || got > time.Minute {
		t.Errorf("responded %v ago, want less than a minute", got)
	}
	o.put(ByName, "b", "1", "x")
	if again := names[0].RequestAnswered(); again != answered {
		t.Errorf("first response at %v, and later at %v", answered, again)
	}
}

// TestH14_HowLongAFanoutTook: the measured time does not change if the clock is set.
func TestH14_HowLongAFanoutTook(t *testing.T) {
	at := time.Now()
	for _, by := range []time.Duration{-time.Hour, 0, time.Hour} {
		f := fanout.New(acme, 1, func(*fanout.Fanout) {})
		f.Received = at
		f.Done(fanout.Accepted, withClockSet(t, at.Add(3*time.Second), by))
		f.Done(fanout.Rejected, withClockSet(t, at.Add(2*time.Second), by))
		if got := f.Took(); got != 3*time.Second {
			t.Errorf("the clock was set by %v: took %v, want 3s", by, got)
		}
	}
}

// TestH14_RestoredTimes: the expiry of a restored resource and the staleness of a restored view use the monotonic
// clock.
func TestH14_RestoredTimes(t *testing.T) {
	o, _ := newSubscribed(t, "a")
	for _, kind := range []Kind{Wildcard, ByName} {
		o.Apply(kind, updateOf(acme, expiring(t, "a", "1", "x")))
	}
	o.SetPhase(acme, Confirmed)
	taken, _ := o.Snapshot(true)
	now := time.Now()
	taken.Created = now.Add(-time.Minute)
	again := o.restoreFrom(roundTrip(t, taken), now)
	got := again.view.Generation().First().Stale(withClockSet(t, now.Add(time.Minute), -time.Hour))
	if (got - 2*time.Minute).Abs() > 2*time.Second {
		t.Errorf("stale for %v, want 2m", got)
	}
	n := again.name("a")
	present := func() bool { return again.typ().Wildcard.Get(n).Present() && again.typ().ByName.Get(n).Present() }
	if again.Expire(withClockSet(t, now.Add(30*time.Second), time.Hour)); !present() {
		t.Error("expired after 30s, want after the TTL of 60s")
	}
	again.Expire(withClockSet(t, now.Add(2*time.Minute), -time.Hour))
	if present() {
		t.Error("present after 2m, want expiry after the TTL of 60s")
	}
}

// TestH14_StoredTimes: deadlines are stored as wall times of the snapshot, even if the clock was set after the resource
// was received.
func TestH14_StoredTimes(t *testing.T) {
	o := newOrigin(t, Config{})
	o.Apply(Wildcard, updateOf(acme, expiring(t, "a", "1", "x"), o.resource("b", "1", "x")))
	o.SetPhase(acme, Confirmed)
	e := o.typ().Wildcard.Get(o.name("a"))
	e.ttl = &lifetime{deadline: withClockSet(t, e.Deadline(), -24*time.Hour)}
	s, _ := o.Snapshot(true)
	for _, got := range roundTrip(t, s).Types[0].Wildcard.Entries {
		if left := time.Until(got.Deadline); got.Name == "a" && (left <= 0 || left > time.Minute) ||
			got.Name == "b" && !got.Deadline.IsZero() {
			t.Errorf("%s expires at %v, in %v; want a in a minute, and b never", got.Name, got.Deadline, left)
		}
	}
}
