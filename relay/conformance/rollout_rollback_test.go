package conformance_test

import (
	"testing"
	"time"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/rollout"
)

// With rollouts, a rollback serves an earlier generation to all cohorts, across any number of promotions. The
// content that it removed counts as rejected until the origin changes it, also after a thaw and a restart.
func TestI14_RollbackIsAnUndo(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		all := w.clients(v, "canary", "second", "other")
		w.sleep(time.Minute)
		for _, change := range []string{"cds a@2", "cds b@2"} {
			w.change(change)
			w.command("promote", admin.RolloutScope{All: true})
			w.sleep(time.Minute)
		}
		w.expectResources("cds a@2 b@2", all...)
		known := generationsOf(w.t, w.relay)
		if len(known) != 3 {
			w.t.Fatalf("got the generations %+v, want three", known)
		}
		w.relay.rollback(known[2].Generation)
		w.sleep(time.Second)
		w.expectResources("cds a@1 b@1", all...)
		status := func(when string, phase rollout.Phase, frozen bool) {
			w.t.Helper()
			o := statusOf(w.t, w.relay).Origins[0]
			if o.Rollout.Phase != phase || (o.Freeze != nil) != frozen || o.Rollout.Frozen != frozen {
				w.t.Errorf("%s: the rollout is %v, the freeze %+v; want %v, and frozen %t", when, o.Rollout.Phase, o.Freeze, phase,
					frozen)
			}
		}
		status("rolled back", rollout.Halted, true)
		w.restartRelay(all...)
		w.sleep(time.Minute)
		status("restarted", rollout.Halted, true)
		w.expectResources("cds a@1 b@1", all...)
		w.relay.thaw()
		w.sleep(time.Minute)
		status("thawed", rollout.Halted, false)
		w.expectResources("cds a@1 b@1", all...)
		w.change("cds b@3")
		w.command("promote", admin.RolloutScope{All: true})
		w.expectResources("cds a@2 b@3", all...)
	})
}
