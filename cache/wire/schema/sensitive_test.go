package schema_test

import (
	"bytes"
	"slices"
	"testing"

	xdstypepb "github.com/cncf/xds/go/xds/type/v3"
	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/cache/wire/schema"
)

// encode returns the bytes of a message.
func encode(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestB36_SensitiveIsFoundAndPublicIsNot: what cannot be judged counts as sensitive.
func TestB36_SensitiveIsFoundAndPublicIsNot(t *testing.T) {
	private := &tlspb.UpstreamTlsContext{CommonTlsContext: &tlspb.CommonTlsContext{TlsCertificates: []*tlspb.TlsCertificate{certificate()}}}
	public := &tlspb.UpstreamTlsContext{Sni: "a", CommonTlsContext: &tlspb.CommonTlsContext{AlpnProtocols: []string{"h2"}}}
	socket := func(m proto.Message) proto.Message {
		return &clusterpb.Cluster{Name: "c", TransportSocket: &corepb.TransportSocket{ConfigType: &corepb.TransportSocket_TypedConfig{TypedConfig: pack(t, m)}}}
	}
	filter := func(a *anypb.Any) proto.Message {
		return &listenerpb.Listener{FilterChains: []*listenerpb.FilterChain{{Filters: []*listenerpb.Filter{{ConfigType: &listenerpb.Filter_TypedConfig{TypedConfig: a}}}}}}
	}
	typed := func(of string, s *structpb.Struct) proto.Message {
		return filter(pack(t, &xdstypepb.TypedStruct{TypeUrl: prefix + of, Value: s}))
	}
	tests := []struct {
		name string
		m    proto.Message
		want bool
	}{
		{"a cluster", &clusterpb.Cluster{Name: "c", EdsClusterConfig: &clusterpb.Cluster_EdsClusterConfig{ServiceName: "s"}}, false},
		{"endpoints with metadata", &endpointpb.ClusterLoadAssignment{ClusterName: "c", Endpoints: []*endpointpb.LocalityLbEndpoints{{LbEndpoints: []*endpointpb.LbEndpoint{{
			Metadata: &corepb.Metadata{FilterMetadata: map[string]*structpb.Struct{"k": {Fields: map[string]*structpb.Value{"v": structpb.NewStringValue("x")}}}},
		}}}}}, false},
		{"a private key in an Any", socket(private), true},
		{"no private key in an Any", socket(public), false},
		{"a private key in an Any in an Any", filter(pack(t, socket(private))), true},
		{"a Secret", &tlspb.Secret{Type: &tlspb.Secret_TlsCertificate{TlsCertificate: certificate()}}, true},
		{"a private key in a TypedStruct", typed("envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", asStruct(t, private)), true},
		{"no private key in a TypedStruct", typed("envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", asStruct(t, public)), false},
		{"a TypedStruct that cannot be read", typed("acme.Foo", asStruct(t, public)), true},
		{"an Any of an unknown type", filter(&anypb.Any{TypeUrl: prefix + "acme.Foo", Value: []byte{}}), true},
		{"an empty Any", filter(&anypb.Any{}), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := pack(t, tt.m)
			if got := schema.MayBeSensitive(a.GetTypeUrl(), a.GetValue()); got != tt.want {
				t.Errorf("MayBeSensitive = %v, want %v, of %v", got, tt.want, tt.m)
			}
		})
	}
}

// TestB36_WhatCannotBeReadMayBeSensitive takes bytes that no generated type makes.
func TestB36_WhatCannotBeReadMayBeSensitive(t *testing.T) {
	const cluster = prefix + "envoy.config.cluster.v3.Cluster"
	innermost := encode(t, &clusterpb.Cluster{Name: "c"})
	once := encode(t, &clusterpb.Cluster{TransportSocket: &corepb.TransportSocket{
		ConfigType: &corepb.TransportSocket_TypedConfig{TypedConfig: &anypb.Any{TypeUrl: cluster, Value: innermost}},
	}})
	if got := nestClusters(1, cluster, innermost); !bytes.Equal(got, once) {
		t.Fatalf("a cluster in a cluster is %x, want %x", got, once)
	}
	deep := nestClusters(protowire.DefaultRecursionLimit, cluster, innermost)
	tests := []struct {
		name    string
		typeURL string
		value   []byte
	}{
		{"unknown type", prefix + "acme.Foo", nil},
		{"no type, but content", "", []byte{1}},
		{"unknown field", cluster, protowire.AppendString(protowire.AppendTag(nil, 9999, protowire.BytesType), "hush")},
		{"truncated field", cluster, encode(t, &clusterpb.Cluster{Name: "c"})[:2]},
		{"truncated tag", cluster, []byte{0xff}},
		{"a message that is a number", cluster, protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.VarintType), 1)},
		{"an Any with a third field", prefix + "google.protobuf.Any", protowire.AppendString(protowire.AppendTag(nil, 3, protowire.BytesType), "hush")},
		{"an Any whose type is a number", prefix + "google.protobuf.Any", []byte{8, 1}},
		{"an Any that is truncated", prefix + "google.protobuf.Any", []byte{10, 9}},
		{"too deep", cluster, deep},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if !schema.MayBeSensitive(tt.typeURL, tt.value) {
				t.Error("MayBeSensitive = false, want true of what cannot be judged")
			}
		})
	}
}

// nestClusters returns innermost, a Cluster, inside as many Clusters as depth says, each of
// which is the typed_config of the transport_socket of the next. Each byte is written once:
// to encode each level anew would take gigabytes.
func nestClusters(depth int, cluster string, innermost []byte) []byte {
	var heads [][]byte // of the fields, from the innermost on
	size := len(innermost)
	put := func(head []byte) {
		heads = append(heads, head)
		size += len(head)
	}
	field := func(num protowire.Number) {
		put(protowire.AppendVarint(protowire.AppendTag(nil, num, protowire.BytesType), uint64(size)))
	}
	for range depth {
		field(2) // Any.value
		put(protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), cluster))
		field(3)  // TransportSocket.typed_config
		field(24) // Cluster.transport_socket
	}
	slices.Reverse(heads)
	return append(bytes.Join(heads, nil), innermost...)
}

// TestB36_RedactKeepsWhatIsPublic: what may be sensitive is not in the bytes, what is public stays
// byte for byte.
func TestB36_RedactKeepsWhatIsPublic(t *testing.T) {
	const secret = "swordfish"
	key := certificate()
	key.PrivateKey = &corepb.DataSource{Specifier: &corepb.DataSource_InlineString{InlineString: secret}}
	cluster := func(a *anypb.Any, unknown ...byte) *clusterpb.Cluster {
		c := &clusterpb.Cluster{Name: "c", TransportSocket: &corepb.TransportSocket{Name: "kept", ConfigType: &corepb.TransportSocket_TypedConfig{TypedConfig: a}}}
		c.ProtoReflect().SetUnknown(unknown)
		return c
	}
	field := protowire.AppendString(protowire.AppendTag(nil, 19_999, protowire.BytesType), secret)
	const typeURL = prefix + "envoy.config.cluster.v3.Cluster"
	for name, c := range map[string]*clusterpb.Cluster{
		"a private key":             cluster(pack(t, &tlspb.UpstreamTlsContext{CommonTlsContext: &tlspb.CommonTlsContext{TlsCertificates: []*tlspb.TlsCertificate{key}}})),
		"an Any of an unknown type": cluster(&anypb.Any{TypeUrl: prefix + "acme.Foo", Value: []byte(secret)}),
		"an Any without a type":     cluster(&anypb.Any{Value: []byte(secret)}),
		"an unknown field":          cluster(nil, field...),
	} {
		got, err := schema.Redact(typeURL, encode(t, c))
		var read clusterpb.Cluster
		if err == nil {
			err = proto.Unmarshal(got, &read)
		}
		if err != nil || bytes.Contains(got, []byte(secret)) || read.GetName() != "c" || read.GetTransportSocket().GetName() != "kept" {
			t.Errorf("%s: redacted to %q, error %v; want the rest without it", name, got, err)
		}
	}
	public := encode(t, cluster(pack(t, &tlspb.UpstreamTlsContext{Sni: "a"})))
	if got, err := schema.Redact(typeURL, public); err != nil || !bytes.Equal(got, public) {
		t.Errorf("a public cluster: redacted to %q, error %v, want it as it is", got, err)
	}
	if got, err := schema.Redact(prefix+"acme.Foo", []byte(secret)); err != nil || len(got) > 0 {
		t.Errorf("an unknown type: redacted to %q, error %v, want nothing", got, err)
	}
	if got, err := schema.Redact(typeURL, []byte{0xff}); err == nil {
		t.Errorf("malformed bytes: redacted to %q, want an error", got)
	}
}
