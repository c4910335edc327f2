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
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/snapshot"
	"github.com/xdstender/tender/upstream"
	"github.com/xdstender/tender/upstream/reconcile"
)

// lockCommands waits until the relay has started and no other command runs. The caller must call done after its
// command.
func (g *groups) lockCommands(ctx context.Context) (done func(), err error) {
	select {
	case <-g.started:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case g.commandSlot <- struct{}{}:
		return func() { <-g.commandSlot }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// operations has the commands and queries of the admin API. Its methods may be called from any goroutine.
type operations struct{ *Relay }

// findOrigin returns the index of an origin, or -1 for an empty name.
func (r operations) findOrigin(name string) (int, error) {
	if name == "" {
		return -1, nil
	}
	names := r.cfg.OriginNames()
	if i := slices.Index(names, name); i >= 0 {
		return i, nil
	}
	return 0, admin.Refuse(http.StatusNotFound,
		fmt.Errorf("there is no origin %q; the origins are %s", name, strings.Join(names, ", ")))
}

// lockOrigin returns the index of an origin, or -1 for an empty name, and waits until no other command runs. The caller
// must call done after its command.
func (r operations) lockOrigin(ctx context.Context, origin string) (only int, done func(), err error) {
	if only, err = r.findOrigin(origin); err != nil {
		return 0, nil, err
	}
	done, err = r.groups.lockCommands(ctx)
	return only, done, err
}

// freeze withholds the changes of one origin, or of all, until a thaw or for a time.
func (r operations) freeze(ctx context.Context, of admin.FreezeScope) (admin.Freezes, error) {
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
func (r operations) thaw(ctx context.Context, of admin.FreezeScope) (admin.Freezes, error) {
	if of.ForSeconds != 0 {
		return admin.Freezes{}, admin.Refuse(http.StatusBadRequest, errors.New("for_seconds: only freeze accepts it"))
	}
	if err := of.Check(); err != nil {
		return admin.Freezes{}, err
	}
	by := admin.CallerOf(ctx).By(of.User)
	return r.eachOrigin(ctx, of, func(ctx context.Context, origin int) { r.thawOrigin(ctx, origin, by, of.Reason) })
}

// eachOrigin calls do, which freezes or thaws an origin, for the origins of a scope. It returns the resulting state of
// all origins. For a dry run, it returns the changes of a thaw instead.
func (r operations) eachOrigin(
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
func (r operations) withheld() (all []admin.Freeze) {
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
func (r operations) showFreezes(all []admin.Freeze) (any bool) {
	for i := range all {
		all[i].Freeze = r.groups.decisions.shownFreeze(i)
		all[i].Frozen = all[i].Freeze != nil
		any = any || all[i].Frozen
	}
	return any
}

// freezeOrigin stops the distribution of an origin's changes. It starts with views that are created meanwhile.
func (r operations) freezeOrigin(ctx context.Context, origin int, f *activeFreeze) {
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
func (r operations) thawOrigin(ctx context.Context, origin int, by, reason string) {
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

// holds returns the held changes and the discarded removals.
func (r operations) holds(ctx context.Context) admin.Holds {
	answer := admin.Holds{Holds: []admin.Hold{}}
	for _, o := range r.groups.inspector().commandTargets() {
		answer.Holds = append(answer.Holds, r.shownHolds(o, o.holder.Operate(ctx, reconcile.Command{}))...)
	}
	return answer
}

// release applies the held or discarded changes in a scope.
func (r operations) release(ctx context.Context, of admin.HoldScope) (admin.Holds, error) {
	return r.decide(ctx, of, reconcile.Release)
}

// discard drops the held changes in a scope. The resources are kept.
func (r operations) discard(ctx context.Context, of admin.HoldScope) (admin.Holds, error) {
	if of.Discarded {
		return admin.Holds{}, admin.Refuse(http.StatusBadRequest,
			errors.New("discarded: a discarded removal can only be released"))
	}
	return r.decide(ctx, of, reconcile.Discard)
}

// decide releases or discards the held changes in a scope.
func (r operations) decide(ctx context.Context, of admin.HoldScope, do reconcile.Action) (admin.Holds, error) {
	answer := admin.Holds{Holds: []admin.Hold{}}
	if err := of.Check(); err != nil {
		return answer, err
	}
	if of.Scope == (admin.Scope{}) && !of.All {
		return answer, admin.Refuse(http.StatusBadRequest, errors.New("name an origin, a group or a type, or set all"))
	}
	chosen, typeURL, err := r.choose(of.Scope)
	if err != nil {
		return answer, err
	}
	command := reconcile.Command{Do: do, TypeURL: typeURL, Discarded: of.Discarded}
	done, err := r.groups.lockCommands(ctx)
	if err != nil {
		return answer, err
	}
	defer done()
	for _, o := range chosen {
		answer.Holds = append(answer.Holds, r.shownHolds(o, o.holder.Operate(ctx, command))...)
	}
	if len(answer.Holds) > 0 {
		answer.Warning = r.groups.decisionStore().saveNew(context.WithoutCancel(ctx), true)
	}
	return answer, nil
}

// choose returns the views and directories in a scope, and its type URL, which is empty for all types.
func (r operations) choose(of admin.Scope) (chosen []commandTarget, typeURL string, err error) {
	origin, err := r.findOrigin(of.Origin)
	if err != nil {
		return nil, "", err
	}
	chosen = slices.DeleteFunc(r.groups.inspector().commandTargets(), func(o commandTarget) bool {
		return origin >= 0 && o.origin != origin || of.Group != "" && o.group != of.Group
	})
	if long, ok := schema.TypeURLFor(of.Type); ok {
		return chosen, long, nil
	}
	return chosen, of.Type, nil
}

// shownHolds returns holds in the form of the admin API.
func (r operations) shownHolds(o commandTarget, holds []reconcile.Hold) (shown []admin.Hold) {
	for _, h := range holds {
		shown = append(shown, admin.Hold{
			Origin: r.cfg.OriginName(o.origin), Group: o.group, TypeURL: h.TypeURL, Count: len(h.Names),
			Names:  h.Names[:min(len(h.Names), admin.MaxHoldNames)],
			Broken: h.Breaking, Reasons: h.Reasons[:min(len(h.Reasons), admin.MaxHoldNames)],
			Since: h.Since, Until: h.Until, Reported: h.Reported, Discarded: h.Discarded,
		})
	}
	return shown
}

// setLogLevel changes the log level. It logs the change at the more verbose of both levels, so that the message is not
// filtered.
func (r operations) setLogLevel(ctx context.Context, to admin.LogLevel) (admin.LogLevelChange, error) {
	var level slog.Level
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, to.Level) ||
		level.UnmarshalText([]byte(to.Level)) != nil {
		return admin.LogLevelChange{}, admin.Refuse(http.StatusBadRequest,
			fmt.Errorf("level=%.32q: want debug, info, warn or error", to.Level))
	}
	if err := to.Check(); err != nil {
		return admin.LogLevelChange{}, err
	}
	r.levelSet.Lock()
	defer r.levelSet.Unlock()
	before := r.level.Level()
	logChange := func() {
		r.log.LogAttrs(ctx, max(slog.LevelInfo, min(before, level)), "log level changed",
			slog.String("before", strings.ToLower(before.String())), slog.String("now", to.Level))
	}
	if level > before {
		logChange()
	}
	if r.level.Set(level); level <= before {
		logChange()
	}
	return admin.LogLevelChange{Level: to.Level, Before: strings.ToLower(before.String())}, nil
}

// auditOrigins compares views with the responses of their origins on a second stream (B.43). It audits origins in
// parallel, and the views of an origin one after the other. A directory cannot be audited.
func (r operations) auditOrigins(ctx context.Context, of admin.Scope) (admin.Audits, error) {
	answer := admin.Audits{Views: []admin.ViewAudit{}}
	chosen, typeURL, err := r.choose(of)
	if err != nil {
		return answer, err
	}
	var (
		byOrigin = make([][]admin.ViewAudit, len(r.origins))
		audits   sync.WaitGroup
	)
	for i, o := range r.origins {
		if _, files := o.(filesOrigin); files && of.Origin != "" && of.Origin == r.cfg.OriginName(i) {
			return answer, admin.Refuse(http.StatusBadRequest, fmt.Errorf("origin %q: %w", of.Origin, upstream.ErrNoAudit))
		} else if files {
			continue
		}
		audits.Go(func() { // awaited below
			for _, v := range chosen {
				if v.origin != i || v.control == nil {
					continue
				}
				if found, any := r.auditView(ctx, v, typeURL); any {
					byOrigin[i] = append(byOrigin[i], found)
				}
			}
		})
	}
	audits.Wait()
	for _, views := range byOrigin {
		answer.Views = append(answer.Views, views...)
	}
	return answer, nil
}

// auditView audits one view. any is false if the view has no subscriptions to audit.
func (r operations) auditView(ctx context.Context, v commandTarget, typeURL string) (shown admin.ViewAudit, any bool) {
	shown = admin.ViewAudit{Origin: r.cfg.OriginName(v.origin), Group: v.group}
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
