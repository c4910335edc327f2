package rollout

import (
	"cmp"
	"context"
	"slices"

	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/pending"
)

// A promotion has what the newest promotion changed, over all node groups. Undo needs it for sections that joined after the
// promotion: their views never had the state before.
type promotion map[outcome]pending.Replaced

// An outcome is the state to which a promotion changed a resource.
type outcome struct {
	shared    bool // SectionKey.Shared
	key, name string
	content   wire.Digest     // zero if the promotion removed it
	set       fingerprint.Sum // pending.Replaced.Set
}

// add adds the changes in a section. Of changes with one outcome, it keeps the first.
func (p promotion) add(shared bool, changes []pending.Replaced) {
	for _, r := range changes {
		to := outcome{shared: shared, key: r.Key, name: r.Name, set: r.Set}
		if r.Is != nil {
			to.content = r.Is.Digest
		}
		if _, known := p[to]; !known {
			p[to] = r
		}
	}
}

// changes returns the changes in the shared sections, or in the others, in a fixed order.
func (p promotion) changes(shared bool) (all []pending.Replaced) {
	for to, r := range p {
		if to.shared == shared {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b pending.Replaced) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// undoInLateSections makes the editions with which Undo reverts the promotion of a part in the sections that joined after
// it. A section in which it would have changed nothing needs none.
func (c *Controller) undoInLateSections(ctx context.Context, p *part) {
	m := p.machine.State()
	if m.Previous == nil {
		return
	}
	for _, s := range c.tracker.joined() {
		if s.edition(p, *m.Previous) != nil {
			continue
		}
		s.control.Edit(ctx, func(l *pending.List) {
			if e := l.PinReverted(p.promoted.changes(s.Key.Shared)); len(e.Changes) > 0 {
				s.set(p, *m.Previous, e)
				s.set(p, m.LastGood, e.Reversed())
			}
		})
	}
}
