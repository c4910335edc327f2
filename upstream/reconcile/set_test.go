package reconcile

import (
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// A fake is a set in memory.
type fake struct {
	*Set
	held      map[string]*wire.Resource
	confirmed bool
}

func (f *fake) Get(name string) *wire.Resource { return f.held[name] }
func (f *fake) Names() iter.Seq[string]        { return maps.Keys(f.held) }
func (f *fake) Count() int                     { return len(f.held) }
func (f *fake) Complete() (time.Time, bool)    { return time.Time{}, f.confirmed }
func (f *fake) Remove(r *Removals)             { f.apply(wire.Update{Removed: r.Names}) }

func (f *fake) apply(u wire.Update) (c cache.Change) {
	for _, r := range u.Resources {
		if f.held[r.Name] == nil {
			c.New++
		}
		f.held[r.Name] = r
	}
	for _, name := range u.Removed {
		delete(f.held, name)
	}
	return c
}

// newFake returns a set of a type, with names.
func newFake(typeURL string, log slog.Handler, names ...string) *fake {
	f := &fake{held: make(map[string]*wire.Resource)}
	g := NewGroup(Config{Hold: time.Hour, ColdWait: 10 * time.Second, Counts: new(Counts), Logger: slog.New(log)})
	f.Set = g.NewSet(typeURL, wire.Wildcard, f)
	for _, name := range names {
		f.held[name] = &wire.Resource{Name: name}
	}
	return f
}

// gone yields names.
func gone(names ...string) iter.Seq[string] {
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
		f := newFake(wire.ClusterType, slog.DiscardHandler, "a")
		f.confirmed = true
		f.Infer(gone("a"), true)
		f.group.Decide(now)
		now = now.Add(time.Hour)
		if !f.group.Look(now) {
			t.Fatal("no second look")
		}
		f.Begin(func(string) bool { return told }, told, false, now)
		if look := f.group.Look(now); look != told {
			t.Errorf("told what is held: %t: another look: %t", told, look)
		}
	}
}

// TestH03_AdditionsThatAreGoneAgain: new listeners count against removals, since they may be the old ones under other names, but not if
// they were removed too.
func TestH03_AdditionsThatAreGoneAgain(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, tt := range []struct {
		name string
		gone []string // of the new ones
		held int
	}{
		{"renamed", nil, 0},
		{"renamed, and removed", []string{"d", "e", "f"}, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake(wire.ListenerType, slog.DiscardHandler, "a", "b", "c")
			f.Begin(nil, false, false, now)
			f.Take(wire.Update{TypeURL: wire.ListenerType, Resources: []*wire.Resource{{Name: "d"}, {Name: "e"}, {Name: "f"}}}, now, f.apply)
			f.Take(wire.Update{TypeURL: wire.ListenerType, Removed: tt.gone}, now, f.apply)
			f.Infer(gone("a", "b", "c"), false)
			f.confirmed = true
			f.group.Decide(now)
			if n := f.group.Holding(); n != tt.held {
				t.Errorf("%d removals are held, want %d", n, tt.held)
			}
		})
	}
}

// TestH02_WhatIsConfirmedStaysConfirmed: all of a set was said once no new name has come for a while. One that comes later is a
// change, and makes no removal on the same stream wait.
func TestH02_WhatIsConfirmedStaysConfirmed(t *testing.T) {
	const quiet = 10 * time.Second
	began := time.Unix(1000, 0)
	var p Progress
	for _, tt := range []struct {
		at, confirmed time.Duration
	}{{0, quiet}, {5 * time.Second, 15 * time.Second}, {20 * time.Second, 15 * time.Second}} {
		p.responded(began.Add(tt.at), true, quiet)
		if got := p.Complete(began, quiet).Sub(began); got != tt.confirmed {
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
	f, began := newFake(wire.ClusterType, slog.NewTextHandler(&log, nil), names...), time.Unix(0, 0)
	f.confirmed = true
	f.Infer(gone(names...), false)
	alarms := func(now time.Time) int {
		log.Reset()
		f.group.Decide(now)
		return strings.Count(log.String(), "are still held back")
	}
	for minute, want := range []int{0: 0, 4: 0, 5: 1, 6: 0, 9: 0, 10: 1} {
		if got := alarms(began.Add(time.Duration(minute) * time.Minute)); got != want {
			t.Errorf("after %d minutes: %d alarms, want %d", minute, got, want)
		}
	}
	f.group.Discard(HoldChoice{}, began)
	if got := alarms(began.Add(time.Hour)); got != 0 {
		t.Errorf("discarded: %d alarms, want none", got)
	}
}
