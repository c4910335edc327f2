package admin

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/xdstender/tender/relay/rollout"
)

// TestStatusIsDocumented holds that the page about the status has every field.
func TestStatusIsDocumented(t *testing.T) {
	const name = "../../deploy/docs/status.md"
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range []any{Status{}, Relay{}, Origin{}, Target{}, View{}, Type{}, Files{}, File{}, Scope{}, Holds{}, Hold{}, Freezes{}, Freeze{}, Freezing{}, Directory{}, BadFile{}, FreezeScope{}, Audits{}, ViewAudit{}, TypeAudit{}, Difference{}, Validation{}, FindingCount{}, Finding{},
		Clients{}, ClientTotals{}, TypeTotals{}, Client{}, ClientType{}, Refusal{}, ClientDetail{}, ClientResource{},
		Resources{}, Resource{}, ResourceError{}, ResourceDetail{}, Holder{}, History{}, Change{}, LogLevel{}, LogLevelChange{}, AuditScope{}, Why{}, Action{}, Actions{}, FleetStatus{}, FleetRelay{}, FleetSummary{}, FleetView{}, Disagreement{}, FleetAnswers{}, FleetAnswer{},
		Rollouts{}, RolloutScope{}, RolloutDiff{}, RolloutChange{}, RolloutContent{}, rollout.Status{}, rollout.Halt{}, rollout.Refusal{}, rollout.Client{}, rollout.Cohort{}, rollout.Outcomes{},
	} {
		typ := reflect.TypeOf(of)
		for i := range typ.NumField() {
			if typ.Field(i).Anonymous {
				continue // it is in the list itself
			}
			field, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			if field == "" || !strings.Contains(string(text), "`"+field+"`") {
				t.Errorf("%s does not have `%s`, of %s", name, field, typ.Name())
			}
		}
	}
}
