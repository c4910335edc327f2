package cache_test

import (
	"testing"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/wire"
)

// TestB2_HashedVersionsAreTrusted: if the versions of an origin are hashes of the content, an equal version means equal
// content. If its versions are not trusted, different bytes are a change. The version of the set is made accordingly.
func TestB2_HashedVersionsAreTrusted(t *testing.T) {
	const foo = "type.googleapis.com/acme.Foo"
	for _, tt := range []struct {
		source  fingerprint.Source
		changed int
		reused  bool
	}{
		{fingerprint.FromOrigin, 0, false},
		{fingerprint.FromContent, 1, true},
	} {
		view, w := cache.New(cache.Config{VersionSource: tt.source})
		apply := func(value string) cache.Change {
			r, err := wire.NewResource(foo, "a", "v1", []byte(value))
			if err != nil {
				t.Fatal(err)
			}
			c := w.Apply(cache.Wildcard, wire.Update{TypeURL: foo, Resources: []*wire.Resource{r}})
			if got, want := view.Generation().Type(foo).Wildcard.Sum(), tt.source.Leaf(foo, r); got != want {
				t.Errorf("source %v, %s: version %v, want %v", tt.source, value, got, want)
			}
			return c
		}
		apply("one order of fields")
		c := apply("another order of fields")
		if reused := view.Generation().WildcardSource(foo).Reused; c.Changed != tt.changed || reused != tt.reused {
			t.Errorf("source %v: changed %d, reused %t; want %d, %t", tt.source, c.Changed, reused, tt.changed, tt.reused)
		}
	}
}
