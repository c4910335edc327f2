package envoy_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// edsCluster returns a cluster "one" whose content depends on the generation. Only a response with its endpoints ends
// its warming, because the initial fetch has no timeout.
func edsCluster(from source, generation int) *clusterpb.Cluster {
	c := relaytest.Cluster("one")
	c.EdsClusterConfig.EdsConfig = from()
	c.ConnectTimeout = durationpb.New(5*time.Second + time.Duration(generation)*time.Millisecond)
	return c
}

// warmed returns an error unless an Envoy has applied a number of changes of clusters and no cluster is warming.
func warmed(e *envoytest.Envoy, changes int64) error {
	stats := e.Stats("^cluster_manager")
	if stats["cluster_manager.cluster_modified"] != changes || stats["cluster_manager.warming_clusters"] != 0 {
		return fmt.Errorf("%d changes, of which %d are warming; want %d",
			stats["cluster_manager.cluster_modified"], stats["cluster_manager.warming_clusters"], changes)
	}
	return nil
}

// fence adds a static cluster and waits until an Envoy has it. The Envoy has then received everything that was sent
// earlier on the same stream.
func fence(origin *envoytest.ControlPlane, e *envoytest.Envoy, name string) {
	origin.Put(relaytest.StaticCluster(name, "127.0.0.1:1"))
	e.Await("cluster "+name, func() error {
		if names := e.Config().Names("dynamic_active_clusters"); !slices.Contains(names, name) {
			return fmt.Errorf("clusters are %v", names)
		}
		return nil
	})
}

// TestEnvoy_Warming: a cluster that changes while its endpoints do not change is warm at once, whatever the source of
// the endpoints. A timeout of the initial fetch never ends the warming. In the direct run with ADS, go-control-plane
// does not send the endpoints again, and the cluster does not change. (B.16, C04)
func TestEnvoy_Warming(t *testing.T) {
	t.Parallel()
	for name, from := range map[string]source{"ads": byADS, "own stream": nil} {
		t.Run(name, func(t *testing.T) {
			scenario(t, ads, func(t *testing.T, s *setup) {
				from := from
				if from == nil {
					from = map[string]source{delta.name: byDelta, sotw.name: bySotW}[s.name]
				}
				s.origin.Put(web("one", envoytest.NewBackend(t, "one"))...)
				s.origin.Put(edsCluster(from, 0))
				e := s.envoy(t, "edge-1")
				load := envoytest.StartLoad(t, e.Listener("web"), interval)
				for generation := range 3 {
					load.Continue(10)
					if generation > 0 {
						s.origin.Put(edsCluster(from, generation))
					}
					s.await(e, fmt.Sprint("change ", generation), func() error { return warmed(e, int64(generation)) })
				}
				s.judge(e, load.Stop())
			})
		})
	}
}

// A move is an Envoy that starts on a relay with TENDER_EDS_AFTER_CDS=off (see B.16), and moves to another relay
// while a changed resource is warming.
type move struct {
	origin *envoytest.ControlPlane
	link   *proxy.Proxy
	next   *envoytest.Relay
	envoy  *envoytest.Envoy
	load   *envoytest.Load
}

// newMove starts the two relays and the Envoy with a load. The control plane serves the resources of world.
func newMove(t *testing.T, c client, world ...proto.Message) *move {
	t.Helper()
	m := &move{origin: envoytest.NewControlPlane(t)}
	m.origin.Put(world...)
	first := envoytest.NewRelay(t, m.origin.Addr, "TENDER_SECRETS=loopback", "TENDER_EDS_AFTER_CDS=off")
	m.next = envoytest.NewRelay(t, m.origin.Addr, "TENDER_SECRETS=loopback")
	m.link = proxy.New(t, first.Addr)
	m.envoy = envoytest.Start(t, c.options(m.link.Addr(), "edge-1"))
	m.load = envoytest.StartLoad(t, m.envoy.Listener("web"), interval)
	m.load.Continue(10)
	return m
}

// run moves the Envoy to the other relay.
func (m *move) run() {
	m.link.Forward(m.next.Addr)
	m.link.Cut()
}

// TestEnvoy_WarmingNeedsEndpoints: an Envoy warms a changed cluster until it receives the endpoints again, even if it
// has them. Without B.16, the relay does not send them. When the Envoy moves to another replica meanwhile, that
// replica sends them even though the Envoy reports their version. Only then does the Envoy subscribe to clusters
// again. There is no direct run, because that of TestEnvoy_Warming covers go-control-plane. (B.3, B.16, C05, C32)
func TestEnvoy_WarmingNeedsEndpoints(t *testing.T) {
	matrix(t, ads, func(t *testing.T, c client) {
		m := newMove(t, c, append(web("one", envoytest.NewBackend(t, "one")), edsCluster(byADS, 0))...)
		m.origin.Put(edsCluster(byADS, 1))
		fence(m.origin, m.envoy, "after-the-change")
		if err := warmed(m.envoy, 1); err == nil {
			t.Error("the changed cluster is warm without its endpoints: B.16 is not needed")
		}
		m.run()
		fence(m.origin, m.envoy, "after-the-move")
		m.envoy.Await("warm cluster", func() error { return warmed(m.envoy, 1) })
		noFault(t, m.envoy, m.load.Stop())
	})
}

// TestEnvoy_WarmingNeedsSecrets: the source of a Secret in a listener changes. An Envoy then warms the listener until
// it receives the Secret again, even if it has it from the former source. It requests the Secret only when it moves
// to another replica, and reports that it has the version. There is no direct run, because the scenario needs two
// relays. (B.3, C05, C32)
func TestEnvoy_WarmingNeedsSecrets(t *testing.T) {
	matrix(t, ads, func(t *testing.T, c client) {
		w := newRichWorld(t, byADS)
		m := newMove(t, c, append(web("one", envoytest.NewBackend(t, "one")), w.secret(), encrypted(0))...)
		m.envoy.Listener("tls")
		m.origin.Put(encrypted(1))
		warms := func() int64 { return m.envoy.Stats("^listener_manager")["listener_manager.total_listeners_warming"] }
		m.envoy.Await("warming listener", func() error {
			if warms() != 1 {
				return errors.New("no listener is warming")
			}
			return nil
		})
		m.run()
		m.envoy.Await("warm listener", func() error {
			if warms() != 0 {
				return errors.New("a listener is still warming")
			}
			return nil
		})
		noFault(t, m.envoy, m.load.Stop())
	})
}

// encrypted returns a listener with TLS. The ConfigSource of its Secret depends on the generation.
func encrypted(generation int) *listenerpb.Listener {
	l := relaytest.Listener("tls", "web")
	from := byADS()
	from.InitialFetchTimeout = durationpb.New(time.Hour + time.Duration(generation)*time.Second)
	l.FilterChains[0].TransportSocket = withSecrets(from, "certificate")
	return l
}
