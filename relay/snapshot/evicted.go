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

// evictedSuffix ends the name of the snapshot of a view that made room for another one. A relay does not load it at the
// start: otherwise groups that an attacker created would replace real ones. An earlier version ignores it.
const evictedSuffix = ".evicted" + suffix

// An evicted is a snapshot of an evicted view, kept for returning clients.
type evicted struct {
	peer string // that is charged for it; empty if that is not known
	at   time.Time
}

// evictedName returns the name of the file to which Evict renames one.
func evictedName(name string) string { return strings.TrimSuffix(name, suffix) + evictedSuffix }

// Evict keeps the snapshot of a view for returning clients (Recall); Load does not return it any more. At most `most`
// snapshots are kept. Above that, the oldest are removed, first those of the peer with most.
func (d *Dir) Evict(h *cache.Header, peer string, most int) error {
	name := nameOf(h)
	if d.hasOtherFormat(name) {
		return nil
	}
	err := os.Rename(filepath.Join(d.path, name), filepath.Join(d.path, evictedName(name)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing was held
	}
	if err != nil {
		return err
	}
	d.addEvicted(name, evicted{peer, time.Now()})
	for len(d.evictedNames()) > most {
		if err := d.removeEvicted(d.nextEvicted()); err != nil {
			return err
		}
	}
	return d.sync()
}

// Recall returns the snapshot of a view that was evicted; nil if there is none that can be read and is not too old. It
// stays until another one of the same view is written.
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

// indexEvicted notes a file that an earlier process left, and removes one that is too old.
func (d *Dir) indexEvicted(f fs.DirEntry, oldest time.Time) {
	d.removeOld(f, oldest)
	if info, err := os.Lstat(filepath.Join(d.path, f.Name())); err == nil && info.Mode().IsRegular() {
		d.addEvicted(strings.TrimSuffix(f.Name(), evictedSuffix)+suffix, evicted{at: info.ModTime()})
	}
}

func (d *Dir) addEvicted(name string, of evicted) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.evicted[name] = of
}

// evictedNames returns which snapshots were evicted, by the names that they had.
func (d *Dir) evictedNames() map[string]evicted {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.evicted)
}

// nextEvicted returns which one goes first.
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

// removeEvicted removes the file of an evicted view, if there is one, by the name that it had.
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
