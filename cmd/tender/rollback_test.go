package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestRollbackCommands verifies the output of generations, rollback and thaw, also with --dry-run, and the clusters
// that clients receive after each.
func TestRollbackCommands(t *testing.T) {
	dir := t.TempDir()
	write := func(names ...string) {
		t.Helper()
		text := "resources:\n"
		for _, name := range names {
			text += "- {'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster, name: " + name + "}\n"
		}
		if err := os.WriteFile(filepath.Join(dir, "all.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("old")
	r := runRelay(t, "file://"+dir)
	get := []string{"get", "-a", r.Addrs()[0].String(), "cds", "-o", "name"}
	prints := func(want string) func(string) bool {
		return func(stdout string) bool { return strings.Contains(stdout, want) }
	}
	await(t, "the cluster", prints("old\n"), get...)
	await(t, "a complete generation", regexp.MustCompile(`\((?:[4-9]|\d\d)(?:\.\d)?s ago\)`).MatchString, "generations")
	write("old", "new")
	await(t, "both clusters", prints("new\n"), get...)
	await(t, "two generations", prints("+1 ~0 -0"), "generations")
	must(t, exitUsage, []string{"requires a reason"}, "rollback", "1h")
	must(t, exitUsage, []string{"want a generation"}, "rollback", "yesterday", "--reason", "x")
	must(t, exitFailure, []string{"no such generation"}, "rollback", "abcdef", "--dry-run")
	must(t, exitFailure, []string{`there is no origin "x"`}, "rollback", "1h", "--origin", "x", "--dry-run")
	must(t, exitOK, []string{"- cds new", "0 added, 0 changed, 1 removed", "dry run"}, "rollback", "1h", "--dry-run")
	must(t, exitOK, []string{"old", "new"}, get...)
	must(t, exitOK, []string{"- cds new", "ROLLED BACK", "rolled back to the configuration of", "broken"}, "rollback", "1h", "--reason", "broken")
	await(t, "the old cluster alone", func(stdout string) bool { return stdout == "old\n" }, get...)
	must(t, exitOK, []string{"rolled back to the configuration of", "broken"}, "status")
	must(t, exitOK, []string{"rollback", "broken", "done"}, "history")
	must(t, exitOK, []string{`"generation"`, `"max_bytes": 67108864`}, "generations", "-o", "json")
	must(t, exitFailure, []string{"is rolled back", "tender thaw"}, "freeze")
	must(t, exitFailure, []string{`there is no origin "x"`}, "thaw", "--origin", "x", "--dry-run")
	must(t, exitOK, []string{"+ cds new", "1 added, 0 changed, 0 removed"}, "thaw", "--dry-run")
	must(t, exitOK, []string{"dry run: nothing is changed", "rolled back to the configuration of"}, "thaw", "--dry-run")
	must(t, exitOK, []string{"rolled back to the configuration of", "broken"}, "status")
	await(t, "the old cluster alone", func(stdout string) bool { return stdout == "old\n" }, get...)
	must(t, exitOK, []string{"+ cds new", "1 added, 0 changed, 0 removed", "changes are distributed"}, "thaw")
	await(t, "both clusters", prints("new\n"), get...)
	must(t, exitOK, []string{"no changes", "dry run: nothing is changed"}, "thaw", "--dry-run")

	must(t, exitOK, []string{"FROZEN"}, "freeze")
	write("old", "newer")
	await(t, "the difference to the directory", prints("1 added, 0 changed, 1 removed"), "thaw", "--dry-run")
	await(t, "the frozen clusters", func(stdout string) bool { return stdout == "new\nold\n" }, get...)
	must(t, exitOK, []string{"+ cds newer", "- cds new", "changes are distributed"}, "thaw")
	await(t, "the current clusters", prints("newer\n"), get...)
}
