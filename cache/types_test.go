package cache

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/xdstender/tender/cache/wire"
)

// TestB1_RandomTypesAreVersions: each version of types yields the changes since any earlier version and no others, and
// the log does not keep types that changed again or were dropped.
func TestB1_RandomTypesAreVersions(t *testing.T) {
	const keys = 12
	const mostLogged = 2*keys + 64
	type version struct {
		types
		want map[string]uint64 // when each key last changed
	}
	rapid.Check(t, func(t *rapid.T) {
		versions := []version{{want: map[string]uint64{}}}
		steps := rapid.IntRange(1, 3*mostLogged).Draw(t, "steps")
		for i := range steps {
			v := versions[i]
			v.want = maps.Clone(v.want)
			key, at := fmt.Sprint(rapid.IntRange(0, keys-1).Draw(t, "key")), uint64(i+1)
			if _, there := v.want[key]; there && rapid.IntRange(0, 2).Draw(t, "drop") == 0 {
				v.drop(key)
				delete(v.want, key)
			} else {
				v.put(&Type{URL: key, revision: at})
				v.want[key] = at
			}
			versions = append(versions, v)
		}
		since := rapid.Uint64Range(0, uint64(steps)).Draw(t, "since")
		for i := range versions {
			v := &versions[i]
			if n := v.byKey.Len(); n != len(v.want) || len(v.log) > mostLogged {
				t.Fatalf("version %d: %d types and a log of %d, want %d and at most %d", i, n, len(v.log), len(v.want), mostLogged)
			}
			var got, want []uint64
			for typ := range v.since(since) {
				got = append(got, typ.revision)
			}
			for _, at := range v.want {
				if at > since {
					want = append(want, at)
				}
			}
			if slices.Sort(want); !slices.Equal(got, want) {
				t.Fatalf("version %d since %d: got %v, want %v", i, since, got, want)
			}
		}
	})
}

// TestB1_ChangedSince: ChangedSince yields the types that changed, for each kind of change, and no others.
func TestB1_ChangedSince(t *testing.T) {
	o, watch := newSubscribed(t)
	watch.SubscribeAll(shopKey)
	o.subscribe(watch, "a")
	o.put(Wildcard, "m", "1", "x")
	o.SetPhase(shopKey, Settled)
	for _, tt := range []struct {
		name string
		do   func()
		want []string
	}{
		{"nothing", func() {}, nil},
		{"a phase", func() { o.SetPhase(shopKey, Confirmed) }, []string{shopKey}},
		{"a name", func() { o.put(ByName, "a", "1", "x") }, []string{acme}},
		{"several", func() {
			o.put(ByName, "a", "2", "y")
			o.Apply(Wildcard, wire.Update{TypeURL: shopKey})
			o.put(ByName, "a", "3", "z")
		}, []string{shopKey, acme}},
		{"connection", func() { o.SetConnected(false) }, nil},
		{"trim", func() {
			o.remove(Wildcard, "m")
			o.Trim(time.Now())
		}, []string{acme}},
	} {
		before := o.view.Generation().Revision
		tt.do()
		var got []string
		for typ := range o.view.Generation().ChangedSince(before) {
			got = append(got, typ.URL)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}
