package files

import (
	"fmt"
	"testing"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/relay/relaytest/check"
)

const acme = "type.googleapis.com/acme.Thing"

// globName returns the glob of collection i.
func globName(i int) string { return fmt.Sprintf("xdstp://one/acme.Thing/%d/*", i) }

// BenchmarkLocalAmongCollections measures one change of a file with many subscribed globs.
func BenchmarkLocalAmongCollections(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprintf("globs=%d", n), func(b *testing.B) {
			view, w := collections(b, n)
			l := NewLocal(pending.New(w, nil))
			l.Answer()
			rounds := 0
			for b.Loop() {
				rounds++
				l.Update(member(b, rounds))
			}
			if got := view.Generation().Seq; got < cache.Seq(rounds) {
				b.Fatalf("%d changes were applied, want %d", got, rounds)
			}
		})
	}
}

// collections returns a view whose client subscribes to n collections, and its writer.
func collections(b *testing.B, n int) (*cache.View, *cache.Writer) {
	b.Helper()
	view, w := cache.New(cache.Config{})
	watch := view.Watch()
	for i := range n {
		watch.SubscribeAll(cache.Collection(acme, globName(i)))
	}
	w.SetConnected(true)
	return view, w
}

// member returns an update with new content for one member of the first collection.
func member(b *testing.B, version int) wire.Update {
	b.Helper()
	r := check.Must(wire.NewResource(acme, "xdstp://one/acme.Thing/0/a", fmt.Sprint(version), fmt.Append(nil, version)))
	return wire.Update{TypeURL: acme, Resources: []*wire.Resource{r}}
}
