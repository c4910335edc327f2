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
)

// A fake is a set in memory.
type fakeSet struct {
	*Set
	resources map[string]*wire.Resource
	confirmed bool
	applied   wire.Update // the last one
}

func (f *fakeSet) Get(name string) *wire.Resource { return f.resources[name] }
func (f *fakeSet) Names() iter.Seq[string]        { return maps.Keys(f.resources) }
func (f *fakeSet) Count() int                     { return len(f.resources) }
func (f *fakeSet) CompleteAt() (time.Time, bool)  { return time.Time{}, f.confirmed }

func (f *fakeSet) Apply(u wire.Update) (c cache.Change) {
	f.applied = u
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

// newFake returns the wildcard set of a type, with names.
func newFakeSet(typeURL string, log slog.Handler, names ...string) *fakeSet {
	g := NewGroup(Config{HoldTime: time.Hour, ColdWait: 10 * time.Second, Counts: new(Counts), Logger: slog.New(log)})
	return newFakeSetIn(g, typeURL, wire.Wildcard, names...)
}

// newFakeIn returns a set of a type in a group, with names.
func newFakeSetIn(g *Group, typeURL, whole string, names ...string) *fakeSet {
	f := &fakeSet{resources: make(map[string]*wire.Resource)}
	f.Set = g.NewSet(typeURL, whole, f)
	for _, name := range names {
		f.resources[name] = &wire.Resource{Name: name}
	}
	return f
}

// begin begins a stream on which the origin is told that names are held.
func (f *fakeSet) beginStream(now time.Time, told ...string) {
	f.Begin(func(name string) bool { return slices.Contains(told, name) }, len(told) > 0, false, now)
}

// state takes a response, in which "-name" is a removal and "name@version" a resource.
func (f *fakeSet) respond(now time.Time, items ...string) (ignores bool) {
	u := wire.Update{TypeURL: f.TypeURL}
	for _, item := range items {
		if name, removed := strings.CutPrefix(item, "-"); removed {
			u.Removed = append(u.Removed, name)
			continue
		}
		name, version, _ := strings.Cut(item, "@")
		u.Resources = append(u.Resources, &wire.Resource{Name: name, OriginVersion: version})
	}
	_, ignores = f.Take(u, now)
	return ignores
}

// want fails the test unless the group has these holds, each as its names after "held", "suspected" or "kept".
func (f *fakeSet) wantHolds(t *testing.T, when string, now time.Time, want ...string) {
	t.Helper()
	got := []string{}
	for _, h := range f.group.Operate(Command{}, now) {
		as := "held"
		switch {
		case h.Unconfirmed:
			as = "suspected"
		case h.Discarded:
			as = "kept"
		}
		got = append(got, as+" "+strings.Join(h.Names, " "))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: holds %q, want %q", when, got, want)
	}
}

// wantNames fails the test unless the set has these names.
func (f *fakeSet) wantNames(t *testing.T, when, want string) {
	t.Helper()
	if got := strings.Join(slices.Sorted(f.Names()), " "); got != want {
		t.Errorf("%s: names %q, want %q", when, got, want)
	}
}

// numbers returns names with a prefix.
func numbers(prefix string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint(prefix, i))
	}
	return names
}

// gone yields names.
func seq(names ...string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, name := range names {
			if !yield(name) {
				return
			}
		}
	}
}

// TestH02_AnInterruptedLookBeginsAnew: on a stream that says what is held, silence does not confirm that it is gone.
func TestH02_AnInterruptedLookBeginsAnew(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, told := range []bool{false, true} {
		f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a")
		f.confirmed = true
		f.Infer(seq("a"), true)
		f.group.Decide(now)
		now = now.Add(time.Hour)
		if !f.group.StartSecondLooks(now) {
			t.Fatal("no second look")
		}
		f.Begin(func(string) bool { return told }, told, false, now)
		if look := f.group.StartSecondLooks(now); look != told {
			t.Errorf("told what is held: %t: another look: %t", told, look)
		}
	}
}

// TestH03_AdditionsThatAreGoneAgain: new listeners count against removals, since they may be the old ones under other
// names, but not if they were removed too.
func TestH03_AdditionsThatAreGoneAgain(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, tt := range []struct {
		name string
		gone []string // of the new ones
		held int
	}{
		{"renamed", nil, 0},
		{"renamed, and removed", []string{"d", "e", "f"}, 4},
		{"renamed, and some removed", []string{"d", "e"}, 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeSet(wire.ListenerType, slog.DiscardHandler, "a", "b", "c", "z")
			f.beginStream(now)
			f.respond(now, "d", "e", "f", "unwanted")
			f.Take(wire.Update{TypeURL: wire.ListenerType, Removed: tt.gone}, now)
			f.Infer(seq("a", "b", "c", "z"), false)
			f.confirmed = true
			f.group.Decide(now)
			if n := f.group.HeldRemovals(); n != tt.held {
				t.Errorf("%d removals are held, want %d", n, tt.held)
			}
		})
	}
}

// TestH03_AdditionsCountOnce: those of the stream until the set is confirmed, and those of the last response after
// that.
func TestH03_AdditionsCountOnce(t *testing.T) {
	more := func(f *fakeSet) {
		for _, name := range numbers("old", 8) {
			f.resources[name] = &wire.Resource{Name: name}
		}
	}
	for _, tt := range []struct {
		name string
		do   func(f *fakeSet)
		held bool
	}{
		{"before it is confirmed", func(f *fakeSet) { more(f); f.respond(epoch, "new0", "new1", "new2"); f.confirmed = true }, true},
		{"in the last response", func(f *fakeSet) { more(f); f.confirmed = true; f.respond(epoch, "new0", "new1", "new2") }, true},
		{"that nobody asked for", func(f *fakeSet) {
			f.respond(epoch, "old3@2", "unwanted0", "unwanted1")
			f.confirmed = true
			delete(f.resources, "old3")
			f.resources["other"] = f.resources["old0"]
		}, true},
		{"that were known", func(f *fakeSet) {
			f.resources["other"] = f.resources["old0"]
			f.respond(epoch, "other", "old0", "old1")
			delete(f.resources, "old3")
			f.confirmed = true
		}, true},
		{"that are gone too", func(f *fakeSet) {
			f.respond(epoch, "new0", "new1", "new2")
			f.Infer(seq("new0", "new1", "new2"), false)
			f.confirmed = true
		}, true},
		{"as many", func(f *fakeSet) { f.confirmed = true; f.respond(epoch, "new0", "new1", "new2") }, false},
		{"before it is confirmed, and later", func(f *fakeSet) {
			f.respond(epoch, "new0", "new1", "new2")
			f.confirmed = true
			f.respond(epoch)
		}, true},
		{"in a response before the last", func(f *fakeSet) {
			f.confirmed = true
			f.respond(epoch, "new0", "new1", "new2")
			f.respond(epoch)
		}, true},
		{"of an earlier stream", func(f *fakeSet) { f.respond(epoch, "new0", "new1", "new2"); f.beginStream(epoch); f.confirmed = true }, true},
		{"in the last response of an earlier stream", func(f *fakeSet) {
			f.confirmed = true
			f.respond(epoch, "new0", "new1", "new2")
			f.beginStream(epoch)
		}, true},
		{"of the first set", func(f *fakeSet) {
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
			f.Infer(seq(numbers("old", 8)...), false)
			f.group.Decide(epoch)
			if held := f.group.HeldRemovals() > 0; held != tt.held {
				t.Errorf("held: %t, want %t", held, tt.held)
			}
		})
	}
}

// TestH03_WhatIsNewMakesALossNoSmaller: it is part of what there was before the additions.
func TestH03_WhatIsNewMakesALossNoSmaller(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a", "b", "c", "d")
	f.confirmed = true
	f.respond(epoch, numbers("new", 20)...)
	f.Infer(seq("a", "b", "c"), false)
	f.group.Decide(epoch)
	f.wantHolds(t, "three of four", epoch, "held a b c")
}

// TestH02_ANewStreamForgetsWhatWasSuspected on the one before, but not what is held.
func TestH02_ANewStreamForgetsWhatWasSuspected(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, numbers("n", 20)...)
	f.confirmed = true
	f.Infer(seq(numbers("n", 15)...), false)
	f.group.Decide(epoch)
	f.confirmed = false
	f.Infer(seq("n15"), true)
	f.beginStream(epoch, numbers("n", 20)...)
	f.confirmed = true
	f.group.Decide(epoch)
	f.wantNames(t, "a new stream", strings.Join(slices.Sorted(slices.Values(numbers("n", 20))), " "))
	if n := f.group.HeldRemovals(); n != 15 {
		t.Errorf("%d are held, want 15", n)
	}
	f.respond(epoch, numbers("n", 15)...)
	f.wantHolds(t, "a new stream", epoch)
	f.confirmed = false
	f.Infer(seq("n15"), true)
	f.beginStream(epoch)
	f.confirmed = true
	f.Infer(seq("n16"), false)
	f.group.Decide(epoch)
	f.wantHolds(t, "a small loss", epoch)
}

// TestH02_WhatIsConfirmedStaysConfirmed: all of a set was said once no new name has come for a while. One that comes
// later is a change, and makes no removal on the same stream wait.
func TestH02_WhatIsConfirmedStaysConfirmed(t *testing.T) {
	const quiet = 10 * time.Second
	began := time.Unix(1000, 0)
	var p Progress
	for _, tt := range []struct {
		at, confirmed time.Duration
	}{{0, quiet}, {5 * time.Second, 15 * time.Second}, {20 * time.Second, 15 * time.Second}} {
		p.recordResponse(began.Add(tt.at), true, quiet)
		if got := p.CompleteAt(began, quiet).Sub(began); got != tt.confirmed {
			t.Errorf("a new name after %v: the set is confirmed after %v, want %v", tt.at, got, tt.confirmed)
		}
	}
}

// TestHoldAlarms: that something is held back is said once more every five minutes, and not
// of what was discarded.
func TestHoldAlarms(t *testing.T) {
	var log strings.Builder
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprint(i))
	}
	f, began := newFakeSet(wire.ClusterType, slog.NewTextHandler(&log, nil), names...), time.Unix(0, 0)
	f.confirmed = true
	f.Infer(seq(names...), false)
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
	f.group.Operate(Command{Do: Discard}, began)
	if got := alarms(began.Add(time.Hour)); got != 0 {
		t.Errorf("discarded: %d alarms, want none", got)
	}
}
