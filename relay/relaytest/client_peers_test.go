package relaytest

import (
	"fmt"
	"slices"
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"
)

// peer is a client of either kind.
type peer interface {
	Subscribe(typeURL string, names ...string)
	State() State
}

func peers(t *testing.T, conn *grpc.ClientConn, id string) map[string]peer {
	all := make(map[string]peer)
	for _, v := range []Variant{Delta, SotW} {
		all[v.String()] = NewClient(t, conn, ClientOptions{Variant: v, Node: EnvoyNode(id), AutoAck: true})
		all["light "+v.String()] = NewLightClient(t, conn, LightOptions{Variant: v, Node: EnvoyNode(id)})
	}
	return all
}

func await(t *testing.T, p peer, cond func(State) bool) {
	t.Helper()
	switch c := p.(type) {
	case *Client:
		c.WaitState(t.Context(), cond)
	case *LightClient:
		c.WaitState(t.Context(), cond)
	}
}

// TestClientsOfRealControlPlanes checks that clients of each kind follow go-control-plane.
func TestClientsOfRealControlPlanes(t *testing.T) {
	for _, kind := range []string{LinearCaches, ADSSnapshots} {
		route := Route("r", []string{"*"}, "a")
		o := NewControlPlane(t, kind, nil, Cluster("a"), Cluster("b"), Endpoints("a", "127.0.0.1:1"), Listener("l", "r"),
			route)
		conn, err := grpc.NewClient(o.Target(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		all := peers(t, conn, "tender/test")
		for _, p := range all {
			p.Subscribe(ClusterType)
			p.Subscribe(EndpointType, "a") // in ADS mode, a cache answers only requests for all of its endpoints
			p.Subscribe(ListenerType)
			p.Subscribe(RouteType, "r")
			await(t, p, func(s State) bool {
				return s.Has(ClusterType, "a", "b") && s.Has(EndpointType, "a") && s.Has(ListenerType, "l") && s.Has(RouteType, "r")
			})
		}
		o.Edit(nil, map[string][]string{ListenerType: {"l"}})
		o.Put(StaticCluster("b"), Endpoints("a", "127.0.0.1:2"), APIListener("l2", "r"))
		for name, p := range all {
			await(t, p, func(s State) bool {
				return s.Digest(ClusterType, "b") == DigestOf(StaticCluster("b")) && s.Has(ListenerType, "l2") &&
					s.Digest(EndpointType, "a") == DigestOf(Endpoints("a", "127.0.0.1:2"))
			})
			if got := p.State().Digest(RouteType, "r"); got != DigestOf(route) {
				t.Errorf("%s, %s: route is %v, want %v", kind, name, got, DigestOf(route))
			}
		}
	}
}

// TestLightClientEqualsClient compares the parser of the light client with the generated code.
func TestLightClientEqualsClient(t *testing.T) {
	o := NewOrigin(t, OriginOptions{})
	o.Put(Cluster("a"), Cluster("b"), Listener("l", "r"))
	o.SetRaw(VirtualHostType, &discoverypb.Resource{Name: "r/alias", Version: "1", Aliases: []string{"r/alias"}})
	o.SetRaw(VirtualHostType, &discoverypb.Resource{
		Name: "r/host", Version: "1", Ttl: durationpb.New(1e9), Resource: Opaque(VirtualHostType, "host", nil),
	})
	conn := o.Dial()
	c := NewClient(t, conn, ClientOptions{AutoAck: true, Node: WithFeatures(EnvoyNode("client"), FeatureTTL)})
	values := make(chan string, 100)
	l := NewLightClient(t, conn, LightOptions{OnResource: func(typeURL string, name, value []byte) {
		values <- fmt.Sprint(short(typeURL), " ", string(name), " ", len(value) > 0)
	}})
	for _, p := range []peer{c, l} {
		for _, typeURL := range []string{ClusterType, ListenerType, VirtualHostType} {
			p.Subscribe(typeURL)
		}
		await(t, p, func(s State) bool { return len(s) == 3 })
	}
	o.SetRaw(VirtualHostType, &discoverypb.Resource{Name: "r/host", Version: "1", Ttl: durationpb.New(1e9)}) // a heartbeat
	o.Remove(ClusterType, "a")
	for _, p := range []peer{c, l} {
		await(t, p, func(s State) bool { return s.Has(ClusterType, "b") })
	}
	if got, want := l.State(), c.State(); !slices.EqualFunc([]string{ClusterType, ListenerType, VirtualHostType},
		[]string{ClusterType, ListenerType, VirtualHostType}, func(a, _ string) bool { return got.SameContent(want, a) }) {
		t.Errorf("light client has %v, client %v", got, want)
	}
	if got := c.State().Digest(VirtualHostType, "r/host"); got != DigestOf(Opaque(VirtualHostType, "host", nil)) {
		t.Errorf("the heartbeat changed the digest to %v", got)
	}
	if got := l.Counts(); got.Responses != 5 || got.Resources != 6 || got.Removed != 1 {
		t.Errorf("counted %+v, want 5 responses, 6 resources, 1 removed", got)
	}
	l.Close()
	close(values)
	var seen []string
	for v := range values {
		seen = append(seen, v)
	}
	want := []string{"Cluster a true", "Cluster b true", "Listener l true", "VirtualHost r/alias false",
		"VirtualHost r/host false", "VirtualHost r/host true"}
	if slices.Sort(seen); !slices.Equal(seen, want) {
		t.Errorf("OnResource saw %v, want %v", seen, want)
	}
}
