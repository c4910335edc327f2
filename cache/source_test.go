package cache_test

import (
	"testing"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/wire"
)

// TestB2_DifferentBytesAreAChange: different bytes under the same version of the origin are a change. The version of the
// set is made from the bytes.
func TestB2_DifferentBytesAreAChange(t *testing.T) {
	const foo = "type.googleapis.com/acme.Foo"
	view, w := cache.New(cache.Config{})
	apply := func(value string) cache.Change {
		r, err := wire.NewResource(foo, "a", "v1", []byte(value))
		if err != nil {
			t.Fatal(err)
		}
		c := w.Apply(cache.Wildcard, wire.Update{TypeURL: foo, Resources: []*wire.Resource{r}})
		if got, want := view.Generation().Type(foo).Wildcard.Sum(), fingerprint.Leaf(foo, r); got != want {
			t.Errorf("%s: version %v, want %v", value, got, want)
		}
		return c
	}
	apply("one order of fields")
	c := apply("another order of fields")
	if reused := view.Generation().WildcardSource(foo).Reused; c.Changed != 1 || !reused {
		t.Errorf("changed %d, reused %t; want 1, true", c.Changed, reused)
	}
}
