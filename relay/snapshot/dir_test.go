package snapshot_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/snapshot"
)

// now is the time of the tests.
var now = time.Unix(1_800_000_000, 0)

// taken returns a snapshot of a group with n clusters.
func taken(t testing.TB, group string, n int, at time.Time) *cache.Snapshot {
	t.Helper()
	_, w := cache.New(cache.Config{})
	u := wire.Update{TypeURL: wire.ClusterType}
	for i := range n {
		r, err := wire.NewResource(wire.ClusterType, fmt.Sprint("c", i), "1", nil)
		if err != nil {
			t.Fatal(err)
		}
		u.Resources = append(u.Resources, r)
	}
	w.Apply(cache.Wildcard, u)
	w.SetPhase(wire.ClusterType, cache.Confirmed)
	s, _ := w.Snapshot(false)
	s.Header = cache.Header{Origin: "default", Targets: []string{"a:1"}, Group: group, Created: at}
	return s
}

// clusters returns the number of clusters in a snapshot.
func clusters(s *cache.Snapshot) int { return len(s.Types[0].Wildcard.Entries) }

// opened is an open directory with its log.
type opened struct {
	*snapshot.Dir
	t    testing.TB
	path string
	log  *bytes.Buffer
}

func open(t testing.TB, path string) *opened {
	t.Helper()
	d := &opened{t: t, path: path, log: new(bytes.Buffer)}
	var err error
	if d.Dir, err = snapshot.Open(path, slog.New(slog.NewTextHandler(d.log, nil))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() }) // the test may have done so
	return d
}

// write writes a snapshot and returns the path of its file.
func (d *opened) write(s *cache.Snapshot) string {
	d.t.Helper()
	before := d.files()
	if err := d.Write(s); err != nil {
		d.t.Fatal(err)
	}
	for path := range d.files() {
		if !before[path] {
			return path
		}
	}
	return ""
}

func (d *opened) files() map[string]bool {
	d.t.Helper()
	found, err := filepath.Glob(filepath.Join(d.path, "*.snapshot"))
	if err != nil {
		d.t.Fatal(err)
	}
	files := make(map[string]bool)
	for _, path := range found {
		files[path] = true
	}
	return files
}

// expectOne fails the test unless exactly one snapshot is loaded, with want clusters.
func (d *opened) expectOne(want int) {
	d.t.Helper()
	loaded := d.Load(now, time.Hour)
	if len(loaded) != 1 || clusters(loaded[0]) != want {
		d.t.Errorf("loaded %d snapshots (%v), want one of %d clusters:\n%s", len(loaded), loaded, want, d.log)
	}
}

// TestB42_LastWrittenSnapshotIsLoaded checks that Load returns the last written snapshot of each group, the newest
// first.
func TestB42_LastWrittenSnapshotIsLoaded(t *testing.T) {
	d := open(t, filepath.Join(t.TempDir(), "dir"))
	d.write(taken(t, "a", 1, now.Add(-2*time.Minute)))
	d.write(taken(t, "b", 2, now.Add(-time.Minute)))
	d.write(taken(t, "a", 3, now))
	loaded := d.Load(now, time.Hour)
	if len(loaded) != 2 || loaded[0].Group != "a" || clusters(loaded[0]) != 3 || loaded[1].Group != "b" {
		t.Fatalf("loaded %v, want 3 clusters of a, then b", loaded)
	}
	if s := d.Stats(); s.Written != 3 || s.Failures != 0 {
		t.Errorf("stats %+v", s)
	}
	if err := errors.Join(d.Remove(&loaded[0].Header), d.Remove(&loaded[0].Header)); err != nil {
		t.Errorf("second Remove: %v", err)
	}
	d.expectOne(2)
}

// TestB42_FilesAreReadableByOwnerOnly checks the mode of files with a permissive umask.
func TestB42_FilesAreReadableByOwnerOnly(t *testing.T) {
	d := open(t, filepath.Join(t.TempDir(), "dir"))
	d.write(taken(t, "a", 1, now))
	err := filepath.WalkDir(d.path, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has the mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestB42_DirectoryOfOthersIsRefused checks that Open refuses a directory that other users own or may write to,
// because clients would receive what these users write. The group may write to it.
func TestB42_DirectoryOfOthersIsRefused(t *testing.T) {
	for _, mode := range []os.FileMode{0o700, 0o770, 0o755, os.ModeSetgid | 0o775, 0o777, 0o702, os.ModeSticky | 0o777} {
		dir := t.TempDir()
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		d, err := snapshot.Open(dir, nil)
		if mode&0o002 == 0 {
			if err != nil {
				t.Errorf("mode %v: %v", mode, err)
			} else if err := d.Close(); err != nil {
				t.Error(err)
			}
			continue
		}
		if !errors.Is(err, snapshot.ErrNotOwned) || !strings.Contains(err.Error(), "o-w") {
			t.Errorf("mode %v: %v, want ErrNotOwned and a remedy", mode, err)
		}
	}
	dir := t.TempDir()
	if err := os.Chown(dir, 12345, -1); err != nil {
		t.Logf("only root gives a directory away: %v", err)
		return
	}
	if os.Geteuid() == 0 {
		if _, err := snapshot.Open(dir, nil); !errors.Is(err, snapshot.ErrNotOwned) ||
			!strings.Contains(err.Error(), "user 12345") {
			t.Errorf("a directory of another user: %v, want ErrNotOwned and its owner", err)
		}
	}
}

// TestB42_DirectoryIsLocked checks that a directory is locked until Close. Check reports the lock also if the directory
// belongs to another user, such as that of the relay beside which root runs it.
func TestB42_DirectoryIsLocked(t *testing.T) {
	path := t.TempDir()
	first := open(t, path)
	if _, err := snapshot.Open(path, nil); !errors.Is(err, snapshot.ErrLocked) {
		t.Fatalf("Open = %v, want %v", err, snapshot.ErrLocked)
	}
	if err := snapshot.Check(path); !errors.Is(err, snapshot.ErrLocked) {
		t.Errorf("Check = %v, want %v", err, snapshot.ErrLocked)
	}
	if err := os.Chown(path, 12345, -1); err != nil {
		t.Logf("only root gives a directory away: %v", err)
	} else {
		if err := snapshot.Check(path); os.Geteuid() == 0 && !errors.Is(err, snapshot.ErrLocked) {
			t.Errorf("Check of a locked directory of another user = %v, want %v", err, snapshot.ErrLocked)
		}
		if err := os.Chown(path, os.Geteuid(), -1); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := snapshot.Check(path); err != nil {
		t.Errorf("Check of an unlocked directory: %v", err)
	}
	open(t, path)
}

// TestB42_RefusedSnapshotsAreLogged checks that each refused snapshot is logged once and counted, and does not fail
// Load.
func TestB42_RefusedSnapshotsAreLogged(t *testing.T) {
	edit := func(f func(b []byte) []byte) func(t *testing.T, d *opened, path string) {
		return func(t *testing.T, _ *opened, path string) {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, f(b), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	tests := []struct {
		name string
		harm func(t *testing.T, d *opened, path string)
		want snapshot.Reason
	}{
		{"truncated", edit(func(b []byte) []byte { return b[:len(b)/2] }), snapshot.Damaged},
		{"empty", edit(func([]byte) []byte { return nil }), snapshot.Foreign},
		{"a flipped bit", edit(func(b []byte) []byte { b[len(b)/2] ^= 4; return b }), snapshot.Damaged},
		{"another file", edit(func([]byte) []byte { return []byte("hello, world") }), snapshot.Foreign},
		{"a newer version", edit(func(b []byte) []byte { b[len("tender snapshot\n")+3]++; return b }), snapshot.Version},
		{"a copy of another one", func(t *testing.T, d *opened, path string) {
			if err := os.Rename(path, filepath.Join(d.path, strings.Repeat("0", 32)+".snapshot")); err != nil {
				t.Fatal(err)
			}
		}, snapshot.Foreign},
		{"a directory", func(t *testing.T, _ *opened, path string) {
			if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
				t.Fatal(err)
			}
		}, snapshot.Unreadable},
		{"too old", func(t *testing.T, d *opened, _ string) { d.write(taken(t, "a", 1, now.Add(-2*time.Hour))) },
			snapshot.Old},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := open(t, t.TempDir())
			d.write(taken(t, "b", 2, now))
			tt.harm(t, d, d.write(taken(t, "a", 1, now)))
			d.log.Reset()
			d.expectOne(2)
			if lines := strings.Count(d.log.String(), "\n"); lines != 1 ||
				!strings.Contains(d.log.String(), "reason="+string(tt.want)+" err=") {
				t.Errorf("the log has %d lines, want one with the reason %q:\n%s", lines, tt.want, d.log)
			}
			for reason, n := range d.Stats().Refused {
				if (reason == tt.want) != (n == 1) {
					t.Errorf("%d snapshots were refused as %s, want only %s", n, reason, tt.want)
				}
			}
		})
	}
}

// TestB42_CrashDuringWriteKeepsPreviousSnapshot checks that the unfinished file of a crashed process is removed, and
// that the previous snapshot is loaded.
func TestB42_CrashDuringWriteKeepsPreviousSnapshot(t *testing.T) {
	path := t.TempDir()
	d := open(t, path)
	whole := d.write(taken(t, "a", 1, now))
	b, err := os.ReadFile(d.write(taken(t, "b", 1, now)))
	if err != nil {
		t.Fatal(err)
	}
	unfinished := filepath.Join(path, "."+filepath.Base(whole)+"123")
	if err := errors.Join(d.Close(), os.WriteFile(unfinished, b[:len(b)/2], 0o600)); err != nil {
		t.Fatal(err)
	}
	again := open(t, path)
	if loaded := again.Load(now, time.Hour); len(loaded) != 2 {
		t.Errorf("loaded %d snapshots, want 2:\n%s", len(loaded), again.log)
	}
	if _, err := os.Stat(unfinished); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the unfinished file was not removed: %v", err)
	}
}

// TestB42_OldFilesAreRemoved checks that Load removes old files, so that former groups do not fill the disk.
func TestB42_OldFilesAreRemoved(t *testing.T) {
	d := open(t, t.TempDir())
	path := d.write(taken(t, "a", 1, now.Add(-2*time.Hour)))
	for _, written := range []time.Time{now.Add(-time.Minute), now.Add(-2 * time.Hour)} {
		if err := os.Chtimes(path, written, written); err != nil {
			t.Fatal(err)
		}
		d.Load(now, time.Hour)
		if _, err := os.Stat(path); (err == nil) != written.After(now.Add(-time.Hour)) {
			t.Errorf("written %v ago: %v", now.Sub(written), err)
		}
	}
}

// TestH14_SnapshotsOfALaterTime checks that the age of a snapshot from the future, as after the clock was set back,
// counts from its load.
func TestH14_SnapshotsOfALaterTime(t *testing.T) {
	d := open(t, t.TempDir())
	d.write(taken(t, "later", 1, now.Add(24*time.Hour)))
	d.write(taken(t, "earlier", 2, now.Add(-time.Minute)))
	loaded := d.Load(now, time.Hour)
	if len(loaded) != 2 || loaded[0].Group != "later" || !loaded[0].Created.Equal(now) ||
		now.Sub(loaded[1].Created).Round(time.Minute) != time.Minute {
		t.Errorf("loaded %v, want one of now and one of a minute ago", loaded)
	}
}

// TestB42_OtherFormatsAreNotDeleted checks that a snapshot in an unknown format is not loaded, and that neither a new
// snapshot of the view nor the removal of its group deletes the file.
func TestB42_OtherFormatsAreNotDeleted(t *testing.T) {
	for _, newer := range []bool{false, true} {
		t.Run(fmt.Sprintf("newer=%v", newer), func(t *testing.T) {
			d := open(t, t.TempDir())
			s := taken(t, "a", 1, now)
			path, other := d.write(s), []byte(`{"format": 9}`)
			if newer {
				var err error
				if other, err = os.ReadFile(path); err != nil {
					t.Fatal(err)
				}
				other[len("tender snapshot\n")+3]++
			}
			if err := errors.Join(os.WriteFile(path, other, 0o600), os.Chtimes(path, now, now)); err != nil {
				t.Fatal(err)
			}
			if loaded := d.Load(now, time.Hour); len(loaded) != 0 {
				t.Fatalf("loaded %v", loaded)
			}
			kept := func(n int) {
				t.Helper()
				found := 0
				for path := range d.files() {
					b, err := os.ReadFile(path)
					if err != nil {
						t.Fatal(err)
					}
					if bytes.Equal(b, other) {
						found++
					}
				}
				if found != 1 || len(d.files()) != n {
					t.Errorf("%d of the files %v have the former content, want one of %d", found, d.files(), n)
				}
			}
			if err := d.Remove(&s.Header); err != nil {
				t.Fatal(err)
			}
			kept(1)
			d.write(s)
			kept(2)
			d.expectOne(1)
			d.write(taken(t, "a", 3, now))
			kept(2)
			d.expectOne(3)
			if err := d.Remove(&s.Header); err != nil {
				t.Fatal(err)
			}
			kept(1)
		})
	}
}
