package admin

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/xdstender/tender/relay/rollout"
)

// TestStatusIsDocumented verifies that status.md has each JSON field of the API.
func TestStatusIsDocumented(t *testing.T) {
	const name = "../../deploy/docs/status.md"
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range []any{
		Status{}, Relay{}, Origin{}, Target{}, View{}, Type{}, Files{}, File{}, Scope{}, Pending{}, PendingChange{},
		PendingChoice{}, PendingScope{}, PendingDecision{}, SkippedPending{}, Freezes{},
		Freeze{}, Freezing{}, Directory{}, BadFile{}, FreezeScope{}, Audits{}, ViewAudit{}, TypeAudit{}, Difference{},
		Validation{}, FindingCount{}, Finding{}, Clients{}, ClientTotals{}, TypeTotals{}, Client{}, ClientType{},
		Refusal{}, ClientDetail{}, ClientResource{}, Resources{}, Resource{}, ResourceError{}, ResourceDetail{},
		Holder{}, History{}, Change{}, LogLevel{}, LogLevelChange{}, AuditScope{}, Why{}, Action{}, Actions{},
		FleetStatus{}, FleetRelay{}, FleetSummary{}, FleetView{}, Disagreement{}, FleetAnswers{}, FleetAnswer{},
		Rollouts{}, RolloutScope{}, RolloutDiff{}, RolloutChange{}, RolloutContent{}, rollout.Status{}, rollout.Halt{},
		rollout.Rejection{}, rollout.Client{}, rollout.Cohort{}, rollout.Outcomes{},
	} {
		typ := reflect.TypeOf(value)
		for i := range typ.NumField() {
			if typ.Field(i).Anonymous {
				continue // the list has its type
			}
			field, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			if field == "" || !strings.Contains(string(text), "`"+field+"`") {
				t.Errorf("%s lacks `%s` of %s", name, field, typ.Name())
			}
		}
	}
}
