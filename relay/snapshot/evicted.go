package snapshot

import (
	"errors"
	"io/fs"
	"log/slog"
	"maps"
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
	if d.hasOtherFormat(name) {
		return nil
	}
	err := os.Rename(filepath.Join(d.path, name), filepath.Join(d.path, evictedName(name)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the view has no snapshot
	}
	if err != nil {
		return err
	}
	d.addEvicted(name, evicted{peer, time.Now()})
	for len(d.evictedNames()) > limit {
		if err := d.removeEvicted(d.nextEvicted()); err != nil {
			return err
		}
	}
	return d.sync()
}

// Recall returns the snapshot of an evicted view, or nil if there is none that is valid and not older than maxAge. The
// file is kept until another snapshot of the view is written.
func (d *Dir) Recall(h *cache.Header, now time.Time, maxAge time.Duration) *cache.Snapshot {
	name := nameOf(h)
	d.mu.Lock()
	_, is := d.evicted[name]
	d.mu.Unlock()
	if !is {
		return nil
	}
	s, reason, err := d.read(evictedName(name), now.Add(-maxAge))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		d.reject(reason, evictedName(name), err)
		return nil
	}
	return s
}

// RemoveEvicted removes the snapshots of views that were evicted before a time.
func (d *Dir) RemoveEvicted(before time.Time) {
	for name, of := range d.evictedNames() {
		if !of.at.Before(before) {
			continue
		}
		if err := d.removeEvicted(name); err != nil {
			d.log.Warn("unused snapshot not removed", slog.String("file", evictedName(name)), slog.Any("err", err))
		}
	}
}

// indexEvicted indexes the file of an evicted view that an earlier process left, or removes it if it is too old.
func (d *Dir) indexEvicted(f fs.DirEntry, oldest time.Time) {
	d.removeOld(f, oldest)
	if info, err := os.Lstat(filepath.Join(d.path, f.Name())); err == nil && info.Mode().IsRegular() {
		d.addEvicted(strings.TrimSuffix(f.Name(), evictedSuffix)+suffix, evicted{at: info.ModTime()})
	}
}

// addEvicted adds a snapshot to the index of evicted views.
func (d *Dir) addEvicted(name string, of evicted) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.evicted[name] = of
}

// evictedNames returns the snapshots of evicted views, by their names before Evict.
func (d *Dir) evictedNames() map[string]evicted {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.evicted)
}

// nextEvicted returns the snapshot to remove next: the oldest of the peer with most snapshots.
func (d *Dir) nextEvicted() (first string) {
	all, of := d.evictedNames(), make(map[string]int)
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
	d.mu.Lock()
	_, is := d.evicted[name]
	delete(d.evicted, name)
	d.mu.Unlock()
	if !is {
		return nil
	}
	if err := os.Remove(filepath.Join(d.path, evictedName(name))); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
