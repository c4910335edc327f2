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

// decisions are those of operators that hold until they are revoked: freezes, and resources whose
// removal was discarded. They are kept on disk, if snapshots are.
type decisions struct {
	saved *snapshots // nil if nothing is kept on disk
	log   *slog.Logger

	frozen []*freezing // by origin; nil for one that is not. Guarded by groups.mu.

	rolledBack []atomic.Bool // by origin: its clients are shown an earlier generation

	changed chan struct{} // receives after a freeze began or ended

	// kept is what an earlier process kept, for the loops that begin with it. Guarded by groups.mu.
	kept map[savedKey][]reconcile.Hold

	// rejected is, by origin, what an earlier process left to the rollouts. Without rollouts, it is what rollbacks have taken from
	// clients, and guarded by groups.mu.
	rejected [][]*rollout.Rejected

	writing     sync.Mutex // held while decisions are collected and written
	keeps       bool       // some resource may be kept
	err         error      // of writing them last
	errLogged   time.Time  // when that was logged last
	directories map[int]savedDirectory
}

// A freezing is a freeze that is in force.
type freezing struct {
	snapshot.Freeze
	until time.Time // by the monotonic clock; zero if only an operator ends it
}

// restate has the end in wall time follow the monotonic clock, if the clock was set since.
func (f *freezing) restate(now time.Time) {
	if f.until.IsZero() {
		return
	}
	if until := now.Add(f.until.Sub(now)).Round(0); until.Sub(f.Until).Abs() > time.Second {
		f.Until = until
	}
}

// load takes over what an earlier process decided. What is about an origin that there is no more
// is logged and given up.
func (d *decisions) load(origins []string, now time.Time) {
	d.directories = make(map[int]savedDirectory)
	d.rejected = make([][]*rollout.Rejected, len(origins))
	d.frozen, d.changed, d.kept = make([]*freezing, len(origins)), make(chan struct{}, 1), make(map[savedKey][]reconcile.Hold)
	d.rolledBack = make([]atomic.Bool, len(origins))
	if d.saved == nil {
		return
	}
	read, err := d.saved.dir.Decisions()
	if err != nil {
		d.log.Error("operators' decisions not restored: nothing is frozen, and no removal stays discarded", slog.Any("err", err))
		return
	}
	for _, f := range read.Freezes {
		origin := slices.Index(origins, f.Origin)
		log := d.log.With(slog.String("origin", f.Origin), slog.String("by", f.By), slog.Time("since", f.Since), slog.String("reason", f.Reason))
		left := f.Left(now)
		switch {
		case origin < 0:
			log.Warn("freeze not restored: there is no such origin")
		case f.Rollback != nil:
			d.frozen[origin] = &freezing{Freeze: f}
			d.rolledBack[origin].Store(true)
			log.Warn("origin is still rolled back after the restart, until tender thaw", slog.String("to", f.Rollback.To))
		case f.Until.IsZero():
			d.frozen[origin] = &freezing{Freeze: f}
			log.Warn("origin is still frozen after the restart, until tender thaw")
		case left <= 0:
			log.Warn("freeze ended while the relay was not running", slog.Time("until", f.Until))
		default:
			f.Until = now.Add(left).Round(0)
			d.frozen[origin] = &freezing{Freeze: f, until: now.Add(left)}
			log.Warn("origin is still frozen after the restart", slog.Time("until", f.Until))
		}
	}
	for _, r := range read.Rejected {
		if origin := slices.Index(origins, r.Origin); origin >= 0 {
			d.rejected[origin] = append(d.rejected[origin], restoredEdition(r))
		}
	}
	for _, k := range read.Kept {
		key := savedKey{k.Origin, k.Group}
		d.kept[key] = append(d.kept[key], reconcile.Hold{TypeURL: k.TypeURL, Names: k.Names, Discarded: true})
		d.keeps = true
	}
}

// control returns the control of a loop that is about to begin. groups.mu must be held.
func (d *decisions) control(origin int, name, group string) *upstream.Control {
	key := savedKey{name, group}
	kept := d.kept[key]
	delete(d.kept, key)
	return upstream.NewControl(d.holds(origin), kept)
}

// holds reports whether nothing that an origin changes is distributed. groups.mu must be held.
func (d *decisions) holds(origin int) bool {
	return d.frozen[origin] != nil && d.frozen[origin].Rollback == nil
}

// restoreDirectories has directories go on with what an earlier process has saved of them. mu must be held.
func (g *groups) restoreDirectories() {
	for i, snap := range g.saved.directories {
		if files, ok := g.origins[i].(filesOrigin); ok {
			key := savedKey{g.cfg.OriginName(i), ""}
			files.Restore(snap, g.decisions.holds(i), g.decisions.kept[key])
			delete(g.decisions.kept, key)
			g.decisions.directories[i] = savedDirectory{there: true}
		}
	}
	g.saved.directories = nil
}

// A savedDirectory is what is on the disk of a directory.
type savedDirectory struct {
	files *files.Saved // nil if an earlier process wrote it, or nothing is there
	at    time.Time
	there bool
}

// saveDirectory writes the resources that are served of a directory although its files no longer have them, unless they
// are on disk already; decisions.writing must be held.
func (g *groups) saveDirectory(ctx context.Context, origin int, o filesOrigin) error {
	d := g.decisions
	was, is, now := d.directories[origin], o.Saved(ctx), time.Now()
	if ctx.Err() != nil || is.Same(was.files) && (is == nil && !was.there || is != nil && now.Sub(was.at) < g.cfg.MaxSnapshotAge/renewShare) {
		return nil
	}
	header := d.saved.directoryHeader(origin)
	header.Created = now
	var err error
	if is == nil {
		err = d.saved.dir.Remove(&header)
	} else {
		snap := is.Snapshot(g.cfg.SnapshotSensitive)
		snap.Header = header
		err = d.saved.dir.Write(snap)
	}
	if err == nil {
		d.directories[origin] = savedDirectory{is, now, is != nil}
	}
	return err
}

// restored gives up what no loop has begun with, since its view was not restored. groups.mu must be
// held.
func (d *decisions) restored() {
	for key, holds := range d.kept {
		for _, h := range holds {
			d.log.Warn("discarded removals not restored: there is no snapshot of the resources", slog.String("origin", key.origin),
				slog.String("group", key.group), slog.String("type_url", h.TypeURL), slog.Int("resources", len(h.Names)))
		}
	}
	clear(d.kept)
}

// saveDecisions writes what operators have decided, if that has changed.
func (g *groups) saveDecisions(ctx context.Context) {
	d := g.decisions
	if d.saved == nil {
		return
	}
	d.writing.Lock()
	defer d.writing.Unlock()
	var all snapshot.Decisions
	g.mu.Lock()
	for _, f := range d.frozen {
		if f != nil {
			f.restate(time.Now())
			all.Freezes = append(all.Freezes, f.Freeze)
		}
	}
	g.mu.Unlock()
	all.Rejected = append(g.rollouts.rejected(), g.rollbackDistrust().rejectedRollbacks()...)
	if d.keeps {
		all.Kept = g.kept(ctx)
	}
	if ctx.Err() != nil {
		return // some loops may not have said what they keep
	}
	d.keeps = len(all.Kept) > 0
	failed := d.err != nil
	d.err = nil
	for i, o := range g.origins { // first, so that no decision is there without what it is about
		if files, ok := o.(filesOrigin); ok {
			d.err = errors.Join(d.err, g.saveDirectory(ctx, i, files))
		}
	}
	d.err = errors.Join(d.err, d.saved.dir.WriteDecisions(all))
	d.logWriting(failed, time.Now())
}

// notWrittenEvery is how often it is logged that snapshots, or operators' decisions, are still not written.
const notWrittenEvery = 5 * time.Minute

// logWriting logs that decisions were not written, now and then while it is so, and when they are written again; failed says that
// they were not written before. writing must be held.
func (d *decisions) logWriting(failed bool, now time.Time) {
	switch {
	case d.err == nil && failed:
		d.log.Info("operators' decisions written again: they survive a restart")
	case d.err != nil && (!failed || now.Sub(d.errLogged) >= notWrittenEvery):
		d.errLogged = now
		d.log.Error("operators' decisions not written: they do not survive a restart", slog.Any("err", d.err))
	}
}

// kept returns the resources that operators have kept.
func (g *groups) kept(ctx context.Context) (all []snapshot.Kept) {
	for _, o := range g.operated() {
		for _, h := range o.holder.Operate(ctx, reconcile.Command{}) {
			if h.Discarded && !h.Broken { // the origin sends what is broken again
				all = append(all, snapshot.Kept{Origin: g.cfg.OriginName(o.origin), Group: o.saved, TypeURL: h.TypeURL, Names: h.Names})
			}
		}
	}
	return all
}

// decided saves what an operator has just decided, and returns why it does not survive a restart;
// nothing if it does.
func (g *groups) decided(ctx context.Context, keeps bool) (warning string) {
	d := g.decisions
	if d.saved == nil {
		return "this does not survive a restart of the relay: TENDER_SNAPSHOT_DIR is not set"
	}
	d.writing.Lock()
	d.keeps = d.keeps || keeps
	d.writing.Unlock()
	g.saveDecisions(ctx)
	d.saved.soon() // what is frozen is as it is now
	return d.notSaved()
}

// notSaved returns why decisions do not survive a restart; nothing if they do.
func (d *decisions) notSaved() string {
	d.writing.Lock()
	defer d.writing.Unlock()
	if d.err != nil {
		return "this does not survive a restart of the relay: " + d.err.Error()
	}
	return ""
}

// freezeOf returns the freeze of an origin, and whether there is one.
func (g *groups) freezeOf(origin int) (f freezing, frozen bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if is := g.decisions.frozen[origin]; is != nil {
		return *is, true
	}
	return freezing{}, false
}

// anyFrozen reports whether any origin is frozen. mu must be held.
func (g *groups) anyFrozen() bool {
	return slices.ContainsFunc(g.decisions.frozen, func(f *freezing) bool { return f != nil })
}

// setFrozen has views that are made from now on be frozen, or not (nil). Of an origin that is
// frozen already, a new freeze has the time since when it is.
func (g *groups) setFrozen(origin int, f *freezing) {
	g.mu.Lock()
	if was := g.decisions.frozen[origin]; was != nil && f != nil && f.Rollback == nil { // which names what it shows by its time
		f.Since = was.Since
	}
	g.decisions.frozen[origin] = f
	g.decisions.rolledBack[origin].Store(f != nil && f.Rollback != nil)
	g.mu.Unlock()
	g.rollouts.poke(origin)
	select {
	case g.decisions.changed <- struct{}{}:
	default: // that it did is to be taken note of already
	}
}

// shownFreeze returns the freeze of an origin as people are shown it; nil if there is none.
func (g *groups) shownFreeze(origin int) *admin.Freezing {
	f, frozen := g.freezeOf(origin)
	if !frozen {
		return nil
	}
	shown := &admin.Freezing{By: f.By, Reason: f.Reason, Since: f.Since, Until: f.Until, SurvivesRestart: g.decisions.saved != nil && g.decisions.notSaved() == ""}
	if b := f.Rollback; b != nil {
		shown.Rollback = &admin.RolledBack{To: b.To, At: b.At}
	}
	return shown
}

// thawInTime ends freezes when their time is over, until ctx ends.
func (r operations) thawInTime(ctx context.Context) {
	for {
		next, origin := time.Time{}, -1
		for i := range r.origins {
			if f, _ := r.groups.freezeOf(i); !f.until.IsZero() && (next.IsZero() || f.until.Before(next)) {
				next, origin = f.until, i
			}
		}
		var over <-chan time.Time
		if origin >= 0 {
			over = time.After(time.Until(next))
		}
		select {
		case <-over:
			r.thawOver(ctx, origin, next)
		case <-r.groups.decisions.changed:
			continue
		case <-ctx.Done():
			return
		}
		select { // the thaw is a change, and so is what an operator did instead
		case <-r.groups.decisions.changed:
		case <-ctx.Done():
			return
		}
	}
}

// thawOver ends a freeze whose time is over, unless an operator has given it another end meanwhile.
func (r operations) thawOver(ctx context.Context, origin int, until time.Time) {
	done, err := r.groups.operate(ctx)
	if err != nil {
		return
	}
	defer done()
	if f, frozen := r.groups.freezeOf(origin); frozen && f.until.Equal(until) {
		r.thawOrigin(ctx, origin, "", "its time is over")
		r.groups.decided(ctx, false)
	}
}

// warnFrozen logs the origins that are frozen when the relay stops, and will not be after a restart.
func (r operations) warnFrozen() {
	for i := range r.origins {
		if f := r.groups.shownFreeze(i); f != nil && !f.SurvivesRestart {
			r.log.Warn("relay stops while an origin is frozen; the freeze ends with it", slog.String("origin", r.cfg.OriginName(i)))
		}
	}
}
