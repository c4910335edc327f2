package cache_test

import (
	"testing"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/wire"
)

// TestB2_HashedVersionsAreTrusted: if the versions of an origin are hashes of the content, an equal version means equal
// content. If its versions are not trusted, different bytes are a change.
func TestB2_HashedVersionsAreTrusted(t *testing.T) {
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
			r, err := wire.NewResource("type.googleapis.com/acme.Foo", "a", "v1", []byte(value))
			if err != nil {
				t.Fatal(err)
			}
			return w.Apply(cache.Wildcard, wire.Update{TypeURL: "type.googleapis.com/acme.Foo", Resources: []*wire.Resource{r}})
		}
		apply("one order of fields")
		c := apply("another order of fields")
		if c.Changed != tt.changed || view.Generation().WildcardSource("type.googleapis.com/acme.Foo").Reused != tt.reused {
			t.Errorf("source %v: changed %d, reused %t; want %d, %t", tt.source, c.Changed,
				view.Generation().WildcardSource("type.googleapis.com/acme.Foo").Reused, tt.changed, tt.reused)
		}
	}
}
