package cache

import (
	"fmt"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/xdstender/tender/cache/intern"
)

// TestInternedViewsShare: two node groups share the bytes of equal resources.
func TestInternedViewsShare(t *testing.T) {
	in := new(intern.Pool)
	one, two := newOrigin(t, Config{Interner: in}), newOrigin(t, Config{Interner: in})
	for _, o := range []*origin{one, two} {
		o.subscribe(o.view.Watch(), "a")
		o.put(Wildcard, "a", "1", "x")
		o.put(ByName, "a", "1", "x")
	}
	want := one.typ().Wildcard.Get(one.name("a")).Resource
	for _, set := range []*Set{&one.typ().ByName, &two.typ().Wildcard, &two.typ().ByName} {
		for e := range set.Since(0) {
			if e.Resource != want {
				t.Error("two views do not share equal resources")
			}
		}
	}
	if got := in.Len(); got != 1 {
		t.Errorf("got %d different resources, want 1", got)
	}
}

// collect runs garbage collections until done returns true for their cleanups. It gives up after a large number.
func collect(t *testing.T, done func() bool) {
	t.Helper()
	for range 50 {
		if done() {
			return
		}
		signal := make(chan struct{})
		runtime.AddCleanup(new([64]byte), func(c chan struct{}) { close(c) }, signal)
		runtime.GC()
		select {
		case <-signal:
		case <-time.After(10 * time.Second):
			t.Fatal("no cleanup ran after a garbage collection")
		}
	}
	t.Error("unused resource was not freed")
}

func TestInternedResourcesAreFreed(t *testing.T) {
	in := new(intern.Pool)
	o := newOrigin(t, Config{Interner: in})
	kept := in.Intern(newResource(t, acme, "kept", "1", "x"))
	for i := range 100 {
		o.put(Wildcard, "a", "", fmt.Sprint(i))
	}
	last := weak.Make(o.typ().Wildcard.Get(o.name("a")).Resource)
	collect(t, func() bool { return in.Len() == 2 })
	if last.Value() == nil {
		t.Error("resource of a generation was freed")
	}
	o.remove(Wildcard, "a")
	o.Trim(time.Now())
	collect(t, func() bool { return in.Len() == 1 })
	if got := in.Intern(newResource(t, acme, "kept", "1", "x")); got != kept {
		t.Error("resource in use was removed from the pool")
	}
	if got := in.Intern(newResource(t, acme, "a", "", "99")); contentOf(&Entry{Resource: got}) != "99" {
		t.Error("interning again returned another resource")
	}
	runtime.KeepAlive(kept)
	runtime.KeepAlive(o)
}
