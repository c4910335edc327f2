package relay

import (
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
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/relay/history"
	"github.com/xdstender/tender/relay/nodegroup"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/relay/telemetry"
	"github.com/xdstender/tender/upstream"
)

// groups sorts nodes into groups, and keeps a view for each (B.4). Its methods may
// be called from any goroutine.
type groups struct {
	cfg     Config
	own     *corepb.Node // what the relay says of itself
	origins origins
	saved   *snapshots       // nil if none are kept
	changes *history.Journal // likewise
	tracer  *telemetry.Tracer
	router  *router
	log     *slog.Logger
	cached  cache.Config
	quotas  []cache.Quota // by origin

	views     sync.WaitGroup
	operating chan struct{} // one slot, taken by the operator's command that is being carried out

	started chan struct{} // closed once ctx is set
	ctx     context.Context

	refusing atomic.Bool    // that groups are refused was logged, since one was last removed
	crowded  rate.Sometimes // that a peer has too many is logged

	mu       sync.Mutex
	byKey    map[string]*group
	founders founders
	shared   map[sharedKey]*sharedView
	closed   bool // wait was called

	decisions *decisions // of operators
	rollouts  *rollouts  // nil if changes reach all clients at once
	observed  func() iter.Seq[downstream.Observed]
}

// A sharedView is what an origin says of names that mean the same to every node, if
// only the node's features change what it must generate (R130, R143).
type sharedView struct {
	key  sharedKey
	view *cache.View
	node *corepb.Node
	stop context.CancelFunc

	control *upstream.Control

	// Guarded by groups.mu.
	groups []*group // that take part
}

type sharedKey struct {
	origin   int
	features string
}

// saved returns what snapshots call the group of a shared view.
func (k sharedKey) saved() string { return sharedGroup + ":" + k.features }

// A group is the nodes that the origin tells the same.
type group struct {
	key    string
	view   *cache.View
	counts downstream.Counts
	node   *corepb.Node // whom the origins take the relay for
	stop   context.CancelFunc
	shares []*sharedView

	controls []*upstream.Control // by origin
	parts    []*rollout.Part     // by source; nil without rollouts

	// Guarded by groups.mu.
	streams int
	founder *cache.Share // of the groups of the peer that founded it; of nobody's if it was restored
	left    time.Time    // when the last stream did
	idle    *time.Timer  // ends the group once its view has given up everything
	first   *traits      // of the first node; nil if none has come, since the group was restored
	warned  bool         // that the nodes differ
}

// traits are what an origin may look at in a node beside the group's key, each as a sum that equal ones have in common:
// a group keeps those of its first node.
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
		cached:   cache.Config{Interner: new(cache.Interner), TombstoneAge: 2 * (cfg.AckWait + cfg.SendStall), Began: saved.soon},
		started:  make(chan struct{}),
		crowded:  rate.Sometimes{First: 1, Interval: time.Minute},
		byKey:    make(map[string]*group),
		founders: newFounders(&cfg),
		shared:   make(map[sharedKey]*sharedView),

		operating: make(chan struct{}, 1),
		decisions: &decisions{saved: saved, log: log},
	}
	g.decisions.load(cfg.OriginNames(), time.Now())
	g.rollouts = newRollouts(g)
	for range all {
		g.quotas = append(g.quotas, cache.NewQuota(cfg.MaxOriginNames))
	}
	if cfg.VersionSource == VersionsOfOrigin {
		g.cached.VersionSource = cache.FromOrigin
	}
	return g
}

// start lets views be kept until ctx ends, and begins with those of which there is a
// snapshot. It reports whether there was one.
func (g *groups) start(ctx context.Context) (restored bool) {
	g.ctx = ctx
	g.restore()
	restored = len(g.byKey) > 0
	g.rollouts.start(ctx, !restored, &g.views)
	close(g.started)
	return restored
}

// wait returns when no view is kept any more, and none will be.
func (g *groups) wait() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.views.Wait()
}

// Join implements downstream.Views.
func (g *groups) Join(n *corepb.Node, by downstream.Caller) (downstream.Group, error) {
	<-g.started
	// All that takes longer the larger the Node is comes before the lock, which all clients need.
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
	joined := downstream.Group{View: gr.view, Key: key, Node: gr.node, Leave: sync.OnceFunc(func() { g.leave(gr) }), Failure: gr.failure, Counts: &gr.counts}
	g.rollouts.admit(&joined, n, by)
	return joined, nil
}

// compares reports whether it is to be found out in what the nodes of a group differ.
func (g *groups) compares(key string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	gr := g.byKey[key]
	return gr == nil || !gr.warned
}

// enter counts a stream of a node with these traits, nil if they do not matter, which came from a peer, into its group,
// which it makes if there is none. The first time that the node differs from the group's first one, it says in what.
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

func (g *groups) add(key string, presented *corepb.Node, founder *cache.Share) *group {
	cfg := g.cached
	cfg.Sources, cfg.Route, cfg.Quotas = g.router.sources(), g.router.route, g.router.quotas(g.quotas)
	gr := &group{key: key, node: presented, founder: founder}
	cfg.Fanout = g.followed(gr)
	gr.parts = g.rollouts.shape(&cfg, key)
	view, writers := cache.NewRouted(cfg)
	ctx, stop := context.WithCancel(g.ctx)
	gr.view, gr.stop = view, stop
	g.byKey[key] = gr
	log := g.log.With(slog.String("group", key))
	for i := range g.origins {
		g.saved.keep(i, key, presented, writers[i])
		g.saved.keep(i, commonGroup+key, presented, writers[g.router.shared(i)])
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
		// Awaited by wait.
		control := g.decisions.control(i, g.cfg.OriginName(i), key)
		gr.controls = append(gr.controls, control)
		sharing := g.rollouts.newControl()
		g.views.Go(func() { o.mirror(ctx, gr.node, own, log, control) })
		g.views.Go(func() { upstream.Share(ctx, s.view, common, sharing, g.rollouts.linger(&g.cfg)) })
		g.rollouts.join(gr.parts, i, view, control, sharing)
	}
	return gr
}

// failure returns why the last request of the group's view to an origin failed, of the first origin that has failed.
func (gr *group) failure() error {
	for _, c := range gr.controls {
		if err := c.Failure(); err != nil {
			return err
		}
	}
	return nil
}

// followed returns the function that receives the finished fan-outs of a group's view.
func (g *groups) followed(gr *group) func(*cache.Fanout) {
	if g.tracer == nil {
		return gr.counts.Followed
	}
	return func(f *cache.Fanout) {
		gr.counts.Followed(f)
		g.tracer.Over(f)
	}
}

// share returns the view of the names of an origin that all groups share that have
// the same content-affecting features.
func (g *groups) share(origin int, features []string) *sharedView {
	node := sharedNode(g.own, features)
	key := sharedKey{origin, strings.Join(features, ",")}
	s := g.shared[key]
	if s == nil {
		cfg := g.cached
		cfg.Sources, cfg.Route, cfg.Quotas = 2, namesOnly, []cache.Quota{g.quotas[origin], {}}
		view, writers := cache.NewRouted(cfg)
		ctx, stop := context.WithCancel(g.ctx)
		s = &sharedView{key: key, view: view, node: node, stop: stop}
		s.control = g.decisions.control(origin, g.cfg.OriginName(origin), key.saved())
		g.shared[key] = s
		g.saved.keep(origin, key.saved(), node, writers[0])
		o, log := g.origins[origin], g.log.With(slog.String("group", sharedGroup))
		// Awaited by wait.
		g.views.Go(func() { o.mirror(ctx, s.node, writers[0], log, s.control) })
	}
	return s
}

// sharedGroup is what the log calls whoever has a part in a shared view.
const sharedGroup = "xdstp"

// sharedNode returns the node that the relay presents to an origin for names that depend on client features only.
func sharedNode(own *corepb.Node, features []string) *corepb.Node {
	node := proto.CloneOf(own)
	node.Id = nodegroup.FillID(own.GetId(), own)
	node.ClientFeatures = features
	return node
}

// sharedGroupOf returns the key of the clients with the same content-affecting features, which share names that mean
// the same to every node. No node group has such a key.
func sharedGroupOf(features []string) string { return sharedGroup + ":" + strings.Join(features, ",") }

func isShared(group string) bool { return strings.HasPrefix(group, sharedGroupOf(nil)) }

// namesOnly routes a shared view: its one origin has names and collections. The members of types belong to node groups,
// so no source of the view has them.
func namesOnly(_, name string) int {
	if name == "" {
		return 1
	}
	return 0
}

// leave counts a stream out. A group without streams is kept for as long as its
// subscriptions linger.
func (g *groups) leave(gr *group) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if gr.streams--; gr.streams == 0 {
		g.abandon(gr)
	}
}

// abandon marks a group as having no streams, and removes it once its subscriptions have lingered out.
func (g *groups) abandon(gr *group) {
	gr.left = time.Now()
	var idle *time.Timer // of this time that nobody is there
	idle = time.AfterFunc(2*g.cfg.WildcardLinger, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		switch {
		case gr.idle != idle: // somebody was there meanwhile
		case g.anyFrozen() || g.rollouts.open(): // those who come back are to find what there was
			idle.Reset(2 * g.cfg.WildcardLinger)
		default:
			g.remove(gr, false)
		}
	})
	gr.idle = idle
}

// remove removes a group. Its snapshots stay if it is evicted.
func (g *groups) remove(gr *group, evicted bool) {
	if g.byKey[gr.key] == gr {
		delete(g.byKey, gr.key)
		g.refusing.Store(false)
	}
	gr.founder.Give()
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

// compare returns, once for a group, in which fields that an origin may look at a
// node differs from the group's first: the origin sees only the node that the
// relay presents. What rollouts select clients by is set for the relay, and does not count.
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

func traitsOf(n *corepb.Node) *traits {
	prefix, _, found := strings.Cut(n.GetId(), "~")
	if !found {
		prefix = ""
	}
	return &traits{maphash.String(traitSeed, prefix), maphash.String(traitSeed, n.GetCluster()), traitOf(n.GetLocality()), traitOf(n.GetMetadata())}
}

// traitOf returns the sum of a message that equal ones have in common within one process.
func traitOf(m proto.Message) uint64 {
	encoded, _ := proto.MarshalOptions{Deterministic: true}.Marshal(m) // which was decoded, so it can be encoded
	return maphash.Bytes(traitSeed, encoded)
}
