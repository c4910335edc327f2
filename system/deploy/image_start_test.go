package deploy_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is the timeout for actions of a process that normally take no time.
const patience = 30 * time.Second

// readOnly is a script that makes its first argument a root in a new mount namespace, in which only
// /var/lib/tender is writable. It runs its other arguments there as the image's user.
const readOnly = `
	mount --bind "$0" "$0"
	mount -o remount,bind,ro "$0"
	mount -t tmpfs -o uid=65532,gid=65532,mode=700 none "$0/var/lib/tender"
	exec chroot --userspec=65532:65532 --groups= "$0" "$@"`

// inImage returns a command that runs tender with args in an unpacked image, as the image's user. If the system
// does not permit mounts, the root is not mounted read-only; its files still belong to root.
func inImage(ctx context.Context, t *testing.T, root string, env []string, args ...string) *exec.Cmd {
	t.Helper()
	args = append([]string{"/usr/local/bin/tender"}, args...)
	line := append([]string{"unshare", "--mount", "--", "sh", "-euc", readOnly, root}, args...)
	if out, err := exec.CommandContext(ctx, "unshare", "--mount", "true").CombinedOutput(); err != nil {
		t.Logf("without a root that is mounted read-only: %v %s", err, out)
		line = append([]string{"chroot", "--userspec=65532:65532", "--groups=", root}, args...)
	}
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	return cmd
}

// testVersion checks that the binary of the image prints its version, its commit and its date.
func testVersion(t *testing.T, root, version string) {
	out, err := inImage(t.Context(), t, root, nil, "--version").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "tender "+version+" (commit ") || strings.Contains(string(out), "unknown") {
		t.Errorf("tender --version: %v, %s, want %s, its commit and its date", err, out, version)
	}
}

// testServe checks that the relay runs in the image, and that it can write snapshots to /var/lib/tender only. Elsewhere it
// serves without snapshots, and says so.
func testServe(t *testing.T, root string) {
	const unusable = "snapshot directory not usable"
	if log := serveOnce(t, root, "/var/lib/other"); !strings.Contains(log, unusable) || !strings.Contains(log, "/var/lib/other") {
		t.Errorf("snapshots in /var/lib/other: want a line that says so:\n%s", log)
	}
	if log := serveOnce(t, root, "/var/lib/tender"); strings.Contains(log, unusable) {
		t.Errorf("snapshots in /var/lib/tender are not written:\n%s", log)
	}
}

// serveOnce starts the relay in the image with a directory for snapshots, checks it, stops it, and returns its log.
func serveOnce(t *testing.T, root, snapshots string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := inImage(ctx, t, root, []string{
		"TENDER_ORIGIN=127.0.0.1:1", "TENDER_LISTEN=127.0.0.1:0", "TENDER_ADMIN_LISTEN=off", "TENDER_PROBE_LISTEN=127.0.0.1:0",
		"TENDER_DRAIN=1s", "TENDER_SNAPSHOT_DIR=" + snapshots,
	}, "serve")
	log := &listening{found: make(chan string, 1)}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }() // fails if the process has already ended
	select {
	case address := <-log.found:
		checkAlive(t, cmd.Process.Pid, address)
	case <-ctx.Done():
		t.Fatalf("the relay does not listen:\n%s", log)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the relay exited with an error: %v\n%s", err, log)
	}
	return log.String()
}

// checkAlive checks that a process answers as the relay and has no capabilities.
func checkAlive(t *testing.T, pid int, address string) {
	t.Helper()
	resp, err := http.Get("http://" + address + "/livez")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("/livez: %s, %v: %s", resp.Status, err, body)
	}
	status := readText(t, filepath.Join("/proc", fmt.Sprint(pid), "status"))
	for _, want := range []string{"\nUid:\t65532\t65532\t65532\t65532\n", "\nGid:\t65532\t65532\t65532\t65532\n", "\nCapEff:\t0000000000000000\n"} {
		if !strings.Contains(status, want) {
			t.Errorf("the status of the process lacks %q:\n%s", want, status)
		}
	}
}

// A listening is the log of a relay. It extracts the probe address from the log.
type listening struct {
	mu    sync.Mutex
	text  bytes.Buffer // guarded by mu
	found chan string  // receives the probe address once; buffered
}

// Write implements io.Writer.
func (l *listening) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range bytes.Lines(p) { // slog writes whole lines
		var entry struct {
			Msg   string
			Probe string `json:"probe_listen"`
		}
		if json.Unmarshal(line, &entry) == nil && entry.Msg == "listening" {
			l.found <- entry.Probe
		}
	}
	return l.text.Write(p)
}

func (l *listening) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
