package conformance_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/upstream/reconcile"
)

// decisionsFile is the file of operators' decisions in the snapshot directory.
const decisionsFile = "decisions.json"

// frozen returns the freeze in the status of the first origin.
func (r *restarting) frozen() *admin.Freezing {
	r.t.Helper()
	o := statusOf(r.t, r.running).Origins[0]
	if o.Frozen != (o.Freeze != nil) {
		r.t.Errorf("status: frozen %v, but %+v", o.Frozen, o.Freeze)
	}
	return o.Freeze
}

// Changes of the origin before, during and after the restart of a frozen relay do not reach clients before the
// thaw. The status still has the operator, time and reason of the freeze.
func TestH09_FreezeSurvivesARestart(t *testing.T) {
	t.Parallel()
	restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
		r.o.Put(relaytest.Cluster("a"), relaytest.Cluster("b"))
		c := r.complete(v, "a", "b")
		began := time.Now()
		answer := r.freeze(admin.FreezeScope{Why: admin.Why{Reason: "bad routes", User: "alice"}})
		if f := answer.Origins[0]; !f.Frozen || f.Freeze == nil || !f.Freeze.SurvivesRestart || answer.Warning != "" {
			t.Errorf("freeze: got %+v, want one that survives a restart", answer)
		}
		r.o.Apply(func(tx *relaytest.Tx) { tx.Remove(typeCDS, "a"); tx.Put(relaytest.Cluster("c")) })
		for range 2 {
			time.Sleep(time.Minute)
			r.stop()
			r.o.Apply(func(tx *relaytest.Tx) { tx.Remove(typeCDS, "b"); tx.Put(relaytest.Cluster("d")) })
			r.start()
			f := r.frozen()
			if f == nil || !strings.HasPrefix(f.By, "alice") || f.Reason != "bad routes" || !f.Since.Equal(began) ||
				!f.Until.IsZero() || !f.SurvivesRestart {
				t.Fatalf("after a restart: got %+v, want the freeze by alice of %v", f, began)
			}
			c.Reconnect(r.Conn())
			if n := sent(c, settled); n != 0 || c.Ended() {
				t.Errorf("a reconnecting client got %d responses (stream ended: %v): %v", n, c.Ended(), c.Responses())
			}
			r.expectResources(r.following(v, typeCDS), typeCDS, "a", "b")
			if view := statusOf(t, r.running).Views[0]; !view.FrozenAt.Equal(began) || view.Pending != 4 {
				t.Errorf("the view is frozen since %v with %d pending names, want since %v with 4", view.FrozenAt, view.Pending,
					began)
			}
		}
		r.thaw()
		r.expectResources(c, typeCDS, "c", "d")
		if f := r.frozen(); f != nil {
			t.Errorf("after the thaw: got %+v, want no freeze", f)
		}
		r.stop()
		r.start()
		if f := r.frozen(); f != nil {
			t.Errorf("after the thaw and a restart: got %+v, want no freeze", f)
		}
	}, operated)
}

// A frozen relay that restarts while the origin is down serves what was frozen to a client of another relay, too (B.7).
func TestH09_FrozenStateOfARestoredRelayIsServedToAll(t *testing.T) {
	t.Parallel()
	restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
		other := &restarting{running: start(t, r.o, "TENDER_NODE_ID=tender/other"), t: t}
		r.o.Put(relaytest.Cluster("a"))
		r.complete(v, "a")
		r.freeze(admin.FreezeScope{})
		r.o.Put(relaytest.Cluster("young"))
		moved := other.following(v, typeCDS)
		r.expectResources(moved, typeCDS, "a", "young")
		r.stop()
		r.o.Stop()
		r.start()
		moved.Reconnect(r.Conn())
		sleep(settled)
		r.expectResources(moved, typeCDS, "a")
	}, operated)
}

// A freeze with a duration ends at its time, whether the relay was restarted or not, and at once if the time has
// passed while no relay was running.
func TestH09_FreezeEndsByItself(t *testing.T) {
	t.Parallel()
	for _, restarts := range []string{"never", "meanwhile", "too late"} {
		t.Run(restarts, func(t *testing.T) {
			restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
				r.o.Put(relaytest.Cluster("a"))
				c := r.complete(v, "a")
				began := time.Now()
				r.freeze(admin.FreezeScope{ForSeconds: 1200})
				r.o.Put(relaytest.Cluster("b"))
				time.Sleep(10 * time.Minute)
				if restarts != "never" {
					r.stop()
					if restarts == "too late" {
						time.Sleep(20 * time.Minute)
					}
					r.start()
					c.Reconnect(r.Conn())
				}
				if restarts != "too late" {
					if f := r.frozen(); f == nil || !f.Until.Equal(began.Add(20*time.Minute)) {
						t.Errorf("status: got %+v, want a freeze until 20m after %v", f, began)
					}
					sleep(time.Until(began.Add(20*time.Minute - time.Second)))
					r.expectResources(c, typeCDS, "a")
					time.Sleep(2 * time.Second)
				}
				r.expectResources(c, typeCDS, "a", "b")
				if f := r.frozen(); f != nil {
					t.Errorf("after its end: got %+v, want no freeze", f)
				}
			}, operated)
		})
	}
}

// A second freeze replaces the end and reason of the first one. After a thaw, no end is pending.
func TestH09_LaterFreezeReplacesTheFirst(t *testing.T) {
	t.Parallel()
	restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
		began := time.Now()
		r.freeze(admin.FreezeScope{ForSeconds: 60, Why: admin.Why{Reason: "first"}})
		time.Sleep(30 * time.Second)
		r.freeze(admin.FreezeScope{ForSeconds: 3600, Why: admin.Why{Reason: "second"}})
		time.Sleep(time.Minute)
		if f := r.frozen(); f == nil || f.Reason != "second" || !f.Since.Equal(began) ||
			!f.Until.Equal(began.Add(30*time.Second+time.Hour)) {
			t.Errorf("the second freeze is %+v, want the start of the first one, and an hour's duration", f)
		}
		r.thaw()
		r.freeze(admin.FreezeScope{})
		time.Sleep(2 * time.Hour)
		if f := r.frozen(); f == nil || !f.Until.IsZero() {
			t.Errorf("the third freeze is %+v, want one without an end", f)
		}
	}, operated)
}

// Without a snapshot directory, the relay warns that a freeze will not survive a restart.
func TestH09_WithoutADirectory(t *testing.T) {
	t.Parallel()
	worldBubble(t, []string{operated}, func(w *world) {
		f := w.relay.freeze(admin.FreezeScope{})
		if !strings.Contains(f.Warning, "TENDER_SNAPSHOT_DIR is not set") || !f.Origins[0].Frozen ||
			f.Origins[0].Freeze.SurvivesRestart {
			t.Errorf("freeze: got %+v, want the warning that it does not survive a restart", f)
		}
		if f := w.relay.thaw(); f.Warning != "" || f.Origins[0].Frozen {
			t.Errorf("thaw: got %+v, want no freeze and no warning", f)
		}
	})
}

// If the decisions file has an unknown format, the relay logs it and starts without decisions. It keeps the file
// when it writes new ones.
func TestH09_UnknownFormat(t *testing.T) {
	t.Parallel()
	restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
		r.o.Put(relaytest.Cluster("a"))
		r.expectResources(r.following(v, typeCDS), typeCDS, "a")
		r.freeze(admin.FreezeScope{})
		r.stop()
		const later = `{"format": 2, "frosts": ["default"]}`
		path := filepath.Join(r.dir, decisionsFile)
		if err := os.WriteFile(path, []byte(later), 0o600); err != nil {
			t.Fatal(err)
		}
		r.start()
		if f := r.frozen(); f != nil {
			t.Errorf("status: got %+v, want no freeze", f)
		}
		sleep(time.Minute)
		if text, err := os.ReadFile(path); err != nil || string(text) != later {
			t.Errorf("without a new decision the file contains %q, %v", text, err)
		}
		r.freeze(admin.FreezeScope{})
		kept, err := filepath.Glob(path + ".unread-*")
		if err != nil || len(kept) != 1 {
			t.Fatalf("got the files %q, %v, want the unreadable one", kept, err)
		}
		if text, err := os.ReadFile(kept[0]); err != nil || string(text) != later {
			t.Errorf("%s contains %q, %v", kept[0], text, err)
		}
		r.stop()
		r.start()
		if r.frozen() == nil {
			t.Error("the new freeze was lost")
		}
	}, operated)
}

// Resources that an operator has kept, of wildcards and names, are kept after a restart, until the origin sends or
// removes them. Those that the origin sent before the restart are not kept.
func TestH09_DroppedRemovalsSurvive(t *testing.T) {
	t.Parallel()
	restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
		r.o.Change(func(b *relaytest.Behaviour) { b.SotW = true })
		name := func(i int) string { return fmt.Sprintf("c%02d", i) }
		var all []string
		put := func(tx *relaytest.Tx, names ...string) {
			for _, n := range names {
				tx.Put(relaytest.Cluster(n))
			}
		}
		for i := range 40 {
			all = append(all, name(i))
		}
		r.o.Apply(func(tx *relaytest.Tx) { put(tx, all...) })
		c := r.complete(v, all...)
		r.o.Stop()
		r.o.Apply(func(tx *relaytest.Tx) {
			for _, n := range all[1:] {
				tx.Remove(typeCDS, n)
			}
		})
		r.o.Restart()
		sleep(time.Minute)
		kept := func() (n int) {
			t.Helper()
			var all admin.Pending
			_, text := httpGet(t, r.DialAdmin, "/api/v1/pending")
			if err := json.Unmarshal([]byte(text), &all); err != nil {
				t.Fatal(err)
			}
			for _, h := range all.Pending {
				if n += h.Count; h.Reason != string(reconcile.Dropped) {
					t.Errorf("got the holds %s, want only dropped ones", text)
				}
			}
			return n
		}
		if h := operate[admin.PendingScope, admin.PendingDecision](t, r.running, "drop",
			admin.PendingScope{All: true}); len(h.Pending) != 1 || h.Pending[0].Count != 39 || h.Warning != "" {
			t.Fatalf("got the dropped holds %+v, want 39 clusters", h)
		}
		r.o.Apply(func(tx *relaytest.Tx) { put(tx, name(1)) })
		time.Sleep(time.Minute)
		if n := kept(); n != 38 {
			t.Errorf("got %d kept clusters, want 38 after the origin's response for one", n)
		}
		r.o.Apply(func(tx *relaytest.Tx) { tx.Remove(typeCDS, name(1)) })
		rest := slices.Concat(all[:1], all[2:])
		r.expectResources(c, typeCDS, rest...)
		time.Sleep(time.Minute) // until the changed decision is written
		for range 2 {
			r.stop()
			r.start()
			c.Reconnect(r.Conn())
			sleep(settled)
			r.expectResources(c, typeCDS, rest...)
			if n := kept(); n != 38 {
				t.Errorf("after a restart, got %d kept clusters, want 38", n)
			}
		}
		operate[admin.PendingScope, admin.PendingDecision](t, r.running, "pass",
			admin.PendingScope{PendingChoice: admin.PendingChoice{PendingReason: string(reconcile.Dropped)}})
		r.expectResources(c, typeCDS, all[:1]...)
		r.stop()
		r.start()
		if n := kept(); n != 0 {
			t.Errorf("after pass and a restart, got %d kept clusters, want none", n)
		}
	}, operated)
}

// A removal that was dropped, and that the origin has taken back, is not dropped after a crash a second later. Otherwise an
// operator who passes what was dropped would remove resources that the origin has.
func TestH09_EndedDropDoesNotSurviveACrash(t *testing.T) {
	t.Parallel()
	restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
		var all []string
		for i := range 12 {
			all = append(all, fmt.Sprintf("c%02d", i))
		}
		put := func(tx *relaytest.Tx) {
			for _, name := range all {
				tx.Put(relaytest.Cluster(name))
			}
		}
		r.o.Apply(put)
		c := r.complete(v, all...)
		r.o.Stop()
		r.o.Apply(func(tx *relaytest.Tx) {
			for _, name := range all {
				tx.Remove(typeCDS, name)
			}
		})
		r.o.Restart()
		sleep(2 * time.Minute)
		decide := func(command string, scope admin.PendingScope) (n int) {
			t.Helper()
			for _, h := range operate[admin.PendingScope, admin.PendingDecision](t, r.running, command, scope).Pending {
				n += h.Count
			}
			return n
		}
		if n := decide("drop", admin.PendingScope{All: true}); n != len(all) {
			t.Fatalf("dropped %d removals, want %d", n, len(all))
		}
		sleep(time.Minute) // until snapshots are written at long intervals again
		r.o.Apply(put)
		sleep(time.Second)
		crashed := r.copySnapshots()
		r.Stop()
		r.o.Stop()
		r.dir, r.env[0] = crashed, "TENDER_SNAPSHOT_DIR="+crashed
		r.start()
		c.Reconnect(r.Conn())
		scope := admin.PendingScope{PendingChoice: admin.PendingChoice{PendingReason: string(reconcile.Dropped)}}
		if n := decide("pass", scope); n != 0 {
			t.Errorf("%d removals are still dropped after the crash, want none", n)
		}
		sleep(settled)
		r.expectResources(c, typeCDS, all...)
	}, operated)
}
