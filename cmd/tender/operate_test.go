package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

// TestOperate holds removals of a relay, and then discards, freezes, releases and thaws them.
func TestOperate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		var mass []string
		for i := range 20 {
			mass = append(mass, fmt.Sprintf("mass%02d", i))
			o.Put(relaytest.Cluster(mass[i]))
		}
		o.Put(relaytest.Cluster("few"))
		r := startRemote(t, instance.Options{Origins: []*relaytest.Origin{o}, Env: []string{"TENDER_HOLD_EXPLICIT_REMOVALS=on"}})
		all := "few\n" + strings.Join(mass, "\n") + "\n"
		prints(t, all, r.get...)
		time.Sleep(time.Minute) // the set is complete
		must(t, exitOK, []string{"nothing is held back"}, "release")
		must(t, exitOK, []string{"nothing is released"}, "release", "--all")

		o.Apply(func(tx *relaytest.Tx) {
			for _, name := range mass {
				tx.Remove(relaytest.ClusterType, name)
			}
		})
		synctest.Wait()
		must(t, exitUsage, []string{"held back for another", "default", "all", "cds", "20", "mass00, mass01, mass02, …", "choose with --origin, --group, --type, or --all"}, "discard")
		must(t, exitOK, []string{"20 removals are HELD BACK: tender release"}, "status")
		must(t, exitOK, []string{"nothing is discarded"}, "discard", "--type", "lds")
		must(t, exitFailure, []string{`there is no origin "x"; the origins are default`}, "release", "--origin", "x")
		must(t, exitFailure, []string{`there is no origin "x"`}, "freeze", "--origin", "x")
		must(t, exitOK, []string{"20", "discarded", "mass00"}, "discard", "--type", "cds")
		must(t, exitUsage, []string{"discarded: kept until the origin mentions it again"}, "release")

		must(t, exitUsage, []string{"--for=-1s: want a duration"}, "freeze", "--for", "-1s")
		must(t, exitOK, []string{"default FROZEN", ", for another ", ": broken", "note: this does not survive a restart of the relay: TENDER_SNAPSHOT_DIR is not set"},
			"freeze", "--reason", "broken", "--for", "2h")
		must(t, exitOK, []string{"FROZEN for ", ", for another ", ": broken"}, "status")
		must(t, exitOK, []string{"20", "released"}, "release", "--all", "--discarded")
		prints(t, "nothing is held back\n", "release")
		prints(t, all, r.get...) // the frozen set
		must(t, exitOK, []string{"default changes are distributed"}, "thaw")
		prints(t, "few\n", r.get...)
	})
}

// TestB46_CommandsAboutHeldChanges verifies that operators see held changes with the reason (TENDER_VALIDATE=hold), and
// can release them.
func TestB46_CommandsAboutHeldChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		o.Put(relaytest.StaticCluster("a", "127.0.0.1:1"), relaytest.Route("r", []string{"*"}, "a"))
		r := startRemote(t, instance.Options{Origins: []*relaytest.Origin{o}, Env: []string{"TENDER_VALIDATE=hold"}})
		route := []string{"get", "-a", r.target, "rds", "r", "-o", "yaml"}
		prints(t, "a\n", r.get...) // the relay knows the clusters
		must(t, exitOK, []string{"cluster: a"}, route...)
		o.Put(relaytest.Route("r", []string{"*"}, "nowhere"))
		synctest.Wait()
		must(t, exitUsage, []string{"held back until clients can use the result", "rds", `r: names cluster "nowhere", which does not exist`}, "discard")
		must(t, exitOK, []string{"held change", "1 change is HELD", `names cluster "nowhere"`}, "status")
		must(t, exitOK, []string{"cluster: a"}, route...)
		must(t, exitOK, []string{"released", "rds"}, "release", "--type", "rds")
		must(t, exitOK, []string{"cluster: nowhere"}, route...)
	})
}

// TestH11_StatusNamesBadFiles verifies that tender status prints the rejected files of a file origin with their lines.
func TestH11_StatusNamesBadFiles(t *testing.T) {
	dir := t.TempDir()
	for i := range 7 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.yaml", i)), []byte("resources: []\nnonsense: ["), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	startRemote(t, instance.Options{Env: []string{"TENDER_ORIGIN=file://" + dir}})
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
