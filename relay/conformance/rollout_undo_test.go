package conformance_test

import (
	"testing"
	"time"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/rollout"
)

// A rollout command that restores a cluster while the origin is frozen restores its endpoints, too, even if the
// origin has both again. What the origin has stated since the freeze is part of no edition before the thaw.
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
		w.expectResources("cds a@1", all...)
		w.relay.thaw()
		w.command("promote", admin.RolloutScope{All: true})
		w.expectResources("cds a@1 b@2", all...)
	})
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		all := w.clients(v, "canary", "second", "other")
		w.change("cds -b", "eds -b")
		w.command("promote", admin.RolloutScope{All: true})
		w.change("eds b@2", "cds b@2")
		w.relay.freeze(admin.FreezeScope{})
		w.command("promote", admin.RolloutScope{All: true})
		w.expectResources("cds a@1 b@2", all...)
		w.expectResources("eds a@1 b@2", all...)
	})
}

// An undo also returns node groups to the last good whose first client connected after the promotion, and a restart does
// not change that. The fix then reaches them as others.
func TestI6_UndoCoversNewNodeGroups(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		group := func(cluster, node string) *rolloutClient {
			n := relaytest.EnvoyNode(node)
			n.Cluster = cluster
			c := &rolloutClient{w: w, node: node}
			c.Client = w.relay.Client(relaytest.ClientOptions{Variant: v, Node: n, AutoAck: true})
			c.follow()
			return c
		}
		all := []*rolloutClient{group("one", "canary-1"), group("one", "other-1")}
		w.settle()
		w.change("cds a@2", "lds l@2", "cds -b", "cds c@1", "rds routes@2")
		w.sleep(2 * time.Second)
		w.command("promote", admin.RolloutScope{All: true})
		all = append(all, group("two", "canary-2"), group("two", "other-2"))
		w.settle()
		w.expectResources("cds a@2 c@1", all...)
		w.command("undo", admin.RolloutScope{})
		w.sleep(time.Second)
		undone := func() {
			w.t.Helper()
			w.expectPhase(rollout.Halted, 0)
			for _, want := range []string{"cds a@1 b@1", "lds l@1", "rds routes@1"} {
				w.expectResources(want, all...)
			}
		}
		undone()
		w.sleep(time.Minute)
		undone()
		w.restartRelay(all...)
		w.sleep(time.Minute)
		undone()
		w.change("lds l@3")
		w.sleep(5 * time.Second)
		w.expectResources("lds l@3", all[0], all[2])
		w.expectResources("lds l@1", all[1], all[3])
		w.sleep(21 * time.Minute)
		w.expectResources("cds a@2 c@1", all...)
		w.expectResources("lds l@3", all...)
	}, "TENDER_NODE_GROUP_BY=cluster")
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
