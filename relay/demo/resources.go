package demo

import (
	"encoding/json"
	"fmt"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
)

// The resources are written as the JSON of Envoy's documentation and encoded with the embedded descriptors. That is
// slower than generated code, but the demo encodes only a few resources per second. The generated packages would add
// megabytes to every relay binary.

// An object is a JSON object.
type object map[string]any

const (
	typePrefix    = "type.googleapis.com/"
	ingress       = "ingress" // name of the public listener and of its route
	ingressPort   = 10000
	managerType   = typePrefix + "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
	routerType    = typePrefix + "envoy.extensions.filters.http.router.v3.Router"
	corsType      = typePrefix + "envoy.extensions.filters.http.cors.v3.Cors"
	managerFilter = "envoy.filters.network.http_connection_manager"
	routerFilter  = "envoy.filters.http.router"
	corsFilter    = "envoy.filters.http.cors"
)

// ads is the ConfigSource of the ADS stream.
var ads = object{"ads": object{}, "resourceApiVersion": "V3"}

// put adds or replaces a resource of the mesh and returns the update. content is the JSON of the resource without its
// type.
func (m *mesh) put(typeURL, name string, content object) (wire.Update, error) {
	content["@type"] = typeURL
	text, err := json.Marshal(content)
	if err != nil {
		return wire.Update{}, fmt.Errorf("encode %s: %w", name, err)
	}
	_, value, err := schema.UnmarshalJSON(text)
	if err != nil {
		return wire.Update{}, fmt.Errorf("encode %s: %w", name, err)
	}
	r, err := wire.NewResource(typeURL, name, "", value)
	if err != nil {
		return wire.Update{}, fmt.Errorf("encode %s: %w", name, err)
	}
	if m.resources[typeURL] == nil {
		m.resources[typeURL] = make(map[string]*wire.Resource)
	}
	m.resources[typeURL][name] = r
	return wire.Update{TypeURL: typeURL, Resources: []*wire.Resource{r}}, nil
}

// clusters updates the Clusters of a service: one for each version.
func (m *mesh) clusters(s *service) (wire.Update, error) {
	if s.external != "" {
		host := s.external
		if m.envoy != nil {
			host = "localhost" // an Envoy would try to resolve the external name
		}
		return m.put(wire.ClusterType, s.name, object{
			"name": s.name, "type": "STRICT_DNS", "connectTimeout": "3s",
			"loadAssignment": object{
				"clusterName": s.name,
				"endpoints":   []object{{"lbEndpoints": []object{{"endpoint": endpoint(host, s.port)}}}},
			},
		})
	}
	return m.each(wire.ClusterType, s, m.clusterOf)
}

// endpoints updates the ClusterLoadAssignments of a service: one for each version.
func (m *mesh) endpoints(s *service) (wire.Update, error) {
	return m.each(wire.EndpointType, s, m.endpointsOf)
}

// each calls of for each version of a service and joins the updates.
func (m *mesh) each(typeURL string, s *service, of func(*subset) (wire.Update, error)) (wire.Update, error) {
	all := wire.Update{TypeURL: typeURL}
	for _, sub := range s.versions {
		u, err := of(sub)
		if err != nil {
			return all, err
		}
		all.Resources = append(all.Resources, u.Resources...)
	}
	return all, nil
}

// clusterOf updates the Cluster of one version of a service.
func (m *mesh) clusterOf(sub *subset) (wire.Update, error) {
	return m.put(wire.ClusterType, sub.cluster, object{
		"name":             sub.cluster,
		"type":             "EDS",
		"edsClusterConfig": object{"edsConfig": ads},
		"connectTimeout":   fmt.Sprintf("%.3fs", float64(sub.timeout)/1000),
		"lbPolicy":         "LEAST_REQUEST",
		"commonLbConfig":   object{"localityWeightedLbConfig": object{}},
		"circuitBreakers":  object{"thresholds": []object{{"maxConnections": sub.connections, "maxRequests": 4 * sub.connections}}},
	})
}

// endpointsOf updates the ClusterLoadAssignment of one version of a service, with a locality for each zone that has
// pods.
func (m *mesh) endpointsOf(sub *subset) (wire.Update, error) {
	byZone := make([][]object, len(zones))
	for _, p := range sub.pods {
		byZone[p.zone] = append(byZone[p.zone], object{
			"endpoint":            endpoint(p.address, p.port),
			"healthStatus":        p.health,
			"loadBalancingWeight": 1,
		})
	}
	var localities []object
	for i, pods := range byZone {
		if len(pods) == 0 {
			continue
		}
		localities = append(localities, object{
			"locality":            object{"region": "eu-west-1", "zone": zones[i]},
			"loadBalancingWeight": len(pods),
			"lbEndpoints":         pods,
		})
	}
	return m.put(wire.EndpointType, sub.cluster, object{"clusterName": sub.cluster, "endpoints": localities})
}

// listener updates the Listener on which sidecars accept requests to a service.
func (m *mesh) listener(s *service) (wire.Update, error) {
	l := httpListener(s.name, "127.0.0.1", s.local, router)
	l["bindToPort"] = m.envoy == nil
	return m.put(wire.ListenerType, s.name, l)
}

// The HTTP filters of listeners. Envoy rejects a listener whose last HTTP filter is not the router.
var (
	router = object{"name": routerFilter, "typedConfig": object{"@type": routerType}}
	cors   = object{"name": corsFilter, "typedConfig": object{"@type": corsType}}
)

// ingressListener updates the public Listener of the shop.
func (m *mesh) ingressListener() (wire.Update, error) { return m.ingressWith(router) }

// ingressWith updates the public Listener with the given HTTP filters.
func (m *mesh) ingressWith(filters ...object) (wire.Update, error) {
	if m.envoy != nil {
		return m.put(wire.ListenerType, ingress, httpListener(ingress, "127.0.0.1", m.envoy.port, filters...))
	}
	return m.put(wire.ListenerType, ingress, httpListener(ingress, "0.0.0.0", ingressPort, filters...))
}

// httpListener returns a Listener whose routes are the RouteConfiguration of the same name.
func httpListener(name, host string, port int, filters ...object) object {
	manager := object{
		"@type":       managerType,
		"statPrefix":  name,
		"rds":         object{"routeConfigName": name, "configSource": ads},
		"httpFilters": filters,
	}
	return object{
		"name":         name,
		"address":      socket(host, port),
		"filterChains": []object{{"filters": []object{{"name": managerFilter, "typedConfig": manager}}}},
	}
}

// route updates the RouteConfiguration of a service's listener.
func (m *mesh) route(s *service) (wire.Update, error) {
	return m.put(wire.RouteType, s.name, object{
		"name": s.name,
		"virtualHosts": []object{{
			"name":    s.name,
			"domains": []string{"*"},
			"routes":  []object{{"match": object{"prefix": "/"}, "route": s.action()}},
		}},
	})
}

// ingressRoute updates the RouteConfiguration of the public Listener. The prefix "/" matches every path, so it comes
// last.
func (m *mesh) ingressRoute() (wire.Update, error) {
	var routes, last []object
	for _, s := range m.services {
		r := object{"match": object{"prefix": s.path}, "route": s.action()}
		switch s.path {
		case "":
		case "/":
			last = append(last, r)
		default:
			routes = append(routes, r)
		}
	}
	return m.put(wire.RouteType, ingress, object{
		"name": ingress,
		"virtualHosts": []object{{
			"name":    "shop",
			"domains": []string{"shop.example.com", "*"},
			"routes":  append(routes, last...),
		}},
	})
}

// action returns the RouteAction to the service, weighted if it has a canary.
func (s *service) action() object {
	if len(s.versions) < 2 {
		return object{"cluster": s.name, "timeout": "15s"}
	}
	return object{"timeout": "15s", "weightedClusters": object{"clusters": []object{
		{"name": s.versions[0].cluster, "weight": 100 - s.canary},
		{"name": s.versions[1].cluster, "weight": s.canary},
	}}}
}

func endpoint(host string, port int) object { return object{"address": socket(host, port)} }

func socket(host string, port int) object {
	return object{"socketAddress": object{"address": host, "portValue": port}}
}
