package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/snapshot"
)

// freezes has the operations that freeze and thaw origins.
type freezes struct{ operations }

// freeze withholds the changes of one origin, or of all, until a thaw or for a time.
func (r freezes) freeze(ctx context.Context, of admin.FreezeScope) (admin.Freezes, error) {
	if err := of.Check(); err != nil {
		return admin.Freezes{}, err
	}
	if of.DryRun {
		return admin.Freezes{}, admin.Refuse(http.StatusBadRequest, errors.New("dry_run: only thaw accepts it"))
	}
	if err := r.rejectIfRolledBack(of.Origin); err != nil {
		return admin.Freezes{}, err
	}
	by := admin.CallerOf(ctx).By(of.User)
	return r.eachOrigin(ctx, of, func(ctx context.Context, origin int) {
		now := time.Now()
		f := &activeFreeze{
			Freeze: snapshot.Freeze{Origin: r.cfg.OriginName(origin), By: by, Reason: of.Reason, Since: now.Round(0)},
		}
		if length := time.Duration(of.ForSeconds * float64(time.Second)); length > 0 {
			f.Length, f.until, f.Until = length, now.Add(length), now.Add(length).Round(0)
		}
		r.freezeOrigin(ctx, origin, f)
	})
}

// thaw ends the freezes or rollbacks of one origin, or of all.
func (r freezes) thaw(ctx context.Context, of admin.FreezeScope) (admin.Freezes, error) {
	if of.ForSeconds != 0 {
		return admin.Freezes{}, admin.Refuse(http.StatusBadRequest, errors.New("for_seconds: only freeze accepts it"))
	}
	if err := of.Check(); err != nil {
		return admin.Freezes{}, err
	}
	by := admin.CallerOf(ctx).By(of.User)
	return r.eachOrigin(ctx, of, func(ctx context.Context, origin int) { r.thawOrigin(ctx, origin, by, of.Reason) })
}

// rejectIfRolledBack returns an error if an origin is rolled back, because it cannot be frozen then. An empty name
// stands for all origins.
func (r freezes) rejectIfRolledBack(origin string) error {
	for i, name := range r.cfg.OriginNames() {
		if f, frozen := r.groups.decisions.freezeOf(i); frozen && f.Rollback != nil && (origin == "" || origin == name) {
			return admin.Refuse(http.StatusConflict,
				fmt.Errorf("origin %q is rolled back, so its changes are already withheld; end the rollback with tender thaw",
					name))
		}
	}
	return nil
}

// eachOrigin calls do, which freezes or thaws an origin, for the origins of a scope. It returns the resulting state of
// all origins. For a dry run, it returns the changes of a thaw instead.
func (r freezes) eachOrigin(
	ctx context.Context, of admin.FreezeScope, do func(ctx context.Context, origin int),
) (admin.Freezes, error) {
	only, done, err := r.lockOrigin(ctx, of.Origin)
	if err != nil {
		return admin.Freezes{}, err
	}
	defer done()
	answer := admin.Freezes{Origins: r.withheld(), DryRun: of.DryRun}
	if of.DryRun {
		r.showFreezes(answer.Origins)
		answer.Diff, err = r.dryRun(ctx, r.thawEditions(ctx, only))
		return answer, err
	}
	ctx = context.WithoutCancel(ctx) // all views, or none
	for i := range r.origins {
		if only < 0 || only == i {
			do(ctx, i)
		}
	}
	warning := r.groups.decisionStore().saveNew(ctx, false)
	if r.showFreezes(answer.Origins) || r.groups.decisions.snapshots != nil { // the file may still have the ended freeze
		answer.Warning = warning
	}
	return answer, nil
}

// withheld returns, for each origin, the number of names with a withheld change.
func (r freezes) withheld() (all []admin.Freeze) {
	for i := range r.origins {
		f := admin.Freeze{Origin: r.cfg.OriginName(i)}
		for _, o := range r.groups.inspector().viewsOf(i) {
			f.Views++
			f.Withheld += o.view.Withheld(o.source)
		}
		all = append(all, f)
	}
	return all
}

// showFreezes sets the freezes of origins, and reports whether any origin is frozen.
func (r freezes) showFreezes(all []admin.Freeze) (any bool) {
	for i := range all {
		all[i].Freeze = r.groups.decisions.shownFreeze(i)
		all[i].Frozen = all[i].Freeze != nil
		any = any || all[i].Frozen
	}
	return any
}

// freezeOrigin stops the distribution of an origin's changes. It starts with views that are created meanwhile.
func (r freezes) freezeOrigin(ctx context.Context, origin int, f *activeFreeze) {
	r.groups.decisions.setFrozen(origin, f)
	attrs := []any{slog.String("origin", f.Origin), slog.String("by", f.By), slog.String("reason", f.Reason)}
	if !f.Until.IsZero() {
		attrs = append(attrs, slog.Time("until", f.Until))
	}
	r.log.Warn("origin frozen; its changes are withheld", attrs...)
	if files, ok := r.origins[origin].(filesOrigin); ok {
		files.Freeze(ctx)
	}
	for _, o := range r.groups.inspector().viewsOf(origin) {
		o.control.Freeze(ctx)
	}
}

// thawOrigin resumes the distribution of an origin's changes. by is empty if the freeze has expired.
func (r freezes) thawOrigin(ctx context.Context, origin int, by, reason string) {
	r.groups.decisions.setFrozen(origin, nil)
	r.groups.rollbackDistrust().scheduleEnd(origin)
	r.log.Warn("origin thawed; its changes are distributed", slog.String("origin", r.cfg.OriginName(origin)),
		slog.String("by", by), slog.String("reason", reason))
	if files, ok := r.origins[origin].(filesOrigin); ok {
		files.Thaw()
	}
	for _, o := range r.groups.inspector().viewsOf(origin) {
		o.control.Thaw(ctx)
	}
}

// thawDiff returns the changes of a thaw for clients.
func (r freezes) thawDiff(ctx context.Context, c admin.RolloutChoice) (admin.RolloutDiff, error) {
	only, done, err := r.lockOrigin(ctx, c.Origin)
	if err != nil {
		return admin.RolloutDiff{}, err
	}
	defer done()
	return r.diffOf(ctx, r.thawEditions(ctx, only), c)
}

// thawEditions returns the editions that a thaw of one origin, or of all origins for -1, would serve.
func (r freezes) thawEditions(ctx context.Context, only int) (all []viewEdition) {
	for i, o := range r.origins {
		if _, frozen := r.groups.decisions.freezeOf(i); !frozen || only >= 0 && only != i {
			continue
		}
		edition := (*cache.Writer).PinThawed
		if files, ok := o.(filesOrigin); ok {
			edition = files.Thawing(ctx)
		}
		for _, v := range r.groups.inspector().viewsOf(i) {
			all = append(all, viewEdition{r.cfg.OriginName(i), v.part(), v.control, edition})
		}
	}
	return all
}

// thawExpired thaws origins when their freeze expires, until ctx ends.
func (r freezes) thawExpired(ctx context.Context) {
	for {
		next, origin := time.Time{}, -1
		for i := range r.origins {
			if f, _ := r.groups.decisions.freezeOf(i); !f.until.IsZero() && (next.IsZero() || f.until.Before(next)) {
				next, origin = f.until, i
			}
		}
		var due <-chan time.Time
		if origin >= 0 {
			due = time.After(time.Until(next))
		}
		select {
		case <-due:
			r.thawIfExpired(ctx, origin, next)
		case <-r.groups.decisions.changed:
			continue
		case <-ctx.Done():
			return
		}
		select { // wait for the thaw, or for the command that replaced the freeze
		case <-r.groups.decisions.changed:
		case <-ctx.Done():
			return
		}
	}
}

// thawIfExpired ends a freeze whose end time was until, unless an operator has changed the end meanwhile.
func (r freezes) thawIfExpired(ctx context.Context, origin int, until time.Time) {
	done, err := r.lockCommands(ctx)
	if err != nil {
		return
	}
	defer done()
	if f, frozen := r.groups.decisions.freezeOf(origin); frozen && f.until.Equal(until) {
		r.thawOrigin(ctx, origin, "", "freeze expired")
		r.groups.decisionStore().saveNew(ctx, false)
	}
}

// warnFrozen logs, when the relay stops, the frozen origins whose freeze does not survive a restart.
func (r freezes) warnFrozen() {
	for i := range r.origins {
		if f := r.groups.decisions.shownFreeze(i); f != nil && !f.SurvivesRestart {
			r.log.Warn("relay stopping while origin is frozen; the freeze is lost", slog.String("origin", r.cfg.OriginName(i)))
		}
	}
}
