package rollout

import (
	"fmt"
	"slices"
	"testing"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routepb "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	jwtpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	hcmpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcppb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	tlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	runtimepb "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// A named is a resource of a type, with its content.
type named struct {
	typeURL, name string
	proto.Message // nil for a removal
}

// joins reports which pairs of resources one part has.
func joins(t *testing.T, all []named) (joined func(a, b int) bool) {
	t.Helper()
	g := new(graph)
	var resources []nodeContent
	for _, r := range all {
		at := g.Add(nameOf(r.typeURL, r.name))
		if r.Message != nil {
			resources = append(resources, nodeContent{at, check.Must(wire.NewResource(r.typeURL, r.name, "1", check.Must(proto.Marshal(r.Message))))})
		}
	}
	g.joinReferences(resources)
	g.joinKeys(resources)
	g.joinWholes()
	return func(a, b int) bool { return g.Root(a) == g.Root(b) }
}

// packed returns a message as Any.
func packed(m proto.Message) *anypb.Any { return check.Must(anypb.New(m)) }

// secretOf returns a TLS context that names a Secret.
func secretOf(name string) *anypb.Any {
	return packed(&tlspb.DownstreamTlsContext{CommonTlsContext: &tlspb.CommonTlsContext{
		TlsCertificateSdsSecretConfigs: []*tlspb.SdsSecretConfig{{Name: name}},
	}})
}

// filtered returns a listener with a network filter.
func filtered(name string, filter proto.Message) *listenerpb.Listener {
	return &listenerpb.Listener{Name: name, FilterChains: []*listenerpb.FilterChain{{
		Filters: []*listenerpb.Filter{{Name: "filter", ConfigType: &listenerpb.Filter_TypedConfig{TypedConfig: packed(filter)}}},
	}}}
}

// at returns a listener on a port.
func at(name string, port uint32) *listenerpb.Listener {
	return &listenerpb.Listener{Name: name, Address: &corepb.Address{Address: &corepb.Address_SocketAddress{
		SocketAddress: &corepb.SocketAddress{Address: "10.0.0.1", PortSpecifier: &corepb.SocketAddress_PortValue{PortValue: port}},
	}}}
}

// routes returns a route to a cluster.
func routes(cluster string) []*routepb.Route {
	return []*routepb.Route{{Action: &routepb.Route_Route{Route: &routepb.RouteAction{ClusterSpecifier: &routepb.RouteAction_Cluster{Cluster: cluster}}}}}
}

// TestB53_KindsOfReferences: each kind of reference joins two pending changes to one part, also if what is referred to is removed. A
// change of the same types without a reference is another part. A name that is in the content by chance counts, too.
func TestB53_KindsOfReferences(t *testing.T) {
	const acme = "type.googleapis.com/acme.Thing"
	cluster := func(name string) named { return named{wire.ClusterType, name, &clusterpb.Cluster{Name: name}} }
	route := func(name string) named {
		return named{wire.RouteType, name, &routepb.RouteConfiguration{Name: name}}
	}
	config := func(name string) named {
		return named{wire.ExtensionConfigType, name, &corepb.TypedExtensionConfig{Name: name}}
	}
	secret := func(name string) named { return named{wire.SecretType, name, &tlspb.Secret{Name: name}} }
	endpoints := func(name string) named {
		return named{wire.EndpointType, name, &endpointpb.ClusterLoadAssignment{ClusterName: name}}
	}
	thing := func(name, text string) named { return named{acme, name, &corepb.TypedExtensionConfig{Name: text}} }
	discovery := &corepb.ExtensionConfigSource{}
	kinds := []struct {
		what     string
		from, to named
		other    named // which from does not refer to
	}{
		{"the endpoints of a cluster, by its name", cluster("x"), endpoints("x"), endpoints("y")},
		{"the endpoints of a cluster, by the name of a service", named{wire.ClusterType, "a", &clusterpb.Cluster{
			Name: "a", EdsClusterConfig: &clusterpb.Cluster_EdsClusterConfig{ServiceName: "x"},
		}}, endpoints("x"), endpoints("y")},
		{"the Secret of a cluster", named{wire.ClusterType, "a", &clusterpb.Cluster{Name: "a", TransportSocket: &corepb.TransportSocket{
			Name: "tls", ConfigType: &corepb.TransportSocket_TypedConfig{TypedConfig: secretOf("x")},
		}}}, secret("x"), secret("y")},
		{"the cluster of a listener", named{wire.ListenerType, "a", filtered("a", &tcppb.TcpProxy{
			ClusterSpecifier: &tcppb.TcpProxy_Cluster{Cluster: "x"},
		})}, cluster("x"), cluster("y")},
		{"the route of a listener", named{wire.ListenerType, "a", filtered("a", &hcmpb.HttpConnectionManager{
			RouteSpecifier: &hcmpb.HttpConnectionManager_Rds{Rds: &hcmpb.Rds{RouteConfigName: "x"}},
		})}, route("x"), route("y")},
		{"the extension config of a listener", named{wire.ListenerType, "a", filtered("a", &hcmpb.HttpConnectionManager{
			HttpFilters: []*hcmpb.HttpFilter{{Name: "x", ConfigType: &hcmpb.HttpFilter_ConfigDiscovery{ConfigDiscovery: discovery}}},
		})}, config("x"), config("y")},
		{"the Secret of a listener", named{wire.ListenerType, "a", &listenerpb.Listener{Name: "a", FilterChains: []*listenerpb.FilterChain{{
			TransportSocket: &corepb.TransportSocket{ConfigType: &corepb.TransportSocket_TypedConfig{TypedConfig: secretOf("x")}},
		}}}}, secret("x"), secret("y")},
		{"the route of a scoped route", named{wire.ScopedRouteType, "a", &routepb.ScopedRouteConfiguration{
			Name: "a", RouteConfigurationName: "x",
		}}, route("x"), route("y")},
		{"the cluster of a route", named{wire.RouteType, "a", &routepb.RouteConfiguration{
			Name: "a", VirtualHosts: []*routepb.VirtualHost{{Name: "v", Routes: routes("x")}},
		}}, cluster("x"), cluster("y")},
		{"the extension config of a route", named{wire.RouteType, "a", &routepb.RouteConfiguration{
			Name: "a", VirtualHosts: []*routepb.VirtualHost{{Name: "v", TypedPerFilterConfig: map[string]*anypb.Any{"x": {}}}},
		}}, config("x"), config("y")},
		{"the cluster of a virtual host", named{wire.VirtualHostType, "r/a", &routepb.VirtualHost{Name: "a", Routes: routes("x")}},
			cluster("x"), cluster("y")},
		{"the cluster of an extension config", named{wire.ExtensionConfigType, "a", &corepb.TypedExtensionConfig{
			Name: "a", TypedConfig: packed(&jwtpb.JwtAuthentication{Providers: map[string]*jwtpb.JwtProvider{"p": {
				JwksSourceSpecifier: &jwtpb.JwtProvider_RemoteJwks{RemoteJwks: &jwtpb.RemoteJwks{HttpUri: &corepb.HttpUri{
					Uri: "https://x/jwks", HttpUpstreamType: &corepb.HttpUri_Cluster{Cluster: "x"},
				}}},
			}}}),
		}}, cluster("x"), cluster("y")},
		{"the route configuration in the name of a virtual host", named{wire.VirtualHostType, "x/host", &routepb.VirtualHost{Name: "host"}},
			route("x"), route("host")},
		{"two listeners on one address", named{wire.ListenerType, "a", at("a", 1)}, named{wire.ListenerType, "x", at("x", 1)},
			named{wire.ListenerType, "y", at("y", 2)}},
		{"what a resource of an unknown type names", thing("a", "x"), cluster("x"), cluster("y")},
		{"a resource of an unknown type that another one names", thing("a", "x"), thing("x", "1"), thing("y", "2")},
		{"a listener with the name of a cluster, to which listeners refer", named{wire.ListenerType, "x", at("x", 1)}, cluster("x"), cluster("y")},
		{"a resource of an unknown type that a known one names", cluster("x"), named{acme, "x", nil}, named{acme, "y", nil}},
	}
	covered := make(map[[2]string]bool)
	for _, of := range kinds {
		covered[[2]string{of.from.typeURL, of.to.typeURL}] = true
		removed := of.to
		if of.what != "two listeners on one address" {
			removed.Message = nil
		}
		for _, to := range []named{of.to, removed} {
			for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}} {
				all := []named{of.from, to, of.other}
				ordered := []named{all[order[0]], all[order[1]], all[order[2]]}
				joined := joins(t, ordered)
				position := func(i int) int { return slices.Index(order, i) }
				if !joined(position(0), position(1)) {
					t.Errorf("%s: two parts (removed: %v)", of.what, to.Message == nil)
				}
				if joined(position(0), position(2)) || joined(position(1), position(2)) {
					t.Errorf("%s: the part also has %s", of.what, nameOf(of.other.typeURL, of.other.name))
				}
			}
		}
	}
	for _, from := range schema.ResourceTypes {
		for _, to := range from.RefersTo {
			if !covered[[2]string{from.URL, to}] {
				t.Errorf("no row has a reference of a %s to a %s", from.Noun, to)
			}
		}
	}
}

// TestB53_WhatIsNoReference: what only has a name in common, or names a type that its own type does not refer to, is in parts of its own.
func TestB53_WhatIsNoReference(t *testing.T) {
	layer := check.Must(structpb.NewStruct(map[string]any{"x": "x"}))
	for what, pair := range map[string][2]named{
		"a runtime layer with the name of a cluster": {
			{wire.RuntimeType, "a", &runtimepb.Runtime{Name: "a", Layer: layer}}, {wire.ClusterType, "x", &clusterpb.Cluster{Name: "x"}}},
		"endpoints with the name of a listener": {
			{wire.EndpointType, "x", &endpointpb.ClusterLoadAssignment{ClusterName: "x"}},
			{wire.ListenerType, "x", &listenerpb.Listener{Name: "x"}}},
		"a longer name": {
			{wire.RouteType, "a", &routepb.RouteConfiguration{Name: "a", VirtualHosts: []*routepb.VirtualHost{{Name: "v", Routes: routes("x-2")}}}},
			{wire.ClusterType, "x", &clusterpb.Cluster{Name: "x"}}},
		"a virtual host of another route configuration": {
			{wire.VirtualHostType, "x-2/host", &routepb.VirtualHost{Name: "host"}}, {wire.RouteType, "x", &routepb.RouteConfiguration{Name: "x"}}},
		"endpoints that name a cluster in their metadata": {
			{wire.EndpointType, "a", &endpointpb.ClusterLoadAssignment{ClusterName: "a", NamedEndpoints: map[string]*endpointpb.Endpoint{"x": {}}}},
			{wire.ClusterType, "x", &clusterpb.Cluster{Name: "x"}}},
		"two routes to one cluster that does not change": {
			{wire.RouteType, "a", &routepb.RouteConfiguration{Name: "a", VirtualHosts: []*routepb.VirtualHost{{Name: "v", Routes: routes("x")}}}},
			{wire.RouteType, "b", &routepb.RouteConfiguration{Name: "b", VirtualHosts: []*routepb.VirtualHost{{Name: "v", Routes: routes("x")}}}}},
	} {
		if joins(t, pair[:])(0, 1) {
			t.Error(fmt.Sprint(what, ": one part"))
		}
	}
}
