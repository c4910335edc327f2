package serve

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/bench/content"
)

// A published is a backend that calls itself for each batch.
type published func(batch)

func (published) start() (string, error) { return "", nil }

func (p published) publish(_ content.Kind, b batch) error {
	p(b)
	return nil
}

// TestMixedChangesKeepTheirRate verifies that the changes of responses of random sizes are made at their times.
func TestMixedChangesKeepTheirRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kinds := []content.Kind{{TypeURL: content.Endpoint, Count: 5000, Bytes: 128}}
		start, made := time.Now(), 0
		var sizes, indexes []int
		s := Server{set: content.NewSet(kinds), backend: published(func(b batch) {
			if after, want := time.Since(start), time.Duration(made)*time.Millisecond; after != want {
				t.Errorf("%d changes were made before %v, want them before %v", made, after, want)
			}
			made += len(b.changed)
			sizes = append(sizes, len(b.changed))
		})}
		c := Changes{TypeURL: content.Endpoint, Count: 5000, At: 100, Every: 100 * time.Millisecond, Mixed: true} // 1,000 per second
		if err := s.Change(c, &indexes); err != nil {
			t.Fatal(err)
		}
		if made != c.Count || len(indexes) != c.Count {
			t.Errorf("%d changes with %d indexes, want %d", made, len(indexes), c.Count)
		}
		if least, most := slices.Min(sizes), slices.Max(sizes); least < 1 || least > 20 || most < 80 || most > c.At {
			t.Errorf("from %d to %d changes at once, want random numbers from 1 to %d", least, most, c.At)
		}
	})
}
