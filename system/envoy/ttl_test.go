package envoy_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	bootstrappb "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
)

// TestEnvoy_TTL: a cluster with a TTL stays while heartbeats arrive and is removed when they stop. Heartbeats do not
// modify it. This holds for an Envoy with the client feature and, with the relay, also for one without it. A cluster
// without a TTL stays. (R104, R106, R107, B.18)
func TestEnvoy_TTL(t *testing.T) {
	const ttl = 5 * time.Second
	scripted(t, relaytest.Behaviour{}, func(t *testing.T, c client, o *outcome, origin *relaytest.Origin, server string) {
		const typeURL = relaytest.ClusterType
		origin.Put(relaytest.StaticCluster("lasting", "127.0.0.1:80"))
		origin.SetWithTTL(typeURL, "leased", relaytest.StaticCluster("leased", "127.0.0.1:81"), ttl)
		featured := c.options(server, "edge-ttl")
		featured.Node = relaytest.WithFeatures(featured.Node, relaytest.FeatureTTL)
		envoys := []*envoytest.Envoy{envoytest.Start(t, featured)}
		if !o.direct { // the scripted origin sends TTLs also to clients without the feature
			envoys = append(envoys, envoytest.Start(t, c.options(server, "edge-plain")))
		}
		has := func(want ...string) {
			t.Helper()
			for _, e := range envoys {
				e.Await(fmt.Sprint("clusters ", want), func() error {
					if got := e.Config().Names("dynamic_active_clusters"); !slices.Equal(got, want) {
						return fmt.Errorf("clusters are %v", got)
					}
					return nil
				})
			}
		}
		stop := beats(func() { origin.Heartbeat(typeURL, "leased") }, ttl/50)
		defer stop()
		has("lasting", "leased")
		<-time.After(ttl * 3 / 2) // longer than the TTL; Envoy uses the real clock
		has("lasting", "leased")
		for _, e := range envoys {
			stats := e.Stats(`^cluster_manager\.`)
			if stats.Sum("cluster_removed")+stats.Sum("cluster_modified") != 0 {
				t.Errorf("%s: heartbeats removed or modified a cluster: %v", e.ID(), stats)
			}
		}
		stop()
		has("lasting")
	})
}

// beats calls f at an interval until stop is called, which waits for a running call. stop may be called more than once.
func beats(f func(), every time.Duration) (stop func()) {
	ended := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() { // awaited by stop
		for beat := time.NewTicker(every); ; {
			select {
			case <-beat.C:
				f()
			case <-ended:
				beat.Stop()
				return
			}
		}
	})
	return sync.OnceFunc(func() { close(ended); running.Wait() })
}

// TestEnvoy_Collections: an Envoy that subscribes to listeners and clusters as xdstp:// collections receives their
// members and later additions, and loses removed members. (R128, R130, B.23)
func TestEnvoy_Collections(t *testing.T) {
	scripted(t, relaytest.Behaviour{}, func(t *testing.T, c client, o *outcome, origin *relaytest.Origin, server string) {
		const (
			listeners = "xdstp://example.com/envoy.config.listener.v3.Listener/edge/"
			clusters  = "xdstp://example.com/envoy.config.cluster.v3.Cluster/edge/"
		)
		source := func() *corepb.ConfigSource {
			return &corepb.ConfigSource{ResourceApiVersion: corepb.ApiVersion_V3, ConfigSourceSpecifier: &corepb.ConfigSource_ApiConfigSource{
				ApiConfigSource: &corepb.ApiConfigSource{ApiType: corepb.ApiConfigSource_AGGREGATED_DELTA_GRPC, TransportApiVersion: corepb.ApiVersion_V3},
			}}
		}
		backends := []*envoytest.Backend{envoytest.NewBackend(t, "one"), envoytest.NewBackend(t, "two")}
		origin.Put(
			relaytest.StaticCluster(clusters+"one", backends[0].Addr), relaytest.StaticCluster(clusters+"two", backends[1].Addr),
			relaytest.Listener(listeners+"web", "web"), relaytest.Route("web", []string{"*"}, clusters+"one"),
			relaytest.StaticCluster("xdstp://example.com/envoy.config.cluster.v3.Cluster/other/one", backends[0].Addr),
		)
		of := c.options(server, "edge-1")
		of.Edit = func(b *bootstrappb.Bootstrap) {
			d := b.GetDynamicResources()
			d.LdsResourcesLocator, d.CdsResourcesLocator = listeners+"*", clusters+"*"
			d.LdsConfig, d.CdsConfig = source(), source()
		}
		e := envoytest.Start(t, of)
		load := envoytest.StartLoad(t, e.Listener(listeners+"web"), interval)
		load.Await("answers", func(r envoytest.Report) bool { return r.Answers["one"] > 10 })

		origin.Put(relaytest.StaticCluster(clusters+"three", backends[1].Addr)) // before the routes that refer to it
		e.Await("the third cluster", func() error {
			if got := e.Config().Names("dynamic_active_clusters"); !slices.Contains(got, clusters+"three") {
				return fmt.Errorf("clusters are %v", got)
			}
			return nil
		})
		origin.Put(relaytest.Route("web", []string{"*"}, clusters+"three"), relaytest.Listener(listeners+"api", "web"))
		load.Await("answers of the third cluster", func(r envoytest.Report) bool { return r.Answers["two"] > 0 })
		e.Listener(listeners + "api")

		origin.Remove(relaytest.ClusterType, clusters+"one")
		origin.Remove(relaytest.ListenerType, listeners+"api")
		e.Await("removals", func() error {
			c := e.Config()
			if got := c.Names("dynamic_active_clusters"); !slices.Equal(got, []string{clusters + "three", clusters + "two"}) {
				return fmt.Errorf("clusters are %v", got)
			}
			if got := c.Names("dynamic_listeners"); !slices.Equal(got, []string{listeners + "web"}) {
				return fmt.Errorf("listeners are %v", got)
			}
			return nil
		})
		o.judge(e, load.Stop())
	})
}
