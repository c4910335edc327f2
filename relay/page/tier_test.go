package page

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/admin"
)

// TestTier verifies that the section of the tier is rendered for a relay that answers and one that cannot be reached. A template is
// checked only when it is executed.
func TestTier(t *testing.T) {
	p := newPages(t, new(fakeFleet), someStatus)
	p.tier = newBackground(tierAge, func(context.Context) admin.TierStatus {
		return admin.TierStatus{Relays: []admin.TierRelay{
			{Address: "192.0.2.1:18443", TierSummary: &admin.TierSummary{
				NodeID: "relay-0", Version: "v1", Ready: true, Streams: 12, Rejecting: 1, Lagging: 2, Pending: 34567, Frozen: []string{"default"},
			}},
			{Address: "192.0.2.2:18443", Error: "connection refused"},
		}}
	})
	var out strings.Builder
	now := time.Now()
	p.tier.latest(now) // starts the call
	p.tier.reading.Wait()
	if err := templates.ExecuteTemplate(&out, "tier", p.tierTable(now)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"1 unreachable", "relay-0", "34,567", "default", "connection refused"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the section of the tier lacks %q:\n%s", want, out.String())
		}
	}
}
