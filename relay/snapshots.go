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
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/config"
	"github.com/xdstender/tender/relay/generations"
	"github.com/xdstender/tender/relay/nodegroup"
	"github.com/xdstender/tender/relay/snapshot"
)

const (
	// saveEvery is how often what has changed is written, if that takes little time.
	saveEvery = 5 * time.Second

	// saveShare is which part of the time writing may take: one of so many. At most
	// saveMost passes between two rounds.
	saveShare = 20
	saveMost  = 5 * time.Minute

	// saveFirst is after how long something is written that is served for the first time. Pauses
	// then double until they are saveEvery: a view that begins goes on to grow.
	saveFirst = 250 * time.Millisecond

	// renewShare: what does not change is written anew after that part of the age at which
	// it would not be used any more.
	renewShare = 4
)

// A savedKey names what one snapshot is of.
type savedKey struct{ origin, group string }

// snapshots keeps on disk what origins say (B.42). A nil one keeps nothing.
type snapshots struct {
	cfg *Config
	own *corepb.Node
	dir *snapshot.Dir
	log *slog.Logger

	failures guard.LogLimiter // of snapshots that are not written

	directories map[int]*cache.Snapshot // by origin; owned by restore

	loaded map[savedKey]*cache.Snapshot // that no view has begun with; owned by restore
	sooner chan struct{}                // receives when the next round is due in saveFirst

	rolledBack func(origin string) bool // whether clients are shown an earlier generation

	// Guarded by mu.
	mu    sync.Mutex
	saved map[savedKey]*saved
	gone  map[savedKey]*departed
}

// A departed is the state of a view that was removed. Its snapshot is to be removed too, or kept, with the last
// content, if the view was evicted.
type departed struct {
	*saved
	evicted bool
	peer    string // that founded the group
}

// A saved is what is written of one origin's part of a view. But for its first three
// fields, it belongs to whoever writes.
type saved struct {
	header cache.Header
	w      *cache.Writer
	line   *generations.Line // nil if no generations are kept

	edition uint64 // of the head that was written last
	from    string // target that it was from
	at      time.Time
	told    bool // that something is withheld
	written bool // there is a file
}

// openSnapshots takes the directory of the configuration, if it names one.
func openSnapshots(cfg *Config, own *corepb.Node, log *slog.Logger) (*snapshots, error) {
	if cfg.SnapshotDir == "" {
		return nil, nil
	}
	dir, err := snapshot.Open(cfg.SnapshotDir, log)
	if err != nil {
		return nil, cfg.RefuseSnapshotDir(err)
	}
	return &snapshots{cfg: cfg, own: own, dir: dir, log: log, failures: guard.NewLogLimiter(rate.Every(notWrittenEvery), 3), sooner: make(chan struct{}, 1), saved: make(map[savedKey]*saved), gone: make(map[savedKey]*departed)}, nil
}

// SnapshotStats returns what became of snapshots; zero if none are kept. It is not stable.
func (r *Relay) SnapshotStats() snapshot.Stats {
	if r.snapshots == nil {
		return snapshot.Stats{}
	}
	return r.snapshots.dir.Stats()
}

// restore adds the groups of an earlier process's snapshots, as if their last clients had just disconnected (B.42).
func (g *groups) restore() {
	if g.saved == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	keys, nodes := g.saved.load(time.Now())
	g.restoreDirectories()
	for _, key := range keys {
		founder, over := g.founders.shares.Take("")
		if over != nil {
			break
		}
		g.abandon(g.add(key, nodes[key], founder))
	}
	g.saved.forgetLoaded()
	g.decisions.restored()
}

// load reads the snapshots of an earlier process, and returns the keys of their groups, last written first, and the
// node that is presented for each. It leaves out snapshots that do not match the configuration.
func (s *snapshots) load(now time.Time) (groups []string, nodes map[string]*corepb.Node) {
	s.loaded, nodes = make(map[savedKey]*cache.Snapshot), make(map[string]*corepb.Node)
	s.directories = make(map[int]*cache.Snapshot)
	for _, snap := range s.dir.Load(now, s.cfg.MaxSnapshotAge) {
		if snap.Group == directoryGroup {
			s.loadDirectory(snap)
			continue
		}
		node, err := s.fit(&snap.Header)
		if err != nil {
			s.dir.Reject(snap, err)
			continue
		}
		s.loaded[savedKey{snap.Origin, snap.Group}] = snap
		group, _ := strings.CutPrefix(snap.Group, commonGroup)
		if _, known := nodes[group]; !known && !isShared(group) {
			groups = append(groups, group)
			nodes[group] = node
		}
	}
	return groups, nodes
}

// directoryGroup is what takes the place of a node group in a snapshot of a directory. No group has it as its key.
const directoryGroup = "directory"

// commonGroup precedes the key of a node group in a snapshot of the names that the group shares with others. No group has a key
// that begins with it.
const commonGroup = "xdstp of "

// loadDirectory takes a snapshot of a directory, if there is such an origin.
func (s *snapshots) loadDirectory(snap *cache.Snapshot) {
	origin := slices.Index(s.cfg.OriginNames(), snap.Origin)
	if origin < 0 || !slices.Equal(s.directoryHeader(origin).Targets, snap.Targets) {
		s.dir.Reject(snap, fmt.Errorf("there is no origin %q of the directory %s", snap.Origin, strings.Join(snap.Targets, ",")))
		return
	}
	s.directories[origin] = snap
}

// directoryHeader returns what says of a snapshot of a directory what it is of.
func (s *snapshots) directoryHeader(origin int) cache.Header {
	return s.header(origin, directoryGroup, nil)
}

// forgetLoaded keeps loaded snapshots that no view began with for clients that return, as if their views were evicted.
func (s *snapshots) forgetLoaded() {
	if len(s.loaded) == 0 {
		return
	}
	for _, snap := range s.loaded {
		s.failed(&snap.Header, s.dir.Evict(&snap.Header, "", s.mostEvicted()))
	}
	s.log.Warn("some snapshots are restored only when their clients reconnect (TENDER_MAX_GROUPS)", slog.Int("snapshots", len(s.loaded)))
	s.loaded = nil
}

// mostEvicted returns how many snapshots of evicted views stay: as many as there may be of groups.
func (s *snapshots) mostEvicted() int {
	most := s.cfg.MaxGroups * len(s.cfg.OriginNames())
	if len(s.cfg.Rollout) > 0 {
		most *= 2 // commonGroup
	}
	return most
}

// fit returns the node that this relay presents to the origin for the subject of a snapshot, or an error if the
// snapshot does not match the configuration.
func (s *snapshots) fit(h *cache.Header) (*corepb.Node, error) {
	origin := slices.Index(s.cfg.OriginNames(), h.Origin)
	if origin < 0 {
		return nil, fmt.Errorf("there is no origin %q", h.Origin)
	}
	was := new(corepb.Node)
	if err := proto.Unmarshal(h.Node, was); err != nil {
		return nil, fmt.Errorf("decode Node: %w", err)
	}
	if !s.takes(h) {
		return nil, errors.New("TENDER_ROLLOUT was turned on or off, which changes what snapshots are taken of")
	}
	key, node := sharedGroupOf(was.GetClientFeatures()), sharedNode(s.own, was.GetClientFeatures())
	if !isShared(h.Group) {
		key, node = nodegroup.Sort(was, proto.CloneOf(s.own), s.cfg.NodeGroupBy)
	}
	if strings.HasPrefix(h.Group, commonGroup) {
		key = commonGroup + key
	}
	now := s.header(origin, key, node)
	switch {
	case !slices.Equal(now.Targets, h.Targets):
		return nil, fmt.Errorf("it is of the targets %s, the origin %s has %s",
			strings.Join(h.Targets, ","), h.Origin, strings.Join(now.Targets, ","))
	case key != h.Group:
		return nil, fmt.Errorf("it is of the group %q, which is %q now", h.Group, key)
	case now.Options != h.Options:
		return nil, fmt.Errorf("it was made with %s, this is with %s", h.Options, now.Options)
	case !s.sameNode(was, node):
		return nil, errors.New("the relay presented another Node to the origin")
	}
	return node, nil
}

// sameNode reports whether an origin has no reason to answer two Nodes differently. The
// version of the relay is none, or there would be a cold start after each upgrade.
func (s *snapshots) sameNode(a, b *corepb.Node) bool {
	if !slices.Contains(s.cfg.NodeGroupBy, "user_agent_version") {
		a, b = proto.CloneOf(a), proto.CloneOf(b)
		a.UserAgentVersionType, b.UserAgentVersionType = nil, nil
	}
	return proto.Equal(a, b)
}

// header returns what says of a snapshot what it is of.
func (s *snapshots) header(origin int, group string, node *corepb.Node) cache.Header {
	encoded, _ := proto.MarshalOptions{Deterministic: true}.Marshal(node) // it is sent, too
	of := config.AllOrigins(s.cfg)[origin]
	return cache.Header{Origin: of.Name, Targets: of.Targets, Group: group, Node: encoded, Options: "DELTA_VERSIONS=" + s.cfg.DeltaVersions}
}

// takes reports whether snapshots are taken of what a header describes. With rollouts, they hold what the clients of a node group
// are served: also of a directory, whose files may have something else, and of names that groups share, of which the shared view
// has what the origin has. Without, files and shared views say it all, but for an earlier generation of a directory.
func (s *snapshots) takes(h *cache.Header) bool {
	switch {
	case len(s.cfg.Rollout) > 0:
		return !isShared(h.Group)
	case strings.HasPrefix(h.Group, commonGroup):
		return false
	default:
		return !strings.HasPrefix(h.Targets[0], "file:") || s.rolledBack(h.Origin)
	}
}

// restore puts into the view of w what was on disk of it, and returns that; nil if there was nothing.
func (s *snapshots) restore(origin int, group string, node *corepb.Node, w *cache.Writer) *cache.Snapshot {
	if s == nil {
		return nil
	}
	h := s.header(origin, group, node)
	if !s.takes(&h) {
		return nil
	}
	key := savedKey{h.Origin, group}
	snap := s.loaded[key]
	if snap == nil {
		snap = s.recall(key, &h)
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

// keep has what w writes kept on disk while snapshots are taken of it, with the generations of a line, which may be nil.
func (s *snapshots) keep(origin int, group string, node *corepb.Node, w *cache.Writer, line *generations.Line, restored bool) {
	if s == nil {
		return
	}
	h := s.header(origin, group, node)
	key := savedKey{h.Origin, group}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.gone, key)
	s.saved[key] = &saved{header: h, w: w, line: line, written: restored}
}

// recall returns the snapshot of a view that was evicted; nil if there is none.
func (s *snapshots) recall(key savedKey, h *cache.Header) *cache.Snapshot {
	s.mu.Lock()
	was := s.gone[key]
	s.mu.Unlock()
	if was != nil && was.evicted { // and may not be on the disk yet
		snap, _ := s.take(was.saved, time.Now())
		return snap
	}
	snap := s.dir.Recall(h, time.Now(), s.cfg.MaxSnapshotAge)
	if snap == nil {
		return nil
	}
	if _, err := s.fit(&snap.Header); err != nil {
		s.dir.Reject(snap, err)
		return nil
	}
	return snap
}

// drop removes the snapshot of a group that was removed, or keeps it for returning clients if the group, which a peer
// founded, was evicted.
func (s *snapshots) drop(origin int, group, peer string, evicted bool) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range []string{group, commonGroup + group} {
		key := savedKey{s.cfg.OriginName(origin), of}
		if was := s.saved[key]; was != nil {
			delete(s.saved, key)
			s.gone[key] = &departed{was, evicted, peer}
		}
	}
}

// soon has what has changed be written soon. It does not wait.
func (s *snapshots) soon() {
	if s == nil {
		return
	}
	select {
	case s.sooner <- struct{}{}:
	default: // it will be
	}
}

// run writes what has changed now and then, and once more when ctx ends, and calls decide whenever it
// does.
func (s *snapshots) run(ctx context.Context, decide func(context.Context)) {
	if s == nil {
		return
	}
	pause, least := saveEvery, time.Duration(0)
	next := time.Now().Add(spread(pause))
	for ctx.Err() == nil {
		select {
		case <-time.After(time.Until(next)):
			start := time.Now()
			s.write()
			decide(ctx)
			least = min(saveShare*time.Since(start), saveMost)
			pause = max(min(2*pause, saveEvery), least)
			next = time.Now().Add(spread(pause))
		case <-s.sooner:
			if first := max(saveFirst, least); first < time.Until(next) {
				pause, next = first, time.Now().Add(first)
			}
		case <-ctx.Done():
		}
	}
	s.write()
	decide(context.WithoutCancel(ctx))
}

// spread returns a duration between 80% and 120% of d.
func spread(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}

// close writes what has changed and lets the directory go. No view may be kept any more.
func (s *snapshots) close() error {
	if s == nil {
		return nil
	}
	s.write()
	return s.dir.Close()
}

// write writes what has changed since it was last written. One goroutine may call it at a
// time.
func (s *snapshots) write() {
	s.mu.Lock()
	saving, gone := maps.Clone(s.saved), maps.Clone(s.gone)
	s.mu.Unlock()
	now := time.Now()
	for key, was := range gone {
		s.failed(&was.header, s.depart(was, now))
		s.mu.Lock()
		if s.gone[key] == was {
			delete(s.gone, key)
		}
		s.mu.Unlock()
	}
	s.dir.RemoveEvicted(now.Add(-s.cfg.MaxSnapshotAge))
	for _, unit := range saving {
		s.failed(&unit.header, s.save(unit, now))
	}
}

// depart removes the snapshot of a view that is no more, or puts it with those of evicted ones.
func (s *snapshots) depart(was *departed, now time.Time) error {
	if !was.evicted {
		return s.dir.Remove(&was.header)
	}
	if err := s.save(was.saved, now); err != nil {
		return err
	}
	return s.dir.Evict(&was.header, was.peer, s.mostEvicted())
}

// save writes one snapshot, if there is something new to write.
func (s *snapshots) save(u *saved, now time.Time) error {
	if !s.takes(&u.header) {
		return s.forget(u)
	}
	edition, from := u.w.SnapshotRevision()
	if edition == u.edition && from == u.from && now.Sub(u.at) < s.cfg.MaxSnapshotAge/renewShare {
		return nil
	}
	snap, withheld := s.take(u, now)
	if len(withheld) > 0 && !u.told {
		u.told = true
		s.log.Warn("snapshot omits resources with sensitive fields; clients wait for them after a restart; TENDER_SNAPSHOT_SENSITIVE=on stores them",
			slog.String("group", u.header.Group), slog.Any("resources", withheld))
	}
	write := s.dir.Write
	if len(snap.Types) == 0 {
		write = func(snap *cache.Snapshot) error { return s.dir.Remove(&snap.Header) }
	}
	if err := write(snap); err != nil {
		return err
	}
	u.edition, u.from, u.at, u.written = edition, from, now, true
	return nil
}

// take takes a snapshot, with the generations that may be stored.
func (s *snapshots) take(u *saved, now time.Time) (snap *cache.Snapshot, withheld cache.OmittedContent) {
	take := func() *cache.Snapshot {
		snap, withheld = u.w.Snapshot(s.cfg.SnapshotSensitive)
		return snap
	}
	if u.line == nil {
		take()
	} else {
		u.line.Snapshot(s.cfg.SnapshotSensitive, take)
	}
	snap.Header, snap.Created = u.header, now
	return snap, withheld
}

// forget removes a snapshot of which none is taken any more.
func (s *snapshots) forget(u *saved) error {
	if !u.written {
		return nil
	}
	if err := s.dir.Remove(&u.header); err != nil {
		return err
	}
	u.written, u.at = false, time.Time{}
	return nil
}

func (s *snapshots) failed(h *cache.Header, err error) {
	if err != nil && s.failures.Allow() {
		s.log.Error("snapshot not written; the previous one stays", slog.String("origin_name", h.Origin), slog.String("group", h.Group),
			slog.Any("err", err), s.failures.Suppressed())
	}
}
