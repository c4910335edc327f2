package hostile_test

import (
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/relaytest"
)

// of returns a client of a node that connects from an address.
func (v *victim) of(node, host string) *relaytest.Client {
	v.t.Helper()
	return relaytest.NewClient(v.t, v.Conn(from(host)), relaytest.ClientOptions{Variant: relaytest.Delta, AutoAck: true, Node: relaytest.EnvoyNode(node)})
}

// B.35: 300 nodes of one address, each in a group of its own, open no more streams to the origin than one peer may, and do not
// evict a group of another address that nobody is in: its client is served when it comes back, although the origin is gone.
func TestB35_GroupChurn(t *testing.T) {
	const most, ofPeer, nodes = 32, 4, 300
	v := serve(t, "TENDER_NODE_GROUP_BY=id", fmt.Sprint("TENDER_MAX_GROUPS=", most), fmt.Sprint("TENDER_MAX_GROUPS_PER_CLIENT=", ofPeer))
	v.origin.Put(relaytest.Route("kept", []string{"*"}, "a"))
	absent := v.of("absent", "127.0.0.4")
	absent.Subscribe(relaytest.RouteType, "kept")
	absent.WaitState(t.Context(), func(s relaytest.State) bool { return len(s[relaytest.RouteType]) > 0 })
	absent.Close()
	before, refused := len(v.origin.State().Streams), 0
	v.during(func() {
		for i := range nodes {
			c := v.of(fmt.Sprint("node-", i), "127.0.0.3")
			c.Subscribe(relaytest.ClusterType, "a")
			v.await("the node is served or refused", func() bool { return c.Ended() || len(c.Responses()) > 0 })
			if c.Ended() {
				refused++
				if err := c.WaitEnd(t.Context()); status.Code(err) != codes.ResourceExhausted {
					t.Errorf("the node was refused with %v, want RESOURCE_EXHAUSTED", err)
				}
			}
			c.Close()
		}
	})
	opened := len(v.origin.State().Streams) - before
	t.Logf("%d streams to the origin for %d nodes, of which %d were refused", opened, nodes, refused)
	if most := 2 * (most + 2*ofPeer); opened > most || refused < nodes-most {
		t.Errorf("%d streams to the origin for %d nodes of one address, of which %d were refused: want at most %d", opened, nodes, refused, most)
	}
	if n := v.Stats().Refused[guard.LimitPeerGroups]; n != int64(refused) {
		t.Errorf("%d were refused for the limit, want %d", n, refused)
	}
	v.origin.Stop()
	back := v.of("absent", "127.0.0.4")
	back.Subscribe(relaytest.RouteType, "kept")
	back.WaitState(t.Context(), func(s relaytest.State) bool { return len(s[relaytest.RouteType]) > 0 })
}
