package conformance_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/rollout"
)

// A halted rollout of one origin does not stop that of another.
func TestOriginsRollOutAlone(t *testing.T) {
	t.Parallel()
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		env := []string{rolloutStages, "TENDER_DELTA_VERSIONS=content", operated,
			"TENDER_SNAPSHOT_DIR=" + filepath.Join(t.TempDir(), "snapshots")}
		originsBubble(t, "type:lds=west", env, func(first, west *world) {
			w := &rolloutWorld{world: first, env: env}
			first.change("cds a@1", "cds b@1", "eds a@1", "eds b@1", "rds routes@1")
			west.change("lds l@1")
			canary := w.client(v, "canary", w.rejecting("lds l@2"))
			other := w.clients(v, "other")[0]
			west.change("lds l@2")
			first.change("cds a@2")
			w.sleep(5 * time.Second)
			w.expectResources("lds l@1", canary, other)
			w.expectResources("cds a@2 b@1", canary)
			w.expectResources("cds a@1 b@1", other)
			w.sleep(21 * time.Minute)
			w.expectResources("cds a@2 b@1", canary, other)
			w.expectResources("lds l@1", canary, other)
		})
	})
}

// One edition is for all node groups, and a NACK in one group halts it for all.
func TestNodeGroupsRollOutTogether(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		group := func(cluster, node string, reject func(*relaytest.Response) error) *rolloutClient {
			n := relaytest.EnvoyNode(node)
			n.Cluster = cluster
			c := &rolloutClient{w: w, node: node}
			c.Client = w.relay.Client(relaytest.ClientOptions{Variant: v, Node: n, AutoAck: true, Reject: reject})
			c.Subscribe(relaytest.ClusterType)
			return c
		}
		one, two := group("one", "canary-1", w.rejecting("cds a@3")), group("two", "canary-2", nil)
		rest := []*rolloutClient{group("one", "other-1", nil), group("two", "other-2", nil)}
		both := []*rolloutClient{one, two}
		w.settle()
		w.change("cds a@2")
		w.sleep(3 * time.Second)
		w.expectResources("cds a@2 b@1", both...)
		w.expectResources("cds a@1 b@1", rest...)
		w.sleep(21 * time.Minute)
		w.expectResources("cds a@2 b@1", append(rest, both...)...)
		w.change("cds a@3")
		w.sleep(4 * time.Second)
		w.expectPhase(rollout.Halted, 0)
		w.expectResources("cds a@2 b@1", append(rest, both...)...)
	}, "TENDER_NODE_GROUP_BY=cluster")
}

// A node group that the origin refuses does not stop the rollout of other groups. It is left out of editions after
// 30 s; its own changes wait until it is back.
func TestI11_RefusedNodeGroupStopsNoRollout(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		group := func(cluster, node string) *rolloutClient {
			n := relaytest.EnvoyNode(node)
			n.Cluster = cluster
			c := &rolloutClient{w: w, node: node}
			c.Client = w.relay.Client(relaytest.ClientOptions{Variant: v, Node: n, AutoAck: true})
			c.Subscribe(relaytest.ClusterType)
			return c
		}
		canary, refused := group("one", "canary-1"), group("two", "canary-2")
		other, others := group("one", "other-1"), group("two", "other-2")
		w.settle()
		w.change("cds a@2")
		allow := w.origin.Refuse(func(n *corepb.Node) bool { return n.GetCluster() == "two" },
			status.New(codes.PermissionDenied, "not you"))
		w.sleep(5 * time.Second)
		w.expectResources("cds a@1 b@1", canary, refused)
		w.sleep(30 * time.Second)
		w.expectPhase(rollout.Rolling, 1)
		w.expectResources("cds a@2 b@1", canary)
		w.expectResources("cds a@1 b@1", other, refused, others)
		w.sleep(21 * time.Minute)
		w.expectPhase(rollout.Current, 0)
		w.expectResources("cds a@2 b@1", canary, other)
		w.expectResources("cds a@1 b@1", refused, others)

		w.change("cds b@2", "cds a@3") // cut together, although the other group has waited for long
		w.sleep(time.Second)
		w.change("cds a@4")
		w.sleep(time.Second)
		w.expectResources("cds a@2 b@1", canary)
		w.sleep(2 * time.Second)
		w.expectResources("cds a@4 b@2", canary)
		w.expectResources("cds a@2 b@1", other)
		w.sleep(21 * time.Minute)
		w.expectResources("cds a@4 b@2", canary, other)
		w.expectResources("cds a@1 b@1", refused, others)
		if s := w.rollout(); !strings.Contains(s.WaitsFor, "some node groups") || s.Waiting == 0 {
			t.Errorf("the status %+v lacks the waiting group", s)
		}
		if o := statusOf(w.t, w.relay).Origins[0].Rollout.Outcomes; o.Promoted != 3 || o.Reverted != 0 {
			t.Errorf("got the outcomes %+v, want three promotions and no revert", o)
		}

		allow()
		w.sleep(2 * time.Minute)
		w.expectPhase(rollout.Rolling, 1)
		w.expectResources("cds a@4 b@2", canary, other, refused)
		w.expectResources("cds a@1 b@1", others)
		w.sleep(21 * time.Minute)
		w.expectResources("cds a@4 b@2", others)
		if s := w.rollout(); s.WaitsFor != "" {
			t.Errorf("the rollout waits for %s, although all groups are back", s.WaitsFor)
		}
	}, "TENDER_NODE_GROUP_BY=cluster")
}

// A rollout with many removals is held until the hold ends or it is promoted. Endpoint changes are not held.
func TestRolloutOfManyRemovalsIsHeld(t *testing.T) {
	t.Parallel()
	for _, promote := range []bool{false, true} {
		rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
			w.change("cds c@1", "cds d@1")
			all := []*rolloutClient{w.client(v, "canary", nil), w.client(v, "other", nil)}
			w.settle()
			w.expectResources("cds a@1 b@1 c@1 d@1", all...)
			w.change("cds -b", "cds -c", "cds -d", "eds a@2")
			w.sleep(2 * time.Minute) // until the set was verified
			w.expectResources("cds a@1 b@1 c@1 d@1", all...)
			w.expectResources("eds a@2 b@1", all...)
			w.expectPhase(rollout.Held, 0)
			if promote {
				w.command("promote", admin.RolloutScope{})
			} else {
				w.sleep(9 * time.Minute)
			}
			w.expectPhase(rollout.Rolling, 1)
			w.expectResources("cds a@1", all[0])
			w.expectResources("cds a@1 b@1 c@1 d@1", all[1])
		}, "TENDER_MASS_DELETE_HOLD=10m", "TENDER_HOLD_EXPLICIT_REMOVALS=off")
	}
}

// While the relay is frozen, stages do not end and no change is rolled out, but commands are executed.
func TestI13_FrozenRolloutsStandStill(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		all := w.clients(v, "canary", "second", "other")
		w.change("cds a@2")
		w.sleep(5 * time.Minute)
		w.expectPhase(rollout.Rolling, 1)
		w.relay.freeze(admin.FreezeScope{})
		w.change("cds b@2")
		w.sleep(30 * time.Minute)
		w.expectResources("cds a@2 b@1", all[0])
		w.expectResources("cds a@1 b@1", all[1:]...)
		w.command("promote", admin.RolloutScope{})
		w.expectResources("cds a@2 b@1", all[:2]...)
		w.sleep(30 * time.Minute)
		w.expectResources("cds a@1 b@1", all[2])
		w.relay.thaw()
		w.sleep(11 * time.Minute)
		w.expectResources("cds a@2 b@1", all[2])
		w.sleep(25 * time.Minute)
		w.expectResources("cds a@2 b@2", all...)
	})
}

// An open rollout continues while the origin is down. A new edition waits for the origin.
func TestRolloutGoesOnWithoutItsOrigin(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		all := w.clients(v, "canary", "other")
		w.change("cds a@2")
		w.sleep(5 * time.Second)
		w.change("cds b@2") // in the next edition
		w.origin.Stop()
		w.sleep(22 * time.Minute)
		w.expectResources("cds a@2 b@1", all...)
		w.sleep(30 * time.Minute)
		w.expectResources("cds a@2 b@1", all...)
		w.expectPhase(rollout.Gathering, 0)
		w.origin.Restart()
		w.sleep(time.Minute)
		w.expectResources("cds a@2 b@2", all[0])
		w.expectResources("cds a@2 b@1", all[1])
	})
}

// After a start without a snapshot, the relay serves the origin's latest state to all clients, and the status
// reports it.
func TestColdRolloutServesLatest(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		w.clients(v, "canary", "other")
		if s := w.rollout(); !s.Cold {
			w.t.Errorf("the status %+v does not report that no state was restored", s)
		} else if s.WaitsFor != "" {
			w.t.Errorf("the rollout waits for %s, although all sets are confirmed", s.WaitsFor)
		}
		w.settle()
		w.restartRelay()
		if s := w.rollout(); s.Cold {
			w.t.Errorf("the status %+v reports that no state was restored", s)
		}
	})
}

// Without a last good state, the status reports sets that the origin has not confirmed, since they may be
// incomplete.
func TestColdRolloutReportsUnconfirmedSets(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		w.origin.Stop()
		w.client(v, "canary", nil)
		w.sleep(time.Second)
		if s := w.expectPhase(rollout.Current, 0); !s.Cold || !strings.Contains(s.WaitsFor, "has not confirmed") {
			w.t.Errorf("while the origin is down, the status is %+v", s)
		}
		w.origin.Restart()
		w.sleep(time.Minute)
		if s := w.expectPhase(rollout.Current, 0); s.WaitsFor != "" {
			w.t.Errorf("the rollout waits for %s, although all sets are confirmed", s.WaitsFor)
		}
	})
}
