package relay

import (
	"cmp"
	"context"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fanout"
	"github.com/xdstender/tender/cache/intern"
	"github.com/xdstender/tender/cache/quota"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/relay/generations"
	"github.com/xdstender/tender/relay/history"
	"github.com/xdstender/tender/relay/nodegroup"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/relay/telemetry"
	"github.com/xdstender/tender/upstream"
)

// groups assigns nodes to node groups, and keeps a view for each group (B.4). Its methods may be called from any
// goroutine.
type groups struct {
	settings    *settings
	origins     origins
	snapshots   *snapshots       // nil if snapshots are off
	journal     *history.Journal // nil if the history is off
	tracer      *telemetry.Tracer
	router      *router
	log         *slog.Logger
	cacheConfig cache.Config
	quotas      []quota.Names // by origin

	views   sync.WaitGroup
	started chan struct{} // closed once ctx is set
	ctx     context.Context

	refusals refusalLog

	mu     sync.Mutex
	byKey  map[string]*group
	quota  groupQuota
	shared map[sharedKey]*sharedView
	closed bool // wait was called
	labels *telemetry.GroupLabels

	headers snapshotHeaders               // of snapshots for peers
	given   map[snapshotKey]*viewSnapshot // the views whose state peers may take; empty without peers. Guarded by mu.
	taken   *takenState                   // the state of a peer, with which the relay began; nil without one

	decisions   *decisions
	generations *generations.Store // nil if none are kept
	rollouts    *rollouts          // nil if changes reach all clients at once
	halts       *tierHalts
	distrust    *rollbackDistrust // nil with rollouts
	envoy       *localEnvoy       // nil without TENDER_CHECK_ENVOY
	observed    func() iter.Seq[downstream.Observed]
}

// A sharedView has the xdstp names of an origin. They are the same for all nodes with equal content-affecting client
// features (R130, R143).
type sharedView struct {
	key  sharedKey
	view *cache.View
	line *generations.Line // nil if no generations are kept, or with rollouts, where each group has a line of its own
	node *corepb.Node
	stop context.CancelFunc

	control *upstream.Control
	heard   *heardView

	// Guarded by groups.mu.
	groups []*group // the groups that use the view
}

type sharedKey struct {
	origin   int
	features string
}

// snapshotName returns the group of a shared view in snapshots.
func (k sharedKey) snapshotName() string { return sharedGroup + ":" + k.features }

// label returns the group of a shared view for the admin API: its client features, or "all".
func (k sharedKey) label() string { return cmp.Or(k.features, "all") }

// A group is a node group: nodes to which an origin serves the same resources.
type group struct {
	key         string
	label       string // in metrics
	view        *cache.View
	counts      downstream.Counts
	node        *corepb.Node // presented to origins
	stop        context.CancelFunc
	sharedViews []*sharedView

	controls     []*upstream.Control // by origin
	heard        []*heardView        // by origin
	sharing      []*upstream.Control // by origin, of the copies of shared names; nil if nothing of them waits
	trackedViews []trackedView       // by origin; empty if no generations are kept
	sections     []*rollout.Section  // by source; nil without rollouts

	proxyTypeLogged atomic.Bool // a client of another Istio proxy type has been logged

	// Guarded by groups.mu.
	streams          int
	creator          *quota.Share // share of the peer that created the group; of no peer if it was restored
	idleSince        time.Time    // when the last stream was closed
	removal          *time.Timer  // removes the group once its subscriptions have expired
	firstTraits      *traits      // of the first node; nil if the group was restored and has had no node yet
	differenceLogged bool         // differences between its nodes have been logged
}

func newGroups(
	s *settings, all origins, snaps *snapshots, tracer *telemetry.Tracer, instance string, log *slog.Logger,
) *groups {
	g := &groups{
		settings:    s,
		origins:     all,
		snapshots:   snaps,
		tracer:      tracer,
		router:      newRouter(s),
		log:         log,
		cacheConfig: s.cache,
		started:     make(chan struct{}),
		refusals:    refusalLog{log: log, peerLimit: rate.Sometimes{First: 1, Interval: time.Minute}},
		byKey:       make(map[string]*group),
		quota:       newGroupQuota(s.maxGroups, s.maxGroupsPerClient),
		labels:      telemetry.NewGroupLabels(s.metricsGroups),
		shared:      make(map[sharedKey]*sharedView),
		given:       make(map[snapshotKey]*viewSnapshot),

		decisions: &decisions{snapshots: snaps, log: log},
	}
	g.cacheConfig.Interner, g.cacheConfig.FirstServed = new(intern.Pool), snaps.writeSoon
	g.decisions.mu = &g.mu
	rejected := g.decisions.load(s.originNames(), time.Now())
	g.rollouts = newRollouts(g, rejected)
	g.halts = newTierHalts(g, instance)
	g.decisions.freezeChanged = g.rollouts.freezeChanged
	g.distrust = newRollbackDistrust(g, rejected)
	g.headers = snapshotHeaders{settings: s, rolledBack: g.isRolledBack, ofPeers: true}
	if snaps != nil {
		snaps.headers.rolledBack = g.isRolledBack
	}
	for range all {
		g.quotas = append(g.quotas, quota.NewNames(quota.NewPool(s.maxOriginNames, quota.Tenth(s.maxOriginNames))))
	}
	return g
}

// maxGenerationBytes limits the memory that only earlier generations need, over all views.
const maxGenerationBytes = 64 << 20

// keepRecords enables the history of resources, and earlier generations.
func (g *groups) keepRecords() {
	if g.settings.history.Changes > 0 {
		g.journal = history.New(g.settings.history)
	}
	g.generations = generations.New(maxGenerationBytes)
}

// begin restores views from snapshots on disk. The views end with ctx. It reports whether a view was restored.
func (g *groups) begin(ctx context.Context) (restored bool) {
	g.ctx = ctx
	g.restore()
	return len(g.byKey) > 0
}

// start permits new views.
func (g *groups) start() {
	g.rollouts.start(g.ctx, len(g.byKey) == 0, &g.views)
	close(g.started)
}

// wait refuses new streams and returns when all views have ended. It stops the timers that would keep views in memory.
func (g *groups) wait() {
	g.mu.Lock()
	g.closed = true
	for _, gr := range g.byKey {
		if gr.removal != nil {
			gr.removal.Stop()
		}
	}
	g.mu.Unlock()
	g.views.Wait()
}

// Join implements downstream.Views.
func (g *groups) Join(n *corepb.Node, by downstream.Caller) (downstream.Group, error) {
	<-g.started
	// Work that grows with the size of the Node is done before the lock is taken, because all clients need the lock.
	key, upstream := nodegroup.Sort(n, proto.CloneOf(g.settings.node), g.settings.groupBy)
	var t *traits
	if g.comparesNodes(key) {
		t = traitsOf(n)
	}
	gr, differ, err := g.addStream(key, upstream, t, by.Peer)
	if err != nil {
		g.refusals.write(err, key, n, by.Peer)
		return downstream.Group{}, err
	}
	if len(differ) > 0 {
		g.log.Warn("clients of one node group differ in Node fields (TENDER_NODE_GROUP_BY)",
			slog.String("group", key), slog.String("fields", strings.Join(differ, ",")), slog.String("node", n.GetId()))
	}
	gr.warnProxyType(n, g.log)
	joined := downstream.Group{View: gr.view, Key: key, Node: gr.node,
		Leave: sync.OnceFunc(func() { g.removeStream(gr) }), Failure: gr.failure, Counts: &gr.counts}
	g.rollouts.admit(&joined, n, by)
	return joined, nil
}

// addStream adds a stream of a peer to its group, and creates the group if necessary. t are the traits of the node, or
// nil if nodes are not compared. differ lists the fields in which the node differs from the first node of the group;
// only one call per group returns them.
func (g *groups) addStream(
	key string, upstream *corepb.Node, t *traits, peer string,
) (gr *group, differ []string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, nil, status.Error(codes.Unavailable, "the relay has stopped")
	}
	gr = g.byKey[key]
	if gr == nil {
		creator, err := g.reserveGroup(key, peer)
		if err != nil {
			return nil, nil, err
		}
		gr = g.addGroup(key, upstream, creator)
	}
	if gr.firstTraits == nil {
		gr.firstTraits = t
	}
	gr.streams++
	if gr.removal != nil {
		gr.removal.Stop()
		gr.removal = nil
	}
	return gr, gr.differingFields(t, g.rollouts), nil
}

// addGroup creates a group, with a view that follows all origins. mu must be held.
func (g *groups) addGroup(key string, presented *corepb.Node, creator *quota.Share) *group {
	cfg := g.cacheConfig
	cfg.Sources, cfg.Route, cfg.Quotas = g.router.sources(), g.router.route, g.router.quotas(g.quotas)
	gr := &group{key: key, label: g.labels.Begin(key), node: presented, creator: creator}
	cfg.Fanout = gr.onFanout(g.tracer)
	cfg.Waits = g.isStagedType
	gr.sections = g.rollouts.addSections(&cfg, key)
	view, writers := cache.NewRouted(cfg)
	ctx, stop := context.WithCancel(g.ctx)
	gr.view, gr.stop = view, stop
	g.byKey[key] = gr
	log := g.log.With(slog.String("group", key))
	clock := g.newClock()
	restored := make([]restoredLine, len(writers))
	for i := range g.origins {
		for _, shared := range []bool{false, true} {
			source, name := i, key
			control := g.sharingControl(clock)
			if shared {
				source, name = g.router.sharedSource(i), sharedNamesPrefix+key
			} else {
				control = g.decisions.control(i, g.settings.origins[i].Name, key)
			}
			restored[source] = g.restoreLine(ctx, lineSource{
				origin: i, snapshotName: name, view: view, source: source, recorded: !shared || g.rollouts != nil,
				key:  generations.Key{Origin: g.settings.origins[i].Name, Group: key, Shared: shared},
				list: pending.New(writers[source], clock), control: control,
			}, presented)
		}
	}
	if g.journal != nil {
		follower := g.journal.Follow(view, key)
		g.views.Go(func() { follower.Run(ctx) }) // awaited by wait
	}
	for i, o := range g.origins {
		own, copies := restored[i], restored[g.router.sharedSource(i)]
		g.rollouts.follow(gr.sections, i, own.list, copies.list)
		s := g.sharedViewFor(i, presented.GetClientFeatures())
		s.groups = append(s.groups, gr)
		gr.sharedViews = append(gr.sharedViews, s)
		gr.heard = append(gr.heard, g.halts.hearOn(own.control, heardKey{origin: i, name: key}, s.key.features))
		g.beginRolledBack(own)
		gr.controls = append(gr.controls, own.control)
		gr.sharing = append(gr.sharing, copies.control)
		gr.track(own, rollout.SectionKey{Group: key})
		gr.track(copies, rollout.SectionKey{Group: key, Shared: true})
		// Awaited by wait.
		g.views.Go(func() { o.sync(ctx, gr.node, own.list, log, own.control) })
		g.views.Go(func() { upstream.Share(ctx, s.view, copies.list, copies.control, g.rollouts.linger(g.settings)) })
		g.rollouts.joinSections(gr.sections, i, view, own.control, copies.control)
		g.distrust.update(gr, i)
	}
	return gr
}

// newClock returns the clock that paces the changes of a group's view; nil if no type has a minimum push interval.
func (g *groups) newClock() *pending.Clock {
	if g.settings.pushInterval == nil {
		return nil
	}
	return pending.NewClock(g.settings.pushInterval)
}

// sharingControl returns the control of the shared names in a group's view; nil if none of their changes wait.
func (g *groups) sharingControl(clock *pending.Clock) *upstream.Control {
	if g.rollouts == nil && clock == nil {
		return nil
	}
	return upstream.NewControl(false, nil)
}

// failure returns the last error of an origin of the group's view, or nil.
func (gr *group) failure() error {
	for _, c := range gr.controls {
		if err := c.Failure(); err != nil {
			return err
		}
	}
	return nil
}

// onFanout returns the callback for completed fan-outs of the group's view.
func (gr *group) onFanout(tracer *telemetry.Tracer) func(*fanout.Fanout) {
	if tracer == nil {
		return gr.counts.Followed
	}
	return func(f *fanout.Fanout) {
		gr.counts.Followed(f)
		tracer.EndFanout(f)
	}
}

// sharedViewFor returns the shared view of an origin for groups with these content-affecting features, and creates it
// if necessary. mu must be held.
func (g *groups) sharedViewFor(origin int, features []string) *sharedView {
	node := sharedNode(g.settings.node, features)
	key := sharedKey{origin, strings.Join(features, ",")}
	s := g.shared[key]
	if s == nil {
		cfg := g.cacheConfig
		cfg.Sources, cfg.Route, cfg.Quotas = 2, namesOnly, []quota.Names{g.quotas[origin], {}}
		cfg.Waits = g.isStagedType
		view, writers := cache.NewRouted(cfg)
		ctx, stop := context.WithCancel(g.ctx)
		s = &sharedView{key: key, view: view, node: node, stop: stop}
		s.control = g.decisions.control(origin, g.settings.origins[origin].Name, key.snapshotName()).WithoutClients()
		s.heard = g.halts.hearOn(s.control, heardKey{origin: origin, name: key.features, shared: true}, "")
		g.shared[key] = s
		restored := g.restoreLine(ctx, lineSource{
			origin: origin, snapshotName: key.snapshotName(), view: view, recorded: g.rollouts == nil,
			key:  generations.Key{Origin: g.settings.origins[origin].Name, Group: key.label(), Shared: true},
			list: pending.New(writers[0], nil), control: s.control,
		}, node)
		s.line = restored.line
		g.beginRolledBack(restored)
		o, log := g.origins[origin], g.log.With(slog.String("group", sharedGroup))
		// Awaited by wait.
		g.views.Go(func() { o.sync(ctx, s.node, restored.list, log, s.control) })
	}
	return s
}

// sharedGroup is the group name of shared views in the log.
const sharedGroup = "xdstp"

// sharedNode returns the Node that the relay presents to an origin for shared names, which depend on client features
// only.
func sharedNode(relayNode *corepb.Node, features []string) *corepb.Node {
	node := proto.CloneOf(relayNode)
	node.Id = nodegroup.FillID(relayNode.GetId(), relayNode)
	node.ClientFeatures = features
	return node
}

// sharedGroupOf returns the group of the shared view for clients with these content-affecting features. No node group
// has this key.
func sharedGroupOf(features []string) string { return sharedGroup + ":" + strings.Join(features, ",") }

// isSharedGroup reports whether the group of a snapshot is that of a shared view.
func isSharedGroup(group string) bool { return strings.HasPrefix(group, sharedGroupOf(nil)) }

// namesOnly is the route of a shared view: names and collections belong to source 0. Wildcard sets belong to node
// groups, so source 1, which would have them, stays empty.
func namesOnly(_, name string) int {
	if name == "" {
		return 1
	}
	return 0
}

// removeStream removes a stream from its group. A group without streams is kept while its subscriptions linger.
func (g *groups) removeStream(gr *group) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if gr.streams--; gr.streams == 0 {
		g.scheduleRemoval(gr)
	}
}

// scheduleRemoval schedules the removal of a group without streams, once its unused subscriptions have expired. mu must
// be held.
func (g *groups) scheduleRemoval(gr *group) {
	gr.idleSince = time.Now()
	if g.closed {
		return
	}
	var idle *time.Timer // identifies this period without streams
	idle = time.AfterFunc(2*upstream.WildcardLinger(g.settings.linger), func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		switch {
		case gr.removal != idle: // a stream joined meanwhile
		case g.decisions.anyFrozen() || g.rollouts.anyOpen(): // returning clients need the frozen state
			idle.Reset(2 * upstream.WildcardLinger(g.settings.linger))
		default:
			g.remove(gr, false)
		}
	})
	gr.removal = idle
}

// remove removes a group. The snapshots of an evicted group are kept for returning clients. mu must be held.
func (g *groups) remove(gr *group, evicted bool) {
	if g.byKey[gr.key] == gr {
		delete(g.byKey, gr.key)
		g.refusals.hasRoom()
	}
	gr.creator.Release()
	g.labels.End(gr.label, gr.counts.Types())
	g.rollouts.leaveSections(gr.sections)
	gr.stop()
	for i, s := range gr.sharedViews {
		g.halts.leave(gr.heard[i])
		g.snapshots.drop(i, gr.key, gr.creator.Peer(), evicted)
		delete(g.given, snapshotKey{g.settings.origins[i].Name, gr.key})
		delete(g.given, snapshotKey{g.settings.origins[i].Name, sharedNamesPrefix + gr.key})
		s.groups = slices.DeleteFunc(s.groups, func(other *group) bool { return other == gr })
		if len(s.groups) == 0 {
			delete(g.shared, s.key)
			s.stop()
			g.halts.leave(s.heard)
			g.snapshots.drop(s.key.origin, s.key.snapshotName(), gr.creator.Peer(), evicted)
			delete(g.given, snapshotKey{g.settings.origins[s.key.origin].Name, s.key.snapshotName()})
		}
	}
	gr.sharedViews = nil
}
