package envoy_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	routepb "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
)

// changes is the number of changes of TestEnvoy_LiveChanges.
const changes = 200

// kept is the number of clusters that stay after the last route to them was removed. The server sends removals of
// clusters before changes of routes, and never sends endpoints of a removed cluster. An Envoy that has just received
// such a cluster waits for the endpoints and does not send its ACK for clusters meanwhile.
const kept = 10

// A site is a listener "web" that a control plane keeps changing. Every change is one snapshot without dangling
// references. Clusters stay for kept further changes of routes after the last route to them.
type site struct {
	origin   *envoytest.ControlPlane
	backends []*envoytest.Backend
	random   *rand.Rand

	current string   // the cluster that receives requests
	unused  []string // former clusters that still exist, newest last
	green   string   // the cluster that replaces current, or empty
	weight  uint32   // percentage of requests that green receives
	extra   string   // name of a further listener, or empty
	count   int      // number of changes so far
}

// newSite returns a site with three backends and puts its initial resources into the control plane.
func newSite(t *testing.T, origin *envoytest.ControlPlane) *site {
	t.Helper()
	s := &site{origin: origin, random: rand.New(rand.NewPCG(16, 200)), current: "cluster-0"}
	for i := range 3 {
		s.backends = append(s.backends, envoytest.NewBackend(t, fmt.Sprint("backend-", i)))
	}
	origin.Put(web(s.current, s.backends[0])...)
	return s
}

// change makes a random change and distributes it.
func (s *site) change() {
	s.count++
	kinds := []func(*envoytest.World){s.replace, s.shift, s.scale, s.scale, s.modify, s.listen, s.everything}
	s.origin.Apply("", kinds[s.random.IntN(len(kinds))])
}

// some returns the addresses of a random, non-empty subset of the backends.
func (s *site) some() (addrs []string) {
	for _, i := range s.random.Perm(len(s.backends))[:1+s.random.IntN(len(s.backends))] {
		addrs = append(addrs, s.backends[i].Addr)
	}
	return addrs
}

// leave makes next the current cluster, and removes the oldest unused cluster if there are more than kept.
func (s *site) leave(w *envoytest.World, next string) {
	s.unused, s.current = append(s.unused, s.current), next
	if len(s.unused) > kept {
		w.Remove(relaytest.ClusterType, s.unused[0])
		w.Remove(relaytest.EndpointType, s.unused[0])
		s.unused = s.unused[1:]
	}
}

// replace replaces the cluster, its endpoints and the routes in one change. During a blue/green replacement, it takes
// the next step of that instead.
func (s *site) replace(w *envoytest.World) {
	if s.green != "" {
		s.shift(w)
		return
	}
	s.leave(w, fmt.Sprint("cluster-", s.count))
	w.Put(relaytest.Cluster(s.current), relaytest.Endpoints(s.current, s.some()...), s.route())
}

// shift takes the next step of a blue/green replacement: it adds the new cluster, raises its weight, or completes the
// replacement.
func (s *site) shift(w *envoytest.World) {
	switch {
	case s.green == "":
		s.green, s.weight = fmt.Sprint("green-", s.count), 10
		w.Put(relaytest.Cluster(s.green), relaytest.Endpoints(s.green, s.some()...), s.route())
	case s.weight < 90:
		s.weight += 40
		w.Put(s.route())
	default:
		s.leave(w, s.green)
		s.green = ""
		w.Put(s.route())
	}
}

// scale changes the endpoints.
func (s *site) scale(w *envoytest.World) { w.Put(relaytest.Endpoints(s.current, s.some()...)) }

// modify changes the cluster. Envoy then waits for the unchanged endpoints again.
func (s *site) modify(w *envoytest.World) {
	c := relaytest.Cluster(s.current)
	c.ConnectTimeout = durationpb.New(5*time.Second + time.Duration(s.count)*time.Millisecond)
	w.Put(c)
}

// listen adds a listener with routes of its own, or removes it.
func (s *site) listen(w *envoytest.World) {
	if s.extra == "" {
		s.extra = fmt.Sprint("extra-", s.count)
		w.Put(relaytest.Listener(s.extra, s.extra), relaytest.Route(s.extra, []string{"*"}, s.current))
		return
	}
	w.Remove(relaytest.ListenerType, s.extra)
	w.Remove(relaytest.RouteType, s.extra)
	s.extra = ""
}

// everything changes clusters, endpoints, listeners and routes at once.
func (s *site) everything(w *envoytest.World) {
	if s.extra != "" {
		s.listen(w)
	}
	s.replace(w)
	s.listen(w)
	s.modify(w)
}

// route returns the RouteConfiguration for the current state.
func (s *site) route() *routepb.RouteConfiguration {
	r := relaytest.Route("web", []string{"*"}, s.current)
	if s.green != "" {
		r.GetVirtualHosts()[0].GetRoutes()[0].GetRoute().ClusterSpecifier = &routepb.RouteAction_WeightedClusters{
			WeightedClusters: &routepb.WeightedCluster{Clusters: []*routepb.WeightedCluster_ClusterWeight{
				{Name: s.current, Weight: wrapperspb.UInt32(100 - s.weight)}, {Name: s.green, Weight: wrapperspb.UInt32(s.weight)},
			}},
		}
	}
	return r
}

// TestEnvoy_LiveChanges: while a control plane changes routes, clusters, endpoints and listeners, no request fails
// and the Envoy rejects nothing. The relay must therefore send clusters and endpoints before the routes that refer to
// them. In the direct run an Envoy falls behind. It waits 15 s for the endpoints of a modified cluster, which
// go-control-plane does not send again. (B.11, B.16, H06)
func TestEnvoy_LiveChanges(t *testing.T) {
	scenario(t, ads, func(t *testing.T, s *setup) {
		site := newSite(t, s.origin)
		e := s.envoy(t, "edge-1")
		load := envoytest.StartLoad(t, e.Listener("web"), interval)
		load.Continue(10)
		for range changes {
			site.change()
			s.settle(t)
			load.Continue(site.random.IntN(4)) // the next change overlaps with this one or follows it
		}
		last := envoytest.Start(t, s.options(s.origin.Addr, "last"))
		last.Listener("web")
		want := last.Config()
		s.await(e, "configuration of an Envoy that starts now", func() error { return e.Differs(want) })
		s.judge(e, load.Stop())
	})
}
