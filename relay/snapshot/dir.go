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

// ErrLocked means that another process uses the directory.
var ErrLocked = errors.New("another process uses the directory; each relay needs its own")

// ErrNotOwned means that other users may write to the directory, whose content the relay would serve to clients.
var ErrNotOwned = errors.New("other users may write to the directory")

// errNeverUsable means that the owner of the directory is not known.
var errNeverUsable = errors.New("the directory has not been usable yet")

// errOld means that a snapshot is older than the maximum age.
var errOld = errors.New("snapshot is too old")

// A Dir is a directory of snapshots. It is locked until Close, so that no other process uses it. A file system that hangs or
// fails delays no caller for longer than ten seconds (see disk), and every call that writes tries again. The methods may be
// called from any goroutine.
type Dir struct {
	path string
	log  *slog.Logger
	disk *disk
	stats

	// Used by the goroutine of the disk alone.
	lock        *os.File            // nil until the directory was usable
	owned       bool                // no other user may have written what the directory contains
	otherFormat map[string]struct{} // names of files in another format, which must not be lost
	evicted     map[string]evicted  // snapshots of evicted views, by their names before Evict
	decisions   []byte              // content of decisions.json as last read or written; nil if there is none
	unread      bool                // that file was not read, and must not be lost
}

// Open locks a directory, which it creates if its parent exists. It removes unfinished files of an earlier process. If
// log is nil, log records are discarded.
//
// It returns [ErrLocked], [ErrNotOwned], or [fs.ErrNotExist] if the parent does not exist: a setting is wrong. With any other
// error of the file system, the directory is open: Load and Decisions read what they can, and writing fails until the
// directory is usable ([Stats]).
func Open(path string, log *slog.Logger) (*Dir, error) {
	d, err := attempt(path, log)
	if errors.Is(err, ErrLocked) || errors.Is(err, ErrNotOwned) || errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// attempt is Open, but returns each error.
func attempt(path string, log *slog.Logger) (*Dir, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	d := &Dir{
		path: path, log: log, disk: startDisk(log), unread: true,
		otherFormat: make(map[string]struct{}), evicted: make(map[string]evicted),
	}
	return d, d.write(func() error { return nil })
}

// isUnusable reports whether an error means that the directory is not usable, which the disk has logged.
func isUnusable(err error) bool { return errors.Is(err, errHangs) || errors.Is(err, errNeverUsable) }

// read calls a function that reads the directory.
func (d *Dir) read(run func() error) error {
	return d.disk.call(func() error {
		if !d.owned {
			return errNeverUsable
		}
		return run()
	})
}

// write calls a function that changes the directory. It opens the directory first, if that is not done.
func (d *Dir) write(run func() error) error {
	return d.disk.call(func() error {
		if err := d.open(); err != nil {
			d.disk.fail(&diskFault{err: err, since: time.Now()})
			return err
		}
		d.disk.recover()
		return run()
	})
}

// open locks the directory, if that is not done.
func (d *Dir) open() error {
	if d.lock != nil {
		return nil
	}
	if err := os.Mkdir(d.path, dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create directory: %w", err)
	}
	if err := checkOwner(d.path); err != nil {
		return err
	}
	d.owned = true
	lock, err := os.OpenFile(filepath.Join(d.path, lockName), os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return fmt.Errorf("open lock: %w", err)
	}
	if err := flock(lock); err != nil {
		return errors.Join(fmt.Errorf("lock %s: %w", lock.Name(), err), lock.Close())
	}
	if err := d.prepare(); err != nil {
		return errors.Join(err, lock.Close())
	}
	d.lock = lock
	return nil
}

// Check returns why the directory cannot be used, without changing the directory. If another process uses the directory,
// it returns ErrLocked even if the directory belongs to the user of that process, so that root can check it.
func Check(path string) error {
	if err := checkLock(filepath.Join(path, lockName)); err != nil {
		return err
	}
	_, err := os.Stat(path)
	created := errors.Is(err, fs.ErrNotExist)
	_, err = os.Stat(filepath.Join(path, lockName))
	createdLock := errors.Is(err, fs.ErrNotExist)
	d, err := attempt(path, nil)
	if err != nil {
		return errors.Join(err, d.Close())
	}
	if createdLock {
		err = os.Remove(d.lock.Name())
	}
	err = errors.Join(err, d.Close())
	if created {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

// checkLock returns ErrLocked if another process has locked the file. Open reports all other errors.
func checkLock(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return nil
	}
	err = flock(f)
	if closeErr := f.Close(); closeErr != nil || !errors.Is(err, ErrLocked) {
		return closeErr
	}
	return fmt.Errorf("lock %s: %w", name, err)
}

// prepare removes unfinished files, and returns an error if no files can be created.
func (d *Dir) prepare() error {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") &&
			(strings.Contains(e.Name(), suffix) || strings.HasPrefix(e.Name(), "."+decisionsName)) {
			if err := os.Remove(filepath.Join(d.path, e.Name())); err != nil {
				return fmt.Errorf("remove unfinished snapshot: %w", err)
			}
		}
	}
	f, err := d.pending("probe" + suffix)
	if err != nil {
		return fmt.Errorf("create file: %w", err)
	}
	return f.Cleanup()
}

// pending creates a temporary file that can atomically replace the file with a name.
func (d *Dir) pending(name string) (*renameio.PendingFile, error) {
	return renameio.NewPendingFile(filepath.Join(d.path, name), renameio.WithTempDir(d.path),
		renameio.WithStaticPermissions(fileMode))
}

// Close unlocks the directory. It returns nil if it is closed, or if the file system hangs: the lock ends with the process.
func (d *Dir) Close() error {
	defer d.disk.stop()
	err := d.disk.call(func() error {
		if d.lock == nil {
			return nil
		}
		return d.lock.Close()
	})
	if errors.Is(err, errHangs) || errors.Is(err, fs.ErrClosed) {
		return nil
	}
	return err
}

// nameOf returns the file name for the snapshot of an origin and a node group.
func nameOf(h *cache.Header) string {
	sum := sha256.Sum256([]byte(h.Origin + "\x00" + h.Group))
	return hex.EncodeToString(sum[:16]) + suffix
}

// Write replaces the snapshot of an origin and a group. If it returns nil, the snapshot is on disk. If it returns an
// error, the previous snapshot is still on disk. A file in another format is renamed instead of replaced, so that
// another version of the relay can still use it.
func (d *Dir) Write(s *cache.Snapshot) error {
	name := nameOf(&s.Header)
	err := d.write(func() error {
		if err := d.setAside(name); err != nil {
			return err
		}
		return d.replace(name, s.Encode)
	})
	if err != nil {
		d.failed.Add(1)
		return fmt.Errorf("write snapshot: %w", err)
	}
	d.written.Add(1)
	return d.write(func() error { return d.removeEvicted(name) })
}

// setAside renames a file that Load found in another format.
func (d *Dir) setAside(name string) error {
	if _, is := d.otherFormat[name]; !is {
		return nil
	}
	aside := fmt.Sprintf("%s.unread-%d%s", strings.TrimSuffix(name, suffix), time.Now().Unix(), suffix)
	if err := os.Rename(filepath.Join(d.path, name), filepath.Join(d.path, aside)); err != nil &&
		!errors.Is(err, fs.ErrNotExist) {
		return err
	}
	delete(d.otherFormat, name)
	return nil
}

// replace atomically replaces the file with a name by the output of write.
func (d *Dir) replace(name string, write func(io.Writer) error) (err error) {
	f, err := d.pending(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Cleanup()) }() // removes an unfinished file
	w := bufio.NewWriterSize(&syncWriter{disk: d.disk, file: f.File}, 64<<10)
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

// sync makes renamings and removals durable.
func (d *Dir) sync() error {
	dir, err := os.Open(d.path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Remove removes the snapshot of an origin and a group, if there is one. It keeps a file in another format.
func (d *Dir) Remove(h *cache.Header) error {
	name := nameOf(h)
	return d.write(func() error {
		if _, other := d.otherFormat[name]; other {
			return nil
		}
		err := os.Remove(filepath.Join(d.path, name))
		evictedErr := d.removeEvicted(name)
		if errors.Is(err, fs.ErrNotExist) {
			return evictedErr
		}
		return errors.Join(err, evictedErr, d.sync())
	})
}

// Load returns the valid snapshots that are not older than maxAge, the newest first. It logs each refused snapshot,
// and removes files that are older than maxAge.
func (d *Dir) Load(now time.Time, maxAge time.Duration) []*cache.Snapshot {
	var files []fs.DirEntry
	err := d.read(func() (err error) {
		files, err = os.ReadDir(d.path)
		return err
	})
	if isUnusable(err) {
		return nil // logged when it became known
	}
	if err != nil {
		d.refuse(Unreadable, d.path, err)
		return nil
	}
	var loaded []*cache.Snapshot
	oldest := now.Add(-maxAge)
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), suffix) {
			continue
		}
		var s *cache.Snapshot
		err := d.read(func() (err error) {
			s, err = d.load(f, oldest)
			return err
		})
		if err != nil {
			d.refuse(reasonOf(err), f.Name(), err)
			continue
		}
		if s == nil {
			continue
		}
		if s.Created.After(now) {
			s.Created = now // the clock was set back, so the age is unknown and counts from now on
		}
		loaded = append(loaded, s)
	}
	slices.SortStableFunc(loaded, func(a, b *cache.Snapshot) int {
		return cmp.Compare(b.Created.Unix(), a.Created.Unix())
	})
	return loaded
}

// load returns the snapshot in a file, or nil if it is that of an evicted view.
func (d *Dir) load(f fs.DirEntry, oldest time.Time) (*cache.Snapshot, error) {
	if strings.HasSuffix(f.Name(), evictedSuffix) {
		d.indexEvicted(f, oldest)
		return nil, nil
	}
	s, err := d.decode(f.Name(), oldest)
	if err != nil {
		if why := reasonOf(err); why == Version || why == Foreign {
			d.otherFormat[f.Name()] = struct{}{}
		}
		d.removeOld(f, oldest)
	}
	return s, err
}

// decode reads a file.
func (d *Dir) decode(name string, oldest time.Time) (*cache.Snapshot, error) {
	b, err := d.disk.readFile(filepath.Join(d.path, name))
	if err != nil {
		return nil, err
	}
	s, err := cache.DecodeSnapshot(b)
	switch {
	case err != nil:
		return nil, err
	case name != nameOf(&s.Header) && name != evictedName(nameOf(&s.Header)):
		return nil, fmt.Errorf("%w: file is a copy of %s", cache.ErrSnapshotForeign, nameOf(&s.Header))
	case s.Created.Before(oldest):
		return nil, fmt.Errorf("%w: created %s", errOld, s.Created.UTC().Format(time.RFC3339))
	}
	return s, nil
}

// removeOld removes a file that was last written before a time.
func (d *Dir) removeOld(f fs.DirEntry, oldest time.Time) {
	info, err := f.Info()
	if err == nil && info.Mode().IsRegular() && info.ModTime().Before(oldest) {
		err = os.Remove(filepath.Join(d.path, f.Name()))
	}
	if err != nil {
		d.log.Warn("unused snapshot not removed", slog.String("file", f.Name()), slog.Any("err", err))
	}
}

// Refuse counts and logs that a loaded snapshot does not match the configuration of the relay.
func (d *Dir) Refuse(s *cache.Snapshot, why error) { d.refuse(Mismatch, nameOf(&s.Header), why) }

// refuse counts and logs a snapshot that is not used.
func (d *Dir) refuse(r Reason, file string, err error) {
	d.refused[slices.Index(reasons, r)].Add(1)
	d.log.Warn("snapshot refused; its view starts cold",
		slog.String("file", file), slog.String("reason", string(r)), slog.Any("err", err))
}
