package cache

import (
	"fmt"
	"testing"
)

// BenchmarkApplyAmongCollections measures a change of one resource of a type, or of a collection of the type, while
// clients subscribe to collections.
func BenchmarkApplyAmongCollections(b *testing.B) {
	for _, globs := range []int{100, 1000, 10_000} {
		o := newOrigin(b, Config{})
		watch := o.view.Watch()
		watch.SubscribeAll(acme)
		for i := range globs {
			watch.SubscribeAll(collection(i))
		}
		o.TakeDemand()
		for i := range globs {
			o.SetPhase(collection(i), Confirmed)
		}
		for what, key := range map[string]string{"type": acme, "collection": collection(0)} {
			b.Run(fmt.Sprintf("of=%s/globs=%d", what, globs), func(b *testing.B) {
				b.ReportAllocs()
				for i := range b.N {
					r := newResource(o, acme, "xdstp://one/acme.Thing/0/a", fmt.Sprint(i), fmt.Sprint(i))
					o.Apply(Wildcard, updateOf(key, r))
				}
			})
		}
	}
}

// collection returns the key of the i-th collection.
func collection(i int) string { return Collection(acme, fmt.Sprintf("xdstp://one/acme.Thing/%d/*", i)) }
