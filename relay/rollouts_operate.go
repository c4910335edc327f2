package relay

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/operator"
	"github.com/xdstender/tender/relay/rollout"
)

// status returns how the rollout of an origin's changes stands; nil if rollouts are off.
func (r *rollouts) status(origin int) *rollout.Status {
	if r == nil {
		return nil
	}
	return r.controllers[origin].Status()
}

// chosenRollouts returns the controllers of an origin, or of all if the name is empty.
func (r operations) chosenRollouts(origin string) ([]*rollout.Controller, error) {
	if r.groups.rollouts == nil {
		return nil, admin.ErrRolloutOff
	}
	all := r.groups.rollouts.controllers
	i, err := r.findOrigin(origin)
	if err != nil || i < 0 {
		return all, err
	}
	return all[i : i+1], nil
}

// rolloutStatus returns how the rollouts of origins stand.
func (r operations) rolloutStatus(origin string) (admin.Rollouts, error) {
	chosen, err := r.chosenRollouts(origin)
	if err != nil {
		return admin.Rollouts{}, err
	}
	var answer admin.Rollouts
	for _, c := range chosen {
		answer.Rollouts = append(answer.Rollouts, c.Status())
	}
	return answer, nil
}

// rolloutDiff returns what the editions of origins change.
func (r operations) rolloutDiff(ctx context.Context, of admin.RolloutChoice) (admin.RolloutDiff, error) {
	chosen, err := r.chosenRollouts(of.Origin)
	if err != nil {
		return admin.RolloutDiff{}, err
	}
	done, err := r.groups.lockCommands(ctx) // then the controllers run
	if err != nil {
		return admin.RolloutDiff{}, err
	}
	defer done()
	var all []operator.Edited
	for _, c := range chosen {
		differences, err := c.Diff(ctx)
		if err != nil {
			return admin.RolloutDiff{}, unavailableIfEnded(err)
		}
		for _, d := range differences {
			all = append(all, operator.Edited{Origin: c.Status().Origin, Difference: d})
		}
	}
	return operator.RolloutDiff(all, of)
}

// A rolloutCommand is a command about rollouts.
type rolloutCommand struct {
	name        string
	all, reason bool // whether it has these arguments
	do          func(ctx context.Context, c *rollout.Controller, of admin.RolloutScope, by string) error
}

var rolloutCommands = []rolloutCommand{
	{name: "promote", all: true, do: func(ctx context.Context, c *rollout.Controller, of admin.RolloutScope, by string) error {
		return c.Promote(ctx, of.All, by)
	}},
	{name: "abort", reason: true, do: func(ctx context.Context, c *rollout.Controller, of admin.RolloutScope, by string) error {
		return c.Abort(ctx, of.Reason, by)
	}},
	{name: "resume", do: func(ctx context.Context, c *rollout.Controller, _ admin.RolloutScope, by string) error {
		return c.Resume(ctx, by)
	}},
	{name: "undo", reason: true, do: func(ctx context.Context, c *rollout.Controller, of admin.RolloutScope, by string) error {
		return c.Undo(ctx, of.Reason, by)
	}},
}

// rolloutCommands returns what operators may do about rollouts. If those are off, each is refused.
func (r operations) rolloutCommands() (all []admin.Command) {
	for _, command := range rolloutCommands {
		all = append(all, admin.NewCommand("rollout/"+command.name, func(ctx context.Context, of admin.RolloutScope) (admin.Rollouts, error) {
			return r.commandRollouts(ctx, command, of)
		}))
	}
	return all
}

// commandRollouts carries out a command for an origin, or as freeze does, for all; then for those in whose state it can be.
func (r operations) commandRollouts(ctx context.Context, command rolloutCommand, of admin.RolloutScope) (admin.Rollouts, error) {
	if err := command.check(of); err != nil {
		return admin.Rollouts{}, err
	}
	chosen, err := r.chosenRollouts(of.Origin)
	if err != nil {
		return admin.Rollouts{}, err
	}
	by := admin.CallerOf(ctx).By(of.User)
	done, err := r.groups.lockCommands(ctx)
	if err != nil {
		return admin.Rollouts{}, err
	}
	defer done()
	ctx = context.WithoutCancel(ctx) // all origins, or none
	var (
		answer admin.Rollouts
		cannot []error
	)
	for _, c := range chosen {
		switch err := command.do(ctx, c, of, by); {
		case err == nil:
			answer.Rollouts = append(answer.Rollouts, c.Status())
		case !isStateError(err):
			return answer, unavailableIfEnded(err)
		case len(chosen) > 1:
			cannot = append(cannot, fmt.Errorf("origin %q: %w", c.Status().Origin, err))
		default:
			cannot = append(cannot, err)
		}
	}
	if len(answer.Rollouts) == 0 {
		return answer, admin.Refuse(http.StatusConflict, errors.Join(cannot...))
	}
	return answer, nil
}

// check returns why the arguments of a command cannot be, as a refusal.
func (c *rolloutCommand) check(of admin.RolloutScope) error {
	switch {
	case of.All && !c.all:
		return admin.Refuse(http.StatusBadRequest, errors.New("all: only promote has it"))
	case of.Reason != "" && !c.reason:
		return admin.Refuse(http.StatusBadRequest, errors.New("reason: only abort and undo have it"))
	default:
		return of.Check()
	}
}

// unavailableIfEnded has the error that the relay is shutting down be answered with 503: another replica, or this one later, may do it.
func unavailableIfEnded(err error) error {
	if errors.Is(err, rollout.ErrEnded) {
		return admin.Refuse(http.StatusServiceUnavailable, err)
	}
	return err
}

// isStateError reports whether an error says that a command cannot be carried out in the state that a rollout is in.
func isStateError(err error) bool {
	return errors.Is(err, rollout.ErrNothingOpen) || errors.Is(err, rollout.ErrNotHalted) || errors.Is(err, rollout.ErrNothingToUndo)
}
