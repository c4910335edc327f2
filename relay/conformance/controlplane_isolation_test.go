package conformance_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/controlplane"
	"github.com/xdstender/tender/relay/relaytest/instance"
	"github.com/xdstender/tender/relay/relaytest/memnet"
)

// unserved is a type for which a MuxCache of go-control-plane has no cache: it ends the stream with UNKNOWN.
const unserved = relaytest.RuntimeType

// TestB48_GoControlPlaneEndsStreams: a client subscribes to a type for which go-control-plane ends the stream. Only that
// client waits. All others receive changes and removals, new ones are served, and the origin is sent few streams. It
// makes no difference whether the type is requested on an open stream or on the first one.
func TestB48_GoControlPlaneEndsStreams(t *testing.T) {
	for _, kind := range []string{controlplane.Linear, controlplane.LinearSotW} {
		for _, first := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/first=%v", kind, first), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					o := controlplane.New(t, kind, new(memnet.Network), planeWorld()...)
					r := startRelay(t, instance.Of(o))
					odd := r.Client(relaytest.ClientOptions{Variant: relaytest.Delta, AutoAck: true, Node: relaytest.EnvoyNode("odd")})
					if first {
						odd.Subscribe(unserved, "a", "b")
					}
					p := newPlaneClients(o, r)
					if !first {
						p.converge()
						odd.Subscribe(unserved, "a", "b")
					}
					p.converge()
					for i := range 20 {
						p.o.Put(relaytest.Cluster("c1", fmt.Sprint("elsewhere ", i)), relaytest.Endpoints("c1", fmt.Sprint("127.0.0.1:", 2000+i)))
						p.o.Remove(relaytest.ListenerType, "l1")
						p.o.Put(relaytest.Listener("l1", fmt.Sprint("r", i%2)))
						p.converge()
						time.Sleep(3 * time.Second)
					}
					late := p.envoy(relaytest.Delta)
					o.Follow(late, relaytest.ListenerType)
				})
			})
		}
	}
}
