package tender_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
)

// binary is the path of the command tender, which TestMain builds.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "tender")
	if err == nil {
		binary = filepath.Join(dir, "tender")
		err = build(binary)
	}
	code := 1
	if err == nil {
		code = m.Run()
	} else {
		fmt.Fprintln(os.Stderr, err)
	}
	_ = os.RemoveAll(dir) // a leftover temporary directory is harmless
	os.Exit(code)
}

// build builds tender with the linker flags of the Makefile.
func build(path string) error {
	flags, err := stamps()
	if err != nil {
		return err
	}
	if out, err := exec.Command("go", "build", "-trimpath", "-ldflags", flags, "-o", path, "../../cmd/tender").CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// stamps returns the linker flags of the Makefile, with the version, commit and date that TestVersion expects.
func stamps() (string, error) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		return "", err
	}
	flags := regexp.MustCompile(`(?m)^LDFLAGS *= (.*)$`).FindSubmatch(makefile)
	if flags == nil {
		return "", errors.New("the Makefile has no LDFLAGS")
	}
	return strings.NewReplacer("$(VERSION)", "v1.2.3", "$(COMMIT)", "0123456789ab", "$(DATE)", "2026-11-21T10:00:00Z").Replace(string(flags[1])), nil
}

// command returns a command line without TENDER_… variables.
func command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, binary, args...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "TENDER_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "TENDER_ADMIN_LISTEN=off")
	return cmd
}

// run runs a command line, and returns its exit code and output.
func run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*relaytest.Patience)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := command(ctx, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if _, ended := errors.AsType[*exec.ExitError](err); !ended || ctx.Err() != nil {
			t.Fatalf("tender %q: %v\n%s", args, err, errs.String())
		}
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// await runs a command line until wanted returns true for its output. what describes this output in the error.
func await(t *testing.T, p *envoytest.RelayProcess, what string, wanted func(stdout string) bool, args ...string) {
	t.Helper()
	p.Await(what, func() error {
		_, stdout, stderr := run(t, args...)
		if !wanted(stdout) {
			return fmt.Errorf("tender %s prints\n%s%s", strings.Join(args, " "), stdout, stderr)
		}
		return nil
	})
}

// endsWell sends SIGTERM to a relay, and verifies its exit code.
func endsWell(t *testing.T, p *envoytest.RelayProcess) {
	t.Helper()
	p.Signal(syscall.SIGTERM)
	if code := p.Wait(); code != 0 {
		t.Errorf("after SIGTERM, tender serve ended with %d, want 0; its log:\n%s", code, p.Log())
	}
}
