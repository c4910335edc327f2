package conformance_test

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
)

// copySnapshots copies the current snapshots to a new directory, as a crash would leave them.
func (r *restarting) copySnapshots() (dir string) {
	r.t.Helper()
	dir = r.t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(r.dir)); err != nil {
		r.t.Fatal(err)
	}
	return dir
}

// phase returns the status's phase of clusters.
func (r *restarting) phase() string {
	r.t.Helper()
	for _, v := range statusOf(r.t, r.running).Views {
		for _, typ := range v.Types {
			if typ.Name == "cds" {
				return typ.Phase
			}
		}
	}
	return ""
}

// A relay that has served for a second restarts with its sets in the phase settled, after a normal stop and after
// a crash. While the origin is down, new clients are served and reconnecting ones lose nothing. When the origin is
// up, its set applies.
func TestH12_YoungRelayRestartsWithWhatItServed(t *testing.T) {
	t.Parallel()
	for _, crashes := range []bool{false, true} {
		t.Run(map[bool]string{false: "stops", true: "crashes"}[crashes], func(t *testing.T) {
			restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
				r.o.Put(relaytest.Cluster("a"), relaytest.Cluster("b"), relaytest.Endpoints("a", "127.0.0.1:1"))
				c := r.following(v, typeCDS)
				c.Subscribe(typeEDS, "a")
				r.expectResources(c, typeCDS, "a", "b")
				r.expectResources(c, typeEDS, "a")
				sleep(time.Second)
				if phase := r.phase(); phase != "settled" {
					t.Fatalf("the phase is %q after a second, want settled", phase)
				}
				crashed := r.copySnapshots()
				r.Stop()
				if crashes {
					r.dir, r.env[0] = crashed, "TENDER_SNAPSHOT_DIR="+crashed
				}
				r.o.Stop()
				r.o.Apply(func(tx *relaytest.Tx) { tx.Remove(typeCDS, "b"); tx.Put(relaytest.Cluster("c")) })
				r.start()
				if phase := r.phase(); phase != "settled" {
					t.Errorf("the phase is %q after the restart, want settled", phase)
				}
				late := r.following(v, typeCDS)
				late.Subscribe(typeEDS, "a")
				r.expectResources(late, typeCDS, "a", "b")
				r.expectResources(late, typeEDS, "a")
				before := len(c.Responses())
				c.Reconnect(r.Conn())
				sleep(settled)
				for _, resp := range c.Responses()[before:] {
					if resp.TypeURL == typeCDS { // endpoints are resent to reconnecting clients (B.3)
						t.Errorf("a reconnecting client got %v, want no response", resp)
					}
				}
				if c.Ended() {
					t.Error("the stream of the reconnecting client ended")
				}
				r.expectResources(c, typeCDS, "a", "b")
				r.o.Restart()
				for _, c := range []*relaytest.Client{c, late} {
					r.expectResources(c, typeCDS, "a", "c")
				}
				sleep(20 * time.Second)
				if phase := r.phase(); phase != "confirmed" {
					t.Errorf("the phase is %q after the origin restarted, want confirmed", phase)
				}
			}, operated)
		})
	}
}

// A new view is written within a second, and its changes within a few seconds.
func TestH12_WrittenSoon(t *testing.T) {
	t.Parallel()
	restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
		time.Sleep(settled) // the first client connects late
		r.o.Put(relaytest.Cluster("a"), relaytest.Endpoints("a", "127.0.0.1:1"))
		c := r.following(v)
		c.Subscribe(typeEDS, "a")
		r.expectResources(c, typeEDS, "a")
		at := func(within time.Duration, want int64) {
			t.Helper()
			sleep(within)
			if got := r.SnapshotStats().Written; got < want {
				t.Errorf("wrote %d snapshots after %v, want %d", got, within, want)
			}
		}
		at(500*time.Millisecond, 1) // before any set is complete
		time.Sleep(time.Minute)
		written := r.SnapshotStats().Written
		c.Subscribe(typeCDS)
		r.expectResources(c, typeCDS, "a")
		at(500*time.Millisecond, written+1)
		time.Sleep(time.Minute)
		written = r.SnapshotStats().Written
		time.Sleep(settled)
		if got := r.SnapshotStats().Written; got != written {
			t.Errorf("wrote %d snapshots without a change", got-written)
		}
	})
}

// A relay that crashes soon after a freeze restarts with the frozen resources.
func TestH12_FrozenResourcesAreWritten(t *testing.T) {
	t.Parallel()
	restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
		r.o.Put(relaytest.Cluster("a"))
		r.expectResources(r.following(v, typeCDS), typeCDS, "a")
		time.Sleep(time.Minute)
		r.o.Put(relaytest.Cluster("b"))
		synctest.Wait()
		r.freeze(admin.FreezeScope{})
		sleep(500 * time.Millisecond)
		crashed := r.copySnapshots()
		r.Stop()
		r.dir, r.env[0] = crashed, "TENDER_SNAPSHOT_DIR="+crashed
		r.o.Put(relaytest.Cluster("c"))
		r.start()
		time.Sleep(time.Minute)
		r.expectResources(r.following(v, typeCDS), typeCDS, "a", "b")
	}, operated)
}

// Snapshots of the relay of 2026-11-22 are restored, with their sets confirmed.
func TestH12_OldDirectory(t *testing.T) {
	t.Parallel()
	restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
		r.Stop()
		r.o.Stop()
		old, err := filepath.Glob("testdata/snapshots-2026-11-22/*.snapshot")
		if err != nil || len(old) != 1 {
			t.Fatalf("got the snapshots %q, %v, want 1", old, err)
		}
		text, err := os.ReadFile(old[0])
		if err == nil {
			err = os.WriteFile(filepath.Join(r.dir, filepath.Base(old[0])), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		r.start()
		c := r.following(v, typeCDS)
		c.Subscribe(typeEDS, "a")
		r.expectResources(c, typeCDS, "a", "b")
		r.expectResources(c, typeEDS, "a")
		if s := r.SnapshotStats(); s.Restored != 1 || s.Refused["version"] != 0 {
			t.Errorf("got the stats %+v, want one view restored", s)
		}
	})
}
