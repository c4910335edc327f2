package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/time/rate"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/relay/config"
	"github.com/xdstender/tender/relay/generations"
	"github.com/xdstender/tender/relay/snapshot"
	"github.com/xdstender/tender/upstream"
)

const (
	// saveInterval is the interval of writing changed snapshots, unless writing takes long.
	saveInterval = 5 * time.Second

	// saveShare limits writing to one part in saveShare of the time. saveMaxPause is the longest pause between two rounds.
	saveShare    = 20
	saveMaxPause = 5 * time.Minute

	// saveFirst is the delay until the first state of a view is written. Intervals then double up to saveInterval, because
	// a new view continues to grow.
	saveFirst = 250 * time.Millisecond

	// renewShare: an unchanged snapshot is written again after one part in renewShare of TENDER_MAX_SNAPSHOT_AGE.
	renewShare = 4
)

// A snapshotKey identifies a snapshot by the names of its origin and its group.
type snapshotKey struct{ origin, group string }

// snapshots stores the state of views on disk (B.42). If nil, it stores nothing.
type snapshots struct {
	settings *settings
	dir      *snapshot.Dir
	log      *slog.Logger

	failures guard.LogLimiter // limits log messages about failed writes
	failed   bool             // a write failed in this or the last round; owned by write once the relay runs

	directories map[int]*cache.Snapshot // by origin; owned by restore

	loaded map[snapshotKey]*cache.Snapshot // snapshots that no view was restored from yet; owned by restore
	wake   chan struct{}                   // receives when the next round is due within saveFirst

	headers snapshotHeaders

	// Guarded by mu.
	mu      sync.Mutex
	views   map[snapshotKey]*viewSnapshot
	removed map[snapshotKey]*removedView
}

// A removedView is a removed view whose snapshot is still to be removed, or to be kept if the view was evicted.
type removedView struct {
	*viewSnapshot
	evicted bool
	peer    string // the peer that created the group
}

// A viewSnapshot is the snapshot of one source of a view.
type viewSnapshot struct {
	// Immutable.
	header cache.Header
	viewCapture

	// Owned by the goroutine that writes; describes the last write.
	revision       uint64 // of the generation
	waiting        uint64 // of the list of pending changes
	target         string // to which the relay was connected
	at             time.Time
	omissionLogged bool // omitted resources were logged
	written        bool // there is a file
}

// A viewCapture captures the state of one source of a view, and what waits in front of it.
type viewCapture struct {
	list    *pending.List
	control *upstream.Control // of the loop that owns the list; nil if nothing waits in it for an operator or for stages
	line    *generations.Line // nil if no generations are kept
}

// captureWait limits how long a snapshot waits for the loop of a view. recallWait is the limit for a view that was evicted, whose
// loop is about to end: other clients wait meanwhile.
const (
	captureWait = 5 * time.Second
	recallWait  = 100 * time.Millisecond
)

// errNotCaptured means that the loop of a view does not answer.
var errNotCaptured = errors.New("the changes that wait are not known: the loop of the view is busy")

// capture returns the state now. It waits for the loop of the view only if changes wait. If ctx ends first, it returns nil.
func (v *viewCapture) capture(ctx context.Context) *cache.Capture {
	if v.control == nil || !v.list.HasRows() {
		return v.list.Writer().Capture()
	}
	var captured *cache.Capture
	v.control.Edit(ctx, func(l *pending.List) { captured = l.Capture() })
	if captured != nil {
		return captured
	}
	select {
	case <-v.list.Closed(): // the loop has ended
		return v.list.Capture()
	case <-ctx.Done():
		return nil
	}
}

// captureServed is capture, but if ctx ends first, it returns what clients are served, without what waits.
func (v *viewCapture) captureServed(ctx context.Context) *cache.Capture {
	if captured := v.capture(ctx); captured != nil {
		return captured
	}
	return v.list.Writer().Capture()
}

// snapshot returns a snapshot of the state that capture returns, with the generations that it may have; nil if it returns nil.
// secrets includes what must not be stored (B.36).
func (v *viewCapture) snapshot(
	capture func() *cache.Capture, sensitive, secrets bool,
) (snap *cache.Snapshot, omitted cache.OmittedContent) {
	take := func() *cache.Snapshot {
		captured := capture()
		switch {
		case captured == nil:
			return nil
		case secrets:
			snap, omitted = captured.SnapshotWithSecrets()
		default:
			snap, omitted = captured.Snapshot(sensitive)
		}
		return snap
	}
	if v.line == nil {
		take()
	} else {
		v.line.Snapshot(sensitive || secrets, take)
	}
	return snap, omitted
}

// openSnapshots opens the directory for snapshots. It returns nil if TENDER_SNAPSHOT_DIR is off, and an error if the setting
// is wrong. A directory whose file system fails or hangs is no error: the relay serves without it.
func openSnapshots(s *settings, log *slog.Logger) (*snapshots, error) {
	if s.snapshotDir == "" {
		return nil, nil
	}
	dir, err := snapshot.Open(s.snapshotDir, log)
	if err != nil {
		return nil, config.RefuseSnapshotDir(s.snapshotDir, err)
	}
	return &snapshots{
		settings: s, dir: dir, log: log, headers: snapshotHeaders{settings: s},
		failures: guard.NewLogLimiter(rate.Every(writeErrorInterval), 3),
		wake:     make(chan struct{}, 1),
		views:    make(map[snapshotKey]*viewSnapshot),
		removed:  make(map[snapshotKey]*removedView),
	}, nil
}

// SnapshotStats returns the counters of snapshots. They are zero if TENDER_SNAPSHOT_DIR is off. It is not stable.
func (r *Relay) SnapshotStats() snapshot.Stats {
	if r.snapshots == nil {
		return snapshot.Stats{}
	}
	return r.snapshots.dir.Stats()
}

// restore creates the groups in the snapshots of an earlier process, as if their last clients had just disconnected
// (B.42).
func (g *groups) restore() {
	if g.snapshots == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	keys, nodes := g.snapshots.load(time.Now())
	g.decisions.restoreDirectories(g.origins)
	for _, key := range keys {
		creator, over := g.quota.shares.Take("")
		if over != nil {
			break
		}
		g.scheduleRemoval(g.addGroup(key, nodes[key], creator))
	}
	g.snapshots.evictUnused()
	g.decisions.dropUnrestored()
}

// load reads the snapshots of an earlier process. It returns the keys of their groups, the last written first, and the
// Node that the relay presents for each. It refuses snapshots that do not match the configuration.
func (s *snapshots) load(now time.Time) (groups []string, nodes map[string]*corepb.Node) {
	s.loaded, nodes = make(map[snapshotKey]*cache.Snapshot), make(map[string]*corepb.Node)
	s.directories = make(map[int]*cache.Snapshot)
	for _, snap := range s.dir.Load(now, s.settings.maxSnapshotAge) {
		if snap.Group == directoryGroup {
			s.loadDirectory(snap)
			continue
		}
		node, err := s.headers.match(&snap.Header)
		if err != nil {
			s.dir.Refuse(snap, err)
			continue
		}
		s.loaded[snapshotKey{snap.Origin, snap.Group}] = snap
		group, _ := strings.CutPrefix(snap.Group, sharedNamesPrefix)
		if _, known := nodes[group]; !known && !isSharedGroup(group) {
			groups = append(groups, group)
			nodes[group] = node
		}
	}
	return groups, nodes
}

// loadDirectory accepts the snapshot of a directory, if an origin has this directory.
func (s *snapshots) loadDirectory(snap *cache.Snapshot) {
	origin := slices.Index(s.settings.originNames(), snap.Origin)
	if origin < 0 || !slices.Equal(s.headers.ofDirectory(origin).Targets, snap.Targets) {
		s.dir.Refuse(snap, fmt.Errorf("no origin %q has the directory %s", snap.Origin, strings.Join(snap.Targets, ",")))
		return
	}
	s.directories[origin] = snap
}

// evictUnused keeps loaded snapshots without a view for returning clients, as if their views had been evicted.
func (s *snapshots) evictUnused() {
	if len(s.loaded) == 0 {
		return
	}
	for _, snap := range s.loaded {
		s.logFailure(&snap.Header, s.dir.Evict(&snap.Header, "", s.maxEvicted()))
	}
	s.log.Warn("snapshots above TENDER_MAX_GROUPS are restored when clients reconnect",
		slog.Int("snapshots", len(s.loaded)))
	s.loaded = nil
}

// maxEvicted returns how many snapshots of evicted views may be kept: one for each possible group and origin.
func (s *snapshots) maxEvicted() int {
	limit := s.settings.maxGroups * len(s.settings.originNames())
	if s.settings.rollout.On() {
		limit *= 2 // shared names have snapshots of their own (sharedNamesPrefix)
	}
	return limit
}

// restore restores the view of w from its snapshot. It returns the snapshot, or nil if there is none.
func (s *snapshots) restore(origin int, group string, node *corepb.Node, w *cache.Writer) *cache.Snapshot {
	if s == nil {
		return nil
	}
	h := s.headers.of(origin, group, node)
	if !s.headers.includes(&h) {
		return nil
	}
	key := snapshotKey{h.Origin, group}
	snap := s.loaded[key]
	if snap == nil {
		snap = s.restoreEvicted(key, &h)
	}
	if snap == nil {
		return nil
	}
	delete(s.loaded, key)
	resources := w.Restore(snap, time.Now())
	s.dir.CountRestored()
	s.log.Info("view restored from a snapshot", slog.String("origin_name", h.Origin), slog.String("group", group),
		slog.Int("resources", resources), slog.Duration("age", time.Since(snap.Created).Round(time.Second)))
	return snap
}

// track starts to write snapshots of a source of a view.
func (s *snapshots) track(origin int, group string, node *corepb.Node, of viewCapture, restored bool) {
	if s == nil {
		return
	}
	h := s.headers.of(origin, group, node)
	key := snapshotKey{h.Origin, group}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.removed, key)
	s.views[key] = &viewSnapshot{header: h, viewCapture: of, written: restored}
}

// restoreEvicted returns the snapshot of an evicted view, or nil if there is none.
func (s *snapshots) restoreEvicted(key snapshotKey, h *cache.Header) *cache.Snapshot {
	s.mu.Lock()
	was := s.removed[key]
	s.mu.Unlock()
	if was != nil && was.evicted { // its snapshot may not be on disk yet
		return s.recall(was.viewSnapshot)
	}
	snap := s.dir.Recall(h, time.Now(), s.settings.maxSnapshotAge)
	if snap == nil {
		return nil
	}
	if _, err := s.headers.match(&snap.Header); err != nil {
		s.dir.Refuse(snap, err)
		return nil
	}
	return snap
}

// recall returns the snapshot of an evicted view that may not be on disk. If the loop of the view does not end in time, the
// snapshot lacks what waits for stages. The origin states that again: it was connected, or the group had not been evicted. A file
// could have what waited before, but would return clients to an earlier state.
func (s *snapshots) recall(was *viewSnapshot) *cache.Snapshot {
	ctx, cancel := context.WithTimeout(context.Background(), recallWait)
	defer cancel()
	snap, _, _ := s.take(was, time.Now(), func() *cache.Capture { return was.captureServed(ctx) }) // never errNotCaptured
	return snap
}

// drop removes the snapshot of a removed group. If the group was evicted, it keeps the snapshot for returning clients
// and counts it for peer, which created the group.
func (s *snapshots) drop(origin int, group, peer string, evicted bool) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range []string{group, sharedNamesPrefix + group} {
		key := snapshotKey{s.settings.origins[origin].Name, of}
		if was := s.views[key]; was != nil {
			delete(s.views, key)
			s.removed[key] = &removedView{was, evicted, peer}
		}
	}
}

// writeSoon schedules a write of changed snapshots within saveFirst. It does not block.
func (s *snapshots) writeSoon() {
	if s == nil {
		return
	}
	select {
	case s.wake <- struct{}{}:
	default: // already scheduled
	}
}

// run writes changed snapshots at intervals until ctx ends, and then once more. It calls saveDecisions after each
// write.
func (s *snapshots) run(ctx context.Context, saveDecisions func(context.Context)) {
	if s == nil {
		return
	}
	pause, minPause := saveInterval, time.Duration(0)
	next := time.Now().Add(jitter(pause))
	for ctx.Err() == nil {
		select {
		case <-time.After(time.Until(next)):
			start := time.Now()
			s.write()
			saveDecisions(ctx)
			minPause = min(saveShare*time.Since(start), saveMaxPause)
			pause = max(min(2*pause, saveInterval), minPause)
			next = time.Now().Add(jitter(pause))
		case <-s.wake:
			if first := max(saveFirst, minPause); first < time.Until(next) {
				pause, next = first, time.Now().Add(first)
			}
		case <-ctx.Done():
		}
	}
	s.write()
	saveDecisions(context.WithoutCancel(ctx))
}

// jitter returns a duration between 80% and 120% of d.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}

// close writes changed snapshots and closes the directory. All views must have ended.
func (s *snapshots) close() error {
	if s == nil {
		return nil
	}
	s.write()
	return s.dir.Close()
}

// write writes the snapshots that have changed since the last write. Only one goroutine may call it at a time.
func (s *snapshots) write() {
	s.mu.Lock()
	saving, removed := maps.Clone(s.views), maps.Clone(s.removed)
	s.mu.Unlock()
	now, before := time.Now(), s.failed
	s.failed = false
	for key, was := range removed {
		err := s.saveRemoved(was, now)
		s.logFailure(&was.header, err)
		s.mu.Lock()
		if s.removed[key] == was && !errors.Is(err, errNotCaptured) { // the next round captures it, once the loop has ended
			delete(s.removed, key)
		}
		s.mu.Unlock()
	}
	s.dir.RemoveEvicted(now.Add(-s.settings.maxSnapshotAge))
	for _, v := range saving {
		s.logFailure(&v.header, s.save(v, now))
	}
	if before && !s.failed { // a failed write is repeated in each round
		s.log.Info("snapshots written again")
	}
}

// saveRemoved removes the snapshot of a removed view, or moves it to the snapshots of evicted views.
func (s *snapshots) saveRemoved(was *removedView, now time.Time) error {
	if !was.evicted {
		return s.dir.Remove(&was.header)
	}
	if err := s.save(was.viewSnapshot, now); err != nil {
		return err
	}
	return s.dir.Evict(&was.header, was.peer, s.maxEvicted())
}

// save writes one snapshot, if the state has changed or the snapshot is old.
func (s *snapshots) save(v *viewSnapshot, now time.Time) error {
	if !s.headers.includes(&v.header) {
		return s.removeFile(v)
	}
	revision, target := v.list.Writer().SnapshotRevision()
	waiting := v.list.Revision()
	if revision == v.revision && waiting == v.waiting && target == v.target && now.Sub(v.at) < s.settings.maxSnapshotAge/renewShare {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), captureWait)
	defer cancel()
	snap, omitted, err := s.take(v, now, func() *cache.Capture { return v.capture(ctx) })
	if err != nil {
		return err
	}
	if len(omitted) > 0 && !v.omissionLogged {
		v.omissionLogged = true
		s.log.Warn("snapshot omits resources with sensitive fields; clients wait for them after a restart; "+
			"TENDER_SNAPSHOT_SENSITIVE=on stores them",
			slog.String("group", v.header.Group), slog.Any("resources", omitted))
	}
	write := s.dir.Write
	if len(snap.Types) == 0 {
		if !v.written {
			return nil // a file that an earlier process left may be the last good state
		}
		write = func(snap *cache.Snapshot) error { return s.dir.Remove(&snap.Header) }
	}
	if err := write(snap); err != nil {
		return err
	}
	v.revision, v.waiting, v.target, v.at, v.written = revision, waiting, target, now, true
	return nil
}

// take takes a snapshot of the state that capture returns, with the generations that may be stored. The error is errNotCaptured.
func (s *snapshots) take(
	v *viewSnapshot, now time.Time, capture func() *cache.Capture,
) (*cache.Snapshot, cache.OmittedContent, error) {
	snap, omitted := v.snapshot(capture, s.settings.snapshotSensitive, false)
	if snap == nil {
		return nil, nil, errNotCaptured
	}
	snap.Header, snap.Created = v.header, now
	return snap, omitted, nil
}

// removeFile removes the file of a state that is no longer stored (includes).
func (s *snapshots) removeFile(v *viewSnapshot) error {
	if !v.written {
		return nil
	}
	if err := s.dir.Remove(&v.header); err != nil {
		return err
	}
	v.written, v.at = false, time.Time{}
	return nil
}

// logFailure logs err, unless it is nil or the log limit is reached. Only the goroutine that owns failed may call it.
func (s *snapshots) logFailure(h *cache.Header, err error) {
	s.failed = s.failed || err != nil
	if err != nil && s.failures.Allow() {
		s.log.Error("snapshot not written; the previous snapshot is kept", slog.String("origin_name", h.Origin),
			slog.String("group", h.Group),
			slog.Any("err", err), s.failures.Suppressed())
	}
}
