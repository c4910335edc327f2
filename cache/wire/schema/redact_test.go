package schema_test

import (
	"strings"
	"testing"

	xdstypepb "github.com/cncf/xds/go/xds/type/v3"
	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/cache/wire/schema"
)

func dataSource(secret string) *corepb.DataSource {
	return &corepb.DataSource{Specifier: &corepb.DataSource_InlineString{InlineString: secret}}
}

func dataBytes(secret string) *corepb.DataSource {
	return &corepb.DataSource{Specifier: &corepb.DataSource_InlineBytes{InlineBytes: []byte(secret)}}
}

func certificate() *tlspb.TlsCertificate {
	return &tlspb.TlsCertificate{CertificateChain: dataSource("public chain"), PrivateKey: dataBytes("hush"), Password: dataSource("hush")}
}

// asStruct returns m as the Struct of its JSON.
func asStruct(t *testing.T, m proto.Message) *structpb.Struct {
	t.Helper()
	b, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	s := new(structpb.Struct)
	if err := protojson.Unmarshal(b, s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestB36_PeopleSeeNoSecrets shows secrets wherever they may lie.
func TestB36_PeopleSeeNoSecrets(t *testing.T) {
	context := &tlspb.UpstreamTlsContext{CommonTlsContext: &tlspb.CommonTlsContext{TlsCertificates: []*tlspb.TlsCertificate{certificate()}}}
	generic, err := structpb.NewStruct(map[string]any{"genericSecret": map[string]any{"secret": map[string]any{"inlineString": "hush"}}, "later": []any{"hush", 1, nil}})
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		m    proto.Message
		want int // redactions
	}{
		{"in a Secret", &tlspb.Secret{Name: "s", Type: &tlspb.Secret_TlsCertificate{TlsCertificate: certificate()}}, 2},
		{"in a generic Secret with a map", &tlspb.Secret{Name: "s", Type: &tlspb.Secret_GenericSecret{GenericSecret: &tlspb.GenericSecret{
			Secret: dataSource("hush"), Secrets: map[string]*corepb.DataSource{"k": dataSource("hush"), "l": dataBytes("hush")},
		}}}, 3},
		{"in session ticket keys, a list", &tlspb.Secret{Name: "s", Type: &tlspb.Secret_SessionTicketKeys{SessionTicketKeys: &tlspb.TlsSessionTicketKeys{Keys: []*corepb.DataSource{dataBytes("hush"), dataBytes("hush")}}}}, 2},
		{"in an Any", &clusterpb.Cluster{TransportSocket: &corepb.TransportSocket{Name: "tls", ConfigType: &corepb.TransportSocket_TypedConfig{TypedConfig: pack(t, context)}}}, 2},
		{"in an Any in an Any", &corepb.TypedExtensionConfig{Name: "x", TypedConfig: pack(t, &listenerpb.Filter{ConfigType: &listenerpb.Filter_TypedConfig{TypedConfig: pack(t, context)}})}, 2},
		{"in a TypedStruct", &corepb.TypedExtensionConfig{Name: "x", TypedConfig: pack(t, &xdstypepb.TypedStruct{
			TypeUrl: prefix + "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", Value: asStruct(t, context),
		})}, 2},
		{"in a TypedStruct that cannot be read", &corepb.TypedExtensionConfig{Name: "x", TypedConfig: pack(t, &xdstypepb.TypedStruct{TypeUrl: prefix + "acme.Foo", Value: generic})}, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := pack(t, tt.m)
			got, err := schema.JSONOptions{Redact: true}.Marshal(a.GetTypeUrl(), a.GetValue())
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(got), `"[redacted]"`); n != tt.want {
				t.Errorf("%d redactions, want %d: %s", n, tt.want, got)
			}
			for _, secret := range []string{"hush", "aHVzaA==", "W3JlZGFjdGVkXQ=="} {
				if strings.Contains(string(got), secret) {
					t.Errorf("%q is shown: %s", secret, got)
				}
			}
			if plain, err := schema.MarshalJSON(a.GetTypeUrl(), a.GetValue()); err != nil || strings.Contains(string(plain), "[redacted]") {
				t.Errorf("MarshalJSON for programs: %s, %v, want all of it", plain, err)
			}
		})
	}
}

func TestRedactKeepsWhatIsPublic(t *testing.T) {
	a := pack(t, &tlspb.Secret{Name: "s", Type: &tlspb.Secret_TlsCertificate{TlsCertificate: certificate()}})
	got, err := schema.JSONOptions{Redact: true}.Marshal(a.GetTypeUrl(), a.GetValue())
	want := `{"@type":"type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret","name":"s","tlsCertificate":{"certificateChain":{"inlineString":"public chain"},"privateKey":{"inlineBytes":"[redacted]"},"password":{"inlineString":"[redacted]"}}}`
	if err != nil || string(got) != want {
		t.Errorf("got %s, %v\nwant %s", got, err, want)
	}
}
