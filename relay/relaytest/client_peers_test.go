package relaytest

import (
	"context"
	"fmt"
	"slices"
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/durationpb"
)

// peer is a client of either kind.
type peer interface {
	Subscribe(typeURL string, names ...string)
	WaitState(ctx context.Context, cond func(State) bool)
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
		values <- fmt.Sprint(ShortType(typeURL), " ", string(name), " ", len(value) > 0)
	}})
	for _, p := range []peer{c, l} {
		for _, typeURL := range []string{ClusterType, ListenerType, VirtualHostType} {
			p.Subscribe(typeURL)
		}
		p.WaitState(t.Context(), func(s State) bool { return len(s) == 3 })
	}
	o.SetRaw(VirtualHostType, &discoverypb.Resource{Name: "r/host", Version: "1", Ttl: durationpb.New(1e9)}) // a heartbeat
	o.Remove(ClusterType, "a")
	for _, p := range []peer{c, l} {
		p.WaitState(t.Context(), func(s State) bool { return s.Has(ClusterType, "b") })
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
