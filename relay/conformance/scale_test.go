package conformance_test

import (
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
)

// Names that begin with "stay" are never removed. Those that begin with "go" are removed once.
const (
	scaleStreams  = 60
	scaleConns    = 6
	scaleChanges  = 50
	scaleClusters = 10 // of each of the two kinds of names
	scaleListens  = 5  // of each of the two kinds of names
)

// A scaleClient is one of many light clients.
type scaleClient struct {
	*relaytest.LightClient
	variant relaytest.Variant
	eds     string // the endpoints that it subscribes to

	// The number of responses with each permanent resource, by type, and with endpoints. The client's goroutine
	// writes them.
	clusters, listeners [scaleClusters]atomic.Int64
	endpoints           atomic.Int64
}

// newScaleClient connects the ith client.
func newScaleClient(t *testing.T, conn *grpc.ClientConn, i int) *scaleClient {
	c := &scaleClient{variant: relaytest.Variant(i % 2), eds: fmt.Sprintf("stay%d", i%scaleClusters)}
	c.LightClient = relaytest.NewLightClient(t, conn, relaytest.LightOptions{
		Variant: c.variant,
		Node:    relaytest.EnvoyNode(fmt.Sprintf("envoy%d", i)),
		OnResource: func(typeURL string, name, _ []byte) {
			if typeURL == relaytest.EndpointType {
				c.endpoints.Add(1)
				return
			}
			number, permanent := strings.CutPrefix(string(name), "stay")
			if !permanent {
				return
			}
			at, err := strconv.Atoi(number)
			if err != nil {
				t.Errorf("got the unexpected resource %q", name)
				return
			}
			if typeURL == relaytest.ClusterType {
				c.clusters[at].Add(1)
			} else {
				c.listeners[at].Add(1)
			}
		},
	})
	c.Subscribe(relaytest.ClusterType)
	c.Subscribe(relaytest.EndpointType, c.eds)
	c.Subscribe(relaytest.ListenerType)
	return c
}

// converged reports whether s has the client's resources of origin.
func (c *scaleClient) converged(s, world relaytest.State) bool {
	return s.SameContent(world, relaytest.ClusterType) && s.SameContent(world, relaytest.ListenerType) &&
		s.Digest(relaytest.EndpointType, c.eds) == world.Digest(relaytest.EndpointType, c.eds)
}

// check fails the test if the client got removals that the origin did not make. In Delta, the number of removed
// names must be the origin's. In SotW, all complete responses must contain all permanent resources.
func (c *scaleClient) check(t *testing.T, removed int) {
	t.Helper()
	counts := c.Counts()
	if c.variant == relaytest.Delta {
		if counts.Removed != removed {
			t.Errorf("%v: got %d removals, want %d", c, counts.Removed, removed)
		}
		return
	}
	clusters, listeners := c.clusters[0].Load(), c.listeners[0].Load()
	for i := range scaleClusters {
		if got := c.clusters[i].Load(); got != clusters {
			t.Errorf("%v: got cluster stay%d %d times, but stay0 %d times", c, i, got, clusters)
		}
		if got := c.listeners[i].Load(); i < scaleListens && got != listeners {
			t.Errorf("%v: got listener stay%d %d times, but stay0 %d times", c, i, got, listeners)
		}
	}
	if all := clusters + listeners + c.endpoints.Load(); int64(counts.Responses) != all {
		t.Errorf("%v: got %d responses, but permanent resources %d times", c, counts.Responses, all)
	}
}

// scaleWorld returns the initial resources.
func scaleWorld() (msgs []proto.Message) {
	for i := range scaleClusters {
		for _, kind := range []string{"stay", "go"} {
			name := fmt.Sprintf("%s%d", kind, i)
			msgs = append(msgs, relaytest.Cluster(name), relaytest.Endpoints(name, "127.0.0.1:1"))
			if i < scaleListens {
				msgs = append(msgs, relaytest.Listener(name, "route"))
			}
		}
	}
	return msgs
}

// scaleChange makes the nth change, and returns the number of removed resources.
func scaleChange(o *relaytest.Origin, n int) (removed int) {
	i := n % scaleClusters
	stay, temporary := fmt.Sprintf("stay%d", i), fmt.Sprintf("go%d", n/5)
	switch n % 5 {
	case 0:
		o.Put(relaytest.Cluster(stay, fmt.Sprintf("stay%d", (i+1)%scaleClusters)))
	case 1:
		o.Put(relaytest.Cluster(fmt.Sprintf("new%d", n)), relaytest.Endpoints(fmt.Sprintf("new%d", n), "127.0.0.1:1"))
	case 2:
		o.Remove(relaytest.ClusterType, temporary)
		return 1
	case 3:
		o.Put(relaytest.Endpoints(stay, fmt.Sprintf("127.0.0.1:%d", n+2)))
	default:
		if n/5 < scaleListens {
			o.Remove(relaytest.ListenerType, temporary)
			return 1
		}
		o.Put(relaytest.Listener(fmt.Sprintf("stay%d", n%scaleListens), fmt.Sprintf("route%d", n)))
	}
	return 0
}

// Many streams, half of each variant, converge to the origin's resources after 50 changes, and get no removals that
// the origin did not make.
func TestScale_ManyStreamsConverge(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(scaleWorld()...)
		r := start(t, o)
		conns := make([]*grpc.ClientConn, scaleConns)
		for i := range conns {
			conns[i] = r.Conn()
		}
		clients := make([]*scaleClient, scaleStreams)
		for i := range clients {
			clients[i] = newScaleClient(t, conns[i%scaleConns], i)
		}
		converge := func() {
			t.Helper()
			world := o.Resources()
			for _, c := range clients {
				c.WaitState(t.Context(), func(s relaytest.State) bool { return c.converged(s, world) })
			}
		}
		converge()
		if got := r.Streams(); got != scaleStreams {
			t.Errorf("the relay has %d streams, want %d", got, scaleStreams)
		}
		removed := 0
		for n := range scaleChanges {
			removed += scaleChange(o, n)
			if n%10 == 9 { // other changes are merged while clients are slow
				clients[n].WaitState(t.Context(), func(s relaytest.State) bool { return clients[n].converged(s, o.Resources()) })
			}
		}
		converge()
		for _, c := range clients {
			c.check(t, removed)
		}
	})
}
