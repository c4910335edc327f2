package page

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/xdstender/tender/relay/admin"
)

// tierAge is the maximum age of the state of the tier.
const tierAge = 5 * time.Second

// A tierTable is the state of a tier.
type tierTable struct {
	Status      *admin.TierStatus // nil before the first response
	At          time.Time
	Problems    string // empty without problems
	Relays      []tierRow
	Generations []admin.ServedGeneration
}

// A tierRow is a relay of the tier.
type tierRow struct {
	admin.TierRelay
	Own   bool   // the row is of this relay
	Href  string // status page of the relay; empty for this relay and for unreachable relays
	Class string
}

// tierTable returns the table of the tier at a time.
func (p *Pages) tierTable(now time.Time) tierTable {
	t := tierTable{}
	if t.Status, t.At = p.tier.latest(now); t.Status == nil {
		return t
	}
	unreachable, notReady := 0, 0
	for i, r := range t.Status.Relays {
		row := tierRow{TierRelay: r, Own: i == 0}
		if !row.Own && r.TierSummary != nil {
			row.Href = (&url.URL{Scheme: "https", Host: r.Address, Path: "/"}).String() // peers always use TLS
		}
		switch {
		case r.TierSummary == nil:
			unreachable++
			row.Class = "stale"
		case !r.Ready:
			notReady++
			row.Class = "stale"
		case r.Rejecting > 0:
			row.Class = "rejected"
		case len(r.Frozen) > 0:
			row.Class = "frozen"
		case r.Lagging > 0 || r.Pending > 0:
			row.Class = "lagging"
		}
		t.Relays = append(t.Relays, row)
	}
	t.Generations = t.Status.Generations()
	t.Problems = joinProblems(
		problem{unreachable, "unreachable"}, problem{notReady, "not ready"},
		problem{len(t.Status.Disagreements), "sets differ"})
	return t
}

// A problem is a number of relays or sets, and their problem.
type problem struct {
	n    int
	text string
}

// joinProblems returns the problems with a number above 0 as text.
func joinProblems(all ...problem) string {
	var texts []string
	for _, p := range all {
		if p.n > 0 {
			texts = append(texts, fmt.Sprintf("%d %s", p.n, p.text))
		}
	}
	return strings.Join(texts, ", ")
}
