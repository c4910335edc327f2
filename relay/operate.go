package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/nodegroup"
	"github.com/xdstender/tender/relay/operator"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/relay/snapshot"
	"github.com/xdstender/tender/upstream"
)

// operations executes the commands of operators and their queries about what commands would change. This file has
// freezes and audits; pending.go, rollback.go and rollouts.go have the others. The methods may be called from any
// goroutine.
type operations struct {
	settings *settings
	origins  origins
	groups   *groups
	log      *slog.Logger
	level    *logLevel     // nil if operators cannot change it
	slot     chan struct{} // one slot, held by the running command
}

// newOperations returns the operations on the views of g. level is nil if operators cannot change it.
func newOperations(g *groups, level *slog.LevelVar) *operations {
	op := &operations{settings: g.settings, origins: g.origins, groups: g, log: g.log, slot: make(chan struct{}, 1)}
	if level != nil {
		op.level = &logLevel{log: g.log, level: level}
	}
	return op
}

// findOrigin returns the index of an origin, or -1 for an empty name.
func (op *operations) findOrigin(name string) (int, error) {
	if name == "" {
		return -1, nil
	}
	names := op.settings.originNames()
	if i := slices.Index(names, name); i >= 0 {
		return i, nil
	}
	return 0, admin.Refuse(http.StatusNotFound,
		fmt.Errorf("there is no origin %q; the origins are %s", name, strings.Join(names, ", ")))
}

// lockCommands waits until the relay has started and no other command runs. The caller must call done after its
// command.
func (op *operations) lockCommands(ctx context.Context) (done func(), err error) {
	select {
	case <-op.groups.started:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case op.slot <- struct{}{}:
		return func() { <-op.slot }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// lockOrigin returns the index of an origin, or -1 for an empty name, and waits until no other command runs. The caller
// must call done after its command.
func (op *operations) lockOrigin(ctx context.Context, origin string) (only int, done func(), err error) {
	if only, err = op.findOrigin(origin); err != nil {
		return 0, nil, err
	}
	done, err = op.lockCommands(ctx)
	return only, done, err
}

// choose returns the views and directories in a scope, and its type URL, which is empty for all types.
func (op *operations) choose(of admin.Scope) (chosen []commandTarget, typeURL string, err error) {
	origin, err := op.findOrigin(of.Origin)
	if err != nil {
		return nil, "", err
	}
	chosen = slices.DeleteFunc(op.groups.commandTargets(), func(o commandTarget) bool {
		return origin >= 0 && o.origin != origin || of.Group != "" && !nodegroup.Is(of.Group, o.group)
	})
	if long, ok := schema.TypeURLFor(of.Type); ok {
		return chosen, long, nil
	}
	return chosen, of.Type, nil
}

// A viewEdition is the edition that a command would serve to the clients of one view.
type viewEdition struct {
	origin  string
	section rollout.SectionKey
	control *upstream.Control
	edition func(*pending.List) *pending.Edition // called by the goroutine of the view
}

// diffOf returns the changes of editions for clients, resource by resource.
func diffOf(ctx context.Context, all []viewEdition, c admin.RolloutChoice) (admin.RolloutDiff, error) {
	return operator.RolloutDiff(changedBy(ctx, all), c)
}

// changedBy returns the changes of editions for clients.
func changedBy(ctx context.Context, all []viewEdition) (edited []operator.Edited) {
	for _, v := range all {
		v.control.Edit(ctx, func(l *pending.List) {
			for d := range v.edition(l).Diff() {
				difference := rollout.Difference{Section: v.section, Difference: d}
				edited = append(edited, operator.Edited{Origin: v.origin, Difference: difference})
			}
		})
	}
	return edited
}

// dryRun returns the diff of editions for the response to a dry run, which has at most admin.MaxDryRunChanges changes.
func dryRun(ctx context.Context, all []viewEdition) (*admin.RolloutDiff, error) {
	diff, err := diffOf(ctx, all, admin.RolloutChoice{Page: admin.Page{Limit: admin.MaxDryRunChanges}})
	return &diff, err
}

// freeze withholds the changes of one origin, or of all, until a thaw or for a time.
func (op *operations) freeze(ctx context.Context, of admin.FreezeScope) (admin.Freezes, error) {
	if err := of.Check(); err != nil {
		return admin.Freezes{}, err
	}
	if of.DryRun {
		return admin.Freezes{}, admin.Refuse(http.StatusBadRequest, errors.New("dry_run: only thaw accepts it"))
	}
	if err := op.refuseIfRolledBack(of.Origin); err != nil {
		return admin.Freezes{}, err
	}
	by := admin.CallerOf(ctx).By(of.User)
	return op.changeFreezes(ctx, of, func(ctx context.Context, origin int) {
		now := time.Now()
		f := &activeFreeze{
			Freeze: snapshot.Freeze{Origin: op.settings.origins[origin].Name, By: by, Reason: of.Reason, Since: now.Round(0)},
		}
		if length := time.Duration(of.ForSeconds * float64(time.Second)); length > 0 {
			f.Length, f.until, f.Until = length, now.Add(length), now.Add(length).Round(0)
		}
		op.freezeOrigin(ctx, origin, f)
	})
}

// thaw ends the freezes or rollbacks of one origin, or of all.
func (op *operations) thaw(ctx context.Context, of admin.FreezeScope) (admin.Freezes, error) {
	if of.ForSeconds != 0 {
		return admin.Freezes{}, admin.Refuse(http.StatusBadRequest, errors.New("for_seconds: only freeze accepts it"))
	}
	if err := of.Check(); err != nil {
		return admin.Freezes{}, err
	}
	by := admin.CallerOf(ctx).By(of.User)
	return op.changeFreezes(ctx, of, func(ctx context.Context, origin int) { op.thawOrigin(ctx, origin, by, of.Reason) })
}

// refuseIfRolledBack returns an error if an origin is rolled back, because it cannot be frozen then. An empty name
// stands for all origins.
func (op *operations) refuseIfRolledBack(origin string) error {
	for i, name := range op.settings.originNames() {
		if f, frozen := op.groups.decisions.freezeOf(i); frozen && f.Rollback != nil && (origin == "" || origin == name) {
			return admin.Refuse(http.StatusConflict,
				fmt.Errorf("origin %q is rolled back, so its changes are already pending; end the rollback with tender thaw",
					name))
		}
	}
	return nil
}

// changeFreezes calls do, which freezes or thaws an origin, for the origins of a scope. It returns the resulting state
// of all origins. For a dry run, it returns the changes of a thaw instead.
func (op *operations) changeFreezes(
	ctx context.Context, of admin.FreezeScope, do func(ctx context.Context, origin int),
) (admin.Freezes, error) {
	only, done, err := op.lockOrigin(ctx, of.Origin)
	if err != nil {
		return admin.Freezes{}, err
	}
	defer done()
	answer := admin.Freezes{Origins: op.withheld(), DryRun: of.DryRun}
	if of.DryRun {
		op.showFreezes(answer.Origins)
		answer.Diff, err = dryRun(ctx, op.thawEditions(ctx, only))
		return answer, err
	}
	ctx = context.WithoutCancel(ctx) // all views, or none
	for i := range op.origins {
		if only < 0 || only == i {
			do(ctx, i)
		}
	}
	warning := op.groups.saveNewDecision(ctx, false)
	// The file may still have the ended freeze.
	if op.showFreezes(answer.Origins) || op.groups.decisions.snapshots != nil {
		answer.Warning = warning
	}
	return answer, nil
}

// withheld returns, for each origin, the number of names with a withheld change.
func (op *operations) withheld() (all []admin.Freeze) {
	for i := range op.origins {
		f := admin.Freeze{Origin: op.settings.origins[i].Name}
		for _, o := range op.groups.viewsOf(i) {
			f.Views++
			f.Pending += o.view.Withheld(o.source)
		}
		all = append(all, f)
	}
	return all
}

// showFreezes sets the freezes of origins, and reports whether any origin is frozen.
func (op *operations) showFreezes(all []admin.Freeze) (any bool) {
	for i := range all {
		all[i].Freeze = op.groups.decisions.shownFreeze(i)
		all[i].Frozen = all[i].Freeze != nil
		any = any || all[i].Frozen
	}
	return any
}

// freezeOrigin stops the distribution of an origin's changes. It starts with views that are created meanwhile.
func (op *operations) freezeOrigin(ctx context.Context, origin int, f *activeFreeze) {
	op.groups.decisions.setFrozen(origin, f)
	attrs := []any{slog.String("origin", f.Origin), slog.String("by", f.By), slog.String("reason", f.Reason)}
	if !f.Until.IsZero() {
		attrs = append(attrs, slog.Time("until", f.Until))
	}
	op.log.Warn("origin frozen; its changes are pending", attrs...)
	if files, ok := op.origins[origin].(filesOrigin); ok {
		files.Freeze(ctx)
	}
	for _, o := range op.groups.viewsOf(origin) {
		o.control.Freeze(ctx)
	}
}

// thawOrigin resumes the distribution of an origin's changes. by is empty if the freeze has expired.
func (op *operations) thawOrigin(ctx context.Context, origin int, by, reason string) {
	op.groups.decisions.setFrozen(origin, nil)
	op.groups.distrust.scheduleEnd(origin)
	op.log.Warn("origin thawed; its changes are distributed", slog.String("origin", op.settings.origins[origin].Name),
		slog.String("by", by), slog.String("reason", reason))
	if files, ok := op.origins[origin].(filesOrigin); ok {
		files.Thaw()
	}
	for _, o := range op.groups.viewsOf(origin) {
		o.control.Thaw(ctx)
	}
}

// thawDiff returns the changes of a thaw for clients.
func (op *operations) thawDiff(ctx context.Context, c admin.RolloutChoice) (admin.RolloutDiff, error) {
	only, done, err := op.lockOrigin(ctx, c.Origin)
	if err != nil {
		return admin.RolloutDiff{}, err
	}
	defer done()
	return diffOf(ctx, op.thawEditions(ctx, only), c)
}

// thawEditions returns the editions that a thaw of one origin, or of all origins for -1, would serve.
func (op *operations) thawEditions(ctx context.Context, only int) (all []viewEdition) {
	for i, o := range op.origins {
		if _, frozen := op.groups.decisions.freezeOf(i); !frozen || only >= 0 && only != i {
			continue
		}
		edition := func(l *pending.List) *pending.Edition { return l.PinThawed(l.Thawed()) }
		if files, ok := o.(filesOrigin); ok {
			edition = files.Thawing(ctx)
		}
		for _, v := range op.groups.viewsOf(i) {
			all = append(all, viewEdition{op.settings.origins[i].Name, v.section(), v.control, edition})
		}
	}
	return all
}

// thawExpired thaws origins when their freeze expires, until ctx ends.
func (op *operations) thawExpired(ctx context.Context) {
	for {
		next, origin := time.Time{}, -1
		for i := range op.origins {
			if f, _ := op.groups.decisions.freezeOf(i); !f.until.IsZero() && (next.IsZero() || f.until.Before(next)) {
				next, origin = f.until, i
			}
		}
		var due <-chan time.Time
		if origin >= 0 {
			due = time.After(time.Until(next))
		}
		select {
		case <-due:
			op.thawIfExpired(ctx, origin, next)
		case <-op.groups.decisions.changed:
			continue
		case <-ctx.Done():
			return
		}
		select { // wait for the thaw, or for the command that replaced the freeze
		case <-op.groups.decisions.changed:
		case <-ctx.Done():
			return
		}
	}
}

// thawIfExpired ends a freeze whose end time was until, unless an operator has changed the end meanwhile.
func (op *operations) thawIfExpired(ctx context.Context, origin int, until time.Time) {
	done, err := op.lockCommands(ctx)
	if err != nil {
		return
	}
	defer done()
	if f, frozen := op.groups.decisions.freezeOf(origin); frozen && f.until.Equal(until) {
		op.thawOrigin(ctx, origin, "", "freeze expired")
		op.groups.saveNewDecision(ctx, false)
	}
}

// warnFrozen logs, when the relay stops, the frozen origins whose freeze does not survive a restart.
func (op *operations) warnFrozen() {
	for i := range op.origins {
		if f := op.groups.decisions.shownFreeze(i); f != nil && !f.SurvivesRestart {
			op.log.Warn("relay stopping while origin is frozen; the freeze is lost",
				slog.String("origin", op.settings.origins[i].Name))
		}
	}
}

// auditOrigins compares views with the responses of their origins on a second stream (B.43). It audits origins in
// parallel, and the views of an origin one after the other. A directory cannot be audited.
func (op *operations) auditOrigins(ctx context.Context, of admin.Scope) (admin.Audits, error) {
	answer := admin.Audits{Views: []admin.ViewAudit{}}
	chosen, typeURL, err := op.choose(of)
	if err != nil {
		return answer, err
	}
	var (
		byOrigin = make([][]admin.ViewAudit, len(op.origins))
		running  sync.WaitGroup
	)
	answer.Skipped = op.directories(of.Origin)
	if n := len(answer.Skipped); n > 0 && (of.Origin != "" || n == len(op.origins)) {
		err := fmt.Errorf("origin %q: %w", answer.Skipped[0].Origin, upstream.ErrNoAudit)
		return admin.Audits{Views: []admin.ViewAudit{}}, admin.Refuse(http.StatusBadRequest, err)
	}
	for i, o := range op.origins {
		if _, files := o.(filesOrigin); files {
			continue
		}
		running.Go(func() { // awaited below
			for _, v := range chosen {
				if v.origin != i || v.control == nil {
					continue
				}
				if found, any := op.auditView(ctx, v, typeURL); any {
					byOrigin[i] = append(byOrigin[i], found)
				}
			}
		})
	}
	running.Wait()
	for _, views := range byOrigin {
		answer.Views = append(answer.Views, views...)
	}
	return answer, nil
}

// directories returns the directories among the origins, or of one origin, which an audit skips.
func (op *operations) directories(origin string) (skipped []admin.SkippedAudit) {
	for i, o := range op.origins {
		name := op.settings.origins[i].Name
		if _, files := o.(filesOrigin); files && (origin == "" || origin == name) {
			skipped = append(skipped, admin.SkippedAudit{Origin: name, Reason: upstream.ErrNoAudit.Error()})
		}
	}
	return skipped
}

// auditView audits one view. any is false if the view has no subscriptions to audit.
func (op *operations) auditView(
	ctx context.Context, v commandTarget, typeURL string,
) (shown admin.ViewAudit, any bool) {
	shown = admin.ViewAudit{Origin: op.settings.origins[v.origin].Name, Group: v.group}
	found, err := v.control.Audit(ctx, typeURL)
	if err != nil {
		shown.Error = err.Error()
		return shown, true
	}
	shown.Target, shown.Seconds = found.Target, found.Took.Seconds()
	for _, t := range found.Types {
		shown.Types = append(shown.Types, shownAudit(t))
	}
	return shown, len(shown.Types) > 0
}

// shownAudit returns the result of an audit for a type in the form of the admin API.
func shownAudit(t upstream.TypeAudit) admin.TypeAudit {
	shown := admin.TypeAudit{TypeURL: t.TypeURL, Equal: t.Equal, Changing: t.Changing}
	counts := map[upstream.DifferenceKind]*int{
		upstream.OtherContent: &shown.Content,
		upstream.OtherVersion: &shown.Version,
		upstream.MissingHere:  &shown.MissingHere,
		upstream.MissingThere: &shown.MissingThere,
	}
	for i, d := range t.Differences {
		*counts[d.Kind]++
		if i < admin.MaxDifferences {
			shown.Differences = append(shown.Differences, admin.Difference{
				Name: d.Name, Kind: d.Kind, AskedAs: d.Glob, Here: d.Here, There: d.There, Held: d.Held,
			})
		}
	}
	return shown
}
