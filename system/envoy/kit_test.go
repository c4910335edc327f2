package envoy_test

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
)

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	envoytest.Clean()
	http.DefaultClient.CloseIdleConnections()
	if err := goleak.Find(); err != nil && code == 0 { // only here, because the tests run in parallel
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// interval is the time between two requests of a Load.
const interval = 5 * time.Millisecond

// A setup is the control plane of a scenario and, unless the run is direct, the relay.
type setup struct {
	*outcome
	client
	origin *envoytest.ControlPlane
	relay  *envoytest.Relay // nil if the Envoys connect to the control plane
	server string           // address of the management server of the Envoys
}

// scenario runs a scenario as compared does. env are variables of the relay.
func scenario(t *testing.T, variants []variant, run func(*testing.T, *setup), env ...string) {
	t.Helper()
	compared(t, variants, func(t *testing.T, c client, o *outcome) {
		s := &setup{outcome: o, client: c, origin: envoytest.NewControlPlane(t)}
		if s.server = s.origin.Addr; !o.direct {
			s.relay = envoytest.NewRelay(t, s.origin.Addr, env...)
			s.server = s.relay.Addr
		}
		run(t, s)
	})
}

// envoy starts an Envoy that connects to s.server.
func (s *setup) envoy(t *testing.T, id string) *envoytest.Envoy {
	t.Helper()
	return envoytest.Start(t, s.options(s.server, id))
}

// settle waits until all clients of the control plane have answered. In a direct run, it waits only shortly, because
// Envoys may take minutes to answer go-control-plane.
func (s *setup) settle(t *testing.T) {
	t.Helper()
	if s.direct {
		_ = s.origin.Settle(100 * time.Millisecond)
	} else if err := s.origin.Settle(relaytest.Patience); err != nil {
		t.Fatal(err)
	}
}

// web returns a Listener "web", a RouteConfiguration "web" that routes to a cluster, and the cluster with the
// endpoint of a backend.
func web(cluster string, backend *envoytest.Backend) []proto.Message {
	return []proto.Message{
		relaytest.Cluster(cluster), relaytest.Endpoints(cluster, backend.Addr),
		relaytest.Listener("web", "web"), relaytest.Route("web", []string{"*"}, cluster),
	}
}
