package conformance_test

import (
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/rollout"
)

// state makes the origin have clusters a, b and c in these versions; an empty version is none.
func state(o *relaytest.Origin, versions ...string) {
	o.Apply(func(tx *relaytest.Tx) {
		for i, name := range []string{"a", "b", "c"} {
			if version := versions[i]; version == "" {
				tx.Remove(typeCDS, name)
			} else {
				tx.Set(typeCDS, name, relaytest.Cluster(name, version), version)
			}
		}
	})
}

// A stopper makes changes of a relay wait for an operator, and then has the origin change a, remove b and add c. clients follows
// the clusters from before.
type stopper struct {
	name, reason string
	stop         func(r *restarting)
}

var stoppers = []stopper{
	{"frozen", "frozen", func(r *restarting) {
		r.freeze(admin.FreezeScope{Why: because})
		state(r.o, "2", "", "2")
		sleep(time.Second)
	}},
	{"rolled back", "rolled-back", func(r *restarting) {
		time.Sleep(time.Minute)
		state(r.o, "2", "", "2")
		sleep(30 * time.Second)
		r.rollback("1m")
		sleep(time.Second)
	}},
}

// eachStopper runs a test for each way in which changes wait for an operator, in a relay whose origin is gone.
func eachStopper(t *testing.T, f func(t *testing.T, r *restarting, v relaytest.Variant, c *relaytest.Client, rows []string)) {
	t.Parallel()
	for _, s := range stoppers {
		t.Run(s.name, func(t *testing.T) {
			restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
				state(r.o, "1", "1", "")
				c := r.complete(v, "a", "b")
				s.stop(r)
				by := ": ends by operator, by alice at pipe, bad routes"
				rows := []string{
					"add cds c " + s.reason + by, "change cds a " + s.reason + by, "remove cds b " + s.reason + by,
				}
				wantPending(t, "before", r.running, rows...)
				r.expectResources(c, typeCDS, "a", "b")
				r.stop()
				r.o.Stop()
				f(t, r, v, c, rows)
			}, operated, "TENDER_DELTA_VERSIONS=content")
		})
	}
}

// What waits for an operator waits after restarts while the origin is gone, and the operator decides on it.
func TestB56_ChangesWaitAfterARestartWithoutTheOrigin(t *testing.T) {
	eachStopper(t, func(t *testing.T, r *restarting, v relaytest.Variant, c *relaytest.Client, rows []string) {
		for range 2 {
			r.start()
			c.Reconnect(r.Conn())
			sleep(settled)
			wantPending(t, "after a restart", r.running, rows...)
			r.expectResources(c, typeCDS, "a", "b")
			r.expectResources(r.following(v, typeCDS), typeCDS, "a", "b")
			r.stop()
		}
		r.start()
		c.Reconnect(r.Conn())
		r.thaw()
		r.expectResources(r.following(v, typeCDS), typeCDS, "a", "c")
		c.WaitState(t.Context(), func(s relaytest.State) bool { return slices.Contains(s.Names(typeCDS), "c") })
		wantPending(t, "thawed", r.running)
		r.o.Restart()
		r.expectResources(c, typeCDS, "a", "c") // a client that reports b keeps it until the origin has confirmed the set (B.7)
		r.stop()
		r.start()
		wantPending(t, "thawed and restarted", r.running)
	})
}

// An origin that has withdrawn the changes while no relay ran, and has its earlier state again with its earlier versions, ends
// what waits: a thaw changes nothing.
func TestB56_WhatTheOriginHasWithdrawnIsNotServed(t *testing.T) {
	eachStopper(t, func(t *testing.T, r *restarting, v relaytest.Variant, c *relaytest.Client, rows []string) {
		for _, lost := range []bool{true, false} { // the origin returns before the relay starts, and after
			state(r.o, "1", "1", "")
			if lost {
				r.o.Restart()
				r.start()
			} else {
				r.start()
				sleep(settled)
				wantPending(t, "the origin is gone", r.running, rows...)
				r.o.Restart()
			}
			c.Reconnect(r.Conn())
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			wantPending(t, "withdrawn", r.running)
			r.expectResources(c, typeCDS, "a", "b")
			if !lost {
				break
			}
			state(r.o, "2", "", "2")
			sleep(time.Minute)
			wantPending(t, "stated again", r.running, rows...)
			r.stop()
			r.o.Stop()
		}
		before := len(c.Responses())
		r.thaw()
		sleep(settled)
		r.expectResources(c, typeCDS, "a", "b")
		if n := len(c.Responses()) - before; n != 0 {
			t.Errorf("the thaw sent %d responses, want none: %v", n, c.Responses()[before:])
		}
	})
}

// What waits is written when it begins to wait and when it ends, and not only when what clients have changes.
func TestB56_ChangesThatWaitSurviveACrash(t *testing.T) {
	t.Parallel()
	restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
		state(r.o, "1", "1", "")
		r.complete(v, "a", "b")
		r.freeze(admin.FreezeScope{Why: because})
		sleep(time.Minute)
		for _, want := range [][]string{{"2", "", "2"}, {"1", "1", ""}} {
			state(r.o, want...)
			sleep(15 * time.Second)
			rows := pendingRows(t, r.running)
			crashed := *r
			crashed.env = append([]string{"TENDER_SNAPSHOT_DIR=" + r.copySnapshots()}, r.env[1:]...)
			r.o.Stop()
			crashed.start()
			sleep(settled)
			wantPending(t, "after a crash", crashed.running, rows...)
			crashed.expectResources(crashed.following(v, typeCDS), typeCDS, "a", "b")
			crashed.Stop()
			r.o.Restart()
			sleep(time.Minute)
		}
	}, operated, "TENDER_DELTA_VERSIONS=content")
}

// A freeze that ends while no relay runs drops what waited: the origin states it again, unless it has withdrawn it.
func TestB56_WhatWaitsForNothingIsNotRestored(t *testing.T) {
	t.Parallel()
	restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
		state(r.o, "1", "1", "")
		c := r.complete(v, "a", "b")
		r.freeze(admin.FreezeScope{Why: because, ForSeconds: 60})
		state(r.o, "2", "", "2")
		r.stop()
		r.o.Stop()
		time.Sleep(2 * time.Minute)
		r.start()
		c.Reconnect(r.Conn())
		sleep(settled)
		r.expectResources(c, typeCDS, "a", "b")
		wantPending(t, "the freeze has ended", r.running)
		r.o.Restart()
		r.expectResources(c, typeCDS, "a", "c")
	}, operated, "TENDER_DELTA_VERSIONS=content")
}

// What waits for stages waits after a restart while the origin is gone. The rollout begins once the origin has confirmed its
// state, with the first stage.
func TestB56_ChangesWaitForStagesAfterARestart(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		all := w.clients(v, "canary", "other")
		w.sleep(10 * time.Second)
		w.change("cds a@2", "cds c@1", "lds -l", "rds routes@2")
		w.sleep(5 * time.Minute)
		w.expectResources("cds a@2 b@1 c@1", all[0])
		w.expectResources("cds a@1 b@1", all[1])
		names := func() map[string]bool {
			names := make(map[string]bool)
			for _, row := range getJSON[admin.Pending](w.t, w.relay, "/api/v1/pending").Pending {
				for _, name := range row.Names {
					names[row.Change+" "+row.TypeURL+" "+name] = true
				}
			}
			return names
		}
		before := names()
		if len(before) != 4 {
			w.t.Fatalf("pending: %v, want 4 changes", before)
		}
		w.relay.Stop()
		w.origin.Stop()
		w.relay = w.restart()
		for _, c := range all {
			c.Reconnect(w.relay.Conn())
		}
		w.sleep(time.Hour)
		if got := names(); len(got) != 4 {
			w.t.Errorf("after a restart: pending %v, want %v", got, before)
		}
		w.expectResources("cds a@1 b@1", all[1])
		w.expectResources("lds l@1", all...)
		w.origin.Restart()
		w.sleep(time.Minute)
		w.expectPhase(rollout.Rolling, 1)
		w.expectResources("cds a@2 b@1 c@1", all[0])
		w.expectResources("cds a@1 b@1", all[1])
		w.sleep(30 * time.Minute)
		w.expectResources("cds a@2 b@1 c@1", all...)
		w.expectResources("rds routes@2", all...)
		if got := names(); len(got) != 0 {
			w.t.Errorf("at the end: pending %v, want nothing", got)
		}
	})
}

// A rollout that was halted stays halted after a restart while the origin is gone, and an operator promotes its changes.
func TestB56_AHaltedRolloutIsPromotedAfterARestart(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		w.client(v, "canary", w.rejecting("lds l@2"))
		other := w.clients(v, "other")[0]
		w.change("cds c@1", "lds l@2")
		w.sleep(10 * time.Second)
		w.expectPhase(rollout.Halted, 0)
		w.relay.Stop()
		w.origin.Stop()
		w.relay = w.restart()
		other.Reconnect(w.relay.Conn())
		w.sleep(time.Hour)
		w.expectPhase(rollout.Halted, 0)
		w.expectResources("lds l@1", other)
		changes := getJSON[admin.RolloutDiff](w.t, w.relay, "/api/v1/rollout/diff").Changes
		if !slices.ContainsFunc(changes, func(c admin.RolloutChange) bool { return c.Name == "l" }) {
			w.t.Errorf("the diff has %+v, want l", changes)
		}
		operate[admin.RolloutScope, admin.Rollouts](w.t, w.relay, "rollout/promote", admin.RolloutScope{All: true})
		w.sleep(10 * time.Second)
		w.expectResources("lds l@2", other)
		w.expectResources("lds l@2", w.client(v, "another", nil))
		w.origin.Restart()
		w.sleep(time.Hour)
		w.expectResources("lds l@2", other)
		w.expectResources("cds a@1 b@1 c@1", other)
	})
}

// Changes that wait for stages and that the origin has withdrawn while no relay ran are not rolled out.
func TestB56_WithdrawnChangesAreNotRolledOut(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		all := w.clients(v, "canary", "other")
		w.sleep(10 * time.Second)
		w.change("cds a@2", "cds c@1", "rds routes@2")
		w.sleep(5 * time.Minute)
		w.relay.Stop()
		w.origin.Stop()
		w.change("cds a@1", "cds -c", "rds routes@1")
		w.relay = w.restart()
		for _, c := range all {
			c.Reconnect(w.relay.Conn())
		}
		w.sleep(5 * time.Minute)
		w.origin.Restart()
		w.sleep(time.Hour)
		w.expectResources("cds a@1 b@1", all...)
		w.expectResources("rds routes@1", all...)
		if rows := getJSON[admin.Pending](w.t, w.relay, "/api/v1/pending").Pending; len(rows) != 0 {
			w.t.Errorf("pending: %+v, want nothing", rows)
		}
	})
}

// An addition that waits for stages and that is in no file any longer after a restart is not rolled out.
func TestB56_WithdrawnFilesAreNotRolledOut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	env := []string{"TENDER_ROLLOUT=id=canary* approve", "TENDER_DELTA_VERSIONS=content", operated,
		"TENDER_SNAPSHOT_DIR=" + filepath.Join(t.TempDir(), "snapshots")}
	clusterFile(t, dir, "mesh.yaml", "a", "b")
	r := startFiles(t, dir, env...)
	c := r.Client(relaytest.ClientOptions{Node: relaytest.EnvoyNode("other"), AutoAck: true})
	c.Subscribe(typeCDS)
	expectClusters(t, r, "a", "b")
	clusterFile(t, dir, "mesh.yaml", "a", "b", "added")
	pending := func(n int) {
		awaitStatus(t, r, "pending", func(s admin.Status) bool { return len(s.Views) > 0 && s.Views[0].Pending == n })
	}
	pending(1)
	r.Stop()
	clusterFile(t, dir, "mesh.yaml", "a", "b")
	r = startFiles(t, dir, env...)
	pending(0)
	expectClusters(t, r, "a", "b")
}
