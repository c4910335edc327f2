package relaytest

import (
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// holds waits until a client has so many clusters.
func holds(t *testing.T, c *Client, n int) {
	t.Helper()
	c.WaitState(t.Context(), func(s State) bool { return len(s[ClusterType]) == n })
}

// TestUnloadedContent: an origin forgets without a word, says so to those who return, and has it again.
func TestUnloadedContent(t *testing.T) {
	o := NewOrigin(t, OriginOptions{})
	o.Put(Cluster("a"), Cluster("b"), Cluster("c"))
	early := NewClient(t, o.Dial(), ClientOptions{AutoAck: true})
	early.Subscribe(ClusterType)
	holds(t, early, 3)
	load := o.Unload(func(_, name string) bool { return name == "a" })
	o.Put(Cluster("d")) // behind what else it might have said
	holds(t, early, 4)
	early.Reconnect(o.Dial())
	holds(t, early, 2)
	o.Put(Cluster("c", "newer"))
	load()
	holds(t, early, 4)
	if got, want := early.State()[ClusterType]["c"], o.Resources()[ClusterType]["c"]; got != want || o.Resources()[ClusterType]["b"] == (Entry{}) {
		t.Errorf("c is %v, the origin has %v", got, o.Resources())
	}
}

// TestLaggingContent: changes are missed until the origin catches up, and then made in their order.
func TestLaggingContent(t *testing.T) {
	o := NewOrigin(t, OriginOptions{})
	o.Put(Cluster("a"))
	c := NewClient(t, o.Dial(), ClientOptions{AutoAck: true})
	c.Subscribe(ClusterType)
	holds(t, c, 1)
	catchUp := o.Lag()
	o.Put(Cluster("b"), Cluster("c"))
	o.Remove(ClusterType, "b")
	c.Reconnect(o.Dial())
	if n := len(o.Resources()[ClusterType]); n != 1 {
		t.Errorf("it has %d clusters while it lags, want 1", n)
	}
	catchUp()
	holds(t, c, 2)
	o.Put(Cluster("d"))
	holds(t, c, 3)
}

// TestRefusedNodes: streams of some nodes end with the status, those that are open and those that are opened.
func TestRefusedNodes(t *testing.T) {
	o := NewOrigin(t, OriginOptions{})
	o.Put(Cluster("a"))
	join := func(cluster string) *Client {
		c := NewClient(t, o.Dial(), ClientOptions{Node: &corepb.Node{Id: "1", Cluster: cluster}, AutoAck: true})
		c.Subscribe(ClusterType)
		return c
	}
	blue, green := join("blue"), join("green")
	holds(t, blue, 1)
	holds(t, green, 1)
	allow := o.Refuse(func(n *corepb.Node) bool { return n.GetCluster() == "blue" }, status.New(codes.PermissionDenied, "not you"))
	for _, c := range []*Client{blue, join("blue")} {
		if err := c.WaitEnd(t.Context()); status.Code(err) != codes.PermissionDenied {
			t.Errorf("the stream ended with %v, want PERMISSION_DENIED", err)
		}
	}
	o.Put(Cluster("b"))
	holds(t, green, 2)
	allow()
	holds(t, join("blue"), 2)
}
