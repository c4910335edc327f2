package upstream

import (
	"slices"
	"testing"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// TestH02_AnInterruptedLookBeginsAnew: on a stream that says what is held, silence does not confirm that it is gone.
func TestH02_AnInterruptedLookBeginsAnew(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, told := range []bool{false, true} {
		r := &removals{held: map[string]removal{"a": {stated: true}}, until: now}
		if look, _ := r.due(now); !look {
			t.Fatal("no second look")
		}
		r.begin(true, told)
		if look, _ := r.due(now); look != told {
			t.Errorf("told what is held: %t: another look: %t", told, look)
		}
	}
}

// TestB15_RequestsAreNotChanged: the names of a sweep are part of a request that may not be sent yet when the sweep ends.
func TestB15_RequestsAreNotChanged(t *testing.T) {
	view, _ := cache.New(cache.Config{})
	wanted := view.Watch().Subscribe(wire.ClusterType, []string{"b"})[0]
	s := subscription{names: map[*cache.Name]struct{}{wanted: {}}}
	asked := []string{"a", "b", "c"}
	if got := s.unwanted(asked); !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("got %q without what clients want, want a and c", got)
	}
	if !slices.Equal(asked, []string{"a", "b", "c"}) {
		t.Errorf("the names that were asked for became %q", asked)
	}
}
