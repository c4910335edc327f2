package rollout

import (
	"bytes"
	"context"
	"io"
	"iter"
	"log/slog"
	"slices"
	"strings"
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
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
	"github.com/xdstender/tender/upstream/reconcile"
)

// A testRelay is a controller with one section for each node group, and a server for their clients. It runs in a bubble of
// synctest.
type testRelay struct {
	*Controller
	t      *testing.T
	stages Stages
	server *downstream.Server
	views  map[string]*cache.View // by group
	groups []*group
	logs   bytes.Buffer
}

// A group is a node group with the loop that writes its view.
type group struct {
	w       *cache.Writer
	list    *pending.List // in front of w
	control *upstream.Control
	before  func() // called before each edit; may be nil
}

func (g *group) Operate(reconcile.Command) []reconcile.Hold { return nil }
func (g *group) List() *pending.List                        { return g.list }
func (g *group) Report([]upstream.Rejection)                {}
func (g *group) Keep([]reconcile.Hold)                      {}

// run executes edits until ctx ends.
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

// newTestRelay returns a relay whose groups have listener a in version 1. The caller runs its controller.
func newTestRelay(t *testing.T, text string, groups ...string) *testRelay {
	return newTestRelayWith(t, Config{Stages: parseStages(t, text)}, nil, groups...)
}

// newTestRelayWith is newTestRelay with another configuration, and a judge.
func newTestRelayWith(t *testing.T, cfg Config, judge Judge, groups ...string) *testRelay {
	r := newTestRelayOf(t, cfg, judge, nil)
	for _, key := range groups {
		r.addGroup(key, "a@1")
	}
	return r
}

// newTestRelayAfter returns a relay without groups, after the process that left withdrawn editions.
func newTestRelayAfter(t *testing.T, text string, withdrawn []*Withdrawn) *testRelay {
	return newTestRelayOf(t, Config{Stages: parseStages(t, text)}, nil, withdrawn)
}

// newTestRelayOf is newTestRelayAfter with another configuration, and a judge.
func newTestRelayOf(t *testing.T, cfg Config, judge Judge, withdrawn []*Withdrawn) *testRelay {
	r := &testRelay{t: t, stages: cfg.Stages, views: make(map[string]*cache.View)}
	waits := func(typeURL string) bool { return typeURL == listeners || typeURL == wire.ClusterType }
	r.Controller = NewController(ControllerConfig{
		Config: cfg, Judge: judge, Origin: "default", Waits: waits, Logger: slog.New(slog.NewTextHandler(&r.logs, nil)),
		Observed: func() iter.Seq[downstream.Observed] { return r.server.Observed() },
		Frozen:   func() bool { return false },
		Decided:  func(context.Context) {},
		Told:     func() {},
		Changed:  func(int, *Status, *Status) {},
	}, withdrawn)
	r.server = check.Must(downstream.New(downstream.Config{Views: r}))
	return r
}

// addGroup adds a group with listeners, such as "a@1".
func (r *testRelay) addGroup(key string, has ...string) *group {
	section := r.NewSection(SectionKey{Group: key})
	g := &group{control: upstream.NewControl(false, nil)}
	r.views[key], g.w = cache.New(cache.Config{
		Cohorts: r.cfg.Views(), Waits: r.cfg.Waits,
		SettledChanged: func(int) { section.Poke() },
	})
	g.w.SetConnected(true)
	g.list = pending.New(g.w, nil)
	g.list.ReportStaged(section.SetWaiting)
	for _, text := range has {
		name, version, _ := strings.Cut(text, "@")
		g.put(r.t, name, version)
	}
	g.w.SetPhase(listeners, cache.Confirmed)
	g.w.SetPhase(wire.ClusterType, cache.Confirmed)
	section.Join(r.views[key], 0, g.control)
	r.groups = append(r.groups, g)
	go g.run(r.t.Context())
	return g
}

// expect fails the test unless the clients of each cohort of a group are served these listeners, such as "a@1".
func (r *testRelay) expect(group string, want ...string) {
	r.t.Helper()
	synctest.Wait()
	for cohort := range len(r.stages) + 1 {
		got := []string{}
		for e := range r.views[group].Cohort(r.cfg.ViewOf(cohort)).Generation().Type(listeners).Wildcard.Since(0) {
			if e.Present() {
				got = append(got, e.Name.String()+"@"+e.Resource.Version)
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			r.t.Errorf("cohort %d of group %s is served %q, want %q", cohort, group, got, want)
		}
	}
}

// Join implements [downstream.Views]. The group of a Node is its cluster.
func (r *testRelay) Join(n *corepb.Node, by downstream.Caller) (downstream.Group, error) {
	key, cohort := n.GetCluster(), r.stages.Cohort(n, by.Relay)
	o := Observe(Client{Node: n.GetId(), Peer: by.Peer, Cohort: cohort}, key, []*Controller{r.Controller})
	return downstream.Group{View: r.views[key].Cohort(r.cfg.ViewOf(cohort)), Key: key, Leave: o.Ended, Observer: o}, nil
}

// put changes a listener of the origin. After run was started, only edits of g.control may call it.
func (g *group) put(t *testing.T, name, version string) {
	content := check.Must(proto.Marshal(&listenerpb.Listener{Name: name, StatPrefix: version}))
	r := check.Must(wire.NewResource(listeners, name, version, content))
	g.list.Apply(cache.Wildcard, wire.Update{TypeURL: listeners, Resources: []*wire.Resource{r}})
}

// change changes a listener of the origin in all groups. Without a version, it is removed.
func (r *testRelay) change(name, version string) {
	for _, g := range r.groups {
		g.control.Edit(r.t.Context(), func(l *pending.List) {
			if version != "" {
				g.put(r.t, name, version)
				return
			}
			l.Apply(cache.Wildcard, wire.Update{TypeURL: listeners, Removed: []string{name}})
		})
	}
}

// A proxy is a client without a transport. It subscribes to all listeners and answers each response at once.
type proxy struct {
	grpc.ServerStream
	ctx      context.Context
	requests chan wire.Request
	ended    chan struct{} // closed at the end of the test
	rejects  atomic.Bool   // send a NACK for each response
	bad      atomic.Value  // a version, as a string: send a NACK for responses that have it
	detail   atomic.Value  // error message of NACKs, as a string
	silent   atomic.Bool   // answer later, when release is called
	held     chan wire.Request
	received atomic.Int32 // number of responses
}

func (p *proxy) Context() context.Context { return p.ctx }

func (p *proxy) SendMsg(m any) error {
	p.received.Add(1)
	r := wire.Request{Delta: true, TypeURL: listeners, Nonce: m.(*wire.Response).Nonce}
	body, _ := m.(*wire.Response).Encode()
	bad, hasBad := p.bad.Load().(string)
	if p.rejects.Load() || hasBad && bytes.Contains(body.Materialize(), []byte(bad)) {
		r.Rejected, r.ErrorCode, r.ErrorMessage = true, int32(codes.InvalidArgument), "bad"
		if detail, ok := p.detail.Load().(string); ok {
			r.ErrorMessage = detail
		}
	}
	to := p.requests
	if p.silent.Load() {
		to = p.held
	}
	select {
	case to <- r:
	case <-p.ended:
	}
	return nil
}

// release sends the answers that a silent proxy has not sent.
func (p *proxy) release() {
	p.silent.Store(false)
	for len(p.held) > 0 {
		p.requests <- <-p.held
	}
}

func (p *proxy) RecvMsg(m any) error {
	select {
	case r := <-p.requests:
		*m.(*wire.Request) = r
		return nil
	case <-p.ended:
		return io.EOF
	}
}

// A deltaADS is a service registrar that keeps the handler of Delta ADS.
type deltaADS struct{ serve grpc.StreamHandler }

func (a *deltaADS) RegisterService(desc *grpc.ServiceDesc, _ any) {
	for _, s := range desc.Streams {
		if s.StreamName == "DeltaAggregatedResources" {
			a.serve = s.Handler
		}
	}
}

// connect opens a stream of a new proxy, which ends with the test.
func (r *testRelay) connect(node, group string) *proxy {
	p := &proxy{
		ctx: r.t.Context(), requests: make(chan wire.Request, 100), held: make(chan wire.Request, 100),
		ended: make(chan struct{}),
	}
	raw := check.Must(proto.Marshal(&corepb.Node{Id: node, Cluster: group}))
	p.requests <- wire.Request{Delta: true, TypeURL: listeners, Node: raw, Subscribe: []string{"*"}}
	var ads deltaADS
	r.server.Register(&ads)
	done := make(chan error, 1)
	go func() { done <- ads.serve(r.server, p) }()
	r.t.Cleanup(func() {
		close(p.ended)
		if err := <-done; err != nil {
			r.t.Errorf("stream of %s: %v", node, err)
		}
	})
	return p
}

// TestI14_RejectionCountsWhileServing verifies that a NACK counts that arrives before all node groups are served the
// edition.
func TestI14_RejectionCountsWhileServing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestRelay(t, "id=canary* 10m", "first", "second")
		canary := r.connect("canary", "first")
		time.Sleep(time.Second)
		canary.rejects.Store(true)
		r.groups[1].before = synctest.Wait // until the canary in the first group has answered
		go r.Run(t.Context(), false)
		r.change("a", "2")
		time.Sleep(quietTime + time.Second)
		if s := r.Status(); s.Phase != Halted || canary.received.Load() != 3 {
			t.Errorf("phase %v with %d rejections after %d responses, want halted after 3",
				s.Phase, len(s.Rejections), canary.received.Load())
		}
	})
}

// TestObservationsAreRateLimited verifies that clients are observed once per observeEvery while an edition is served,
// regardless of the number of events.
func TestObservationsAreRateLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestRelay(t, "id=canary* 10m", "group")
		observations, observed := 0, r.cfg.Observed
		r.cfg.Observed = func() iter.Seq[downstream.Observed] {
			observations++ // only the goroutine of the controller calls this
			return observed()
		}
		r.connect("canary", "group")
		go r.Run(t.Context(), false)
		r.change("a", "2")
		time.Sleep(quietTime + observeEvery)
		synctest.Wait()
		before := observations
		for range 100 {
			r.Poke()
			time.Sleep(observeEvery / 10)
		}
		synctest.Wait()
		if n := observations - before; r.Status().Stage != 1 || n < 9 || n > 10 {
			t.Errorf("%d observations in 10 seconds of stage %d, want 10 of stage 1", n, r.Status().Stage)
		}
	})
}

// TestI6_UndoCoversGroupsMadeAfterThePromotion verifies that Undo reverts what a promotion changed also in node groups
// that joined after it: where they have content of the promotion, and where their set is that of another group. The
// rollout of latest in the new groups begins again with the next change.
func TestI6_UndoCoversGroupsMadeAfterThePromotion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestRelay(t, "id=canary* 10m", "first", "second")
		go r.Run(t.Context(), false)
		for _, name := range []string{"changed", "removed"} {
			r.change(name, "1")
		}
		time.Sleep(quietTime)
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(r.PromoteAll(t.Context(), "test"))
		r.change("changed", "2")
		r.change("added", "2")
		r.change("removed", "")
		synctest.Wait()
		must(r.PromoteAll(t.Context(), "test"))
		r.expect("first", "a@1", "added@2", "changed@2")

		r.addGroup("same", "a@1", "added@2", "changed@2")
		r.addGroup("larger", "added@2", "changed@2", "own@1")
		r.addGroup("other", "a@1", "changed@1")
		for group, want := range map[string][]string{
			"same": {"a@1", "added@2", "changed@2"}, "larger": {"added@2", "changed@2", "own@1"}, "other": {"a@1", "changed@1"},
		} {
			r.expect(group, want...)
		}
		must(r.Undo(t.Context(), "", "bad", "test"))
		for group, want := range map[string][]string{
			"first": {"a@1", "changed@1", "removed@1"}, "second": {"a@1", "changed@1", "removed@1"},
			"same": {"a@1", "changed@1", "removed@1"}, "larger": {"changed@1", "own@1"}, "other": {"a@1", "changed@1"},
		} {
			r.expect(group, want...)
		}
		time.Sleep(time.Minute)
		if s := r.Status(); s.Phase != Halted {
			t.Errorf("after the undo: phase %v, want halted", s.Phase)
		}
		if changes := r.Withdrawn()[len(r.Withdrawn())-1].Changes; len(changes) != 4 {
			t.Errorf("the rejected edition is of %d groups, want 4: all that were served its changes", len(changes))
		}
		r.expect("same", "a@1", "changed@1", "removed@1")

		r.change("changed", "3")
		time.Sleep(quietTime + time.Second)
		must(r.PromoteAll(t.Context(), "test"))
		for group, want := range map[string][]string{
			"first": {"a@1", "added@2", "changed@3"}, "same": {"a@1", "added@2", "changed@3"},
			"larger": {"added@2", "changed@3", "own@1"}, "other": {"a@1", "changed@3"},
		} {
			r.expect(group, want...)
		}
	})
}
