package rollout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/xdstender/tender/cache"
)

// A command is one of an operator.
type command struct {
	do   func(context.Context) error
	err  error
	done chan struct{} // closed when it was done
}

// ErrEnded is the error of commands to a controller that has ended.
var ErrEnded = errors.New("the relay is shutting down")

// carryOut has Run carry out a command, and returns its error.
func (c *Controller) carryOut(ctx context.Context, do func(context.Context) error) error {
	cmd := &command{do: do, done: make(chan struct{})}
	select {
	case c.commands <- cmd:
		<-cmd.done
		return cmd.err
	case <-c.ended:
		return ErrEnded
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Promote serves the edition to the next stage, or to the rest after the last one, without waiting for evidence. With
// all, latest is served to all clients at once. by is the operator. Errors: [ErrNothingOpen].
func (c *Controller) Promote(ctx context.Context, all bool, by string) error {
	return c.carryOut(ctx, func(ctx context.Context) error {
		now := time.Now()
		f := c.facts(now)
		switch {
		case !all:
			if err := c.machine.Promote(now, f); err != nil {
				return err
			}
		case !f.Differs:
			return fmt.Errorf("%w: clients are served what the origin has", ErrNothingOpen)
		default:
			c.cut(ctx, now, f, c.joined())
			c.machine.PromoteAll(now)
		}
		c.allow(ctx)
		c.logCommand("promote", by, slog.Bool("all", all))
		return nil
	})
}

// Abort rejects the edition: the cohorts are served the last good again. Errors: [ErrNothingOpen].
func (c *Controller) Abort(ctx context.Context, reason, by string) error {
	return c.carryOut(ctx, func(ctx context.Context) error {
		now := time.Now()
		if c.machine.Phase() == Gathering {
			c.cut(ctx, now, c.facts(now), c.joined())
		}
		if err := c.machine.Abort(now, reasonOf("abort", reason, by)); err != nil {
			return err
		}
		c.logCommand("abort", by, slog.String("reason", reason))
		return nil
	})
}

// Resume begins a rollout of latest, with what was rejected. Errors: [ErrNotHalted].
func (c *Controller) Resume(ctx context.Context, by string) error {
	return c.carryOut(ctx, func(ctx context.Context) error {
		if err := c.machine.Resume(time.Now()); err != nil {
			return err
		}
		c.allow(ctx)
		c.logCommand("resume", by)
		return nil
	})
}

// Undo serves everybody what they were served before the newest promotion, and rejects what was promoted. Errors:
// [ErrNothingToUndo].
func (c *Controller) Undo(ctx context.Context, reason, by string) error {
	return c.carryOut(ctx, func(context.Context) error {
		if err := c.machine.Undo(time.Now(), reasonOf("undo", reason, by)); err != nil {
			return err
		}
		c.about = describe(c.changesOf(c.machine.Edition()))
		c.logCommand("undo", by, slog.String("reason", reason))
		return nil
	})
}

// RollBack serves everybody earlier editions of the parts, and rejects what they are served now, as Undo does. A part without
// an edition stays as it is. If nothing differs, nothing is rejected. It returns how many resources are others now.
func (c *Controller) RollBack(ctx context.Context, editions map[PartKey]func(*cache.Writer) *cache.Edition, reason, by string) (resources int, err error) {
	err = c.carryOut(ctx, func(ctx context.Context) error {
		earlier := make(map[*Part]*cache.Edition)
		for _, p := range c.joined() {
			pin := editions[p.Key]
			if pin == nil {
				continue
			}
			p.control.Edit(ctx, func(w *cache.Writer) {
				if e := pin(w); len(e.Changes) > 0 {
					earlier[p] = e
				}
			})
		}
		if len(earlier) == 0 {
			return nil
		}
		to, from := c.machine.RollBack()
		rest := len(c.cfg.Stages)
		good := c.served[rest]
		for cohort := range rest + 1 {
			if c.served[cohort] == good {
				c.served[cohort] = from
			}
		}
		for p, e := range earlier {
			p.editions[to], p.editions[from] = e, e.Reversed()
		}
		if err := c.machine.Undo(time.Now(), reasonOf("rollback", reason, by)); err != nil {
			return err
		}
		c.about = describe(c.changesOf(from))
		resources = c.about.resources
		c.logCommand("rollback", by, slog.String("reason", reason))
		return nil
	})
	return resources, err
}

// reasonOf returns why an edition is rejected by a command.
func reasonOf(command, reason, by string) string {
	text := command
	if by != "" {
		text += " by " + by
	}
	if reason != "" {
		text += ": " + reason
	}
	return text
}

func (c *Controller) logCommand(name, by string, more ...any) {
	c.cfg.Logger.Warn("rollout command carried out", append([]any{slog.String("command", name), slog.String("by", by), slog.String("edition", c.about.id)}, more...)...)
}

// A Difference is a resource that an edition changes.
type Difference struct {
	Part PartKey
	cache.Difference
}

// Diff returns what the edition on its way changes, or the rejected one; what waits, if no edition was cut of it yet. The contents
// of an edition that an earlier process has cut, or that was promoted and undone, are not kept: of its resources, those are returned
// that wait, as the origin has them now. Errors: none but that of ctx.
func (c *Controller) Diff(ctx context.Context) (all []Difference, err error) {
	err = c.carryOut(ctx, func(ctx context.Context) error {
		cut := c.machine.decided()
		for _, p := range c.joined() {
			e := p.editions[c.machine.Edition()]
			if cut && (e == nil || len(e.Changes) == 0) {
				continue
			}
			known := len(all)
			if cut {
				for d := range e.Diff() {
					all = append(all, Difference{p.Key, d})
				}
			}
			if len(all) > known {
				continue
			}
			p.control.Edit(ctx, func(w *cache.Writer) {
				for d := range w.Pin().Diff() {
					if !cut || changes(e, d) {
						all = append(all, Difference{p.Key, d})
					}
				}
			})
		}
		return nil
	})
	return all, err
}

// changes reports whether an edition changes the resource of a difference.
func changes(e *cache.Edition, d cache.Difference) bool {
	_, is := e.Changes[d.Key][d.Name]
	return is
}
