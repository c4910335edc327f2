package demo

import (
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"

	"github.com/xdstender/tender/cache/wire"
)

// Limits that changes of the mesh respect.
const (
	maxPods   = 12 // pods of one version of a service
	maxExtras = 3  // services of visitors at one time
)

// zones are the availability zones in which pods run.
var zones = []string{"eu-west-1a", "eu-west-1b", "eu-west-1c"}

// A mesh is a small shop of services and the xDS resources that describe it. It does no I/O and is not safe for
// concurrent use. Every resource that another one refers to exists after each update of a change, not only after the
// whole change.
type mesh struct {
	random   *rand.Rand
	services []*service
	extras   []standing // visitors that are not in services
	changes  int        // changes so far
	pods     int        // pods created so far; not counted with an Envoy

	// envoy receives requests for the shop; nil if there is none. With an Envoy, pods are servers on loopback, and only
	// the ingress binds its port.
	envoy *envoy

	// resources are the current resources, by type URL and name.
	resources map[string]map[string]*wire.Resource
}

// A standing describes the initial state of a service.
type standing struct {
	name     string
	port     int    // of its pods
	releases int    // number of versions; the second one is a canary
	pods     int    // of each version
	path     string // prefix at the ingress; empty if the service is not public
	external string // DNS name of a service outside the mesh, which has no pods
}

// shop are the services that always exist.
var shop = []standing{
	{name: "frontend", port: 8080, releases: 1, pods: 6, path: "/"},
	{name: "cart", port: 7070, releases: 1, pods: 4, path: "/cart"},
	{name: "catalog", port: 3550, releases: 2, pods: 4, path: "/products"},
	{name: "checkout", port: 5050, releases: 2, pods: 3, path: "/checkout"},
	{name: "payment", port: 50051, releases: 1, pods: 3},
	{name: "shipping", port: 50052, releases: 1, pods: 3},
	{name: "currency", port: 7000, releases: 1, pods: 5},
	{name: "email", port: 8025, releases: 1, pods: 2},
	{name: "recommendation", port: 8085, releases: 2, pods: 3, path: "/recommendations"},
	{name: "ad", port: 9555, releases: 1, pods: 3, path: "/ads"},
	{name: "inventory", port: 9100, releases: 1, pods: 4},
	{name: "search", port: 9200, releases: 2, pods: 3, path: "/search"},
	{name: "card-processor", port: 443, external: "cards.example.com"},
}

// visitors are services that changes add and remove.
var visitors = []standing{
	{name: "gift-cards", port: 8101, releases: 1, pods: 2, path: "/gift-cards"},
	{name: "reviews", port: 8102, releases: 2, pods: 2, path: "/reviews"},
	{name: "wishlist", port: 8103, releases: 1, pods: 2, path: "/wishlist"},
	{name: "loyalty", port: 8104, releases: 1, pods: 3, path: "/loyalty"},
	{name: "returns", port: 8105, releases: 1, pods: 2, path: "/returns"},
}

// A service is the current state of a service in the mesh.
type service struct {
	standing
	local    int       // port on which sidecars listen for requests to the service
	canary   int       // percentage of requests that the second version receives
	versions []*subset // one for each release; empty if the service is external
}

// A subset is one version of a service: a cluster and its endpoints.
type subset struct {
	cluster     string
	port        int // of its pods; unused with an Envoy
	timeout     int // connect timeout in milliseconds
	connections int // circuit breaker: maximum number of connections
	pods        []pod
}

// A pod is an endpoint.
type pod struct {
	address string
	port    int
	zone    int    // index in zones
	health  string // name of an Envoy HealthStatus
}

// A change is one change of the mesh.
type change struct {
	what    string        // description for the output
	updates []wire.Update // in the order in which the origin must publish them
	staged  bool          // the relay distributes the change in stages, so its delay is not measured
}

// newMesh returns the initial shop. e may be nil; with an Envoy, the pods are real servers.
func newMesh(random *rand.Rand, e *envoy) (*mesh, error) {
	m := &mesh{random: random, envoy: e, extras: slices.Clone(visitors), resources: make(map[string]map[string]*wire.Resource)}
	for _, s := range shop {
		m.services = append(m.services, m.newService(s))
	}
	for _, s := range m.services {
		for _, add := range []func(*service) (wire.Update, error){m.clusters, m.endpoints, m.listener, m.route} {
			if _, err := add(s); err != nil {
				return nil, err
			}
		}
	}
	for _, add := range []func() (wire.Update, error){m.ingressListener, m.ingressRoute} {
		if _, err := add(); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// newService returns a service with its pods. It does not add resources to the mesh.
func (m *mesh) newService(st standing) *service {
	s := &service{standing: st, local: 20000 + st.port%10000, canary: 10}
	for v := range st.releases {
		sub := &subset{cluster: st.name, port: st.port, timeout: 1000, connections: 1024}
		if st.releases > 1 {
			sub.cluster = st.name + "-v" + strconv.Itoa(v+1)
		}
		for i := range st.pods {
			sub.pods = append(sub.pods, m.newPod(sub, i%len(zones)))
		}
		s.versions = append(s.versions, sub)
	}
	return s
}

// newPod returns a healthy pod with an unused address. Addresses of old pods are used again when the range is
// exhausted.
func (m *mesh) newPod(sub *subset, zone int) pod {
	if m.envoy != nil {
		address, port := m.envoy.pods.add(sub.cluster)
		return pod{address: address, port: port, zone: zone, health: "HEALTHY"}
	}
	m.pods++
	n := m.pods
	return pod{address: fmt.Sprintf("10.%d.%d.%d", 32+zone, n/250%250, 1+n%250), port: sub.port, zone: zone, health: "HEALTHY"}
}

// show formats the address of a pod. With an Envoy it includes the port, because all pods have the same IP address.
func (m *mesh) show(p pod) string {
	if m.envoy != nil {
		return net.JoinHostPort(p.address, strconv.Itoa(p.port))
	}
	return p.address
}

// step makes a random change: pods change often, services rarely.
func (m *mesh) step() (change, error) { return m.do(m.next) }

// do makes the change of next and sets the version of its updates.
func (m *mesh) do(next func() (change, error)) (change, error) {
	m.changes++
	c, err := next()
	for i := range c.updates {
		c.updates[i].SystemVersion = strconv.Itoa(m.changes) // for display only
	}
	return c, err
}

// next chooses a kind of change at random and makes it.
func (m *mesh) next() (change, error) {
	switch n := m.random.IntN(100); {
	case n < 70:
		return m.changePods()
	case n < 85:
		return m.shiftCanary()
	case n < 92:
		return m.changeCluster()
	case len(m.extras) == len(visitors), n < 96 && len(visitors)-len(m.extras) < maxExtras:
		return m.addService()
	default:
		return m.removeService()
	}
}

// pick returns a random service for which fits returns true. It panics if there is none.
func (m *mesh) pick(fits func(*service) bool) *service {
	var fitting []*service
	for _, s := range m.services {
		if fits(s) {
			fitting = append(fitting, s)
		}
	}
	return fitting[m.random.IntN(len(fitting))] // shop always has a service that fits
}

// pickSubset returns a random version of a random service that has pods.
func (m *mesh) pickSubset() *subset {
	s := m.pick(func(s *service) bool { return s.external == "" })
	return s.versions[m.random.IntN(len(s.versions))]
}

// changePods adds, removes or replaces a pod of a random service, or changes the health of one.
func (m *mesh) changePods() (change, error) {
	sub := m.pickSubset()
	at := m.random.IntN(len(sub.pods))
	var what string
	switch n := m.random.IntN(10); {
	case n < 3 && len(sub.pods) < maxPods:
		sub.pods = append(sub.pods, m.newPod(sub, m.random.IntN(len(zones))))
		what = fmt.Sprintf("%s scales up to %d endpoints", sub.cluster, len(sub.pods))
	case n < 6 && len(sub.pods) > 2:
		sub.pods = slices.Delete(sub.pods, at, at+1)
		what = fmt.Sprintf("%s scales down to %d endpoints", sub.cluster, len(sub.pods))
	case n < 8 || len(sub.pods) == 1:
		old := sub.pods[at]
		sub.pods[at] = m.newPod(sub, m.random.IntN(len(zones)))
		what = fmt.Sprintf("%s: %s moves to %s", sub.cluster, m.show(old), m.show(sub.pods[at]))
	case sub.pods[at].health == "HEALTHY":
		sub.pods[at].health = "DRAINING"
		what = fmt.Sprintf("%s: %s is draining", sub.cluster, m.show(sub.pods[at]))
	default:
		sub.pods[at].health = "HEALTHY"
		what = fmt.Sprintf("%s: %s is healthy", sub.cluster, m.show(sub.pods[at]))
	}
	u, err := m.endpointsOf(sub)
	return change{what: what, updates: []wire.Update{u}}, err
}

// shiftCanary changes the percentage of requests that the canary of a random service receives.
func (m *mesh) shiftCanary() (change, error) {
	s := m.pick(func(s *service) bool { return len(s.versions) > 1 })
	if s.canary += 10; s.canary > 50 {
		s.canary = 0
	}
	c := change{what: fmt.Sprintf("%s sends %d%% to its canary", s.name, s.canary)}
	own, err := m.route(s)
	if err != nil {
		return c, err
	}
	ingress, err := m.ingressRoute()
	c.updates = []wire.Update{{TypeURL: wire.RouteType, Resources: append(own.Resources, ingress.Resources...)}}
	return c, err
}

// changeCluster changes the circuit breaker of a random cluster, and sometimes its connect timeout.
func (m *mesh) changeCluster() (change, error) {
	sub := m.pickSubset()
	if sub.connections *= 2; sub.connections > 8192 {
		sub.connections = 1024
		sub.timeout = 250 + m.random.IntN(4)*250
	}
	u, err := m.clusterOf(sub)
	return change{what: fmt.Sprintf("cluster %s allows %d connections", sub.cluster, sub.connections), updates: []wire.Update{u}}, err
}

// addService adds a random visitor. Updates are ordered make-before-break: endpoints and clusters come before the
// routes that refer to them.
func (m *mesh) addService() (change, error) {
	i := m.random.IntN(len(m.extras))
	s := m.newService(m.extras[i])
	m.extras = slices.Delete(m.extras, i, i+1)
	m.services = append(m.services, s)
	c := change{what: "service " + s.name + " is added"}
	for _, add := range []func(*service) (wire.Update, error){m.endpoints, m.clusters, m.route, m.listener} {
		u, err := add(s)
		if err != nil {
			return c, err
		}
		c.updates = append(c.updates, u)
	}
	u, err := m.ingressRoute()
	c.updates = append(c.updates, u)
	return c, err
}

// removeService removes a random visitor. The routes that refer to its clusters are removed before the clusters.
func (m *mesh) removeService() (change, error) {
	at := len(shop) + m.random.IntN(len(m.services)-len(shop))
	s := m.services[at]
	m.services = slices.Delete(m.services, at, at+1)
	m.extras = append(m.extras, s.standing)
	ingress, err := m.ingressRoute()
	var clusters []string
	for _, sub := range s.versions {
		clusters = append(clusters, sub.cluster)
	}
	return change{what: "service " + s.name + " is removed", updates: []wire.Update{
		ingress,
		m.drop(wire.ListenerType, s.name),
		m.drop(wire.RouteType, s.name),
		m.drop(wire.ClusterType, clusters...),
		m.drop(wire.EndpointType, clusters...),
	}}, err
}

// drop removes resources from the mesh and returns the update that removes them from clients.
func (m *mesh) drop(typeURL string, names ...string) wire.Update {
	for _, name := range names {
		delete(m.resources[typeURL], name)
	}
	return wire.Update{TypeURL: typeURL, Removed: names}
}
