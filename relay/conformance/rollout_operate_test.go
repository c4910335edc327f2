package conformance_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/rollout"
)

// rollout returns the rollout of the only origin.
func (w *rolloutWorld) rollout() *rollout.Status {
	w.t.Helper()
	all := getJSON[admin.Rollouts](w.t, w.relay, "/api/v1/rollouts")
	if len(all.Rollouts) != 1 || all.Rollouts[0].Origin != "default" {
		w.t.Fatalf("got the rollouts %+v, want that of the only origin", all)
	}
	return all.Rollouts[0]
}

// expectPhase fails the test unless the rollout is in this phase and stage. It returns the rollout.
func (w *rolloutWorld) expectPhase(phase rollout.Phase, stage int) *rollout.Status {
	w.t.Helper()
	s := w.rollout()
	if s.Phase != phase || s.Stage != stage {
		w.t.Fatalf("the rollout is %v at stage %d, want %v at %d: %+v", s.Phase, s.Stage, phase, stage, s)
	}
	if of := statusOf(w.t, w.relay).Origins[0].Rollout; of == nil || of.Phase != phase {
		w.t.Errorf("the status of the origin has the rollout %+v, want the phase %v", of, phase)
	}
	return s
}

// command runs a command, and waits until clients have its changes.
func (w *rolloutWorld) command(name string, args admin.RolloutScope) *rollout.Status {
	w.t.Helper()
	answer := operate[admin.RolloutScope, admin.Rollouts](w.t, w.relay, "rollout/"+name, args)
	if len(answer.Rollouts) != 1 {
		w.t.Fatalf("%s %+v: got %+v, want one rollout", name, args, answer)
	}
	w.sleep(time.Second)
	return answer.Rollouts[0]
}

// expectRefused fails the test unless a command is refused with this code and message.
func expectRefused(t testing.TB, r *running, name string, args any, code int, words string) {
	t.Helper()
	if got, text := post(t, r, "rollout/"+name, args); got != code || !strings.Contains(text, words) {
		t.Errorf("%s %+v: got %d %s, want %d, %s", name, args, got, text, code, words)
	}
}

// expectDiff fails the test unless a rollout has exactly these changes, such as "~cds a", "+cds c", "-cds b".
func (w *rolloutWorld) expectDiff(query string, want ...string) admin.RolloutDiff {
	w.t.Helper()
	d := getJSON[admin.RolloutDiff](w.t, w.relay, "/api/v1/rollout/diff?"+query)
	var got []string
	for _, c := range d.Changes {
		got = append(got, map[string]string{"added": "+", "changed": "~",
			"removed": "-"}[c.Change]+shortName(c.TypeURL)+" "+c.Name)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) || d.Total != len(want) {
		w.t.Errorf("the rollout has the changes %q, %d in total, want %q", got, d.Total, want)
	}
	return d
}

// Operators move an edition through all stages by commands.
func TestRolloutIsDirectedByOperators(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		t := w.t
		all := w.clients(v, "canary", "second", "other")
		canary, second, other := all[0], all[1], all[2]
		w.sleep(time.Minute)
		w.expectPhase(rollout.Current, 0)
		w.expectDiff("")
		for command, words := range map[string]string{
			"promote": "no rollout is open: the state is current", "abort": "no rollout is open: the state is current",
			"resume": "the rollout is not halted: the state is current", "undo": "there is no promotion to undo",
		} {
			expectRefused(w.t, w.relay, command, admin.RolloutScope{}, http.StatusConflict, words)
		}
		expectRefused(w.t, w.relay, "promote", admin.RolloutScope{All: true}, http.StatusConflict,
			"no rollout is open: all clients already receive the latest state of the origin")

		changed := []string{"~cds a", "+cds c", "~lds l"}
		w.change("cds a@2", "cds c@1", "lds l@2", "eds a@2")
		w.sleep(time.Second)
		if s := w.expectPhase(rollout.Gathering, 0); s.Waiting != 3 || s.Until.IsZero() {
			t.Errorf("gathering: got %+v, want three waiting resources, and the time of the next step", s)
		}
		w.expectDiff("", changed...)
		w.sleep(3 * time.Second)
		s := w.expectPhase(rollout.Rolling, 1)
		w.expectResources("cds a@2 b@1 c@1", canary)
		w.expectResources("cds a@1 b@1", second, other)
		if c := s.Cohorts[0]; s.Resources != 1 || len(s.Parts) != 3 || s.Edition == "" || c.Served != s.Edition || c.Clients != 1 ||
			c.Subscribed != 1 || c.Accepted != 1 || s.Cohorts[1].Served != "" || len(s.Cohorts) != 3 {
			t.Errorf("stage 1: got %+v, want three parts, and one client that accepted it", s)
		}
		w.expectDiff("", changed...)
		w.expectDiff("type=lds", "~lds l")
		d := w.expectDiff("type=cds&name=a", "~cds a")
		before, after := d.Bodies[d.Changes[0].Before.SHA256], d.Bodies[d.Changes[0].After.SHA256]
		if !strings.Contains(string(before), `"a"`) || !strings.Contains(string(after), `"a"`) ||
			string(before) == string(after) {
			t.Errorf("the diff of cluster a is from %s to %s", before, after)
		}

		if s := w.command("promote", admin.RolloutScope{Why: admin.Why{User: "alice"}}); s.Stage != 2 {
			t.Errorf("promote: got %+v, want stage 2", s)
		}
		w.expectResources("lds l@2", canary, second)
		w.expectResources("lds l@1", other)
		if s := w.command("abort", admin.RolloutScope{Why: admin.Why{Reason: "errors", User: "alice"}}); s.Halted == nil ||
			!strings.HasPrefix(s.Halted.Reason, "abort by alice") || !strings.HasSuffix(s.Halted.Reason, ": errors") {
			t.Errorf("abort: got %+v, want the operator and the reason", s)
		}
		w.expectPhase(rollout.Halted, 0)
		w.expectResources("cds a@1 b@1", all...)
		w.expectResources("lds l@1", all...)
		w.expectResources("eds a@2 b@1", all...)
		w.expectDiff("", changed...)

		w.restartRelay(all...)
		w.sleep(time.Minute)
		w.expectPhase(rollout.Halted, 0)
		w.expectDiff("", changed...)

		w.command("resume", admin.RolloutScope{Origin: "default"})
		w.sleep(4 * time.Second)
		w.expectPhase(rollout.Rolling, 1)
		w.command("promote", admin.RolloutScope{All: true})
		w.expectPhase(rollout.Current, 0)
		w.expectResources("cds a@2 b@1 c@1", all...)
		w.command("undo", admin.RolloutScope{Why: admin.Why{Reason: "resets"}})
		if o := w.expectPhase(rollout.Halted, 0).Outcomes; o != (rollout.Outcomes{Promoted: 1, Halted: 1, Undone: 1}) {
			t.Errorf("outcomes since the restart are %+v, want one promotion that was undone", o)
		}
		w.expectResources("cds a@1 b@1", all...)
		w.expectResources("lds l@1", all...)
		w.expectDiff("", changed...)
	})
}

// Commands with unknown arguments or an unknown origin are refused.
func TestRolloutCommandsAreChecked(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, _ relaytest.Variant) {
		t := w.t
		for _, tt := range []struct {
			command string
			args    any
			code    int
			words   string
		}{
			{"promote", admin.RolloutScope{Origin: "x"}, http.StatusNotFound, `there is no origin \"x\"; the origins are default`},
			{"abort", admin.RolloutScope{All: true}, http.StatusBadRequest, "all: only promote accepts it"},
			{"resume", admin.RolloutScope{Why: admin.Why{Reason: "x"}}, http.StatusBadRequest,
				"reason: only abort and undo accept it"},
			{"undo", admin.RolloutScope{Why: admin.Why{Reason: "two\nlines"}}, http.StatusBadRequest, "reason: want at most"},
			{"undo", map[string]string{"orign": "x"}, http.StatusBadRequest, `unknown field \"orign\"`},
		} {
			expectRefused(w.t, w.relay, tt.command, tt.args, tt.code, tt.words)
		}
		for _, path := range []string{"rollouts?origin=x", "rollout/diff?origin=x", "rollout/diff?type=cds&name=nobody"} {
			if code, text := httpGet(w.t, w.relay.DialAdmin, "/api/v1/"+path); code != http.StatusNotFound {
				t.Errorf("GET %s: got %d %s, want 404", path, code, text)
			}
		}
	})
}

// Without TENDER_ROLLOUT no rollout goroutine runs; with it, one per origin. The test is not parallel, since it
// would count goroutines of other tests.
func TestI13_OffStartsNothing(t *testing.T) {
	goroutines := func(what string) int {
		stacks := make([]byte, 4<<20)
		return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), what)
	}
	const controller = "relay/rollout.(*Controller).Run("
	for _, on := range []bool{false, true} {
		env, want := []string{operated}, 0
		if on {
			env, want = append(env, rolloutStages, "TENDER_DELTA_VERSIONS=content",
				"TENDER_SNAPSHOT_DIR="+filepath.Join(t.TempDir(), "snapshots")), 1
		}
		worldBubble(t, env, func(w *world) {
			w.change("cds a@1", "eds a@1", "eds b@1", "rds routes@1")
			c := &rolloutClient{w: &rolloutWorld{world: w}, node: "canary"}
			c.Client = w.relay.Client(relaytest.ClientOptions{Node: relaytest.EnvoyNode(c.node), AutoAck: true})
			c.follow()
			if got := goroutines(controller); got != want {
				w.t.Errorf("rollouts enabled: %t; %d goroutines run a controller, want %d", on, got, want)
			}
		})
	}
}

// Without TENDER_ROLLOUT, commands report that rollouts are off.
func TestRolloutCommandsWithoutRollouts(t *testing.T) {
	t.Parallel()
	worldBubble(t, []string{operated}, func(w *world) {
		t := w.t
		for _, path := range []string{"rollouts", "rollouts?origin=x", "rollout/diff"} {
			if code, text := httpGet(w.t, w.relay.DialAdmin, "/api/v1/"+path); code != http.StatusNotFound ||
				!strings.Contains(text, "TENDER_ROLLOUT is off") {
				t.Errorf("GET %s: got %d %s, want 404: TENDER_ROLLOUT is off", path, code, text)
			}
		}
		for _, command := range []string{"promote", "abort", "resume", "undo"} {
			expectRefused(w.t, w.relay, command, admin.RolloutScope{}, http.StatusNotFound, "TENDER_ROLLOUT is off")
		}
		if of := statusOf(w.t, w.relay).Origins[0].Rollout; of != nil {
			t.Errorf("the status has the rollout %+v, want none", of)
		}
	})
}

// A command without an origin applies to all origins whose phase permits it.
func TestRolloutCommandsOfSeveralOrigins(t *testing.T) {
	t.Parallel()
	env := []string{rolloutStages, "TENDER_DELTA_VERSIONS=content", operated,
		"TENDER_SNAPSHOT_DIR=" + filepath.Join(t.TempDir(), "snapshots")}
	originsBubble(t, "type:lds=west", env, func(first, west *world) {
		t, both := first.t, &rolloutWorld{world: first, env: env}
		first.change("cds a@1", "eds a@1", "eds b@1", "rds routes@1")
		west.change("lds l@1")
		canary := both.client(relaytest.Delta, "canary", nil)
		first.sleep(time.Minute)
		stands := func(want string) {
			t.Helper()
			first.sleep(3 * time.Second)
			var got []string
			for _, s := range getJSON[admin.Rollouts](t, first.relay, "/api/v1/rollouts").Rollouts {
				got = append(got, fmt.Sprintf("%s %v", s.Origin, s.Phase))
			}
			if fmt.Sprint(got) != want {
				t.Fatalf("got the rollouts %q, want %s", got, want)
			}
		}
		carriedOut := func(command string, args admin.RolloutScope, want string) {
			t.Helper()
			var got []string
			for _, s := range operate[admin.RolloutScope, admin.Rollouts](t, first.relay, "rollout/"+command, args).Rollouts {
				got = append(got, s.Origin)
			}
			if fmt.Sprint(got) != want {
				t.Errorf("%s %+v was executed for %q, want %s", command, args, got, want)
			}
		}
		stands("[default current west current]")
		expectRefused(t, first.relay, "abort", admin.RolloutScope{}, http.StatusConflict,
			`origin \"default\": no rollout is open: the state is current\norigin \"west\": no`)
		west.change("lds l@2")
		stands("[default current west rolling]")
		both.expectResources("lds l@2", canary)
		both.expectDiff("", "~lds l")
		both.expectDiff("origin=default")
		expectRefused(t, first.relay, "abort", admin.RolloutScope{Origin: "default"}, http.StatusConflict,
			"no rollout is open: the state is current")
		carriedOut("abort", admin.RolloutScope{}, "[west]")
		stands("[default current west halted]")
		both.expectResources("lds l@1", canary)
		first.change("cds a@2")
		stands("[default rolling west halted]")
		carriedOut("promote", admin.RolloutScope{All: true}, "[default west]")
		stands("[default current west current]")
		both.expectResources("lds l@2", canary)
		carriedOut("undo", admin.RolloutScope{Origin: "west"}, "[west]")
		stands("[default current west halted]")
	})
}
