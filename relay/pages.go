package relay

import (
	"time"

	"github.com/xdstender/tender/relay/page"
)

// newPages returns the status page, and those that it links to.
func (r *Relay) newPages() (*page.Pages, error) {
	return page.New(page.Config{Status: r.status, Fleet: r.fleet(), History: &r.history, Logger: r.log})
}

// sample returns what the history of the status page is made of.
func (r *Relay) sample() page.Sample {
	s := page.Sample{At: time.Now(), Streams: r.Streams(), Counts: make(map[page.GroupType]page.Counts)}
	for _, g := range r.groups.standing() {
		if g.Shared {
			continue // its clients are counted in their own groups
		}
		for typeURL, stats := range g.Counts.Types() {
			s.Counts[page.GroupType{Group: g.Key, TypeURL: typeURL}] = page.Counts{Deliveries: stats.Responses, Refusals: stats.Nacks}
			s.Latency = s.Latency.Plus(stats.Propagation)
		}
	}
	return s
}
