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

// onFullDisk runs a test in a process of its own, since the limit on the size of files holds for a process. It
// reports whether this is that process.
func onFullDisk(t *testing.T) bool {
	t.Helper()
	const child = "TEST_FULL_DISK"
	if os.Getenv(child) != "" {
		signal.Ignore(syscall.SIGXFSZ)
		return true
	}
	t.Parallel()
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), child+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	return false
}

// TestH09_AFullDiskDoesNotUndoARollback: with a full disk, clients are served the earlier generation all the same, and operators
// learn that a restart would end that. Once there is room, the decision is written without another command.
func TestH09_AFullDiskDoesNotUndoARollback(t *testing.T) {
	if !onFullDisk(t) {
		return
	}
	restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
		c, good := r.turnsBad(v)

		fill(t, 16)
		defer fill(t, ^uint64(0))
		if answer := rollsBack(t, r.running, "1m"); !strings.Contains(answer.Warning, "does not survive a restart") || answer.Origins[0].Freeze.SurvivesRestart {
			t.Errorf("rollback: %+v, want a warning that it does not survive a restart", answer)
		}
		r.expectResources(c, typeCDS, "a", "b")
		r.o.Put(relaytest.Cluster("later"))
		time.Sleep(time.Hour)
		r.expectResources(c, typeCDS, "a", "b")
		if f := r.frozen(); f == nil || f.SurvivesRestart {
			t.Errorf("status: %+v, want a rollback that does not survive a restart", f)
		}
		if n := r.Log.Count("operators' decisions not written"); n == 0 || n > 13 {
			t.Errorf("it was logged %d times that the decision is not written, want once each five minutes", n)
		}
		if n := r.Log.Count("snapshot not written"); n == 0 || n > 16 {
			t.Errorf("it was logged %d times that a snapshot is not written, want three times, and once each five minutes", n)
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
		r.expectResources(c, typeCDS, "a", "b")
		if c.State().Digest(typeCDS, "a") != good {
			t.Error("after a restart, the client has the content that was rolled back")
		}
	}, operated)
}

// TestH09_AThawOnAFullDisk: with a full disk, clients are served the configuration of the control plane all the same,
// and the operator learns that a restart would undo the thaw. Generations of that time are kept in memory. Once there
// is room, both are written without another command.
func TestH09_AThawOnAFullDisk(t *testing.T) {
	if !onFullDisk(t) {
		return
	}
	restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
		r.o.Put(relaytest.Cluster("a"))
		c := r.following(v, typeCDS)
		r.expectResources(c, typeCDS, "a")
		time.Sleep(time.Minute)
		r.o.Put(relaytest.Cluster("b"))
		r.expectResources(c, typeCDS, "a", "b")
		time.Sleep(30 * time.Second)
		if answer := rollsBack(t, r.running, "1m"); answer.Warning != "" {
			t.Errorf("rollback: %+v, want one that survives a restart", answer)
		}
		r.expectResources(c, typeCDS, "a")
		time.Sleep(time.Minute)
		synctest.Wait()

		fill(t, 16)
		defer fill(t, ^uint64(0))
		answer := r.thaw()
		if !strings.Contains(answer.Warning, "does not survive a restart") || answer.Origins[0].Frozen {
			t.Errorf("thaw: %+v, want a warning that it does not survive a restart", answer)
		}
		r.expectResources(c, typeCDS, "a", "b")
		for _, name := range []string{"c", "d"} {
			time.Sleep(time.Minute)
			r.o.Put(relaytest.Cluster(name))
		}
		r.expectResources(c, typeCDS, "a", "b", "c", "d")
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := r.Log.Count("operators' decisions not written"); n != 1 {
			t.Errorf("it was logged %d times that the decision is not written, want once", n)
		}
		if s := r.SnapshotStats(); s.Failures == 0 {
			t.Errorf("snapshots %+v, want failures", s)
		}
		known := generationsOf(t, r.running)
		if len(known) != 6 {
			t.Errorf("with a full disk, %d generations, want 6: %+v", len(known), known)
		}

		fill(t, ^uint64(0))
		time.Sleep(time.Hour)
		synctest.Wait()
		r.stop()
		r.start()
		if f := r.frozen(); f != nil {
			t.Errorf("after a restart: %+v, want that the thaw still counts", f)
		}
		c.Reconnect(r.Conn())
		time.Sleep(time.Minute)
		r.expectResources(c, typeCDS, "a", "b", "c", "d")
		restored := generationsOf(t, r.running)
		if len(restored) != len(known) {
			t.Fatalf("after a restart, %d generations, want %d: %+v", len(restored), len(known), restored)
		}
		for i, g := range known {
			if restored[i].Generation != g.Generation {
				t.Errorf("after a restart, generation %d is %s, want %s", i, restored[i].Generation, g.Generation)
			}
		}
		if answer := rollsBack(t, r.running, known[2].Generation); answer.Warning != "" {
			t.Errorf("rollback after a restart: %+v", answer)
		}
		r.expectResources(c, typeCDS, "a", "b")
	}, operated)
}
