package conformance_test

import (
	"fmt"
	"path/filepath"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
)

// replica starts another relay of the origin, with its own snapshots.
func (w *rolloutWorld) replica() *running {
	w.t.Helper()
	env := []string{"TENDER_NODE_ID=tender/2", "TENDER_SNAPSHOT_DIR=" + filepath.Join(w.t.TempDir(), "snapshots")}
	return start(w.t, w.origin, append(env, w.env...)...)
}

// In each phase, a client that moves to another replica has the same resources and versions as clients of its
// cohort there. It is not resent clusters and listeners (B.3), unless it had rejected ones.
func TestI8_ClientsMoveBetweenReplicas(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		replica := w.replica()
		relays := []*running{w.relay, replica}
		conns := []*grpc.ClientConn{w.relay.Conn(), replica.Conn()} // one for all clients of a relay
		var stay, move []*rolloutClient
		for _, r := range relays {
			stay = append(stay, w.clientAt(r, v, "canary", w.rejecting("lds l@3")), w.clientAt(r, v, "second", nil),
				w.clientAt(r, v, "other", nil))
		}
		for _, node := range []string{"canary-moves", "second-moves", "other-moves"} {
			move = append(move, w.clientAt(w.relay, v, node, nil))
		}
		w.sleep(20 * time.Second)
		moves := func(when string, distrusted int) {
			w.t.Helper()
			for i, to := range []int{1, 0} {
				for cohort, c := range move {
					before := len(c.Responses())
					c.Reconnect(conns[to])
					synctest.Wait()
					if diff := cmp.Diff(stay[3*to+cohort].State(), c.State()); diff != "" {
						w.t.Fatalf("%s, move %d: %s differs from a client that stayed (-stayed +moved):\n%s", when, i+1, c.node, diff)
					}
					for _, r := range c.Responses()[before:] {
						if (r.TypeURL == relaytest.ClusterType || r.TypeURL == relaytest.ListenerType) && cohort >= distrusted {
							w.t.Errorf("%s, move %d: %s got resources that it has: %v", when, i+1, c.node, r)
						}
					}
				}
			}
		}
		moves("current", 0)
		w.change("cds a@2", "cds c@1", "lds l@2", "eds a@2", "eds b@2")
		w.sleep(time.Second)
		moves("gathering", 0)
		w.sleep(2 * time.Second)
		moves("stage 1", 0)
		w.sleep(10 * time.Minute)
		moves("stage 2", 0)
		w.sleep(10 * time.Minute)
		w.expectResources("cds a@2 b@1 c@1", append(stay, move...)...)
		moves("promoted", 0)
		w.change("lds l@3", "cds b@2")
		w.sleep(5 * time.Second)
		w.expectResources("lds l@2", append(stay, move...)...)
		moves("halted", 1)
		w.change("lds l@4")
		w.sleep(5 * time.Second)
		w.expectResources("lds l@4", stay[0], stay[3], move[0])
		moves("the fix in stage 1", 1)
		w.sleep(30 * time.Minute)
		w.expectResources("lds l@4", append(stay, move...)...)
		moves("fixed", 1)
		w.sleep(30 * time.Minute)
		moves("after", 0)
	})
}

// A canary that moves to a replica which was frozen before the edition is served what the canaries there are, and the
// edition after the thaw.
func TestI8_AFrozenReplicaServesOneState(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		replica := w.replica()
		canary, other := w.client(v, "canary", nil), w.client(v, "other", nil)
		there := []*rolloutClient{w.clientAt(replica, v, "canary-2", nil), w.clientAt(replica, v, "other-2", nil)}
		w.settle()
		replica.freeze(admin.FreezeScope{})
		w.change("cds c@1", "eds c@1")
		w.sleep(5 * time.Second)
		w.expectResources("cds a@1 b@1 c@1", canary)
		canary.Reconnect(replica.Conn())
		w.settle()
		w.expectResources("cds a@1 b@1", append(there, canary)...)
		w.sleep(30 * time.Minute)
		w.expectResources("cds a@1 b@1 c@1", other)
		w.expectResources("cds a@1 b@1", append(there, canary)...)
		replica.thaw()
		w.sleep(5 * time.Second)
		w.expectResources("cds a@1 b@1 c@1", canary, there[0])
		w.expectResources("cds a@1 b@1", there[1])
		w.sleep(21 * time.Minute)
		w.expectResources("cds a@1 b@1 c@1", canary, other, there[0], there[1])
	})
}

// Members of a collection are rolled out like other clusters. A relay that restarts meanwhile serves the
// collection's last good state to other cohorts, and the edition to canaries.
func TestI10_CollectionsOfARestoredRelay(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		const dir = "xdstp://one/envoy.config.cluster.v3.Cluster/dir/"
		client := func(node string) *rolloutClient {
			n := relaytest.WithFeatures(relaytest.EnvoyNode(node), relaytest.FeatureWrapper)
			c := &rolloutClient{w: w, node: node,
				Client: w.relay.Client(relaytest.ClientOptions{Variant: v, Node: n, AutoAck: true})}
			c.Subscribe(relaytest.ClusterType, dir+"*")
			return c
		}
		w.change("cds "+dir+"a@1", "cds "+dir+"b@1")
		canary, other := client("canary"), client("other")
		w.sleep(20 * time.Second)
		before, after := fmt.Sprintf("cds %sa@1 %sb@1", dir, dir), fmt.Sprintf("cds %sa@2 %sb@1 %sc@1", dir, dir, dir)
		w.expectResources(before, canary, other)
		w.change("cds "+dir+"a@2", "cds "+dir+"c@1")
		w.sleep(15 * time.Second)
		w.expectResources(after, canary)
		w.expectResources(before, other)
		w.restartRelay(canary, other)
		late := client("other-2")
		w.sleep(time.Minute)
		w.expectResources(after, canary)
		w.expectResources(before, other, late)
		w.sleep(21 * time.Minute)
		w.expectResources(after, canary, other, late)
	})
}

// If the origin changes all the time, each change reaches all clients within three times the stages plus 30 s.
func TestI9_AnOriginThatAlwaysChanges(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		const every, bound = 5 * time.Second, 3*2*time.Minute + 30*time.Second
		all := w.clients(v, "canary", "second", "other")
		began, seen := time.Now(), 1
		at := func(rev int) time.Time { return began.Add(time.Duration(rev-2) * every) }
		for rev := 2; time.Since(began) < 20*time.Minute; rev++ {
			w.change(fmt.Sprint("cds a@", rev))
			w.sleep(every)
			is, err := strconv.Atoi(w.n.Revision(all[2].State().Digest(relaytest.ClusterType, "a")))
			if err != nil || is < seen {
				w.t.Fatalf("the last cohort has revision %d after %d: %v", is, seen, err)
			}
			if seen = is; is < rev && time.Since(at(is+1)) > bound {
				w.t.Fatalf("after %v the last cohort has revision %d: the next change has waited for %v, want at most %v",
					time.Since(began), is, time.Since(at(is+1)), bound)
			}
		}
		if seen < 2 {
			w.t.Error("no edition was promoted")
		}
	}, "TENDER_ROLLOUT=id=canary* 1m, id=second* 1m")
}
