package conformance_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/rollout"
)

// Held-back removals are in no edition until they pass, and do not delay an edition of other changes. Once
// passed, they are in the next edition.
func TestHeldRemovalsAreInNoEdition(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		w.origin.Change(func(b *relaytest.Behaviour) { b.SotW = true })
		many, removed := "", []string(nil)
		for i := range 30 {
			name := fmt.Sprintf("m%02d", i)
			w.change("cds " + name + "@1")
			many, removed = many+" "+name+"@1", append(removed, "-cds "+name)
		}
		canary, other := w.client(v, "canary", nil), w.client(v, "other", nil)
		w.settle()
		w.expectResources("cds a@1 b@1"+many, canary, other)
		w.origin.Stop()
		w.change("cds a@2")
		w.origin.Apply(func(tx *relaytest.Tx) {
			for i := range 30 {
				tx.Remove(typeURLs["cds"], fmt.Sprintf("m%02d", i))
			}
		})
		w.origin.Restart()
		w.sleep(time.Minute)
		rows := getJSON[admin.Pending](w.t, w.relay, "/api/v1/pending").Pending
		if len(rows) != 2 || rows[0].Reason != "large-removal" || rows[0].Count != 30 || rows[1].Reason != "stage" ||
			rows[1].Count != 1 || rows[1].Change != "change" || rows[1].Names[0] != "a" {
			w.t.Errorf("got the pending changes %+v, want the removal of 30 clusters, and a change that waits for a stage", rows)
		}
		s := w.expectPhase(rollout.Rolling, 1)
		if s.Resources != 1 || s.Large || s.Waiting != 1 {
			w.t.Errorf("got the edition %+v, want one resource", s)
		}
		w.expectDiff("", "~cds a")
		w.expectResources("cds a@2 b@1"+many, canary)
		w.expectResources("cds a@1 b@1"+many, other)

		operate[admin.PendingScope, admin.PendingDecision](w.t, w.relay, "pass", admin.PendingScope{All: true})
		w.sleep(time.Minute)
		if s := w.expectPhase(rollout.Rolling, 1); s.Resources != 1 || s.Waiting != 31 {
			w.t.Errorf("after pass: got %+v, want 31 changes that wait for the next edition", s)
		}
		w.expectResources("cds a@2 b@1"+many, canary)
		w.expectResources("cds a@1 b@1"+many, other)
		w.sleep(20 * time.Minute)
		w.expectResources("cds a@2 b@1"+many, canary, other)
		w.expectPhase(rollout.Held, 0)
		w.expectDiff("", removed...)
		w.command("promote", admin.RolloutScope{})
		w.expectResources("cds a@2 b@1", canary)
		w.expectResources("cds a@2 b@1"+many, other)
		w.sleep(20 * time.Minute)
		w.expectResources("cds a@2 b@1", other)
	}, "TENDER_MASS_DELETE_HOLD=1h")
}

// expectHistory fails the test unless the history of a resource since a time has exactly these changes, newest
// first.
func (w *rolloutWorld) expectHistory(since time.Time, short, name string, want ...string) (changes []admin.Change) {
	w.t.Helper()
	path := fmt.Sprintf("/api/v1/history?type=%s&name=%s", short, name)
	if code, _ := httpGet(w.t, w.relay.DialAdmin, path); code != http.StatusNotFound {
		changes = getJSON[admin.History](w.t, w.relay, path).Changes
	}
	var got []string
	for _, c := range changes {
		if !c.At.Before(since) {
			got = append(got, c.Change)
		}
	}
	if !slices.Equal(got, want) {
		w.t.Fatalf("the history of %s %s is %q, want %q", short, name, got, want)
	}
	return changes
}

// The history records one change when an edition is promoted, its reversal when it is undone, and none for waiting
// or rejected changes. Endpoint changes are recorded at once. An audit reports no difference for waiting changes.
func TestHistoryFollowsTheLastGood(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		audit := func() {
			w.t.Helper()
			for _, view := range operate[admin.Scope, admin.Audits](w.t, w.relay, "audit", admin.Scope{}).Views {
				for _, of := range view.Types {
					if of.Differing() > 0 || view.Error != "" {
						w.t.Errorf("audit of %s: %+v %s, want no difference", view.Group, of, view.Error)
					}
				}
			}
		}
		w.client(v, "canary", w.rejecting("lds l@2"))
		w.clients(v, "other")
		began := time.Now()
		w.change("cds a@2", "cds c@1", "eds a@2")
		w.sleep(time.Minute)
		w.expectPhase(rollout.Rolling, 1)
		w.expectHistory(began, "eds", "a", "changed")
		w.expectHistory(began, "cds", "a")
		w.expectHistory(began, "cds", "c")
		audit()
		w.sleep(20 * time.Minute)
		w.expectHistory(began, "cds", "c", "added")
		if c := w.expectHistory(began, "cds", "a", "changed")[0]; !strings.Contains(c.Diff,
			"-alt_stat_name: revision-1\n+alt_stat_name: revision-2\n") || c.BytesBefore == 0 {
			w.t.Errorf("the history has the promoted change %+v", c)
		}

		w.change("lds l@2", "cds a@3")
		w.sleep(time.Minute)
		w.expectPhase(rollout.Halted, 0)
		w.expectHistory(began, "lds", "l")
		w.expectHistory(began, "cds", "a", "changed")
		audit()
		w.change("lds l@1", "cds a@2")
		w.sleep(time.Minute)
		w.expectPhase(rollout.Current, 0)
		w.expectHistory(began, "lds", "l")
		w.expectHistory(began, "cds", "a", "changed")

		w.command("undo", admin.RolloutScope{})
		w.expectHistory(began, "cds", "c", "removed", "added")
		if c := w.expectHistory(began, "cds", "a", "changed", "changed")[0]; !strings.Contains(c.Diff,
			"-alt_stat_name: revision-2\n+alt_stat_name: revision-1\n") {
			w.t.Errorf("the history has the undone change %+v", c)
		}
		w.command("promote", admin.RolloutScope{All: true})
		w.expectHistory(began, "cds", "c", "added", "removed", "added")
		w.expectHistory(began, "eds", "a", "changed")
	}, "TENDER_HISTORY=10")
}

// Rollout commands are logged with the operator and the result, and executed ones with their edition.
func TestRolloutCommandsAreLogged(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		w.clients(v, "canary", "other")
		logged := 0
		expect := func(command string, code int, words ...string) {
			w.t.Helper()
			log := w.relay.Log.String()
			var found []string
			for line := range strings.Lines(log[logged:]) {
				if strings.Contains(line, "command="+command) || strings.Contains(line, "command=rollout/"+command) {
					found = append(found, line)
				}
			}
			logged = len(log)
			if len(found) == 0 || !strings.Contains(found[len(found)-1],
				fmt.Sprintf("command=rollout/%s operator=", command)) ||
				!strings.Contains(found[len(found)-1], fmt.Sprint("code=", code)) {
				w.t.Fatalf("%s: the log has %q, want the operator and code %d", command, found, code)
			}
			for _, word := range words {
				if !strings.Contains(strings.Join(found, ""), word) {
					w.t.Errorf("%s: the log has %q, want %s", command, found, word)
				}
			}
			if executed := strings.Contains(found[0], "rollout command executed"); executed != (code == http.StatusOK) {
				w.t.Errorf("%s: logged as executed: %v, status code %d", command, executed, code)
			}
		}
		expectRefused(w.t, w.relay, "abort", admin.RolloutScope{Why: admin.Why{Reason: "early"}}, http.StatusConflict,
			"no rollout is open")
		expect("abort", http.StatusConflict, `err="no rollout is open: the state is current"`)
		expectRefused(w.t, w.relay, "resume", admin.RolloutScope{All: true}, http.StatusBadRequest, "all")
		expect("resume", http.StatusBadRequest, "only promote accepts it")
		w.change("cds a@2")
		w.sleep(4 * time.Second)
		edition := "edition=" + w.expectPhase(rollout.Rolling, 1).Edition
		w.command("abort", admin.RolloutScope{Why: admin.Why{Reason: "errors", User: "alice"}})
		expect("abort", http.StatusOK, edition, `by="alice`, "reason=errors")
		w.command("resume", admin.RolloutScope{Why: admin.Why{User: "bob"}})
		expect("resume", http.StatusOK, edition, `by="bob`)
		w.sleep(4 * time.Second)
		w.command("promote", admin.RolloutScope{Why: admin.Why{User: "bob"}})
		expect("promote", http.StatusOK, edition, `by="bob`, "all=false")
		w.command("promote", admin.RolloutScope{Why: admin.Why{User: "bob"}, All: true})
		expect("promote", http.StatusOK, edition, `by="bob`, "all=true")
		w.command("undo", admin.RolloutScope{Why: admin.Why{Reason: "resets", User: "carol"}})
		expect("undo", http.StatusOK, edition, `by="carol`, "reason=resets")
		expectRefused(w.t, w.relay, "undo", admin.RolloutScope{}, http.StatusConflict, "there is no promotion to undo")
		expect("undo", http.StatusConflict)
	})
}
