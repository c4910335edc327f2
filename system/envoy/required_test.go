package envoy_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
)

// TestB50_EnvoysKeepARequiredCluster: the control plane removes the cluster of all requests, which is required. No request
// fails until an operator passes the removal, and then the Envoy has no such cluster.
func TestB50_EnvoysKeepARequiredCluster(t *testing.T) {
	matrix(t, ads, func(t *testing.T, c client) {
		o, plane, backend := &outcome{t: t}, envoytest.NewControlPlane(t), envoytest.NewBackend(t, "backend")
		plane.Put(web("one", backend)...)
		relay := envoytest.StartRelay(t, plane.Addr, "TENDER_REQUIRED=cds:one")
		e := envoytest.Start(t, c.options(relay.Addr, "edge"))
		load := envoytest.StartLoad(t, e.Listener("web"), interval)
		o.answers(load, backend)
		plane.Remove(relaytest.ClusterType, "one")
		relay.Await("the removal to be pending", func() error {
			if rows := relay.Tender("pending", "required"); !strings.Contains(rows, "one") {
				return fmt.Errorf("tender pending required: %s", rows)
			}
			return nil
		})
		load.Continue(requestsIn(2 * time.Second))
		o.judge(e, load.Stop())
		relay.Tender("pass", "required", "--reason", "retired")
		o.awaitGone(e, "dynamic_active_clusters", "one")
	})
}
