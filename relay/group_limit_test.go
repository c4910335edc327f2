package relay

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestB35_GroupCreationIsRateLimited checks that a peer may create MaxGroups groups at once, and then MaxGroupsPerClient per
// minute. The limiter of an idle peer is dropped, and groups without a peer are not limited.
func TestB35_GroupCreationIsRateLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newGroupQuota(32, 4)
		create := func(peer string) (n int) {
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
			if n := create(step.peer); n != step.want {
				t.Errorf("after %v, peer %q created %d groups, want %d", step.after, step.peer, n, step.want)
			}
		}
		time.Sleep(time.Hour)
		if f.countCreated("c"); len(f.limiters) != 1 {
			t.Errorf("%d limiters, want 1", len(f.limiters))
		}
	})
}
