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

// copySnapshots copies what is on the disk now into a new directory, as a crash would leave it.
func (r *restarting) copySnapshots() (dir string) {
	r.t.Helper()
	dir = r.t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(r.dir)); err != nil {
		r.t.Fatal(err)
	}
	return dir
}

// phase returns the phase that the status has of clusters.
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

// TestH12_YoungRelayRestartsWithWhatItServed: a relay that has served for a second restores it when
// it is told to stop, or dies, as settled: newcomers are served while the origin is away, and
// returning clients lose nothing. When the origin is back, its set counts.
func TestH12_YoungRelayRestartsWithWhatItServed(t *testing.T) {
	t.Parallel()
	for _, dies := range []bool{false, true} {
		t.Run(map[bool]string{false: "told to stop", true: "dies"}[dies], func(t *testing.T) {
			restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
				r.o.Put(relaytest.Cluster("a"), relaytest.Cluster("b"), relaytest.Endpoints("a", "127.0.0.1:1"))
				c := r.following(v, typeCDS)
				c.Subscribe(typeEDS, "a")
				r.expectResources(c, typeCDS, "a", "b")
				r.expectResources(c, typeEDS, "a")
				time.Sleep(time.Second)
				synctest.Wait()
				if phase := r.phase(); phase != "settled" {
					t.Fatalf("the phase is %q after a second, want settled", phase)
				}
				crashed := r.copySnapshots()
				r.Stop()
				if dies {
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
				time.Sleep(time.Hour)
				synctest.Wait()
				for _, resp := range c.Responses()[before:] {
					if resp.TypeURL == typeCDS { // endpoints are sent to whoever returns (B.3)
						t.Errorf("who came back was sent %v", resp)
					}
				}
				if c.Ended() {
					t.Error("the stream of who came back has ended")
				}
				r.expectResources(c, typeCDS, "a", "b")
				r.o.Restart()
				for _, c := range []*relaytest.Client{c, late} {
					r.expectResources(c, typeCDS, "a", "c")
				}
				time.Sleep(20 * time.Second)
				synctest.Wait()
				if phase := r.phase(); phase != "confirmed" {
					t.Errorf("the phase is %q when the origin is back, want confirmed", phase)
				}
			}, operated)
		})
	}
}

// TestH12_WrittenSoon: what a view begins with is on the disk within a second, and what it grows
// by within a few.
func TestH12_WrittenSoon(t *testing.T) {
	t.Parallel()
	restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
		time.Sleep(time.Hour) // the relay runs for long already when its first client comes
		r.o.Put(relaytest.Cluster("a"), relaytest.Endpoints("a", "127.0.0.1:1"))
		c := r.following(v)
		c.Subscribe(typeEDS, "a")
		r.expectResources(c, typeEDS, "a")
		at := func(within time.Duration, want int64) {
			t.Helper()
			time.Sleep(within)
			synctest.Wait()
			if got := r.SnapshotStats().Written; got < want {
				t.Errorf("%d snapshots written after %v, want %d", got, within, want)
			}
		}
		at(500*time.Millisecond, 1) // which no set has
		time.Sleep(time.Minute)
		written := r.SnapshotStats().Written
		c.Subscribe(typeCDS)
		r.expectResources(c, typeCDS, "a")
		at(500*time.Millisecond, written+1)
		time.Sleep(time.Minute)
		written = r.SnapshotStats().Written
		time.Sleep(time.Hour)
		if got := r.SnapshotStats().Written; got != written {
			t.Errorf("%d snapshots written though nothing changed", got-written)
		}
	})
}

// TestH12_WhatWasFrozenIsWritten: a relay that dies soon after a freeze restarts with what was
// frozen, however young.
func TestH12_WhatWasFrozenIsWritten(t *testing.T) {
	t.Parallel()
	restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
		r.o.Put(relaytest.Cluster("a"))
		r.expectResources(r.following(v, typeCDS), typeCDS, "a")
		time.Sleep(time.Minute)
		r.o.Put(relaytest.Cluster("b"))
		synctest.Wait()
		r.freeze(admin.FreezeScope{})
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		crashed := r.copySnapshots()
		r.Stop()
		r.dir, r.env[0] = crashed, "TENDER_SNAPSHOT_DIR="+crashed
		r.o.Put(relaytest.Cluster("c"))
		r.start()
		time.Sleep(time.Minute)
		r.expectResources(r.following(v, typeCDS), typeCDS, "a", "b")
	}, operated)
}

// TestH12_OldDirectory: snapshots that a relay of 2026-11-22 wrote are restored, and confirmed sets
// count as such.
func TestH12_OldDirectory(t *testing.T) {
	t.Parallel()
	restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
		r.Stop()
		r.o.Stop()
		old, err := filepath.Glob("testdata/snapshots-2026-11-22/*.snapshot")
		if err != nil || len(old) != 1 {
			t.Fatalf("snapshots %q, %v, want one", old, err)
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
		if s := r.SnapshotStats(); s.Restored != 1 || s.Rejected["version"] != 0 {
			t.Errorf("stats %+v, want one view restored", s)
		}
	})
}
