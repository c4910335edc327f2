package snapshot_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/xdstender/tender/cache"
)

// evict writes snapshots of groups that a peer created, and evicts them. At most limit evicted snapshots are kept.
func (d *opened) evict(peer string, limit int, groups ...string) {
	d.t.Helper()
	for i, group := range groups {
		s := taken(d.t, group, 1+i, time.Now())
		d.write(s)
		if err := d.Evict(&s.Header, peer, limit); err != nil {
			d.t.Fatal(err)
		}
	}
}

// recalled returns the groups with a snapshot of an evicted view.
func (d *opened) recalled(maxAge time.Duration, groups ...string) (found []string) {
	for _, group := range groups {
		if s := d.Recall(&cache.Header{Origin: "default", Group: group}, time.Now(), maxAge); s != nil {
			found = append(found, group)
		}
	}
	return found
}

func (d *opened) wantEvicted(when string, want ...string) {
	d.t.Helper()
	if got := d.recalled(time.Hour, "a", "b", "c", "d", "e", "f"); fmt.Sprint(got) != fmt.Sprint(want) ||
		len(d.files()) != len(want) {
		d.t.Errorf("%s: evicted snapshots of %v, and %d files; want %v", when, got, len(d.files()), want)
	}
}

// TestB35_EvictedSnapshots checks that evicted snapshots are not loaded but recalled, also by the next process, until
// their group is written or removed, or until they are too old. Above the limit, the oldest of the peer with most are
// removed.
func TestB35_EvictedSnapshots(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir")
	d := open(t, path)
	d.evict("few", 4, "a")
	d.evict("many", 4, "b", "c", "d")
	d.wantEvicted("four evicted", "a", "b", "c", "d")
	d.evict("many", 4, "e")
	d.wantEvicted("five evicted", "a", "c", "d", "e")
	d.evict("few", 4, "f")
	d.wantEvicted("six evicted", "a", "d", "e", "f")
	if loaded := d.Load(time.Now(), time.Hour); len(loaded) != 0 {
		t.Errorf("loaded %v, want none", loaded)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}

	d = open(t, path)
	if loaded := d.Load(time.Now(), time.Hour); len(loaded) != 0 {
		t.Errorf("loaded %v after a restart, want none", loaded)
	}
	d.wantEvicted("after a restart", "a", "d", "e", "f")
	if got := d.recalled(0, "a"); len(got) != 0 {
		t.Error("recalled a snapshot that is too old")
	}
	if err := d.Remove(&cache.Header{Origin: "default", Group: "d"}); err != nil {
		t.Error(err)
	}
	d.wantEvicted("one group removed", "a", "e", "f")
	d.write(taken(t, "e", 5, time.Now()))
	if got := d.recalled(time.Hour, "a", "e", "f"); len(got) != 2 || len(d.files()) != 3 {
		t.Errorf("the evicted snapshot of a written group was not removed: %v, %v", got, d.files())
	}
	if loaded := d.Load(time.Now(), time.Hour); len(loaded) != 1 || loaded[0].Group != "e" {
		t.Errorf("loaded %v, want that of the written group", loaded)
	}
	d.RemoveEvicted(time.Now().Add(time.Minute))
	if len(d.files()) != 1 {
		t.Errorf("files %v, want that of the written group", d.files())
	}
	d.evict("many", 4, "a")
	if loaded := d.Load(time.Now().Add(2*time.Hour), time.Hour); len(loaded) != 0 || len(d.files()) != 0 {
		t.Errorf("loaded %v of %v, want none, because all are too old", loaded, d.files())
	}
}
