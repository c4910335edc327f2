package envoy_test

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	bootstrappb "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routepb "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	bufferpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/buffer/v3"
	routerpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	runtimepb "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
)

// A source returns the ConfigSource of a resource. Its clusters are those that connected adds to the bootstrap.
type source func() *corepb.ConfigSource

// byADS uses the ADS stream of the bootstrap.
func byADS() *corepb.ConfigSource {
	return unlimited(overADS())
}

// byDelta uses a separate Delta stream for each resource.
func byDelta() *corepb.ConfigSource { return byStream(corepb.ApiConfigSource_DELTA_GRPC) }

// bySotW uses a separate SotW stream for each resource.
func bySotW() *corepb.ConfigSource { return byStream(corepb.ApiConfigSource_GRPC) }

// byREST polls each resource by REST.
func byREST() *corepb.ConfigSource {
	return unlimited(&corepb.ConfigSource{ConfigSourceSpecifier: &corepb.ConfigSource_ApiConfigSource{ApiConfigSource: &corepb.ApiConfigSource{
		ApiType: corepb.ApiConfigSource_REST, TransportApiVersion: corepb.ApiVersion_V3, ClusterNames: []string{"tender-rest"},
		RefreshDelay: durationpb.New(100 * time.Millisecond), RequestTimeout: durationpb.New(30 * time.Second),
	}}})
}

func byStream(api corepb.ApiConfigSource_ApiType) *corepb.ConfigSource {
	return unlimited(&corepb.ConfigSource{ConfigSourceSpecifier: &corepb.ConfigSource_ApiConfigSource{ApiConfigSource: &corepb.ApiConfigSource{
		ApiType: api, TransportApiVersion: corepb.ApiVersion_V3, SetNodeOnFirstMessageOnly: true,
		GrpcServices: []*corepb.GrpcService{{TargetSpecifier: &corepb.GrpcService_EnvoyGrpc_{
			EnvoyGrpc: &corepb.GrpcService_EnvoyGrpc{ClusterName: "tender"},
		}}},
	}}})
}

// unlimited disables the timeout of the initial fetch, so that a slow machine does not change the result.
func unlimited(c *corepb.ConfigSource) *corepb.ConfigSource {
	c.ResourceApiVersion, c.InitialFetchTimeout = corepb.ApiVersion_V3, durationpb.New(0)
	return c
}

// connected returns an edit of a bootstrap. The cluster "tender" then has the gRPC address, the cluster "tender-rest"
// the REST address, and a runtime layer comes from the source.
func connected(server, rest string, from source) func(*bootstrappb.Bootstrap) {
	return func(b *bootstrappb.Bootstrap) {
		streams := b.GetStaticResources().GetClusters()[0]
		polls := proto.CloneOf(streams)
		polls.Name = "tender-rest"
		streams.LoadAssignment, polls.LoadAssignment = relaytest.Endpoints("tender", server), relaytest.Endpoints("tender-rest", rest)
		b.StaticResources.Clusters = append(b.StaticResources.Clusters, polls)
		dynamic := b.GetDynamicResources()
		for _, c := range []*corepb.ConfigSource{dynamic.GetCdsConfig(), dynamic.GetLdsConfig()} {
			if api := c.GetApiConfigSource(); api.GetApiType() == corepb.ApiConfigSource_REST {
				api.ClusterNames = []string{"tender-rest"}
			}
		}
		b.LayeredRuntime = layers(from(), "discovered")
	}
}

// layers returns a runtime with layers from a ConfigSource.
func layers(from *corepb.ConfigSource, names ...string) *bootstrappb.LayeredRuntime {
	r := new(bootstrappb.LayeredRuntime)
	for _, name := range names {
		r.Layers = append(r.Layers, &bootstrappb.RuntimeLayer{Name: name, LayerSpecifier: &bootstrappb.RuntimeLayer_RtdsLayer_{
			RtdsLayer: &bootstrappb.RuntimeLayer_RtdsLayer{Name: name, RtdsConfig: from},
		}})
	}
	return r
}

// A richWorld has resources of all types. The content of each depends on the generation.
type richWorld struct {
	sources    []source // used by the resources in turn
	turn       int      // index of the last used source, modulo their number
	generation int
	pairs      []certs.Pair // certificates of the Secret, used in turn by generation
	backends   []*envoytest.Backend
}

// newRichWorld returns a world in generation 0, which has no resources before next is called.
func newRichWorld(t *testing.T, sources ...source) *richWorld {
	t.Helper()
	ca := certs.NewCA(t)
	w := &richWorld{sources: sources}
	for i := range 2 {
		w.pairs = append(w.pairs, ca.Sign(certs.Leaf{Names: []string{"web.example"}}))
		w.backends = append(w.backends, envoytest.NewBackend(t, fmt.Sprint("backend-", i)))
	}
	return w
}

// next puts the next generation into a control plane. All resources change, and of most types one is added and one is
// removed.
func (w *richWorld) next(origin *envoytest.ControlPlane) {
	w.generation++
	w.turn = 0 // each resource keeps its source
	origin.Apply("", func(to *envoytest.World) {
		to.Put(w.clusters()...)
		to.Put(w.listeners()...)
		to.Put(w.routes()...)
		to.Put(w.secret(), w.filter(), w.runtime())
		old := fmt.Sprint("only-", w.generation-1)
		to.Remove(relaytest.ClusterType, old)
		to.Remove(relaytest.EndpointType, old)
		to.Remove(relaytest.ListenerType, old)
		to.Remove(relaytest.RouteType, old)
		to.Remove(relaytest.ScopedRouteType, old)
		to.Remove(relaytest.VirtualHostType, "hosts/"+old)
	})
}

// from returns the ConfigSource of the next resource.
func (w *richWorld) from() *corepb.ConfigSource {
	w.turn++
	return w.sources[w.turn%len(w.sources)]()
}

// mark returns a text that identifies the generation.
func (w *richWorld) mark() string { return fmt.Sprint("generation-", w.generation) }

// names returns a name that exists in all generations, and one that exists only in the current one.
func (w *richWorld) names() []string { return []string{"both", fmt.Sprint("only-", w.generation)} }

// clusters returns EDS clusters with their endpoints, and static and DNS clusters.
func (w *richWorld) clusters() (msgs []proto.Message) {
	static, dns := relaytest.StaticCluster("static", w.backends[0].Addr), relaytest.StaticCluster("dns", "localhost:1")
	dns.ClusterDiscoveryType = &clusterpb.Cluster_Type{Type: clusterpb.Cluster_STRICT_DNS}
	dns.DnsLookupFamily = clusterpb.Cluster_V4_ONLY
	clusters := []*clusterpb.Cluster{static, dns}
	for _, name := range w.names() {
		c := relaytest.Cluster(name)
		c.EdsClusterConfig.EdsConfig = w.from()
		clusters = append(clusters, c)
		msgs = append(msgs, w.endpoints(name))
	}
	for _, c := range clusters {
		c.ConnectTimeout = durationpb.New(5*time.Second + time.Duration(w.generation)*time.Millisecond)
		msgs = append(msgs, c)
	}
	return msgs
}

// endpoints returns endpoints in localities with several priorities and weights.
func (w *richWorld) endpoints(cluster string) *endpointpb.ClusterLoadAssignment {
	a := relaytest.Endpoints(cluster, w.backends[w.generation%2].Addr, w.backends[0].Addr)
	for i, priority := range []uint32{1, 1, 2} { // no server listens at these endpoints
		further := relaytest.Endpoints(cluster, fmt.Sprintf("127.0.1.%d:%d", i, 1000+w.generation)).GetEndpoints()[0]
		further.Locality.Zone, further.Priority = fmt.Sprint("zone-", i), priority
		further.LoadBalancingWeight = wrapperspb.UInt32(uint32(w.generation + i))
		further.GetLbEndpoints()[0].LoadBalancingWeight = wrapperspb.UInt32(uint32(7 + i))
		a.Endpoints = append(a.Endpoints, further)
	}
	return a
}

// listeners returns listeners that use RDS, scoped routes and VHDS, and one with TLS. All have a filter from ECDS.
func (w *richWorld) listeners() (msgs []proto.Message) {
	for _, name := range w.names() {
		msgs = append(msgs, w.listener(name, &hcmpb.HttpConnectionManager{RouteSpecifier: w.rds(name)}))
	}
	encrypted := w.listener("tls", &hcmpb.HttpConnectionManager{RouteSpecifier: w.rds("both")})
	encrypted.FilterChains[0].TransportSocket = withSecrets(w.from(), "certificate")
	msgs = append(msgs, encrypted, w.listener("scoped", &hcmpb.HttpConnectionManager{RouteSpecifier: w.scopes()}))
	return append(msgs, w.listener("hosts", &hcmpb.HttpConnectionManager{RouteSpecifier: w.rds("hosts")}))
}

func (w *richWorld) rds(name string) *hcmpb.HttpConnectionManager_Rds {
	return &hcmpb.HttpConnectionManager_Rds{Rds: &hcmpb.Rds{ConfigSource: w.from(), RouteConfigName: name}}
}

// scopes returns scoped routes that select a RouteConfiguration by the header "scope".
func (w *richWorld) scopes() *hcmpb.HttpConnectionManager_ScopedRoutes {
	return &hcmpb.HttpConnectionManager_ScopedRoutes{ScopedRoutes: &hcmpb.ScopedRoutes{
		Name: "scopes",
		ScopeKeyBuilder: &hcmpb.ScopedRoutes_ScopeKeyBuilder{Fragments: []*hcmpb.ScopedRoutes_ScopeKeyBuilder_FragmentBuilder{{
			Type: &hcmpb.ScopedRoutes_ScopeKeyBuilder_FragmentBuilder_HeaderValueExtractor_{
				HeaderValueExtractor: &hcmpb.ScopedRoutes_ScopeKeyBuilder_FragmentBuilder_HeaderValueExtractor{
					Name: "scope", ExtractType: &hcmpb.ScopedRoutes_ScopeKeyBuilder_FragmentBuilder_HeaderValueExtractor_Index{},
				},
			},
		}}},
		RdsConfigSource: w.from(),
		ConfigSpecifier: &hcmpb.ScopedRoutes_ScopedRds{ScopedRds: &hcmpb.ScopedRds{ScopedRdsConfigSource: w.from()}},
	}}
}

func (w *richWorld) listener(name string, m *hcmpb.HttpConnectionManager) *listenerpb.Listener {
	m.StatPrefix = w.mark()
	return filtered(name, m, "filter", w.from())
}

// filtered returns a listener with a filter from ECDS.
func filtered(name string, m *hcmpb.HttpConnectionManager, filter string, from *corepb.ConfigSource) *listenerpb.Listener {
	m.HttpFilters = []*hcmpb.HttpFilter{
		{Name: filter, ConfigType: &hcmpb.HttpFilter_ConfigDiscovery{ConfigDiscovery: &corepb.ExtensionConfigSource{
			ConfigSource: from, TypeUrls: []string{relaytest.Pack(&bufferpb.Buffer{}).GetTypeUrl()},
		}}},
		{Name: "envoy.filters.http.router", ConfigType: &hcmpb.HttpFilter_TypedConfig{TypedConfig: relaytest.Pack(&routerpb.Router{})}},
	}
	l := relaytest.Listener(name, "")
	l.FilterChains[0].Filters[0].ConfigType = &listenerpb.Filter_TypedConfig{TypedConfig: relaytest.Pack(m)}
	return l
}

// routes returns RouteConfigurations, ScopedRouteConfigurations and VirtualHosts.
func (w *richWorld) routes() (msgs []proto.Message) {
	for _, name := range w.names() {
		r := relaytest.Route(name, []string{"*"}, "both")
		r.VirtualHosts[0].Name = w.mark()
		msgs = append(msgs, r, &routepb.ScopedRouteConfiguration{
			Name: name, RouteConfigurationName: name,
			Key: &routepb.ScopedRouteConfiguration_Key{Fragments: []*routepb.ScopedRouteConfiguration_Key_Fragment{{
				Type: &routepb.ScopedRouteConfiguration_Key_Fragment_StringKey{StringKey: name + w.mark()},
			}}},
		})
	}
	for _, name := range w.names() {
		host := relaytest.Route("", []string{name + w.mark()}, "static").GetVirtualHosts()[0]
		host.Name = "hosts/" + name
		msgs = append(msgs, host)
	}
	hosts := &routepb.RouteConfiguration{Name: "hosts", Vhds: &routepb.Vhds{ConfigSource: byDelta()}}
	hosts.ResponseHeadersToRemove = []string{w.mark()}
	return append(msgs, hosts)
}

func (w *richWorld) pair() certs.Pair { return w.pairs[w.generation%2] }

func (w *richWorld) secret() proto.Message { return certificate("certificate", w.pair()) }

// certificate returns a Secret with a TLS certificate.
func certificate(name string, pair certs.Pair) proto.Message {
	return &tlspb.Secret{Name: name, Type: &tlspb.Secret_TlsCertificate{TlsCertificate: &tlspb.TlsCertificate{
		CertificateChain: inline(pair.Cert), PrivateKey: inline(pair.Key),
	}}}
}

// withSecrets returns the TLS transport socket of a listener with certificates from SDS.
func withSecrets(from *corepb.ConfigSource, names ...string) *corepb.TransportSocket {
	c := new(tlspb.CommonTlsContext)
	for _, name := range names {
		c.TlsCertificateSdsSecretConfigs = append(c.TlsCertificateSdsSecretConfigs, &tlspb.SdsSecretConfig{Name: name, SdsConfig: from})
	}
	return &corepb.TransportSocket{
		Name:       "envoy.transport_sockets.tls",
		ConfigType: &corepb.TransportSocket_TypedConfig{TypedConfig: relaytest.Pack(&tlspb.DownstreamTlsContext{CommonTlsContext: c})},
	}
}

func inline(b []byte) *corepb.DataSource {
	return &corepb.DataSource{Specifier: &corepb.DataSource_InlineBytes{InlineBytes: b}}
}

func (w *richWorld) filter() proto.Message { return buffer("filter", w.generation) }

// buffer returns a filter for ECDS whose size limit depends on the generation.
func buffer(name string, generation int) proto.Message {
	limit := wrapperspb.UInt32(uint32(1000 + generation))
	return &corepb.TypedExtensionConfig{Name: name, TypedConfig: relaytest.Pack(&bufferpb.Buffer{MaxRequestBytes: limit})}
}

func (w *richWorld) runtime() proto.Message { return layer("discovered", w.mark()) }

// layer returns a runtime layer with the single key "of.NAME".
func layer(name, value string) proto.Message {
	return &runtimepb.Runtime{Name: name, Layer: &structpb.Struct{Fields: map[string]*structpb.Value{
		"of." + name: structpb.NewStringValue(value),
	}}}
}

// missing returns an error unless a configuration has exactly the resources of the current generation, and none is
// warming.
func (w *richWorld) missing(c envoytest.Config) error {
	both, only := "both", w.names()[1]
	timeout := fmt.Sprintf("5.%03ds", w.generation)
	want := map[string]map[string]string{
		"dynamic_active_clusters":      {both: timeout, only: timeout, "static": timeout, "dns": timeout},
		"dynamic_endpoint_configs":     {both: fmt.Sprint(1000 + w.generation), only: fmt.Sprint(1000 + w.generation)},
		"dynamic_listeners":            {both: w.mark(), only: w.mark(), "tls": w.mark(), "scoped": w.mark(), "hosts": w.mark()},
		"dynamic_route_configs":        {both: w.mark(), only: w.mark(), "hosts": only + w.mark()},
		"dynamic_scoped_route_configs": {"scopes": only + w.mark()},
		"dynamic_active_secrets":       {"certificate": base64.StdEncoding.EncodeToString(w.pair().Cert)},
		"ecds_filters":                 {"filter": fmt.Sprint(1000 + w.generation)},
	}
	for section, byName := range want {
		for name, text := range byName {
			if have := c[section+"/"+name]; !strings.Contains(have, text) {
				return fmt.Errorf("%s/%s: no %q in %q", section, name, text, have)
			}
		}
		if names := c.Names(section); len(names) != len(byName) && section != "dynamic_endpoint_configs" {
			return fmt.Errorf("%s: got %v, want %d", section, names, len(byName))
		}
	}
	if !strings.Contains(c["runtime"], w.mark()) {
		return fmt.Errorf("runtime: %s", c["runtime"])
	}
	if warming := slices.Concat(c.Names("dynamic_warming_clusters"), c.Names("dynamic_warming_secrets")); len(warming) > 0 {
		return fmt.Errorf("still warming: %v", warming)
	}
	return nil
}
