package envoytest_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	bootstrappb "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
)

// modified returns how often an Envoy took clusters and listeners as changed.
func modified(e *envoytest.Envoy) int64 {
	stats := e.Stats(envoytest.Judged)
	return stats.Sum("cluster_modified") + stats.Sum("listener_modified")
}

// TestEnvoy_OriginGone: while the control plane is gone, or slow, no request fails, and an Envoy that starts gets
// everything. When the control plane returns with the same content, nothing is modified; the next change arrives. (B.8)
func TestEnvoy_OriginGone(t *testing.T) {
	for _, v := range ads {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			origin := envoytest.NewControlPlane(t)
			one, two := envoytest.NewBackend(t, "one"), envoytest.NewBackend(t, "two")
			origin.Put(web("one", one)...)
			link := relaytest.NewProxy(t, origin.Addr)
			s := &setup{variant: v, origin: origin, relay: envoytest.NewRelay(t, link.Addr())}

			e := s.envoy(t, "edge-1")
			load := envoytest.StartLoad(t, e.Listener("web"), interval)
			load.Continue(10)
			before := modified(e)
			serves := func(id string) {
				t.Helper()
				newcomer := s.envoy(t, id)
				newcomer.AwaitConfig(e.Config())
				newcomer.Kill()
			}

			link.Set(relaytest.Link{Down: relaytest.Way{Hold: true}})
			serves("started-while-slow")
			link.Set(relaytest.Link{})

			origin.Stop()
			serves("started-while-gone")
			load.Continue(50)
			origin.Restart()
			origin.Put(relaytest.Endpoints("one", two.Addr)) // shows that the relay is back, and has heard all
			load.Await("an answer of the new endpoint", func(r envoytest.Report) bool { return r.Answers["two"] > 0 })
			if now := modified(e); now != before {
				t.Errorf("clusters and listeners were modified %d times, though they are the same", now-before)
			}
			s.judge(t, e, load.Stop())
		})
	}
}

// replicas is an Envoy's bootstrap with several relays as the addresses of its management server.
func replicas(addrs ...string) func(*bootstrappb.Bootstrap) {
	return func(b *bootstrappb.Bootstrap) {
		for _, c := range b.GetStaticResources().GetClusters() {
			locality := c.GetLoadAssignment().GetEndpoints()[0]
			locality.LbEndpoints = nil
			for _, endpoint := range relaytest.Endpoints("", addrs...).GetEndpoints()[0].GetLbEndpoints() {
				locality.LbEndpoints = append(locality.LbEndpoints, proto.CloneOf[*endpointpb.LbEndpoint](endpoint))
			}
		}
	}
}

// TestEnvoy_RelaysComeAndGo: two relays serve Envoys, which lose theirs by a drain, by SIGKILL, and by an upgrade. No
// request fails, nothing is modified and nothing refused; changes go on to arrive. (B.3, B.33)
func TestEnvoy_RelaysComeAndGo(t *testing.T) {
	for _, v := range ads {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			origin := envoytest.NewControlPlane(t)
			backends := []*envoytest.Backend{envoytest.NewBackend(t, "backend-0"), envoytest.NewBackend(t, "backend-1")}
			origin.Put(web("one", backends[0])...)
			start := func(addr string) *envoytest.RelayProcess {
				return envoytest.StartRelay(t, origin.Addr, "TENDER_LISTEN="+addr, "TENDER_DRAIN=2s")
			}
			a, b := start(relaytest.FreeAddress(t)), start(relaytest.FreeAddress(t))
			var envoys []*envoytest.Envoy
			var loads []*envoytest.Load
			for i := range 2 {
				e := envoytest.Start(t, envoytest.Options{
					Bootstrap: v.bootstrap, Server: a.Addr, Edit: replicas(a.Addr, b.Addr), Node: relaytest.EnvoyNode(fmt.Sprint("edge-", i)),
				})
				load := envoytest.StartLoad(t, e.Listener("web"), interval)
				load.Continue(10)
				envoys, loads = append(envoys, e), append(loads, load)
			}
			before := modified(envoys[0]) + modified(envoys[1])

			round := 0
			arrives := func(what string, began time.Time) {
				t.Helper()
				round++
				next := backends[round%2]
				origin.Put(relaytest.Endpoints("one", next.Addr))
				for _, load := range loads {
					have := load.Report().Answers[next.Name]
					load.Await("answers of "+next.Name, func(r envoytest.Report) bool { return r.Answers[next.Name] > have })
				}
				t.Logf("%s: a change has reached both Envoys %v after", what, time.Since(began).Round(time.Millisecond))
			}
			arrives("in peace", time.Now())

			began := time.Now()
			a.Signal(syscall.SIGTERM)
			a.Wait()
			arrives("drain", began)
			a = start(a.Addr)

			began = time.Now()
			b.Kill()
			arrives("SIGKILL", began)
			start(b.Addr)

			began = time.Now()
			a.Signal(syscall.SIGTERM) // an upgrade: the next version takes the address, under load
			a.Wait()
			start(a.Addr)
			arrives("upgrade", began)

			if now := modified(envoys[0]) + modified(envoys[1]); now != before {
				t.Errorf("clusters and listeners were modified %d times, though they are the same", now-before)
			}
			for i, e := range envoys {
				noFault(t, e, loads[i].Stop())
			}
		})
	}
}
