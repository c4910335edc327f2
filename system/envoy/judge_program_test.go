package envoy_test

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/judge"
	"github.com/xdstender/tender/relay/relaytest"
)

// TestB52_EnvoyProgram: a relay accepts each Envoy as a judge, and refuses other values with a clear error.
func TestB52_EnvoyProgram(t *testing.T) {
	for _, version := range envoytest.Versions(t) {
		p, err := judge.Open(t.Context(), envoytest.Installed(t, version), slog.New(slog.DiscardHandler))
		if err != nil || p.Version != version {
			t.Errorf("Envoy %s: %+v, %v", version, p, err)
		}
	}
	dir := t.TempDir()
	program := func(name, script string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(script), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, tt := range []struct{ path, want string }{
		{filepath.Join(dir, "missing"), "no such file or directory"},
		{dir, "it is not a file"},
		{program("plain", "#!/bin/sh\n", 0o600), "it is not executable: its mode is -rw-------"},
		{program("text", "no program", 0o700), "exec format error"},
		{program("silent", "#!/bin/sh\n", 0o700), `--version does not print the version of an Envoy: ""`},
		{program("other", "#!/bin/sh\necho nginx version: nginx\n", 0o700), `Envoy: "nginx version: nginx"`},
		{program("fails", "#!/bin/sh\necho no such option >&2\nexit 2\n", 0o700), "--version failed: exit status 2: no such option"},
		{program("hangs", "#!/bin/sh\nexec sleep 1000\n", 0o700), "--version did not end within 10s"},
	} {
		if _, err := judge.Open(t.Context(), tt.path, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q", tt.path, err, tt.want)
		}
	}
}

// A startedScript is a process of judge.Program that runs a script, whose output is in a file.
type startedScript struct {
	judge.Process
	dir string
}

// startScript starts a script as a local Envoy.
func startScript(t *testing.T, script string) startedScript {
	t.Helper()
	p, err := judge.Open(t.Context(), fakeEnvoy(t, script), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s := startedScript{dir: t.TempDir()}
	if s.Process, err = p.Start(s.dir, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.End)
	return s
}

// wait waits for the end of the script.
func (s startedScript) wait(t *testing.T) judge.Exit {
	t.Helper()
	select {
	case <-s.Ended():
	case <-time.After(relaytest.Patience):
		t.Fatal("the script does not end")
	}
	return s.Exit()
}

// TestB52_EnvoyIsolation: a local Envoy has no network, no environment of the relay, no sockets of the machine, no core dumps, a
// low priority, and the bootstrap in the directory that it shares with the relay.
func TestB52_EnvoyIsolation(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // after its last use
	t.Setenv("TENDER_TEST_SECRET", "hunter2")
	foreign := t.TempDir() // below a hidden directory
	s := startScript(t, `dir=$(dirname "$2")
{
	tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' \n'; echo " interfaces"
	cat /proc/net/route | tail -n +2 | wc -l | tr -d '\n'; echo " routes"
	env | grep -c TENDER
	test -e `+foreign+` && echo sees foreign files
	ulimit -c
	cut -d' ' -f19 /proc/self/stat
	cat /proc/self/oom_score_adj "$2"
	echo; echo "$@"
} >"$dir/out" 2>&1`)
	exit := s.wait(t)
	got, err := os.ReadFile(filepath.Join(s.dir, "out"))
	want := "lo interfaces\n0 routes\n0\n0\n10\n1000\n{}\n--config-path " + filepath.Join(s.dir, "bootstrap.json") +
		" --concurrency 1 --disable-hot-restart --log-level warning\n"
	if err != nil || string(got) != want {
		t.Errorf("the script printed (exit %+v, error %v)\n%s\nwant\n%s", exit, err, got, want)
	}
}

// TestB52_EnvoyEnds: how a local Envoy ends, and that one that ignores SIGTERM or needs too much memory is killed.
func TestB52_EnvoyEnds(t *testing.T) {
	for _, tt := range []struct {
		script string
		want   judge.Exit
	}{
		{"echo one; echo two >&2; exit 7", judge.Exit{Text: "exit status 7", Output: "two"}},
		{"kill -SEGV $$", judge.Exit{Text: "signal: segmentation fault", Crashed: true}},
		{"kill -ABRT $$", judge.Exit{Text: "signal: aborted", Crashed: true}},
		{"kill -KILL $$", judge.Exit{Text: "signal: killed"}},
	} {
		if got := startScript(t, tt.script).wait(t); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.script, got, tt.want)
		}
	}
	p, err := judge.Open(t.Context(), fakeEnvoy(t, "exec sleep 1000"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	p.MaxMemoryBytes = 1 << 10
	large := startedScript{dir: t.TempDir()}
	if large.Process, err = p.Start(large.dir, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if got := large.wait(t); got.Text != "killed: it needed too much memory" || got.Crashed {
		t.Errorf("a process that needs too much memory: %+v", got)
	}
	s := startScript(t, `trap '' TERM; touch "$(dirname "$2")/ready"; while :; do sleep 0.1; done`)
	for {
		if _, err := os.Stat(filepath.Join(s.dir, "ready")); err == nil {
			break
		}
		select {
		case <-s.Ended():
			t.Fatalf("the script has ended: %+v", s.Exit())
		case <-time.After(10 * time.Millisecond):
		}
	}
	s.End()
	if got := s.Exit(); got.Text != "signal: killed" || got.Crashed {
		t.Errorf("after End: %+v", got)
	}
}
