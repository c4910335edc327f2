package snapshot

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/xdstender/tender/cache"
)

// evictedSuffix is the suffix of snapshots of evicted views. A relay does not load them at the start; otherwise groups
// that an attacker created could displace others. Earlier versions of the relay ignore these files.
const evictedSuffix = ".evicted" + suffix

// An evicted is the snapshot of an evicted view, which is kept for returning clients.
type evicted struct {
	peer string // the peer that created the group; empty if unknown
	at   time.Time
}

// evictedName returns the name that Evict gives to the snapshot with a name.
func evictedName(name string) string { return strings.TrimSuffix(name, suffix) + evictedSuffix }

// Evict keeps the snapshot of an evicted view for returning clients (Recall). Load does not return it. At most limit
// snapshots of evicted views are kept: Evict removes the oldest of the peer with most snapshots first.
func (d *Dir) Evict(h *cache.Header, peer string, limit int) error {
	name := nameOf(h)
	return d.write(func() error {
		if _, other := d.otherFormat[name]; other {
			return nil
		}
		err := os.Rename(filepath.Join(d.path, name), filepath.Join(d.path, evictedName(name)))
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the view has no snapshot
		}
		if err != nil {
			return err
		}
		d.evicted[name] = evicted{peer, time.Now()}
		for len(d.evicted) > limit {
			if err := d.removeEvicted(d.nextEvicted()); err != nil {
				return err
			}
		}
		return d.sync()
	})
}

// Recall returns the snapshot of an evicted view, or nil if there is none that is valid and not older than maxAge. The
// file is kept until another snapshot of the view is written.
func (d *Dir) Recall(h *cache.Header, now time.Time, maxAge time.Duration) *cache.Snapshot {
	name := nameOf(h)
	var s *cache.Snapshot
	err := d.read(func() (err error) {
		if _, is := d.evicted[name]; is {
			s, err = d.decode(evictedName(name), now.Add(-maxAge))
		}
		return err
	})
	if err == nil {
		return s
	}
	if !errors.Is(err, fs.ErrNotExist) && !isUnusable(err) {
		d.refuse(reasonOf(err), evictedName(name), err)
	}
	return nil
}

// RemoveEvicted removes the snapshots of views that were evicted before a time.
func (d *Dir) RemoveEvicted(before time.Time) {
	err := d.read(func() (err error) {
		for name, of := range d.evicted {
			if of.at.Before(before) {
				err = errors.Join(err, d.removeEvicted(name))
			}
		}
		return err
	})
	if err != nil && !isUnusable(err) {
		d.log.Warn("unused snapshots not removed", slog.Any("err", err))
	}
}

// indexEvicted indexes the file of an evicted view that an earlier process left, or removes it if it is too old.
func (d *Dir) indexEvicted(f fs.DirEntry, oldest time.Time) {
	d.removeOld(f, oldest)
	if info, err := os.Lstat(filepath.Join(d.path, f.Name())); err == nil && info.Mode().IsRegular() {
		d.evicted[strings.TrimSuffix(f.Name(), evictedSuffix)+suffix] = evicted{at: info.ModTime()}
	}
}

// nextEvicted returns the snapshot to remove next: the oldest of the peer with most snapshots.
func (d *Dir) nextEvicted() (first string) {
	all, of := d.evicted, make(map[string]int)
	for _, e := range all {
		if e.peer != "" {
			of[e.peer]++
		}
	}
	for name, e := range all {
		than, more := all[first], of[e.peer]-of[all[first].peer]
		if first == "" || more > 0 || more == 0 && e.at.Before(than.at) {
			first = name
		}
	}
	return first
}

// removeEvicted removes the snapshot of an evicted view, if there is one, given its name before Evict.
func (d *Dir) removeEvicted(name string) error {
	if _, is := d.evicted[name]; !is {
		return nil
	}
	delete(d.evicted, name)
	if err := os.Remove(filepath.Join(d.path, evictedName(name))); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
