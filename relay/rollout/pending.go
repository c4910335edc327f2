package rollout

import (
	"context"

	"github.com/xdstender/tender/cache"
)

// Pending returns the changes that the clients of the rest do not receive yet, as they are in latest. Errors: the error of
// ctx and [ErrEnded].
func (c *Controller) Pending(ctx context.Context) (all []Difference, err error) {
	err = c.execute(ctx, func(ctx context.Context) error {
		for _, p := range c.tracker.joined() {
			p.control.Edit(ctx, func(w *cache.Writer) {
				for d := range w.Pin().Diff() {
					all = append(all, Difference{p.Key, d})
				}
			})
		}
		return nil
	})
	return all, err
}
