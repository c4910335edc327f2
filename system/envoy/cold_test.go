package envoy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
)

// TestEnvoy_ColdRelay: the first Envoy of a relay receives the endpoints of thousands of clusters in as few responses as
// from the control plane. A SotW Envoy does the work of all its clusters for each of them. The log has the times of both,
// without an expectation, because they depend on the machine. (B.5)
func TestEnvoy_ColdRelay(t *testing.T) {
	const clusters = 3000
	matrix(t, ads, func(t *testing.T, c client) {
		origin := envoytest.NewControlPlane(t)
		world := []proto.Message{relaytest.Listener("web", "web"), relaytest.Route("web", []string{"*"}, "cluster-0000")}
		for i := range clusters {
			name := fmt.Sprintf("cluster-%04d", i)
			world = append(world, relaytest.Cluster(name), relaytest.Endpoints(name, "127.0.0.1:1"))
		}
		origin.Put(world...)
		r := envoytest.NewRelay(t, origin.Addr)
		ready := func(server, id string) time.Duration {
			start := time.Now()
			e := envoytest.Start(t, c.options(server, id))
			e.Listener("web")
			if got := e.Stats("^cluster_manager")["cluster_manager.active_clusters"]; got <= clusters {
				t.Errorf("Envoy %s has %d clusters, want more than %d", id, got, clusters)
			}
			e.Kill()
			return time.Since(start)
		}
		direct, relayed := ready(origin.Addr, "direct"), ready(r.Addr, "relayed")
		ratio := relayed.Seconds() / direct.Seconds()
		t.Logf("ready after %v directly, and after %v with a relay: %.1f times", direct, relayed, ratio)
		const want = `tender_origin_responses_total{origin="default",type="eds"} 1` + "\n"
		if metrics := string(r.Get("/metrics")); !strings.Contains(metrics, want) {
			t.Errorf("metrics lack %q: the endpoints came in several responses: %q", want,
				slices.DeleteFunc(strings.Split(metrics, "\n"), func(line string) bool {
					return !strings.HasPrefix(line, "tender_origin_responses_total")
				}))
		}
	})
}
