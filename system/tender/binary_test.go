package tender_test

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
)

// TestVersion verifies that a binary built with the linker flags of the Makefile prints its version, commit and date.
func TestVersion(t *testing.T) {
	want := fmt.Sprintf("tender v1.2.3 (commit 0123456789ab, 2026-11-21T10:00:00Z, %s, %s/%s)\n", runtime.Version(), runtime.GOOS, runtime.GOARCH)
	if code, stdout, stderr := run(t, "--version"); code != 0 || stdout != want || stderr != "" {
		t.Errorf("tender --version: code %d, stdout %q, stderr %q, want 0, %q", code, stdout, stderr, want)
	}
}

// TestCompletionInBash completes a line in a real bash. The script replaces the functions of the package bash-completion
// and the variables of readline.
func TestCompletionInBash(t *testing.T) {
	const script = `
		tender() { "$TENDER" "$@"; }
		_get_comp_words_by_ref() { words=("${COMP_WORDS[@]}") cword=$COMP_CWORD cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}; }
		compopt() { :; }
		source <(tender completion bash)
		COMP_LINE="tender status -o w" COMP_POINT=${#COMP_LINE}
		COMP_WORDS=(tender status -o w) COMP_CWORD=3
		__start_tender
		echo "${COMPREPLY[@]}"`
	cmd := exec.CommandContext(t.Context(), "bash", "--norc", "-c", script)
	cmd.Env = append(cmd.Environ(), "TENDER="+binary)
	out, err := cmd.CombinedOutput()
	if got := strings.TrimSpace(string(out)); err != nil || got != "wide" {
		t.Errorf("tender status -o w<TAB> in bash: %v, %q, want wide", err, got)
	}
}

// socket returns an address for relays that restart: a Unix socket, which no other process can take meanwhile.
func socket(t *testing.T) string { return "unix:" + filepath.Join(t.TempDir(), "xds") }

// TestServeAndGet verifies that tender get receives resources from tender serve, also while the origin is down and after
// restarts of origin and relay.
func TestServeAndGet(t *testing.T) {
	t.Parallel()
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(relaytest.Cluster("one"), relaytest.Cluster("two"))
	address := socket(t)
	env := []string{"TENDER_LISTEN=" + address, "TENDER_DRAIN=1s"}
	s := envoytest.StartRelayOf(t, binary, o.Addr(), env...)
	gets := func(want string) {
		t.Helper()
		for _, variant := range [][]string{nil, {"--sotw"}} {
			code, stdout, stderr := run(t, append([]string{"get", "-a", address, "-o", "name", "cds"}, variant...)...)
			if code != 0 || stdout != want || stderr != "" {
				t.Errorf("tender get cds %v: code %d, stdout %q, stderr %q, want 0, %q", variant, code, stdout, stderr, want)
			}
		}
	}
	gets("one\ntwo\n")
	o.Stop()
	gets("one\ntwo\n")
	o.Put(relaytest.Cluster("three"))
	o.Restart()

	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	c := relaytest.NewClient(t, conn, relaytest.ClientOptions{AutoAck: true})
	c.Subscribe(relaytest.ClusterType)
	c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(relaytest.ClusterType, "one", "two", "three") })

	if s.Signal(syscall.SIGKILL); s.Wait() == 0 {
		t.Error("after SIGKILL, tender serve ended with 0, want another code")
	}
	s = envoytest.StartRelayOf(t, binary, o.Addr(), env...)
	gets("one\nthree\ntwo\n")
	c.Reconnect(conn)
	o.Put(relaytest.Cluster("four"))
	c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(relaytest.ClusterType, "one", "two", "three", "four") })

	endsWell(t, s)
	if err := c.WaitEnd(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("after SIGTERM, a client stream ended with %v, want EOF", err)
	}
}

// TestOriginUnreachable verifies that a relay without an origin reports it to clients, and serves them once the origin is
// reachable.
func TestOriginUnreachable(t *testing.T) {
	t.Parallel()
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(relaytest.Cluster("one"))
	o.Stop()
	s := envoytest.StartRelayOf(t, binary, o.Addr(), "TENDER_COLD_WAIT=1s", "TENDER_DRAIN=1s")
	for _, variant := range [][]string{nil, {"--sotw"}} {
		args := append([]string{"get", "-a", s.Addr, "cds"}, variant...)
		code, stdout, stderr := run(t, args...)
		if code != 1 || stdout != "" || !strings.Contains(stderr, "control plane unreachable") {
			t.Errorf("tender %q: code %d, stdout %q, stderr %q, want 1 and an error about the control plane", args, code, stdout, stderr)
		}
	}
	// The timeout of this client is shorter than TENDER_COLD_WAIT.
	code, _, stderr := run(t, "get", "-a", s.Addr, "--timeout=200ms", "cds")
	if code != 1 || !strings.Contains(stderr, "no answer within 200ms") {
		t.Errorf("tender get with a short timeout: code %d, stderr %q, want 1 and the timeout", code, stderr)
	}
	o.Restart()
	s.AwaitLine(0, `"connected to the origin"`)
	code, stdout, stderr := run(t, "get", "-a", s.Addr, "-o", "name", "cds")
	if code != 0 || stdout != "one\n" {
		t.Errorf("tender get after the origin started: code %d, stdout %q, stderr %q, want 0, one", code, stdout, stderr)
	}
	endsWell(t, s)
}

// TestDemoRollout runs the rollouts of tender demo over sockets and in real time.
func TestDemoRollout(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := run(t, "demo", "--rollout", "--stage", "1s", "--clients", "20", "--rate", "50")
	for _, want := range []string{"promoted: all clients have it", "HALTED: no other client is served it", "and to 0 of the ", "All 20 clients agree with the origin: yes"} {
		if code != 0 || stderr != "" || !strings.Contains(stdout, want) {
			t.Errorf("tender demo --rollout: code %d, stderr %q, want %q in\n%s", code, stderr, want, stdout)
		}
	}
}
