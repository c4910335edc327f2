package conformance_test

import (
	"testing"
	"time"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/rollout"
)

// An edition that canaries rejected is not served again if the origin alternates between it and the last good
// state, even after a restart. An operator may resume it, and an hour later it counts as a new change.
func TestI6_ARejectedEditionIsServedOnce(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		canary := w.client(v, "canary", w.rejecting("lds l@2"))
		other := w.clients(v, "other")[0]
		listeners := func() (n int) {
			for _, r := range canary.Responses() {
				if r.TypeURL == relaytest.ListenerType && r.Resource("l") != nil && w.n.Revision(r.Resource("l").Digest) == "2" {
					n++
				}
			}
			return n
		}
		alternate := func(times int) {
			for range times {
				w.change("lds l@1")
				w.sleep(4 * time.Second)
				w.expectPhase(rollout.Current, 0)
				w.change("lds l@2")
				w.sleep(4 * time.Second)
				s := w.expectPhase(rollout.Halted, 0)
				if want := "1 client rejected the edition (limit 0): canary rejected " + relaytest.ListenerType +
					": l is not valid"; s.Halted.Reason != want {
					w.t.Errorf("the rollout is halted by %q, want %q", s.Halted.Reason, want)
				}
			}
		}
		expectServed := func(when string, served int) {
			w.t.Helper()
			if n := listeners(); n != served {
				w.t.Errorf("%s, the canary got the rejected listener %d times, want %d", when, n, served)
			}
			w.expectResources("lds l@1", canary, other)
		}
		w.change("lds l@2")
		w.sleep(4 * time.Second)
		expectServed("after a NACK", 1)
		alternate(3)
		expectServed("after the origin sent it repeatedly", 1)
		w.restartRelay(canary, other)
		w.sleep(time.Minute) // until the sets are confirmed
		alternate(2)
		expectServed("after a restart", 1)
		w.command("resume", admin.RolloutScope{})
		w.sleep(4 * time.Second)
		expectServed("when it was resumed", 2)
		alternate(1)
		expectServed("after it was rejected a second time", 2)
		w.change("lds l@1")
		w.sleep(time.Hour + time.Minute)
		w.change("lds l@2")
		w.sleep(4 * time.Second)
		expectServed("an hour later", 3)
		w.change("lds l@1")
		w.sleep(4 * time.Second)
		w.change("lds l@2")
		w.command("promote", admin.RolloutScope{All: true})
		w.change("lds l@1")
		w.sleep(4 * time.Second)
		w.command("promote", admin.RolloutScope{All: true})
		w.change("lds l@2")
		w.sleep(4 * time.Second)
		if s := w.rollout(); s.Halted != nil && listeners() < 5 {
			w.t.Errorf("an edition that an operator had promoted is rejected without being served: %s", s.Halted.Reason)
		}
	})
}
