package envoy_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/rollout"
)

// judgedRelay has the variables of a relay with a local Envoy.
func judgedRelay(t *testing.T, binary string, more ...string) []string {
	return append([]string{
		"TENDER_CHECK_ENVOY=" + binary, "TENDER_SNAPSHOT_DIR=" + filepath.Join(t.TempDir(), "snapshots"),
		"TENDER_DELTA_VERSIONS=content", "TENDER_COLD_WAIT=1s", "TENDER_DRAIN=1s",
	}, more...)
}

// judgedRollout returns the only rollout of a relay.
func judgedRollout(t *testing.T, page []byte) *rollout.Status {
	t.Helper()
	var all admin.Rollouts
	if err := json.Unmarshal(page, &all); err != nil || len(all.Rollouts) != 1 {
		t.Fatalf("rollouts: %s, %v", page, err)
	}
	return all.Rollouts[0]
}

// awaitRollout waits until met returns true for the rollout of a relay.
func awaitRollout(
	t *testing.T, e *envoytest.Envoy, r interface{ Get(path string) []byte }, what string, met func(*rollout.Status) bool,
) (s *rollout.Status) {
	t.Helper()
	late := time.Now().Add(2 * time.Minute) // a judge that hangs takes one
	for {
		s = judgedRollout(t, r.Get("/api/v1/rollouts"))
		err := e.Within(relaytest.Patience, func() error {
			if s = judgedRollout(t, r.Get("/api/v1/rollouts")); !met(s) {
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
		if err == nil {
			return s
		}
		if time.Now().After(late) {
			t.Fatalf("no %s: %v", what, err)
		}
	}
}

// startJudged starts an Envoy as a client of a relay, and waits until the relay has a last good of its configuration.
func startJudged(t *testing.T, c client, r *envoytest.Relay) *envoytest.Envoy {
	t.Helper()
	e := envoytest.Start(t, c.speaking(ads[0]).options(r.Addr, "client"))
	e.Listener("web")
	e.Await("confirmed sets", func() error { return incomplete(r) })
	return e
}

// promotedAfter returns a condition that an edition was promoted after another status.
func promotedAfter(before *rollout.Status) func(*rollout.Status) bool {
	return func(s *rollout.Status) bool {
		return s.Phase == rollout.Current && s.Outcomes.Promoted > before.Outcomes.Promoted
	}
}

// TestB52_EnvoyJudge: without stages, a listener that the local Envoy rejects reaches no client, and the status has the words of
// Envoy. A valid change reaches the client, also one beside the rejected listener, which is another part. The local Envoy can bind each address, but none of the machine. It is not a
// client, and ends with the edition.
func TestB52_EnvoyJudge(t *testing.T) {
	matrix(t, ads, func(t *testing.T, c client) {
		origin := envoytest.NewControlPlane(t)
		origin.Put(web("one", envoytest.NewBackend(t, "one"))...)
		r := envoytest.NewRelay(t, origin.Addr, judgedRelay(t, c.binary)...)
		e := startJudged(t, c, r)
		before := judgedRollout(t, r.Get("/api/v1/rollouts"))

		// Addresses that the local Envoy could not bind in the network namespace of the relay.
		taken, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = taken.Close() }() // after the last use
		origin.Put(relaytest.Listener("good", "web"), relaytest.ListenerAt("taken", "web", taken.Addr().String()),
			relaytest.ListenerAt("foreign", "web", "192.0.2.1:80"))
		awaitRollout(t, e, r, "judging", func(s *rollout.Status) bool { return s.Await == rollout.AwaitEnvoy })
		if got := r.Streams(); got != 1 {
			t.Errorf("%d client streams while an edition is judged, want 1", got)
		}
		passed := awaitRollout(t, e, r, "promotion", promotedAfter(before))
		if want := "accepted by Envoy " + c.version; passed.Envoy != want || passed.Unobserved {
			t.Errorf("result of the local Envoy: %q, unobserved %v, want %q", passed.Envoy, passed.Unobserved, want)
		}
		e.Listener("good")

		origin.Put(invalid("broken"), relaytest.Listener("beside", "web"))
		halted := awaitRollout(t, e, r, "halt", func(s *rollout.Status) bool { return s.Phase == rollout.Halted })
		for _, want := range []string{"local Envoy " + c.version, relaytest.ListenerType, rejection} {
			if !strings.Contains(halted.Halted.Reason, want) {
				t.Errorf("reason %q, want %q", halted.Halted.Reason, want)
			}
		}
		e.Listener("beside")
		if page := r.Tender("rollout", "status"); !strings.Contains(page, rejection) {
			t.Errorf("tender rollout status without %q:\n%s", rejection, page)
		}
		if dump, err := e.Get("/config_dump"); err != nil || strings.Contains(string(dump), `"broken"`) {
			t.Errorf("the client has the rejected listener (error %v): %s", err, dump)
		}
		origin.Put(relaytest.Listener("broken", "web"))
		awaitRollout(t, e, r, "promotion of the repaired listener", promotedAfter(passed))
		e.Listener("broken")
		if pids := localEnvoys(t, os.Getpid(), c.binary); len(pids) > 0 {
			t.Errorf("the local Envoys %v run after the edition", pids)
		}
	})
}

// TestB52_EnvoyJudgesBesideABadLastGood: a bad listener that an operator has promoted hides no other one from the local Envoy, which
// rejects it with each further edition. The clients have the good one beside it.
func TestB52_EnvoyJudgesBesideABadLastGood(t *testing.T) {
	matrix(t, several, func(t *testing.T, c client) {
		origin := envoytest.NewControlPlane(t)
		origin.Put(web("one", envoytest.NewBackend(t, "one"))...)
		r := envoytest.NewRelay(t, origin.Addr, judgedRelay(t, c.binary)...)
		e := startJudged(t, c, r)
		origin.Put(invalid("broken"))
		before := awaitRollout(t, e, r, "halt", func(s *rollout.Status) bool { return s.Phase == rollout.Halted })
		r.Tender("rollout", "promote", "--all")
		before = awaitRollout(t, e, r, "promotion by an operator", promotedAfter(before))

		origin.Put(invalid("worse"))
		halted := awaitRollout(t, e, r, "halt beside it", func(s *rollout.Status) bool { return s.Phase == rollout.Halted })
		if reason := halted.Halted.Reason; !strings.Contains(reason, "worse") || !strings.Contains(reason, rejection) {
			t.Errorf("reason %q, want one with %q", reason, rejection)
		}
		origin.Put(relaytest.Listener("beside", "web"))
		awaitRollout(t, e, r, "promotion beside it", func(s *rollout.Status) bool { return s.Outcomes.Promoted > before.Outcomes.Promoted })
		e.Listener("beside")
	})
}

// TestB52_EnvoyJudgeFails: a local Envoy that hangs, or that ends at its start, stops no change. The status shows that the
// edition was not judged.
func TestB52_EnvoyJudgeFails(t *testing.T) {
	matrix(t, several, func(t *testing.T, c client) {
		for name, tt := range map[string]struct{ script, want string }{
			"hangs": {"exec sleep 1000", "not judged: node group \"user_agent_name=envoy\": it did not answer in time with the last good"},
			"ends":  {"echo no memory; exit 3", "not judged: node group \"user_agent_name=envoy\": it ended with the last good: exit status 3: no memory"},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				origin := envoytest.NewControlPlane(t)
				origin.Put(web("one", envoytest.NewBackend(t, "one"))...)
				r := envoytest.NewRelay(t, origin.Addr, judgedRelay(t, fakeEnvoy(t, tt.script))...)
				e := startJudged(t, c, r)
				before := judgedRollout(t, r.Get("/api/v1/rollouts"))
				origin.Put(relaytest.Listener("next", "web"))
				s := awaitRollout(t, e, r, "promotion", promotedAfter(before))
				if s.Envoy != tt.want || !s.Unobserved {
					t.Errorf("result of the local Envoy: %q, unobserved %v, want %q", s.Envoy, s.Unobserved, tt.want)
				}
				e.Listener("next")
				if page := r.Tender("rollout", "status"); !strings.Contains(page, "not judged") {
					t.Errorf("tender rollout status:\n%s", page)
				}
			})
		}
	})
}

// crashing is a script that runs the Envoy in its directory, and crashes once that has a listener "crash".
const crashing = `dir=$(dirname "$2")
rm -f "$dir/log"
"$dir/envoy" --config-path "$2" --concurrency 1 --disable-hot-restart --log-level info >"$dir/log" 2>&1 &
pid=$!
trap 'kill $pid; exit' TERM
while kill -0 $pid 2>/dev/null; do
	if grep -q "listener 'crash'" "$dir/log"; then kill -KILL $pid; kill -SEGV $$; fi
	sleep 0.05
done`

// TestB52_EnvoyJudgeCrashes: an edition with which the local Envoy crashes twice is halted.
func TestB52_EnvoyJudgeCrashes(t *testing.T) {
	matrix(t, several, func(t *testing.T, c client) {
		origin := envoytest.NewControlPlane(t)
		origin.Put(web("one", envoytest.NewBackend(t, "one"))...)
		temp := t.TempDir()
		r := envoytest.StartRelay(t, origin.Addr, judgedRelay(t, fakeEnvoy(t, crashing), "TMPDIR="+temp)...)
		dirs, err := filepath.Glob(filepath.Join(temp, "tender-envoy-*"))
		if err != nil || len(dirs) != 1 {
			t.Fatalf("directories %q, %v, want one", dirs, err)
		}
		copyFile(t, c.binary, filepath.Join(dirs[0], "envoy"))
		e := envoytest.Start(t, c.speaking(delta).options(r.Addr, "client"))
		e.Listener("web")
		e.Await("confirmed sets", func() error { return incomplete(r) })
		before := judgedRollout(t, r.Get("/api/v1/rollouts"))
		origin.Put(relaytest.Listener("next", "web"))
		passed := awaitRollout(t, e, r, "promotion", promotedAfter(before))
		if passed.Unobserved {
			t.Errorf("the edition was not judged: %q", passed.Envoy)
		}
		origin.Put(relaytest.Listener("crash", "web"))
		halted := awaitRollout(t, e, r, "halt", func(s *rollout.Status) bool { return s.Phase == rollout.Halted })
		if want := "crashed twice with the edition, and not with the last good: signal: segmentation fault"; !strings.Contains(halted.Halted.Reason, want) {
			t.Errorf("reason %q, want %q", halted.Halted.Reason, want)
		}
	})
}

// TestB52_EnvoyJudgeEnds: the local Envoy ends with the relay, also if that is killed. A relay that is terminated removes its directory.
func TestB52_EnvoyJudgeEnds(t *testing.T) {
	matrix(t, several, func(t *testing.T, c client) {
		for name, signal := range map[string]syscall.Signal{"terminated": syscall.SIGTERM, "killed": syscall.SIGKILL} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				origin, binary := envoytest.NewControlPlane(t), fakeEnvoy(t, "exec sleep 1000")
				origin.Put(web("one", envoytest.NewBackend(t, "one"))...)
				temp := t.TempDir()
				r := envoytest.StartRelay(t, origin.Addr, judgedRelay(t, binary, "TMPDIR="+temp)...)
				e := envoytest.Start(t, c.speaking(delta).options(r.Addr, "client"))
				e.Listener("web")
				e.Await("confirmed sets", func() error { return incomplete(r) })
				origin.Put(relaytest.Listener("next", "web"))
				var pids []int
				e.Await("a local Envoy", func() error {
					if pids = localEnvoys(t, r.Pid(), "sleep"); len(pids) == 0 {
						return errors.New("it does not run")
					}
					return nil
				})
				dirs, err := filepath.Glob(filepath.Join(temp, "tender-envoy-*"))
				if err != nil || len(dirs) != 1 {
					t.Errorf("directories %q, %v, want one", dirs, err)
				}
				r.Signal(signal)
				r.Wait()
				if left, err := filepath.Glob(filepath.Join(temp, "tender-envoy-*")); err != nil || len(left) > 0 && signal == syscall.SIGTERM {
					t.Errorf("directories after the end: %q, %v", left, err)
				}
				e.Await("end of the local Envoy", func() error {
					if _, err := os.Stat(fmt.Sprintf("/proc/%d", pids[0])); err == nil {
						return fmt.Errorf("process %d runs", pids[0])
					}
					return nil
				})
			})
		}
	})
}

// copyFile copies an executable file.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, content, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// fakeEnvoy returns the path of a program that prints the version of an Envoy, and otherwise runs a shell script.
func fakeEnvoy(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "envoy")
	text := "#!/bin/sh\n" + `[ "$1" = --version ] && { echo "$0  version: 0/9.9.9/Clean/RELEASE/none"; exit; }` + "\n" + script + "\n"
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// localEnvoys returns the processes that a relay in a process has started in another network namespace, and whose command
// line contains a text.
func localEnvoys(t *testing.T, parent int, text string) (pids []int) {
	t.Helper()
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range all { // a process may end meanwhile
		stat, _ := os.ReadFile(dir + "/stat")
		line, _ := os.ReadFile(dir + "/cmdline")
		space, err := os.Readlink(dir + "/ns/net")
		_, after, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(after)
		if err != nil || space == own || len(fields) < 2 || fields[1] != strconv.Itoa(parent) || !strings.Contains(string(line), text) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}
