package interop_test

import (
	"testing"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/controlplane"
	"github.com/xdstender/tender/relay/relaytest/instance"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// TestInterop_ChainLosesItsFirst: the first of two chained relays stops and returns. Clients of the second relay keep
// their resources, new clients are served, and changes arrive once the first relay is back.
func TestInterop_ChainLosesItsFirst(t *testing.T) {
	noLeaks(t)
	one, two := relaytest.NewBackend(t), relaytest.NewBackend(t)
	o := controlplane.New(t, controlplane.Linear, nil, grpcWorld(one)...)
	between := proxy.FreeAddress(t)
	first := relayAt(t, between, instance.Of(o))
	second := relayOf(t, instance.Options{Target: between})

	grpcs := []*grpcPeer{newGRPCPeer(t, second.Target, "early")}
	grpcs[0].reaches(one)
	envoys := make([]*relaytest.Client, 2)
	for v := range envoys {
		envoys[v] = second.Client(relaytest.ClientOptions{Variant: relaytest.Variant(v), AutoAck: true})
		envoys[v].Subscribe(relaytest.ClusterType)
		envoys[v].Subscribe(relaytest.EndpointType, "service-endpoints")
	}
	followed := func() {
		t.Helper()
		for _, c := range envoys {
			o.Follow(c, relaytest.ClusterType)
			o.Follow(c, relaytest.EndpointType, "service-endpoints")
		}
	}
	followed()

	mark := second.Log.Len()
	first.Stop()
	second.Log.Await(t, mark, "upstream stream closed")
	grpcs = append(grpcs, newGRPCPeer(t, second.Target, "late"))
	for _, c := range grpcs {
		c.reaches(one)
	}
	o.Put(relaytest.Endpoints("service-endpoints", two), relaytest.Cluster("while away"))
	relayAt(t, between, instance.Of(o))
	for _, c := range grpcs {
		c.reaches(two)
	}
	followed()
	for _, c := range envoys {
		for _, r := range c.Responses() {
			if len(r.Removed) > 0 {
				t.Errorf("%v received removals: %v", c, r)
			}
		}
	}
	o.Remove(relaytest.ClusterType, "while away")
	followed()
}
