package wire_test

import (
	"bytes"
	"slices"
	"testing"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routepb "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	oauthpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/oauth2/v3"
	hcmpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	quicpb "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/quic/v3"
	tlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest"
)

func TestB16_ReferencesToEndpoints(t *testing.T) {
	const static, eds = clusterpb.Cluster_STATIC, clusterpb.Cluster_EDS
	cluster := func(kind clusterpb.Cluster_DiscoveryType, config *clusterpb.Cluster_EdsClusterConfig) []byte {
		return marshal(t, &clusterpb.Cluster{
			Name: "shop", ClusterDiscoveryType: &clusterpb.Cluster_Type{Type: kind}, EdsClusterConfig: config,
		})
	}
	ads := &corepb.ConfigSource_Ads{Ads: &corepb.AggregatedConfigSource{}}
	service := &clusterpb.Cluster_EdsClusterConfig{
		EdsConfig:   &corepb.ConfigSource{ConfigSourceSpecifier: ads},
		ServiceName: "cla/shop",
	}
	full := cluster(eds, service)
	from := func(source *corepb.ConfigSource) []byte {
		return cluster(eds, &clusterpb.Cluster_EdsClusterConfig{EdsConfig: source, ServiceName: "cla/shop"})
	}
	self := from(&corepb.ConfigSource{ConfigSourceSpecifier: &corepb.ConfigSource_Self{Self: &corepb.SelfConfigSource{}}})
	path := join(cluster(eds, nil), bytesField(3, bytesField(1, bytesField(1, "/eds")))) // deprecated, but still used
	tests := []struct {
		name  string
		value []byte
		want  string
	}{
		{"EDS with service_name", full, "cla/shop"},
		{"EDS without service_name", cluster(eds, &clusterpb.Cluster_EdsClusterConfig{EdsConfig: service.GetEdsConfig()}),
			"shop"},
		{"EDS without eds_cluster_config", cluster(eds, nil), "shop"},
		{"EDS by self", self, "cla/shop"},
		{"EDS from a file", path, ""},
		{"EDS from a watched file", from(&corepb.ConfigSource{ConfigSourceSpecifier: &corepb.ConfigSource_PathConfigSource{
			PathConfigSource: &corepb.PathConfigSource{Path: "/eds"},
		}}), ""},
		{"EDS by a stream of its own", from(&corepb.ConfigSource{ConfigSourceSpecifier: &corepb.ConfigSource_ApiConfigSource{
			ApiConfigSource: &corepb.ApiConfigSource{ApiType: corepb.ApiConfigSource_GRPC},
		}}), ""},
		{"last source wins", join(path, full), "cla/shop"},
		{"the last source is a file", join(full, path), ""},
		{"garbage in eds_config", join(full, bytesField(3, bytesField(1, "\xff\xff"))), "cla/shop"},
		{"static", cluster(static, nil), ""},
		{"static with a stray eds_cluster_config", cluster(static, service), ""},
		{"last type wins", join(full, cluster(static, nil)), ""},
		{"a custom type replaces EDS", join(full, marshal(t, &clusterpb.Cluster{
			ClusterDiscoveryType: &clusterpb.Cluster_ClusterType{ClusterType: &clusterpb.Cluster_CustomClusterType{Name: "x"}},
		})), ""},
		{"empty", nil, ""},
		{"garbage", []byte("\xff\xff\xff\xff"), ""},
		{"truncated", full[:len(full)-1], ""},
		{"garbage after the message", join(full, []byte{0xff}), ""},
		{"garbage in eds_cluster_config", join(cluster(eds, nil), bytesField(3, "\x12\x40")), ""},
		{"service_name is not UTF-8", join(cluster(eds, nil), bytesField(3, bytesField(2, notUTF8))), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := decodeOne(t, wire.ClusterType, resourceOf("1", "shop", anyOf(wire.ClusterType, tt.value)))
			var want []wire.Reference
			if tt.want != "" {
				want = []wire.Reference{{TypeURL: wire.EndpointType, Name: tt.want}}
			}
			if got := r.References(); !slices.Equal(got, want) {
				t.Errorf("references of %q: got %q, want %q", tt.value, got, want)
			}
			if !bytes.Equal(r.Value(), tt.value) {
				t.Errorf("Value: got %q, want %q", r.Value(), tt.value)
			}
		})
	}
	if r := decodeOne(t, acme, resourceOf("1", "shop", anyOf(acme, full))); r.References() != nil {
		t.Errorf("another type: got references %q, want none", r.References())
	}
}

// ads and the others are sources of resources.
var (
	ads      = &corepb.ConfigSource{ConfigSourceSpecifier: &corepb.ConfigSource_Ads{Ads: &corepb.AggregatedConfigSource{}}}
	self     = &corepb.ConfigSource{ConfigSourceSpecifier: &corepb.ConfigSource_Self{Self: &corepb.SelfConfigSource{TransportApiVersion: 2}}}
	separate = &corepb.ConfigSource{ConfigSourceSpecifier: &corepb.ConfigSource_ApiConfigSource{
		ApiConfigSource: &corepb.ApiConfigSource{ApiType: corepb.ApiConfigSource_GRPC},
	}}
	file = &corepb.ConfigSource{ConfigSourceSpecifier: &corepb.ConfigSource_PathConfigSource{
		PathConfigSource: &corepb.PathConfigSource{Path: "/sds"},
	}}
)

func sds(name string, from *corepb.ConfigSource) *tlspb.SdsSecretConfig {
	return &tlspb.SdsSecretConfig{Name: name, SdsConfig: from}
}

// served returns the TLS context of a listener.
func served(certificates ...*tlspb.SdsSecretConfig) *tlspb.DownstreamTlsContext {
	return &tlspb.DownstreamTlsContext{CommonTlsContext: &tlspb.CommonTlsContext{TlsCertificateSdsSecretConfigs: certificates}}
}

// socket returns a transport socket.
func socket(of proto.Message) *corepb.TransportSocket {
	return &corepb.TransportSocket{Name: "tls", ConfigType: &corepb.TransportSocket_TypedConfig{TypedConfig: relaytest.Pack(of)}}
}

// chain returns a listener with one filter chain.
func chain(c *listenerpb.FilterChain) *listenerpb.Listener {
	return &listenerpb.Listener{Name: "l", FilterChains: []*listenerpb.FilterChain{c}}
}

// discovery returns the source of a filter.
func discovery(from *corepb.ConfigSource) *corepb.ExtensionConfigSource {
	return &corepb.ExtensionConfigSource{ConfigSource: from, TypeUrls: []string{"type.googleapis.com/x.Filter"}}
}

// httpFilters returns a listener with HTTP filters.
func httpFilters(filters ...*hcmpb.HttpFilter) *listenerpb.Listener {
	m := &hcmpb.HttpConnectionManager{
		HttpFilters:    filters,
		RouteSpecifier: &hcmpb.HttpConnectionManager_Rds{Rds: &hcmpb.Rds{ConfigSource: ads, RouteConfigName: "routes"}},
	}
	return chain(&listenerpb.FilterChain{Filters: []*listenerpb.Filter{
		{Name: "hcm", ConfigType: &listenerpb.Filter_TypedConfig{TypedConfig: relaytest.Pack(m)}},
	}})
}

func TestB16_ReferencesToSecretsAndExtensions(t *testing.T) {
	secret := func(names ...string) (all []wire.Reference) {
		for _, name := range names {
			all = append(all, wire.Reference{TypeURL: wire.SecretType, Name: name})
		}
		return all
	}
	extension := []wire.Reference{{TypeURL: wire.ExtensionConfigType, Name: "f"}}
	trusted := &tlspb.UpstreamTlsContext{CommonTlsContext: &tlspb.CommonTlsContext{
		ValidationContextType: &tlspb.CommonTlsContext_CombinedValidationContext{
			CombinedValidationContext: &tlspb.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext:         &tlspb.CertificateValidationContext{},
				ValidationContextSdsSecretConfig: sds("ca", ads),
			},
		},
	}}
	tickets := served(sds("a", ads))
	tickets.SessionTicketKeysType = &tlspb.DownstreamTlsContext_SessionTicketKeysSdsSecretConfig{
		SessionTicketKeysSdsSecretConfig: sds("tickets", self),
	}
	oauth := relaytest.Pack(&oauthpb.OAuth2{Config: &oauthpb.OAuth2Config{
		Credentials: &oauthpb.OAuth2Credentials{ClientId: "id", TokenSecret: sds("token", ads)},
	}})
	unknown := &anypb.Any{TypeUrl: "type.googleapis.com/company.Filter", Value: marshal(t, &corepb.TypedExtensionConfig{
		Name: "x", TypedConfig: relaytest.Pack(served(sds("inside", ads))),
	})}
	for name, tt := range map[string]struct {
		of   proto.Message
		want []wire.Reference
	}{
		"certificates of a listener": {chain(&listenerpb.FilterChain{TransportSocket: socket(served(sds("a", ads), sds("b", self)))}),
			secret("a", "b")},
		"the same certificate twice": {chain(&listenerpb.FilterChain{TransportSocket: socket(served(sds("a", ads), sds("a", ads)))}),
			secret("a")},
		"of the default filter chain": {&listenerpb.Listener{DefaultFilterChain: &listenerpb.FilterChain{
			TransportSocket: socket(served(sds("a", ads)))}}, secret("a")},
		"keys of session tickets": {chain(&listenerpb.FilterChain{TransportSocket: socket(tickets)}), secret("a", "tickets")},
		"of QUIC": {chain(&listenerpb.FilterChain{TransportSocket: socket(&quicpb.QuicDownstreamTransport{
			DownstreamTlsContext: served(sds("a", ads))})}), secret("a")},
		"from another stream": {chain(&listenerpb.FilterChain{TransportSocket: socket(served(sds("a", separate)))}), nil},
		"from a file":         {chain(&listenerpb.FilterChain{TransportSocket: socket(served(sds("a", file)))}), nil},
		"of the bootstrap":    {chain(&listenerpb.FilterChain{TransportSocket: socket(served(sds("a", nil)))}), nil},
		"of a filter": {httpFilters(&hcmpb.HttpFilter{Name: "o", ConfigType: &hcmpb.HttpFilter_TypedConfig{TypedConfig: oauth}}),
			secret("token")},
		"of an unknown extension": {httpFilters(&hcmpb.HttpFilter{Name: "o", ConfigType: &hcmpb.HttpFilter_TypedConfig{TypedConfig: unknown}}),
			secret("inside")},
		"an HTTP filter": {httpFilters(&hcmpb.HttpFilter{Name: "f", ConfigType: &hcmpb.HttpFilter_ConfigDiscovery{
			ConfigDiscovery: discovery(ads)}}), extension},
		"an HTTP filter from another stream": {httpFilters(&hcmpb.HttpFilter{Name: "f", ConfigType: &hcmpb.HttpFilter_ConfigDiscovery{
			ConfigDiscovery: discovery(separate)}}), nil},
		"a network filter": {chain(&listenerpb.FilterChain{Filters: []*listenerpb.Filter{
			{Name: "f", ConfigType: &listenerpb.Filter_ConfigDiscovery{ConfigDiscovery: discovery(ads)}}}}), extension},
		"a listener filter": {&listenerpb.Listener{ListenerFilters: []*listenerpb.ListenerFilter{
			{Name: "f", ConfigType: &listenerpb.ListenerFilter_ConfigDiscovery{ConfigDiscovery: discovery(ads)}}}}, extension},
		"a filter of a cluster": {&clusterpb.Cluster{Name: "c", Filters: []*clusterpb.Filter{{Name: "f", ConfigDiscovery: discovery(self)}}},
			extension},
		"trusted CAs of a cluster": {&clusterpb.Cluster{Name: "c", TransportSocket: socket(trusted)}, secret("ca")},
		"of a match of a cluster": {&clusterpb.Cluster{Name: "c", TransportSocketMatches: []*clusterpb.Cluster_TransportSocketMatch{
			{Name: "m", TransportSocket: socket(trusted)}}}, secret("ca")},
		"and endpoints": {&clusterpb.Cluster{
			Name: "c", ClusterDiscoveryType: &clusterpb.Cluster_Type{Type: clusterpb.Cluster_EDS},
			EdsClusterConfig: &clusterpb.Cluster_EdsClusterConfig{EdsConfig: ads}, TransportSocket: socket(trusted),
		}, append(secret("ca"), wire.Reference{TypeURL: wire.EndpointType, Name: "r"})},
		"another type": {&routepb.RouteConfiguration{Name: "r", TypedPerFilterConfig: map[string]*anypb.Any{"o": oauth}}, nil},
	} {
		packed := relaytest.Pack(tt.of)
		r := decodeOne(t, packed.GetTypeUrl(), resourceOf("1", "r", anyOf(packed.GetTypeUrl(), packed.GetValue())))
		if got := r.References(); !slices.Equal(got, tt.want) {
			t.Errorf("%s: got references %q, want %q", name, got, tt.want)
		}
		if again := r.References(); !slices.Equal(again, tt.want) {
			t.Errorf("%s: got references %q the second time, want %q", name, again, tt.want)
		}
	}
}

// TestB16_DroppedContentRefersToNothing: its references are those of the content that is sent later.
func TestB16_DroppedContentRefersToNothing(t *testing.T) {
	packed := relaytest.Pack(chain(&listenerpb.FilterChain{TransportSocket: socket(served(sds("a", ads)))}))
	r := decodeOne(t, wire.ListenerType, resourceOf("1", "l", anyOf(wire.ListenerType, packed.GetValue())))
	if got := r.DropContent().References(); got != nil {
		t.Errorf("got references %q, want none", got)
	}
}

// BenchmarkReferences is the search of a listener with TLS and a few filters, which is done once for each change.
func BenchmarkReferences(b *testing.B) {
	l := httpFilters(&hcmpb.HttpFilter{Name: "f", ConfigType: &hcmpb.HttpFilter_ConfigDiscovery{ConfigDiscovery: discovery(ads)}})
	l.FilterChains[0].TransportSocket = socket(served(sds("a", ads)))
	for _, bench := range []struct {
		name string
		of   proto.Message
	}{{"listener", l}, {"cluster", relaytest.Cluster("c")}} {
		packed := relaytest.Pack(bench.of)
		r, err := wire.NewResource(packed.GetTypeUrl(), "r", "1", packed.GetValue())
		if err != nil {
			b.Fatal(err)
		}
		b.Run(bench.name, func(b *testing.B) {
			b.SetBytes(int64(len(packed.GetValue())))
			for b.Loop() {
				if len(r.WithoutTTL().References()) == 0 {
					b.Fatal("no references")
				}
			}
		})
	}
}
