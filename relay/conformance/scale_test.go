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

// The world of the scale test. Names that begin with "stay" are never removed,
// those that begin with "go" are removed once and do not return.
const (
	scaleStreams  = 1000
	scaleConns    = 10
	scaleChanges  = 50
	scaleClusters = 10 // of each of the two kinds
	scaleListens  = 5  // likewise
)

// A scaleClient is one of many light clients.
type scaleClient struct {
	*relaytest.LightClient
	variant relaytest.Variant
	eds     string // the one ClusterLoadAssignment that it asks for

	// How often the client was sent each of the resources that stay, by type, and
	// endpoints. Written by the client's goroutine.
	clusters, listeners [scaleClusters]atomic.Int64
	endpoints           atomic.Int64
}

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
			number, stays := strings.CutPrefix(string(name), "stay")
			if !stays {
				return
			}
			at, err := strconv.Atoi(number)
			if err != nil {
				t.Errorf("resource %q", name)
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

// has reports whether s is what the client should have of a world.
func (c *scaleClient) has(s, world relaytest.State) bool {
	return s.SameContent(world, relaytest.ClusterType) && s.SameContent(world, relaytest.ListenerType) &&
		s.Digest(relaytest.EndpointType, c.eds) == world.Digest(relaytest.EndpointType, c.eds)
}

// check fails the test if the client was told of a removal that the origin did
// not make. In Delta, more names were removed than the origin removed: each of
// them goes once. In SotW, a response left out a resource that stays: all
// responses of a type hold all of them, and each response has a type.
func (c *scaleClient) check(t *testing.T, removed int) {
	t.Helper()
	counts := c.Counts()
	if c.variant == relaytest.Delta {
		if counts.Removed != removed {
			t.Errorf("%v: %d names were removed, want %d", c, counts.Removed, removed)
		}
		return
	}
	clusters, listeners := c.clusters[0].Load(), c.listeners[0].Load()
	for i := range scaleClusters {
		if got := c.clusters[i].Load(); got != clusters {
			t.Errorf("%v: cluster stay%d came %d times, and stay0 %d times", c, i, got, clusters)
		}
		if got := c.listeners[i].Load(); i < scaleListens && got != listeners {
			t.Errorf("%v: listener stay%d came %d times, and stay0 %d times", c, i, got, listeners)
		}
	}
	if all := clusters + listeners + c.endpoints.Load(); int64(counts.Responses) != all {
		t.Errorf("%v: %d responses, but what stays came %d times", c, counts.Responses, all)
	}
}

// scaleWorld is what the origin begins with.
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

// scaleChange makes the nth change, and returns how many members it removed.
func scaleChange(o *relaytest.Origin, n int) (removed int) {
	i := n % scaleClusters
	stay, gone := fmt.Sprintf("stay%d", i), fmt.Sprintf("go%d", n/5)
	switch n % 5 {
	case 0:
		o.Put(relaytest.Cluster(stay, fmt.Sprintf("stay%d", (i+1)%scaleClusters)))
	case 1:
		o.Put(relaytest.Cluster(fmt.Sprintf("new%d", n)), relaytest.Endpoints(fmt.Sprintf("new%d", n), "127.0.0.1:1"))
	case 2:
		o.Remove(relaytest.ClusterType, gone)
		return 1
	case 3:
		o.Put(relaytest.Endpoints(stay, fmt.Sprintf("127.0.0.1:%d", n+2)))
	default:
		if n/5 < scaleListens {
			o.Remove(relaytest.ListenerType, gone)
			return 1
		}
		o.Put(relaytest.Listener(fmt.Sprintf("stay%d", n%scaleListens), fmt.Sprintf("route%d", n)))
	}
	return 0
}

// TestScale_ThousandStreamsConverge: a thousand streams, half of each variant,
// end with what the origin has after 50 changes, and none is told of a removal
// that the origin did not make.
func TestScale_ThousandStreamsConverge(t *testing.T) {
	t.Parallel()
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
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
			c.WaitState(t.Context(), func(s relaytest.State) bool { return c.has(s, world) })
		}
	}
	converge()
	if got := r.Streams(); got != scaleStreams {
		t.Errorf("the relay has %d streams, want %d", got, scaleStreams)
	}
	removed := 0
	for n := range scaleChanges {
		removed += scaleChange(o, n)
		if n%10 == 9 { // the rest are merged as the clients' pace has it
			clients[n].WaitState(t.Context(), func(s relaytest.State) bool { return clients[n].has(s, o.Resources()) })
		}
	}
	converge()
	for _, c := range clients {
		c.check(t, removed)
	}
}
