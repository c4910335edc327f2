package rollout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
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

// choose returns the parts that a name or the id of an edition selects: all if it is empty, and if there is none, the one
// that gathers changes. Errors: [ErrNothingOpen].
func (c *Controller) choose(name string) (chosen []*part, err error) {
	if name == "" && len(c.parts) == 0 {
		return []*part{c.free}, nil
	}
	var names []string
	for _, p := range c.parts {
		if name == "" || name == p.edition.name || name == p.edition.id {
			chosen = append(chosen, p)
		}
		names = append(names, p.edition.name)
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("%w: there is no part %.256q; the parts are %q", ErrNothingOpen, name, names)
	}
	return chosen, nil
}

// forParts calls a command for the parts that a name selects. It skips those whose state does not permit the command, and
// fails only if no state does.
func (c *Controller) forParts(name string, command func(*part) error) error {
	chosen, err := c.choose(name)
	if err != nil {
		return err
	}
	slices.SortStableFunc(chosen, func(a, b *part) int { return a.machine.phase.urgency() - b.machine.phase.urgency() })
	var first error
	done := false
	for _, p := range chosen {
		switch err := command(p); {
		case err == nil:
			done = true
		case first == nil:
			first = err
		}
	}
	if done {
		return nil
	}
	return first
}

// Promote serves the editions of the chosen parts to the next stage, or to the rest after the last stage, without waiting
// for evidence. by is the operator. Errors: [ErrNothingOpen].
func (c *Controller) Promote(ctx context.Context, name, by string) error {
	return c.execute(ctx, func(ctx context.Context) error {
		now := time.Now()
		c.collect(ctx, now)
		return c.forParts(name, func(p *part) error {
			if err := p.machine.Promote(now, p.facts); err != nil {
				return err
			}
			c.overrulePeers(p, true)
			c.recordPromotion(p, now, by)
			c.allowRejected(ctx, p)
			c.logCommand(p, "promote", by, slog.Bool("all", false))
			return nil
		})
	})
}

// PromoteAll serves latest to all clients at once, as one part. by is the operator. Errors: [ErrNothingOpen].
func (c *Controller) PromoteAll(ctx context.Context, by string) error {
	return c.execute(ctx, func(ctx context.Context) error {
		now, sections := time.Now(), c.tracker.joined()
		c.collect(ctx, now)
		if !slices.ContainsFunc(sections, func(s *Section) bool { return s.waiting.Load().Names > 0 }) {
			if c.cfg.Frozen() {
				return fmt.Errorf("%w: what the origin has stated since the freeze waits for tender thaw", ErrNothingOpen)
			}
			return fmt.Errorf("%w: all clients already receive the latest state of the origin", ErrNothingOpen)
		}
		whole := join(c.partition(ctx, sections))
		for _, p := range c.parts {
			if p.machine.phase == Halted {
				c.allowRejected(ctx, p)
			}
		}
		p := c.takeAll(func(*part) bool { return false })
		c.cutEditions(ctx, now, map[*part]*component{p: whole})
		c.overrulePeers(p, true)
		p.machine.PromoteAll(now)
		c.recordPromotion(p, now, by)
		c.allowRejected(ctx, p)
		c.logCommand(p, "promote", by, slog.Bool("all", true))
		return nil
	})
}

// takeAll returns a new part to which the changes of all others belong from now on, except those of the parts to keep.
func (c *Controller) takeAll(keep func(*part) bool) *part {
	for _, p := range c.parts {
		if !keep(p) {
			p.machine.dissolve()
		}
	}
	p := c.newPart()
	p.machine.pendingSince = c.oldest()
	c.addPart(p)
	outcomes := c.free.machine.outcomes
	c.free = c.newPart()
	c.free.machine.outcomes = outcomes
	return p
}

// Abort rejects the editions of the chosen parts. All cohorts are served the last good again. Errors: [ErrNothingOpen].
func (c *Controller) Abort(ctx context.Context, name, reason, by string) error {
	return c.execute(ctx, func(ctx context.Context) error {
		now := time.Now()
		c.collect(ctx, now)
		if name == "" && c.free.machine.phase == Gathering {
			c.cutFree(ctx, now)
		}
		return c.forParts(name, func(p *part) error {
			if p.machine.phase == Gathering && !c.cut(ctx, now, p) {
				return fmt.Errorf("%w: the changes belong to those of %s, too", ErrNothingOpen, p.blockedBy)
			}
			if err := p.machine.Abort(now, rejectionReason("abort", reason, by)); err != nil {
				return err
			}
			c.overrulePeers(p, false)
			c.logCommand(p, "abort", by, slog.String("reason", reason))
			return nil
		})
	})
}

// Resume starts rollouts of latest for the chosen parts, including the rejected changes. Errors: [ErrNotHalted].
func (c *Controller) Resume(ctx context.Context, name, by string) error {
	return c.execute(ctx, func(ctx context.Context) error {
		return c.forParts(name, func(p *part) error {
			if err := p.machine.Resume(time.Now()); err != nil {
				return err
			}
			c.overrulePeers(p, true)
			c.allowRejected(ctx, p)
			c.logCommand(p, "resume", by)
			return nil
		})
	})
}

// Undo serves all clients the edition before the newest promotion of a part and rejects the promoted edition. Without a
// name, it is that of the parts that were promoted last, at one time. Errors: [ErrNothingToUndo], [ErrNothingOpen].
func (c *Controller) Undo(ctx context.Context, name, reason, by string) error {
	return c.execute(ctx, func(ctx context.Context) error {
		chosen, err := c.choose(name)
		if err != nil {
			return err
		}
		now := time.Now()
		last := slices.MaxFunc(chosen, func(a, b *part) int { return a.undoable() - b.undoable() }).undoable()
		for _, p := range chosen {
			if p.undoable() < last {
				continue
			}
			c.undoInLateSections(ctx, p)
			if err := p.machine.Undo(now, rejectionReason("undo", reason, by)); err != nil {
				return err
			}
			p.edition = summarize(c.changesOf(p, p.machine.edition))
			c.overrulePeers(p, false)
			c.logCommand(p, "undo", by, slog.String("reason", reason))
		}
		return nil
	})
}

// undoable returns the number of the promotion that Undo reverts; zero without one.
func (p *part) undoable() int {
	if p.machine.previous == nil {
		return 0
	}
	return p.promotedAt
}

// RollBack serves all clients earlier editions of the sections and rejects the current ones, as Undo does, as one part. A
// section without an edition in the map is unchanged, and so is a halted part of which RollBack changes nothing. If no
// edition differs from the current one, RollBack rejects nothing. It returns the number of changed resources.
func (c *Controller) RollBack(
	ctx context.Context, editions map[SectionKey]func(*pending.List) *pending.Edition, reason, by string,
) (resources int, err error) {
	err = c.execute(ctx, func(ctx context.Context) error {
		earlier := make(map[*Section]*pending.Edition)
		for _, s := range c.tracker.joined() {
			pin := editions[s.Key]
			if pin == nil {
				continue
			}
			s.control.Edit(ctx, func(l *pending.List) {
				if e := pin(l); len(e.Changes) > 0 {
					earlier[s] = e
				}
			})
		}
		if len(earlier) == 0 {
			return nil
		}
		p := c.takeAll(func(p *part) bool { return p.machine.phase == Halted && !p.changesAny(earlier) })
		to, from := p.machine.RollBack()
		for _, cohort := range c.cfg.cohorts() {
			p.served[cohort] = from
		}
		for s, e := range earlier {
			s.set(p, to, e)
			s.set(p, from, e.Reversed())
		}
		if err := p.machine.Undo(time.Now(), rejectionReason("rollback", reason, by)); err != nil {
			return err
		}
		c.beginEdition(p, from, false)
		c.overrulePeers(p, false)
		resources = p.edition.resources
		c.logCommand(p, "rollback", by, slog.String("reason", reason))
		return nil
	})
	return resources, err
}

// changesAny reports whether the part has a resource that one of some editions changes.
func (p *part) changesAny(editions map[*Section]*pending.Edition) bool {
	for s, e := range editions {
		for _, of := range s.of[p].all() {
			for key, names := range e.Changes {
				for name := range names {
					if _, has := of.Changes[key][name]; has {
						return true
					}
				}
			}
		}
	}
	return false
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
func (c *Controller) logCommand(p *part, name, by string, attrs ...any) {
	common := []any{
		slog.String("command", name), slog.String("by", by), slog.String("part", p.edition.name),
		slog.String("edition", p.edition.id),
	}
	c.cfg.Logger.Warn("rollout command executed", append(common, attrs...)...)
}

// A Difference is a resource that an edition changes.
type Difference struct {
	Section SectionKey
	Part    string // the part to which it belongs; empty if it belongs to none yet
	pending.Difference
}

// Diff returns the changes of the editions that are in progress or were rejected. Without such editions, it returns the
// pending changes. The relay does not keep the content of an edition that an earlier process cut, or that was promoted
// and undone. For the resources of such an edition, Diff returns their pending changes in latest. Errors: the error of
// ctx and [ErrEnded].
func (c *Controller) Diff(ctx context.Context) (all []Difference, err error) {
	err = c.execute(ctx, func(ctx context.Context) error {
		cut := false
		for _, p := range c.parts {
			if p.machine.phase.hasEdition() {
				cut, all = true, append(all, c.diffOf(ctx, p)...)
			}
		}
		if !cut {
			all = c.pending(ctx)
		}
		return nil
	})
	return all, err
}

// diffOf returns the changes of the edition of a part.
func (c *Controller) diffOf(ctx context.Context, p *part) (all []Difference) {
	for _, s := range c.tracker.joined() {
		e := s.edition(p, p.machine.edition)
		if e == nil || len(e.Changes) == 0 {
			continue
		}
		before := len(all)
		for d := range e.Diff() {
			all = append(all, Difference{s.Key, p.edition.name, d})
		}
		if len(all) > before {
			continue
		}
		s.control.Edit(ctx, func(l *pending.List) {
			for d := range l.Pin().Diff() {
				if changesResource(e, d) {
					all = append(all, Difference{s.Key, p.edition.name, d})
				}
			}
		})
	}
	return all
}

// changesResource reports whether an edition changes the resource of d.
func changesResource(e *pending.Edition, d pending.Difference) bool {
	_, ok := e.Changes[d.Key][d.Name]
	return ok
}
