package relay

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache/tier"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/upstream"
)

// tierReports tell relays above what the clients of node groups have (B.49). They count clients as operators see them, from
// the state of the streams.
type tierReports struct {
	groups  *groups
	clients func() iter.Seq[downstream.StreamStatus]
}

// The relay looks at its clients every lookEvery, but for at most one part in lookShare of the time. Reports must not become
// too old because of that, so the pause is at most lookPauseMax.
const (
	lookEvery    = 2 * time.Second
	lookPauseMax = 20 * time.Second
)

// run tells relays above until ctx ends.
func (r *tierReports) run(ctx context.Context) {
	pause := time.NewTimer(lookEvery)
	defer pause.Stop()
	for {
		select {
		case <-pause.C:
		case <-ctx.Done():
			return
		}
		began := time.Now()
		r.look(ctx, began)
		pause.Reset(min(max(lookEvery, lookShare*time.Since(began)), lookPauseMax))
	}
}

// A tierLook is a look at the clients of a node group, for one origin.
type tierLook struct {
	control *upstream.Control
	mark    uint64
	report  tier.Report
	serves  func(typeURL string) bool // the origin may serve a type
}

// look tells the origins that are relays what clients have.
func (r *tierReports) look(ctx context.Context, now time.Time) {
	looks := r.groups.beginLooks(ctx)
	if len(looks) == 0 {
		return
	}
	for s := range r.clients() {
		for _, l := range looks[s.Group] {
			l.add(&s)
		}
	}
	for _, ofGroup := range looks {
		for _, l := range ofGroup {
			slices.SortFunc(l.report.Types, func(a, b tier.Counts) int {
				return wire.CompareTypes(a.TypeURL, b.TypeURL)
			})
			l.control.EndLook(l.mark, l.report, now)
		}
	}
}

// beginLooks begins a look for each view whose origin is a relay that accepts reports, by the key of the node group. The
// looks have the changes that wait.
func (g *groups) beginLooks(ctx context.Context) map[string][]*tierLook {
	type begun struct {
		*tierLook
		group    *group
		origin   int
		controls []*upstream.Control // of all lists in front of the view
	}
	var all []begun
	g.mu.Lock()
	for _, gr := range g.byKey {
		for i, control := range gr.controls {
			if !control.AcceptsReports() {
				continue
			}
			b := begun{&tierLook{control: control, serves: g.router.mayServe(i)}, gr, i, []*upstream.Control{control}}
			for _, s := range gr.sharedViews {
				if s.key.origin == i {
					b.controls = append(b.controls, s.control)
				}
			}
			if gr.sharing[i] != nil {
				b.controls = append(b.controls, gr.sharing[i])
			}
			all = append(all, b)
		}
	}
	g.mu.Unlock()
	looks := make(map[string][]*tierLook, len(all))
	for _, b := range all {
		b.mark = b.control.BeginLook()
		for _, c := range b.controls {
			for typeURL, n := range c.Waiting(ctx) {
				b.addPending(typeURL, n)
			}
		}
		b.addStaged(g, b.group, b.origin)
		looks[b.group.key] = append(looks[b.group.key], b.tierLook)
	}
	return looks
}

// addPending adds changes of a type that wait.
func (l *tierLook) addPending(typeURL string, n int) {
	if of := l.report.Type(typeURL); of != nil {
		of.Pending += n
	}
	l.report.All.Pending += n
}

// addStaged adds the changes that wait for a rollout. Their number is known for all types together, so it counts for each
// type that changes in stages.
func (l *tierLook) addStaged(g *groups, gr *group, origin int) {
	if g.rollouts == nil {
		return
	}
	staged := gr.view.Withheld(origin) + gr.view.Withheld(g.router.sharedSource(origin))
	l.report.All.Pending = max(l.report.All.Pending, staged)
	if staged == 0 {
		return
	}
	for _, typeURL := range g.settings.stagedTypes {
		if of := l.report.Type(typeURL); of != nil && l.serves(typeURL) {
			of.Pending = max(of.Pending, staged)
		}
	}
}

// add counts a client.
func (l *tierLook) add(s *downstream.StreamStatus) {
	if s.Below != nil {
		l.merge(s)
		return
	}
	self := tier.Client{Node: nodeName(s), Sync: tier.Unknown}
	for i := range s.Types {
		t := &s.Types[i]
		if !l.serves(t.TypeURL) {
			continue
		}
		client := tier.Client{Node: self.Node, TypeURL: t.TypeURL, Sync: t.Sync, Lag: t.Lag}
		if t.Rejected && t.Rejection != nil {
			client.Detail = t.Rejection.Detail
		}
		if of := l.report.Type(t.TypeURL); of != nil {
			of.Add(client)
		}
		if self.TypeURL == "" || tier.Worst(self.Sync, client.Sync) != self.Sync {
			self = client
		}
	}
	if self.TypeURL == "" && len(s.Types) > 0 {
		return // it subscribes to types of other origins only
	}
	if !s.Stalled.IsZero() {
		self.Sync = tier.Worst(self.Sync, tier.Behind)
	}
	l.report.All.Add(self)
}

// nodeName returns the node ID of a client, or the number of its stream if it has none.
func nodeName(s *downstream.StreamStatus) string {
	return cmp.Or(s.NodeID(), fmt.Sprint("#", s.Number))
}

// merge adds what a relay has reported.
func (l *tierLook) merge(s *downstream.StreamStatus) {
	relay := nodeName(s)
	for i := range s.Below.Types {
		below := &s.Below.Types[i]
		if of := l.report.Type(below.TypeURL); of != nil && l.serves(below.TypeURL) {
			of.Merge(below, relay)
		}
	}
	all := s.Below.All
	all.Worst = slices.DeleteFunc(slices.Clone(all.Worst), func(c tier.Client) bool { return c.TypeURL != "" && !l.serves(c.TypeURL) })
	l.report.All.Merge(&all, relay)
}

// mayServe returns a function that reports whether an origin may serve resources of a type.
func (r *router) mayServe(origin int) func(typeURL string) bool {
	byName := slices.Contains(slices.Collect(maps.Values(r.authorities)), origin)
	return func(typeURL string) bool { return byName || r.types[typeURL] == origin }
}
