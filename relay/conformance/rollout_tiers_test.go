package conformance_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/rollout"
)

// rolloutTiers runs f with two relays. The upper one has no rollouts; the lower one, which clients connect to, has
// the stages.
func rolloutTiers(t *testing.T, f func(w *rolloutWorld, upper *running, v relaytest.Variant)) {
	t.Helper()
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		env := []string{rolloutStages, "TENDER_DELTA_VERSIONS=content", operated,
			"TENDER_SNAPSHOT_DIR=" + filepath.Join(t.TempDir(), "snapshots")}
		worldBubble(t, nil, func(w *world) {
			upper := w.relay
			world := &rolloutWorld{w, env, func() *running { return upper.downstreamRelay(env...) }}
			world.relay = world.restart()
			world.change("cds a@1", "cds b@1", "eds a@1", "eds b@1", "lds l@1", "rds routes@1")
			f(world, upper, v)
		})
	})
}

// A lower relay rolls out the changes of an upper relay without rollouts. It halts them, also across restarts of
// either relay and outages of the origin. Clients of the upper relay get all changes at once, and endpoints are
// not delayed at either.
func TestI1_TheLowestTierRollsOut(t *testing.T) {
	t.Parallel()
	rolloutTiers(t, func(w *rolloutWorld, upper *running, v relaytest.Variant) {
		canary := w.client(v, "canary", w.rejecting("lds l@3"))
		second, other := w.client(v, "second", nil), w.client(v, "other", nil)
		all, above := []*rolloutClient{canary, second, other}, w.clientAt(upper, v, "canary-above", nil)
		w.sleep(time.Minute) // until the sets of both relays are confirmed
		w.change("cds a@2", "lds l@2", "eds a@2")
		w.expectResources("cds a@2 b@1", above)
		w.expectResources("eds a@2 b@1", append(all, above)...)
		w.sleep(3 * time.Second)
		w.expectResources("cds a@2 b@1", canary)
		w.expectResources("cds a@1 b@1", second, other)
		w.sleep(20 * time.Minute)
		w.expectResources("cds a@2 b@1", all...)

		w.change("lds l@3", "cds b@3")
		w.expectResources("lds l@3", above)
		w.sleep(5 * time.Second)
		halted := func(others string) {
			w.t.Helper()
			w.expectPhase(rollout.Halted, 0)
			w.expectResources("lds l@2", all...)
			w.expectResources("cds a@2 b@3", canary) // another part
			w.expectResources(others, second, other)
		}
		halted("cds a@2 b@1")
		w.origin.Stop()
		w.sleep(time.Minute)
		w.origin.Restart()
		w.sleep(2 * time.Minute)
		halted("cds a@2 b@1")
		w.restartRelay(all...)
		w.sleep(30 * time.Minute)
		halted("cds a@2 b@3")
		w.change("lds l@4", "eds b@2")
		w.expectResources("eds a@2 b@2", all...)
		w.sleep(5 * time.Second)
		w.expectResources("lds l@4", canary)
		w.expectResources("lds l@2", second, other)
	})
}

// If relays are among the clients, they are in no percentage stage, and the relay logs once that rollouts belong
// at the lowest tier.
func TestRolloutAboveRelaysWarns(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		const warning = "client is a relay"
		proxy := w.clients(v, "proxy")[0]
		if strings.Contains(w.relay.Log.String(), warning) {
			w.t.Error("logged a relay among the clients, want none")
		}
		var behind []*rolloutClient
		for _, node := range []string{"one", "two"} {
			behind = append(behind, w.clientAt(w.relay.downstreamRelay(), v, node, nil))
		}
		w.settle()
		w.expectResources("cds a@1 b@1", behind...)
		if n := strings.Count(w.relay.Log.String(), warning); n != 1 {
			w.t.Errorf("logged relays among the clients %d times, want once", n)
		}
		w.change("cds a@2", "eds a@2")
		w.expectResources("eds a@2 b@1", append(behind, proxy)...)
		w.sleep(3 * time.Second)
		w.expectResources("cds a@2 b@1", proxy)
		w.expectResources("cds a@1 b@1", behind...)
		w.sleep(10 * time.Minute)
		w.expectResources("cds a@2 b@1", behind...)
	}, "TENDER_ROLLOUT=100% 10m")
}

// A label may select a relay with all its clients as a stage. The relay's ACK counts as acceptance.
func TestRolloutToARegionFirst(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		eu, us := w.relay.downstreamRelay(`TENDER_NODE_METADATA={"region":"eu"}`),
			w.relay.downstreamRelay(`TENDER_NODE_METADATA={"region":"us"}`)
		first := []*rolloutClient{w.clientAt(eu, v, "eu-1", nil), w.clientAt(eu, v, "eu-2", nil)}
		rest := []*rolloutClient{w.clientAt(us, v, "us-1", nil), w.client(v, "proxy", nil)}
		w.settle()
		w.change("cds a@2", "lds l@2", "eds a@2")
		w.expectResources("eds a@2 b@1", append(first, rest...)...)
		w.sleep(3 * time.Second)
		w.expectResources("cds a@2 b@1", first...)
		w.expectResources("lds l@2", first...)
		w.expectResources("cds a@1 b@1", rest...)
		w.sleep(time.Second)
		if c := w.expectPhase(rollout.Rolling, 1).Cohorts[0]; c.Subscribed != 1 || c.Accepted != 1 {
			w.t.Errorf("stage 1: got %+v, want the relay's acceptance", c)
		}
		w.sleep(10 * time.Minute)
		w.expectResources("lds l@2", rest...)
		if s := w.expectPhase(rollout.Current, 0); s.Unobserved {
			w.t.Error("the edition is reported as unobserved, although a relay ACKed it")
		}
	}, "TENDER_ROLLOUT=metadata.region=eu 10m")
}
