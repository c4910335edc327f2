package rollout

import (
	"context"
	"io"
	"iter"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
	"github.com/xdstender/tender/upstream/reconcile"
)

// A relayed is a controller with node groups, which have a part each, and a server for their clients. It runs in a
// bubble.
type relayed struct {
	*Controller
	t      *testing.T
	stages Stages
	server *downstream.Server
	views  map[string]*cache.View // by group
	groups []*group
}

// A group is a node group, with the loop that writes its state.
type group struct {
	w       *cache.Writer
	control *upstream.Control
	before  func() // is called before each edit; may be nil
}

func (g *group) Operate(reconcile.Command) []reconcile.Hold { return nil }
func (g *group) Writer() *cache.Writer                      { return g.w }
func (g *group) Keep([]reconcile.Hold)                      {}

// run executes edits until the test ends.
func (g *group) run(ctx context.Context) {
	defer g.control.End()
	for {
		select {
		case call := <-g.control.Calls():
			if g.before != nil {
				g.before()
			}
			call(g)
		case <-ctx.Done():
			return
		}
	}
}

// newRelayed returns a controller that nothing runs yet, with node groups, a server for clients, and listener a in
// version 1.
func newRelayed(t *testing.T, shape string, groups ...string) *relayed {
	r := &relayed{t: t, stages: stages(t, shape), views: make(map[string]*cache.View)}
	waits := func(typeURL string) bool { return typeURL == listeners }
	r.Controller = NewController(ControllerConfig{
		Config: Config{Stages: r.stages}, Origin: "default", Waits: waits, Logger: slog.New(slog.DiscardHandler),
		Observed: func() iter.Seq[downstream.Observed] { return r.server.Observed() },
		Frozen:   func() bool { return false },
		Decided:  func(context.Context) {},
		Changed:  func(*Status, *Status) {},
	}, nil)
	r.server = check.Must(downstream.New(downstream.Config{Views: r}))
	for _, key := range groups {
		part := r.NewPart(PartKey{Group: key})
		g := &group{control: upstream.NewControl(false, nil)}
		r.views[key], g.w = cache.New(cache.Config{Cohorts: len(r.stages), Waits: waits, Waiting: func(_ int, now cache.Waiting) { part.SetWaiting(now) }})
		g.w.SetConnected(true)
		g.put(t, "a", "1")
		g.w.SetPhase(listeners, cache.Confirmed)
		part.Join(r.views[key], 0, g.control)
		r.groups = append(r.groups, g)
		go g.run(t.Context())
	}
	return r
}

// Join implements [downstream.Views]: the group of a Node is its cluster.
func (r *relayed) Join(n *corepb.Node, by downstream.Caller) (downstream.Group, error) {
	key, cohort := n.GetCluster(), r.stages.Cohort(n, by.Relay)
	o := Observe(Client{Node: n.GetId(), Peer: by.Peer, Cohort: cohort}, key, []*Controller{r.Controller})
	return downstream.Group{View: r.views[key].Cohort(cohort), Key: key, Leave: o.Ended, Observer: o}, nil
}

// put has the origin change a listener. Only the loop may call it, once that runs.
func (g *group) put(t *testing.T, name, version string) {
	content := check.Must(proto.Marshal(&listenerpb.Listener{Name: name, StatPrefix: version}))
	r := check.Must(wire.NewResource(listeners, name, version, content))
	g.w.Apply(cache.Wildcard, wire.Update{TypeURL: listeners, Resources: []*wire.Resource{r}})
}

// change is put for all groups.
func (r *relayed) change(name, version string) {
	for _, g := range r.groups {
		g.control.Edit(r.t.Context(), func(*cache.Writer) { g.put(r.t, name, version) })
	}
}

// A proxy is a client without a transport, which subscribes to all listeners and answers each response at once.
type proxy struct {
	grpc.ServerStream
	ctx      context.Context
	requests chan wire.Request
	refuses  atomic.Bool
	sent     atomic.Int32
}

func (p *proxy) Context() context.Context { return p.ctx }

func (p *proxy) SendMsg(m any) error {
	p.sent.Add(1)
	r := wire.Request{Delta: true, TypeURL: listeners, Nonce: m.(*wire.Response).Nonce}
	if p.refuses.Load() {
		r.Refused, r.ErrorCode, r.ErrorMessage = true, int32(codes.InvalidArgument), "bad"
	}
	p.requests <- r
	return nil
}

func (p *proxy) RecvMsg(m any) error {
	r, more := <-p.requests
	if !more {
		return io.EOF
	}
	*m.(*wire.Request) = r
	return nil
}

// aggregated finds the handler of Delta ADS.
type aggregated struct{ serve grpc.StreamHandler }

func (a *aggregated) RegisterService(desc *grpc.ServiceDesc, _ any) {
	for _, s := range desc.Streams {
		if s.StreamName == "DeltaAggregatedResources" {
			a.serve = s.Handler
		}
	}
}

// connect serves a proxy until the test ends.
func (r *relayed) connect(node, group string) *proxy {
	p := &proxy{ctx: r.t.Context(), requests: make(chan wire.Request, 100)}
	raw := check.Must(proto.Marshal(&corepb.Node{Id: node, Cluster: group}))
	p.requests <- wire.Request{Delta: true, TypeURL: listeners, Node: raw, Subscribe: []string{"*"}}
	var ads aggregated
	r.server.Register(&ads)
	done := make(chan error, 1)
	go func() { done <- ads.serve(r.server, p) }()
	r.t.Cleanup(func() {
		close(p.requests)
		if err := <-done; err != nil {
			r.t.Errorf("the stream of %s ended with %v", node, err)
		}
	})
	return p
}

// TestI14_ARefusalCountsBeforeAllGroupsAreServed: a client answers while other node groups are not served the edition
// yet.
func TestI14_ARefusalCountsBeforeAllGroupsAreServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRelayed(t, "id=canary* 10m", "first", "second")
		canary := r.connect("canary", "first")
		time.Sleep(time.Second)
		canary.refuses.Store(true)
		r.groups[1].before = synctest.Wait // the canary has answered what the first group was shown
		go r.Run(t.Context(), false)
		r.change("a", "2")
		time.Sleep(quietTime + time.Second)
		if s := r.Status(); s.Phase != Halted || canary.sent.Load() != 3 {
			t.Errorf("the state is %v with %d refusals, after %d responses; want halted, after 3", s.Phase, len(s.Refusals), canary.sent.Load())
		}
	})
}

// TestClientsAreObservedOnceASecond while an edition is served, however often something happens.
func TestClientsAreObservedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRelayed(t, "id=canary* 10m", "group")
		looks, observed := 0, r.cfg.Observed
		r.cfg.Observed = func() iter.Seq[downstream.Observed] {
			looks++ // by the controller's goroutine
			return observed()
		}
		r.connect("canary", "group")
		go r.Run(t.Context(), false)
		r.change("a", "2")
		time.Sleep(quietTime + observeEvery)
		synctest.Wait()
		before := looks
		for range 100 {
			r.Poke()
			time.Sleep(observeEvery / 10)
		}
		synctest.Wait()
		if n := looks - before; r.Status().Stage != 1 || n < 9 || n > 10 {
			t.Errorf("in 10 seconds of stage %d, the clients were looked at %d times, want 10", r.Status().Stage, n)
		}
	})
}
