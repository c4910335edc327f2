package relay

import (
	"cmp"
	"context"
	"hash/maphash"
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
	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/intern"
	"github.com/xdstender/tender/cache/quota"
	"github.com/xdstender/tender/downstream"
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
	cfg     Config
	own     *corepb.Node // the relay's own Node
	origins origins
	saved   *snapshots       // nil if snapshots are off
	changes *history.Journal // nil if the history is off
	tracer  *telemetry.Tracer
	router  *router
	log     *slog.Logger
	cached  cache.Config
	quotas  []quota.Names // by origin

	views     sync.WaitGroup
	operating chan struct{} // one slot, held by the operator command that runs

	started chan struct{} // closed once ctx is set
	ctx     context.Context

	refusing atomic.Bool    // a rejected group was logged since one was last removed
	crowded  rate.Sometimes // limits log messages about peers with too many groups

	mu       sync.Mutex
	byKey    map[string]*group
	founders founders
	shared   map[sharedKey]*sharedView
	closed   bool // wait was called
	labels   *telemetry.GroupLabels

	decisions *decisions         // of operators
	earlier   *generations.Store // nil if none are kept
	rollouts  *rollouts          // nil if changes reach all clients at once
	observed  func() iter.Seq[downstream.Observed]
}

// A sharedView has the xdstp names of an origin, which are the same for all nodes with equal content-affecting client
// features (R130, R143).
type sharedView struct {
	key  sharedKey
	view *cache.View
	line *generations.Line // nil if none is kept; or with rollouts, as groups have their own
	node *corepb.Node
	stop context.CancelFunc

	control *upstream.Control

	// Guarded by groups.mu.
	groups []*group // groups that use the view
}

type sharedKey struct {
	origin   int
	features string
}

// saved returns the name of a shared view in snapshots.
func (k sharedKey) saved() string { return sharedGroup + ":" + k.features }

// shown returns what people are shown as the group of a shared view.
func (k sharedKey) shown() string { return cmp.Or(k.features, "all") }

// A group is a node group: the nodes that an origin serves the same resources.
type group struct {
	key    string
	label  string // of metrics
	view   *cache.View
	counts downstream.Counts
	node   *corepb.Node // presented to origins
	stop   context.CancelFunc
	shares []*sharedView

	controls []*upstream.Control // by origin
	tracked  []tracked           // by origin: what generations are kept of; none without
	parts    []*rollout.Part     // by source; nil without rollouts

	otherType atomic.Bool // a client of another Istio proxy type was logged

	// Guarded by groups.mu.
	streams int
	founder *quota.Share // the quota of the peer that created the group; of no peer if it was restored
	left    time.Time    // when the last stream ended
	idle    *time.Timer  // removes the group once its subscriptions have expired
	first   *traits      // of the first node; nil if the group was restored and has had no node yet
	warned  bool         // differences between its nodes were logged
}

// traits are hashes of the Node fields that an origin may use and that are not part of the group's key. A group keeps
// the traits of its first node.
type traits [4]uint64

// traitNames are the fields of the traits.
var traitNames = [...]string{"id", "cluster", "locality", "metadata"}

var traitSeed = maphash.MakeSeed()

func newGroups(cfg Config, own *corepb.Node, all origins, saved *snapshots, tracer *telemetry.Tracer, log *slog.Logger) *groups {
	g := &groups{
		cfg:      cfg,
		own:      own,
		origins:  all,
		saved:    saved,
		tracer:   tracer,
		router:   newRouter(cfg),
		log:      log,
		cached:   cache.Config{Interner: new(intern.Pool), TombstoneAge: 2 * (cfg.AckWait + cfg.SendStall), FirstServed: saved.soon},
		started:  make(chan struct{}),
		crowded:  rate.Sometimes{First: 1, Interval: time.Minute},
		byKey:    make(map[string]*group),
		founders: newFounders(&cfg),
		labels:   telemetry.NewGroupLabels(cfg.MetricsGroups),
		shared:   make(map[sharedKey]*sharedView),

		operating: make(chan struct{}, 1),
		decisions: &decisions{saved: saved, log: log},
	}
	g.decisions.load(cfg.OriginNames(), time.Now())
	g.rollouts = newRollouts(g)
	g.rollbackDistrust().adoptRejected()
	if saved != nil {
		saved.rolledBack = g.groupGenerations().rolledBack
	}
	for range all {
		g.quotas = append(g.quotas, quota.NewNames(quota.NewPool(cfg.MaxOriginNames, quota.Tenth(cfg.MaxOriginNames))))
	}
	if cfg.VersionSource == VersionsOfOrigin {
		g.cached.VersionSource = fingerprint.FromOrigin
	}
	return g
}

// keepRecords keeps the history of resources and earlier generations, which only operators read.
func (g *groups) keepRecords() {
	if g.cfg.History > 0 {
		g.changes = history.New(history.Config{Changes: g.cfg.History, Bytes: int64(g.cfg.MaxHistoryBytes)})
	}
	if g.cfg.MaxGenerationBytes > 0 {
		g.earlier = generations.New(int64(g.cfg.MaxGenerationBytes))
	}
}

// start restores views from snapshots, and permits new views until ctx ends. It reports whether a view was restored.
func (g *groups) start(ctx context.Context) (restored bool) {
	g.ctx = ctx
	g.restore()
	restored = len(g.byKey) > 0
	g.rollouts.start(ctx, !restored, &g.views)
	close(g.started)
	return restored
}

// wait rejects new views, and returns when all views have ended. No timer keeps a view in memory after that.
func (g *groups) wait() {
	g.mu.Lock()
	g.closed = true
	for _, gr := range g.byKey {
		if gr.idle != nil {
			gr.idle.Stop()
		}
	}
	g.mu.Unlock()
	g.views.Wait()
}

// Join implements downstream.Views.
func (g *groups) Join(n *corepb.Node, by downstream.Caller) (downstream.Group, error) {
	<-g.started
	// Work that grows with the size of the Node is done before the lock is taken, which all clients need.
	key, upstream := nodegroup.Sort(n, proto.CloneOf(g.own), g.cfg.NodeGroupBy)
	var t *traits
	if g.compares(key) {
		t = traitsOf(n)
	}
	gr, differ, err := g.enter(key, upstream, t, by.Peer)
	if err != nil {
		g.refused(err, key, n, by.Peer)
		return downstream.Group{}, err
	}
	if len(differ) > 0 {
		g.log.Warn("clients of one node group differ in fields that the control plane does not see; add them to TENDER_NODE_GROUP_BY if it uses them",
			slog.String("group", key), slog.String("fields", strings.Join(differ, ",")), slog.String("node", n.GetId()))
	}
	if own, of := proxyType(gr.node.GetId()), proxyType(n.GetId()); own != of && own != "" && of != "" && gr.otherType.CompareAndSwap(false, true) {
		g.log.Warn("client has another Istio proxy type than the relay; istiod sends each type its own configuration: run a relay for each type",
			slog.String("group", key), slog.String("node", n.GetId()), slog.String("client_type", of), slog.String("relay_type", own))
	}
	joined := downstream.Group{View: gr.view, Key: key, Node: gr.node, Leave: sync.OnceFunc(func() { g.leave(gr) }), Failure: gr.failure, Counts: &gr.counts}
	g.rollouts.admit(&joined, n, by)
	return joined, nil
}

// compares reports whether the nodes of a group are still compared.
func (g *groups) compares(key string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	gr := g.byKey[key]
	return gr == nil || !gr.warned
}

// enter adds a stream of a peer to its group, and creates the group if necessary. t are the traits of its node; nil if
// nodes are not compared. differ are the fields in which a node differs from the first node of the group; they are
// returned once.
func (g *groups) enter(key string, upstream *corepb.Node, t *traits, peer string) (gr *group, differ []string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, nil, status.Error(codes.Unavailable, "the relay has stopped")
	}
	gr = g.byKey[key]
	if gr == nil {
		founder, err := g.found(key, peer)
		if err != nil {
			return nil, nil, err
		}
		gr = g.add(key, upstream, founder)
	}
	if gr.first == nil {
		gr.first = t
	}
	gr.streams++
	if gr.idle != nil {
		gr.idle.Stop()
		gr.idle = nil
	}
	return gr, gr.compare(t, g.rollouts), nil
}

func (g *groups) add(key string, presented *corepb.Node, founder *quota.Share) *group {
	cfg := g.cached
	cfg.Sources, cfg.Route, cfg.Quotas = g.router.sources(), g.router.route, g.router.quotas(g.quotas)
	gr := &group{key: key, label: g.labels.Begin(key), node: presented, founder: founder}
	cfg.Fanout = g.followed(gr)
	cfg.Waits = g.waits
	if len(g.cfg.MinPushInterval) > 0 {
		cfg.PushInterval = g.cfg.MinPushInterval.Of
	}
	gr.parts = g.rollouts.shape(&cfg, key)
	view, writers := cache.NewRouted(cfg)
	ctx, stop := context.WithCancel(g.ctx)
	gr.view, gr.stop = view, stop
	g.byKey[key] = gr
	log := g.log.With(slog.String("group", key))
	restored := make([]restoredLine, len(writers))
	for i := range g.origins {
		for _, shared := range []bool{false, true} {
			source, saved := i, key
			if shared {
				source, saved = g.router.shared(i), commonGroup+key
			}
			restored[source] = g.groupGenerations().restoreLine(ctx, lineOf{origin: i, saved: saved, key: generations.Key{Origin: g.cfg.OriginName(i), Group: key, Shared: shared},
				view: view, source: source, kept: !shared || g.rollouts != nil}, presented, writers[source])
		}
	}
	if g.changes != nil {
		follower := g.changes.Follow(view, key)
		g.views.Go(func() { follower.Run(ctx) }) // awaited by wait
	}
	for i, o := range g.origins {
		own, common := writers[i], writers[g.router.shared(i)]
		s := g.share(i, presented.GetClientFeatures())
		s.groups = append(s.groups, gr)
		gr.shares = append(gr.shares, s)
		control := g.decisions.control(i, g.cfg.OriginName(i), key)
		g.groupGenerations().beginRolledBack(i, control, restored[i])
		gr.controls = append(gr.controls, control)
		sharing := g.rollouts.newControl()
		gr.track(i, control, restored[i], rollout.PartKey{Group: key})
		gr.track(i, sharing, restored[g.router.shared(i)], rollout.PartKey{Group: key, Shared: true})
		// Awaited by wait.
		g.views.Go(func() { o.sync(ctx, gr.node, own, log, control) })
		g.views.Go(func() { upstream.Share(ctx, s.view, common, sharing, g.rollouts.linger(&g.cfg)) })
		g.rollouts.join(gr.parts, i, view, control, sharing)
		g.rollbackDistrust().distrust(gr, i)
	}
	return gr
}

// failure returns the last error of the first origin that failed for the group's view.
func (gr *group) failure() error {
	for _, c := range gr.controls {
		if err := c.Failure(); err != nil {
			return err
		}
	}
	return nil
}

// followed returns the function that receives finished fan-outs of a group's view.
func (g *groups) followed(gr *group) func(*fanout.Fanout) {
	if g.tracer == nil {
		return gr.counts.Followed
	}
	return func(f *fanout.Fanout) {
		gr.counts.Followed(f)
		g.tracer.Over(f)
	}
}

// share returns the shared view of an origin for groups with these content-affecting features.
func (g *groups) share(origin int, features []string) *sharedView {
	node := sharedNode(g.own, features)
	key := sharedKey{origin, strings.Join(features, ",")}
	s := g.shared[key]
	if s == nil {
		cfg := g.cached
		cfg.Sources, cfg.Route, cfg.Quotas = 2, namesOnly, []quota.Names{g.quotas[origin], {}}
		cfg.Waits = g.waits
		view, writers := cache.NewRouted(cfg)
		ctx, stop := context.WithCancel(g.ctx)
		s = &sharedView{key: key, view: view, node: node, stop: stop}
		s.control = g.decisions.control(origin, g.cfg.OriginName(origin), key.saved())
		g.shared[key] = s
		restored := g.groupGenerations().restoreLine(ctx, lineOf{origin: origin, saved: key.saved(), key: generations.Key{Origin: g.cfg.OriginName(origin), Group: key.shown(), Shared: true},
			view: view, kept: g.rollouts == nil}, node, writers[0])
		s.line = restored.line
		g.groupGenerations().beginRolledBack(origin, s.control, restored)
		o, log := g.origins[origin], g.log.With(slog.String("group", sharedGroup))
		// Awaited by wait.
		g.views.Go(func() { o.sync(ctx, s.node, writers[0], log, s.control) })
	}
	return s
}

// sharedGroup is the group name of shared views in the log.
const sharedGroup = "xdstp"

// sharedNode returns the node that the relay presents to an origin for names that depend on client features only.
func sharedNode(own *corepb.Node, features []string) *corepb.Node {
	node := proto.CloneOf(own)
	node.Id = nodegroup.FillID(own.GetId(), own)
	node.ClientFeatures = features
	return node
}

// sharedGroupOf returns the key of clients with these content-affecting features, which use one shared view. No node
// group has such a key.
func sharedGroupOf(features []string) string { return sharedGroup + ":" + strings.Join(features, ",") }

func isShared(group string) bool { return strings.HasPrefix(group, sharedGroupOf(nil)) }

// namesOnly routes a shared view: source 0 has names and collections. Wildcard sets belong to node groups, so the source
// for them has none.
func namesOnly(_, name string) int {
	if name == "" {
		return 1
	}
	return 0
}

// leave removes a stream from its group. A group without streams is kept while its subscriptions linger.
func (g *groups) leave(gr *group) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if gr.streams--; gr.streams == 0 {
		g.abandon(gr)
	}
}

// abandon schedules the removal of a group without streams, after its subscriptions have expired.
func (g *groups) abandon(gr *group) {
	gr.left = time.Now()
	if g.closed {
		return
	}
	var idle *time.Timer // identifies this period without streams
	idle = time.AfterFunc(2*g.cfg.WildcardLinger, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		switch {
		case gr.idle != idle: // there was a stream meanwhile
		case g.anyFrozen() || g.rollouts.open(): // returning clients need the frozen state
			idle.Reset(2 * g.cfg.WildcardLinger)
		default:
			g.remove(gr, false)
		}
	})
	gr.idle = idle
}

// remove removes a group. If it is evicted, its snapshots stay.
func (g *groups) remove(gr *group, evicted bool) {
	if g.byKey[gr.key] == gr {
		delete(g.byKey, gr.key)
		g.refusing.Store(false)
	}
	gr.founder.Release()
	g.labels.End(gr.label, gr.counts.Types())
	g.rollouts.leave(gr.parts)
	gr.stop()
	for i, s := range gr.shares {
		g.saved.drop(i, gr.key, gr.founder.Peer(), evicted)
		s.groups = slices.DeleteFunc(s.groups, func(other *group) bool { return other == gr })
		if len(s.groups) == 0 {
			delete(g.shared, s.key)
			s.stop()
			g.saved.drop(s.key.origin, s.key.saved(), gr.founder.Peer(), evicted)
		}
	}
	gr.shares = nil
}

// compare returns, once for a group, the fields in which a node differs from the first node of the group. An origin that
// uses them sees only the Node that the relay presents. Fields that select clients for rollouts do not count: the origin
// does not use them.
func (gr *group) compare(t *traits, by *rollouts) (differ []string) {
	if gr.warned || t == nil {
		return nil
	}
	for i, name := range traitNames {
		if gr.first[i] != t[i] && !by.selectsBy(name) {
			differ = append(differ, name)
		}
	}
	gr.warned = len(differ) > 0
	return differ
}

// proxyType returns the Istio proxy type in a node ID, such as sidecar or router; empty if the ID is not in Istio's form.
func proxyType(id string) string {
	prefix, _, found := strings.Cut(id, "~")
	if !found {
		return ""
	}
	return prefix
}

func traitsOf(n *corepb.Node) *traits {
	return &traits{maphash.String(traitSeed, proxyType(n.GetId())), maphash.String(traitSeed, n.GetCluster()), traitOf(n.GetLocality()), traitOf(n.GetMetadata())}
}

// traitOf returns a hash of a message, which is equal for equal messages within one process.
func traitOf(m proto.Message) uint64 {
	encoded, _ := proto.MarshalOptions{Deterministic: true}.Marshal(m) // a decoded message can always be encoded
	return maphash.Bytes(traitSeed, encoded)
}
