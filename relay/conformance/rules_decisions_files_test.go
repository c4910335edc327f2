package conformance_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/upstream/reconcile"
)

// clusterFile writes a file with clusters.
func clusterFile(t *testing.T, dir, name string, clusters ...string) {
	t.Helper()
	text := "resources:\n"
	for _, c := range clusters {
		text += "- {'@type': " + typeCDS + ", name: " + c + "}\n"
	}
	badWrite(t, dir, name, text)
}

// expectClusters waits until a new client of each variant has exactly these clusters.
func expectClusters(t *testing.T, r *running, names ...string) {
	t.Helper()
	for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
		c := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
		c.Subscribe(typeCDS)
		c.WaitState(t.Context(), func(s relaytest.State) bool { return slices.Equal(s.Names(typeCDS), names) })
		c.Close()
	}
}

// A frozen directory is served after restarts, whatever its files contain, and even if none is readable. After the
// thaw, clients get the files' current resources.
func TestH09_FrozenDirectorySurvivesARestart(t *testing.T) {
	t.Parallel()
	dir, env := t.TempDir(), []string{operated, "TENDER_SNAPSHOT_DIR=" + t.TempDir()}
	clusterFile(t, dir, "a.yaml", "a", "b")
	badWrite(t, dir, "l.yaml", "resources: [{'@type': "+typeLDS+", name: l}]\n")
	r := startFiles(t, dir, env...)
	expectClusters(t, r, "a", "b")
	r.freeze(admin.FreezeScope{})
	clusterFile(t, dir, "a.yaml", "b", "c")
	if err := os.Remove(filepath.Join(dir, "l.yaml")); err != nil {
		t.Fatal(err)
	}
	for _, broken := range []bool{false, true} {
		r.Stop()
		if broken {
			badWrite(t, dir, "a.yaml", "resources: [")
		}
		r = startFiles(t, dir, env...)
		expectClusters(t, r, "a", "b")
		c := r.Client(relaytest.ClientOptions{AutoAck: true})
		c.Subscribe(typeLDS)
		c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(typeLDS, "l") })
	}
	clusterFile(t, dir, "a.yaml", "b", "c")
	awaitStatus(t, r, "good again", func(s admin.Status) bool { return s.Origins[0].Directory.BadCount == 0 })
	c := r.Client(relaytest.ClientOptions{AutoAck: true})
	c.Subscribe(typeCDS)
	c.Subscribe(typeLDS)
	c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(typeCDS, "a", "b") && s.Has(typeLDS, "l") })
	r.thaw()
	c.WaitState(t.Context(), func(s relaytest.State) bool {
		return slices.Equal(s.Names(typeCDS), []string{"b", "c"}) && len(s.Names(typeLDS)) == 0
	})
	r.Stop()
	r = startFiles(t, dir, env...)
	expectClusters(t, r, "b", "c")
	if left, err := filepath.Glob(filepath.Join(env[1][len("TENDER_SNAPSHOT_DIR="):], "*.snapshot")); err != nil ||
		len(left) != 0 {
		t.Errorf("got the files %v, %v for a directory that is not frozen, want none", left, err)
	}
}

// Resources of deleted files that an operator has kept are kept after restarts, until they pass.
func TestH09_KeptFilesSurviveARestart(t *testing.T) {
	t.Parallel()
	dir, env := t.TempDir(), []string{operated, "TENDER_SNAPSHOT_DIR=" + t.TempDir()}
	var mass []string
	for i := range 20 {
		mass = append(mass, fmt.Sprintf("m%02d", i))
	}
	clusterFile(t, dir, "few.yaml", "few")
	clusterFile(t, dir, "mass.yaml", mass...)
	all := append([]string{"few"}, mass...)
	r := startFiles(t, dir, env...)
	expectClusters(t, r, all...)
	if err := os.Remove(filepath.Join(dir, "mass.yaml")); err != nil {
		t.Fatal(err)
	}
	awaitStatus(t, r, "a hold", func(s admin.Status) bool { return heldIn(s) == 20 })
	for user, of := range map[string]admin.PendingScope{
		"alice": {PendingChoice: admin.PendingChoice{Name: mass[19]}}, "bob": {PendingChoice: admin.PendingChoice{Name: mass[18]}},
	} {
		of.User = user
		if h := operate[admin.PendingScope, admin.PendingDecision](t, r, "drop", of); len(h.Pending) != 1 || h.Warning != "" {
			t.Fatalf("got the dropped changes %+v, want one cluster", h)
		}
	}
	if h := operate[admin.PendingScope, admin.PendingDecision](t, r, "drop", admin.PendingScope{All: true}); len(h.Pending) != 1 ||
		h.Pending[0].Count != 18 || h.Warning != "" {
		t.Fatalf("got the dropped changes %+v, want 18 clusters", h)
	}
	rows := getJSON[admin.Pending](t, r, "/api/v1/pending").Pending
	if len(rows) != 3 || !strings.HasPrefix(rows[0].By, "alice at ") && !strings.HasPrefix(rows[1].By, "alice at ") {
		t.Errorf("got the changes %+v, want those of three operators", rows)
	}
	for range 2 {
		r.Stop()
		r = startFiles(t, dir, env...)
		expectClusters(t, r, all...)
		now := getJSON[admin.Pending](t, r, "/api/v1/pending").Pending
		if diff := cmp.Diff(rows, now, cmpopts.EquateApproxTime(time.Second)); diff != "" {
			t.Errorf("after a restart: dropped changes (-before +after):\n%s", diff)
		}
	}
	clusterFile(t, dir, "back.yaml", mass[:5]...)
	awaitStatus(t, r, "two files", func(s admin.Status) bool { return s.Origins[0].Directory.FileCount == 2 })
	if h := operate[admin.PendingScope, admin.PendingDecision](t, r, "pass", admin.PendingScope{
		PendingChoice: admin.PendingChoice{PendingReason: string(reconcile.Dropped)},
	}); len(h.Pending) != 3 ||
		h.Pending[0].Count+h.Pending[1].Count+h.Pending[2].Count != 15 {
		t.Errorf("got the passed changes %+v, want the 15 clusters that are in no file", h)
	}
	expectClusters(t, r, append([]string{"few"}, mass[:5]...)...)
	r.Stop()
	expectClusters(t, startFiles(t, dir, env...), append([]string{"few"}, mass[:5]...)...)
}
