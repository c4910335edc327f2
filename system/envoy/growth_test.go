package envoy_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
)

// TestB51_EnvoysKeepWorkingWhileGrowthWaits: in one snapshot, the control plane adds 1,200 clusters, routes all requests to one of
// them, and removes the cluster that they used. Until an operator passes it, the Envoy has the old cluster and none of the new ones.
// No request fails, neither then nor afterwards.
func TestB51_EnvoysKeepWorkingWhileGrowthWaits(t *testing.T) {
	matrix(t, ads, func(t *testing.T, c client) {
		o, plane := &outcome{t: t}, envoytest.NewControlPlane(t)
		before, after := envoytest.NewBackend(t, "before"), envoytest.NewBackend(t, "after")
		plane.Put(web("old", before)...)
		relay := envoytest.StartRelay(t, plane.Addr, "TENDER_COLD_WAIT=100ms")
		e := envoytest.Start(t, c.options(relay.Addr, "edge"))
		load := envoytest.StartLoad(t, e.Listener("web"), interval)
		o.answers(load, before)
		relay.Await("the clusters to be complete, so that what follows is no first state", func() error {
			if status := relay.Tender("status", "-o", "json"); strings.Count(status, `"phase": "confirmed"`) < 2 {
				return fmt.Errorf("tender status: %s", status)
			}
			return nil
		})

		grown := []proto.Message{relaytest.Route("web", []string{"*"}, "new-0")}
		for i := range 1200 {
			name := fmt.Sprint("new-", i)
			grown = append(grown, &clusterpb.Cluster{Name: name, LoadAssignment: relaytest.Endpoints(name, after.Addr)})
		}
		plane.Apply("", func(w *envoytest.World) {
			w.Put(grown...)
			w.Remove(relaytest.ClusterType, "old")
			w.Remove(relaytest.EndpointType, "old")
		})
		relay.Await("the growth to be pending", func() error {
			rows := relay.Tender("pending", "growth")
			for _, want := range []string{"new-0", "old", "web"} {
				if !strings.Contains(rows, want) {
					return fmt.Errorf("no %s in tender pending growth: %s", want, rows)
				}
			}
			return nil
		})
		load.Continue(requestsIn(2 * time.Second))
		if names := e.Config().Names("dynamic_active_clusters"); len(names) != 1 {
			t.Errorf("the Envoy has %d clusters while the growth waits, want one", len(names))
		}
		relay.Tender("pass", "growth", "--reason", "a new region")
		o.answers(load, after)
		o.awaitGone(e, "dynamic_active_clusters", "old")
		load.Continue(requestsIn(time.Second))
		r := load.Stop()
		o.judge(e, r)
		if names := e.Config().Names("dynamic_active_clusters"); len(names) != 1200 {
			t.Errorf("the Envoy has %d clusters, want 1200", len(names))
		}
	})
}
