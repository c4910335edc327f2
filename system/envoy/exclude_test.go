package envoy_test

import (
	"fmt"
	"strings"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	udppb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/udp/udp_proxy/v3"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// TestB11_EnvoysRejectTheSameListeners gives Envoys, without a relay, the pairs of listeners of which cache/wire decides whether
// they exclude one another. An Envoy rejects the second of a pair exactly if they do.
func TestB11_EnvoysRejectTheSameListeners(t *testing.T) {
	matrix(t, []variant{delta}, func(t *testing.T, c client) { rejectsListeners(t, c) })
	t.Run("oldest", func(t *testing.T) {
		t.Parallel()
		version := envoytest.Versions(t)[0]
		rejectsListeners(t, client{variant: delta, version: version, binary: envoytest.Installed(t, version)})
	})
}

// rejectsListeners gives each pair to one Envoy, the second listener once the first is active.
func rejectsListeners(t *testing.T, c client) {
	origin, dir := envoytest.NewControlPlane(t), t.TempDir()
	origin.Put(serving(envoytest.NewBackend(t, "one"), "routes")...)
	e := envoytest.Start(t, c.options(origin.Addr, "edge-1"))
	active := func(name string) bool { return strings.Contains(e.Config()["dynamic_listeners/"+name], "active_state") }
	for i, pair := range relaytest.AddressPairs {
		ports := make(map[string]string) // free ones, for the ports of the pair
		first, second := fmt.Sprint("a", i), fmt.Sprint("b", i)
		origin.Put(listenerOn(t, first, dir, pair.A, ports))
		e.Await(first, func() error {
			if !active(first) {
				return fmt.Errorf("%v is not active", pair.A)
			}
			return nil
		})
		mark := e.Mark()
		origin.Put(listenerOn(t, second, dir, pair.B, ports))
		var rejected bool
		e.Await("verdict", func() error {
			lines, _ := e.Lines(mark)
			rejected = strings.Contains(strings.Join(lines, "\n"), "duplicate address")
			if !rejected && !active(second) {
				return fmt.Errorf("%v is neither active nor rejected", pair.B)
			}
			return nil
		})
		if rejected != pair.Exclude {
			t.Errorf("the Envoy has %v and rejects %v: %v, want %v", pair.A, pair.B, rejected, pair.Exclude)
		}
		origin.Remove(relaytest.ListenerType, first, second)
	}
}

// listenerOn returns a listener on addresses with free ports and paths below dir. It has a filter for the protocol of its
// addresses.
func listenerOn(t *testing.T, name, dir string, addresses []string, ports map[string]string) *listenerpb.Listener {
	t.Helper()
	var own []string
	for _, address := range addresses {
		if colon := strings.LastIndex(address, ":"); colon >= 0 && address[colon:] != ":0" {
			port := address[colon:]
			if ports[port] == "" {
				free := proxy.FreeAddress(t)
				ports[port] = free[strings.LastIndex(free, ":"):]
			}
			address = address[:colon] + ports[port]
		}
		own = append(own, strings.ReplaceAll(address, "DIR", dir))
	}
	l := relaytest.ListenerAt(name, "routes", own...)
	if l.GetAddress().GetSocketAddress().GetProtocol() == corepb.SocketAddress_UDP {
		l.FilterChains, l.UdpListenerConfig = nil, &listenerpb.UdpListenerConfig{}
		l.ListenerFilters = []*listenerpb.ListenerFilter{{
			Name: "envoy.filters.udp_listener.udp_proxy",
			ConfigType: &listenerpb.ListenerFilter_TypedConfig{TypedConfig: relaytest.Pack(&udppb.UdpProxyConfig{
				StatPrefix: name, RouteSpecifier: &udppb.UdpProxyConfig_Cluster{Cluster: "one"}, //nolint:staticcheck // its successor is a tree of matchers
			})},
		}}
	}
	return l
}
