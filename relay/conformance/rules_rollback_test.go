package conformance_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
)

var because = admin.Why{Reason: "bad routes", User: "alice"}

// generationsOf returns the generations of a relay's only view, newest first.
func generationsOf(t testing.TB, r *running) []admin.Generation {
	t.Helper()
	for _, v := range getJSON[admin.Generations](t, r, "/api/v1/generations").Views {
		if !v.Shared {
			return v.Generations
		}
	}
	return nil
}

// rollback rolls the relay back to a generation, or to that of some time ago.
func (r *running) rollback(to string) admin.Rollbacks {
	r.t.Helper()
	return operate[admin.RollbackScope, admin.Rollbacks](r.t, r, "rollback", admin.RollbackScope{To: to, Why: because})
}

// After a rollback, clients receive the differences to the earlier generation in the order of types, and later
// changes only of endpoints. New clients receive the earlier generation. After a thaw, each client receives the
// differences to the origin's resources.
func TestRollback_Clients(t *testing.T) {
	t.Parallel()
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		worldBubble(t, []string{operated}, func(w *world) {
			w.change("cds a@1", "cds b@1", "lds l@1", "eds e@1")
			c := w.autoClient(v).subscribe("cds", "").subscribe("lds", "").subscribe("eds", "e")
			w.sleep(20 * time.Second)
			c.ackPending()
			w.change("cds a@2", "cds c@1", "lds l@2", "cds -b")
			w.settle()
			c.ackPending()
			known := generationsOf(w.t, w.relay)
			if len(known) != 2 || known[0].Added != 1 || known[0].Changed != 2 || known[0].Removed != 1 ||
				!known[0].Until.IsZero() {
				w.t.Fatalf("generations: %+v, want two, the newest with one added, two changed and one removed resource", known)
			}
			dry := operate[admin.RollbackScope, admin.Rollbacks](w.t, w.relay, "rollback",
				admin.RollbackScope{To: "10s", DryRun: true})
			if !dry.DryRun || dry.Origins[0].Resources != 4 || dry.Origins[0].Freeze != nil {
				w.t.Errorf("dry run: %+v, want 4 resources and no rollback", dry)
			}
			diff := getJSON[admin.RolloutDiff](w.t, w.relay, "/api/v1/rollback/diff?to="+known[1].Generation)
			if len(diff.Changes) != 4 || diff.Changes[0].Name != "a" || diff.Changes[0].Change != "changed" {
				w.t.Errorf("got the diff %+v, want four changes", diff.Changes)
			}
			w.settle()
			c.expect()
			b := w.relay.rollback(known[1].Generation[:8])
			if o := b.Origins[0]; o.Resources != 4 || o.Freeze == nil || o.Freeze.Rollback == nil ||
				o.Freeze.Reason != "bad routes" {
				w.t.Errorf("rollback: %+v, want 4 resources", b)
			}
			w.settle()
			if v == relaytest.Delta {
				c.expect("cds a@1 b@1", "lds l@1", "cds -c")
			} else {
				c.expect(formatFor(v, "cds a@1 b@1 c@1"), formatFor(v, "lds l@1"), formatFor(v, "cds a@1 b@1"))
			}
			if now := generationsOf(w.t, w.relay); now[0].Generation != known[1].Generation || len(now) != 3 {
				w.t.Errorf("after the rollback, the generations are %+v, want %s as the newest", now, known[1].Generation)
			}
			w.change("cds a@3", "lds l@3", "eds e@2")
			w.settle()
			c.expect(formatFor(v, "eds e@2"))
			late := w.autoClient(v).subscribe("cds", "").subscribe("lds", "")
			w.settle()
			if v == relaytest.Delta { // it may have applied c although it NACKed the response
				late.expect("cds a@1 b@1", "cds -c", "lds l@1")
			} else {
				late.expect(formatFor(v, "cds a@1 b@1"), formatFor(v, "lds l@1"))
			}
			if f := w.relay.thaw(); f.Origins[0].Pending != 4 || f.Origins[0].Frozen {
				w.t.Errorf("thaw: %+v, want it thawed with 4 pending names", f)
			}
			w.settle()
			if v == relaytest.Delta {
				c.expect("cds a@3 c@1", "lds l@3", "cds -b")
			} else {
				c.expect(formatFor(v, "cds a@3 b@1 c@1"), formatFor(v, "lds l@3"), formatFor(v, "cds a@3 c@1"))
			}
		})
	})
}

// A client that moves from a relay without the rollback receives the earlier generation, and removals of resources
// that it lacks. Versions of content that was rolled back are not trusted.
func TestRollback_ReturningClients(t *testing.T) {
	t.Parallel()
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		worldBubble(t, []string{operated}, func(w *world) {
			other := start(w.t, w.origin, "TENDER_NODE_ID=tender/other", operated)
			w.change("cds a@1", "cds b@1", "lds l@1")
			first := w.autoClient(v).subscribe("cds", "").subscribe("lds", "")
			c := w.dialAt(other, relaytest.ClientOptions{Variant: v, AutoAck: true})
			c.subscribe("cds", "").subscribe("lds", "")
			w.sleep(20 * time.Second)
			w.change("cds young@1", "cds a@2", "lds young@1")
			w.settle()
			here, there := generationsOf(w.t, w.relay), generationsOf(w.t, other)
			if len(here) != 2 || len(there) != 2 || here[0].Generation != there[0].Generation ||
				here[1].Generation != there[1].Generation {
				w.t.Errorf("the replicas' generations are %+v and %+v, want equal names", here, there)
			}
			w.relay.rollback(there[1].Generation)
			w.settle()
			c.Reconnect(w.relay.Conn())
			w.settle()
			for _, typeURL := range []string{relaytest.ClusterType, relaytest.ListenerType} {
				if diff := cmp.Diff(first.State()[typeURL], c.State()[typeURL]); diff != "" ||
					len(c.State()[typeURL]) != map[string]int{relaytest.ClusterType: 2, relaytest.ListenerType: 1}[typeURL] {
					w.t.Errorf("a client that moved from another relay differs (-first +moved):\n%s", diff)
				}
			}
			seen := len(first.Responses())
			first.Reconnect(w.relay.Conn())
			w.settle()
			if v == relaytest.Delta {
				again := first.Responses()[seen:]
				if len(again) == 0 || again[0].Resource("a") == nil || again[0].Resource("b") != nil {
					w.t.Errorf("a client that had the newer generation got %v, want a again", again)
				}
			}
		})
	})
}

// turnsBad has the origin send clusters a and b, and then change a and add c. It returns a client that has had the
// change for 30 s, and the digest of the first a.
func (r *restarting) turnsBad(v relaytest.Variant) (c *relaytest.Client, good relaytest.Digest) {
	r.t.Helper()
	r.o.Put(relaytest.Cluster("a"), relaytest.Cluster("b"))
	c = r.following(v, typeCDS)
	r.expectResources(c, typeCDS, "a", "b")
	good = c.State().Digest(typeCDS, "a")
	time.Sleep(time.Minute)
	r.o.Apply(func(tx *relaytest.Tx) { tx.Put(relaytest.Cluster("a", "bad"), relaytest.Cluster("c")) })
	r.expectResources(c, typeCDS, "a", "b", "c")
	sleep(30 * time.Second)
	return c, good
}

// A rollback survives a restart, even if the latest snapshot is older than it, as with a full disk, and the origin
// is empty after the restart.
func TestH09_RollbackSurvivesARestart(t *testing.T) {
	t.Parallel()
	for _, old := range []bool{false, true} {
		t.Run(map[bool]string{false: "written", true: "full disk"}[old], func(t *testing.T) {
			restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
				c, good := r.turnsBad(v)
				before := snapshotFiles(t, r.dir)
				began := time.Now()
				if answer := r.rollback("1m"); answer.Warning != "" || !answer.Origins[0].Freeze.SurvivesRestart {
					t.Errorf("rollback: %+v, want one that survives a restart", answer)
				}
				r.expectResources(c, typeCDS, "a", "b")
				for range 2 {
					time.Sleep(time.Minute)
					r.stop()
					for path, content := range before {
						if old {
							certs.WriteFile(t, filepath.Dir(path), filepath.Base(path), content)
						}
					}
					r.o.Apply(func(tx *relaytest.Tx) {
						for _, name := range []string{"a", "b", "c"} {
							tx.Remove(typeCDS, name)
						}
					})
					r.start()
					f := r.frozen()
					if f == nil || f.Rollback == nil || !strings.HasPrefix(f.By, "alice") || f.Reason != "bad routes" ||
						!f.Since.Equal(began) {
						t.Fatalf("after a restart: got %+v, want the rollback by alice of %v", f, began)
					}
					c.Reconnect(r.Conn())
					late := r.following(v, typeCDS)
					sleep(settled)
					for _, client := range []*relaytest.Client{c, late} {
						r.expectResources(client, typeCDS, "a", "b")
						if client.State().Digest(typeCDS, "a") != good {
							t.Error("after a restart, a client has content that was rolled back")
						}
					}
				}
				r.o.Apply(func(tx *relaytest.Tx) { tx.Put(relaytest.Cluster("a", "fixed"), relaytest.Cluster("b")) })
				time.Sleep(time.Minute)
				r.thaw()
				r.expectResources(c, typeCDS, "a", "b")
				synctest.Wait()
				if c.State().Digest(typeCDS, "a") == good {
					t.Error("after the thaw, a client has the earlier content")
				}
				if known := generationsOf(t, r.running); len(known) < 3 {
					t.Errorf("after two restarts, got %d generations %+v, want the earlier ones, too", len(known), known)
				}
			}, operated)
		})
	}
}

// snapshotFiles returns the content of the views' snapshots in a directory, by path.
func snapshotFiles(t testing.TB, dir string) map[string][]byte {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*.snapshot"))
	if err != nil || len(found) == 0 {
		t.Fatalf("snapshots in %s: %v, %v", dir, found, err)
	}
	files := make(map[string][]byte)
	for _, path := range found {
		if files[path], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// An impossible rollback is refused with the reason.
func TestRollback_Refused(t *testing.T) {
	t.Parallel()
	worldBubble(t, []string{operated}, func(w *world) {
		c := w.autoClient(relaytest.Delta).subscribe("cds", "")
		w.sleep(20 * time.Second)
		for rev := 1; rev < 9; rev++ {
			w.change(map[bool]string{true: "cds a@1", false: "cds a@2"}[rev%2 == 1])
			w.settle()
		}
		c.ackPending()
		for _, tt := range []struct {
			args admin.RollbackScope
			code int
			why  string
		}{
			{admin.RollbackScope{To: "10m"}, http.StatusBadRequest, "a rollback requires a reason"},
			{admin.RollbackScope{To: "now", Why: because}, http.StatusBadRequest, "want a generation"},
			{admin.RollbackScope{To: "-10m", Why: because}, http.StatusBadRequest, "want a generation"},
			{admin.RollbackScope{To: "abcdef", Why: because}, http.StatusNotFound, "no such generation"},
			{admin.RollbackScope{To: "10m", Why: because, Origin: "x"}, http.StatusNotFound, "no origin"},
		} {
			if code, text := post(w.t, w.relay, "rollback", tt.args); code != tt.code || !strings.Contains(text, tt.why) {
				w.t.Errorf("rollback %+v: got %d %s, want %d and %q", tt.args, code, text, tt.code, tt.why)
			}
		}
		c.expect()
		w.relay.rollback("12s")
		w.settle()
		c.expectAndAck("cds a@1")
		if code, text := post(w.t, w.relay, "freeze", admin.FreezeScope{}); code != http.StatusConflict ||
			!strings.Contains(text, "tender thaw") {
			w.t.Errorf("freeze of a rolled back relay: got %d %s, want 409", code, text)
		}
		if limit := getJSON[admin.Generations](w.t, w.relay, "/api/v1/generations"); limit.Bytes > limit.MaxBytes ||
			limit.Earlier == 0 {
			w.t.Errorf("%d generations use %d bytes, want some, and at most %d bytes", limit.Earlier, limit.Bytes,
				limit.MaxBytes)
		}
	})
}
