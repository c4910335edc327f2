package envoy_test

import (
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/xdstender/tender/relay/judge"
)

// TestB52_ExecutableMemory: a relay that may not make memory executable refuses a local Envoy, which would crash with each Wasm filter.
func TestB52_ExecutableMemory(t *testing.T) {
	const denied = "TEST_DENY_WRITE_EXECUTE"
	if path := os.Getenv(denied); path != "" { // the process that the test has started
		if err := unix.Prctl(unix.PR_SET_MDWE, unix.PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0); err != nil {
			t.Fatal(err)
		}
		_, err := judge.Open(t.Context(), path, slog.New(slog.DiscardHandler))
		t.Logf("error: %v", err)
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), denied+"="+fakeEnvoy(t, ""))
	out, err := cmd.CombinedOutput()
	const want = "make memory executable, as Envoy does for Wasm: permission denied (with systemd, MemoryDenyWriteExecute=)"
	if err != nil || !strings.Contains(string(out), want) {
		t.Errorf("%v\n%s\nwant %q", err, out, want)
	}
}
