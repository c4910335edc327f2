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

// generationsOf returns the generations of the one view of a relay, the newest first.
func generationsOf(t testing.TB, r *running) []admin.Generation {
	t.Helper()
	for _, v := range get[admin.Generations](t, r, "/api/v1/generations").Views {
		if !v.Shared {
			return v.Generations
		}
	}
	return nil
}

// rollsBack has a relay return to a generation, or to what it served some time ago.
func rollsBack(t testing.TB, r *running, to string) admin.Rollbacks {
	t.Helper()
	return operate[admin.RollbackScope, admin.Rollbacks](t, r, "rollback", admin.RollbackScope{To: to, Why: because})
}

// TestRollback_Clients: clients are told the difference to the earlier generation in the order of types, and nothing of what changes
// then but endpoints. Those that come find it, too. Thawed, each is told the difference to what the origin has.
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
			if len(known) != 2 || known[0].Added != 1 || known[0].Changed != 2 || known[0].Removed != 1 || !known[0].Until.IsZero() {
				w.t.Fatalf("generations: %+v, want two, the newest with a new resource, two changed and one removed", known)
			}
			dry := operate[admin.RollbackScope, admin.Rollbacks](w.t, w.relay, "rollback", admin.RollbackScope{To: "10s", DryRun: true})
			if !dry.DryRun || dry.Origins[0].Resources != 4 || dry.Origins[0].Freeze != nil {
				w.t.Errorf("dry run: %+v, want 4 resources and no rollback", dry)
			}
			diff := get[admin.RolloutDiff](w.t, w.relay, "/api/v1/rollback/diff?to="+known[1].Generation)
			if len(diff.Changes) != 4 || diff.Changes[0].Name != "a" || diff.Changes[0].Change != "changed" {
				w.t.Errorf("the diff has %+v, want four changes", diff.Changes)
			}
			w.settle()
			c.expect()
			b := rollsBack(w.t, w.relay, known[1].Generation[:8])
			if o := b.Origins[0]; o.Resources != 4 || o.Freeze == nil || o.Freeze.Rollback == nil || o.Freeze.Reason != "bad routes" {
				w.t.Errorf("rollback: %+v, want 4 resources", b)
			}
			w.settle()
			if v == relaytest.Delta {
				c.expect("cds a@1 b@1", "lds l@1", "cds -c")
			} else {
				c.expect(formatFor(v, "cds a@1 b@1 c@1"), formatFor(v, "lds l@1"), formatFor(v, "cds a@1 b@1"))
			}
			if now := generationsOf(w.t, w.relay); now[0].Generation != known[1].Generation || len(now) != 3 {
				w.t.Errorf("rolled back, the generations are %+v, want the newest to be %s", now, known[1].Generation)
			}
			w.change("cds a@3", "lds l@3", "eds e@2")
			w.settle()
			c.expect(formatFor(v, "eds e@2"))
			late := w.autoClient(v).subscribe("cds", "").subscribe("lds", "")
			w.settle()
			if v == relaytest.Delta { // it may have c, and have refused all that it was sent with it
				late.expect("cds a@1 b@1", "cds -c", "lds l@1")
			} else {
				late.expect(formatFor(v, "cds a@1 b@1"), formatFor(v, "lds l@1"))
			}
			if f := w.relay.thaw(); f.Origins[0].Withheld != 4 || f.Origins[0].Frozen {
				w.t.Errorf("thaw: %+v, want it thawed, and 4 names that were withheld", f)
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

// TestRollback_ReturningClients: one that comes from a relay that is not rolled back is served the earlier generation, and what that
// does not have is taken from it. What a client reports of what was rolled back is not believed.
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
			if len(here) != 2 || len(there) != 2 || here[0].Generation != there[0].Generation || here[1].Generation != there[1].Generation {
				w.t.Errorf("replicas have the generations %+v and %+v, want equal names", here, there)
			}
			rollsBack(w.t, w.relay, there[1].Generation)
			w.settle()
			c.Reconnect(w.relay.Conn())
			w.settle()
			for _, typeURL := range []string{relaytest.ClusterType, relaytest.ListenerType} {
				if diff := cmp.Diff(first.State()[typeURL], c.State()[typeURL]); diff != "" || len(c.State()[typeURL]) != map[string]int{relaytest.ClusterType: 2, relaytest.ListenerType: 1}[typeURL] {
					w.t.Errorf("a client that came from elsewhere has other resources (-first +moved):\n%s", diff)
				}
			}
			seen := len(first.Responses())
			first.Reconnect(w.relay.Conn())
			w.settle()
			if v == relaytest.Delta {
				again := first.Responses()[seen:]
				if len(again) == 0 || again[0].Resource("a") == nil || again[0].Resource("b") != nil {
					w.t.Errorf("a client that had the newer generation before was sent %v, want a once more", again)
				}
			}
		})
	})
}

// turnsBad has the origin send clusters a and b, and 30 s ago another a, and c. It returns a client that has these, and the digest
// of a before.
func (r *restarting) turnsBad(v relaytest.Variant) (c *relaytest.Client, good relaytest.Digest) {
	r.t.Helper()
	r.o.Put(relaytest.Cluster("a"), relaytest.Cluster("b"))
	c = r.following(v, typeCDS)
	r.expectResources(c, typeCDS, "a", "b")
	good = c.State().Digest(typeCDS, "a")
	time.Sleep(time.Minute)
	r.o.Apply(func(tx *relaytest.Tx) { tx.Put(relaytest.Cluster("a", "bad"), relaytest.Cluster("c")) })
	r.expectResources(c, typeCDS, "a", "b", "c")
	time.Sleep(30 * time.Second)
	synctest.Wait()
	return c, good
}

// TestH09_RollbackSurvivesARestart: also if the snapshot is older than the rollback, as with a full disk; and the origin comes back
// empty meanwhile.
func TestH09_RollbackSurvivesARestart(t *testing.T) {
	t.Parallel()
	for _, old := range []bool{false, true} {
		t.Run(map[bool]string{false: "written", true: "full disk"}[old], func(t *testing.T) {
			restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
				c, good := r.turnsBad(v)
				before := snapshotFiles(t, r.dir)
				began := time.Now()
				if answer := rollsBack(t, r.running, "1m"); answer.Warning != "" || !answer.Origins[0].Freeze.SurvivesRestart {
					t.Errorf("rollback: %+v, want one that survives a restart", answer)
				}
				r.expectResources(c, typeCDS, "a", "b")
				for range 2 {
					time.Sleep(time.Hour)
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
					if f == nil || f.Rollback == nil || !strings.HasPrefix(f.By, "alice") || f.Reason != "bad routes" || !f.Since.Equal(began) {
						t.Fatalf("after a restart: %+v, want a rollback by alice of %v", f, began)
					}
					c.Reconnect(r.Conn())
					late := r.following(v, typeCDS)
					time.Sleep(3 * time.Hour)
					synctest.Wait()
					for _, client := range []*relaytest.Client{c, late} {
						r.expectResources(client, typeCDS, "a", "b")
						if client.State().Digest(typeCDS, "a") != good {
							t.Error("after a restart, a client has the content that was rolled back")
						}
					}
				}
				r.o.Apply(func(tx *relaytest.Tx) { tx.Put(relaytest.Cluster("a", "fixed"), relaytest.Cluster("b")) })
				time.Sleep(time.Minute)
				r.thaw()
				r.expectResources(c, typeCDS, "a", "b")
				synctest.Wait()
				if c.State().Digest(typeCDS, "a") == good {
					t.Error("thawed, a client has the earlier content")
				}
				if known := generationsOf(t, r.running); len(known) < 3 {
					t.Errorf("after two restarts there are %d generations, want those from before: %+v", len(known), known)
				}
			}, operated)
		})
	}
}

// snapshotFiles returns the snapshots of views in a directory.
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

// TestRollback_Refused: what cannot be is refused, and says why.
func TestRollback_Refused(t *testing.T) {
	t.Parallel()
	worldBubble(t, []string{operated, "TENDER_MAX_GENERATION_BYTES=1KiB"}, func(w *world) {
		off := start(w.t, w.origin, "TENDER_NODE_ID=tender/off", operated, "TENDER_MAX_GENERATION_BYTES=0")
		c := w.autoClient(relaytest.Delta).subscribe("cds", "")
		w.sleep(20 * time.Second)
		for rev := 1; rev < 9; rev++ {
			w.change(map[bool]string{true: "cds a@1", false: "cds a@2"}[rev%2 == 1])
			w.settle()
		}
		c.ackPending()
		for _, no := range []struct {
			r    *running
			args admin.RollbackScope
			code int
			why  string
		}{
			{off, admin.RollbackScope{To: "10m", Why: because}, http.StatusConflict, "TENDER_MAX_GENERATION_BYTES is 0"},
			{w.relay, admin.RollbackScope{To: "10m"}, http.StatusBadRequest, "needs one"},
			{w.relay, admin.RollbackScope{To: "now", Why: because}, http.StatusBadRequest, "want a generation"},
			{w.relay, admin.RollbackScope{To: "-10m", Why: because}, http.StatusBadRequest, "want a generation"},
			{w.relay, admin.RollbackScope{To: "abcdef", Why: because}, http.StatusNotFound, "no such generation"},
			{w.relay, admin.RollbackScope{To: "10m", Why: because, Origin: "x"}, http.StatusNotFound, "no origin"},
			{w.relay, admin.RollbackScope{To: "75s", Why: because}, http.StatusConflict, "not kept any more"},
		} {
			if code, text := post(w.t, no.r, "rollback", no.args); code != no.code || !strings.Contains(text, no.why) {
				w.t.Errorf("rollback %+v: %d %s, want %d and %q", no.args, code, text, no.code, no.why)
			}
		}
		c.expect()
		rollsBack(w.t, w.relay, "12s")
		w.settle()
		c.expectAndAck("cds a@1")
		if code, text := post(w.t, w.relay, "freeze", admin.FreezeScope{}); code != http.StatusConflict || !strings.Contains(text, "tender thaw") {
			w.t.Errorf("freeze of a relay that is rolled back: %d %s, want 409", code, text)
		}
		if limit := get[admin.Generations](w.t, w.relay, "/api/v1/generations"); limit.Bytes > limit.MaxBytes || limit.Earlier == 0 {
			w.t.Errorf("%d generations hold %d bytes, want some with at most %d", limit.Earlier, limit.Bytes, limit.MaxBytes)
		}
	})
}
