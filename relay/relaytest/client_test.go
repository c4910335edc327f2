package relaytest

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// serve runs an ADS server on a loopback port and returns a connection to it.
func serve(t *testing.T, s discoverypb.AggregatedDiscoveryServiceServer) *grpc.ClientConn {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	discoverypb.RegisterAggregatedDiscoveryServiceServer(server, s)
	served := make(chan struct{})
	go func() { // ends by Stop, which waits for it
		defer close(served)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() { server.Stop(); <-served })
	conn, err := grpc.NewClient("passthrough:///"+listener.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// sotwServer is a SotW server that sends the responses of the test, and records the requests.
type sotwServer struct {
	discoverypb.UnimplementedAggregatedDiscoveryServiceServer
	requests  chan *discoverypb.DiscoveryRequest
	responses chan *discoverypb.DiscoveryResponse
}

func newSotWServer() *sotwServer {
	return &sotwServer{
		requests:  make(chan *discoverypb.DiscoveryRequest, 100),
		responses: make(chan *discoverypb.DiscoveryResponse, 100),
	}
}

func (s *sotwServer) StreamAggregatedResources(
	rpc discoverypb.AggregatedDiscoveryService_StreamAggregatedResourcesServer,
) error {
	go func() { // ends with the handler
		for {
			select {
			case resp := <-s.responses:
				if rpc.Send(resp) != nil {
					return
				}
			case <-rpc.Context().Done():
				return
			}
		}
	}()
	for {
		req, err := rpc.Recv()
		if err != nil {
			return nil
		}
		s.requests <- req
	}
}

func (s *sotwServer) send(version, nonce string, msgs ...proto.Message) {
	resp := &discoverypb.DiscoveryResponse{TypeUrl: Pack(msgs[0]).GetTypeUrl(), VersionInfo: version, Nonce: nonce}
	for _, msg := range msgs {
		resp.Resources = append(resp.Resources, Pack(msg))
	}
	s.responses <- resp
}

func TestSotWClientRequests(t *testing.T) {
	ctx := t.Context()
	s := newSotWServer()
	conn := serve(t, s)
	c := NewClient(t, conn, ClientOptions{Variant: SotW, Node: EnvoyNode("e")})
	next := func(want string) {
		t.Helper()
		if got := describe(<-s.requests); got != want {
			t.Errorf("request\n got %s\nwant %s", got, want)
		}
	}
	c.Subscribe(ClusterType)
	next("sotw Cluster node=e")
	s.send("v1", "1", Cluster("a"), Cluster("b"))
	first := c.Recv(ctx)
	c.Subscribe(EndpointType, "x") // types are independent
	next("sotw ClusterLoadAssignment names=[x]")
	c.Ack(first)
	next("sotw Cluster version=v1 nonce=1")
	c.Subscribe(ClusterType, "a") // the wildcard is explicit now
	next("sotw Cluster names=[* a] version=v1 nonce=1")
	s.send("v2", "2", Cluster("a"))
	c.Nack(c.Recv(ctx), "bad")
	next("sotw Cluster names=[* a] version=v1 nonce=2 error=bad")
	if !c.State().Has(ClusterType, "a", "b") {
		t.Errorf("a NACK changed the state: %v", c.State())
	}
	c.Unsubscribe(ClusterType, "*")
	next("sotw Cluster names=[a] version=v1 nonce=2")
	if !c.State().Has(ClusterType, "a") {
		t.Errorf("b was not removed: %v", c.State())
	}
	c.Unsubscribe(ClusterType, "a")
	next("sotw Cluster version=v1 nonce=2")
	c.Unsubscribe(EndpointType, "x")
	next("sotw ClusterLoadAssignment")
	c.Subscribe(EndpointType, "y")
	next("sotw ClusterLoadAssignment names=[y]")
	c.Reconnect(conn)
	next("sotw ClusterLoadAssignment node=e names=[y]")
	s.send("e9", "1", Endpoints("y"))
	c.Ack(c.Recv(ctx))
	next("sotw ClusterLoadAssignment names=[y] version=e9 nonce=1")
	c.Reconnect(conn)
	next("sotw ClusterLoadAssignment node=e names=[y] version=e9")
}

func TestDeltaClientRequests(t *testing.T) {
	ctx := t.Context()
	o := NewOrigin(t, OriginOptions{Behaviour: Behaviour{SilentOnMissing: true}})
	o.Set(ClusterType, "a", Cluster("a"), "1")
	conn := o.Dial()
	c := NewClient(t, conn, ClientOptions{NodeAlways: true})
	s := o.Accept(ctx)
	next := func(want string) {
		t.Helper()
		if got := describe(s.Recv(ctx)); got != want {
			t.Errorf("request\n got %s\nwant %s", got, want)
		}
	}
	c.Subscribe(ClusterType)
	next("delta Cluster node=client")
	c.Ack(c.Recv(ctx))
	next("delta Cluster node=client nonce=1")
	c.Subscribe(ClusterType, "b")
	next("delta Cluster node=client subscribe=[b]")
	c.Unsubscribe(ClusterType, "b")
	next("delta Cluster node=client unsubscribe=[b]")
	c.Ack(c.Recv(ctx))
	next("delta Cluster node=client nonce=2")
	c.Subscribe(EndpointType, "x")
	next("delta ClusterLoadAssignment node=client subscribe=[x]")
	c.Reconnect(conn)
	s = o.Accept(ctx)
	next("delta Cluster node=client have=[a]")
	next("delta ClusterLoadAssignment node=client subscribe=[x]")
	c.Unsubscribe(ClusterType, "*")
	next("delta Cluster node=client unsubscribe=[*]")
	if c.State().Has(ClusterType, "a") {
		t.Errorf("a was not removed: %v", c.State())
	}
}

func TestSotWStateEqualsEnvoy(t *testing.T) {
	s := newSotWServer()
	node := WithFeatures(EnvoyNode("client"), FeatureTTL, FeatureWrapper)
	c := NewClient(t, serve(t, s), ClientOptions{Variant: SotW, Node: node, AutoAck: true})
	c.Subscribe(ClusterType)
	c.Subscribe(EndpointType, "x", "y")
	s.send("v1", "1", Cluster("a"), Cluster("b"))
	s.send("v1", "2", Endpoints("x"), Endpoints("stranger"))
	s.send("v2", "3", Cluster("b"))
	s.send("v2", "4", Endpoints("y"))
	c.WaitState(t.Context(), func(s State) bool { return s[EndpointType]["y"].Version == "v2" })
	if got := c.State(); !got.Has(ClusterType, "b") || !got.Has(EndpointType, "x", "y") {
		t.Errorf("state %v, want cluster b alone and both endpoints", got)
	}
	s.responses <- &discoverypb.DiscoveryResponse{TypeUrl: EndpointType, VersionInfo: "v3", Nonce: "5",
		Resources: []*anypb.Any{
			Pack(&discoverypb.Resource{Name: "y", Resource: Pack(Endpoints("y", "127.0.0.1:1")), Ttl: durationpb.New(3e9)}),
		}}
	if got := c.Recv(t.Context()).Resource("y"); got == nil || got.TTL != 3e9 || !got.Wrapped || got.Heartbeat() {
		t.Errorf("unwrapped %+v, want y with a TTL of 3s", got)
	}
	if got, want := c.State().Digest(EndpointType, "y"), DigestOf(Endpoints("y", "127.0.0.1:1")); got != want {
		t.Errorf("digest %v of the wrapped resource, want %v", got, want)
	}
}

// TestTTLViolationsAreReported checks that TTLs and wrappers without support of the client, heartbeats of resources
// that it does not have, and heartbeats in SotW are violations.
func TestTTLViolationsAreReported(t *testing.T) {
	plain := EnvoyNode("client")
	full := Pack(Endpoints("a"))
	ttl := durationpb.New(3e9)
	tests := map[string]struct {
		variant   Variant
		node      *corepb.Node
		resources []*discoverypb.Resource // one per response
		want      string                  // "" for none
	}{
		"delta, with the feature": {
			Delta, WithFeatures(plain, FeatureTTL),
			[]*discoverypb.Resource{{Name: "a", Version: "1", Resource: full, Ttl: ttl}, {Name: "a", Version: "1", Ttl: ttl}},
			"",
		},
		"delta, without it": {Delta, plain, []*discoverypb.Resource{{Name: "a", Version: "1", Resource: full, Ttl: ttl}},
			"has a TTL"},
		"delta, heartbeat of another version": {
			Delta, WithFeatures(plain, FeatureTTL),
			[]*discoverypb.Resource{{Name: "a", Version: "1", Resource: full, Ttl: ttl}, {Name: "a", Version: "2", Ttl: ttl}},
			`version "2" of "a", but the client has version "1"`,
		},
		"sotw, with the features": {
			SotW, WithFeatures(plain, FeatureTTL, FeatureWrapper),
			[]*discoverypb.Resource{{Name: "a", Version: "1", Resource: full, Ttl: ttl}}, "",
		},
		"sotw, without wrappers": {SotW, WithFeatures(plain, FeatureTTL),
			[]*discoverypb.Resource{{Name: "a", Resource: full}}, "is wrapped"},
		"sotw, without TTLs": {
			SotW, WithFeatures(plain, FeatureWrapper), []*discoverypb.Resource{{Name: "a", Resource: full, Ttl: ttl}},
			"has a TTL",
		},
		"sotw, heartbeat": {
			SotW, WithFeatures(plain, FeatureTTL, FeatureWrapper), []*discoverypb.Resource{{Name: "a", Ttl: ttl}}, "no content",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := &recorder{T: t}
			var send func(i int, resource *discoverypb.Resource)
			var c *Client
			if tt.variant == SotW {
				s := newSotWServer()
				c = NewClient(r, serve(t, s), ClientOptions{Variant: SotW, Node: tt.node, AutoAck: true})
				c.Subscribe(EndpointType, "a")
				send = func(i int, resource *discoverypb.Resource) {
					s.responses <- &discoverypb.DiscoveryResponse{TypeUrl: EndpointType, VersionInfo: "1", Nonce: fmt.Sprint(i),
						Resources: []*anypb.Any{Pack(resource)}}
				}
			} else {
				o := NewOrigin(t, OriginOptions{Behaviour: Behaviour{Manual: true}})
				c = NewClient(r, o.Dial(), ClientOptions{Node: tt.node, AutoAck: true})
				c.Subscribe(EndpointType, "a")
				s := o.Accept(t.Context())
				s.Recv(t.Context())
				send = func(_ int, resource *discoverypb.Resource) {
					s.Send(&discoverypb.DeltaDiscoveryResponse{TypeUrl: EndpointType, Resources: []*discoverypb.Resource{resource}})
				}
			}
			got := r.fails(func() {
				for i, resource := range tt.resources {
					send(i, resource)
					c.Recv(t.Context())
				}
			})
			if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
				t.Errorf("reported %q, want %q", got, tt.want)
			}
		})
	}
}

// TestLateHeartbeat checks that an unread heartbeat of a resource from which the client has unsubscribed is no
// violation and has no effect. Other such heartbeats are violations.
func TestLateHeartbeat(t *testing.T) {
	full, ttl := Pack(Endpoints("a")), durationpb.New(3e9)
	for _, tt := range []struct {
		name    string
		paused  bool
		version string
		want    string
	}{
		{"unread", true, "1", ""},
		{"read", false, "1", `version "1" of "a", but the client has version ""`},
		{"another version", true, "2", `version "2" of "a", but the client has version ""`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &recorder{T: t}
			o := NewOrigin(t, OriginOptions{Behaviour: Behaviour{Manual: true}})
			c := NewClient(r, o.Dial(), ClientOptions{Node: WithFeatures(EnvoyNode("client"), FeatureTTL), AutoAck: true})
			c.Subscribe(EndpointType, "a")
			s := o.Accept(t.Context())
			s.Recv(t.Context())
			send := func(resource *discoverypb.Resource) {
				s.Send(&discoverypb.DeltaDiscoveryResponse{TypeUrl: EndpointType, Resources: []*discoverypb.Resource{resource}})
			}
			send(&discoverypb.Resource{Name: "a", Version: "1", Resource: full, Ttl: ttl})
			c.Recv(t.Context())
			if tt.paused {
				c.Pause()
			}
			c.Unsubscribe(EndpointType, "a")
			c.Subscribe(EndpointType, "a")
			got := r.fails(func() {
				send(&discoverypb.Resource{Name: "a", Version: tt.version, Ttl: ttl})
				c.Resume()
				c.Recv(t.Context())
			})
			if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
				t.Errorf("reported %q, want %q", got, tt.want)
			}
			if tt.want == "" && len(c.State()[EndpointType]) > 0 {
				t.Errorf("the heartbeat changed the state to %v", c.State())
			}
			send(&discoverypb.Resource{Name: "a", Version: "2", Resource: full, Ttl: ttl})
			c.Recv(t.Context())
			if got := r.fails(func() {
				send(&discoverypb.Resource{Name: "a", Version: "1", Ttl: ttl})
				c.Recv(t.Context())
			}); !strings.Contains(got, `has version "2"`) {
				t.Errorf("reported %q after the resource was received", got)
			}
		})
	}
}

func TestAutoAckRejects(t *testing.T) {
	o := NewOrigin(t, OriginOptions{})
	o.Set(ClusterType, "a", Cluster("a"), "good")
	c := NewClient(t, o.Dial(), ClientOptions{AutoAck: true, Reject: func(r *Response) error {
		if r.Resources[0].Version == "bad" {
			return errors.New("unwanted")
		}
		return nil
	}})
	c.Subscribe(ClusterType)
	c.WaitState(t.Context(), func(s State) bool { return s[ClusterType]["a"].Version == "good" })
	o.Set(ClusterType, "a", StaticCluster("a"), "bad")
	o.WaitFor(t.Context(), "a NACK", func(s *OriginState) bool { return s.Type(ClusterType).NACKs == 1 })
	if got := c.State()[ClusterType]["a"].Version; got != "good" {
		t.Errorf("version %q after the NACK, want good", got)
	}
}

func TestSotWViolationsAreReported(t *testing.T) {
	for _, light := range []bool{false, true} {
		r, s := &recorder{T: t}, newSotWServer()
		var c peer
		if light {
			c = NewLightClient(r, serve(t, s), LightOptions{Variant: SotW})
		} else {
			c = NewClient(r, serve(t, s), ClientOptions{Variant: SotW, AutoAck: true})
		}
		c.Subscribe(EndpointType, "a")
		s.send("", "1", Endpoints("a"))
		s.send("2", "1", Endpoints("a"), Endpoints("a"))
		s.responses <- &discoverypb.DiscoveryResponse{
			TypeUrl: EndpointType, VersionInfo: "3", Resources: []*anypb.Any{Opaque(ClusterType, "a", nil)},
		}
		got := r.fails(func() { c.WaitState(t.Context(), func(s State) bool { return s[EndpointType]["a"].Version == "3" }) })
		for _, want := range []string{
			"version_info is empty", "duplicate on this stream", "is a duplicate", "has type " + ClusterType, "nonce",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("light=%v: no %q reported:\n%s", light, want, got)
			}
		}
	}
}

func TestFenceReportsOtherChanges(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Tx)
		want   string
	}{
		{"nothing else", func(tx *Tx) { tx.Put(StaticCluster("fence")) }, ""},
		{"another resource", func(tx *Tx) { tx.Put(StaticCluster("fence"), Cluster("b")) }, "resource b"},
		{"a removal", func(tx *Tx) { tx.Put(StaticCluster("fence")); tx.Remove(ClusterType, "a") }, "removed [a]"},
		{"another type", func(tx *Tx) { tx.Put(Endpoints("x"), StaticCluster("fence")) }, "another type"},
		{"not the fence", func(tx *Tx) { tx.Remove(ClusterType, "fence"); tx.Put(Cluster("b")) }, "removed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := &recorder{T: t}
			o := NewOrigin(t, OriginOptions{})
			o.Put(Cluster("a"), Cluster("fence"))
			c := NewClient(r, o.Dial(), ClientOptions{AutoAck: true})
			c.Subscribe(ClusterType)
			c.Subscribe(EndpointType, "x")
			c.WaitState(t.Context(), func(s State) bool { return s.Has(ClusterType, "a", "fence") && s[EndpointType] != nil })
			got := r.fails(func() { c.Fence(t.Context(), ClusterType, "fence", func() { o.Apply(tt.change) }) })
			if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
				t.Errorf("reported %q, want %q", got, tt.want)
			}
		})
	}
}

func TestFenceInAFullState(t *testing.T) {
	ctx := t.Context()
	for name, want := range map[string]string{
		"same": "", "changed": "resource a", "missing": "other resources are missing",
	} {
		t.Run(name, func(t *testing.T) {
			r, s := &recorder{T: t}, newSotWServer()
			c := NewClient(r, serve(t, s), ClientOptions{Variant: SotW})
			c.Subscribe(ClusterType)
			s.send("1", "1", Cluster("a"), Cluster("fence"))
			c.Ack(c.Recv(ctx))
			got := r.fails(func() {
				c.Fence(ctx, ClusterType, "fence", func() {
					rest := map[string][]proto.Message{"same": {Cluster("a")}, "changed": {StaticCluster("a")}}[name]
					s.send("2", "2", append([]proto.Message{StaticCluster("fence")}, rest...)...)
				})
			})
			if want == "" && got != "" || !strings.Contains(got, want) {
				t.Errorf("reported %q, want %q", got, want)
			}
		})
	}
}

func TestPauseDelaysResponses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := NewOrigin(t, OriginOptions{Memory: true})
		c := NewClient(t, o.Dial(), ClientOptions{AutoAck: true})
		c.Subscribe(ClusterType)
		c.WaitState(t.Context(), func(s State) bool { return s[ClusterType] != nil })
		c.Pause()
		o.Put(Cluster("a"))
		synctest.Wait()
		if c.TryRecv() != nil || o.State().Type(ClusterType).Unanswered() != 1 {
			t.Errorf("a paused client received a response: %v", o.State())
		}
		c.Resume()
		c.WaitState(t.Context(), func(s State) bool { return s.Has(ClusterType, "a") })
	})
}

// TestAliasesCountAsNames checks that a client receives a resource under an alias, and drops it when it unsubscribes
// from the alias.
func TestAliasesCountAsNames(t *testing.T) {
	o := NewOrigin(t, OriginOptions{})
	host := func(version string) *discoverypb.Resource {
		return &discoverypb.Resource{Name: "r/real", Version: version, Aliases: []string{"r/alias"},
			Resource: Opaque(VirtualHostType, "real", []byte(version))}
	}
	o.SetRaw(VirtualHostType, host("1"))
	c := NewClient(t, o.Dial(), ClientOptions{AutoAck: true})
	c.Subscribe(VirtualHostType, "r/alias")
	c.WaitState(t.Context(), func(s State) bool { return s.Has(VirtualHostType, "r/real") })
	o.SetRaw(VirtualHostType, host("2"))
	c.WaitState(t.Context(), func(s State) bool { return s[VirtualHostType]["r/real"].Version == "2" })
	c.Unsubscribe(VirtualHostType, "r/alias")
	if !c.State().Has(VirtualHostType) {
		t.Errorf("state %v after the alias was unsubscribed, want none", c.State())
	}
}
