package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/nodegroup"
	"github.com/xdstender/tender/relay/operator"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/upstream"
	"github.com/xdstender/tender/upstream/reconcile"
)

// A pendingSource returns rows of the changes that one mechanism delays. It selects those of a choice; only is the index
// of its origin, or -1 for all.
type pendingSource func(ctx context.Context, c admin.PendingChoice, only int) []admin.PendingChange

// pendingSources returns the sources of the list of pending changes. Each change is a row of one source.
func (op *operations) pendingSources() []pendingSource {
	return []pendingSource{op.heldRows, op.withheldRows}
}

// listPending returns the pending changes.
func (op *operations) listPending(ctx context.Context, c admin.PendingChoice) (admin.Pending, error) {
	answer := admin.Pending{Pending: []admin.PendingChange{}}
	if err := c.Check(); err != nil {
		return answer, err
	}
	only, err := op.findOrigin(c.Origin)
	if err != nil {
		return answer, err
	}
	for _, source := range op.pendingSources() {
		answer.Pending = append(answer.Pending, source(ctx, c, only)...)
	}
	operator.SortPending(answer.Pending)
	operator.LimitNames(answer.Pending)
	return answer, nil
}

// pendingDiff returns what the pending changes change for clients, by resource.
func (op *operations) pendingDiff(ctx context.Context, c admin.RolloutChoice) (admin.RolloutDiff, error) {
	only, done, err := op.lockOrigin(ctx, c.Origin)
	if err != nil {
		return admin.RolloutDiff{}, err
	}
	defer done()
	var all []operator.Edited
	for _, o := range op.groups.commandTargets() {
		if only >= 0 && o.origin != only {
			continue
		}
		name := op.settings.origins[o.origin].Name
		if control, ok := o.holder.(*upstream.Control); ok {
			all = append(all, changedBy(ctx, []viewEdition{{name, o.section(), control, func(l *pending.List) *pending.Edition {
				return l.PinStates(l.Newest())
			}}})...)
		}
		for _, h := range o.holder.Operate(ctx, reconcile.Command{TypeURL: c.Type, Name: c.Name}) {
			all = append(all, operator.EditedByHold(name, o.section(), h)...)
		}
	}
	for i := range op.origins {
		if only < 0 || only == i {
			all = append(all, op.staged(ctx, i)...)
			all = append(all, op.frozenFiles(ctx, i)...)
		}
	}
	return operator.RolloutDiff(operator.Newest(all), c)
}

// staged returns the changes of an origin that wait for a rollout.
func (op *operations) staged(ctx context.Context, origin int) (all []operator.Edited) {
	if op.groups.rollouts == nil {
		return nil
	}
	staged, err := op.groups.rollouts.controllers[origin].Pending(ctx)
	if err != nil {
		return nil // the relay stops, or the caller no longer waits
	}
	for _, d := range staged {
		all = append(all, operator.Edited{Origin: op.settings.origins[origin].Name, Difference: d})
	}
	return all
}

// frozenFiles returns the changes of a frozen directory, which its views have not applied.
func (op *operations) frozenFiles(ctx context.Context, origin int) []operator.Edited {
	if _, isDirectory := op.origins[origin].(filesOrigin); !isDirectory {
		return nil
	}
	return changedBy(ctx, op.thawEditions(ctx, origin))
}

// allPending returns all pending changes.
func (op *operations) allPending(ctx context.Context) []admin.PendingChange {
	all, _ := op.listPending(ctx, admin.PendingChoice{}) // only a choice can be invalid
	return all.Pending
}

// heldRows is the source of the changes that wait upstream of views.
func (op *operations) heldRows(ctx context.Context, c admin.PendingChoice, only int) []admin.PendingChange {
	return op.commandHeld(ctx, reconcile.Command{}, c, only)
}

// commandHeld executes a command on the changes that wait upstream of views. It returns rows of those to which it applies.
func (op *operations) commandHeld(
	ctx context.Context, command reconcile.Command, c admin.PendingChoice, only int,
) (rows []admin.PendingChange) {
	command.TypeURL, command.Name, command.Reason = c.Type, c.Name, reconcile.Reason(c.PendingReason)
	for _, o := range op.groups.commandTargets() {
		if only >= 0 && o.origin != only || c.Group != "" && !nodegroup.Is(c.Group, o.group) {
			continue
		}
		name := op.settings.origins[o.origin].Name
		rows = append(rows, operator.HeldRows(name, o.group, o.holder.Operate(ctx, command))...)
	}
	return rows
}

// withheldRows is the source of the changes that are in the cache, and that clients do not receive: because an operator
// froze the origin or rolled it back, and otherwise because of a rollout.
func (op *operations) withheldRows(ctx context.Context, c admin.PendingChoice, only int) (rows []admin.PendingChange) {
	for i := range op.origins {
		waits := op.waitsOf(i)
		waits = slices.DeleteFunc(waits, func(why operator.Wait) bool {
			return cmp.Or(c.PendingReason, why.Reason) != why.Reason
		})
		if len(waits) == 0 || only >= 0 && only != i {
			continue
		}
		withheld := op.withheldBy(ctx, i)
		for _, why := range waits {
			rows = append(rows, operator.WithheldRows(withheld, why, c)...)
		}
	}
	return rows
}

// withheldBy returns the differences between what the clients of an origin receive and its newest state.
func (op *operations) withheldBy(ctx context.Context, origin int) []operator.Edited {
	return append(changedBy(ctx, op.thawEditions(ctx, origin)), op.staged(ctx, origin)...)
}

// pendingNumbers returns the numbers of pending changes of an origin by reason: those that wait upstream of views, and the
// names that views withhold from clients. It does not wait for the views.
func (op *operations) pendingNumbers(origin int, held map[reconcile.Reason]int, views []admin.View) map[string]int {
	all := make(map[string]int)
	for reason, n := range held {
		all[string(reason)] = n
	}
	withheld := 0
	for i := range views {
		if v := &views[i]; v.Origin == op.settings.origins[origin].Name {
			withheld += v.Pending
		}
	}
	for _, why := range op.waitsOf(origin) { // the last one is of all others
		n := min(why.Names, withheld)
		if why.AllParts || why.Part == "" {
			n = withheld
		}
		if withheld -= n; n > 0 {
			all[why.Reason] += n
		}
	}
	return all
}

// waitsOf returns why the changes of an origin wait that are in the cache: by part if they wait for a rollout, and last why
// all others do. It returns nothing if all of them pass.
func (op *operations) waitsOf(origin int) (all []operator.Wait) {
	if f, frozen := op.groups.decisions.freezeOf(origin); frozen {
		why := operator.Wait{
			Reason: admin.PendingFrozen, Since: f.Since, Until: f.Until, Ends: admin.EndsByOperator, By: f.By, Note: f.Reason,
			AllParts: true,
		}
		if f.Rollback != nil {
			why.Reason = admin.PendingRolledBack
		}
		return []operator.Wait{why}
	}
	s := op.groups.rollouts.status(origin)
	if s == nil {
		return nil
	}
	others := operator.Wait{
		Reason: admin.PendingStage, Since: s.Oldest, Ends: admin.EndsByOrigin, Note: "in the next edition",
	}
	for _, of := range s.Parts {
		switch {
		case of.Part == "":
			others = stageWait(of)
		case of.Phase != rollout.Current:
			all = append(all, stageWait(of))
		}
	}
	return append(all, others)
}

// stageWait returns why the changes of a part wait for a rollout.
func stageWait(s *rollout.Status) operator.Wait {
	why := operator.Wait{
		Reason: admin.PendingStage, Since: s.Oldest, Until: s.Until, Note: rolloutNote(s), Part: s.Part, Names: s.Waiting,
	}
	switch {
	case s.Halted != nil:
		why.Reason, why.Ends, why.Until = admin.PendingHalted, admin.EndsByOperator, s.Until
		why.Note += ": " + s.Halted.Reason
	case s.Await == rollout.AwaitApproval:
		why.Ends = admin.EndsByOperator
	case s.Await == rollout.AwaitAnswers:
		why.Ends = admin.EndsByClients
	case s.Await == rollout.AwaitCheck, s.Await == rollout.AwaitEnvoy:
		why.Ends = admin.EndsByCheck
	default:
		why.Ends = admin.EndsByOrigin
	}
	return why
}

// rolloutNote returns the part and the edition of a rollout, and its stage unless it is halted.
func rolloutNote(s *rollout.Status) string {
	if s.Edition == "" || s.Phase == rollout.Current || s.Phase == rollout.Gathering {
		return "in the next edition"
	}
	part := ""
	if s.Part != "" {
		part = "part " + s.Part + ", "
	}
	if s.Phase == rollout.Halted {
		return fmt.Sprintf("%sedition %s", part, s.Edition)
	}
	return fmt.Sprintf("%sedition %s, stage %d of %d", part, s.Edition, s.Stage, max(len(s.Cohorts)-1, 0))
}

// pass lets the chosen changes reach the clients.
func (op *operations) pass(ctx context.Context, of admin.PendingScope) (admin.PendingDecision, error) {
	return op.decidePending(ctx, of, reconcile.Pass)
}

// drop makes clients keep what they have instead of the chosen changes.
func (op *operations) drop(ctx context.Context, of admin.PendingScope) (admin.PendingDecision, error) {
	return op.decidePending(ctx, of, reconcile.Drop)
}

// decidePending passes or drops the pending changes of a choice.
func (op *operations) decidePending(
	ctx context.Context, of admin.PendingScope, do reconcile.Action,
) (admin.PendingDecision, error) {
	answer := admin.PendingDecision{Pending: []admin.PendingChange{}, DryRun: of.DryRun}
	if err := of.Check(); err != nil {
		return answer, err
	}
	if do == reconcile.Drop && of.PendingReason == string(reconcile.Dropped) {
		return answer, admin.Refuse(http.StatusBadRequest,
			errors.New("pending_reason=dropped: these are dropped already; use tender pass dropped"))
	}
	only, done, err := op.lockOrigin(ctx, of.Origin)
	if err != nil {
		return answer, err
	}
	defer done()
	before, err := op.listPending(ctx, of.PendingChoice)
	if err != nil {
		return answer, err
	}
	ctx = context.WithoutCancel(ctx) // all views, or none
	command := reconcile.Command{Do: do, By: admin.CallerOf(ctx).By(of.User), DryRun: of.DryRun}
	rows := op.commandHeld(ctx, command, of.PendingChoice, only)
	operator.SortPending(rows)
	operator.LimitNames(rows)
	answer.Pending = append(answer.Pending, rows...)
	answer.Skipped = admin.Skip(skippedBy(command, before.Pending, of.PendingChoice))
	if len(rows) == 0 && len(answer.Skipped) > 0 && !of.All {
		s := answer.Skipped[0]
		return answer, admin.Refuse(http.StatusConflict, fmt.Errorf("changes with the reason %s: use %s", s.Reason, s.Use))
	}
	if len(rows) > 0 && !of.DryRun {
		answer.Warning = op.groups.saveNewDecision(ctx, true)
	}
	return answer, nil
}

// skippedBy returns the rows to which a command does not apply.
func skippedBy(command reconcile.Command, rows []admin.PendingChange, c admin.PendingChoice) []admin.PendingChange {
	command.Name, command.Reason = c.Name, reconcile.Reason(c.PendingReason)
	return slices.DeleteFunc(rows, func(row admin.PendingChange) bool {
		h := reconcile.Hold{Reason: reconcile.Reason(row.Reason), Kind: reconcile.Kind(row.Change)}
		return slices.Contains(reconcile.Reasons[:], h.Reason) && command.Applies(&h)
	})
}
