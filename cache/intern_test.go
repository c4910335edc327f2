package cache

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"
	"weak"

	"github.com/xdstender/tender/cache/intern"
	"github.com/xdstender/tender/cache/wire"
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

// TestReplacedResourcesAreFreed: only the newest generation keeps a resource in memory, and only until it is removed.
func TestReplacedResourcesAreFreed(t *testing.T) {
	o := newOrigin(t, Config{Interner: new(intern.Pool)})
	var put []weak.Pointer[wire.Resource]
	wantKept := func(when string, want int) {
		t.Helper()
		runtime.GC()
		kept := slices.DeleteFunc(slices.Clone(put), func(r weak.Pointer[wire.Resource]) bool { return r.Value() == nil })
		if len(kept) != want {
			t.Errorf("%s: %d resources in memory, want %d", when, len(kept), want)
		}
	}
	for i := range 100 {
		o.put(Wildcard, "a", "", fmt.Sprint(i))
		put = append(put, weak.Make(o.typ().Wildcard.Get(o.name("a")).Resource))
	}
	wantKept("put", 1)
	o.remove(Wildcard, "a")
	o.Trim(time.Now())
	wantKept("removed", 0)
	runtime.KeepAlive(o)
}
