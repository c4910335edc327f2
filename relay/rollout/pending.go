package rollout

import (
	"context"

	"github.com/xdstender/tender/pending"
)

// Pending returns the changes that the clients of the rest do not receive yet, as they are in latest, with the parts to
// which they belong. Errors: the error of ctx and [ErrEnded].
func (c *Controller) Pending(ctx context.Context) (all []Difference, err error) {
	err = c.execute(ctx, func(ctx context.Context) error {
		all = c.pending(ctx)
		return nil
	})
	return all, err
}

// pending implements Pending.
func (c *Controller) pending(ctx context.Context) (all []Difference) {
	for _, s := range c.tracker.joined() {
		s.control.Edit(ctx, func(l *pending.List) {
			for d := range l.Pin().Diff() {
				all = append(all, Difference{s.Key, c.partOf(s, d), d})
			}
		})
	}
	return all
}

// partOf returns the name of the open part whose edition has a resource, or for whose end its change waits; empty without one.
func (c *Controller) partOf(s *Section, d pending.Difference) string {
	for _, p := range c.parts {
		if e := s.edition(p, p.machine.edition); p.machine.phase != Current && e != nil && changesResource(e, d) {
			return p.edition.name
		}
	}
	if p := c.joined[nameOf(d.Key, d.Name)]; p != nil && p.machine.phase != Current {
		return p.edition.name
	}
	return ""
}
