package conformance_test

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/rollout"
)

// A directory of files is rolled out like a control plane, including changes and removals while the relay is
// stopped. A rejected edition stays rejected. File events need real time.
func TestI10_ADirectoryRollsOut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	env := []string{"TENDER_ROLLOUT=id=canary* approve", "TENDER_DELTA_VERSIONS=content", operated,
		"TENDER_SNAPSHOT_DIR=" + filepath.Join(t.TempDir(), "snapshots")}
	r, rejected := (*running)(nil), false
	var clients []*relaytest.Client
	restart := func(clusters ...string) {
		t.Helper()
		if r != nil {
			r.Stop()
		}
		clusterFile(t, dir, "mesh.yaml", clusters...)
		r = startFiles(t, dir, env...)
		for _, c := range clients {
			c.Reconnect(r.Conn())
		}
	}
	have := func(c *relaytest.Client, names ...string) {
		t.Helper()
		c.WaitState(t.Context(), func(s relaytest.State) bool { return slices.Equal(s.Names(typeCDS), names) })
	}
	stands := func(phase rollout.Phase) {
		t.Helper()
		awaitStatus(t, r, phase.String(), func(s admin.Status) bool { return s.Origins[0].Rollout.Phase == phase })
	}
	restart("a", "b", "c", "d")
	for _, node := range []string{"canary", "other"} {
		c := r.Client(relaytest.ClientOptions{Node: relaytest.EnvoyNode(node), AutoAck: true,
			Reject: func(resp *relaytest.Response) error {
				if slices.Contains(resp.Names(), "bad") {
					rejected = true
					return errors.New("it is bad")
				}
				return nil
			}})
		c.Subscribe(typeCDS)
		have(c, "a", "b", "c", "d")
		clients = append(clients, c)
	}
	canary, other := clients[0], clients[1]
	restart("a", "c", "d", "e") // b is in no file
	have(canary, "a", "c", "d", "e")
	stands(rollout.Rolling)
	have(other, "a", "b", "c", "d")
	late := r.Client(relaytest.ClientOptions{Variant: relaytest.SotW, Node: relaytest.EnvoyNode("late"), AutoAck: true})
	late.Subscribe(typeCDS)
	have(late, "a", "b", "c", "d")
	operate[admin.RolloutScope, admin.Rollouts](t, r, "rollout/promote", admin.RolloutScope{})
	have(other, "a", "c", "d", "e")

	clusterFile(t, dir, "mesh.yaml", "a", "c", "d", "e", "bad")
	stands(rollout.Halted)
	for range 2 {
		have(canary, "a", "c", "d", "e")
		have(other, "a", "c", "d", "e")
		restart("a", "c", "d", "e", "bad")
		stands(rollout.Halted)
	}
	if !rejected {
		t.Error("the canary did not get the content that it rejects")
	}
	restart("a", "c", "d", "e", "good")
	have(canary, "a", "c", "d", "e", "good")
	have(other, "a", "c", "d", "e")
}

const sharedCluster = "xdstp://one/envoy.config.cluster.v3.Cluster/x"

// Shared names are rolled out, too. A restarted relay serves their last good state to reconnecting clients.
func TestI10_SharedNamesRollOut(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		canary := w.dial(relaytest.ClientOptions{Variant: v, Node: relaytest.EnvoyNode("canary-1"), AutoAck: true})
		other := w.dial(relaytest.ClientOptions{Variant: v, Node: relaytest.EnvoyNode("other"), AutoAck: true})
		put := func(rev int) {
			w.origin.Apply(func(tx *relaytest.Tx) { tx.Set(typeURLs["cds"], sharedCluster, w.n.Message("cds", "x", rev), "") })
			synctest.Wait()
		}
		revOf := func(c *worldClient, want string) {
			w.t.Helper()
			var got string
			for _, r := range c.Responses() {
				for _, res := range r.Resources {
					if res.Name == sharedCluster || res.Name == "x" {
						got = w.n.Revision(res.Digest)
					}
				}
			}
			if got != want {
				w.t.Fatalf("got revision %q of x, want %q", got, want)
			}
		}
		put(1)
		canary.subscribe("cds", sharedCluster)
		other.subscribe("cds", sharedCluster)
		w.settle()
		revOf(canary, "1")
		put(2)
		w.sleep(3 * time.Second)
		revOf(canary, "2")
		revOf(other, "1")
		other.Close()
		w.sleep(3 * time.Second)
		late := w.dial(relaytest.ClientOptions{Variant: v, Node: relaytest.EnvoyNode("other-2"),
			AutoAck: true}).subscribe("cds", sharedCluster)
		revOf(late, "1")
		w.sleep(5 * time.Second)

		w.restartRelay()
		w.sleep(5 * time.Second)
		late = w.dial(relaytest.ClientOptions{Variant: v, Node: relaytest.EnvoyNode("other-3"),
			AutoAck: true}).subscribe("cds", sharedCluster)
		revOf(late, "1")
		canary.Reconnect(w.relay.Conn())
		w.sleep(time.Minute)
		w.expectPhase(rollout.Rolling, 1)
		revOf(late, "1")
		revOf(canary, "2")
		w.sleep(20 * time.Minute)
		revOf(late, "2")
	})
}

// A route that clients subscribe to, and that the origin adds while the relay is stopped, is a change and not a
// first response. A route that is still missing is no change.
func TestI10_AddedNamesWaitAfterARestart(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		all := w.clients(v, "canary", "other")
		for _, c := range all {
			c.Subscribe(relaytest.RouteType, "routes", "late", "never")
		}
		w.settle() // until the snapshot is written
		for range 2 {
			w.restartRelay(all...)
			w.sleep(time.Minute)
			w.expectPhase(rollout.Current, 0)
		}
		w.relay.Stop()
		w.change("rds late@1")
		w.restartRelay(all...)
		w.sleep(time.Minute)
		w.expectPhase(rollout.Rolling, 1)
		newClient := w.client(v, "another", nil)
		newClient.Subscribe(relaytest.RouteType, "routes", "late")
		w.settle()
		w.expectResources("rds late@1 routes@1", all[0])
		w.expectResources("rds routes@1", all[1], newClient)
		w.sleep(20 * time.Minute)
		w.expectResources("rds late@1 routes@1", append(all, newClient)...)
		w.expectPhase(rollout.Current, 0)
	})
}

// After a restart, a client receives the last good clusters before routes, even if the origin responds late: a
// restored set is no response of the origin.
func TestI3_RoutesFollowClustersAfterARestart(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		canary := w.clients(v, "canary")[0]
		w.change("cds a@2", "rds routes@2")
		w.settle()
		w.expectResources("rds routes@2", canary)
		sent := len(canary.Responses())
		w.relay.Stop()
		w.origin.Stop()
		w.restartRelay(canary)
		w.sleep(5 * time.Second)
		w.origin.Restart()
		w.sleep(time.Minute)
		clusters := false
		for _, r := range canary.Responses()[sent:] {
			clusters = clusters || r.TypeURL == relaytest.ClusterType
			if r.TypeURL == relaytest.RouteType && !clusters {
				t.Fatalf("%v got %v before clusters", v, r)
			}
		}
		if !clusters {
			t.Fatal("the canary did not get the last good state")
		}
	})
}
