package conformance_test

import (
	"testing"
	"time"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
)

// TestI5_AClusterShownWhileFrozenHasEndpoints: a command about the rollout that shows a cluster while the origin is frozen shows
// its endpoints too, also if the origin has both again.
func TestI5_AClusterShownWhileFrozenHasEndpoints(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		all := w.clients(v, "canary", "second", "other")
		w.change("cds -b", "eds -b")
		w.commands("promote", admin.RolloutScope{All: true})
		for _, c := range all {
			c.Reconnect(w.relay.Conn())
		}
		w.pass(time.Second)
		w.have("cds a@1", all...)
		operate[admin.FreezeScope, admin.Freezes](w.t, w.relay, "freeze", admin.FreezeScope{})
		w.change("eds b@2", "cds b@2")
		seen := len(all[2].Responses())
		w.commands("undo", admin.RolloutScope{})
		w.have("cds a@1 b@1", all...)
		if sent := endpointsIn(all[2].Responses()[seen:]); sent != 1 {
			w.t.Errorf("with the cluster that came back, %d assignments were sent, want its own", sent)
		}
		w.commands("promote", admin.RolloutScope{All: true})
		w.have("cds a@1 b@2", all...)
	})
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		all := w.clients(v, "canary", "second", "other")
		w.change("cds -b", "eds -b")
		w.commands("promote", admin.RolloutScope{All: true})
		operate[admin.FreezeScope, admin.Freezes](w.t, w.relay, "freeze", admin.FreezeScope{})
		w.change("eds b@2", "cds b@2")
		w.commands("promote", admin.RolloutScope{All: true})
		w.have("cds a@1 b@2", all...)
		w.have("eds a@1 b@2", all...)
	})
}

// endpointsIn returns how many assignments responses have of cluster b.
func endpointsIn(responses []*relaytest.Response) (n int) {
	for _, r := range responses {
		if r.TypeURL == relaytest.EndpointType && r.Resource("b") != nil {
			n++
		}
	}
	return n
}
