package snapshot

import (
	"bufio"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/renameio/v2"

	"github.com/xdstender/tender/cache"
)

const (
	suffix   = ".snapshot"
	lockName = "lock"

	dirMode  fs.FileMode = 0o700
	fileMode fs.FileMode = 0o600
)

// ErrLocked reports that another process uses the directory. Each relay needs its own.
var ErrLocked = errors.New("another process uses the directory, and each relay needs one of its own")

// ErrNotOwned reports that other users may write to the directory, whose content would be served to clients.
var ErrNotOwned = errors.New("other users may write to the directory")

// errOld reports that a snapshot is older than the maximum age.
var errOld = errors.New("it is too old")

// A Dir is a directory of snapshots that belongs to this process until Close.
type Dir struct {
	path string
	lock *os.File
	log  *slog.Logger
	stats

	mu          sync.Mutex
	otherFormat map[string]struct{} // files of other formats, which must not be lost; guarded by mu

	evicted map[string]evicted // snapshots kept for returning clients, by their former file names; guarded by mu

	decisions           []byte // the file of decisions as it was read or written last; nil if there is none
	decisionsUnreadable bool   // that file cannot be read, and must not be lost
}

// Open takes a directory, which it makes if only that is missing, and removes what an
// earlier process left unfinished in it. A nil logger discards.
//
// Errors: [ErrLocked]; [ErrNotOwned]; one of the file system if the parent is missing, or the directory
// cannot be written to.
func Open(path string, log *slog.Logger) (*Dir, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if err := os.Mkdir(path, dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	if err := checkOwner(path); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	d := &Dir{path: path, lock: lock, log: log, otherFormat: make(map[string]struct{}), evicted: make(map[string]evicted)}
	if err := flock(lock); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", lock.Name(), err), lock.Close())
	}
	if err := d.prepare(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// Check reports what Open would, and leaves nothing behind that was not there.
func Check(path string) error {
	_, err := os.Stat(path)
	made := errors.Is(err, fs.ErrNotExist)
	_, err = os.Stat(filepath.Join(path, lockName))
	locks := errors.Is(err, fs.ErrNotExist)
	d, err := Open(path, nil)
	if err != nil {
		return err
	}
	if locks {
		err = os.Remove(d.lock.Name())
	}
	err = errors.Join(err, d.Close())
	if made {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

// prepare removes unfinished files, and finds out whether files can be made.
func (d *Dir) prepare() error {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") && (strings.Contains(e.Name(), suffix) || strings.HasPrefix(e.Name(), "."+decisionsName)) {
			if err := os.Remove(filepath.Join(d.path, e.Name())); err != nil {
				return fmt.Errorf("remove unfinished snapshot: %w", err)
			}
		}
	}
	f, err := d.pending("probe" + suffix)
	if err != nil {
		return fmt.Errorf("make file: %w", err)
	}
	return f.Cleanup()
}

// pending opens a file that will take the place of another one.
func (d *Dir) pending(name string) (*renameio.PendingFile, error) {
	return renameio.NewPendingFile(filepath.Join(d.path, name), renameio.WithTempDir(d.path), renameio.WithStaticPermissions(fileMode))
}

// Close lets other processes use the directory.
func (d *Dir) Close() error { return d.lock.Close() }

// nameOf returns the name of the file for an origin and a node group.
func nameOf(h *cache.Header) string {
	sum := sha256.Sum256([]byte(h.Origin + "\x00" + h.Group))
	return hex.EncodeToString(sum[:16]) + suffix
}

// Write puts a snapshot in the place of the last one of the same origin and group. When
// it returns nil, the snapshot is on the disk; with an error, the last one still is. A file in another format is not
// replaced but renamed, so that a relay that is upgraded again, or an operator, finds it.
func (d *Dir) Write(s *cache.Snapshot) error {
	name := nameOf(&s.Header)
	err := d.setAside(name)
	if err == nil {
		err = d.replace(name, s.Encode)
	}
	if err != nil {
		d.failed.Add(1)
		return fmt.Errorf("write snapshot: %w", err)
	}
	d.written.Add(1)
	return d.removeEvicted(name)
}

// setAside renames a file that Load found in another format.
func (d *Dir) setAside(name string) error {
	if !d.hasOtherFormat(name) {
		return nil
	}
	aside := fmt.Sprintf("%s.unread-%d%s", strings.TrimSuffix(name, suffix), time.Now().Unix(), suffix)
	if err := os.Rename(filepath.Join(d.path, name), filepath.Join(d.path, aside)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.otherFormat, name)
	return nil
}

func (d *Dir) hasOtherFormat(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, is := d.otherFormat[name]
	return is
}

// replace puts a file with what write writes in the place of another one.
func (d *Dir) replace(name string, write func(io.Writer) error) (err error) {
	f, err := d.pending(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Cleanup()) }() // of what was not finished
	w := bufio.NewWriterSize(f, 64<<10)
	if err := write(w); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := f.CloseAtomicallyReplace(); err != nil {
		return err
	}
	return d.sync()
}

// sync makes what was renamed or removed last.
func (d *Dir) sync() error {
	dir, err := os.Open(d.path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Remove removes the snapshot of an origin and a group, if there is one. A file in another format stays.
func (d *Dir) Remove(h *cache.Header) error {
	if d.hasOtherFormat(nameOf(h)) {
		return nil
	}
	err := os.Remove(filepath.Join(d.path, nameOf(h)))
	gone := d.removeEvicted(nameOf(h))
	if errors.Is(err, fs.ErrNotExist) {
		return gone
	}
	return errors.Join(err, gone, d.sync())
}

// Load returns the snapshots that can be read and are not too old, the newest first. It logs each other snapshot, and
// removes the relay's own files that are older than the maximum age.
func (d *Dir) Load(now time.Time, maxAge time.Duration) []*cache.Snapshot {
	var loaded []*cache.Snapshot
	files, err := os.ReadDir(d.path)
	if err != nil {
		d.reject(Unreadable, d.path, err)
		return nil
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), suffix) {
			continue
		}
		if strings.HasSuffix(f.Name(), evictedSuffix) {
			d.indexEvicted(f, now.Add(-maxAge))
			continue
		}
		s, reason, err := d.read(f.Name(), now.Add(-maxAge))
		if err != nil {
			d.reject(reason, f.Name(), err)
			d.markOtherFormat(f.Name(), reason)
			d.removeOld(f, now.Add(-maxAge))
			continue
		}
		if s.Created.After(now) {
			s.Created = now // the clock was set back, so its age is unknown: it counts from now on
		}
		loaded = append(loaded, s)
	}
	slices.SortStableFunc(loaded, func(a, b *cache.Snapshot) int { return cmp.Compare(b.Created.Unix(), a.Created.Unix()) })
	return loaded
}

// read reads one file. With an error it returns the reason for the metrics.
func (d *Dir) read(name string, oldest time.Time) (*cache.Snapshot, Reason, error) {
	b, err := os.ReadFile(filepath.Join(d.path, name))
	if err != nil {
		return nil, Unreadable, err
	}
	s, err := cache.DecodeSnapshot(b)
	switch {
	case errors.Is(err, cache.ErrSnapshotForeign):
		return nil, Foreign, err
	case errors.Is(err, cache.ErrSnapshotVersion):
		return nil, Version, err
	case err != nil:
		return nil, Damaged, err
	case name != nameOf(&s.Header) && name != evictedName(nameOf(&s.Header)):
		return nil, Foreign, fmt.Errorf("it is a copy of %s", nameOf(&s.Header))
	case s.Created.Before(oldest):
		return nil, Old, fmt.Errorf("%w: of %s", errOld, s.Created.UTC().Format(time.RFC3339))
	}
	return s, "", nil
}

// markOtherFormat notes that a file is in another format, if that is why it was rejected.
func (d *Dir) markOtherFormat(name string, why Reason) {
	if why != Version && why != Foreign {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.otherFormat[name] = struct{}{}
}

// removeOld removes a file that will not be used any more.
func (d *Dir) removeOld(f fs.DirEntry, oldest time.Time) {
	info, err := f.Info()
	if err == nil && info.Mode().IsRegular() && info.ModTime().Before(oldest) {
		err = os.Remove(filepath.Join(d.path, f.Name()))
	}
	if err != nil {
		d.log.Warn("unused snapshot not removed", slog.String("file", f.Name()), slog.Any("err", err))
	}
}

// Reject notes that a loaded snapshot does not fit the relay.
func (d *Dir) Reject(s *cache.Snapshot, why error) { d.reject(Mismatch, nameOf(&s.Header), why) }

func (d *Dir) reject(r Reason, file string, err error) {
	d.rejected[slices.Index(reasons, r)].Add(1)
	d.log.Warn("snapshot rejected; its view starts cold",
		slog.String("file", file), slog.String("reason", string(r)), slog.Any("err", err))
}
