package reconcile

import (
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/pending"
)

// A fakeSet is a set with its content in memory. It does not store resources whose names begin with "unwanted", as a
// view does without a subscription.
type fakeSet struct {
	*Set
	resources map[string]*wire.Resource
	confirmed bool
	complete  time.Time   // when it was
	known     bool        // the set was complete before
	awaiting  names       // see Content.Await
	cause     cache.Cause // of what the origin states
	applied   wire.Update // last update
	onApply   func(u wire.Update)
	waited    pending.Delay // of it
}

func (f *fakeSet) Get(name string) *wire.Resource { return f.resources[name] }
func (f *fakeSet) Names() iter.Seq[string]        { return maps.Keys(f.resources) }
func (f *fakeSet) Count() int                     { return len(f.resources) }
func (f *fakeSet) CompleteAt() (time.Time, bool)  { return f.complete, f.confirmed }

func (f *fakeSet) Known(time.Time) bool { return f.known }

func (f *fakeSet) Await(names, ended []string) {
	for _, name := range names {
		put(&f.awaiting, name, struct{}{})
	}
	for _, name := range ended {
		delete(f.awaiting, name)
	}
}

func (f *fakeSet) Cause() cache.Cause { return f.cause }

func (f *fakeSet) Apply(u wire.Update, waited pending.Delay) (c cache.Change) {
	if f.applied, f.waited = u, waited; f.onApply != nil {
		f.onApply(u)
	}
	for _, r := range u.Resources {
		switch old := f.resources[r.Name]; {
		case strings.HasPrefix(r.Name, "unwanted"):
			continue
		case old == nil:
			c.New++
			c.Changed++
		case old.OriginVersion == r.OriginVersion:
			c.Same++
		default:
			c.Changed++
		}
		f.resources[r.Name] = r
	}
	for _, name := range u.Removed {
		delete(f.resources, name)
	}
	return c
}

// newFakeSet returns a wildcard set in a new group.
func newFakeSet(typeURL string, log slog.Handler, names ...string) *fakeSet {
	return newFakeSetIn(newTestGroup(log), typeURL, wire.Wildcard, names...)
}

// newTestGroup returns a group with a hold time of an hour.
func newTestGroup(log slog.Handler) *Group {
	return NewGroup(Config{HoldTime: time.Hour, ColdWait: 10 * time.Second, Counts: new(Counts), Logger: slog.New(log)})
}

// newFakeSetIn returns a set in a group.
func newFakeSetIn(g *Group, typeURL, pattern string, names ...string) *fakeSet {
	f := &fakeSet{resources: make(map[string]*wire.Resource)}
	f.Set = g.NewSet(typeURL, pattern, f)
	for _, name := range names {
		f.resources[name] = &wire.Resource{Name: name}
	}
	return f
}

// beginStream starts a stream on which the relay sends the versions of the given names.
func (f *fakeSet) beginStream(now time.Time, versions ...string) {
	f.Begin(func(name string) bool { return slices.Contains(versions, name) }, len(versions) > 0, false, now)
}

// respond applies a response, in which "-name" is a removal and "name@version" a resource.
func (f *fakeSet) respond(now time.Time, items ...string) (ignoresVersions bool) {
	u := wire.Update{TypeURL: f.TypeURL}
	for _, item := range items {
		if name, removed := strings.CutPrefix(item, "-"); removed {
			u.Removed = append(u.Removed, name)
			continue
		}
		name, version, _ := strings.Cut(item, "@")
		u.Resources = append(u.Resources, &wire.Resource{Name: name, OriginVersion: version})
	}
	_, ignoresVersions = f.Take(u, now)
	return ignoresVersions
}

// wantHolds fails the test unless the group has these holds, each as its names after "held", "suspected",
// "waiting" or "dropped".
func (f *fakeSet) wantHolds(t *testing.T, when string, now time.Time, want ...string) {
	t.Helper()
	got := []string{}
	for _, h := range f.group.Operate(Command{}, now) {
		state := "held"
		switch {
		case h.Reason == Replacement && h.Kind != Removal:
			state = "waiting"
		case h.Undecided():
			state = "suspected"
		case h.Reason == Dropped || h.Reason == Required:
			state = string(h.Reason)
		}
		got = append(got, state+" "+strings.Join(h.Names, " "))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: holds %q, want %q", when, got, want)
	}
}

// heldRemovals returns the number of removals of a group that are held.
func heldRemovals(g *Group) int {
	return g.pending[slices.Index(Reasons[:], SecondLook)] + g.pending[slices.Index(Reasons[:], LargeRemoval)]
}

// heldOf returns the number of removals that are held.
func heldOf(c *Counts) int { return c.Pending()[SecondLook] + c.Pending()[LargeRemoval] }

// wantNames fails the test unless the set has these names.
func (f *fakeSet) wantNames(t *testing.T, when, want string) {
	t.Helper()
	if got := strings.Join(slices.Sorted(f.Names()), " "); got != want {
		t.Errorf("%s: names %q, want %q", when, got, want)
	}
}

// numbers returns n names: the prefix with the numbers from 0.
func numbers(prefix string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint(prefix, i))
	}
	return names
}

// seq yields names.
func seq(names ...string) iter.Seq[string] { return slices.Values(names) }

// TestH02_InterruptedSecondLook checks that a second look starts again on a stream that resumes from versions: there,
// silence does not confirm a removal.
func TestH02_InterruptedSecondLook(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, resumed := range []bool{false, true} {
		f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a")
		f.confirmed = true
		f.Infer(seq("a"), true, epoch)
		f.group.Decide(now)
		now = now.Add(time.Hour)
		if !f.group.StartSecondLooks(now) {
			t.Fatal("no second look")
		}
		f.Begin(func(string) bool { return resumed }, resumed, false, now)
		if started := f.group.StartSecondLooks(now); started != resumed {
			t.Errorf("resumed %t: started another second look: %t", resumed, started)
		}
	}
}

// TestH03_RemovedAdditions checks that new listeners offset removals, since they may be renamed ones, unless they were
// removed, too.
func TestH03_RemovedAdditions(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, tt := range []struct {
		name    string
		removed []string // of the new ones
		held    int
	}{
		{"renamed", nil, 0},
		{"renamed, and removed", []string{"d", "e", "f"}, 4},
		{"renamed, and some removed", []string{"d", "e"}, 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeSet(wire.ListenerType, slog.DiscardHandler, "a", "b", "c", "z")
			f.beginStream(now)
			f.respond(now, "d", "e", "f", "unwanted")
			f.Take(wire.Update{TypeURL: wire.ListenerType, Removed: tt.removed}, now)
			f.Infer(seq("a", "b", "c", "z"), false, epoch)
			f.confirmed = true
			f.group.Decide(now)
			if n := heldRemovals(f.group); n != tt.held {
				t.Errorf("%d removals held, want %d", n, tt.held)
			}
		})
	}
}

// TestH03_AdditionsCountOnce checks which additions offset removals: those of the stream until the set is confirmed,
// and those of the last response after that.
func TestH03_AdditionsCountOnce(t *testing.T) {
	grow := func(f *fakeSet) {
		for _, name := range numbers("old", 8) {
			f.resources[name] = &wire.Resource{Name: name}
		}
	}
	for _, tt := range []struct {
		name string
		do   func(f *fakeSet)
		held bool
	}{
		{"before the set is confirmed", func(f *fakeSet) {
			grow(f)
			f.respond(epoch, "new0", "new1", "new2")
			f.confirmed = true
		}, true},
		{"in the last response", func(f *fakeSet) {
			grow(f)
			f.confirmed = true
			f.respond(epoch, "new0", "new1", "new2")
		}, true},
		{"without a subscription", func(f *fakeSet) {
			f.respond(epoch, "old3@2", "unwanted0", "unwanted1")
			f.confirmed = true
			delete(f.resources, "old3")
			f.resources["other"] = f.resources["old0"]
		}, true},
		{"of cached resources", func(f *fakeSet) {
			f.resources["other"] = f.resources["old0"]
			f.respond(epoch, "other", "old0", "old1")
			delete(f.resources, "old3")
			f.confirmed = true
		}, true},
		{"that are removed, too", func(f *fakeSet) {
			f.respond(epoch, "new0", "new1", "new2")
			f.Infer(seq("new0", "new1", "new2"), false, epoch)
			f.confirmed = true
		}, true},
		{"as many as removals", func(f *fakeSet) { f.confirmed = true; f.respond(epoch, "new0", "new1", "new2") }, false},
		{"before the set is confirmed, with a later response", func(f *fakeSet) {
			f.respond(epoch, "new0", "new1", "new2")
			f.confirmed = true
			f.respond(epoch)
		}, true},
		{"in a response before the last", func(f *fakeSet) {
			f.confirmed = true
			f.respond(epoch, "new0", "new1", "new2")
			f.respond(epoch)
		}, true},
		{"of an earlier stream", func(f *fakeSet) {
			f.respond(epoch, "new0", "new1", "new2")
			f.beginStream(epoch)
			f.confirmed = true
		}, true},
		{"in the last response of an earlier stream", func(f *fakeSet) {
			f.confirmed = true
			f.respond(epoch, "new0", "new1", "new2")
			f.beginStream(epoch)
		}, true},
		{"of a set without content", func(f *fakeSet) {
			f.resources = make(map[string]*wire.Resource)
			f.beginStream(epoch)
			f.respond(epoch, "old0", "old1", "old2", "old3", "new0", "new1", "new2")
			f.confirmed = true
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeSet(wire.ListenerType, slog.DiscardHandler, "old0", "old1", "old2", "old3")
			f.beginStream(epoch)
			tt.do(f)
			f.Infer(seq(numbers("old", 8)...), false, epoch)
			f.group.Decide(epoch)
			if held := heldRemovals(f.group) > 0; held != tt.held {
				t.Errorf("held: %t, want %t", held, tt.held)
			}
		})
	}
}

// TestH03_LargeRemovalIgnoresAdditions checks that removals are compared with the size of the set before the additions.
func TestH03_LargeRemovalIgnoresAdditions(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a", "b", "c", "d")
	f.confirmed = true
	f.respond(epoch, numbers("new", 20)...)
	f.Infer(seq("a", "b", "c"), false, epoch)
	f.group.Decide(epoch)
	f.wantHolds(t, "three of four removed", epoch, "held a b c")
}

// TestH02_NewStreamDropsSuspects checks that a new stream drops the suspected removals and keeps the held ones.
func TestH02_NewStreamDropsSuspects(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, numbers("n", 20)...)
	f.confirmed = true
	f.Infer(seq(numbers("n", 15)...), false, epoch)
	f.group.Decide(epoch)
	f.confirmed = false
	f.Infer(seq("n15"), true, epoch)
	f.beginStream(epoch, numbers("n", 20)...)
	f.confirmed = true
	f.group.Decide(epoch)
	f.wantNames(t, "new stream", strings.Join(slices.Sorted(slices.Values(numbers("n", 20))), " "))
	if n := heldRemovals(f.group); n != 15 {
		t.Errorf("%d removals held, want 15", n)
	}
	f.respond(epoch, numbers("n", 15)...)
	f.wantHolds(t, "held names mentioned", epoch)
	f.confirmed = false
	f.Infer(seq("n15"), true, epoch)
	f.beginStream(epoch)
	f.confirmed = true
	f.Infer(seq("n16"), false, epoch)
	f.group.Decide(epoch)
	f.wantHolds(t, "small removal", epoch)
}

// TestH02_CompleteSetStaysComplete checks that a new name in a complete set does not make it incomplete. Otherwise
// removals on the same stream would have to wait again.
func TestH02_CompleteSetStaysComplete(t *testing.T) {
	const quiet = 10 * time.Second
	began := time.Unix(1000, 0)
	var p Progress
	for _, tt := range []struct {
		at, complete time.Duration
	}{{0, quiet}, {5 * time.Second, 15 * time.Second}, {20 * time.Second, 15 * time.Second}} {
		p.recordResponse(began.Add(tt.at), true, quiet)
		if got := p.CompleteAt(began, quiet).Sub(began); got != tt.complete {
			t.Errorf("a new name after %v: set complete after %v, want %v", tt.at, got, tt.complete)
		}
	}
}

// TestHoldAlarms checks that held removals are logged every five minutes, and dropped ones are not.
func TestHoldAlarms(t *testing.T) {
	var log strings.Builder
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprint(i))
	}
	f, began := newFakeSet(wire.ClusterType, slog.NewTextHandler(&log, nil), names...), time.Unix(0, 0)
	f.confirmed = true
	f.Infer(seq(names...), false, epoch)
	alarms := func(now time.Time) int {
		log.Reset()
		f.group.Decide(now)
		return strings.Count(log.String(), "removals still held")
	}
	for minute, want := range []int{0: 0, 4: 0, 5: 1, 6: 0, 9: 0, 10: 1} {
		if got := alarms(began.Add(time.Duration(minute) * time.Minute)); got != want {
			t.Errorf("after %d minutes: %d alarms, want %d", minute, got, want)
		}
	}
	f.group.Operate(Command{Do: Drop}, began)
	if got := alarms(began.Add(time.Hour)); got != 0 {
		t.Errorf("dropped: %d alarms, want none", got)
	}
}
