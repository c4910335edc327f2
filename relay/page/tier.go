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

// tierAge is the age from which on the state of a tier is read again, if a page that shows it is rendered.
const tierAge = 5 * time.Second

// A tierWatch reads the state of the tier in the background, so that a page never waits for a peer.
type tierWatch struct {
	read    func(context.Context) admin.FleetStatus
	ctx     context.Context
	stop    context.CancelFunc
	reading sync.WaitGroup

	mu     sync.Mutex
	busy   bool               // a read is under way
	status *admin.FleetStatus // the last one; nil before the first
	at     time.Time          // when it was read
}

func newTierWatch(read func(context.Context) admin.FleetStatus) *tierWatch {
	w := &tierWatch{read: read}
	w.ctx, w.stop = context.WithCancel(context.Background())
	return w
}

// latest returns the last state of the tier and its time; nil before the first. It starts a read if that is too old.
func (w *tierWatch) latest(now time.Time) (*admin.FleetStatus, time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.busy && now.Sub(w.at) >= tierAge && w.ctx.Err() == nil {
		w.busy = true
		w.reading.Go(w.refresh) // awaited by close
	}
	return w.status, w.at
}

func (w *tierWatch) refresh() {
	status := w.read(w.ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy, w.status, w.at = false, &status, time.Now()
}

// close ends a read that is under way.
func (w *tierWatch) close() {
	w.mu.Lock()
	w.stop()
	w.mu.Unlock()
	w.reading.Wait()
}

// A fleetTable is the state of a tier.
type fleetTable struct {
	Status      *admin.FleetStatus // nil before the first
	At          time.Time
	Problems    string // empty if there are none
	Relays      []fleetRow
	Generations []admin.ServedGeneration
}

// A fleetRow is a relay of the tier.
type fleetRow struct {
	admin.FleetRelay
	Own   bool   // this relay
	Href  string // its status page; empty for this relay and for an address that is not known
	Class string
}

// fleet returns the table of the tier.
func (p *Pages) fleet(now time.Time) fleetTable {
	t := fleetTable{}
	if t.Status, t.At = p.tier.latest(now); t.Status == nil {
		return t
	}
	unreachable, notReady := 0, 0
	for i, r := range t.Status.Relays {
		row := fleetRow{FleetRelay: r, Own: i == 0}
		if !row.Own && r.FleetSummary != nil {
			row.Href = (&url.URL{Scheme: "https", Host: r.Address, Path: "/"}).String() // as all traffic between peers
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
		case r.Lagging > 0 || r.Held > 0:
			row.Class = "late"
		}
		t.Relays = append(t.Relays, row)
	}
	t.Generations = t.Status.Generations()
	t.Problems = joinProblems(
		problem{unreachable, "unreachable"}, problem{notReady, "not ready"}, problem{len(t.Status.Disagreements), "sets differ"})
	return t
}

// A problem is a number of things and what is wrong with them.
type problem struct {
	n    int
	what string
}

func joinProblems(all ...problem) string {
	var texts []string
	for _, p := range all {
		if p.n > 0 {
			texts = append(texts, fmt.Sprintf("%d %s", p.n, p.what))
		}
	}
	return strings.Join(texts, ", ")
}
