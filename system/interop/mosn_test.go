package interop_test

import (
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// TestInterop_MOSN: MOSN as a client of the relay serves requests and follows changes, also after it has reconnected
// to another relay process. On a new stream, MOSN waits before its first request, and requests endpoints only after
// the first response.
func TestInterop_MOSN(t *testing.T) {
	need(t, mosn)
	one, two, three := envoytest.NewBackend(t, "one"), envoytest.NewBackend(t, "two"), envoytest.NewBackend(t, "three")
	origin := envoytest.NewControlPlane(t)
	serves := proxy.FreeAddress(t)
	listener := relaytest.Listener("web", "web")
	port, err := strconv.ParseUint(portOf(serves), 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	listener.Address.GetSocketAddress().PortSpecifier = &corepb.SocketAddress_PortValue{PortValue: uint32(port)}
	origin.Put(relaytest.Cluster("web"), relaytest.Endpoints("web", one.Addr), listener, relaytest.Route("web", []string{"*"}, "web"))
	address := proxy.FreeAddress(t)
	env := []string{"TENDER_LISTEN=" + address, "TENDER_FIRST_REQUEST_TIMEOUT=15s"}
	r := envoytest.StartRelay(t, origin.Addr, env...)
	p := newMOSN(t, address)
	p.listens(serves)
	load := envoytest.StartLoad(t, serves, interval)
	answers(load, one)
	origin.Put(relaytest.Endpoints("web", two.Addr))
	answers(load, two)

	r.Kill()
	answers(load, two)
	envoytest.StartRelay(t, origin.Addr, env...)
	p.AwaitLine(0, "stream client reconnected")
	origin.Put(relaytest.Endpoints("web", three.Addr))
	answers(load, three)
	served(t, load)
}

// newMOSN starts MOSN with the relay at an address as its ADS server.
func newMOSN(t *testing.T, address string) *program {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := certs.WriteFile(t, dir, "mosn.json", []byte(fmt.Sprintf(mosnConfig, filepath.Join(dir, "mosn.pid"), host, port)))
	return start(t, *mosn, nil, "start", "-c", config)
}

// mosnConfig uses the default refresh_delay of 10s. MOSN waits as long before the first request of each stream but
// the first.
const mosnConfig = `{
  "pid": %q,
  "servers": [{"default_log_path": "stdout", "default_log_level": "INFO"}],
  "node": {"id": "mosn-1", "cluster": "mosn"},
  "dynamic_resources": {
    "ads_config": {
      "api_type": "GRPC",
      "grpc_services": [{"envoy_grpc": {"cluster_name": "tender"}}]
    }
  },
  "static_resources": {
    "clusters": [{
      "name": "tender", "type": "STRICT_DNS", "connect_timeout": "2s", "lb_policy": "RANDOM",
      "load_assignment": {
        "cluster_name": "tender",
        "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"socket_address": {"address": %q, "port_value": %s}}}}]}]
      }
    }]
  }
}`
