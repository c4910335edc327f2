package hostile_test

import (
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/relaytest"
)

// of returns a Delta client with a node ID that connects from an IP address.
func (v *victim) of(node, host string) *relaytest.Client {
	v.t.Helper()
	return relaytest.NewClient(v.t, v.Conn(from(host)), relaytest.ClientOptions{Variant: relaytest.Delta, AutoAck: true, Node: relaytest.EnvoyNode(node)})
}

// TestB35_GroupChurn: 60 nodes connect from one address, each in a separate group. They open no more streams to the
// origin than one address may, and do not evict the group of a disconnected client of another address. That client is
// served when it reconnects, although the origin is down. (B.35)
func TestB35_GroupChurn(t *testing.T) {
	const most, ofPeer, nodes = 8, 2, 60
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
			v.await("a response or the end of the stream", func() bool { return c.Ended() || len(c.Responses()) > 0 })
			if c.Ended() {
				refused++
				if err := c.WaitEnd(t.Context()); status.Code(err) != codes.ResourceExhausted {
					t.Errorf("the stream ended with %v, want RESOURCE_EXHAUSTED", err)
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
		t.Errorf("%d refusals are counted, want %d", n, refused)
	}
	v.origin.Stop()
	back := v.of("absent", "127.0.0.4")
	back.Subscribe(relaytest.RouteType, "kept")
	back.WaitState(t.Context(), func(s relaytest.State) bool { return len(s[relaytest.RouteType]) > 0 })
}
