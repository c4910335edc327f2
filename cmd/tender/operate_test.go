package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

// runRelay runs a relay with an origin until the test ends, and sets adminVariable to its admin address.
func runRelay(t *testing.T, origin string, env ...string) *instance.Relay {
	t.Helper()
	r := instance.Start(t, instance.Options{Env: append(env, "TENDER_ORIGIN="+origin, "TENDER_ADMIN_LISTEN=127.0.0.1:0")})
	t.Setenv(adminVariable, r.AdminAddrs()[0].String())
	return r
}

// await runs a command repeatedly until wanted returns true for its output. what describes this output in the error.
func await(t *testing.T, what string, wanted func(stdout string) bool, args ...string) {
	t.Helper()
	deadline := time.Now().Add(relaytest.Patience)
	for {
		_, stdout, stderr := execute(args...)
		if wanted(stdout) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("tender %s does not print %s:\n%s%s", strings.Join(args, " "), what, stdout, stderr)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TestOperate holds removals of a relay, and then discards, freezes, releases and thaws them.
func TestOperate(t *testing.T) {
	dir := t.TempDir()
	write := func(file string, n int) {
		t.Helper()
		text := "resources:\n"
		for i := range n {
			text += fmt.Sprintf("- {'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster, name: %s%02d}\n", file, i)
		}
		if err := os.WriteFile(filepath.Join(dir, file+".yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("mass", 20)
	write("few", 1)
	r := runRelay(t, "file://"+dir)
	get := []string{"get", "-a", r.Addrs()[0].String(), "cds", "-o", "name"}
	lines := func(n int) func(string) bool {
		return func(stdout string) bool { return strings.Count(stdout, "\n") == n }
	}
	await(t, "21 clusters", lines(21), get...)
	must(t, exitOK, []string{"nothing is held back"}, "release")
	must(t, exitOK, []string{"nothing is released"}, "release", "--all")

	if err := os.Remove(filepath.Join(dir, "mass.yaml")); err != nil {
		t.Fatal(err)
	}
	await(t, "a hold", func(stdout string) bool { return strings.Contains(stdout, "held back for another") }, "release")
	must(t, exitUsage, []string{"default", "all", "cds", "20", "mass00, mass01, mass02, …", "choose with --origin, --group, --type, or --all"}, "discard")
	must(t, exitOK, []string{"20 removals are HELD BACK: tender release"}, "status")
	must(t, exitOK, []string{"nothing is discarded"}, "discard", "--type", "lds")
	must(t, exitFailure, []string{`there is no origin "x"; the origins are default`}, "release", "--origin", "x")
	must(t, exitFailure, []string{`there is no origin "x"`}, "freeze", "--origin", "x")
	must(t, exitOK, []string{"20", "discarded", "mass00"}, "discard", "--type", "cds")
	must(t, exitUsage, []string{"discarded: kept until the origin mentions it again"}, "release")

	must(t, exitUsage, []string{"--for=-1s: want a duration"}, "freeze", "--for", "-1s")
	must(t, exitOK, []string{"default FROZEN", " at 127.0.0.1 ", ", for another ", ": broken", "note: this does not survive a restart of the relay: TENDER_SNAPSHOT_DIR is not set"},
		"freeze", "--reason", "broken", "--for", "2h")
	must(t, exitOK, []string{"FROZEN for ", ", for another ", ": broken"}, "status")
	must(t, exitOK, []string{"20", "released"}, "release", "--all", "--discarded")
	await(t, "no held removals", func(stdout string) bool { return stdout == "nothing is held back\n" }, "release")
	await(t, "the frozen set", lines(21), get...)
	must(t, exitOK, []string{"default changes are distributed"}, "thaw")
	await(t, "the one remaining cluster", lines(1), get...)
}

// TestB46_CommandsAboutHeldChanges verifies that operators see held changes with the reason (TENDER_VALIDATE=hold), and
// can release them.
func TestB46_CommandsAboutHeldChanges(t *testing.T) {
	dir := t.TempDir()
	write := func(file, resource string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, file), []byte("resources: [{'@type': type.googleapis.com/envoy.config."+resource+"}]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	route := func(cluster string) string {
		return "route.v3.RouteConfiguration, name: r, virtual_hosts: [{name: v, domains: ['*'], routes: [{match: {prefix: /}, route: {cluster: " + cluster + "}}]}]"
	}
	write("a.yaml", "cluster.v3.Cluster, name: a")
	write("r.yaml", route("a"))
	r := runRelay(t, "file://"+dir, "TENDER_VALIDATE=hold")
	get := []string{"get", "-a", r.Addrs()[0].String(), "rds", "r", "-o", "yaml"}
	leads := func(to string) func(string) bool {
		return func(stdout string) bool { return strings.Contains(stdout, "cluster: "+to) }
	}
	await(t, "the route", leads("a"), get...)
	write("r.yaml", route("nowhere"))
	await(t, "a hold", func(stdout string) bool {
		return strings.Contains(stdout, "held back until clients can use the result")
	}, "release")
	must(t, exitUsage, []string{"rds", `r: names cluster "nowhere", which does not exist`}, "discard")
	must(t, exitOK, []string{"held change", "1 change is HELD", `names cluster "nowhere"`}, "status")
	await(t, "the route before the change", leads("a"), get...)
	must(t, exitOK, []string{"released", "rds"}, "release", "--type", "rds")
	await(t, "the route to nowhere", leads("nowhere"), get...)
}

// TestH11_StatusNamesBadFiles verifies that tender status prints the rejected files of a file origin with their lines.
func TestH11_StatusNamesBadFiles(t *testing.T) {
	dir := t.TempDir()
	for i := range 7 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.yaml", i)), []byte("resources: []\nnonsense: ["), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	runRelay(t, "file://"+dir)
	for wide, want := range map[bool]int{false: 5, true: 7} {
		args := []string{"status"}
		if wide {
			args = append(args, "-o", "wide")
		}
		_, stdout, stderr := execute(args...)
		if n := strings.Count(stdout, "BAD FILE "); n != want || !strings.Contains(stdout, "0.yaml:2") || strings.Contains(stdout, "and 2 more bad files of 7") == wide {
			t.Errorf("tender %s prints %d bad files, want %d:\n%s%s", strings.Join(args, " "), n, want, stdout, stderr)
		}
	}
}
