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
	get := func(typ *Type, key any, of Sharing) int {
		return Shared(typ, of, key, func() any { made++; return made }).(int)
	}
	tests := []struct {
		what string
		key  any
		of   Sharing
		want int
	}{
		{"first", key{1}, SharedSets, 1},
		{"same key", key{1}, SharedSets, 1},
		{"other key", key{2}, SharedSets, 2},
		{"first key again", key{1}, SharedSets, 1},
		{"first key, other kind", key{1}, SharedChanges, 3},
		{"key of another Go type", 1, SharedChanges, 4},
	}
	for _, tt := range tests {
		if got := get(typ, tt.key, tt.of); got != tt.want {
			t.Errorf("%s: got value %d, want %d", tt.what, got, tt.want)
		}
	}
	o.put(Wildcard, "b", "1", "x")
	if got := get(o.typ(), 1, SharedChanges); got != 5 {
		t.Errorf("newer version of the type: got value %d, want 5", got)
	}
	if got := get(typ, 1, SharedChanges); got != 4 {
		t.Errorf("older version, after that: got value %d, want 4", got)
	}
	for i := range MaxShared {
		get(typ, 100+i, SharedChanges)
	}
	if got := get(typ, key{1}, SharedSets); got != 1 {
		t.Errorf("after many changes: got value %d for a set, want 1", got)
	}
	if got := get(typ, 1, SharedChanges); got != 6+MaxShared {
		t.Errorf("after %d newer ones: got value %d, want %d, made again", MaxShared, got, 6+MaxShared)
	}
	if a, b := get(noType, 1, SharedSets), get(noType, 1, SharedSets); a == b {
		t.Error("missing type stores values")
	}
}

// TestSharedConcurrently: concurrent readers each get the value of their own key, which is made once.
func TestSharedConcurrently(t *testing.T) {
	type value struct{ key int }
	o := newOrigin(t, Config{})
	o.put(Wildcard, "a", "1", "x")
	typ := o.typ()
	var made atomic.Int64
	var wg sync.WaitGroup
	for i := range 16 { // joined by Wait below
		wg.Go(func() {
			for j := range 500 {
				key := (i + j) % MaxShared
				got := Shared(typ, SharedSets, key, func() any { made.Add(1); return &value{key} }).(*value)
				if got.key != key {
					t.Errorf("key %d: got the value of key %d", key, got.key)
				}
			}
		})
	}
	if wg.Wait(); made.Load() != MaxShared {
		t.Errorf("got %d values made for %d keys", made.Load(), MaxShared)
	}
}
