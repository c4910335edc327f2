package conformance_test

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/rollout"
)

// pendingRows returns the pending changes of a relay, each as one text, and verifies their numbers in the status, and that their
// diff has the same changes.
func pendingRows(t testing.TB, r *running) (texts []string) {
	t.Helper()
	numbers, listed, differs := make(map[string]int), make(map[string]bool), make(map[string]bool)
	for _, c := range getJSON[admin.RolloutDiff](t, r, "/api/v1/pending/diff").Changes {
		differs[strings.TrimSuffix(strings.TrimSuffix(c.Change, "d"), "e")+" "+c.TypeURL+" "+c.Name] = true
	}
	for _, row := range getJSON[admin.Pending](t, r, "/api/v1/pending").Pending {
		short, _ := schema.ShortName(row.TypeURL)
		text := fmt.Sprintf("%s %s %s %s: ends by %s", row.Change, short, strings.Join(row.Names, " "), row.Reason, row.Ends)
		if row.By != admin.ByRelay {
			text += ", by " + row.By
		}
		if row.Note != "" {
			text += ", " + row.Note
		}
		texts = append(texts, text)
		for _, name := range row.Names {
			listed[strings.TrimSuffix(row.Change, "e")+" "+row.TypeURL+" "+name] = true
		}
		numbers[row.Reason] += row.Count
	}
	if got := statusOf(t, r).Origins[0].Pending; !maps.Equal(got, numbers) {
		t.Errorf("the status has the numbers %v, the list %v", got, numbers)
	}
	if diff := cmp.Diff(listed, differs); diff != "" {
		t.Errorf("changes of the list and of its diff (-list +diff):\n%s", diff)
	}
	return texts
}

// wantPending fails the test unless these changes are pending, as pendingRows returns them.
func wantPending(t testing.TB, when string, r *running, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, pendingRows(t, r)); diff != "" {
		t.Errorf("%s: pending changes (-want +got):\n%s", when, diff)
	}
}

// Changes during a freeze and after a rollback are pending, with the operator who decided. Pass and drop name the command to use
// for them, and change nothing.
func TestPendingByOperators(t *testing.T) {
	t.Parallel()
	worldBubble(t, []string{operated}, func(w *world) {
		w.change("cds a@1", "cds b@1", "lds l@1")
		c := w.autoClient(relaytest.Delta).subscribe("cds", "").subscribe("lds", "")
		w.sleep(20 * time.Second)
		c.ackPending()
		wantPending(w.t, "at first", w.relay)
		because := admin.Why{Reason: "bad routes", User: "alice"}
		w.relay.freeze(admin.FreezeScope{Why: because, ForSeconds: 3600})
		by := "by alice at pipe, bad routes"
		w.change("cds a@2", "cds c@1", "cds -b", "lds l@2")
		w.settle()
		frozen := []string{
			"add cds c frozen: ends by deadline, " + by, "change cds a frozen: ends by deadline, " + by,
			"remove cds b frozen: ends by deadline, " + by, "change lds l frozen: ends by deadline, " + by,
		}
		wantPending(w.t, "frozen", w.relay, frozen...)
		for command, args := range map[string]admin.PendingScope{
			"pass": {PendingChoice: admin.PendingChoice{Name: "c"}}, "drop": {PendingChoice: admin.PendingChoice{Scope: admin.Scope{Type: "lds"}}},
		} {
			if code, text := post(w.t, w.relay, command, args); code != http.StatusConflict || !strings.Contains(text, "use tender thaw") {
				w.t.Errorf("%s: %d %s, want 409 and the command to use", command, code, text)
			}
		}
		of := getJSON[admin.Pending](w.t, w.relay, "/api/v1/pending?type=cds&name=c&reason=frozen&origin=default").Pending
		if len(of) != 1 || of[0].Names[0] != "c" {
			w.t.Errorf("selected %+v, want c", of)
		}
		if code, text := httpGet(w.t, w.relay.DialAdmin, "/api/v1/pending?reason=held"); code != http.StatusBadRequest || !strings.Contains(text, "want suspect,") {
			w.t.Errorf("reason=held: %d %s, want 400 with the reasons", code, text)
		}
		w.settle()
		wantPending(w.t, "still frozen", w.relay, frozen...)
		w.relay.thaw()
		w.settle()
		wantPending(w.t, "thawed", w.relay)
		known := generationsOf(w.t, w.relay)
		w.relay.rollback(known[len(known)-1].Generation)
		w.settle()
		var rolledBack []string
		for _, text := range pendingRows(w.t, w.relay) {
			change, _, _ := strings.Cut(text, ":")
			rolledBack = append(rolledBack, change)
		}
		want := []string{"add cds c rolled-back", "change cds a rolled-back", "remove cds b rolled-back", "change lds l rolled-back"}
		if diff := cmp.Diff(want, rolledBack); diff != "" {
			w.t.Errorf("rolled back: pending changes (-want +got):\n%s", diff)
		}
	})
}

// Changes that wait for a rollout are pending, with the part and the edition. So are changes that are in no edition yet, and those of a
// halted edition.
func TestPendingByRollouts(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		w.client(v, "canary", w.rejecting("lds l@2"))
		w.client(v, "other", nil)
		w.settle()
		wantPending(w.t, "at first", w.relay)
		w.change("cds a@2")
		w.sleep(time.Second)
		wantPending(w.t, "gathering", w.relay, "change cds a stage: ends by deadline, in the next edition")
		w.sleep(time.Minute)
		s := w.expectPhase(rollout.Rolling, 1)
		stage := fmt.Sprintf("part cds/a, edition %s, stage 1 of %d", s.Edition, len(s.Cohorts)-1)
		wantPending(w.t, "rolling", w.relay, "change cds a stage: ends by deadline, "+stage)
		w.relay.freeze(admin.FreezeScope{Why: admin.Why{User: "alice"}})
		wantPending(w.t, "frozen", w.relay, "change cds a frozen: ends by operator, by alice at pipe")
		w.relay.thaw()
		w.sleep(time.Hour)
		w.expectPhase(rollout.Current, 0)
		wantPending(w.t, "promoted", w.relay)
		w.change("lds l@2")
		w.sleep(time.Minute)
		s = w.expectPhase(rollout.Halted, 0)
		halted := fmt.Sprintf("change lds l halted: ends by operator, part lds/l, edition %s: ", s.Edition)
		wantPending(w.t, "halted", w.relay, halted+s.Halted.Reason)
	})
}
