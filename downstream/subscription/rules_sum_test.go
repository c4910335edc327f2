package subscription

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestMain runs each property with 100 random inputs, times -rounds.
func TestMain(m *testing.M) { check.MainOfRapid(m, 100) }

// TestB2_CachedSumOfRandomNamesIsExact: the version of a SotW response always equals the sum of all that the client sees,
// whether the cached sum was updated or computed anew. The test also checks that it is updated if little has changed.
func TestB2_CachedSumOfRandomNamesIsExact(t *testing.T) {
	texts := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}
	followed := 0
	rapid.Check(t, func(t *rapid.T) {
		view, w := cache.New(cache.Config{})
		w.SetConnected(true)
		s := newClient(view, wire.EndpointType, false)
		s.Watch = view.WatchFunc(func() {})
		others := view.Watch() // the origin is asked for all names
		others.Subscribe(wire.EndpointType, texts)
		w.TakeDemand()
		some := rapid.SliceOfNDistinct(rapid.SampledFrom(texts), 1, 10, rapid.ID)
		few := rapid.SliceOfNDistinct(rapid.SampledFrom(texts), 1, 3, rapid.ID)
		subscribe := func(sum uint64) {
			s.ApplyRequest(&wire.Request{Subscribe: some.Draw(t, "subscribed"), NamesSum: sum}, time.Now())
			w.TakeDemand()
		}
		subscribe(1)
		for step := range rapid.IntRange(1, 40).Draw(t, "steps") {
			kind := cache.ByName
			u := wire.Update{TypeURL: wire.EndpointType}
			for _, name := range few.Draw(t, "changed") {
				content := rapid.IntRange(0, 3).Draw(t, "content")
				switch rapid.IntRange(0, 20).Draw(t, "what") {
				case 0, 1, 2:
					u.Removed = append(u.Removed, name)
				case 3:
					u.Errors = append(u.Errors, wire.NewResourceError(name, 7, fmt.Sprint(content)))
				case 4:
					w.ForgetWildcard(wire.EndpointType)
				case 5:
					kind = cache.Wildcard
					fallthrough
				default:
					u.Resources = append(u.Resources, check.Must(wire.NewResource(wire.EndpointType, name, fmt.Sprint(step), fmt.Append(nil, content))))
				}
			}
			switch w.Apply(kind, u); rapid.IntRange(0, 9).Draw(t, "client") {
			case 0:
				continue // it is slow
			case 1:
				subscribe(uint64(step + 2))
			}
			followed += checkSum(t, s, view)
		}
	})
	if followed == 0 {
		t.Error("the cached sum was never updated")
	}
}

// checkSum sends the client everything that is due, and fails the test unless the version is the sum of all that it
// sees. It returns 1 if the cached sum was updated.
func checkSum(t *rapid.T, s *Subscription, view *cache.View) (followed int) {
	g := view.Generation()
	before := s.nameSum.known && s.nameSum.at < g.Seq
	l := &Turn{Newest: g, Cut: g, Now: time.Now()}
	r, _, _ := s.Next(l, g.Seq)
	if want := (sums{s.visibleAt(g)}).compute(); s.nameSum.known && s.nameSum.sum != want {
		t.Fatalf("the cached sum is %v, want %v", s.nameSum.sum, want)
	} else if before && s.nameSum.known {
		followed = 1
	}
	if r.Body != nil {
		if got, want := r.Body.Version(), (sums{s.visibleAt(g)}).compute().Version(g.Type(wire.EndpointType).System()); got != want {
			t.Fatalf("the version is %s, want %s", got, want)
		}
		s.RecordSent(&r, "1", view, 0, time.Now())
		s.pending = false
	}
	s.Watch.PassHints(s.EndTurn(l))
	return followed
}
