//go:build unix

package snapshot_test

import (
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
)

// TestB42_FullDiskKeepsPreviousSnapshot runs a process with a file size limit of 64 KiB, so that a write fails midway,
// as on a full disk. The limit applies to a whole process, so the test starts another one.
func TestB42_FullDiskKeepsPreviousSnapshot(t *testing.T) {
	const child = "TEST_SNAPSHOT_DIR"
	path := os.Getenv(child)
	if path == "" {
		path = t.TempDir()
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), child+"="+path)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v:\n%s", err, out)
		}
		open(t, path).expectOne(3) // also for the next process
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
		t.Error("a snapshot above the file size limit was written")
	} else {
		t.Log(err)
	}
	if s := d.Stats(); s.Failures != 1 || s.Written != 1 {
		t.Errorf("stats %+v, want one failure", s)
	}
	if entries, err := os.ReadDir(path); err != nil || len(entries) != 2 {
		t.Errorf("the directory has %v, %v, want the lock and one snapshot", entries, err)
	}
	d.expectOne(3)
}
