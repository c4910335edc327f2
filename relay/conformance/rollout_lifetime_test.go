package conformance_test

import (
	"testing"
	"time"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/rollout"
)

// follows returns a client that is told times to live and has all clusters, on whatever form that takes.
func (w *rolloutWorld) syncedClient(v relaytest.Variant, node string) *worldClient {
	n := relaytest.WithFeatures(relaytest.EnvoyNode(node), relaytest.FeatureTTL, relaytest.FeatureWrapper)
	return w.dial(relaytest.ClientOptions{Variant: v, Node: n}).subscribe("cds", "*")
}

// hear fails the test unless each client is told just this.
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

// TestHeartbeatsNeverWait: in no phase of a rollout, also if the resource itself has changed and waits. What nobody says lives on expires
// for all, at its time, and is no edition.
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
		beats := func(what, t, clusters string, all ...*worldClient) {
			w.t.Helper()
			w.sleep(time.Second)
			w.heartbeat("cds", "t")
			w.t.Log(what)
			expectAndAckAll(form.heartbeat("t", t+"(1m0s)", clusters), all...)
		}
		beats("current", "t@1", "a@1 b@1 t@1(1m0s)", canary, other)
		world.expectPhase(rollout.Current, 0)
		w.change("cds a@2")
		beats("gathering", "t@1", "a@1 b@1 t@1(1m0s)", canary, other)
		w.sleep(3 * time.Second)
		expectAndAckAll(form.response("a@2", "a@2 b@1 t@1(59s)"), canary)
		w.heartbeat("cds", "t")
		expectAndAckAll(form.heartbeat("t", "t@1(1m0s)", "a@2 b@1 t@1(1m0s)"), canary)
		expectAndAckAll(form.heartbeat("t", "t@1(1m0s)", "a@1 b@1 t@1(1m0s)"), other)
		world.expectPhase(rollout.Rolling, 1)
		w.set("cds t@2 1m") // waits for the next edition
		expectAndAckAll("", canary)
		w.sleep(50 * time.Second)
		w.heartbeat("cds", "t")
		expectAndAckAll(form.heartbeat("t", "t@1(1m0s)", "a@2 b@1 t@1(1m0s)"), canary)
		expectAndAckAll(form.heartbeat("t", "t@1(1m0s)", "a@1 b@1 t@1(1m0s)"), other)
		world.command("abort", admin.RolloutScope{})
		world.expectPhase(rollout.Halted, 0)
		w.sleep(40 * time.Second)
		canary.ackPending()
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

// TestExpiryIsNoEdition: what nobody says lives on is gone at its time for those who have it, whatever the phase, and never comes to those
// who do not have it yet.
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
			w.t.Errorf("outcomes %+v, want that nothing was rolled out", o)
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
		w.change("rds t@2") // in the place of which there is nothing
		w.expectResources("rds routes@1 t@2", canary, other)
		w.expectPhase(rollout.Current, 0)
	})
}

// TestWhatMayNotBeKeptNeverWaits: the relay has no last good of content that it may not keep (do_not_cache), so its changes reach all
// clients at once.
func TestWhatMayNotBeKeptNeverWaits(t *testing.T) {
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

		w.uncached("cds b@2") // which was kept, and has a last good
		w.sleep(3 * time.Second)
		w.expectResources("cds a@2 b@2 n@3", all[0])
		w.expectResources("cds a@2 b@1 n@3", all[1])
		w.sleep(21 * time.Minute)
		w.expectResources("cds a@2 b@2 n@3", all...)
	})
}

// clientsOf returns clients of nodes once the sets are confirmed.
func (w *rolloutWorld) clientsOf(v relaytest.Variant, nodes ...string) (all []*rolloutClient) {
	for _, node := range nodes {
		all = append(all, w.client(v, node, nil))
	}
	w.settle()
	return all
}
