package relaytest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder is a TB that records failures. Fatalf ends the goroutine, so fails runs checks in a goroutine of their own.
type recorder struct {
	*testing.T
	mu     sync.Mutex
	failed []string // guarded by mu
}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = append(r.failed, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	panic(r)
}

// fails runs f and returns the reported failures.
func (r *recorder) fails(f func()) string {
	func() {
		defer func() {
			if p := recover(); p != nil && p != any(r) {
				panic(p)
			}
		}()
		f()
	}()
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.failed, "\n")
}

func subscribe(names ...string) *discoverypb.DeltaDiscoveryRequest {
	return &discoverypb.DeltaDiscoveryRequest{TypeUrl: ClusterType, ResourceNamesSubscribe: names}
}

func unsubscribe(names ...string) *discoverypb.DeltaDiscoveryRequest {
	return &discoverypb.DeltaDiscoveryRequest{TypeUrl: ClusterType, ResourceNamesUnsubscribe: names}
}

func having(req *discoverypb.DeltaDiscoveryRequest, versions ...string) *discoverypb.DeltaDiscoveryRequest {
	req.InitialResourceVersions = make(map[string]string)
	for _, v := range versions {
		name, version, _ := strings.Cut(v, "@")
		req.InitialResourceVersions[name] = version
	}
	return req
}

// brief formats a response as "a b -c".
func brief(r *Response) string {
	words := slices.Sorted(slices.Values(r.Names()))
	for _, name := range r.Removed {
		words = append(words, "-"+name)
	}
	return strings.Join(words, " ")
}

func TestAutomaticOriginFollowsProtocol(t *testing.T) {
	const quiet = "quiet"
	named := func(_, name string) bool { return name == "n" }
	type step struct {
		req  *discoverypb.DeltaDiscoveryRequest
		want string
	}
	tests := []struct {
		name      string
		behaviour Behaviour
		steps     []step
	}{
		{"legacy wildcard", Behaviour{}, []step{{subscribe(), "a b n"}}},
		{"wildcard", Behaviour{}, []step{{subscribe("*"), "a b n"}}},
		{"names, one missing", Behaviour{}, []step{{subscribe("a", "x"), "a -x"}}},
		{"silent on missing", Behaviour{SilentOnMissing: true}, []step{{subscribe("a", "x"), "a"}, {subscribe("y"), quiet}}},
		{"subscribed again", Behaviour{}, []step{{subscribe("a"), "a"}, {subscribe("a"), "a"}}},
		{"wildcard resumed", Behaviour{}, []step{{having(subscribe(), "a@1", "b@0", "gone@1"), "b n -gone"}}},
		{"wildcard resumed, equal", Behaviour{}, []step{{having(subscribe(), "a@1", "b@1", "n@1"), quiet}}},
		{"names resumed", Behaviour{SilentOnMissing: true}, []step{
			{having(subscribe("a", "b", "gone"), "a@1", "gone@1"), "b -gone"},
		}},
		{"versions ignored", Behaviour{IgnoreIRV: true}, []step{{having(subscribe(), "a@1", "gone@1"), "a b n"}}},
		{"named only", Behaviour{NamedOnly: named}, []step{{subscribe(), "a b"}, {subscribe("n"), "n"}}},
		{"unsubscribed under a wildcard", Behaviour{NamedOnly: named}, []step{
			{subscribe("*", "a", "n"), "a b n"}, {unsubscribe("n"), "-n"}, {unsubscribe("a"), "a"}}},
		{"phantom unsubscribe", Behaviour{}, []step{{subscribe("a"), "a"}, {unsubscribe("b"), quiet}}},
		{"wildcard ends", Behaviour{}, []step{
			{subscribe(), "a b n"}, {subscribe("a"), "a"}, {unsubscribe("*"), quiet}, {unsubscribe("a"), quiet},
		}},
		{"alias", Behaviour{}, []step{{subscribe("also-b"), "b"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := NewOrigin(t, OriginOptions{Behaviour: tt.behaviour})
			o.Set(ClusterType, "a", Cluster("a"), "1")
			o.SetRaw(ClusterType, &discoverypb.Resource{
				Name: "b", Version: "1", Aliases: []string{"also-b"}, Resource: Pack(Cluster("b")),
			})
			o.Set(ClusterType, "n", Cluster("n"), "1")
			c := NewClient(t, o.Dial(), ClientOptions{})
			o.Put(Endpoints("fence"))
			c.Subscribe(EndpointType, "fence")
			c.Ack(c.Recv(t.Context()))
			sent := 0
			for i, step := range tt.steps {
				c.Send(step.req)
				sent++
				if step.want == quiet {
					o.WaitFor(t.Context(), "the request", func(s *OriginState) bool {
						return s.Type(ClusterType).Requests == sent
					})
					c.Fence(t.Context(), EndpointType, "fence", func() { o.Put(Endpoints("fence", fmt.Sprint("127.0.0.1:", i))) })
					continue
				}
				resp := c.Recv(t.Context())
				if got := brief(resp); got != step.want {
					t.Errorf("step %d: %s: answered %q, want %q", i, describe(step.req), got, step.want)
				}
				c.Ack(resp)
				sent++
			}
		})
	}
}

func TestEmptyWildcardIsAnsweredOnce(t *testing.T) {
	o := NewOrigin(t, OriginOptions{})
	c := NewClient(t, o.Dial(), ClientOptions{})
	c.Subscribe(ClusterType)
	resp := c.Recv(t.Context())
	if len(resp.Resources)+len(resp.Removed) != 0 {
		t.Errorf("got %v, want an empty response", resp)
	}
	c.Ack(resp)
	c.Fence(t.Context(), ClusterType, "a", func() { o.Put(Cluster("a")) })
}

func TestApplySendsOneResponsePerType(t *testing.T) {
	o := NewOrigin(t, OriginOptions{})
	o.Put(Cluster("old"))
	c := NewClient(t, o.Dial(), ClientOptions{AutoAck: true})
	c.Subscribe(ClusterType)
	c.Subscribe(ListenerType)
	c.WaitState(t.Context(), func(s State) bool { return s.Has(ClusterType, "old") && s[ListenerType] != nil })
	o.Apply(func(tx *Tx) {
		tx.Put(Listener("l", "r"), Cluster("a"), Cluster("b"))
		tx.Remove(ClusterType, "old")
		tx.Put(Cluster("gone"))
		tx.Remove(ClusterType, "gone")
	})
	for i, want := range []string{"l", "a b -gone -old"} {
		if got := brief(c.Recv(t.Context())); got != want {
			t.Errorf("response %d: %q, want %q", i, got, want)
		}
	}
	if got, want := c.State(), o.Resources(); !got.SameContent(want, ClusterType) || !got.SameContent(want, ListenerType) {
		t.Errorf("client has %v, origin %v", got, want)
	}
	o.WaitFor(t.Context(), "all ACKs", func(s *OriginState) bool {
		return s.Type(ClusterType).Unanswered() == 0 && s.Type(ListenerType).ACKs == 2
	})
	if got := o.State().Type(ClusterType).Strays; got != 0 {
		t.Errorf("%d stray nonces, want none", got)
	}
}

func TestContentForNodes(t *testing.T) {
	o := NewOrigin(t, OriginOptions{})
	o.Put(Cluster("all"))
	o.For(func(n *corepb.Node) bool { return n.GetUserAgentName() == "envoy" }).Put(Cluster("envoy"))
	conn := o.Dial()
	for node, want := range map[*corepb.Node]string{EnvoyNode("e"): "envoy", GRPCNode("g"): "all"} {
		c := NewClient(t, conn, ClientOptions{Node: node, AutoAck: true})
		c.Subscribe(ClusterType)
		c.WaitState(t.Context(), func(s State) bool { return s.Has(ClusterType, want) })
	}
}

func TestManualOrigin(t *testing.T) {
	ctx := t.Context()
	o := NewOrigin(t, OriginOptions{Behaviour: Behaviour{Manual: true}})
	c := NewClient(t, o.Dial(), ClientOptions{})
	c.Subscribe(ClusterType, "b", "a")
	s := o.Accept(ctx)
	want := subscribe("a", "b")
	want.Node = EnvoyNode("client")
	s.ExpectRequest(ctx, want)

	nonce := s.Send(&discoverypb.DeltaDiscoveryResponse{TypeUrl: ClusterType,
		Resources: []*discoverypb.Resource{{Name: "a", Version: "7", Resource: Pack(Cluster("a"))}}})
	resp := c.Recv(ctx)
	if resp.Nonce != nonce {
		t.Errorf("nonce %q arrived, want %q", resp.Nonce, nonce)
	}
	c.Nack(resp, "no good")
	s.ExpectRequest(ctx, &discoverypb.DeltaDiscoveryRequest{TypeUrl: ClusterType, ResponseNonce: nonce,
		ErrorDetail: status.New(codes.InvalidArgument, "no good").Proto()})
	if got := c.State(); len(got[ClusterType]) != 0 {
		t.Errorf("a rejected response is in the state: %v", got)
	}
	// A malformed message with only a type URL and a nonce.
	good, err := proto.Marshal(&discoverypb.DeltaDiscoveryResponse{TypeUrl: ClusterType, Nonce: "odd"})
	if err != nil {
		t.Fatal(err)
	}
	s.SendBytes(good)
	c.Ack(c.Recv(ctx))
	s.Recv(ctx)
	if got := *s.State().Types[ClusterType]; got.Sent != 2 || got.ACKs != 1 || got.NACKs != 1 || got.Strays != 0 {
		t.Errorf("counted %+v, want 2 sent, 1 ACK, 1 NACK", got)
	}
	s.Close(status.New(codes.Unavailable, "moved"))
	if err := c.WaitEnd(ctx); status.Code(err) != codes.Unavailable {
		t.Errorf("stream ended with %v, want UNAVAILABLE", err)
	}
	s.WaitEnd(ctx)
}

func TestMalformedMessageEndsClientStream(t *testing.T) {
	o := NewOrigin(t, OriginOptions{Behaviour: Behaviour{Manual: true}})
	c := NewClient(t, o.Dial(), ClientOptions{})
	c.Subscribe(ClusterType)
	o.Accept(t.Context()).SendBytes([]byte{0xff, 0xff})
	if err := c.WaitEnd(t.Context()); status.Code(err) != codes.Internal {
		t.Errorf("stream ended with %v, want INTERNAL", err)
	}
}

func TestStopRestartAndReconnect(t *testing.T) {
	ctx := t.Context()
	for _, memory := range []bool{false, true} {
		t.Run(fmt.Sprint("memory=", memory), func(t *testing.T) {
			o := NewOrigin(t, OriginOptions{Memory: memory})
			o.Put(Cluster("a"), Cluster("b"))
			c := NewClient(t, o.Dial(), ClientOptions{AutoAck: true})
			c.Subscribe(ClusterType)
			c.WaitState(ctx, func(s State) bool { return s.Has(ClusterType, "a", "b") })
			o.Stop()
			if err := c.WaitEnd(ctx); status.Code(err) != codes.Unavailable {
				t.Errorf("stream ended with %v, want UNAVAILABLE", err)
			}
			if n := o.State().OpenConnections; n != 0 {
				t.Errorf("%d connections open after Stop", n)
			}
			o.Remove(ClusterType, "a")
			target := o.Target()
			o.Restart()
			if o.Target() != target {
				t.Errorf("target %s after restart, was %s", o.Target(), target)
			}
			c.Reconnect(o.Dial())
			if got := brief(c.Recv(ctx)); got != "-a" {
				t.Errorf("after the restart the origin sent %q, want %q", got, "-a")
			}
			o.WaitFor(ctx, "the ACK", func(s *OriginState) bool {
				return s.Last().ID == 1 &&
					s.Last().Type(ClusterType).ACKs == 1
			})
			state := o.State()
			first := state.Streams[1].Requests[0].Message
			if first.GetNode() == nil || first.GetResponseNonce() != "" || len(first.GetInitialResourceVersions()) != 2 {
				t.Errorf("first request of the new stream: %s", describe(first))
			}
			if state.Connections != 2 || len(state.Open()) != 1 || !state.Subscribed(ClusterType, "*") {
				t.Errorf("record after the restart: %v", state)
			}
		})
	}
}

func TestGoAwayLetsStreamsFinish(t *testing.T) {
	ctx := t.Context()
	o := NewOrigin(t, OriginOptions{})
	conn := o.Dial()
	c := NewClient(t, conn, ClientOptions{AutoAck: true})
	c.Subscribe(ClusterType)
	c.WaitState(ctx, func(s State) bool { return s[ClusterType] != nil })
	state := conn.GetState()
	o.GoAway()
	conn.WaitForStateChange(ctx, state)
	// The old stream stays open; a new stream uses a new connection.
	c.Fence(ctx, ClusterType, "a", func() { o.Put(Cluster("a")) })
	d := NewClient(t, conn, ClientOptions{AutoAck: true})
	d.Subscribe(ClusterType)
	d.WaitState(ctx, func(s State) bool { return s.Has(ClusterType, "a") })
	if got := o.State().Connections; got != 2 {
		t.Errorf("%d connections, want 2", got)
	}
}

func TestFreezeSuspendsOrigin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := NewOrigin(t, OriginOptions{Memory: true})
		c := NewClient(t, o.Dial(), ClientOptions{AutoAck: true})
		c.Subscribe(ClusterType)
		c.WaitState(t.Context(), func(s State) bool { return s[ClusterType] != nil })
		o.Freeze(true)
		o.Put(Cluster("a"))
		synctest.Wait()
		if resp := c.TryRecv(); resp != nil {
			t.Errorf("a frozen origin sent %v", resp)
		}
		o.Freeze(false)
		if got := brief(c.Recv(t.Context())); got != "a" {
			t.Errorf("the thawed origin sent %q, want a", got)
		}
	})
}

func TestDelayIsExactInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := NewOrigin(t, OriginOptions{Memory: true, Behaviour: Behaviour{Delay: 5 * time.Second}})
		o.Put(Cluster("a"))
		c := NewClient(t, o.Dial(), ClientOptions{})
		start := time.Now()
		c.Subscribe(ClusterType)
		c.Recv(t.Context())
		if got := time.Since(start); got != 5*time.Second {
			t.Errorf("answered after %v, want 5s", got)
		}
	})
}

func TestTimeoutReportsDump(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{T: t}
		o := NewOrigin(r, OriginOptions{Memory: true})
		c := NewClient(r, o.Dial(), ClientOptions{})
		c.Subscribe(EndpointType, "a")
		c.Ack(c.Recv(t.Context()))
		start := time.Now()
		got := r.fails(func() { c.Recv(t.Context()) })
		if time.Since(start) != Patience {
			t.Errorf("timeout after %v, want %v", time.Since(start), Patience)
		}
		for _, want := range []string{
			"nothing for " + Patience.String(), "> delta ClusterLoadAssignment node=client subscribe=[a]", "removed=[a]",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("report has no %q:\n%s", want, got)
			}
		}
	})
}

func TestInjectedViolationsAreReported(t *testing.T) {
	a, b := Pack(Cluster("a")), Pack(Endpoints("b"))
	tests := []struct {
		name string
		resp *discoverypb.DeltaDiscoveryResponse
		want string
	}{
		{"duplicate", &discoverypb.DeltaDiscoveryResponse{Resources: []*discoverypb.Resource{
			{Name: "a", Version: "1", Resource: a}, {Name: "a", Version: "1", Resource: a}}}, "is a duplicate"},
		{"both lists", &discoverypb.DeltaDiscoveryResponse{Resources: []*discoverypb.Resource{
			{Name: "a", Version: "1", Resource: a}}, RemovedResources: []string{"a"}}, `removed "a" is also a resource`},
		{"other type", &discoverypb.DeltaDiscoveryResponse{Resources: []*discoverypb.Resource{
			{Name: "b", Version: "1", Resource: b}}}, "has type " + EndpointType},
		{"no version", &discoverypb.DeltaDiscoveryResponse{Resources: []*discoverypb.Resource{
			{Name: "a", Resource: a}}}, "has no version"},
		{"used nonce", &discoverypb.DeltaDiscoveryResponse{Nonce: "1"}, "duplicate on this stream"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := &recorder{T: t}
			o := NewOrigin(t, OriginOptions{})
			conn := o.Dial()
			c := NewClient(r, conn, ClientOptions{AutoAck: true})
			c.Subscribe(ClusterType)
			l := NewLightClient(r, conn, LightOptions{})
			l.Subscribe(ClusterType)
			o.WaitFor(t.Context(), "the first ACKs", func(s *OriginState) bool { return s.Type(ClusterType).ACKs == 2 })
			tt.resp.TypeUrl = ClusterType
			o.Inject(tt.resp)
			o.WaitFor(t.Context(), "the ACKs", func(s *OriginState) bool { return s.Type(ClusterType).ACKs == 4 })
			got := r.fails(func() {})
			if strings.Count(got, tt.want) != 2 {
				t.Errorf("the clients reported\n%s\nwant %q of each", got, tt.want)
			}
		})
	}
}

func TestBehaviourFieldsAreSent(t *testing.T) {
	o := NewOrigin(t, OriginOptions{Behaviour: Behaviour{EmptyVersions: true, Duplicate: true, SystemVersion: "s1"}})
	o.SetControlPlane("cp-1")
	o.Put(Cluster("a"))
	c := NewClient(&recorder{T: t}, o.Dial(), ClientOptions{})
	c.Subscribe(ClusterType)
	resp := c.Recv(t.Context())
	if brief(resp) != "a a" || resp.Resources[0].Version != "" || resp.Version != "s1" || resp.ControlPlane != "cp-1" {
		t.Errorf("got %v from %q", resp, resp.ControlPlane)
	}
	c.CloseSend()
	if err := c.WaitEnd(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("stream ended with %v, want EOF", err)
	}
}

func TestCancelledContextEndsAWait(t *testing.T) {
	r := &recorder{T: t}
	o := NewOrigin(r, OriginOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := r.fails(func() { o.Accept(ctx) }); !strings.Contains(got, "context canceled") {
		t.Errorf("report: %s", got)
	}
}

func TestHeartbeatsAreWithoutContent(t *testing.T) {
	o := NewOrigin(t, OriginOptions{})
	o.SetWithTTL(ClusterType, "a", Cluster("a"), time.Minute)
	o.SetRaw(VirtualHostType, &discoverypb.Resource{
		Name: "v", Version: "1", Aliases: []string{"alias"}, Resource: Opaque(VirtualHostType, "v", nil),
		Ttl: durationpb.New(time.Second),
	})
	c := NewClient(t, o.Dial(), ClientOptions{AutoAck: true, Node: WithFeatures(EnvoyNode("client"), FeatureTTL)})
	for typeURL, names := range map[string][2]string{ClusterType: {"a", "*"}, VirtualHostType: {"v", "alias"}} {
		c.Subscribe(typeURL, names[1])
		first := c.Recv(t.Context()).Resource(names[0])
		o.Heartbeat(typeURL, "nobody", names[0])
		beat := c.Recv(t.Context()).Resource(names[0])
		if first == nil || beat == nil || first.Heartbeat() || !beat.Heartbeat() || beat.TTL != first.TTL ||
			beat.Version != first.Version {
			t.Errorf("%s: got %+v, and the heartbeat %+v", ShortType(typeURL), first, beat)
		}
	}
	if got := o.Resources().Digest(ClusterType, "a"); got != DigestOf(Cluster("a")) {
		t.Errorf("a heartbeat changed the resources of the origin to %v", got)
	}
}
