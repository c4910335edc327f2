package page

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/xdstender/tender/relay/admin"
)

// tierAge is the maximum age of the state of the tier. Rendering a page with an older state starts a request.
const tierAge = 5 * time.Second

// A tierWatch requests the state of the tier in the background, so that a page never waits for a peer.
type tierWatch struct {
	read    func(context.Context) admin.FleetStatus
	ctx     context.Context
	stop    context.CancelFunc
	reading sync.WaitGroup

	mu     sync.Mutex
	busy   bool               // a request is in progress
	status *admin.FleetStatus // the newest response; nil before the first
	at     time.Time          // time of the response
}

// newTierWatch returns a tierWatch. The caller must call close.
func newTierWatch(read func(context.Context) admin.FleetStatus) *tierWatch {
	w := &tierWatch{read: read}
	w.ctx, w.stop = context.WithCancel(context.Background())
	return w
}

// latest returns the newest state of the tier and its time; nil before the first. It starts a request if the state is
// older than tierAge.
func (w *tierWatch) latest(now time.Time) (*admin.FleetStatus, time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.busy && now.Sub(w.at) >= tierAge && w.ctx.Err() == nil {
		w.busy = true
		w.reading.Go(w.refresh) // awaited by close
	}
	return w.status, w.at
}

// refresh requests the state.
func (w *tierWatch) refresh() {
	status := w.read(w.ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy, w.status, w.at = false, &status, time.Now()
}

// close cancels a request that is in progress and waits for its end.
func (w *tierWatch) close() {
	w.mu.Lock()
	w.stop()
	w.mu.Unlock()
	w.reading.Wait()
}

// A fleetTable is the state of a tier.
type fleetTable struct {
	Status      *admin.FleetStatus // nil before the first response
	At          time.Time
	Problems    string // empty without problems
	Relays      []fleetRow
	Generations []admin.ServedGeneration
}

// A fleetRow is a relay of the tier.
type fleetRow struct {
	admin.FleetRelay
	Own   bool   // the row is of this relay
	Href  string // status page of the relay; empty for this relay and for unreachable relays
	Class string
}

// fleet returns the table of the tier at a time.
func (p *Pages) fleet(now time.Time) fleetTable {
	t := fleetTable{}
	if t.Status, t.At = p.tier.latest(now); t.Status == nil {
		return t
	}
	unreachable, notReady := 0, 0
	for i, r := range t.Status.Relays {
		row := fleetRow{FleetRelay: r, Own: i == 0}
		if !row.Own && r.FleetSummary != nil {
			row.Href = (&url.URL{Scheme: "https", Host: r.Address, Path: "/"}).String() // peers always use TLS
		}
		switch {
		case r.FleetSummary == nil:
			unreachable++
			row.Class = "stale"
		case !r.Ready:
			notReady++
			row.Class = "stale"
		case r.Refusing > 0:
			row.Class = "refused"
		case len(r.Frozen) > 0:
			row.Class = "frozen"
		case r.Lagging > 0 || r.Pending > 0:
			row.Class = "late"
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
