//go:build unix

package conformance_test

import (
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
)

// fill has this process write files of so many bytes at most, so that larger ones fail in their midst as on a full disk.
func fill(t *testing.T, bytes uint64) {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	limit.Cur = min(bytes, limit.Max)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
}

// TestH09_AFullDiskDoesNotUndoARollback: with a full disk, clients are served the earlier generation all the same, and operators
// learn that a restart would end that. Once there is room, the decision is written without another command. The limit on the
// size of files holds for a process, so the test is one of its own.
func TestH09_AFullDiskDoesNotUndoARollback(t *testing.T) {
	const child = "TEST_FULL_DISK"
	if os.Getenv(child) == "" {
		t.Parallel()
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), child+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v:\n%s", err, out)
		}
		return
	}
	signal.Ignore(syscall.SIGXFSZ)
	restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
		r.o.Put(relaytest.Cluster("a"), relaytest.Cluster("b"))
		c := r.following(v, streamCDS)
		r.has(c, streamCDS, "a", "b")
		good := c.State().Digest(streamCDS, "a")
		time.Sleep(time.Minute)
		r.o.Apply(func(tx *relaytest.Tx) { tx.Put(relaytest.Cluster("a", "bad"), relaytest.Cluster("c")) })
		r.has(c, streamCDS, "a", "b", "c")
		time.Sleep(30 * time.Second)
		synctest.Wait()

		fill(t, 16)
		defer fill(t, ^uint64(0))
		if answer := rollsBack(t, r.running, "1m"); !strings.Contains(answer.Warning, "does not survive a restart") || answer.Origins[0].Freeze.SurvivesRestart {
			t.Errorf("rollback: %+v, want a warning that it does not survive a restart", answer)
		}
		r.has(c, streamCDS, "a", "b")
		r.o.Put(relaytest.Cluster("later"))
		time.Sleep(time.Hour)
		r.has(c, streamCDS, "a", "b")
		if f := r.frozen(); f == nil || f.SurvivesRestart {
			t.Errorf("status: %+v, want a rollback that does not survive a restart", f)
		}
		if n := r.Log.Count("operators' decisions not written"); n == 0 || n > 13 {
			t.Errorf("it was logged %d times that the decision is not written, want once each five minutes", n)
		}

		fill(t, ^uint64(0))
		time.Sleep(time.Hour)
		synctest.Wait()
		if f := r.frozen(); f == nil || !f.SurvivesRestart {
			t.Errorf("with room again: %+v, want a rollback that survives a restart", f)
		}
		r.stop()
		r.start()
		c.Reconnect(r.Conn())
		time.Sleep(time.Minute)
		r.has(c, streamCDS, "a", "b")
		if c.State().Digest(streamCDS, "a") != good {
			t.Error("after a restart, the client has the content that was rolled back")
		}
	}, operated)
}
