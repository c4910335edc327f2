package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/structpb"
	"sigs.k8s.io/yaml"

	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/instance"
	"github.com/xdstender/tender/relay/rollout"
)

const listenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"

// someRollouts returns a rollout at stage 2 of the origin default, and a halted one of the origin west.
func someRollouts(now time.Time) []*rollout.Status {
	cohorts := func(served ...string) []rollout.Cohort {
		all := []rollout.Cohort{{Name: "metadata.canary=true 10m0s", Clients: 2}, {Name: "5% 10m0s", Clients: 41}, {Name: "25% approve", Clients: 160}, {Name: "the rest", Clients: 597}}
		for i, edition := range served {
			all[i].Served, all[i].Subscribed, all[i].Accepted = edition, all[i].Clients, all[i].Clients-i
		}
		return all
	}
	rolling := &rollout.Status{
		Origin: "default", Phase: rollout.Rolling, Edition: "7f3a9c21", Resources: 14, Changed: now.Add(-12 * time.Minute),
		Stage: 2, Since: now.Add(-2 * time.Minute), Until: now.Add(8*time.Minute + 300*time.Millisecond), WaitsFor: "answers: 42 of 43 clients answered, and 42 accepted",
		Waiting: 15, Oldest: now.Add(-13 * time.Minute), Check: "go", Checked: now.Add(-4 * time.Second), Undoable: true, Unobserved: true,
		Cohorts: cohorts("7f3a9c21", "7f3a9c21"),
	}
	halted := &rollout.Status{
		Origin: "west", Phase: rollout.Halted, Edition: "00c0ffee", Resources: 1, Changed: now.Add(-time.Hour), Since: now.Add(-20 * time.Minute), Large: true,
		Waiting: 1, Oldest: now.Add(-time.Hour), Halted: &rollout.Halt{Reason: "1 client rejected it: no\x1b[31m such filter", At: now.Add(-20 * time.Minute)},
		Rejections: []rollout.Rejection{{Client: rollout.Client{Node: "edge-1", Peer: "10.0.0.1"}, TypeURL: listenerType, Detail: "Error adding/updating listener(s) web:\x1b[31m no such filter"}},
		Cohorts:    cohorts(), Frozen: true, Cold: true, Check: "unexpected status 500", Checked: now.Add(-time.Minute), Failing: now.Add(-30 * time.Minute),
		Outcomes: rollout.Outcomes{Halted: 1}, Full: "64 parts are open, the maximum; lds/z has the changes of 7 parts",
	}
	return []*rollout.Status{rolling, halted}
}

// serveRollouts serves an admin API with these rollouts until the test ends, and sets adminVariable to its address.
func serveRollouts(t *testing.T, all []*rollout.Status, further ...func(*admin.Config)) {
	t.Helper()
	t.Setenv(adminVariable, serveAdmin(t, "unix", admin.Status{}, append(further, func(cfg *admin.Config) {
		cfg.Rollouts = func(origin string) (answer admin.Rollouts, err error) {
			for _, s := range all {
				if origin == "" || origin == s.Origin {
					answer.Rollouts = append(answer.Rollouts, s)
				}
			}
			if answer.Rollouts == nil {
				err = admin.Refuse(http.StatusNotFound, errors.New("there is no such origin"))
			}
			return answer, err
		}
	})...))
}

func TestRolloutStatusForPeople(t *testing.T) {
	now := time.Now()
	serveRollouts(t, someRollouts(now))
	if code, stdout, stderr := execute("rollout", "status"); code != exitOK || !strings.HasPrefix(stdout, "origin default: ") {
		t.Errorf("tender rollout status: code %d, %s, %s", code, stdout, stderr)
	}
	var out strings.Builder
	if err := printRollouts(&out, admin.Rollouts{Rollouts: someRollouts(now)}, now); err != nil { // now is fixed, so that times are exact
		t.Fatal(err)
	}
	want := []string{
		`origin default: edition 7f3a9c21 is at stage 2 of 3 (5% 10m0s)`,
		`  since       2m0s ago; the next step is due in 8m0s`,
		`  waits for   answers: 42 of 43 clients answered, and 42 accepted`,
		`  edition     14 resources, the newest change 12m0s ago`,
		`  pending     15 resources, the oldest for 13m0s`,
		`  check       go (requested 4s ago)`,
		`  unobserved  no client of a stage that counts, or no local Envoy, accepted the edition`,
		``,
		`COHORT                      CLIENTS  SERVED         SUBSCRIBED  ACCEPTED  REJECTED`,
		`metadata.canary=true 10m0s  2        7f3a9c21       2           2         0`,
		`5% 10m0s                    41       7f3a9c21       41          40        0`,
		`25% approve                 160      the last good  -           -         -`,
		`the rest                    597      the last good  -           -         -`,
		``,
		`Commands that apply:`,
		`  tender rollout diff --origin default           see what the edition changes`,
		`  tender rollout promote --origin default        serve the edition to the next stage now`,
		`  tender rollout abort --origin default          reject the edition: all clients are served the last good`,
		`  tender rollout promote --all --origin default  serve the latest state of the origin to all clients at once`,
		`  tender rollout undo --origin default           revert the newest promotion to all clients`,
		``,
		`origin west: edition 00c0ffee is HALTED`,
		`  parts    64 parts are open, the maximum; lds/z has the changes of 7 parts`,
		`  halted   20m0s ago: 1 client rejected it: no\u001b[31m such filter`,
		`  edition  1 resource, the newest change 1h0m ago; it REMOVES a large part of a type`,
		`  pending  1 resource, the oldest for 1h0m`,
		`  check    unexpected status 500 (requested 1m0s ago)`,
		`           the check has not answered for 30m0s`,
		`  cold     the relay started without a snapshot; the resources of that time were not rolled out`,
		``,
		`COHORT                      CLIENTS  SERVED         SUBSCRIBED  ACCEPTED  REJECTED`,
		`metadata.canary=true 10m0s  2        the last good  -           -         -`,
		`5% 10m0s                    41       the last good  -           -         -`,
		`25% approve                 160      the last good  -           -         -`,
		`the rest                    597      the last good  -           -         -`,
		``,
		`REJECTED BY  PEER      COHORT                      TYPE`,
		`edge-1       10.0.0.1  metadata.canary=true 10m0s  lds`,
		`    Error adding/updating listener(s) web:\u001b[31m no such filter`,
		``,
		`Commands that apply:`,
		`  tender thaw --origin west                   distribute changes again`,
		`  tender rollout diff --origin west           see what the rejected edition changes`,
		`  tender rollout resume --origin west         try it again from stage 1; a fix at the origin starts a rollout by itself`,
		`  tender rollout promote --all --origin west  serve the latest state of the origin to all clients at once`,
		``,
	}
	if diff := cmp.Diff(want, strings.Split(out.String(), "\n")); diff != "" {
		t.Errorf("tender rollout status (-want +got):\n%s", diff)
	}
}

// TestRolloutStatusOfOneOrigin verifies the status of a rollout that is current, that gathers changes, and that waits
// for approval before its last step. With one origin, commands have no --origin.
func TestRolloutStatusOfOneOrigin(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		s    rollout.Status
		want []string
	}{
		{rollout.Status{Origin: "o", Phase: rollout.Current, Edition: "ab", Resources: 1}, []string{
			`origin o: current: all clients receive the origin's current resources`,
			``,
			`COHORT      CLIENTS  SERVED         SUBSCRIBED  ACCEPTED  REJECTED`,
			`5% approve  1        the last good  -           -         -`,
			``,
		}},
		{rollout.Status{Origin: "o", Phase: rollout.Gathering, Waiting: 2, Oldest: now.Add(-time.Second), Since: now.Add(-time.Second), Until: now.Add(time.Second)}, []string{
			`origin o: gathering changes for an edition`,
			`  since    1s ago; the next step is due in 1s`,
			`  pending  2 resources, the oldest for 1s`,
			``,
			`COHORT      CLIENTS  SERVED         SUBSCRIBED  ACCEPTED  REJECTED`,
			`5% approve  1        the last good  -           -         -`,
			``,
			`Commands that apply:`,
			`  tender rollout diff           see what has changed`,
			`  tender rollout abort          reject it: all clients keep the last good`,
			`  tender rollout promote --all  serve the latest state of the origin to all clients at once`,
			``,
		}},
		{rollout.Status{Origin: "o", Phase: rollout.Rolling, Edition: "ab", Resources: 1, Stage: 1, Changed: now, WaitsFor: "approval"}, []string{
			`origin o: edition ab is at stage 1 of 1 (5% approve)`,
			`  waits for  approval`,
			`  edition    1 resource, the newest change 0s ago`,
			``,
			`COHORT      CLIENTS  SERVED         SUBSCRIBED  ACCEPTED  REJECTED`,
			`5% approve  1        the last good  -           -         -`,
			``,
			`Commands that apply:`,
			`  tender rollout diff     see what the edition changes`,
			`  tender rollout promote  serve the edition to all clients now`,
			`  tender rollout abort    reject the edition: all clients are served the last good`,
			``,
		}},
	} {
		var out strings.Builder
		tt.s.Cohorts = []rollout.Cohort{{Name: "5% approve", Clients: 1}, {Name: "the rest"}}
		if err := printRollouts(&out, admin.Rollouts{Rollouts: []*rollout.Status{&tt.s}}, now); err != nil {
			t.Fatal(err)
		}
		got := strings.ReplaceAll(out.String(), "the rest    0        the last good  -           -         -\n", "")
		if diff := cmp.Diff(tt.want, strings.Split(got, "\n")); diff != "" {
			t.Errorf("%v (-want +got):\n%s", tt.s.Phase, diff)
		}
	}
}

// TestRolloutStatusForPrograms verifies that JSON and YAML contain the complete status.
func TestRolloutStatusForPrograms(t *testing.T) {
	want := someRollouts(time.Now().UTC().Round(0))[:1]
	serveRollouts(t, want)
	for output, unmarshal := range map[string]func([]byte, any) error{"json": json.Unmarshal, "yaml": func(text []byte, into any) error { return yaml.UnmarshalStrict(text, into) }} {
		var got admin.Rollouts
		code, stdout, stderr := execute("rollout", "status", "--origin", "default", "-o", output)
		if err := unmarshal([]byte(stdout), &got); code != exitOK || err != nil {
			t.Fatalf("tender rollout status -o %s: code %d, %s, %v:\n%s", output, code, stderr, err, stdout)
		}
		if diff := cmp.Diff(want, got.Rollouts); diff != "" {
			t.Errorf("tender rollout status -o %s (-want +got):\n%s", output, diff)
		}
	}
}

func TestRolloutErrors(t *testing.T) {
	serveRollouts(t, someRollouts(time.Now()))
	for _, tt := range []struct {
		args string
		code int
		want string
	}{
		{"rollout", exitOK, "promote"},
		{"rollout status --origin nowhere", exitFailure, "there is no such origin"},
		{"rollout status --wait --origin west", exitFailure, "tender: origin west: the rollout is halted"},
		{"rollout status --wait --timeout 1ms --origin default", exitFailure, "tender: the rollout has not ended after 1ms"},
		{"rollout status --timeout 1m", exitUsage, "--timeout=1m0s: want --wait"},
		{"rollout status --wait --timeout -1m", exitUsage, "--timeout=-1m0s: want --wait, and a duration such as 1h"},
		{"rollout status -o wide", exitUsage, "--output=wide: want text, yaml or json"},
		{"rollout statuses", exitUsage, `unknown command "statuses" for "tender rollout"`},
		{"rollout diff a b c", exitUsage, "accepts at most 2 arg(s)"},
		{"rollout diff", exitFailure, "TENDER_ROLLOUT is off"}, // the test server has no rollout diffs
		{"rollout resume --reason x", exitUsage, "unknown flag: --reason"},
		{"rollout abort --all", exitUsage, "unknown flag: --all"},
	} {
		must(t, tt.code, []string{tt.want}, strings.Fields(tt.args)...)
	}
	if code, _, stderr := execute("rollout", "diff", "cds", ""); code != exitUsage || !strings.Contains(stderr, "TYPE and NAME may not be empty") {
		t.Errorf("tender rollout diff with an empty name: code %d, %s, want a usage error", code, stderr)
	}
}

// An asked replaces the admin client of a rolloutReader, and returns scripted responses in order.
type asked struct {
	answers []any // a *rollout.Status or an error; the last is repeated
}

func (a *asked) get(_ context.Context, _ string, into any) error {
	now := a.answers[0]
	if len(a.answers) > 1 {
		a.answers = a.answers[1:]
	}
	if err, failed := now.(error); failed {
		return err
	}
	into.(*admin.Rollouts).Rollouts = []*rollout.Status{now.(*rollout.Status)}
	return nil
}

// TestRolloutWait verifies when tender rollout status --wait returns, and the steps that it prints.
func TestRolloutWait(t *testing.T) {
	is := func(phase rollout.Phase, promoted, halted int64) *rollout.Status {
		s := &rollout.Status{Origin: "o", Phase: phase, Edition: "ab", Cohorts: make([]rollout.Cohort, 3), Outcomes: rollout.Outcomes{Promoted: promoted, Halted: halted}}
		if phase == rollout.Halted {
			s.Halted = &rollout.Halt{Reason: "rejected"}
		}
		if phase == rollout.Rolling {
			s.Stage, s.Cohorts[0].Name = 1, "5% 10m"
		}
		return s
	}
	const gathers, rolls, halts = "o  gathering changes for an edition", "o  edition ab is at stage 1 of 2 (5% 10m)", "o  edition ab is HALTED: rejected"
	for _, tt := range []struct {
		name    string
		answers func() []any
		steps   []string
		asked   int // number of responses that wait does not request, at least 1
		wantErr string
	}{
		{"no open rollout", func() []any { return []any{is(rollout.Current, 7, 7)} }, []string{"o  current"}, 1, ""},
		{"halted", func() []any { return []any{is(rollout.Halted, 0, 1)} }, []string{halts}, 1, "origin o: the rollout is halted"},
		{"promoted", func() []any {
			return []any{is(rollout.Gathering, 1, 0), is(rollout.Gathering, 1, 0), is(rollout.Rolling, 1, 0), is(rollout.Current, 2, 0), nil}
		},
			[]string{gathers, rolls, "o  current"}, 1, ""},
		{"the next rollout starts at once", func() []any { return []any{is(rollout.Rolling, 1, 0), is(rollout.Gathering, 2, 0), nil} }, []string{rolls, gathers}, 1, ""},
		{"halted between two requests", func() []any { return []any{is(rollout.Rolling, 1, 3), is(rollout.Gathering, 1, 4), nil} }, []string{rolls, gathers}, 1, "origin o: the rollout is halted"},
		{"the relay restarts", func() []any {
			return []any{is(rollout.Rolling, 5, 5), errors.New("rejected\x1b"), errors.New("rejected\x1b"), is(rollout.Gathering, 0, 0), is(rollout.Gathering, 1, 0), nil}
		}, []string{rolls, `rejected\u001b`, gathers}, 1, ""},
		{"the relay is not there", func() []any { return []any{errors.New("rejected"), nil} }, nil, 1, "rejected"},
		{"timeout", func() []any { return []any{is(rollout.Gathering, 0, 0)} }, []string{gathers}, 1, "the rollout has not ended after 1h0m0s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out strings.Builder
				relay := &asked{answers: tt.answers()}
				r := rolloutReader{client: relay, timeout: time.Hour, steps: &out}
				answer, err := r.wait(t.Context())
				if err != nil && err.Error() != tt.wantErr || (err == nil) != (tt.wantErr == "") {
					t.Errorf("error %v, want %q", err, tt.wantErr)
				}
				var steps []string
				for line := range strings.Lines(out.String()) {
					steps = append(steps, strings.TrimSpace(line[len("15:04:05"):]))
				}
				if diff := cmp.Diff(tt.steps, steps); diff != "" || len(relay.answers) != tt.asked || len(answer.Rollouts) == 0 && tt.name != "the relay is not there" {
					t.Errorf("%d responses remain, want %d; steps (-want +got):\n%s", len(relay.answers), tt.asked, diff)
				}
			})
		})
	}
}

// someDiff returns the changes of a cluster in two node groups, of a listener, and of a Secret without content. Without
// a type and a name, it returns two pages.
func someDiff(c admin.RolloutChoice) (d admin.RolloutDiff, err error) {
	const clusterType, secretType = "type.googleapis.com/envoy.config.cluster.v3.Cluster", "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
	a, b, key := &admin.RolloutContent{Version: "v1", Bytes: 100, SHA256: "a"}, &admin.RolloutContent{Version: "v2", Bytes: 2048, SHA256: "b"}, &admin.RolloutContent{Version: "s", Bytes: 9, SHA256: "s"}
	all := []admin.RolloutChange{
		{Origin: "default", Group: "g", TypeURL: clusterType, Name: "we\x1bb", Change: "changed", Before: a, After: b},
		{Origin: "default", Group: "h", TypeURL: clusterType, Name: "we\x1bb", Change: "changed", Before: a, After: b},
		{Origin: "default", Group: "h", TypeURL: listenerType, Name: "ingress", Change: "added", After: b},
		{Origin: "default", Group: "h", TypeURL: secretType, Name: "key", Parameters: map[string]string{"zone": "a"}, Change: "removed", Before: key},
	}
	for _, change := range all {
		if (c.Type == "" || c.Type == change.TypeURL) && (c.Name == "" || c.Name == change.Name) {
			d.Changes = append(d.Changes, change)
		}
	}
	if d.Total = len(d.Changes); c.After == "" && d.Total == 4 { // two pages
		d.Changes, d.Next = d.Changes[:1], "more"
	} else if c.After == "more" {
		d.Changes = d.Changes[1:]
	}
	if c.Name != "" {
		d.Bodies = map[string]json.RawMessage{"a": []byte(`{"name":"we","weight":1}`), "b": []byte(`{"name":"we","weight":2}`)}
	}
	return d, nil
}

func TestRolloutDiff(t *testing.T) {
	var chosen admin.RolloutChoice
	serveRollouts(t, nil, func(cfg *admin.Config) {
		cfg.RolloutDiff = func(_ context.Context, c admin.RolloutChoice) (admin.RolloutDiff, error) {
			if chosen = c; c.Origin == "current" {
				return admin.RolloutDiff{}, nil
			}
			return someDiff(c)
		}
	})
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, `~ cds  we\u001bb    100 B -> 2.0 KiB  2 groups
+ lds  ingress      2.0 KiB           h
- sds  key[zone:a]  9 B               h

1 added, 1 changed, 1 removed
`},
		{[]string{"--origin", "current"}, "no changes\n"},
		{[]string{"cds", "we\x1bb", "--group", "g"}, `~ cds we\u001bb (origin default, 2 groups)
--- last good: version v1
+++ edition: version v2
@@ -1,4 +1,4 @@
 {
   "name": "we",
-  "weight": 1
+  "weight": 2
 }
`},
		{[]string{"lds", "ingress"}, `+ lds ingress (origin default, h)
--- last good: none
+++ edition: version v2
@@ -0,0 +1,4 @@
+{
+  "name": "we",
+  "weight": 2
+}
`},
		{[]string{"sds", "key"}, "- sds key[zone:a] (origin default, h)\n(the content is not shown)\n"},
	} {
		code, stdout, stderr := execute(append([]string{"rollout", "diff"}, tt.args...)...)
		if diff := cmp.Diff(tt.want, stdout); code != exitOK || diff != "" {
			t.Errorf("tender rollout diff %q: code %d, %s (-want +got):\n%s", tt.args, code, stderr, diff)
		}
		if strings.Contains(strings.Join(tt.args, " "), "--group g") && chosen.Group != "g" {
			t.Errorf("tender rollout diff %q requested %+v, want group g", tt.args, chosen)
		}
	}
	var got admin.RolloutDiff
	code, stdout, stderr := execute("rollout", "diff", "-o", "json")
	if err := json.Unmarshal([]byte(stdout), &got); code != exitOK || err != nil || len(got.Changes) != 4 || got.Next != "" {
		t.Errorf("tender rollout diff -o json: code %d, %s, error %v: %+v, want 4 changes", code, stderr, err, got)
	}
}

// TestRolloutCommands verifies the request of each command that changes rollouts, and that it prints the response.
func TestRolloutCommands(t *testing.T) {
	var name string
	var got admin.RolloutScope
	serveRollouts(t, nil, func(cfg *admin.Config) {
		for _, command := range []string{"promote", "abort", "resume", "undo"} {
			cfg.Commands = append(cfg.Commands, admin.NewCommand("rollout/"+command, func(_ context.Context, of admin.RolloutScope) (admin.Rollouts, error) {
				if name, got = command, of; of.Origin == "west" {
					return admin.Rollouts{}, admin.Refuse(http.StatusConflict, rollout.ErrNothingOpen)
				}
				return admin.Rollouts{Rollouts: someRollouts(time.Now())[:1]}, nil
			}))
		}
	})
	for _, tt := range []struct {
		args []string
		want admin.RolloutScope
	}{
		{[]string{"promote"}, admin.RolloutScope{}},
		{[]string{"promote", "--all", "--origin", "default"}, admin.RolloutScope{Origin: "default", All: true}},
		{[]string{"abort", "--reason", "errors"}, admin.RolloutScope{Why: admin.Why{Reason: "errors"}}},
		{[]string{"resume"}, admin.RolloutScope{}},
		{[]string{"undo", "--reason", "errors"}, admin.RolloutScope{Why: admin.Why{Reason: "errors"}}},
	} {
		must(t, exitOK, []string{" default edition 7f3a9c21 is at stage 2 of 3 (5% 10m0s), another 8m0s, waits for answers"}, append([]string{"rollout"}, tt.args...)...)
		who := got.User
		if got.User = ""; name != tt.args[0] || got != tt.want || who == "" {
			t.Errorf("tender rollout %q requests %s with %+v by user %q, want %+v", tt.args, name, got, who, tt.want)
		}
	}
	must(t, exitOK, []string{`"state": "rolling"`}, "rollout", "promote", "-o", "json")
	must(t, exitFailure, []string{": no rollout is open"}, "rollout", "promote", "--origin", "west")
}

// TestStatusTellsOfRollouts verifies that tender status prints the state of a rollout as a note, unless it is current.
func TestStatusTellsOfRollouts(t *testing.T) {
	now := time.Now()
	s := someStatus(now)
	for phase, want := range map[rollout.Phase]string{
		rollout.Rolling: "    rollout edition 7f3a9c21 is at stage 2 of 3 (5% 10m0s), another 8m0s, waits\n    for answers: 42 of 43 clients answered, and 42 accepted: tender rollout\n    status\n",
		rollout.Halted:  "    rollout of part lds/web: edition 00c0ffee is HALTED: 1 client rejected it:\n    no\\u001b[31m such filter: tender rollout status\n",
		rollout.Current: "",
	} {
		s.Origins[0].Rollout = &rollout.Status{Phase: phase}
		for _, of := range someRollouts(now) {
			if of.Phase == phase {
				if phase == rollout.Halted {
					of.Part = "lds/web"
				}
				s.Origins[0].Rollout = of
			}
		}
		got := strings.Join(statusLines(t, "--admin", serveAdmin(t, "unix", s)), "\n")
		if !strings.Contains(got, want) || strings.Contains(got, "rollout") != (want != "") {
			t.Errorf("tender status with a rollout in phase %v:\n%s\nwant\n%s", phase, got, want)
		}
	}
}

// TestOperateRollouts promotes and undoes a change through a running relay, and verifies the output of the commands at
// each step.
func TestOperateRollouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		o.Put(relaytest.Cluster("a"))
		r := startRemote(t, instance.Options{Origins: []*relaytest.Origin{o}, Env: []string{
			"TENDER_SNAPSHOT_DIR=" + t.TempDir(), "TENDER_DELTA_VERSIONS=content", "TENDER_ROLLOUT=id=canary approve",
		}})
		prints(t, "a\n", r.get...)
		time.Sleep(time.Minute) // the state becomes the last good one
		must(t, exitOK, []string{"origin default: current: all clients receive the origin's current resources"}, "rollout", "status")
		must(t, exitOK, []string{"default current origin default: current"}, "rollout", "status", "--wait")
		must(t, exitFailure, []string{"no rollout is open: the state is current"}, "rollout", "abort", "--reason", "errors")
		must(t, exitOK, []string{"no changes"}, "rollout", "diff")

		o.Put(relaytest.Cluster("a", "other"), relaytest.Cluster("b"))
		time.Sleep(time.Minute) // gathers changes
		must(t, exitOK, []string{" is at stage 1 of 1 (id=canary approve)", "waits for approval", "id=canary approve 0", "part cds/a, of 2 open", "cds/b edition ", "tender rollout promote --part cds/a serve the edition to all clients now"}, "rollout", "status")
		must(t, exitOK, []string{"~ cds a", "+ cds b", "1 added, 1 changed, 0 removed"}, "rollout", "diff")
		must(t, exitOK, []string{`+ "service_name": "other"`}, "rollout", "diff", "cds", "a")
		must(t, exitOK, []string{"is at stage 1 of 1 (id=canary approve), waits for approval: tender rollout status"}, "status")
		must(t, exitFailure, []string{"the rollout has not ended after 10ms"}, "rollout", "status", "--wait", "--timeout", "10ms")
		prints(t, "a\n", r.get...)
		must(t, exitOK, []string{"default current"}, "rollout", "promote")
		prints(t, "a\nb\n", r.get...)
		must(t, exitOK, []string{"origin default: current"}, "rollout", "status", "--wait", "-o", "text")
		must(t, exitOK, []string{"is HALTED: undo by ", ": errors"}, "rollout", "undo", "--reason", "errors")
		must(t, exitFailure, []string{"is HALTED", "tender rollout resume", "tender: origin default: the rollout is halted"}, "rollout", "status", "--wait")
		must(t, exitOK, []string{"~ cds a", "+ cds b"}, "rollout", "diff")
		prints(t, "a\n", r.get...)
	})
}

// TestRolloutStatusOfAColdRelay verifies that the status mentions current resources only after the origin has confirmed
// its state.
func TestRolloutStatusOfAColdRelay(t *testing.T) {
	for waits, want := range map[string]string{
		"":           "the origin's current resources\n",
		"the origin": "the resources that the origin has sent\n",
	} {
		var out strings.Builder
		s := &rollout.Status{Origin: "default", Cold: true, WaitsFor: waits}
		err := printRollouts(&out, admin.Rollouts{Rollouts: []*rollout.Status{s}}, time.Now())
		if err != nil || !strings.Contains(out.String(), "origin default: current: all clients receive "+want) {
			t.Errorf("status of a rollout that waits for %q: %q, error %v; want %q", waits, out.String(), err, want)
		}
	}
}

// TestB55_StatusShowsHaltsAbove: the states of the relay and of its rollouts name what relays above have halted, and whether it is
// followed. Its words are escaped.
func TestB55_StatusShowsHaltsAbove(t *testing.T) {
	now := time.Now()
	halts := []admin.HaltAbove{
		{Relay: "zone-a:18000", Part: "cds/a", At: now.Add(-5 * time.Second), Stage: 1, Reason: "bad\x1b[2J", Followed: true},
		{Relay: "zone-b:18000", Part: "lds/l", At: now.Add(-time.Minute)},
	}
	var out strings.Builder
	all := admin.Rollouts{
		Rollouts: []*rollout.Status{{Origin: "default", Phase: rollout.Current}}, HaltedAbove: map[string][]admin.HaltAbove{"default": halts},
	}
	if err := printRollouts(&out, all, now); err != nil {
		t.Fatal(err)
	}
	var status strings.Builder
	of := &table{cli.Table{Wide: true}}
	of.origins([]admin.Origin{{Name: "default", HaltedAbove: halts}}, now)
	if err := of.Print(&status); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`cds/a HALTED ABOVE by zone-a:18000 for 5s, after stage 1, followed here: bad\u001b[2J`,
		`lds/l HALTED ABOVE by zone-b:18000 for 1m0s, not followed here: reason unknown`,
	} {
		if !strings.Contains(out.String(), want) || !strings.Contains(status.String(), want) {
			t.Errorf("want %q in:\n%s\n%s", want, out.String(), status.String())
		}
	}
}

// TestRolloutStatusOnThePage verifies that rollout.md has what tender rollout status prints after a halt by clients. With
// -update it writes the page.
func TestRolloutStatusOnThePage(t *testing.T) {
	const page = "../../deploy/docs/rollout.md"
	before, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := []byte("<!-- output: rollout status -->\n```text\n"), []byte("```\n")
	head, rest, found := bytes.Cut(before, begin)
	old, tail, ended := bytes.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no block after %s", page, begin)
	}
	synctest.Test(t, func(t *testing.T) {
		printed := printHaltedRollout(t)
		if *update {
			if err := os.WriteFile(page, slices.Concat(head, begin, []byte(printed), end, tail), 0o600); err != nil {
				t.Fatal(err)
			}
			return
		}
		if diff := cmp.Diff(string(old), printed); diff != "" {
			t.Errorf("%s differs from the output (-page +output); -update writes it:\n%s", page, diff)
		}
	})
}

// printHaltedRollout runs a relay with three canaries, of which one rejects the second change, and other clients. It returns
// the output of tender rollout status, with an edition and a peer that are the same in each run.
func printHaltedRollout(t *testing.T) string {
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
	o.Put(relaytest.Cluster("web"))
	r := startRemote(t, instance.Options{Origins: []*relaytest.Origin{o}, Env: []string{
		"TENDER_SNAPSHOT_DIR=" + t.TempDir(), "TENDER_DELTA_VERSIONS=content", "TENDER_ROLLOUT=metadata.canary=true 10m, 10% 10m",
	}})
	for i := range 40 {
		options := relaytest.ClientOptions{AutoAck: true, Node: relaytest.EnvoyNode(fmt.Sprintf("edge-%d", i+1))}
		if i < 3 {
			options.Node.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{"canary": structpb.NewBoolValue(true)}}
		}
		if responses := 0; i == 0 {
			options.Reject = func(*relaytest.Response) error {
				if responses++; responses < 3 { // the first response and the good change
					return nil
				}
				return errors.New("Error adding/updating cluster(s) web: unknown http filter")
			}
		}
		r.Client(options).Subscribe(relaytest.ClusterType, "*")
	}
	time.Sleep(time.Minute) // the state becomes the last good one
	o.Put(relaytest.Cluster("pay"))
	time.Sleep(25 * time.Minute) // it reaches all clients
	o.Put(relaytest.Cluster("web", "other"))
	time.Sleep(time.Minute)
	var answer admin.Rollouts
	_, stdout, _ := execute("rollout", "status", "-o", "json")
	if err := json.Unmarshal([]byte(stdout), &answer); err != nil || len(answer.Rollouts) != 1 || answer.Rollouts[0].Phase != rollout.Halted {
		t.Fatalf("%v, error %v; want one rollout, halted", answer.Rollouts, err)
	}
	s := answer.Rollouts[0]
	for _, of := range append(s.Parts, s) {
		of.Edition = "e1c87d20"
	}
	for i := range s.Rejections {
		s.Rejections[i].Peer = "10.0.0.4"
	}
	var out strings.Builder
	if err := printRollouts(&out, answer, time.Now()); err != nil {
		t.Fatal(err)
	}
	return out.String()
}
