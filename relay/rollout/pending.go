package rollout

import (
	"context"

	"github.com/xdstender/tender/pending"
)

// Pending returns the changes that the clients of the rest do not receive yet, as they are in latest. Errors: the error of
// ctx and [ErrEnded].
func (c *Controller) Pending(ctx context.Context) (all []Difference, err error) {
	err = c.execute(ctx, func(ctx context.Context) error {
		for _, p := range c.tracker.joined() {
			p.control.Edit(ctx, func(l *pending.List) {
				for d := range l.Pin().Diff() {
					all = append(all, Difference{p.Key, d})
				}
			})
		}
		return nil
	})
	return all, err
}
