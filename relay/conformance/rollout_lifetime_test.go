package conformance_test

import (
	"testing"
	"time"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/rollout"
)

// syncedClient returns a client that supports TTLs and has the wildcard of clusters.
func (w *rolloutWorld) syncedClient(v relaytest.Variant, node string) *worldClient {
	n := relaytest.WithFeatures(relaytest.EnvoyNode(node), relaytest.FeatureTTL, relaytest.FeatureWrapper)
	return w.dial(relaytest.ClientOptions{Variant: v, Node: n}).subscribe("cds", "*")
}

// expectAndAckAll is expectAndAck for several clients; "" means no response.
func expectAndAckAll(want string, all ...*worldClient) {
	for _, c := range all {
		c.w.t.Helper()
		if want == "" {
			c.expectAndAck()
			continue
		}
		c.expectAndAck(want)
	}
}

// Heartbeats are sent in every phase of a rollout, even for a resource whose change is waiting. An expired
// resource is removed from all clients when its TTL ends, without an edition.
func TestHeartbeatsNeverWait(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(world *rolloutWorld, v relaytest.Variant) {
		w := &ttlWorld{world.world}
		form := ttlForm{v, "cds", "*"}
		w.set("cds t@1 1m")
		canary, other := world.syncedClient(v, "canary"), world.syncedClient(v, "other")
		w.sleep(20 * time.Second)
		for _, c := range []*worldClient{canary, other} {
			c.ackPending()
		}
		expectHeartbeat := func(what, t, clusters string, all ...*worldClient) {
			w.t.Helper()
			w.sleep(time.Second)
			w.heartbeat("cds", "t")
			w.t.Log(what)
			expectAndAckAll(form.heartbeat("t", t+"(1m0s)", clusters), all...)
		}
		expectHeartbeat("current", "t@1", "a@1 b@1 t@1(1m0s)", canary, other)
		world.expectPhase(rollout.Current, 0)
		w.change("cds a@2")
		expectHeartbeat("gathering", "t@1", "a@1 b@1 t@1(1m0s)", canary, other)
		w.sleep(3 * time.Second)
		expectAndAckAll(form.response("a@2", "a@2 b@1 t@1(59s)"), canary)
		w.heartbeat("cds", "t")
		expectAndAckAll(form.heartbeat("t", "t@1(1m0s)", "a@2 b@1 t@1(1m0s)"), canary)
		expectAndAckAll(form.heartbeat("t", "t@1(1m0s)", "a@1 b@1 t@1(1m0s)"), other)
		world.expectPhase(rollout.Rolling, 1)
		w.set("cds t@2 1m") // is in a part that is rejected before a client receives it
		expectAndAckAll("", canary)
		world.command("abort", admin.RolloutScope{})
		world.expectPhase(rollout.Halted, 0)
		w.sleep(50 * time.Second)
		canary.ackPending()
		w.heartbeat("cds", "t")
		expectAndAckAll(form.heartbeat("t", "t@1(1m0s)", "a@1 b@1 t@1(1m0s)"), canary, other)
		w.sleep(40 * time.Second)
		w.heartbeat("cds", "t")
		expectAndAckAll(form.heartbeat("t", "t@1(1m0s)", "a@1 b@1 t@1(1m0s)"), canary, other)
		w.sleep(59 * time.Second)
		expectAndAckAll("", canary, other)
		w.sleep(time.Second)
		for _, c := range []*worldClient{canary, other} {
			c.expectAndAck(form.removal("t", "a@1 b@1")...)
		}
	})
}

// An expired resource is removed from the clients that have it when its TTL ends, in any phase. It never reaches
// the other clients.
func TestExpiryIsNoEdition(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		w.change("cds t@1 1h")
		canary, other := w.client(v, "canary", nil), w.client(v, "other", nil)
		w.sleep(time.Hour - time.Minute)
		w.expectResources("cds a@1 b@1 t@1", canary, other)
		w.sleep(time.Minute)
		w.expectResources("cds a@1 b@1", canary, other)
		w.sleep(5 * time.Second)
		if o := w.expectPhase(rollout.Current, 0).Outcomes; o != (rollout.Outcomes{}) {
			w.t.Errorf("got the outcomes %+v, want none", o)
		}
		w.change("cds u@1 5m")
		w.sleep(3 * time.Second)
		w.expectResources("cds a@1 b@1 u@1", canary)
		w.expectResources("cds a@1 b@1", other)
		w.sleep(5 * time.Minute)
		w.expectResources("cds a@1 b@1", canary, other)
		w.sleep(time.Hour)
		w.expectResources("cds a@1 b@1", canary, other)
		w.expectPhase(rollout.Current, 0)

		w.change("rds t@1 1m")
		for _, c := range []*rolloutClient{canary, other} {
			c.Subscribe(relaytest.RouteType, "routes", "t")
		}
		w.sleep(2 * time.Minute)
		w.change("rds t@2") // replaces no resource
		w.expectResources("rds routes@1 t@2", canary, other)
		w.expectPhase(rollout.Current, 0)
	})
}

// Content that must not be cached has no last good state, so its changes reach all clients at once.
func TestUncachedContentIsNotRolledOut(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		w.uncached("cds n@1")
		w.uncached("rds n@1")
		all := w.clientsOf(v, "canary", "other")
		for _, c := range all {
			c.Subscribe(relaytest.RouteType, "routes", "n")
		}
		w.settle()
		w.expectResources("cds a@1 b@1 n@1", all...)
		w.expectResources("rds n@1 routes@1", all...)
		w.uncached("cds n@2")
		w.uncached("rds n@2")
		w.expectResources("cds a@1 b@1 n@2", all...)
		w.expectResources("rds n@2 routes@1", all...)
		w.sleep(5 * time.Second)
		w.expectPhase(rollout.Current, 0)
		w.change("cds a@2")
		w.sleep(3 * time.Second)
		w.uncached("cds n@3")
		w.expectResources("cds a@2 b@1 n@3", all[0])
		w.expectResources("cds a@1 b@1 n@3", all[1])
		w.sleep(21 * time.Minute)
		w.expectResources("cds a@2 b@1 n@3", all...)

		w.uncached("cds b@2") // was cached, so it has a last good state
		w.sleep(3 * time.Second)
		w.expectResources("cds a@2 b@2 n@3", all[0])
		w.expectResources("cds a@2 b@1 n@3", all[1])
		w.sleep(21 * time.Minute)
		w.expectResources("cds a@2 b@2 n@3", all...)
	})
}
