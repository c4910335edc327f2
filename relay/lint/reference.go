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

// note adds the references of one message, without those of the messages within it.
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

// clusterOf returns the cluster that a message names itself; empty if it names none.
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

// fromSameServer reports whether clients get a resource from the server that named it. Others may know the name in
// another way, or not at all.
func fromSameServer(c *corepb.ConfigSource) bool { return c.GetAds() != nil || c.GetSelf() != nil }

// onDemandFilter begins the type URLs of the configuration of Envoy's filter that fetches clusters on demand.
const onDemandFilter = typePrefix + "envoy.extensions.filters.http.on_demand.v3."

func onDemand(typeURL string) bool { return strings.HasPrefix(typeURL, onDemandFilter) }

// Patterns are names of clusters, with * for any part of a name.
type Patterns []string

// Match reports whether a name matches one of the patterns.
func (p Patterns) Match(name string) bool {
	return slices.ContainsFunc(p, func(pattern string) bool {
		// The patterns of package path stop at slashes, which names of clusters may contain.
		ok, err := path.Match(strings.ReplaceAll(pattern, "/", "\x00"), strings.ReplaceAll(name, "/", "\x00"))
		return err == nil && ok
	})
}
