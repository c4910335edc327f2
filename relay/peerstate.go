package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/peers"
	"github.com/xdstender/tender/relay/snapshot"
)

// A relay without a state whose origins do not answer begins with the state of a peer (B.42). It waits originWait for an
// origin, and serves at takeUntil after its start at the latest.
const (
	originWait = 1500 * time.Millisecond
	takeUntil  = 4500 * time.Millisecond

	// giveWait limits how long the state for a peer waits for the loops of all views together.
	giveWait = time.Second

	// maxTakenBytes is the maximum size of the state of a peer, if there is no limit of memory.
	maxTakenBytes = 1 << 30
)

// takenLimit returns the maximum size of the state of a peer: a fourth of the limit of memory, since it is decoded too.
func takenLimit(m memory) int64 {
	if !m.limited() {
		return maxTakenBytes
	}
	return min(int64(m.limit/4), maxTakenBytes)
}

// A takenState is the state of a peer with which the relay began. Nil is none.
type takenState struct {
	from peers.Giver
	at   time.Time // when it was taken
	of   time.Time // of the oldest view

	// Until the relay serves.
	views     map[snapshotKey]*cache.Snapshot // that are not restored yet
	groups    []string                        // keys of node groups
	nodes     map[string]*corepb.Node         // that the relay presents, by group
	decisions *snapshot.Decisions
	restored  int // views
}

// giveState writes the state of all views and the decisions of operators, for a peer.
func (g *groups) giveState(ctx context.Context, secrets bool, to io.Writer) error {
	select {
	case <-g.started:
	case <-ctx.Done():
		return ctx.Err()
	}
	g.mu.Lock()
	views := slices.Collect(maps.Values(g.given))
	g.mu.Unlock()
	slices.SortFunc(views, func(a, b *viewSnapshot) int {
		return cmp.Or(cmp.Compare(a.header.Origin, b.header.Origin), cmp.Compare(a.header.Group, b.header.Group))
	})
	bundle := snapshot.Bundle{Decisions: g.standingDecisions()}
	bundle.Decisions.Dropped = g.droppedRemovals(ctx, slices.DeleteFunc(g.commandTargets(), g.dropsNothing))
	end := time.Now().Add(giveWait)
	for _, v := range views {
		if strings.HasPrefix(v.header.Targets[0], "file:") || !g.headers.includes(&v.header) {
			continue // a peer reads its own directory
		}
		if snap := v.give(ctx, end, secrets); len(snap.Types) > 0 {
			bundle.Snapshots = append(bundle.Snapshots, snap)
		}
	}
	if ctx.Err() != nil {
		return ctx.Err() // a view may not have returned its dropped removals
	}
	if len(bundle.Snapshots) == 0 {
		return admin.Refuse(http.StatusConflict, errors.New("the relay has no configuration yet"))
	}
	return bundle.Encode(to)
}

// dropsNothing reports whether a peer needs no dropped removals of a view or directory, so that it need not wait for its loop. A
// peer reads directories itself.
func (g *groups) dropsNothing(o commandTarget) bool {
	if o.control == nil {
		return true
	}
	_, isDirectory := g.origins[o.origin].(filesOrigin) // its views do not record that they hold removals
	return !isDirectory && !o.control.Holding()
}

// give takes a snapshot of the current state for a peer. Its time is that of the state. It waits for the loop of the view for half
// of the time that is left, so that some is left for others. If the loop does not answer, the snapshot lacks what waits: without
// it, the peer would have nothing.
func (v *viewSnapshot) give(ctx context.Context, end time.Time, secrets bool) *cache.Snapshot {
	ctx, cancel := context.WithTimeout(ctx, time.Until(end)/2)
	defer cancel()
	snap, _ := v.snapshot(func() *cache.Capture { return v.captureServed(ctx) }, false, secrets)
	created := snap.Created
	snap.Header = v.header
	snap.Created = created
	return snap
}

// takeState begins with the state of a peer, unless an origin answers. It reports whether it did. It must be called
// before clients are served.
func (r *Relay) takeState(ctx context.Context, began time.Time) (taken bool) {
	tier := r.peers()
	if tier == nil {
		return false
	}
	select {
	case <-time.After(time.Until(began.Add(originWait))):
	case <-r.probes.there:
		return false
	case <-ctx.Done():
		return false
	}
	ctx, cancel := context.WithDeadline(ctx, began.Add(takeUntil))
	defer cancel()
	go func() { // ends with ctx
		select {
		case <-r.probes.there:
			cancel()
		case <-ctx.Done():
		}
	}()
	state, err := r.askPeers(ctx, tier)
	select {
	case <-r.probes.there: // what it states is newer
		r.log.Info("an origin answers; the relay needs no state of a peer")
		return false
	default:
	}
	if err != nil {
		r.log.Warn("no peer sent its state; clients wait for an origin", slog.Any("err", err))
		return false
	}
	r.groups.restoreTaken(state)
	r.log.Info("relay started with the state of a peer", slog.String("peer", state.from.Address),
		slog.String("node_id", state.from.NodeID), slog.Int("views", state.restored),
		slog.Duration("age", state.at.Sub(state.of).Round(time.Second)))
	return state.restored > 0
}

// askPause is the pause before peers are asked again: they may start at the same time.
const askPause = 250 * time.Millisecond

// askPeers returns the state of a peer. It asks until ctx ends.
func (r *Relay) askPeers(ctx context.Context, tier *peers.Tier) (state *takenState, err error) {
	for {
		asked := tier.Take(ctx, func(from peers.Giver, response io.Reader) (err error) {
			state, err = r.groups.readState(from, response, time.Now())
			return err
		})
		if asked == nil {
			return state, nil
		}
		if err == nil || ctx.Err() == nil {
			err = asked // a later error says only that the time is over
		}
		select {
		case <-time.After(askPause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// readState reads the state that a peer has sent. It refuses snapshots that do not match the configuration, and returns
// an error if none does.
func (g *groups) readState(from peers.Giver, response io.Reader, now time.Time) (*takenState, error) {
	bundle, err := snapshot.DecodeBundle(response, takenLimit(readMemory()))
	if err != nil {
		return nil, err
	}
	state := &takenState{
		from: from, at: now, of: now, decisions: &bundle.Decisions,
		views: make(map[snapshotKey]*cache.Snapshot), nodes: make(map[string]*corepb.Node),
	}
	var mismatches []error
	for _, snap := range bundle.Snapshots {
		node, err := g.headers.match(&snap.Header)
		if err = cmp.Or(err, snapshot.CheckAge(snap, now, g.settings.maxSnapshotAge)); err != nil {
			mismatches = append(mismatches, fmt.Errorf("group %.256q: %w", snap.Group, err))
			continue
		}
		state.add(snap, node)
	}
	if len(state.groups) == 0 {
		return nil, cmp.Or(errors.Join(mismatches...), errors.New("it has no configuration"))
	}
	if err := errors.Join(mismatches...); err != nil {
		g.log.Warn("snapshots of a peer refused; their views start cold", slog.String("peer", from.Address), slog.Any("err", err))
	}
	return state, nil
}

// add adds the snapshot of a view, and the Node that the relay presents for its group.
func (s *takenState) add(snap *cache.Snapshot, node *corepb.Node) {
	s.views[snapshotKey{snap.Origin, snap.Group}] = snap
	if snap.Created.Before(s.of) {
		s.of = snap.Created
	}
	group, _ := strings.CutPrefix(snap.Group, sharedNamesPrefix)
	if _, known := s.nodes[group]; !known && !isSharedGroup(group) {
		s.groups = append(s.groups, group)
		s.nodes[group] = node
	}
}

// restoreTaken creates the groups of a peer, as if their last clients had just disconnected, with its decisions.
func (g *groups) restoreTaken(state *takenState) {
	names := g.settings.originNames()
	g.decisions.restore(state.decisions, names, time.Now())
	rejected := rejectedEditions(state.decisions, names)
	if g.rollouts != nil {
		g.rollouts.controllers = newRollouts(g, rejected).controllers // none runs yet
	} else {
		g.distrust = newRollbackDistrust(g, rejected)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.taken = state
	for _, key := range state.groups {
		creator, over := g.quota.shares.Take("")
		if over != nil {
			break
		}
		g.scheduleRemoval(g.addGroup(key, state.nodes[key], creator))
	}
	state.views, state.groups, state.nodes, state.decisions = nil, nil, nil, nil
	g.decisions.dropUnrestored()
}

// restore restores the view of w from the state of a peer. It returns the snapshot, or nil if there is none.
func (s *takenState) restore(log *slog.Logger, key snapshotKey, w *cache.Writer) *cache.Snapshot {
	if s == nil || s.views[key] == nil {
		return nil
	}
	snap := s.views[key]
	delete(s.views, key)
	resources := w.Restore(snap, time.Now())
	s.restored++
	log.Info("view restored from a peer", slog.String("origin_name", key.origin), slog.String("group", key.group),
		slog.Int("resources", resources), slog.String("peer", s.from.Address))
	return snap
}

// shownState returns the state of a peer with which the relay began, for operators; nil if it did not.
func (g *groups) shownState(now time.Time) *admin.TakenState {
	s := g.taken
	if s == nil {
		return nil
	}
	return &admin.TakenState{
		From: s.from.Address, NodeID: s.from.NodeID, At: s.at, Views: s.restored, AgeSeconds: now.Sub(s.of).Seconds(),
	}
}
