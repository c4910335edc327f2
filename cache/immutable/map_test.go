package immutable

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
)

// TestB1_MapsArePersistent: every version of a map has what was set in it and was not deleted, whatever became of later versions.
func TestB1_MapsArePersistent(t *testing.T) {
	type version struct {
		Map[int]
		want map[string]*int
	}
	rng := rand.New(rand.NewPCG(1, 2))
	versions := []version{{want: map[string]*int{}}}
	for i := range 3000 {
		v := versions[len(versions)-1]
		v.want = maps.Clone(v.want)
		if key := fmt.Sprint(rng.IntN(300)); rng.IntN(3) == 0 {
			v.Delete(key)
			delete(v.want, key)
		} else {
			v.want[key] = new(i)
			v.Set(key, v.want[key])
		}
		versions = append(versions, v)
	}
	for i := range versions {
		v := &versions[i]
		if v.Len() != len(v.want) {
			t.Fatalf("version %d: got %d keys, want %d", i, v.Len(), len(v.want))
		}
		for key := range 300 {
			key := fmt.Sprint(key)
			if got, want := v.Get(key), v.want[key]; got != want {
				t.Fatalf("version %d, %s: got %p, want %p", i, key, got, want)
			}
		}
	}
}
