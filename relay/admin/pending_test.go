package admin_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/admin"
)

// TestPendingScope verifies which arguments pass and drop accept.
func TestPendingScope(t *testing.T) {
	of := func(c admin.PendingChoice) admin.PendingScope { return admin.PendingScope{PendingChoice: c} }
	for _, tt := range []struct {
		scope admin.PendingScope
		want  string // error; empty for none
	}{
		{admin.PendingScope{All: true}, ""},
		{of(admin.PendingChoice{Name: "web"}), ""},
		{of(admin.PendingChoice{PendingReason: "dropped"}), ""},
		{of(admin.PendingChoice{Scope: admin.Scope{Type: "cds"}}), ""},
		{admin.PendingScope{}, "name a pending_reason, type, name, group or origin, or set all"},
		{admin.PendingScope{PendingChoice: admin.PendingChoice{Name: "web"}, All: true}, "all: only without a pending_reason"},
		{of(admin.PendingChoice{PendingReason: "held"}), `reason "held": want suspect, second-look, large-removal, replacement, ` +
			"breaking, required, growth, dropped, interval, frozen, rolled-back, stage, halted"},
		{of(admin.PendingChoice{PendingReason: "frozen"}), "pending_reason=frozen: use tender thaw"},
		{of(admin.PendingChoice{PendingReason: "rolled-back"}), "pending_reason=rolled-back: use tender thaw"},
		{of(admin.PendingChoice{PendingReason: "stage"}), "pending_reason=stage: use tender rollout promote or tender rollout abort"},
		{of(admin.PendingChoice{PendingReason: "halted"}), "pending_reason=halted: use tender rollout resume"},
		{of(admin.PendingChoice{Scope: admin.Scope{Type: "xx"}}), "type=xx: want a type URL, or a short name such as cds"},
		{of(admin.PendingChoice{Name: "xdstp://%"}), "name=xdstp://%"},
		{admin.PendingScope{All: true, Why: admin.Why{Reason: "a\nb"}}, "reason: want at most"},
	} {
		err := tt.scope.Check()
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.HasPrefix(err.Error(), tt.want) || admin.CodeOf(err) != http.StatusBadRequest) {
			t.Errorf("%+v: error %v, want %q", tt.scope, err, tt.want)
		}
	}
	s := of(admin.PendingChoice{Scope: admin.Scope{Type: "cds"}})
	if err := s.Check(); err != nil || s.Type != wire.ClusterType {
		t.Errorf("type %s, error %v, want the type URL", s.Type, err)
	}
}

// TestPendingJSON verifies the fields of a row, and that empty ones are absent.
func TestPendingJSON(t *testing.T) {
	since := time.Unix(100, 0).UTC()
	for _, tt := range []struct {
		row  admin.PendingChange
		want string
	}{
		{
			admin.PendingChange{
				Origin: "o", TypeURL: "t", Change: "remove", Count: 2, Names: []string{"a"}, Reason: "suspect", Ends: "origin", By: "relay",
			},
			`{"origin":"o","type_url":"t","change":"remove","count":2,"names":["a"],"reason":"suspect","ends":"origin","by":"relay"}`,
		},
		{
			admin.PendingChange{
				Origin: "o", Group: "g", TypeURL: "t", Change: "add", Count: 1, Names: []string{"a"}, Reason: "breaking",
				Details: []string{"d"}, Note: "n", Since: since, Ends: "deadline", Until: since.Add(time.Second), By: "alice", Reported: true,
			},
			`{"origin":"o","group":"g","type_url":"t","change":"add","count":1,"names":["a"],"reason":"breaking","details":["d"],"note":"n",` +
				`"since":"1970-01-01T00:01:40Z","ends":"deadline","until":"1970-01-01T00:01:41Z","by":"alice","reported":true}`,
		},
	} {
		if got, err := json.Marshal(tt.row); err != nil || string(got) != tt.want {
			t.Errorf("got %s, %v, want %s", got, err, tt.want)
		}
	}
}

// TestSkip verifies that skipped changes are counted by reason, and that each reason has a command.
func TestSkip(t *testing.T) {
	got := admin.Skip([]admin.PendingChange{{Reason: "frozen", Count: 2}, {Reason: "stage", Count: 1}, {Reason: "frozen", Count: 3}})
	want := []admin.SkippedPending{
		{Reason: "frozen", Count: 5, Use: "tender thaw"},
		{Reason: "stage", Count: 1, Use: "tender rollout promote or tender rollout abort"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("skipped %+v, want %+v", got, want)
	}
	for _, reason := range []string{"replacement", "dropped", "rolled-back", "halted"} {
		if s := admin.Skip([]admin.PendingChange{{Reason: reason}}); !strings.HasPrefix(s[0].Use, "tender ") {
			t.Errorf("%s: use %q, want a command", reason, s[0].Use)
		}
	}
}
