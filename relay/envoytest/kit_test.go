package envoytest_test

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	bootstrappb "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
)

// direct has every scenario run a second time, without the relay: what Envoy and the control plane do by themselves.
var direct = flag.Bool("direct", false, "also run each scenario with the Envoy connected to the control plane")

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	envoytest.Clean()
	http.DefaultClient.CloseIdleConnections()
	if err := goleak.Find(); err != nil && code == 0 { // by no test alone: they run at the same time
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// A variant is how Envoys get their configuration.
type variant struct{ name, bootstrap string }

// The variants of ADS.
var (
	delta = variant{"delta", "delta-ads.yaml"}
	sotw  = variant{"sotw", "sotw-ads.yaml"}
	ads   = []variant{delta, sotw}
)

// speak has an Envoy use the variant in whatever bootstrap it is started with.
func (v variant) speak(b *bootstrappb.Bootstrap) {
	b.GetDynamicResources().GetAdsConfig().ApiType = corepb.ApiConfigSource_DELTA_GRPC
	if v == sotw {
		b.GetDynamicResources().GetAdsConfig().ApiType = corepb.ApiConfigSource_GRPC
	}
}

// interval is the time between two requests of a load.
const interval = 5 * time.Millisecond

// A setup is where the Envoys of a scenario connect to.
type setup struct {
	variant
	origin *envoytest.ControlPlane
	relay  *envoytest.Relay // nil if the Envoys connect to the control plane
}

// scenario runs a scenario in each variant below a relay and, if asked to, below the control plane itself.
func scenario(t *testing.T, variants []variant, run func(*testing.T, *setup), env ...string) {
	t.Helper()
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			s := &setup{variant: v, origin: envoytest.NewControlPlane(t)}
			s.relay = envoytest.NewRelay(t, s.origin.Addr, env...)
			run(t, s)
		})
		if *direct {
			t.Run(v.name+"/direct", func(t *testing.T) {
				t.Parallel()
				run(t, &setup{variant: v, origin: envoytest.NewControlPlane(t)})
			})
		}
	}
}

// server returns the address of the management server.
func (s *setup) server() string {
	if s.relay == nil {
		return s.origin.Addr
	}
	return s.relay.Addr
}

// envoy starts an Envoy.
func (s *setup) envoy(t *testing.T, id string) *envoytest.Envoy {
	t.Helper()
	node := relaytest.EnvoyNode(id)
	return envoytest.Start(t, envoytest.Options{Bootstrap: s.bootstrap, Server: s.server(), Node: node})
}

// web is a listener "web" whose route configuration "web" leads to a cluster, which has the endpoints of a backend.
func web(cluster string, backend *envoytest.Backend) []proto.Message {
	return []proto.Message{
		relaytest.Cluster(cluster), relaytest.Endpoints(cluster, backend.Addr),
		relaytest.Listener("web", "web"), relaytest.Route("web", []string{"*"}, cluster),
	}
}

// judge holds an Envoy below the relay to noFault. Of an Envoy on the control plane it only reports: what the relay is
// measured by.
func (s *setup) judge(t *testing.T, e *envoytest.Envoy, r envoytest.Report) {
	t.Helper()
	if s.relay == nil {
		t.Logf("without the relay: %d updates refused or not waited for; %v", faults(e), r)
		return
	}
	noFault(t, e, r)
}

// noFault fails the test if a request failed, or if the Envoy refused something or went on without an answer.
func noFault(t *testing.T, e *envoytest.Envoy, r envoytest.Report) {
	t.Helper()
	if faults(e) > 0 {
		t.Errorf("Envoy %s: updates refused or not waited for: %v", e.ID(), e.Stats(envoytest.Judged))
	}
	if len(r.Failures) > 0 {
		t.Errorf("Envoy %s: requests failed: %v", e.ID(), r)
	}
}

// faults returns how many updates an Envoy refused, or did not wait for.
func faults(e *envoytest.Envoy) int64 {
	stats := e.Stats(envoytest.Judged)
	return stats.Sum("update_rejected") + stats.Sum("init_fetch_timeout")
}
