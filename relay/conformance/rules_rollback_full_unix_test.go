//go:build unix

package conformance_test

import (
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
)

// fill limits the size of files that this process writes, so that larger ones fail in the middle, as on a full
// disk.
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

// onFullDisk runs the test in its own process, since the file size limit applies to a process. It reports whether
// this is that process.
func onFullDisk(t *testing.T) bool {
	t.Helper()
	const child = "TEST_FULL_DISK"
	if os.Getenv(child) != "" {
		signal.Ignore(syscall.SIGXFSZ)
		return true
	}
	// Not in parallel with other tests: until the child runs its own program, it has their locked files open.
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), child+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	return false
}

// With a full disk, a rollback applies to clients, and the log and status report that it will not survive a
// restart. Once there is room, the decision is written without another command.
func TestH09_AFullDiskDoesNotUndoARollback(t *testing.T) {
	if !onFullDisk(t) {
		return
	}
	restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
		c, good := r.turnsBad(v)

		fill(t, 16)
		defer fill(t, ^uint64(0))
		if answer := r.rollback("1m"); !strings.Contains(answer.Warning, "does not survive a restart") ||
			answer.Origins[0].Freeze.SurvivesRestart {
			t.Errorf("rollback: %+v, want a warning that it does not survive a restart", answer)
		}
		r.expectResources(c, typeCDS, "a", "b")
		r.o.Put(relaytest.Cluster("later"))
		time.Sleep(30 * time.Minute)
		r.expectResources(c, typeCDS, "a", "b")
		if f := r.frozen(); f == nil || f.SurvivesRestart {
			t.Errorf("status: %+v, want a rollback that does not survive a restart", f)
		}
		if n := r.Log.Count("operator decisions not written"); n == 0 || n > 7 {
			t.Errorf("logged %d failed writes of the decision, want one every five minutes", n)
		}
		if n := r.Log.Count("snapshot not written"); n == 0 || n > 10 {
			t.Errorf("logged %d failed writes of a snapshot, want three, and one every five minutes", n)
		}

		fill(t, ^uint64(0))
		sleep(20 * time.Minute)
		for _, line := range []string{"snapshots written again", "operator decisions written again"} {
			if n := r.Log.Count(line); n != 1 {
				t.Errorf("once there is room: logged %d times %q, want once", n, line)
			}
		}
		if f := r.frozen(); f == nil || !f.SurvivesRestart {
			t.Errorf("once there is room: %+v, want a rollback that survives a restart", f)
		}
		r.stop()
		r.start()
		c.Reconnect(r.Conn())
		time.Sleep(time.Minute)
		r.expectResources(c, typeCDS, "a", "b")
		if c.State().Digest(typeCDS, "a") != good {
			t.Error("after a restart, the client has content that was rolled back")
		}
	}, operated)
}

// With a full disk, a thaw applies to clients, and the operator is warned that it will not survive a restart. New
// generations are kept in memory. Once there is room, both are written without another command.
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
		if answer := r.rollback("1m"); answer.Warning != "" {
			t.Errorf("rollback: %+v, want one that survives a restart", answer)
		}
		r.expectResources(c, typeCDS, "a")
		sleep(time.Minute)

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
		sleep(time.Minute)
		if n := r.Log.Count("operator decisions not written"); n != 1 {
			t.Errorf("logged %d failed writes of the decision, want 1", n)
		}
		if s := r.SnapshotStats(); s.Failures == 0 {
			t.Errorf("got the snapshot status %+v, want failures", s)
		}
		known := generationsOf(t, r.running)
		if len(known) != 6 {
			t.Errorf("with a full disk, got %d generations, want 6: %+v", len(known), known)
		}

		fill(t, ^uint64(0))
		sleep(settled)
		r.stop()
		r.start()
		if f := r.frozen(); f != nil {
			t.Errorf("after a restart: %+v, want the relay thawed", f)
		}
		c.Reconnect(r.Conn())
		time.Sleep(time.Minute)
		r.expectResources(c, typeCDS, "a", "b", "c", "d")
		restored := generationsOf(t, r.running)
		if len(restored) != len(known) {
			t.Fatalf("after a restart, got %d generations, want %d: %+v", len(restored), len(known), restored)
		}
		for i, g := range known {
			if restored[i].Generation != g.Generation {
				t.Errorf("after a restart, generation %d is %s, want %s", i, restored[i].Generation, g.Generation)
			}
		}
		if answer := r.rollback(known[2].Generation); answer.Warning != "" {
			t.Errorf("rollback after a restart: %+v", answer)
		}
		r.expectResources(c, typeCDS, "a", "b")
	}, operated)
}
