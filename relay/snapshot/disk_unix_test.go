//go:build unix

package snapshot_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/relay/snapshot"
)

// A caller waits ten seconds for a file system that hangs. Further ones do not wait, and nothing is lost once it answers.
func TestB42_AHangingDiskDelaysOneCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, t.TempDir())
		s := taken(t, "a", 3, now)
		d.write(s)
		release := d.Hang()
		for i, patience := range []time.Duration{10 * time.Second, 0, 0} {
			start := time.Now()
			err := d.Write(s)
			if took := time.Since(start); err == nil || !strings.Contains(err.Error(), "the file system does not answer") || took != patience {
				t.Errorf("call %d: %v after %v, want an error after %v", i, err, took, patience)
			}
		}
		if f := d.Stats().Fault; f != "the file system does not answer for 10s" || d.Stats().Failures != 3 {
			t.Errorf("the stats have the fault %q and %d failures", f, d.Stats().Failures)
		}
		if s := d.Recall(&s.Header, now, time.Hour); s != nil || d.Stats().Refused[snapshot.Unreadable] != 0 {
			t.Errorf("recalled %v, and counted a refused snapshot", s)
		}
		release()
		synctest.Wait()
		if f := d.Stats().Fault; f != "" || !strings.Contains(d.log.String(), "snapshot directory usable again") {
			t.Errorf("the stats have the fault %q; the log:\n%s", f, d.log)
		}
		d.expectOne(3)
		check.OK(t, d.Close())
	})
}

// Close does not wait for ever.
func TestB42_AHangingDiskIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, t.TempDir())
		release := d.Hang()
		check.OK(t, d.Close())
		release()
		if err := d.Write(taken(t, "a", 1, now)); err == nil {
			t.Error("a closed directory was written to")
		}
	})
}

// A setting that is wrong is an error at the start, and a file system that fails is not. What an earlier process wrote is kept
// until the directory is usable, also by a relay that could not read it.
func TestB42_ADirectoryThatFailsAtTheStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir")
	before := open(t, path)
	before.write(taken(t, "a", 3, now))
	check.OK(t, before.WriteDecisions(snapshot.Decisions{Freezes: []snapshot.Freeze{{Origin: "default", By: "x"}}}))
	check.OK(t, before.Close())
	check.OK(t, os.Rename(path, path+".away"))
	check.OK(t, os.WriteFile(path, nil, 0o600))

	d := open(t, path)
	if loaded := d.Load(now, time.Hour); len(loaded) != 0 || d.Stats().Fault == "" {
		t.Errorf("loaded %v, with the fault %q", loaded, d.Stats().Fault)
	}
	if _, err := d.Decisions(); err == nil {
		t.Error("decisions without a directory")
	}
	check.OK(t, os.Remove(path))
	check.OK(t, os.Rename(path+".away", path))
	check.OK(t, d.WriteDecisions(snapshot.Decisions{}))
	if f := d.Stats().Fault; f != "" {
		t.Errorf("the fault is %q", f)
	}
	check.OK(t, d.WriteDecisions(snapshot.Decisions{Freezes: []snapshot.Freeze{{Origin: "default", By: "y"}}}))
	kept := check.Must(filepath.Glob(filepath.Join(path, "decisions.json.unread-*")))
	if len(kept) != 1 || !strings.Contains(string(check.Must(os.ReadFile(kept[0]))), `"by": "x"`) {
		t.Errorf("the decisions of the earlier process are in %v", kept)
	}
	d.expectOne(3)
}

// Files that are not regular, or too large, are not read.
func TestB42_OnlyRegularFilesAreRead(t *testing.T) {
	path := t.TempDir()
	check.OK(t, syscall.Mkfifo(filepath.Join(path, "pipe.snapshot"), 0o600))
	large := check.Must(os.Create(filepath.Join(path, "large.snapshot")))
	check.OK(t, errors.Join(large.Truncate(64<<30), large.Close()))
	d := open(t, path)
	if loaded := d.Load(now, time.Hour); len(loaded) != 0 || d.Stats().Refused[snapshot.Unreadable] != 2 {
		t.Errorf("loaded %v, refused %v; want two unreadable files", loaded, d.Stats().Refused)
	}
}
