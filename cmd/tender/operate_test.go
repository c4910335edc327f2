package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

// TestOperate holds removals of a relay, and then drops, freezes, passes and thaws them.
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
		prints(t, "nothing is pending\n", "pending")
		prints(t, "nothing is passed\n", "pass", "--all")

		o.Apply(func(tx *relaytest.Tx) {
			for _, name := range mass {
				tx.Remove(relaytest.ClusterType, name)
			}
		})
		synctest.Wait()
		row := "default user_agent_name=tender-get cds remove large-removal 0s in 10m0s relay 20 mass00, mass01, mass02, …"
		must(t, exitOK, []string{"ORIGIN GROUP TYPE CHANGE REASON SINCE UNTIL BY RESOURCES NAMES", row}, "pending")
		must(t, exitOK, []string{row}, "pending", "large-removal", "--type", "cds", "--origin", "default", "--group", "user_agent_name=tender-get")
		must(t, exitOK, []string{"mass17, mass18, mass19"}, "pending", "-o", "wide")
		must(t, exitOK, []string{`"reason": "large-removal"`, `"ends": "deadline"`, `"count": 20`, `"by": "relay"`}, "pending", "-o", "json")
		must(t, exitOK, []string{"cds remove large-removal", "relay 1 mass07"}, "pending", "--name", "mass07")
		prints(t, "nothing is pending\n", "pending", "breaking")
		must(t, exitFailure, []string{`reason "x": want suspect, second-look, large-removal, replacement, breaking, required, growth, dropped, interval, frozen`}, "pending", "x")
		must(t, exitOK, []string{"20 changes are PENDING (20 large-removal): tender pending"}, "status")

		must(t, exitUsage, []string{"want a REASON, --type, --name, --group, --origin or --all; tender pending lists the changes"}, "drop")
		must(t, exitFailure, []string{"all: only without a pending_reason, type, name, group and origin"}, "drop", "--all", "--type", "cds")
		must(t, exitFailure, []string{"pending_reason=frozen: use tender thaw"}, "pass", "frozen")
		must(t, exitFailure, []string{"type=xx: want a type URL, or a short name such as cds"}, "pass", "--type", "xx")
		must(t, exitFailure, []string{"pending_reason=dropped: these are dropped already; use tender pass dropped"}, "drop", "dropped")
		prints(t, "nothing is dropped\n", "drop", "--type", "lds")
		must(t, exitFailure, []string{`there is no origin "x"; the origins are default`}, "pass", "--origin", "x")
		must(t, exitFailure, []string{`there is no origin "x"`}, "freeze", "--origin", "x")
		must(t, exitOK, []string{"dry run: would be passed:", row}, "pass", "large-removal", "--dry-run")
		prints(t, all, r.get...)
		must(t, exitOK, []string{"passed:", "1 mass00"}, "pass", "--name", "mass00", "--type", "cds")
		all = strings.Replace(all, "mass00\n", "", 1)
		prints(t, all, r.get...)
		must(t, exitOK, []string{"dropped:", "19 mass01"}, "drop", "--type", "cds")
		must(t, exitOK, []string{"cds remove dropped 0s origin ", "19 mass01"}, "pending")
		must(t, exitFailure, []string{"changes with the reason dropped: use tender pass dropped"}, "pass", "--name", "mass01")

		must(t, exitUsage, []string{"--for=-1s: want a duration"}, "freeze", "--for", "-1s")
		must(t, exitOK, []string{"default FROZEN", ", for another ", ": broken", "note: this does not survive a restart of the relay: TENDER_SNAPSHOT_DIR is not set"},
			"freeze", "--reason", "broken", "--for", "2h")
		must(t, exitOK, []string{"FROZEN for ", ", for another ", ": broken"}, "status")
		must(t, exitOK, []string{"passed:", "19"}, "pass", "dropped")
		must(t, exitOK, []string{"cds remove frozen", "in 2h0m", "19 mass01, mass02, mass03, … broken"}, "pending")
		must(t, exitFailure, []string{"changes with the reason frozen: use tender thaw"}, "pass", "--type", "cds")
		must(t, exitOK, []string{"nothing is dropped note: 19 changes are not dropped: frozen: use tender thaw"}, "drop", "--all")
		prints(t, all, r.get...) // the frozen set
		must(t, exitOK, []string{"default changes are distributed"}, "thaw")
		prints(t, "few\n", r.get...)
		prints(t, "nothing is pending\n", "pending")
	})
}

// TestB46_CommandsAboutHeldChanges verifies that operators see why changes would break clients (TENDER_VALIDATE=hold), and
// can pass them.
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
		must(t, exitOK, []string{`rds change breaking 0s origin relay 1 r r: names cluster "nowhere", which does not exist`}, "pending")
		must(t, exitOK, []string{"1 change is PENDING (1 breaking): tender pending"}, "status")
		must(t, exitOK, []string{"cluster: a"}, route...)
		must(t, exitOK, []string{"passed", "rds"}, "pass", "breaking", "--type", "rds")
		must(t, exitOK, []string{"cluster: nowhere"}, route...)
	})
}

// TestH11_StatusNamesBadFiles verifies that tender status prints the refused files of a file origin with their lines.
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

// TestOperateOnGroupsByName verifies that commands accept the name of a node group besides its key, and print it.
func TestOperateOnGroupsByName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		for i := range 20 {
			o.Put(relaytest.Cluster(fmt.Sprint("c", i)))
		}
		r := startRemote(t, instance.Options{Origins: []*relaytest.Origin{o}, Env: []string{
			"TENDER_NODE_GROUP_BY=metadata.NAMESPACE", "TENDER_HOLD_EXPLICIT_REMOVALS=on", "TENDER_MASS_DELETE_HOLD=1h",
		}})
		for _, namespace := range []string{"shop", "pay"} {
			node := relaytest.EnvoyNode(namespace)
			node.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{"NAMESPACE": structpb.NewStringValue(namespace)}}
			r.Client(relaytest.ClientOptions{AutoAck: true, Node: node}).Subscribe(relaytest.ClusterType, "*")
		}
		time.Sleep(time.Minute) // the sets are complete
		o.Apply(func(tx *relaytest.Tx) {
			for i := range 20 {
				tx.Remove(relaytest.ClusterType, fmt.Sprint("c", i))
			}
		})
		synctest.Wait()
		must(t, exitOK, []string{"default NAMESPACE=pay cds remove large-removal", "default NAMESPACE=shop cds remove large-removal"}, "pending")
		for _, group := range []string{"NAMESPACE=shop", `metadata.NAMESPACE="shop"`} {
			for _, args := range [][]string{{"pending"}, {"pass", "--dry-run"}, {"drop", "--dry-run"}, {"audit"}} {
				args = append(args, "--group", group)
				if code, stdout, stderr := execute(args...); code == exitUsage || !strings.Contains(stdout, "NAMESPACE=shop") || strings.Contains(stdout, "NAMESPACE=pay") {
					t.Errorf("tender %s: code %d, want only the group shop:\n%s%s", strings.Join(args, " "), code, stdout, stderr)
				}
			}
		}
		must(t, exitOK, []string{"passed:", "default NAMESPACE=shop cds"}, "pass", "--group", "NAMESPACE=shop")
		must(t, exitOK, []string{"default changes are distributed"}, "thaw")
		must(t, exitOK, []string{"FROZEN"}, "freeze")
		o.Put(relaytest.Cluster("new"))
		synctest.Wait()
		must(t, exitOK, []string{"NAMESPACE=shop cds add frozen"}, "pending", "frozen", "--group", "NAMESPACE=shop")
		if _, stdout, _ := execute("pending", "frozen", "--group", "NAMESPACE=shop"); strings.Contains(stdout, "pay") {
			t.Errorf("tender pending --group NAMESPACE=shop prints another group:\n%s", stdout)
		}
	})
}
