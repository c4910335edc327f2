package relay

import (
	"testing"
	"testing/synctest"
	"time"
)

// B.35: a peer founds as many groups at once as there may be, and then so many a minute. One that founds none for long
// is forgotten, and those that are not known are not bounded.
func TestB35_GroupsAreFoundedAtABoundedRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newGroupQuota(&Config{MaxGroups: 32, MaxPeerGroups: 4})
		found := func(peer string) (n int) {
			for ; n < 100 && !f.tooFast(peer); n++ {
				f.countCreated(peer)
			}
			return n
		}
		for _, step := range []struct {
			after time.Duration
			peer  string
			want  int
		}{
			{0, "a", 32}, {0, "a", 0}, {0, "b", 32}, {0, "", 100}, {time.Minute, "a", 4}, {3 * time.Minute, "a", 12},
			{time.Hour, "a", 32},
		} {
			time.Sleep(step.after)
			if n := found(step.peer); n != step.want {
				t.Errorf("after %v %q founded %d groups, want %d", step.after, step.peer, n, step.want)
			}
		}
		time.Sleep(time.Hour)
		if f.countCreated("c"); len(f.limiters) != 1 {
			t.Errorf("%d peers are remembered, want 1", len(f.limiters))
		}
	})
}
