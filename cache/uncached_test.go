package cache

import (
	"bytes"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/cache/intern"
	"github.com/xdstender/tender/cache/wire"
)

// uncacheable returns a resource that may not be cached.
func uncacheable(t tester, name, version, content string) *wire.Resource {
	t.Helper()
	return decoded(t, acme, &discoverypb.Resource{
		Name: name, Version: version, CacheControl: &discoverypb.Resource_CacheControl{DoNotCache: true},
		Resource: &anypb.Any{TypeUrl: acme, Value: []byte(content)},
	})
}

// putUncacheable has the origin send a resource that may not be cached.
func (o *origin) putUncacheable(k Kind, name, version, content string) Change {
	o.Helper()
	return o.Apply(k, updateOf(o.typeURL, uncacheable(o, name, version, content)))
}

// TestR125_NothingKeepsContent: uncachedTTL after it was received, no reference to uncacheable content remains: not in
// the view, in shared values of readers, in the interner, or in a removed entry.
func TestR125_NothingKeepsContent(t *testing.T) {
	tests := []struct {
		name   string
		kind   Kind
		remove bool
	}{
		{"named", ByName, false}, {"member", Wildcard, false}, {"named, removed", ByName, true}, {"member, removed",
			Wildcard, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOrigin(t, Config{Interner: new(intern.Pool)})
				watch := o.view.Watch()
				o.subscribe(watch, "a")
				watch.SubscribeAll(acme)
				field := func() weak.Pointer[byte] {
					o.putUncacheable(tt.kind, "a", "1", string(bytes.Repeat([]byte("x"), 4096)))
					e, _ := o.typ().Lookup(o.name("a"))
					Shared(o.typ(), SharedSets, "set", func() any {
						b := wire.NewDeltaBody(acme, "")
						b.Add(e.Resource, 0)
						return b
					})
					return weak.Make(&e.Resource.Field()[0])
				}()
				runtime.GC()
				if field.Value() == nil {
					t.Fatal("content was dropped too early")
				}
				next := o.Expire(time.Now())
				if left := time.Until(next); left <= 0 || left > time.Second {
					t.Errorf("next deadline in %v, want at most 1s", left)
				}
				if tt.remove {
					o.remove(tt.kind, "a")
				}
				o.Expire(next)
				runtime.GC()
				if field.Value() != nil {
					t.Error("content is still referenced")
				}
				if tt.remove {
					return
				}
				e, _ := o.typ().Lookup(o.name("a"))
				if !e.Present() || !e.Resource.ContentDropped() || e.Resource.Version != "1" || e.Resource.Field() != nil ||
					!e.Resource.HasBody() {
					t.Errorf("got %+v, want its name and version", e.Resource)
				}
				runtime.KeepAlive(o)
			})
		})
	}
}

// TestR125_ContentAgain: equal content that is received again is no change, and is available to streams that wait for
// it.
func TestR125_ContentAgain(t *testing.T) {
	for _, kind := range []Kind{Wildcard, ByName} {
		o, watch := newSubscribed(t)
		n := o.subscribe(watch, "a")[0]
		watch.SubscribeAll(acme)
		o.putUncacheable(kind, "a", "1", "x")
		_, sent := o.typ().Lookup(n)
		o.Expire(time.Now().Add(time.Second))
		if o.typ().Wildcard.ContentDropped()+o.typ().ByName.ContentDropped() != 1 {
			t.Errorf("%d: got %d and %d resources without content, want one", kind, o.typ().Wildcard.ContentDropped(),
				o.typ().ByName.ContentDropped())
		}
		woken(watch)
		o.putUncacheable(kind, "a", "1", "x")
		e, seq := o.typ().Lookup(n)
		if seq != sent || contentOf(e) != "x" || !woken(watch) {
			t.Errorf("%d: received again: got %q at %d, want x at %d and a wake-up", kind, contentOf(e), seq, sent)
		}
		o.Expire(time.Now().Add(time.Second))
		o.putUncacheable(kind, "a", "2", "y")
		if e, seq := o.typ().Lookup(n); seq == sent || contentOf(e) != "y" {
			t.Errorf("%d: changed: got %q at %d", kind, contentOf(e), seq)
		}
	}
}

// TestR125_SentFromEitherSet: if a member and a named resource have equal content, readers see the one whose content
// was not dropped.
func TestR125_SentFromEitherSet(t *testing.T) {
	o, watch := newSubscribed(t)
	n := o.subscribe(watch, "a")[0]
	watch.SubscribeAll(acme)
	o.putUncacheable(ByName, "a", "1", "x")
	o.putUncacheable(Wildcard, "a", "1", "x")
	_, sent := o.typ().Lookup(n)
	o.Expire(time.Now().Add(time.Second))
	o.putUncacheable(ByName, "a", "1", "x")
	if e, seq := o.typ().Lookup(n); contentOf(e) != "x" || seq != sent {
		t.Errorf("got %q at %d, want x at %d", contentOf(e), seq, sent)
	}
}

// TestB25_OriginIsAskedAgain: dropped content is requested once for all streams that need it, and again only after it
// was dropped again.
func TestB25_OriginIsAskedAgain(t *testing.T) {
	o, watch := newSubscribed(t)
	n := o.subscribe(watch, "a")[0]
	watch.SubscribeAll(acme)
	o.TakeDemand()
	o.Asked([]*Name{n}, time.Now())
	requests := func(name *Name, dropped time.Time) (requested int) {
		for range 3 {
			watch.Refetch(acme, name, dropped)
		}
		for _, d := range o.TakeDemand() {
			if d.Refetch && d.Name == name {
				requested++
			}
		}
		return requested
	}
	for _, name := range []*Name{n, nil} {
		first := time.Now().Add(time.Millisecond)
		if got := requests(name, first); got != 1 {
			t.Errorf("%v: requested dropped content %d times, want once", name, got)
		}
		if name != nil {
			o.Asked([]*Name{n}, first)
		} else {
			first = time.Now().Add(-time.Hour)
		}
		if got := requests(name, first); got != 0 {
			t.Errorf("%v: requested %d times although it was requested since", name, got)
		}
	}
}

// TestR125_UncacheableNamesAreRequestedAgain: each new subscription to uncacheable content causes a request. A
// subscription to cacheable content does not.
func TestR125_UncacheableNamesAreRequestedAgain(t *testing.T) {
	o, watch := newSubscribed(t)
	names := o.subscribe(watch, "a", "b")
	o.putUncacheable(ByName, "a", "1", "x")
	o.put(ByName, "b", "1", "x")
	taken := func() (again []string) {
		for _, d := range o.TakeDemand() {
			if d.Refetch {
				again = append(again, d.Name.String())
			}
		}
		return again
	}
	watch.RefetchStale(acme, names)
	if got := taken(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("second subscription: requested %q, want a", got)
	}
	o.putUncacheable(ByName, "a", "1", "x")
	o.view.Watch().Subscribe(acme, []string{"a", "b"})
	if got := taken(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("another stream: requested %q, want a", got)
	}
	o.put(ByName, "a", "2", "y")
	o.view.Watch().Subscribe(acme, []string{"a", "b"})
	if got := taken(); len(got) != 0 {
		t.Errorf("cacheable content: requested %q", got)
	}
}
