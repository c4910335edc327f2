package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/generations"
	"github.com/xdstender/tender/relay/humanize"
	"github.com/xdstender/tender/relay/nodegroup"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/relay/snapshot"
	"github.com/xdstender/tender/upstream"
)

// A trackedView is a source of a view whose generations are kept.
type trackedView struct {
	origin  int
	line    *generations.Line
	view    *cache.View
	source  int
	control *upstream.Control
	section rollout.SectionKey
}

// track adds a source of the group's view to those that a rollback applies to, unless no generations of it are kept.
func (gr *group) track(of restoredLine, section rollout.SectionKey) {
	if of.line != nil {
		gr.trackedViews = append(gr.trackedViews, trackedView{of.origin, of.line, gr.view, of.source, of.control, section})
	}
}

// trackedViews returns the tracked views of one origin, or of all origins if origin is -1, ordered by origin and group.
func (g *groups) trackedViews(origin int) (all []trackedView) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, gr := range g.byKey {
		all = append(all, gr.trackedViews...)
	}
	for key, s := range g.shared {
		if s.line != nil {
			section := rollout.SectionKey{Group: key.label(), Shared: true}
			all = append(all, trackedView{key.origin, s.line, s.view, 0, s.control, section})
		}
	}
	all = slices.DeleteFunc(all, func(t trackedView) bool { return origin >= 0 && t.origin != origin })
	slices.SortFunc(all, func(a, b trackedView) int {
		if a.origin != b.origin {
			return a.origin - b.origin
		}
		return a.section.Compare(b.section)
	})
	return all
}

// generationDigests returns the digest of the current generation of each tracked view.
func (g *groups) generationDigests() map[generations.Key]string {
	all := make(map[generations.Key]string)
	for _, t := range g.trackedViews(-1) {
		// With rollouts, each group tracks its copy of the shared names. The API does not show it as a view.
		if !t.section.Shared || g.rollouts == nil {
			all[t.line.Key] = t.line.Digest()
		}
	}
	return all
}

// equalGroups returns, for each origin, the size of the largest set of node groups with the same current generation.
// Origins whose groups all differ are absent. Groups without resources do not count.
func (g *groups) equalGroups() map[string]int {
	type content struct{ origin, digest string }
	groups, largest := make(map[content]int), make(map[string]int)
	for key, digest := range g.generationDigests() {
		if key.Shared || digest == "" {
			continue
		}
		of := content{key.Origin, digest}
		if groups[of]++; groups[of] > 1 {
			largest[key.Origin] = max(largest[key.Origin], groups[of])
		}
	}
	return largest
}

// isStagedType reports whether rollouts distribute the changes of a type in stages. Generations consist of these types
// only.
func (g *groups) isStagedType(typeURL string) bool {
	return slices.Contains(g.settings.stagedTypes, typeURL)
}

// A lineSource identifies the source of a view that a line records.
type lineSource struct {
	origin       int
	snapshotName string // the group in snapshots
	key          generations.Key
	view         *cache.View
	source       int
	recorded     bool // whether its generations are kept
	list         *pending.List
	control      *upstream.Control // of the loop that owns the list; nil if nothing waits in it for an operator or for stages
}

// A restoredLine is a new line of generations. It starts with those of a snapshot, if there is one.
type restoredLine struct {
	lineSource
	line *generations.Line // nil if no generations are kept
	snap *cache.Snapshot   // nil if nothing was restored
}

// restoreLine restores the state of a writer and of the list in front of it from their snapshot, if there is one, and starts
// their line of generations and their snapshots. groups.mu must be held.
func (g *groups) restoreLine(ctx context.Context, of lineSource, node *corepb.Node) restoredLine {
	w := of.list.Writer()
	r := restoredLine{lineSource: of, snap: g.taken.restore(g.log, snapshotKey{g.settings.origins[of.origin].Name, of.snapshotName}, w)}
	if r.snap == nil {
		r.snap = g.snapshots.restore(of.origin, of.snapshotName, node, w)
	}
	if g.generations != nil && of.recorded {
		var known []cache.GenerationSnapshot
		if r.snap != nil {
			known = r.snap.Generations
		}
		r.line = g.generations.Open(of.key, of.view, of.source, known)
		g.views.Go(func() { r.line.Run(ctx) }) // awaited by wait
	}
	if r.snap != nil && of.control != nil {
		of.control.Restore(r.snap)
	}
	captured := viewCapture{of.list, of.control, r.line}
	g.snapshots.track(of.origin, of.snapshotName, node, captured, r.snap != nil)
	if len(g.settings.peers.Targets) > 0 {
		v := &viewSnapshot{header: g.headers.of(of.origin, of.snapshotName, node), viewCapture: captured}
		g.given[snapshotKey{v.header.Origin, of.snapshotName}] = v
	}
	return r
}

// errNoGenerations means that a rollback cannot be restored, because operators could not end it.
var errNoGenerations = errors.New("no generations are kept without TENDER_ADMIN_LISTEN")

// beginRolledBack starts a new view in the state of a rollback if its origin is rolled back. If the snapshot is older
// than the rollback, for example after a crash, the view returns to the generation of the rollback. A view without a
// snapshot keeps the first state that it receives. With rollouts it does nothing, because clients are served the last
// good state. groups.mu must be held.
func (g *groups) beginRolledBack(of restoredLine) {
	f, control := g.decisions.frozen[of.origin], of.control
	if f == nil || f.Rollback == nil || g.rollouts != nil {
		return
	}
	if of.snap == nil || of.snap.RolledBack.Equal(f.Since) {
		control.BeginRolledBack(f.Since, nil)
		return
	}
	err := errNoGenerations
	var target *generations.Target
	if of.line != nil {
		target, err = of.line.At(f.Rollback.At)
	}
	if err != nil {
		g.log.Error("rollback not restored for a node group; its clients receive the newest configuration",
			slog.String("origin", f.Origin), slog.String("group", of.key.Group), slog.Any("err", err))
		return
	}
	control.BeginRolledBack(f.Since, target.Formers)
}

// isRolledBack reports whether an origin is rolled back.
func (g *groups) isRolledBack(origin string) bool {
	i := slices.Index(g.settings.originNames(), origin)
	return i >= 0 && g.decisions.rolledBack[i].Load()
}

// listGenerations returns the kept generations of the chosen views.
func (op *operations) listGenerations(c admin.GenerationChoice) (admin.Generations, error) {
	only, err := op.findOrigin(c.Origin)
	if err != nil {
		return admin.Generations{}, err
	}
	out := admin.Generations{Views: []admin.ViewGenerations{}, MaxBytes: maxGenerationBytes}
	out.Earlier, out.Bytes = op.groups.generations.Stats()
	for _, t := range op.groups.trackedViews(only) {
		all := t.line.Generations()
		empty := len(all) == 1 && all[0].Digest == ""
		if c.Group != "" && !nodegroup.Is(c.Group, t.line.Group) || empty && t.line.Shared {
			continue
		}
		v := admin.ViewGenerations{
			Origin: t.line.Origin, Group: t.line.Group, Shared: t.line.Shared,
			Total: len(all), Generations: []admin.Generation{},
		}
		for _, g := range all[:min(len(all), c.Limit)] {
			v.Generations = append(v.Generations, admin.Generation{
				Generation: g.Digest, Since: g.Since, Until: g.Until,
				Added: g.Added, Changed: g.Changed, Removed: g.Removed, Bytes: g.Bytes,
			})
		}
		out.Views = append(out.Views, v)
	}
	return out, nil
}

// A rollbackView is a tracked view with the generation that a rollback serves to its clients.
type rollbackView struct {
	trackedView
	target *generations.Target
}

// planRollback returns the target of a rollback for each tracked view of one origin, or of all origins if origin is -1.
// It also returns a time at which these targets were served.
func (op *operations) planRollback(origin int, to string) (all []rollbackView, at time.Time, err error) {
	digest, ago, err := admin.ParseRollback(to)
	if err != nil {
		return nil, at, err
	}
	views := op.groups.trackedViews(origin)
	named := make(map[*generations.Line]*generations.Target)
	if at = time.Now().Add(-ago); digest != "" {
		if named, at, err = findGeneration(views, digest); err != nil {
			return nil, at, err
		}
	}
	for _, t := range views {
		target := named[t.line]
		if target == nil {
			if target, err = t.line.At(at); err != nil {
				return nil, at, admin.Refuse(http.StatusConflict,
					fmt.Errorf("%w; generations use at most %s of memory", err, humanize.Bytes(maxGenerationBytes)))
			}
		}
		all = append(all, rollbackView{t, target})
	}
	return all, at, nil
}

// findGeneration returns the generation with a digest for each view that has it, and a time at which one of them was
// served. The time is the middle of its interval, because the views of an origin do not change at the same instant.
func findGeneration(
	views []trackedView, digest string,
) (named map[*generations.Line]*generations.Target, at time.Time, err error) {
	named = make(map[*generations.Line]*generations.Target)
	for _, t := range views {
		target, err := t.line.Find(digest)
		if err != nil {
			continue
		}
		until := target.Until
		if until.IsZero() {
			until = time.Now()
		}
		if middle := target.Since.Add(until.Sub(target.Since) / 2); middle.After(at) {
			at = middle
		}
		named[t.line] = target
	}
	if len(named) == 0 {
		return nil, at, admin.Refuse(http.StatusNotFound,
			fmt.Errorf("%w %s; tender generations lists the kept generations", generations.ErrUnknown, digest))
	}
	return named, at, nil
}

// rollbackDiff returns the changes of a rollback for clients.
func (op *operations) rollbackDiff(ctx context.Context, to string, c admin.RolloutChoice) (admin.RolloutDiff, error) {
	only, done, err := op.lockOrigin(ctx, c.Origin)
	if err != nil {
		return admin.RolloutDiff{}, err
	}
	defer done()
	all, _, err := op.planRollback(only, to)
	if err != nil {
		return admin.RolloutDiff{}, err
	}
	return diffOf(ctx, editionsOf(all), c)
}

// editionsOf returns the editions that a rollback would serve.
func editionsOf(views []rollbackView) (all []viewEdition) {
	for _, v := range views {
		all = append(all, viewEdition{v.line.Origin, v.section, v.control, func(l *pending.List) *pending.Edition {
			return v.target.Edition(l)
		}})
	}
	return all
}

// rollback serves an earlier generation to the clients of one origin, or of all, until a thaw.
func (op *operations) rollback(ctx context.Context, of admin.RollbackScope) (admin.Rollbacks, error) {
	if err := of.Check(); err != nil {
		return admin.Rollbacks{}, err
	}
	only, done, err := op.lockOrigin(ctx, of.Origin)
	if err != nil {
		return admin.Rollbacks{}, err
	}
	defer done()
	views, at, err := op.planRollback(only, of.To)
	if err != nil {
		return admin.Rollbacks{}, err
	}
	ctx = context.WithoutCancel(ctx) // all views, or none
	answer := admin.Rollbacks{DryRun: of.DryRun}
	for i := range op.origins {
		if only >= 0 && only != i {
			continue
		}
		ofOrigin := slices.DeleteFunc(slices.Clone(views), func(v rollbackView) bool { return v.origin != i })
		b := admin.Rollback{Origin: op.settings.origins[i].Name, Views: len(ofOrigin), At: at}
		if of.DryRun {
			b.Resources = resourcesOf(op.rollbackChanges(ctx, ofOrigin))
		} else {
			by := admin.CallerOf(ctx).By(of.User)
			f := &activeFreeze{Freeze: snapshot.Freeze{
				Origin: b.Origin, By: by, Reason: of.Reason, Since: time.Now().Round(0),
				Rollback: &snapshot.Rollback{To: of.To, At: at.Round(0)},
			}}
			if b.Resources, err = op.rollBackOrigin(ctx, i, f, ofOrigin); err != nil {
				return answer, unavailableIfEnded(err)
			}
		}
		answer.Origins = append(answer.Origins, b)
	}
	if of.DryRun {
		answer.Diff, err = dryRun(ctx, editionsOf(views))
	} else {
		answer.Warning = op.groups.saveNewDecision(ctx, false)
	}
	for i := range answer.Origins {
		origin, _ := op.findOrigin(answer.Origins[i].Origin)
		answer.Origins[i].Freeze = op.groups.decisions.shownFreeze(origin)
	}
	return answer, err
}

// rollbackChanges returns the changes of a rollback by section.
func (op *operations) rollbackChanges(ctx context.Context, views []rollbackView) rollout.Changes {
	changes := make(rollout.Changes)
	for _, v := range views {
		v.control.Edit(ctx, func(l *pending.List) {
			if e := v.target.Edition(l); len(e.Changes) > 0 {
				changes[v.section] = e.Changes
			}
		})
	}
	return changes
}

// resourcesOf returns the number of changed resources.
func resourcesOf(changes rollout.Changes) (resources int) {
	for _, types := range changes {
		for _, names := range types {
			resources += len(names)
		}
	}
	return resources
}

// rollBackOrigin serves an earlier generation to the clients of an origin, and ends a freeze of it. It records the
// rollback first, so that it also applies to views that are created meanwhile.
func (op *operations) rollBackOrigin(
	ctx context.Context, origin int, f *activeFreeze, views []rollbackView,
) (resources int, err error) {
	op.groups.decisions.setFrozen(origin, f)
	op.log.Warn("origin rolled back; clients receive an earlier configuration", slog.String("origin", f.Origin),
		slog.String("to", f.Rollback.To), slog.Time("at", f.Rollback.At),
		slog.String("by", f.By), slog.String("reason", f.Reason))
	if files, ok := op.origins[origin].(filesOrigin); ok {
		files.Thaw()
	}
	if op.groups.rollouts != nil {
		return op.rejectOrigin(ctx, origin, f, views)
	}
	taken := op.rollbackChanges(ctx, views)
	// This must precede the rollback: the versions of a client that reconnects during it must not be trusted either.
	op.groups.distrust.add(origin, &rollout.Withdrawn{
		Reason: f.Reason, At: f.Since, Cohorts: 1, Changes: taken,
	})
	for _, v := range views {
		v.control.Edit(ctx, func(l *pending.List) { l.RollBack(v.target.Formers(v.view), f.Since) })
	}
	return resourcesOf(taken), nil
}

// rejectOrigin implements rollBackOrigin with rollouts: it undoes the promotions since the target generation.
func (op *operations) rejectOrigin(
	ctx context.Context, origin int, f *activeFreeze, views []rollbackView,
) (resources int, err error) {
	editions := make(map[rollout.SectionKey]func(*pending.List) *pending.Edition)
	for _, v := range views {
		editions[v.section] = v.target.Edition
		v.control.Thaw(ctx) // ends a freeze
	}
	return op.groups.rollouts.controllers[origin].RollBack(ctx, editions, f.Reason, f.By)
}
