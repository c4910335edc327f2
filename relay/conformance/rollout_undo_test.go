package conformance_test

import (
	"testing"
	"time"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
)

// A rollout command that restores a cluster while the origin is frozen restores its endpoints, too, even if the
// origin has both again.
func TestI5_AClusterShownWhileFrozenHasEndpoints(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		all := w.clients(v, "canary", "second", "other")
		w.change("cds -b", "eds -b")
		w.command("promote", admin.RolloutScope{All: true})
		for _, c := range all {
			c.Reconnect(w.relay.Conn())
		}
		w.sleep(time.Second)
		w.expectResources("cds a@1", all...)
		w.relay.freeze(admin.FreezeScope{})
		w.change("eds b@2", "cds b@2")
		seen := len(all[2].Responses())
		w.command("undo", admin.RolloutScope{})
		w.expectResources("cds a@1 b@1", all...)
		if sent := endpointsIn(all[2].Responses()[seen:]); sent != 1 {
			w.t.Errorf("with the restored cluster, got %d endpoint resources, want its own", sent)
		}
		w.command("promote", admin.RolloutScope{All: true})
		w.expectResources("cds a@1 b@2", all...)
	})
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		all := w.clients(v, "canary", "second", "other")
		w.change("cds -b", "eds -b")
		w.command("promote", admin.RolloutScope{All: true})
		w.relay.freeze(admin.FreezeScope{})
		w.change("eds b@2", "cds b@2")
		w.command("promote", admin.RolloutScope{All: true})
		w.expectResources("cds a@1 b@2", all...)
		w.expectResources("eds a@1 b@2", all...)
	})
}

// endpointsIn returns the number of endpoint resources of cluster b in responses.
func endpointsIn(responses []*relaytest.Response) (n int) {
	for _, r := range responses {
		if r.TypeURL == relaytest.EndpointType && r.Resource("b") != nil {
			n++
		}
	}
	return n
}
