package peers

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/xdstender/tender/relay/admin"
)

// TestReplicasDisagreeByContent checks that a set is returned only if two relays have different versions of it. A relay
// that lacks the set or is unreachable does not count.
func TestReplicasDisagreeByContent(t *testing.T) {
	relay := func(address, group string, versions map[string]string) admin.TierRelay {
		return admin.TierRelay{Address: address, TierSummary: &admin.TierSummary{Views: []admin.TierView{{Group: group, Origin: "default", Versions: versions}}}}
	}
	got := disagreements([]admin.TierRelay{
		relay("a", "g", map[string]string{"cds": "1", "lds": "1", "rds": "1"}),
		relay("b", "g", map[string]string{"cds": "2", "lds": "1"}),
		relay("c", "h", map[string]string{"lds": "3"}),
		relay("d", "g", map[string]string{"cds": "1"}),
		{Address: "e", Error: "unreachable"},
	})
	want := []admin.Disagreement{{Group: "g", Origin: "default", TypeURL: "cds", Versions: map[string][]string{"1": {"a", "d"}, "2": {"b"}}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("disagreements (-want +got):\n%s", diff)
	}
}
