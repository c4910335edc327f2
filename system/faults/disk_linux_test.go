package faults_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
)

// hang mounts a file system that never answers over a directory, until the test ends or release is called: a FUSE file system
// without a server.
func hang(t *testing.T, dir string) (release func()) {
	t.Helper()
	fd, err := syscall.Open("/dev/fuse", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("a file system that hangs needs FUSE: %v", err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40700,user_id=%d,group_id=%d", fd, os.Getuid(), os.Getgid())
	if err := syscall.Mount("hangs", dir, "fuse", syscall.MS_NOSUID|syscall.MS_NODEV, options); err != nil {
		_ = syscall.Close(fd)
		t.Skipf("mounting needs root: %v", err)
	}
	released := false
	release = func() {
		if released {
			return
		}
		released = true
		if err := errors.Join(syscall.Unmount(dir, syscall.MNT_DETACH), syscall.Close(fd)); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(release)
	return release
}

// TestB42_ReplicaWithAFullDisk: a relay whose disk is full takes the state of a peer and serves it.
func TestB42_ReplicaWithAFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mount("full", dir, "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, "size=4k,mode=0700"); err != nil {
		t.Skipf("mounting needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	tier := newReplicaTier(t, newControlPlane(t).addr)
	served(t, 1000, tier.client(tier.start("first"), "before"))
	tier.cut()
	second := tier.start("second", "TENDER_SNAPSHOT_DIR="+dir)
	served(t, 1000, tier.client(second, "after"))
	if s := statusOf(t, second).Relay.Taken; s == nil || s.Views == 0 {
		t.Errorf("status has %+v, want the state of the peer", s)
	}
}

// awaitFault waits until the status and the metrics of a relay say that its directory is not usable for a reason.
func (r *relayProcess) awaitFault(reason string) {
	r.tb.Helper()
	r.Await("fault of the directory", func() error {
		var status admin.Status
		if err := json.Unmarshal(r.page("/api/v1/status"), &status); err != nil {
			return err
		}
		if got := status.Relay.SnapshotFault; !strings.Contains(got, reason) {
			return fmt.Errorf("the status has the fault %q, want %q", got, reason)
		}
		if !strings.Contains(string(r.page("/metrics")), "tender_snapshots_unusable 1\n") {
			return errors.New("tender_snapshots_unusable is not 1")
		}
		return nil
	})
}

// diskWorld is an origin with a cluster, and the variables of a relay with a directory of snapshots.
func diskWorld(t *testing.T) (origin *relaytest.Origin, dir string, env []string) {
	t.Helper()
	origin = relaytest.NewOrigin(t, relaytest.OriginOptions{})
	origin.Set(relaytest.ClusterType, "c", relaytest.Cluster("c"), "1")
	dir = filepath.Join(t.TempDir(), "snapshots")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return origin, dir, []string{
		"TENDER_ORIGIN=" + origin.Addr(), "TENDER_SNAPSHOT_DIR=" + dir, "TENDER_NODE_ID=tender/test", "TENDER_DRAIN=1s",
	}
}

// joins connects a client and waits for its clusters.
func (r *relayProcess) joins(t *testing.T, id string, clusters ...string) *relaytest.Client {
	t.Helper()
	c := r.client(relaytest.Delta, id)
	c.Subscribe(relaytest.ClusterType)
	c.WaitState(t.Context(), has(clusters...))
	return c
}

// has reports whether a client has these clusters.
func has(clusters ...string) func(relaytest.State) bool {
	return func(s relaytest.State) bool {
		return slices.Equal(slices.Sorted(maps.Keys(s[relaytest.ClusterType])), clusters)
	}
}

// TestB42_TheDiskHangs: the file system of the snapshots stops answering. Clients are served, an operator's command says that
// it does not survive a restart, the status answers, and SIGTERM ends the relay.
func TestB42_TheDiskHangs(t *testing.T) {
	t.Parallel()
	origin, dir, env := diskWorld(t)
	r := serve(t, env...)
	c := r.joins(t, "one", "c")
	r.awaitSnapshot(dir)
	hang(t, dir)
	origin.Set(relaytest.ClusterType, "d", relaytest.Cluster("d"), "1")
	c.WaitState(t.Context(), has("c", "d"))
	r.joins(t, "two", "c", "d")
	if out := r.output("freeze", "--reason", "test"); !strings.Contains(out, "does not survive a restart") ||
		!strings.Contains(out, "the file system does not answer") {
		t.Errorf("tender freeze printed %q, want a warning with the reason", out)
	}
	r.awaitFault("the file system does not answer")
	r.AwaitLine(0, "snapshot directory not usable; the relay serves without it and tries again")
	r.Signal(syscall.SIGTERM)
	if code := r.Wait(); code != 0 {
		t.Errorf("the relay ended with %d", code)
	}
}

// TestB42_TheDiskHangsAtTheStart: the relay serves, and writes snapshots once the file system answers.
func TestB42_TheDiskHangsAtTheStart(t *testing.T) {
	t.Parallel()
	_, dir, env := diskWorld(t)
	release := hang(t, dir)
	r := serve(t, env...)
	r.joins(t, "one", "c")
	r.awaitFault("the file system does not answer")
	release()
	r.AwaitLine(0, "snapshot directory usable again")
	r.awaitSnapshot(dir)
	if metrics := string(r.page("/metrics")); !strings.Contains(metrics, "tender_snapshots_unusable 0\n") {
		t.Error("tender_snapshots_unusable is not 0")
	}
}

// TestB42_ADirectoryThatCannotBeWritten: a relay reads its snapshots from a file system that is read-only, and serves them
// without an origin.
func TestB42_ADirectoryThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	origin, dir, env := diskWorld(t)
	r := serve(t, env...)
	r.joins(t, "one", "c")
	r.awaitSnapshot(dir)
	r.Signal(syscall.SIGTERM)
	r.Wait()
	origin.Stop()
	if err := syscall.Mount(dir, dir, "", syscall.MS_BIND, ""); err != nil {
		t.Skipf("mounting needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := syscall.Mount("", dir, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	r = serve(t, env...)
	r.joins(t, "one", "c")
	r.awaitFault("read-only file system")
}

// TestB42_FilesThatAreNoSnapshots: a pipe does not block the relay, and a file of 64 GiB does not use its memory.
func TestB42_FilesThatAreNoSnapshots(t *testing.T) {
	t.Parallel()
	_, dir, env := diskWorld(t)
	for _, pipe := range []string{"pipe.snapshot", "decisions.json"} {
		if err := syscall.Mkfifo(filepath.Join(dir, pipe), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	large, err := os.Create(filepath.Join(dir, "large.snapshot"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(large.Truncate(64<<30), large.Close()); err != nil {
		t.Fatal(err)
	}
	r := serve(t, env...)
	r.joins(t, "one", "c")
	for _, want := range []string{
		`"file":"pipe.snapshot","reason":"unreadable","err":"pipe.snapshot: not a regular file"`,
		`"file":"large.snapshot","reason":"unreadable","err":"large.snapshot: 68719476736 bytes, allowed are `,
		"read decisions.json: decisions.json: not a regular file",
	} {
		r.AwaitLine(0, want)
	}
	r.awaitSnapshot(dir)
}
