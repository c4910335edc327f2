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

// status returns the state of the rollout of an origin, or nil if rollouts are off.
func (r *rollouts) status(origin int) *rollout.Status {
	if r == nil {
		return nil
	}
	return r.controllers[origin].Status()
}

// rolloutOperations has the operations on rollouts.
type rolloutOperations struct{ operations }

// chosenRollouts returns the controller of an origin, or those of all origins if the name is empty.
func (r rolloutOperations) chosenRollouts(origin string) ([]*rollout.Controller, error) {
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

// rolloutStatus returns the states of the rollouts of one origin, or of all origins.
func (r rolloutOperations) rolloutStatus(origin string) (admin.Rollouts, error) {
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

// rolloutDiff returns the changes of the open editions.
func (r rolloutOperations) rolloutDiff(ctx context.Context, of admin.RolloutChoice) (admin.RolloutDiff, error) {
	chosen, err := r.chosenRollouts(of.Origin)
	if err != nil {
		return admin.RolloutDiff{}, err
	}
	done, err := r.lockCommands(ctx) // also waits until the controllers run
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

// A rolloutCommand is an operator command on rollouts.
type rolloutCommand struct {
	name        string
	all, reason bool // whether the command has these arguments
	do          func(ctx context.Context, c *rollout.Controller, of admin.RolloutScope, by string) error
}

var rolloutCommands = []rolloutCommand{
	{
		name: "promote", all: true,
		do: func(ctx context.Context, c *rollout.Controller, of admin.RolloutScope, by string) error {
			return c.Promote(ctx, of.All, by)
		},
	},
	{
		name: "abort", reason: true,
		do: func(ctx context.Context, c *rollout.Controller, of admin.RolloutScope, by string) error {
			return c.Abort(ctx, of.Reason, by)
		},
	},
	{
		name: "resume",
		do: func(ctx context.Context, c *rollout.Controller, _ admin.RolloutScope, by string) error {
			return c.Resume(ctx, by)
		},
	},
	{
		name: "undo", reason: true,
		do: func(ctx context.Context, c *rollout.Controller, of admin.RolloutScope, by string) error {
			return c.Undo(ctx, of.Reason, by)
		},
	},
}

// rolloutCommands returns the operator commands on rollouts. Each returns an error if rollouts are off.
func (r rolloutOperations) rolloutCommands() (all []admin.Command) {
	for _, command := range rolloutCommands {
		all = append(all, admin.NewCommand("rollout/"+command.name,
			func(ctx context.Context, of admin.RolloutScope) (admin.Rollouts, error) {
				return r.commandRollouts(ctx, command, of)
			}))
	}
	return all
}

// commandRollouts runs a command for one origin, or for all. With all origins, it skips those whose state does not
// permit the command, and fails only if no state does.
func (r rolloutOperations) commandRollouts(
	ctx context.Context, command rolloutCommand, of admin.RolloutScope,
) (admin.Rollouts, error) {
	if err := command.check(of); err != nil {
		return admin.Rollouts{}, err
	}
	chosen, err := r.chosenRollouts(of.Origin)
	if err != nil {
		return admin.Rollouts{}, err
	}
	by := admin.CallerOf(ctx).By(of.User)
	done, err := r.lockCommands(ctx)
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

// check returns an error if the arguments are invalid for the command.
func (c *rolloutCommand) check(of admin.RolloutScope) error {
	switch {
	case of.All && !c.all:
		return admin.Refuse(http.StatusBadRequest, errors.New("all: only promote accepts it"))
	case of.Reason != "" && !c.reason:
		return admin.Refuse(http.StatusBadRequest, errors.New("reason: only abort and undo accept it"))
	default:
		return of.Check()
	}
}

// unavailableIfEnded gives the error of a relay that shuts down the status 503, so that the caller retries at another
// replica.
func unavailableIfEnded(err error) error {
	if errors.Is(err, rollout.ErrEnded) {
		return admin.Refuse(http.StatusServiceUnavailable, err)
	}
	return err
}

// isStateError reports whether a command failed because the state of the rollout does not permit it.
func isStateError(err error) bool {
	return errors.Is(err, rollout.ErrNothingOpen) || errors.Is(err, rollout.ErrNotHalted) ||
		errors.Is(err, rollout.ErrNothingToUndo)
}
