package relay

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/relay/snapshot"
	"github.com/xdstender/tender/upstream"
	"github.com/xdstender/tender/upstream/files"
	"github.com/xdstender/tender/upstream/reconcile"
)

// decisions are the decisions of operators that stay in force until they are revoked: freezes, rollbacks and dropped
// removals. They survive a restart if TENDER_SNAPSHOT_DIR is set.
type decisions struct {
	mu        *sync.Mutex // groups.mu
	snapshots *snapshots  // nil if snapshots are off
	log       *slog.Logger

	freezeChanged func(origin int) // notifies the rollout of an origin that a freeze has started or ended

	frozen []*activeFreeze // by origin; nil if it is not frozen. Guarded by groups.mu.

	rolledBack []atomic.Bool // by origin: whether clients are served an earlier generation

	changed chan struct{} // receives after a freeze has started or ended

	// dropped has the removals that were dropped in an earlier process, until their view is created. Guarded by
	// groups.mu.
	dropped map[snapshotKey][]reconcile.Hold

	writing     sync.Mutex                // held while decisions are collected and written
	err         atomic.Pointer[error]     // of the last write; nil if it succeeded
	hasDropped  bool                      // guarded by writing: whether a removal may be dropped
	errLogged   time.Time                 // guarded by writing: when err was last logged
	directories map[int]directorySnapshot // guarded by writing; by origin
}

// An activeFreeze is a freeze or a rollback in force.
type activeFreeze struct {
	snapshot.Freeze
	until time.Time // with a monotonic clock reading; zero if only an operator ends the freeze
}

// followClock corrects Until, which is wall time, if the wall clock was set since the freeze started.
func (f *activeFreeze) followClock(now time.Time) {
	if f.until.IsZero() {
		return
	}
	if until := now.Add(f.until.Sub(now)).Round(0); until.Sub(f.Until).Abs() > time.Second {
		f.Until = until
	}
}

// load restores the decisions of an earlier process. It logs and drops those about origins that no longer exist. It
// returns the rejected editions by origin.
func (d *decisions) load(origins []string, now time.Time) (rejected [][]*rollout.Withdrawn) {
	d.directories = make(map[int]directorySnapshot)
	rejected = make([][]*rollout.Withdrawn, len(origins))
	d.frozen, d.changed = make([]*activeFreeze, len(origins)), make(chan struct{}, 1)
	d.dropped = make(map[snapshotKey][]reconcile.Hold)
	d.rolledBack = make([]atomic.Bool, len(origins))
	if d.snapshots == nil {
		return rejected
	}
	read, err := d.snapshots.dir.Decisions()
	if err != nil {
		d.log.Error("operator decisions not restored; no origin is frozen and no removal is dropped", slog.Any("err", err))
		return rejected
	}
	d.restore(&read, origins, now)
	return rejectedEditions(&read, origins)
}

// restore restores freezes, rollbacks and dropped removals of an earlier process or of a peer. It must be called before
// clients are served.
func (d *decisions) restore(read *snapshot.Decisions, origins []string, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range read.Freezes {
		origin := slices.Index(origins, f.Origin)
		log := d.log.With(slog.String("origin", f.Origin), slog.String("by", f.By), slog.Time("since", f.Since),
			slog.String("reason", f.Reason))
		remaining := f.Remaining(now)
		switch {
		case origin < 0:
			log.Warn("freeze not restored; origin does not exist")
		case f.Rollback != nil:
			d.frozen[origin] = &activeFreeze{Freeze: f}
			d.rolledBack[origin].Store(true)
			log.Warn("origin still rolled back after restart, until tender thaw", slog.String("to", f.Rollback.To))
		case f.Until.IsZero():
			d.frozen[origin] = &activeFreeze{Freeze: f}
			log.Warn("origin still frozen after restart, until tender thaw")
		case remaining <= 0:
			log.Warn("freeze expired while the relay was not running", slog.Time("until", f.Until))
		default:
			f.Until = now.Add(remaining).Round(0)
			d.frozen[origin] = &activeFreeze{Freeze: f, until: now.Add(remaining)}
			log.Warn("origin still frozen after restart", slog.Time("until", f.Until))
		}
	}
	for _, k := range read.Dropped {
		key := snapshotKey{k.Origin, k.Group}
		d.dropped[key] = append(d.dropped[key], reconcile.Hold{
			TypeURL: k.TypeURL, Names: k.Names, Reason: reconcile.Dropped, By: k.By, Since: k.Since,
		})
		d.hasDropped = true
	}
}

// rejectedEditions returns the rejected editions of decisions by origin. It omits those of other origins.
func rejectedEditions(read *snapshot.Decisions, origins []string) [][]*rollout.Withdrawn {
	rejected := make([][]*rollout.Withdrawn, len(origins))
	for _, r := range read.Rejected {
		if origin := slices.Index(origins, r.Origin); origin >= 0 {
			rejected[origin] = append(rejected[origin], decodeEdition(r))
		}
	}
	return rejected
}

// control returns the control of a new view, with the dropped removals of an earlier process. groups.mu must be held.
func (d *decisions) control(origin int, name, group string) *upstream.Control {
	key := snapshotKey{name, group}
	kept := d.dropped[key]
	delete(d.dropped, key)
	control := upstream.NewControl(d.isFrozen(origin), kept)
	control.NotifyDropEnd(d.snapshots.writeSoon) // otherwise a relay that is killed would restore what has ended
	return control
}

// isFrozen reports whether an origin is frozen and not rolled back. groups.mu must be held.
func (d *decisions) isFrozen(origin int) bool {
	return d.frozen[origin] != nil && d.frozen[origin].Rollback == nil
}

// restoreDirectories restores the resources of directories that an earlier process stored. groups.mu must be held.
func (d *decisions) restoreDirectories(all origins) {
	for i, snap := range d.snapshots.directories {
		if files, ok := all[i].(filesOrigin); ok {
			key := snapshotKey{snap.Origin, ""}
			files.Restore(snap, d.isFrozen(i), d.dropped[key])
			delete(d.dropped, key)
			d.directories[i] = directorySnapshot{written: true}
		}
	}
	d.snapshots.directories = nil
}

// A directorySnapshot describes the snapshot of a directory on disk.
type directorySnapshot struct {
	files   *files.Saved // nil if an earlier process wrote the snapshot, or if there is none
	at      time.Time    // of the write
	written bool         // whether there is a snapshot
}

// saveDirectory stores the resources of a directory that the relay serves although its files no longer contain them. It
// writes only if they have changed since the last write. writing must be held.
func (d *decisions) saveDirectory(ctx context.Context, origin int, o filesOrigin) error {
	was, is, now := d.directories[origin], o.Saved(ctx), time.Now()
	upToDate := is == nil && !was.written || is != nil && now.Sub(was.at) < d.snapshots.settings.maxSnapshotAge/renewShare
	if ctx.Err() != nil || is.Same(was.files) && upToDate {
		return nil
	}
	header := d.snapshots.headers.ofDirectory(origin)
	header.Created = now
	var err error
	if is == nil {
		err = d.snapshots.dir.Remove(&header)
	} else {
		snap := is.Snapshot(d.snapshots.settings.snapshotSensitive)
		snap.Header = header
		err = d.snapshots.dir.Write(snap)
	}
	if err == nil {
		d.directories[origin] = directorySnapshot{is, now, is != nil}
	}
	return err
}

// dropUnrestored drops dropped removals of views that were not restored. groups.mu must be held.
func (d *decisions) dropUnrestored() {
	for key, holds := range d.dropped {
		for _, h := range holds {
			d.log.Warn("dropped removals not restored; no snapshot of the resources", slog.String("origin", key.origin),
				slog.String("group", key.group), slog.String("type_url", h.TypeURL), slog.Int("resources", len(h.Names)))
		}
	}
	clear(d.dropped)
}

// saveDecisions writes the decisions of operators that have changed since the last write.
func (g *groups) saveDecisions(ctx context.Context) {
	d := g.decisions
	if d.snapshots == nil {
		return
	}
	d.writing.Lock()
	defer d.writing.Unlock()
	all := g.standingDecisions()
	if d.hasDropped {
		all.Dropped = g.droppedRemovals(ctx, g.commandTargets())
	}
	if ctx.Err() != nil {
		return // a view may not have returned its dropped removals
	}
	d.hasDropped = len(all.Dropped) > 0
	var err error
	for i, o := range g.origins { // must precede the decisions, which refer to these resources
		if files, ok := o.(filesOrigin); ok {
			err = errors.Join(err, d.saveDirectory(ctx, i, files))
		}
	}
	d.setError(errors.Join(err, d.snapshots.dir.WriteDecisions(all)), time.Now())
}

// standingDecisions returns the decisions of operators without dropped removals.
func (g *groups) standingDecisions() (all snapshot.Decisions) {
	g.mu.Lock()
	for _, f := range g.decisions.frozen {
		if f != nil {
			f.followClock(time.Now())
			all.Freezes = append(all.Freezes, f.Freeze)
		}
	}
	g.mu.Unlock()
	all.Rejected = append(g.rollouts.rejected(), g.distrust.encode()...)
	return all
}

// writeErrorInterval is the interval of log messages about snapshots or decisions that cannot be written.
const writeErrorInterval = 5 * time.Minute

// setError records the result of a write of decisions. It logs a failure, at most once per writeErrorInterval, and the first
// write after a failure. writing must be held.
func (d *decisions) setError(err error, now time.Time) {
	failed := d.err.Load() != nil
	if err == nil {
		d.err.Store(nil)
		if failed {
			d.log.Info("operator decisions written again; they survive a restart")
		}
		return
	}
	d.err.Store(&err)
	if !failed || now.Sub(d.errLogged) >= writeErrorInterval {
		d.errLogged = now
		d.log.Error("operator decisions not written; they do not survive a restart", slog.Any("err", err))
	}
}

// droppedRemovals returns the removals of views and directories that operators have dropped. It waits for each of these.
func (g *groups) droppedRemovals(ctx context.Context, of []commandTarget) (all []snapshot.DroppedRemovals) {
	for _, o := range of {
		for _, h := range o.holder.Operate(ctx, reconcile.Command{}) {
			if h.Reason == reconcile.Dropped && h.Details == nil { // the origin sends broken changes again after a restart
				all = append(all, snapshot.DroppedRemovals{
					Origin: g.settings.origins[o.origin].Name, Group: o.snapshotName, TypeURL: h.TypeURL, Names: h.Names,
					By: h.By, Since: h.Since.Round(0),
				})
			}
		}
	}
	return all
}

// saveNewDecision stores a new decision of an operator. It returns a warning if the decision does not survive a
// restart. drops reports whether the decision may have dropped a removal.
func (g *groups) saveNewDecision(ctx context.Context, drops bool) (warning string) {
	d := g.decisions
	if d.snapshots == nil {
		return "this does not survive a restart of the relay: TENDER_SNAPSHOT_DIR is not set"
	}
	d.writing.Lock()
	d.hasDropped = d.hasDropped || drops
	d.writing.Unlock()
	g.saveDecisions(ctx)
	d.snapshots.writeSoon() // the snapshots of frozen views must have the current state
	return d.notSavedWarning()
}

// notSavedWarning returns a warning if decisions do not survive a restart.
func (d *decisions) notSavedWarning() string {
	if err := d.err.Load(); err != nil {
		return "this does not survive a restart of the relay: " + (*err).Error()
	}
	return ""
}

// freezeOf returns the freeze of an origin, and whether there is one.
func (d *decisions) freezeOf(origin int) (f activeFreeze, frozen bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if is := d.frozen[origin]; is != nil {
		return *is, true
	}
	return activeFreeze{}, false
}

// anyFrozen reports whether any origin is frozen. groups.mu must be held.
func (d *decisions) anyFrozen() bool {
	return slices.ContainsFunc(d.frozen, func(f *activeFreeze) bool { return f != nil })
}

// setFrozen records the freeze of an origin, or its end if f is nil. It also applies to views that are created later. A
// new freeze of a frozen origin keeps the start time of the earlier freeze. A rollback does not, because its start
// identifies it.
func (d *decisions) setFrozen(origin int, f *activeFreeze) {
	d.mu.Lock()
	if was := d.frozen[origin]; was != nil && f != nil && f.Rollback == nil {
		f.Since = was.Since
	}
	d.frozen[origin] = f
	d.rolledBack[origin].Store(f != nil && f.Rollback != nil)
	d.mu.Unlock()
	d.freezeChanged(origin)
	select {
	case d.changed <- struct{}{}:
	default: // a change is already pending
	}
}

// shownFreeze returns the freeze of an origin in the form of the admin API, or nil if there is none.
func (d *decisions) shownFreeze(origin int) *admin.Freezing {
	f, frozen := d.freezeOf(origin)
	if !frozen {
		return nil
	}
	shown := &admin.Freezing{
		By: f.By, Reason: f.Reason, Since: f.Since, Until: f.Until,
		SurvivesRestart: d.snapshots != nil && d.notSavedWarning() == "",
	}
	if b := f.Rollback; b != nil {
		shown.Rollback = &admin.RolledBack{To: b.To, At: b.At}
	}
	return shown
}
