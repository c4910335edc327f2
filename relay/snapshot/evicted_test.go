package snapshot_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/xdstender/tender/cache"
)

// evicted writes snapshots of groups, and evicts them for a peer, of whom so many stay.
func (d *opened) evict(peer string, most int, groups ...string) {
	d.t.Helper()
	for i, group := range groups {
		s := taken(d.t, group, 1+i, time.Now())
		d.write(s)
		if err := d.Evict(&s.Header, peer, most); err != nil {
			d.t.Fatal(err)
		}
	}
}

// recalled returns of which of groups there are snapshots that were evicted.
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
	if got := d.recalled(time.Hour, "a", "b", "c", "d", "e", "f"); fmt.Sprint(got) != fmt.Sprint(want) || len(d.files()) != len(want) {
		d.t.Errorf("%s, %v of the evicted are there, and %d files, want %v", when, got, len(d.files()), want)
	}
}

// TestB35_EvictedSnapshots are not loaded, and are there for who comes back, also for the next process, until their group is written
// anew or removed, or they are old. Of too many the oldest of the peer with most go.
func TestB35_EvictedSnapshots(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir")
	d := open(t, path)
	d.evict("few", 4, "a")
	d.evict("many", 4, "b", "c", "d")
	d.wantEvicted("of four", "a", "b", "c", "d")
	d.evict("many", 4, "e")
	d.wantEvicted("one too many", "a", "c", "d", "e")
	d.evict("few", 4, "f")
	d.wantEvicted("another", "a", "d", "e", "f")
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
		t.Error("one that is too old is recalled")
	}
	if err := d.Remove(&cache.Header{Origin: "default", Group: "d"}); err != nil {
		t.Error(err)
	}
	d.wantEvicted("one group is removed", "a", "e", "f")
	d.write(taken(t, "e", 5, time.Now()))
	if got := d.recalled(time.Hour, "a", "e", "f"); len(got) != 2 || len(d.files()) != 3 {
		t.Errorf("of one that was written anew, there is one that was evicted: %v, %v", got, d.files())
	}
	if loaded := d.Load(time.Now(), time.Hour); len(loaded) != 1 || loaded[0].Group != "e" {
		t.Errorf("loaded %v, want the one that was written anew", loaded)
	}
	d.RemoveEvicted(time.Now().Add(time.Minute))
	if len(d.files()) != 1 {
		t.Errorf("files %v, want the one that was written anew", d.files())
	}
	d.evict("many", 4, "a")
	if loaded := d.Load(time.Now().Add(2*time.Hour), time.Hour); len(loaded) != 0 || len(d.files()) != 0 {
		t.Errorf("loaded %v of %v, want none, since all is old", loaded, d.files())
	}
}
