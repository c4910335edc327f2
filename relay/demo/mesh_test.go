package demo

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routepb "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	managerpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// A model holds the resources that a client has after it applied the updates of a mesh.
type model struct {
	clusters  map[string]*clusterpb.Cluster
	endpoints map[string]*endpointpb.ClusterLoadAssignment
	listeners map[string]*listenerpb.Listener
	routes    map[string]*routepb.RouteConfiguration
}

func newModel() *model {
	return &model{
		clusters:  make(map[string]*clusterpb.Cluster),
		endpoints: make(map[string]*endpointpb.ClusterLoadAssignment),
		listeners: make(map[string]*listenerpb.Listener),
		routes:    make(map[string]*routepb.RouteConfiguration),
	}
}

// take applies an update as a client would. It fails the test if a resource violates Envoy's validation rules.
func (m *model) take(t *testing.T, u wire.Update) {
	t.Helper()
	for _, name := range u.Removed {
		switch u.TypeURL {
		case wire.ClusterType:
			delete(m.clusters, name)
		case wire.EndpointType:
			delete(m.endpoints, name)
		case wire.ListenerType:
			delete(m.listeners, name)
		case wire.RouteType:
			delete(m.routes, name)
		}
	}
	for _, r := range u.Resources {
		switch u.TypeURL {
		case wire.ClusterType:
			m.clusters[r.Name] = decode(t, r, new(clusterpb.Cluster))
		case wire.EndpointType:
			m.endpoints[r.Name] = decode(t, r, new(endpointpb.ClusterLoadAssignment))
		case wire.ListenerType:
			m.listeners[r.Name] = decode(t, r, new(listenerpb.Listener))
		case wire.RouteType:
			m.routes[r.Name] = decode(t, r, new(routepb.RouteConfiguration))
		default:
			t.Fatalf("an update of type %q", u.TypeURL)
		}
	}
}

// validated is a message with the checks that protoc-gen-validate generates.
type validated interface {
	proto.Message
	ValidateAll() error
}

// decode decodes a resource into m. It fails the test if the resource is invalid, or if its name differs from r.Name.
func decode[M validated](t *testing.T, r *wire.Resource, m M) M {
	t.Helper()
	if err := proto.Unmarshal(r.Value(), m); err != nil {
		t.Fatalf("%s %q: %v", r.TypeURL, r.Name, err)
	}
	if err := m.ValidateAll(); err != nil {
		t.Fatalf("%s %q: %v", r.TypeURL, r.Name, err)
	}
	name := m.ProtoReflect().Get(m.ProtoReflect().Descriptor().Fields().ByNumber(1)).String()
	if name != r.Name {
		t.Fatalf("%s %q contains the name %q", r.TypeURL, r.Name, name)
	}
	return m
}

// check returns a description of each resource that refers to a missing resource, or to one without endpoints.
func (m *model) check(t *testing.T) (dangling []string) {
	for name, r := range m.routes {
		for _, cluster := range clustersOf(r) {
			if m.clusters[cluster] == nil {
				dangling = append(dangling, fmt.Sprintf("route %s leads to cluster %s", name, cluster))
			}
		}
	}
	for name, c := range m.clusters {
		if c.GetType() != clusterpb.Cluster_EDS {
			continue
		}
		pods := 0
		for _, l := range m.endpoints[name].GetEndpoints() {
			pods += len(l.GetLbEndpoints())
		}
		if pods == 0 {
			dangling = append(dangling, fmt.Sprintf("cluster %s has no endpoint", name))
		}
	}
	for name, l := range m.listeners {
		if route := managerOf(t, l).GetRds().GetRouteConfigName(); m.routes[route] == nil {
			dangling = append(dangling, fmt.Sprintf("listener %s needs route %s", name, route))
		}
	}
	return dangling
}

// leftOver returns the names of clusters, routes and endpoints that no resource refers to.
func (m *model) leftOver(t *testing.T) (names []string) {
	used := make(map[string]bool)
	for _, r := range m.routes {
		for _, cluster := range clustersOf(r) {
			used[cluster] = true
		}
	}
	for _, l := range m.listeners {
		used[managerOf(t, l).GetRds().GetRouteConfigName()] = true
	}
	for _, all := range []([]string){slices.Collect(maps.Keys(m.clusters)), slices.Collect(maps.Keys(m.routes))} {
		names = append(names, slices.DeleteFunc(all, func(name string) bool { return used[name] })...)
	}
	for name := range m.endpoints {
		if m.clusters[name].GetType() != clusterpb.Cluster_EDS {
			names = append(names, name)
		}
	}
	return names
}

// clustersOf returns the names of clusters that a RouteConfiguration refers to.
func clustersOf(r *routepb.RouteConfiguration) (names []string) {
	for _, host := range r.GetVirtualHosts() {
		for _, route := range host.GetRoutes() {
			if name := route.GetRoute().GetCluster(); name != "" {
				names = append(names, name)
			}
			for _, c := range route.GetRoute().GetWeightedClusters().GetClusters() {
				names = append(names, c.GetName())
			}
		}
	}
	return names
}

// managerOf returns the HTTP connection manager of a listener. It fails the test if that is invalid.
func managerOf(t *testing.T, l *listenerpb.Listener) *managerpb.HttpConnectionManager {
	t.Helper()
	m := new(managerpb.HttpConnectionManager)
	if err := l.GetFilterChains()[0].GetFilters()[0].GetTypedConfig().UnmarshalTo(m); err != nil {
		t.Fatalf("listener %q: %v", l.GetName(), err)
	}
	if err := m.ValidateAll(); err != nil {
		t.Fatalf("listener %q: %v", l.GetName(), err)
	}
	return m
}

// TestRandomMeshIsConsistentAtEveryStep makes 500 changes and checks the references between resources after each update.
func TestRandomMeshIsConsistentAtEveryStep(t *testing.T) {
	for seed := range uint64(check.Rounds(1)) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			m, err := newMesh(rand.New(rand.NewPCG(seed, seed)), nil)
			if err != nil {
				t.Fatal(err)
			}
			known := newModel()
			for typeURL, resources := range m.resources {
				known.take(t, wire.Update{TypeURL: typeURL, Resources: slices.Collect(maps.Values(resources))})
			}
			if bad := append(known.check(t), known.leftOver(t)...); len(bad) > 0 {
				t.Fatalf("at first: %q", bad)
			}
			kinds := make(map[string]int)
			for i := range 500 {
				c, err := m.step()
				if err != nil {
					t.Fatal(err)
				}
				for _, u := range c.updates {
					known.take(t, u)
					if bad := known.check(t); len(bad) > 0 {
						t.Fatalf("change %d, %s, after its update of %s: %q", i, c.what, u.TypeURL, bad)
					}
				}
				if bad := known.leftOver(t); len(bad) > 0 {
					t.Fatalf("change %d, %s: nothing refers to %q any more", i, c.what, bad)
				}
				known.same(t, m)
				kinds[kindOf(c.what)]++
			}
			for _, kind := range []string{"scales up", "scales down", "moves to", "is draining", "is healthy", "canary", "connections", "is added", "is removed"} {
				if kinds[kind] == 0 {
					t.Errorf("no change of kind %q among 500", kind)
				}
			}
		})
	}
}

// same fails the test unless the model has as many resources as the mesh, and each listener has a port of its own.
func (m *model) same(t *testing.T, mesh *mesh) {
	t.Helper()
	got := []int{len(m.clusters), len(m.endpoints), len(m.listeners), len(m.routes)}
	var want []int
	for _, typeURL := range []string{wire.ClusterType, wire.EndpointType, wire.ListenerType, wire.RouteType} {
		want = append(want, len(mesh.resources[typeURL]))
	}
	if !slices.Equal(got, want) {
		t.Fatalf("updates contain %d clusters, endpoints, listeners and routes, the mesh contains %d", got, want)
	}
	ports := make(map[uint32]string)
	for name, l := range m.listeners {
		port := l.GetAddress().GetSocketAddress().GetPortValue()
		if other, taken := ports[port]; taken {
			t.Fatalf("listeners %s and %s share port %d", name, other, port)
		}
		ports[port] = name
	}
}

// kindOf returns the kind of a change by its description.
func kindOf(what string) string {
	for _, kind := range []string{"scales up", "scales down", "moves to", "is draining", "is healthy", "canary", "connections", "is added", "is removed"} {
		if strings.Contains(what, kind) {
			return kind
		}
	}
	return what
}

// TestNeeded compares the references that needed finds with those of the generated decoder.
func TestNeeded(t *testing.T) {
	m, err := newMesh(rand.New(rand.NewPCG(1, 2)), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range m.resources[wire.ClusterType] {
		want := ""
		if decode(t, r, new(clusterpb.Cluster)).GetType() == clusterpb.Cluster_EDS {
			want = name
		}
		if got := needed(wire.ClusterType, name, r.Value()); got != want {
			t.Errorf("cluster %q needs endpoints %q, want %q", name, got, want)
		}
	}
	for name, r := range m.resources[wire.ListenerType] {
		want := managerOf(t, decode(t, r, new(listenerpb.Listener))).GetRds().GetRouteConfigName()
		if got := needed(wire.ListenerType, name, r.Value()); got != want || want == "" {
			t.Errorf("listener %q needs route %q, want %q", name, got, want)
		}
	}
	service, err := proto.Marshal(&clusterpb.Cluster{
		Name:                 "a",
		ClusterDiscoveryType: &clusterpb.Cluster_Type{Type: clusterpb.Cluster_EDS},
		EdsClusterConfig:     &clusterpb.Cluster_EdsClusterConfig{ServiceName: "b"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := needed(wire.ClusterType, "a", service); got != "b" {
		t.Errorf("a cluster with service name b needs endpoints %q", got)
	}
}
