package rollout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/xdstender/tender/pending"
)

// A command is an operator command that Run executes.
type command struct {
	run  func(context.Context) error
	err  error
	done chan struct{} // closed when err is set
}

// ErrEnded is the error of a command to a controller whose Run has returned.
var ErrEnded = errors.New("the relay is shutting down")

// execute makes Run execute a command and returns its error.
func (c *Controller) execute(ctx context.Context, run func(context.Context) error) error {
	cmd := &command{run: run, done: make(chan struct{})}
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

// Promote serves the edition to the next stage, or to the rest after the last stage, without waiting for evidence. If
// all is set, it serves latest to all clients at once. by is the operator. Errors: [ErrNothingOpen].
func (c *Controller) Promote(ctx context.Context, all bool, by string) error {
	return c.execute(ctx, func(ctx context.Context) error {
		now := time.Now()
		f := c.facts(now)
		switch {
		case !all:
			if err := c.machine.Promote(now, f); err != nil {
				return err
			}
		case !f.Differs && f.Frozen:
			return fmt.Errorf("%w: what the origin has stated since the freeze waits for tender thaw", ErrNothingOpen)
		case !f.Differs:
			return fmt.Errorf("%w: all clients already receive the latest state of the origin", ErrNothingOpen)
		default:
			c.cutEdition(ctx, now, f, c.tracker.joined())
			c.machine.PromoteAll(now)
		}
		c.allowRejected(ctx)
		c.logCommand("promote", by, slog.Bool("all", all))
		return nil
	})
}

// Abort rejects the edition. All cohorts are served the last good again. Errors: [ErrNothingOpen].
func (c *Controller) Abort(ctx context.Context, reason, by string) error {
	return c.execute(ctx, func(ctx context.Context) error {
		now := time.Now()
		if c.machine.State().Phase == Gathering {
			c.cutEdition(ctx, now, c.facts(now), c.tracker.joined())
		}
		if err := c.machine.Abort(now, rejectionReason("abort", reason, by)); err != nil {
			return err
		}
		c.logCommand("abort", by, slog.String("reason", reason))
		return nil
	})
}

// Resume starts a rollout of latest, including the rejected changes. Errors: [ErrNotHalted].
func (c *Controller) Resume(ctx context.Context, by string) error {
	return c.execute(ctx, func(ctx context.Context) error {
		if err := c.machine.Resume(time.Now()); err != nil {
			return err
		}
		c.allowRejected(ctx)
		c.logCommand("resume", by)
		return nil
	})
}

// Undo serves all clients the edition before the newest promotion and rejects the promoted edition. Errors:
// [ErrNothingToUndo].
func (c *Controller) Undo(ctx context.Context, reason, by string) error {
	return c.execute(ctx, func(ctx context.Context) error {
		c.undoInLateParts(ctx)
		if err := c.machine.Undo(time.Now(), rejectionReason("undo", reason, by)); err != nil {
			return err
		}
		c.edition = summarize(c.changesOf(c.machine.State().Edition))
		c.logCommand("undo", by, slog.String("reason", reason))
		return nil
	})
}

// RollBack serves all clients earlier editions of the parts and rejects the current ones, as Undo does. A part without
// an edition in the map is unchanged. If no edition differs from the current one, RollBack rejects nothing. It returns
// the number of changed resources.
func (c *Controller) RollBack(
	ctx context.Context, editions map[PartKey]func(*pending.List) *pending.Edition, reason, by string,
) (resources int, err error) {
	err = c.execute(ctx, func(ctx context.Context) error {
		earlier := make(map[*Part]*pending.Edition)
		for _, p := range c.tracker.joined() {
			pin := editions[p.Key]
			if pin == nil {
				continue
			}
			p.control.Edit(ctx, func(l *pending.List) {
				if e := pin(l); len(e.Changes) > 0 {
					earlier[p] = e
				}
			})
		}
		if len(earlier) == 0 {
			return nil
		}
		to, from := c.machine.RollBack()
		lastGood := c.served[c.cfg.rest()]
		for _, cohort := range c.cfg.cohorts() {
			if c.served[cohort] == lastGood {
				c.served[cohort] = from
			}
		}
		for p, e := range earlier {
			p.editions[to], p.editions[from] = e, e.Reversed()
		}
		if err := c.machine.Undo(time.Now(), rejectionReason("rollback", reason, by)); err != nil {
			return err
		}
		c.edition = summarize(c.changesOf(from))
		resources = c.edition.resources
		c.logCommand("rollback", by, slog.String("reason", reason))
		return nil
	})
	return resources, err
}

// rejectionReason returns the reason of a rejection by a command.
func rejectionReason(command, reason, by string) string {
	text := command
	if by != "" {
		text += " by " + by
	}
	if reason != "" {
		text += ": " + reason
	}
	return text
}

// logCommand logs an executed command of an operator.
func (c *Controller) logCommand(name, by string, attrs ...any) {
	common := []any{slog.String("command", name), slog.String("by", by), slog.String("edition", c.edition.id)}
	c.cfg.Logger.Warn("rollout command executed", append(common, attrs...)...)
}

// A Difference is a resource that an edition changes.
type Difference struct {
	Part PartKey
	pending.Difference
}

// Diff returns the changes of the edition in progress or of the rejected edition. Without an edition, it returns the
// pending changes. The relay does not keep the content of an edition that an earlier process cut, or that was promoted
// and undone. For the resources of such an edition, Diff returns their pending changes in latest. Errors: the error of
// ctx and [ErrEnded].
func (c *Controller) Diff(ctx context.Context) (all []Difference, err error) {
	err = c.execute(ctx, func(ctx context.Context) error {
		m := c.machine.State()
		cut := m.Phase.hasEdition()
		for _, p := range c.tracker.joined() {
			e := p.editions[m.Edition]
			if cut && (e == nil || len(e.Changes) == 0) {
				continue
			}
			before := len(all)
			if cut {
				for d := range e.Diff() {
					all = append(all, Difference{p.Key, d})
				}
			}
			if len(all) > before {
				continue
			}
			p.control.Edit(ctx, func(l *pending.List) {
				for d := range l.Pin().Diff() {
					if !cut || changesResource(e, d) {
						all = append(all, Difference{p.Key, d})
					}
				}
			})
		}
		return nil
	})
	return all, err
}

// changesResource reports whether an edition changes the resource of d.
func changesResource(e *pending.Edition, d pending.Difference) bool {
	_, ok := e.Changes[d.Key][d.Name]
	return ok
}
