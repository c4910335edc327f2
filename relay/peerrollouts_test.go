package relay

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/rollout"
)

// TestB54_LargeDecisionsAreTold: peers are told of some resources of each decision, however many others it and those before it
// have, and what they are told fits into an answer.
func TestB54_LargeDecisionsAreTold(t *testing.T) {
	var all []rollout.Decision
	for i, n := range []int{3 * maxToldNames, 1, 0} {
		names := make(map[string]wire.Digest)
		for j := range n {
			names[fmt.Sprint(i, strings.Repeat("-", 200), j)] = wire.Digest{1}
		}
		all = append(all, rollout.Decision{
			Part: fmt.Sprint("part", i), Changes: rollout.Changes{{Group: "group"}: {wire.ClusterType: names}},
		})
	}
	encoded := encodeDecisions("default", all)
	shortenDecisions(encoded, maxToldNames, maxToldBytes)
	text, err := json.Marshal(admin.PeerRollouts{Halted: encoded})
	if err != nil || len(text) > 4<<20 {
		t.Errorf("the answer has %d bytes, error %v; want at most 4 MiB", len(text), err)
	}
	told := decodeDecisions("default", encoded)
	if len(told) != 3 {
		t.Fatalf("%d decisions, want three", len(told))
	}
	for i, most := range []int{maxToldNames, 1, 0} {
		n := len(told[i].Changes[rollout.SectionKey{Group: "group"}][wire.ClusterType])
		if n > most || n < min(most, 1) {
			t.Errorf("decision %d has %d resources, want at most %d, but some", i, n, most)
		}
	}
}
