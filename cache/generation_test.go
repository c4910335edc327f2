package cache

import (
	"sync"
	"sync/atomic"
	"testing"
)

func TestSharedByKey(t *testing.T) {
	type key struct{ n int }
	o := newOrigin(t, Config{})
	o.put(Wildcard, "a", "1", "x")
	typ := o.typ()
	made := 0
	get := func(typ *Type, key any, slot int) int {
		return typ.Shared(key, slot, func() any { made++; return made }).(int)
	}
	if got := get(typ, key{1}, 1); got != 1 {
		t.Errorf("first: got value %d, want 1", got)
	}
	if got := get(typ, key{1}, 1); got != 1 {
		t.Errorf("same key: got value %d, want 1", got)
	}
	if got := get(typ, key{2}, 1); got != 2 {
		t.Errorf("other key in the same slot: got value %d, want 2", got)
	}
	if got := get(typ, key{2}, 1); got != 2 {
		t.Errorf("other key again: got value %d, want 2", got)
	}
	if got := get(typ, key{1}, 2); got != 3 {
		t.Errorf("first key in another slot: got value %d, want 3", got)
	}
	if got := get(typ, 1, 2); got != 4 {
		t.Errorf("key of another type: got value %d, want 4", got)
	}
	o.put(Wildcard, "b", "1", "x")
	if got := get(o.typ(), 1, 2); got != 5 {
		t.Errorf("newer version of the type: got value %d, want 5", got)
	}
	if got := get(typ, 1, 2); got != 4 {
		t.Errorf("older version, after that: got value %d, want 4", got)
	}
	if a, b := get(noType, 1, 1), get(noType, 1, 1); a == b {
		t.Error("a type that is not there keeps values")
	}
}

// TestSharedConcurrently: whatever readers do at once, each gets a value of its
// own key.
func TestSharedConcurrently(t *testing.T) {
	type value struct{ key, times int }
	o := newOrigin(t, Config{})
	o.put(Wildcard, "a", "1", "x")
	typ := o.typ()
	var made atomic.Int64
	var wg sync.WaitGroup
	for i := range 16 { // the Wait below joins them
		wg.Go(func() {
			for j := range 500 {
				key := (i + j) % 6
				got := typ.Shared(key, key, func() any { return &value{key, int(made.Add(1))} }).(*value)
				if got.key != key {
					t.Errorf("key %d: got the value of key %d", key, got.key)
				}
			}
		})
	}
	wg.Wait()
	calls := 0
	for key := range SharedSlots {
		first := typ.Shared(key, key, func() any { calls++; return &value{key: key} })
		if again := typ.Shared(key, key, func() any { calls++; return &value{key: key} }); first != again {
			t.Errorf("key %d: two readers, one after the other, got two values", key)
		}
	}
	if calls > SharedSlots {
		t.Errorf("got %d values made for %d keys", calls, SharedSlots)
	}
}
