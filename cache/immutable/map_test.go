package immutable

import (
	"maps"
	"strconv"
	"testing"

	"pgregory.net/rapid"
)

// TestB1_RandomMapsArePersistent makes maps from any earlier ones. At the end, each still has what was set in it and
// not deleted. Of so many keys, some share a slot.
func TestB1_RandomMapsArePersistent(t *testing.T) {
	const keys = 200
	type version struct {
		Map[int]
		want map[string]*int
	}
	rapid.Check(t, func(t *rapid.T) {
		versions := []version{{want: map[string]*int{}}}
		for range rapid.IntRange(1, 8).Draw(t, "versions") {
			v := versions[rapid.IntRange(0, len(versions)-1).Draw(t, "from")]
			v.want = maps.Clone(v.want)
			for _, change := range rapid.SliceOfN(rapid.IntRange(0, 3*keys-1), 0, 100).Draw(t, "changes") {
				if key := strconv.Itoa(change % keys); change < keys {
					v.Delete(key)
					delete(v.want, key)
				} else {
					v.want[key] = new(change)
					v.Set(key, v.want[key])
				}
			}
			versions = append(versions, v)
		}
		for i := range versions {
			v := &versions[i]
			if v.Len() != len(v.want) {
				t.Fatalf("version %d: got %d keys, want %d", i, v.Len(), len(v.want))
			}
			for key := range keys {
				if got, want := v.Get(strconv.Itoa(key)), v.want[strconv.Itoa(key)]; got != want {
					t.Fatalf("version %d, key %d: got %p, want %p", i, key, got, want)
				}
			}
		}
	})
}
