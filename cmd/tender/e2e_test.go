package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// A binary is the path of the command tender, built for a test.
type binary struct{ path string }

// buildBinary builds tender with the linker flags of the Makefile.
func buildBinary(t *testing.T) binary {
	t.Helper()
	b := binary{filepath.Join(t.TempDir(), "tender")}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-ldflags", stamps(t), "-o", b.path, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return b
}

// stamps returns the linker flags of the Makefile, with the version, commit and date that testVersion expects.
func stamps(t *testing.T) string {
	t.Helper()
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	flags := regexp.MustCompile(`(?m)^LDFLAGS *= (.*)$`).FindSubmatch(makefile)
	if flags == nil {
		t.Fatal("the Makefile has no LDFLAGS")
	}
	return strings.NewReplacer("$(VERSION)", "v1.2.3", "$(COMMIT)", "0123456789ab", "$(DATE)", "2026-11-21T10:00:00Z").Replace(string(flags[1]))
}

// testVersion verifies that a binary built with the linker flags of the Makefile prints its version, commit and date.
func testVersion(t *testing.T, b binary) {
	want := fmt.Sprintf("tender v1.2.3 (commit 0123456789ab, 2026-11-21T10:00:00Z, %s, %s/%s)\n", runtime.Version(), runtime.GOOS, runtime.GOARCH)
	if code, stdout, stderr := b.run(t, nil, "--version"); code != exitOK || stdout != want || stderr != "" {
		t.Errorf("tender --version: code %d, stdout %q, stderr %q, want 0, %q", code, stdout, stderr, want)
	}
}

// command returns a command line with the environment of the test, where env replaces all TENDER_… variables.
func (b binary) command(ctx context.Context, env []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, b.path, args...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "TENDER_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(append(cmd.Env, "TENDER_ADMIN_LISTEN=off"), env...) // the last value of a variable takes effect
	return cmd
}

// run runs a command line, and returns its exit code and output.
func (b binary) run(t *testing.T, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), relaytest.Patience)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := b.command(ctx, env, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if _, ended := errors.AsType[*exec.ExitError](err); !ended || ctx.Err() != nil {
			t.Fatalf("tender %q: %v\n%s", args, err, errs.String())
		}
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// serve starts tender serve and waits until it listens.
func (b binary) serve(t *testing.T, env ...string) *envoytest.Process {
	t.Helper()
	s := envoytest.StartProcess(t, "tender serve", b.command(context.Background(), env, "serve"))
	s.AwaitLine(0, `"listening"`)
	return s
}

// end sends a signal to a process, waits for it, and returns its exit code.
func end(p *envoytest.Process, sig syscall.Signal) (code int) {
	p.Signal(sig)
	return p.Wait()
}

// TestBinary runs the built command as users do, configured by environment variables.
func TestBinary(t *testing.T) {
	b := buildBinary(t)
	t.Run("version", func(t *testing.T) { testVersion(t, b) })
	t.Run("completion in bash", func(t *testing.T) { testCompletionInBash(t, b) })
	t.Run("serve and get", func(t *testing.T) { testServeAndGet(t, b) })
	t.Run("origin unreachable", func(t *testing.T) { testNoOrigin(t, b) })
}

// testServeAndGet verifies that tender get receives resources from tender serve, also while the origin is down and
// after restarts of origin and relay.
func testServeAndGet(t *testing.T, b binary) {
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(relaytest.Cluster("one"), relaytest.Cluster("two"))
	address := proxy.FreeAddress(t)
	env := []string{"TENDER_ORIGIN=" + o.Addr(), "TENDER_LISTEN=" + address, "TENDER_DRAIN=1s"}
	s := b.serve(t, env...)
	gets := func(want string) {
		t.Helper()
		for _, variant := range [][]string{nil, {"--sotw"}} {
			code, stdout, stderr := b.run(t, nil, append([]string{"get", "-a", address, "-o", "name", "cds"}, variant...)...)
			if code != exitOK || stdout != want || stderr != "" {
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

	if end(s, syscall.SIGKILL) == exitOK {
		t.Error("after SIGKILL, tender serve ended with 0, want another code")
	}
	s = b.serve(t, env...)
	gets("one\nthree\ntwo\n")
	c.Reconnect(conn)
	o.Put(relaytest.Cluster("four"))
	c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(relaytest.ClusterType, "one", "two", "three", "four") })

	if code := end(s, syscall.SIGTERM); code != exitOK {
		t.Errorf("after SIGTERM, tender serve ended with %d, want 0; its log:\n%s", code, s.Log())
	}
	if err := c.WaitEnd(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("after SIGTERM, a client stream ended with %v, want EOF", err)
	}
}

// testNoOrigin verifies that a relay without an origin reports it to clients, and serves them once the origin is
// reachable.
func testNoOrigin(t *testing.T, b binary) {
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(relaytest.Cluster("one"))
	o.Stop()
	address := proxy.FreeAddress(t)
	s := b.serve(t, "TENDER_ORIGIN="+o.Addr(), "TENDER_LISTEN="+address, "TENDER_COLD_WAIT=1s", "TENDER_DRAIN=1s")
	for _, variant := range [][]string{nil, {"--sotw"}} {
		args := append([]string{"get", "-a", address, "cds"}, variant...)
		code, stdout, stderr := b.run(t, nil, args...)
		if code != exitFailure || stdout != "" || !strings.Contains(stderr, "control plane unreachable") {
			t.Errorf("tender %q: code %d, stdout %q, stderr %q, want 1 and an error about the control plane", args, code, stdout, stderr)
		}
	}
	// The timeout of this client is shorter than TENDER_COLD_WAIT.
	code, _, stderr := b.run(t, nil, "get", "-a", address, "--timeout=200ms", "cds")
	if code != exitFailure || !strings.Contains(stderr, "no answer within 200ms") {
		t.Errorf("tender get with a short timeout: code %d, stderr %q, want 1 and the timeout", code, stderr)
	}
	o.Restart()
	s.AwaitLine(0, `"connected to the origin"`)
	code, stdout, stderr := b.run(t, nil, "get", "-a", address, "-o", "name", "cds")
	if code != exitOK || stdout != "one\n" {
		t.Errorf("tender get after the origin started: code %d, stdout %q, stderr %q, want 0, one", code, stdout, stderr)
	}
	if code := end(s, syscall.SIGTERM); code != exitOK {
		t.Errorf("after SIGTERM, tender serve ended with %d, want 0; its log:\n%s", code, s.Log())
	}
}
