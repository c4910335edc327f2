package main

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

// TestRollbackCommands verifies the output of generations, rollback and thaw, also with --dry-run, and the clusters
// that clients receive after each.
func TestRollbackCommands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		o.Put(relaytest.Cluster("old"))
		r := startRemote(t, instance.Options{Origins: []*relaytest.Origin{o}})
		prints(t, "old\n", r.get...)
		time.Sleep(time.Minute) // completes a generation
		o.Put(relaytest.Cluster("new"))
		prints(t, "new\nold\n", r.get...)
		time.Sleep(time.Minute)
		must(t, exitOK, []string{"+1 ~0 -0"}, "generations")
		must(t, exitUsage, []string{"requires a reason"}, "rollback", "1h")
		must(t, exitUsage, []string{"want a generation"}, "rollback", "yesterday", "--reason", "x")
		must(t, exitFailure, []string{"no such generation"}, "rollback", "abcdef", "--dry-run")
		must(t, exitFailure, []string{`there is no origin "x"`}, "rollback", "1h", "--origin", "x", "--dry-run")
		must(t, exitOK, []string{"- cds new", "0 added, 0 changed, 1 removed", "dry run"}, "rollback", "1h", "--dry-run")
		must(t, exitOK, []string{"+ cds new", "1 added, 0 changed, 0 removed"}, "diff", "1h")
		must(t, exitOK, []string{"no changes"}, "diff", "1h", "lds")
		must(t, exitOK, []string{`"change": "added"`, `"after"`}, "diff", "1h", "-o", "json")
		for _, args := range [][]string{{"diff", "1h", "cds", "new"}, {"diff", "1h", "--text"}, {"diff", "1h", "cds", "--text", "--group", "user_agent_name=tender-get"}} {
			must(t, exitOK, []string{"+ cds new (origin default, user_agent_name=tender-get) --- 1h: none +++ now: version ", `+ "connect_timeout": "5s"`}, args...)
		}
		must(t, exitOK, []string{"no changes"}, "diff", "1h", "--text", "--group", "other")
		must(t, exitFailure, []string{"no edition changes"}, "diff", "1h", "cds", "old")
		must(t, exitFailure, []string{"no such generation"}, "diff", "abcdef")
		must(t, exitUsage, []string{"want a generation", ", or pending"}, "diff", "yesterday")
		must(t, exitOK, []string{"no changes"}, "diff", "pending")
		must(t, exitUsage, []string{"arg(s)"}, "diff")
		must(t, exitOK, []string{"rollback", "dry run"}, "history")
		must(t, exitOK, []string{`"dry_run": true`}, "history", "-o", "json")
		if _, stdout, _ := execute("history"); strings.Contains(stdout, "done") {
			t.Errorf("tender history has a dry run as done:\n%s", stdout)
		}
		prints(t, "new\nold\n", r.get...)
		must(t, exitOK, []string{"- cds new", "ROLLED BACK", "rolled back to the configuration of", "broken"}, "rollback", "1h", "--reason", "broken")
		prints(t, "old\n", r.get...)
		must(t, exitOK, []string{"rolled back to the configuration of", "broken"}, "status")
		must(t, exitOK, []string{"rollback", "broken", "done"}, "history")
		must(t, exitOK, []string{`"generation"`, `"max_bytes": 67108864`}, "generations", "-o", "json")
		must(t, exitFailure, []string{"is rolled back", "tender thaw"}, "freeze")
		must(t, exitFailure, []string{`there is no origin "x"`}, "thaw", "--origin", "x", "--dry-run")
		must(t, exitOK, []string{"+ cds new", "1 added, 0 changed, 0 removed"}, "thaw", "--dry-run")
		must(t, exitOK, []string{"dry run: nothing is changed", "rolled back to the configuration of"}, "thaw", "--dry-run")
		must(t, exitOK, []string{"rolled back to the configuration of", "broken"}, "status")
		prints(t, "old\n", r.get...)
		must(t, exitOK, []string{"+ cds new", "1 added, 0 changed, 0 removed", "changes are distributed"}, "thaw")
		prints(t, "new\nold\n", r.get...)
		must(t, exitOK, []string{"no changes", "dry run: nothing is changed"}, "thaw", "--dry-run")

		must(t, exitOK, []string{"FROZEN"}, "freeze")
		o.Remove(relaytest.ClusterType, "new")
		o.Put(relaytest.Cluster("newer"))
		synctest.Wait()
		must(t, exitOK, []string{"1 added, 0 changed, 1 removed"}, "thaw", "--dry-run")
		prints(t, "new\nold\n", r.get...)
		must(t, exitOK, []string{"+ cds newer", "- cds new", "changes are distributed"}, "thaw")
		prints(t, "newer\nold\n", r.get...)
	})
}
