package relaytest

import (
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// waitClusters waits until a client has n clusters.
func waitClusters(t *testing.T, c *Client, n int) {
	t.Helper()
	c.WaitState(t.Context(), func(s State) bool { return len(s[ClusterType]) == n })
}

// TestUnloadedContent checks that unloaded resources are removed at reconnecting clients only, and that load restores
// them.
func TestUnloadedContent(t *testing.T) {
	o := NewOrigin(t, OriginOptions{})
	o.Put(Cluster("a"), Cluster("b"), Cluster("c"))
	early := NewClient(t, o.Dial(), ClientOptions{AutoAck: true})
	early.Subscribe(ClusterType)
	waitClusters(t, early, 3)
	load := o.Unload(func(_, name string) bool { return name == "a" })
	o.Put(Cluster("d")) // sent after any other response
	waitClusters(t, early, 4)
	early.Reconnect(o.Dial())
	waitClusters(t, early, 2)
	o.Put(Cluster("c", "newer"))
	load()
	waitClusters(t, early, 4)
	if got, want := early.State()[ClusterType]["c"], o.Resources()[ClusterType]["c"]; got != want ||
		o.Resources()[ClusterType]["b"] == (Entry{}) {
		t.Errorf("c is %v, resources of the origin %v", got, o.Resources())
	}
}

// TestLaggingContent checks that changes are held back until the origin catches up, and then made in order.
func TestLaggingContent(t *testing.T) {
	o := NewOrigin(t, OriginOptions{})
	o.Put(Cluster("a"))
	c := NewClient(t, o.Dial(), ClientOptions{AutoAck: true})
	c.Subscribe(ClusterType)
	waitClusters(t, c, 1)
	catchUp := o.Lag()
	o.Put(Cluster("b"), Cluster("c"))
	o.Remove(ClusterType, "b")
	c.Reconnect(o.Dial())
	if n := len(o.Resources()[ClusterType]); n != 1 {
		t.Errorf("the lagging origin has %d clusters, want 1", n)
	}
	catchUp()
	waitClusters(t, c, 2)
	o.Put(Cluster("d"))
	waitClusters(t, c, 3)
}

// TestRejectedNodes checks that open and new streams of some nodes end with the status.
func TestRejectedNodes(t *testing.T) {
	o := NewOrigin(t, OriginOptions{})
	o.Put(Cluster("a"))
	join := func(cluster string) *Client {
		c := NewClient(t, o.Dial(), ClientOptions{Node: &corepb.Node{Id: "1", Cluster: cluster}, AutoAck: true})
		c.Subscribe(ClusterType)
		return c
	}
	blue, green := join("blue"), join("green")
	waitClusters(t, blue, 1)
	waitClusters(t, green, 1)
	allow := o.Refuse(func(n *corepb.Node) bool { return n.GetCluster() == "blue" },
		status.New(codes.PermissionDenied, "not you"))
	for _, c := range []*Client{blue, join("blue")} {
		if err := c.WaitEnd(t.Context()); status.Code(err) != codes.PermissionDenied {
			t.Errorf("the stream ended with %v, want PERMISSION_DENIED", err)
		}
	}
	o.Put(Cluster("b"))
	waitClusters(t, green, 2)
	allow()
	waitClusters(t, join("blue"), 2)
}
