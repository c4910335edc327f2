package conformance_test

import (
	"testing"
	"time"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/rollout"
)

// TestI6_ARejectedEditionIsServedOnce, by an origin that alternates between it and the last good, also after a restart. An operator may
// have it tried again, and an hour later it is a new change.
func TestI6_ARejectedEditionIsServedOnce(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		canary := w.client(v, "canary", w.rejecting("lds l@2"))
		other := w.clients(v, "other")[0]
		listeners := func() (n int) {
			for _, r := range canary.Responses() {
				if r.TypeURL == relaytest.ListenerType && r.Resource("l") != nil && w.revs[r.Resource("l").Digest] == "2" {
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
				if want := "1 client refused it, at most 0 may: canary refused " + relaytest.ListenerType + ": l is not valid"; s.Halted.Reason != want {
					w.t.Errorf("it is halted by %q, want %q", s.Halted.Reason, want)
				}
			}
		}
		was := func(when string, served int) {
			w.t.Helper()
			if n := listeners(); n != served {
				w.t.Errorf("%s, the canary was served the rejected listener %d times, want %d", when, n, served)
			}
			w.expectResources("lds l@1", canary, other)
		}
		w.change("lds l@2")
		w.sleep(4 * time.Second)
		was("after a refusal", 1)
		alternate(3)
		was("after the origin came back to it", 1)
		w.restartRelay(canary, other)
		w.sleep(time.Minute) // until the sets are confirmed again
		alternate(2)
		was("after a restart", 1)
		w.command("resume", admin.RolloutScope{})
		w.sleep(4 * time.Second)
		was("when it was resumed", 2)
		alternate(1)
		was("after it was refused again", 2)
		w.change("lds l@1")
		w.sleep(time.Hour + time.Minute)
		w.change("lds l@2")
		w.sleep(4 * time.Second)
		was("an hour later", 3)
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
			w.t.Errorf("what an operator has promoted is rejected without being served: %s", s.Halted.Reason)
		}
	})
}
