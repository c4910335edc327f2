package relay_test

import (
	"testing"

	"github.com/xdstender/tender/relay/relaytest"
)

// TestInterop_ChainLosesItsFirst: the first relay of a chain dies and returns, as
// every process does at times. Clients of the second see nothing of it: what they
// have stays, new ones are served, and changes come once the first is back.
func TestInterop_ChainLosesItsFirst(t *testing.T) {
	interopLeaks(t)
	one, two := relaytest.NewBackend(t), relaytest.NewBackend(t)
	o := newControlPlane(t, linearCaches, nil, grpcWorld(one)...)
	between := relaytest.FreeAddress(t)
	first, _ := interopStart(t, o.Target(), between, nil)
	second, log := interopStart(t, between, "", nil)

	grpcs := []*grpcPeer{newGRPCPeer(t, second.target, "early")}
	grpcs[0].reaches(one)
	envoys := make([]*relaytest.Client, 2)
	for v := range envoys {
		envoys[v] = second.client(relaytest.ClientOptions{Variant: relaytest.Variant(v), AutoAck: true})
		envoys[v].Subscribe(relaytest.ClusterType)
		envoys[v].Subscribe(relaytest.EndpointType, "service-endpoints")
	}
	followed := func() {
		t.Helper()
		for _, c := range envoys {
			follow(c, o, relaytest.ClusterType)
			follow(c, o, relaytest.EndpointType, "service-endpoints")
		}
	}
	followed()

	mark := log.mark()
	first.stop()
	log.await(t, mark, "upstream stream closed")
	grpcs = append(grpcs, newGRPCPeer(t, second.target, "late"))
	for _, c := range grpcs {
		c.reaches(one)
	}
	o.Put(relaytest.Endpoints("service-endpoints", two), relaytest.Cluster("while away"))
	interopStart(t, o.Target(), between, nil)
	for _, c := range grpcs {
		c.reaches(two)
	}
	followed()
	for _, c := range envoys {
		for _, r := range c.Responses() {
			if len(r.Removed) > 0 {
				t.Errorf("%v was told of removals: %v", c, r)
			}
		}
	}
	o.Remove(relaytest.ClusterType, "while away")
	followed()
}
