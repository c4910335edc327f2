//go:build unix

package snapshot_test

import (
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
)

// TestB42_AFullDiskLeavesTheLastOne: the process may write files of 64 KiB at most, which
// fails in the midst of a larger one as a full disk does. The limit holds for a process, so
// it is one of its own.
func TestB42_AFullDiskLeavesTheLastOne(t *testing.T) {
	const child = "TEST_SNAPSHOT_DIR"
	path := os.Getenv(child)
	if path == "" {
		path = t.TempDir()
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), child+"="+path)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v:\n%s", err, out)
		}
		open(t, path).expectOne(3) // also for whoever comes next
		return
	}
	signal.Ignore(syscall.SIGXFSZ)
	const most = 64 << 10
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: most, Max: most}); err != nil {
		t.Fatal(err)
	}
	d := open(t, path)
	d.write(taken(t, "a", 3, now))
	if err := d.Write(taken(t, "a", 5000, now)); err == nil {
		t.Error("a snapshot larger than there is room for was written")
	} else {
		t.Log(err)
	}
	if s := d.Stats(); s.Failures != 1 || s.Written != 1 {
		t.Errorf("stats %+v, want one failure", s)
	}
	if entries, err := os.ReadDir(path); err != nil || len(entries) != 2 {
		t.Errorf("the directory holds %v, %v, want the lock and one snapshot", entries, err)
	}
	d.expectOne(3)
}
