package lint

import (
	"cmp"
	"path"
	"slices"
	"strings"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routepb "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcppb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/wire"
)

// note adds the references of one message. It does not look into nested messages.
func (in *inspection) note(m proto.Message) {
	in.refer(wire.ClusterType, clusterOf(m))
	switch m := m.(type) {
	case *tcppb.TcpProxy:
		in.OnDemand = in.OnDemand || m.GetOnDemand() != nil
	case *routepb.ScopedRouteConfiguration:
		in.refer(wire.RouteType, m.GetRouteConfigurationName())
	case *hcmpb.Rds:
		if fromSameServer(m.GetConfigSource()) {
			in.refer(wire.RouteType, m.GetRouteConfigName())
		}
	case *clusterpb.Cluster:
		if eds := m.GetEdsClusterConfig(); m.GetType() == clusterpb.Cluster_EDS && fromSameServer(eds.GetEdsConfig()) {
			in.refer(wire.EndpointType, cmp.Or(eds.GetServiceName(), m.GetName()))
		}
	}
}

// clusterOf returns the name of the cluster to which a message refers, or "" if there is none. It does not look into
// nested messages.
func clusterOf(m proto.Message) string {
	switch m := m.(type) {
	case *routepb.RouteAction:
		return m.GetCluster()
	case *routepb.WeightedCluster_ClusterWeight:
		return m.GetName()
	case *routepb.RouteAction_RequestMirrorPolicy:
		return m.GetCluster()
	case *tcppb.TcpProxy:
		return m.GetCluster()
	case *tcppb.TcpProxy_WeightedCluster_ClusterWeight:
		return m.GetName()
	default:
		return ""
	}
}

// fromSameServer reports whether clients request the resource from the server that sent the reference. References to
// other servers are not checked: their resources are not in the view.
func fromSameServer(c *corepb.ConfigSource) bool { return c.GetAds() != nil || c.GetSelf() != nil }

// onDemandFilter is the prefix of the type URLs of Envoy's on-demand filter (ODCDS): its configuration and its
// per-route configuration.
const onDemandFilter = typePrefix + "envoy.extensions.filters.http.on_demand.v3."

// onDemand reports whether a type URL is that of a configuration of Envoy's on-demand filter.
func onDemand(typeURL string) bool { return strings.HasPrefix(typeURL, onDemandFilter) }

// Patterns are names of clusters in the syntax of [path.Match], except that * matches slashes too.
type Patterns []string

// Match reports whether a name matches one of the patterns.
func (p Patterns) Match(name string) bool {
	return slices.ContainsFunc(p, func(pattern string) bool {
		// In package path, * does not match slashes, which cluster names may contain.
		ok, err := path.Match(strings.ReplaceAll(pattern, "/", "\x00"), strings.ReplaceAll(name, "/", "\x00"))
		return err == nil && ok
	})
}
