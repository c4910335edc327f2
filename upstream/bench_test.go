package upstream

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

const acme = "type.googleapis.com/acme.Thing"

func globName(i int) string { return fmt.Sprintf("xdstp://one/acme.Thing/%d/*", i) }

// collections returns a view of so many collections, all known and followed, and its
// writer.
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
	r, err := wire.NewResource(acme, "xdstp://one/acme.Thing/0/a", fmt.Sprint(version), fmt.Append(nil, version))
	if err != nil {
		b.Fatal(err)
	}
	return wire.Update{TypeURL: acme, Resources: []*wire.Resource{r}}
}

// BenchmarkShareAmongCollections is what a group's part in a shared view costs when one
// of the collections that the group follows changes.
func BenchmarkShareAmongCollections(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprintf("globs=%d", n), func(b *testing.B) {
			from, fromWriter := cache.New(cache.Config{})
			fromWriter.SetConnected(true)
			view, w := collections(b, n)
			s := newShare(from, w)
			s.demand(time.Now())
			s.follow(time.Now())
			key := cache.Collection(acme, globName(0))
			rounds := 0
			for b.Loop() {
				u := member(b, rounds)
				u.TypeURL = key
				fromWriter.Apply(cache.Members, u)
				s.follow(time.Now())
				rounds++
			}
			if got := view.Head().Type(key).Members.Last(); got < cache.Seq(rounds) {
				b.Fatalf("%d changes arrived of %d", got, rounds)
			}
		})
	}
}

// BenchmarkMirrorAmongCollections is what one turn of a mirror costs in which one of
// the collections that clients follow changes.
func BenchmarkMirrorAmongCollections(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprintf("globs=%d", n), func(b *testing.B) {
			view, w := collections(b, n)
			m := &mirror{
				cfg: &Config{}, w: w, log: slog.New(slog.DiscardHandler),
				subs: make(map[string]*subscription), linger: newLingering(1, 1),
			}
			now := time.Now()
			m.demand(now)
			m.lines[main].stream = &stream{role: main}
			s := m.sub(acme)
			u := wire.Update{TypeURL: acme}
			for i := range n {
				u.Removed = append(u.Removed, globName(i))
			}
			m.apply(s, main, u, now)
			rounds := 0
			for b.Loop() {
				rounds++
				m.apply(s, main, member(b, rounds), now)
				m.act(b.Context(), now)
			}
			if got := view.Head().Seq; got < cache.Seq(rounds) {
				b.Fatalf("%d changes were applied of %d", got, rounds)
			}
		})
	}
}

// BenchmarkLocalAmongCollections is one change of a file beside globs that clients follow.
func BenchmarkLocalAmongCollections(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprintf("globs=%d", n), func(b *testing.B) {
			view, w := collections(b, n)
			l := NewLocal(w)
			l.Answer()
			rounds := 0
			for b.Loop() {
				rounds++
				l.Update(member(b, rounds))
			}
			if got := view.Head().Seq; got < cache.Seq(rounds) {
				b.Fatalf("%d changes were applied of %d", got, rounds)
			}
		})
	}
}
