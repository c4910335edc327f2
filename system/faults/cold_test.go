package faults_test

import (
	"fmt"
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// variants are the protocol variants of clients.
var variants = []relaytest.Variant{relaytest.Delta, relaytest.SotW}

// A mover is a client that has received all resources from one relay and then connects to a relay without state.
type mover struct {
	*relaytest.Client
	variant relaytest.Variant
	to      *relayProcess
	told    int // number of responses before the move
}

// after returns the responses since the move.
func (m *mover) after() []*relaytest.Response { return m.Responses()[m.told:] }

// TestB8_R134_ColdRelayWithoutOrigin: a relay that starts while its origin is unreachable sends nothing to clients
// that hold state. It ends their streams after the cold wait, so that they try another relay. Once the origin is
// reachable, they receive only changes.
func TestB8_R134_ColdRelayWithoutOrigin(t *testing.T) {
	t.Parallel()
	plane := newControlPlane(t)
	good := serve(t, "TENDER_ORIGIN="+plane.addr)
	links := make(map[*relayProcess]*proxy.Proxy)
	var movers []*mover
	for _, l := range []proxy.Link{
		{Refuse: true},
		{Down: proxy.Way{Hold: true}},
		{Answer: proxy.AnswerNothing},
		{Answer: proxy.AnswerHTTP1},
		{Answer: proxy.AnswerHTTP2(proxy.StreamReset(http2.ErrCodeRefusedStream))},
	} {
		link := proxy.New(t, plane.addr)
		link.Set(l)
		cold := serve(t, "TENDER_ORIGIN="+link.Addr(), "TENDER_COLD_WAIT=1s")
		links[cold] = link
		for _, v := range variants {
			c := good.client(v, fmt.Sprintf("mover to %s %v", cold.addr, v))
			subscribe(c)
			movers = append(movers, &mover{Client: c, variant: v, to: cold})
		}
	}
	for _, m := range movers {
		served(t, 1000, m.Client)
		m.Close()
		m.told = len(m.Responses())
		m.Reconnect(m.to.conn())
	}
	for _, m := range movers {
		if err := m.WaitEnd(within(t, relaytest.Patience)); status.Code(err) != codes.Unavailable {
			t.Errorf("%v: the stream ended with %v, want %v", m, err, codes.Unavailable)
		}
		if after := m.after(); len(after) > 0 {
			t.Errorf("%v received responses from a relay without state: %v", m, after)
		}
	}

	for cold, link := range links {
		link.Set(proxy.Link{})
		mark := cold.Mark()
		link.Cut()
		cold.AwaitLine(mark, "connected to the origin")
	}
	for _, m := range movers {
		m.Reconnect(m.to.conn())
	}
	plane.change(2000)
	for _, m := range movers {
		served(t, 2000, m.Client)
		for _, r := range m.after() {
			if len(r.Removed) > 0 {
				t.Errorf("%v received removals: %v", m, r)
			}
			if m.variant == relaytest.Delta && r.TypeURL != relaytest.EndpointType { // endpoints are always sent (B.3)
				t.Errorf("%v received resources that it already had: %v", m, r)
			}
		}
	}
}

// TestB7_R066_SlowOriginInPieces: an origin sends its resources in several responses over a slow link, seconds apart.
// Clients that hold state receive none of these responses, because nothing has changed. Clients without state receive
// all resources in the end, and no removal.
func TestB7_R066_SlowOriginInPieces(t *testing.T) {
	t.Parallel()
	const pieces, each = 3, 20
	origin := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	resources := make([]*discoverypb.Resource, pieces*each)
	for i := range resources {
		name := fmt.Sprintf("cluster-%02d", i)
		origin.Set(relaytest.ClusterType, name, relaytest.StaticCluster(name, "127.0.0.1:1"), "1")
		resources[i] = packed(t, name, "1", relaytest.StaticCluster(name, "127.0.0.1:1"))
	}
	good := serve(t, "TENDER_ORIGIN="+origin.Addr())
	complete := func(s relaytest.State) bool { return len(s[relaytest.ClusterType]) == len(resources) }
	var movers []*mover
	for _, v := range variants {
		c := good.client(v, fmt.Sprint("mover ", v))
		c.Subscribe(relaytest.ClusterType)
		c.WaitState(t.Context(), complete)
		movers = append(movers, &mover{Client: c, variant: v, told: len(c.Responses())})
	}
	origin.Accept(t.Context())
	origin.Change(func(b *relaytest.Behaviour) { b.Manual = true })

	link := proxy.New(t, origin.Addr())
	slow := serve(t, "TENDER_ORIGIN="+link.Addr())
	var fresh []*relaytest.Client
	for i, v := range variants {
		movers[i].Reconnect(slow.conn())
		c := slow.client(v, fmt.Sprint("fresh ", v))
		c.Subscribe(relaytest.ClusterType)
		fresh = append(fresh, c)
	}
	stream := origin.Accept(t.Context())
	stream.Recv(t.Context())
	link.Set(proxy.Link{Down: proxy.Way{Rate: 2000}}) // a response takes more than a second
	for i := range pieces {
		stream.Send(&discoverypb.DeltaDiscoveryResponse{TypeUrl: relaytest.ClusterType, Resources: resources[i*each : (i+1)*each]})
	}
	for _, c := range fresh {
		c.WaitState(t.Context(), complete)
	}
	link.Set(proxy.Link{})
	change := relaytest.StaticCluster("cluster-00", "127.0.0.1:2")
	stream.Send(&discoverypb.DeltaDiscoveryResponse{
		TypeUrl: relaytest.ClusterType, Resources: []*discoverypb.Resource{packed(t, "cluster-00", "2", change)},
	})
	for _, m := range movers {
		m.WaitState(t.Context(), func(s relaytest.State) bool {
			return s.Digest(relaytest.ClusterType, "cluster-00") == relaytest.DigestOf(change)
		})
		after := m.after()
		if len(after) != 1 || !complete(m.State()) {
			t.Errorf("%v received %v, want only the change", m, after)
		}
	}
	for _, c := range append(fresh, movers[0].Client) {
		for _, r := range c.Responses() {
			if len(r.Removed) > 0 {
				t.Errorf("%v received removals: %v", c, r)
			}
		}
	}
}

// packed returns a resource of a Delta response.
func packed(t *testing.T, name, version string, m proto.Message) *discoverypb.Resource {
	t.Helper()
	body, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return &discoverypb.Resource{Name: name, Version: version, Resource: body}
}
