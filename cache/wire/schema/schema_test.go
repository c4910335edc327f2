package schema_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routepb "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	runtimepb "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/cache/wire/schema"
)

const prefix = "type.googleapis.com/"

func TestTypesResolvesWhatPeopleRead(t *testing.T) {
	types, err := schema.Types()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"envoy.config.cluster.v3.Cluster",
		"envoy.config.core.v3.TypedExtensionConfig",
		"envoy.config.endpoint.v3.ClusterLoadAssignment",
		"envoy.config.endpoint.v3.LbEndpoint",
		"envoy.config.listener.v3.Listener",
		"envoy.config.route.v3.RouteConfiguration",
		"envoy.config.route.v3.ScopedRouteConfiguration",
		"envoy.config.route.v3.VirtualHost",
		"envoy.extensions.filters.http.lua.v3.Lua",
		"envoy.extensions.filters.http.router.v3.Router",
		"envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
		"envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
		"envoy.extensions.transport_sockets.tls.v3.Secret",
		"envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
		"envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
		"envoy.service.discovery.v3.DiscoveryResponse",
		"envoy.service.runtime.v3.Runtime",
		"google.protobuf.Struct",
		"udpa.type.v1.TypedStruct",
		"xds.type.v3.TypedStruct",
	} {
		typ, err := types.FindMessageByURL(prefix + name)
		if err != nil || string(typ.Descriptor().FullName()) != name {
			t.Errorf("FindMessageByURL(%q) = %v, %v", name, typ, err)
		}
	}
}

// TestTypesAreOfTheRequiredEnvoy tells that go generate is due.
func TestTypesAreOfTheRequiredEnvoy(t *testing.T) {
	mod, err := os.ReadFile("../../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	want := "github.com/envoyproxy/go-control-plane/envoy " + schema.EnvoyVersion
	if !bytes.Contains(mod, []byte(want)) {
		t.Errorf("go.mod does not require %s: run go generate ./cache/wire/schema", want)
	}
}

func TestSchemaDependsOnNoGeneratedEnvoyPackage(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for pkg := range strings.Lines(string(out)) {
		if strings.Contains(pkg, "go-control-plane") || strings.Contains(pkg, "cncf/xds") {
			t.Errorf("schema depends on %s", pkg)
		}
	}
}

// TestTypesAreSmall holds the embedded types to the size that the package comment claims.
func TestTypesAreSmall(t *testing.T) {
	const claimed = 130_000
	if info, err := os.Stat("types.binpb.gz"); err != nil || info.Size() >= claimed {
		t.Errorf("types.binpb.gz: %v, error %v, want less than %d bytes", info, err, claimed)
	}
}

func TestShortNamesAndTypeURLsBelongTogether(t *testing.T) {
	for _, short := range strings.Fields("lds rds srds vhds cds eds sds rtds ecds leds") {
		url, ok := schema.TypeURLFor(short)
		if !ok {
			t.Errorf("TypeURLFor(%q): none", short)
		}
		if back, ok := schema.ShortName(url); back != short || !ok {
			t.Errorf("ShortName(%q) = %q, %v, want %q", url, back, ok, short)
		}
	}
	if url, ok := schema.TypeURLFor("xds"); ok {
		t.Errorf("TypeURLFor(xds) = %q, want none", url)
	}
	if short, ok := schema.ShortName(prefix + "acme.Foo"); ok {
		t.Errorf("ShortName(acme.Foo) = %q, want none", short)
	}
}

func TestResourceName(t *testing.T) {
	tests := []struct {
		m    proto.Message
		want string
		ok   bool
	}{
		{&listenerpb.Listener{Name: "a", StatPrefix: "x"}, "a", true},
		{&clusterpb.Cluster{Name: "a", AltStatName: "x"}, "a", true},
		{&routepb.RouteConfiguration{Name: "a"}, "a", true},
		{&routepb.ScopedRouteConfiguration{Name: "a"}, "a", true},
		{&routepb.VirtualHost{Name: "a", Domains: []string{"b"}}, "a", true},
		{&tlspb.Secret{Name: "a"}, "a", true},
		{&runtimepb.Runtime{Name: "a"}, "a", true},
		{&corepb.TypedExtensionConfig{Name: "a"}, "a", true},
		{&endpointpb.ClusterLoadAssignment{ClusterName: "a"}, "a", true},
		{&clusterpb.Cluster{}, "", true},
		{&endpointpb.LbEndpoint{HostIdentifier: &endpointpb.LbEndpoint_EndpointName{EndpointName: "a"}}, "", false},
		{&durationpb.Duration{Seconds: 1}, "", false},
	}
	for _, tt := range tests {
		a, err := anypb.New(tt.m)
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := schema.ResourceName(a.GetTypeUrl(), a.GetValue()); got != tt.want || ok != tt.ok {
			t.Errorf("ResourceName(%v) = %q, %v, want %q, %v", a, got, ok, tt.want, tt.ok)
		}
	}
	url, _ := schema.TypeURLFor("cds")
	for _, bad := range []string{"\x0a", "\x0a\x05a", "\x0a\x01\xff", "\x0f"} {
		if got, ok := schema.ResourceName(url, []byte(bad)); ok {
			t.Errorf("ResourceName(%q) = %q, want it refused", bad, got)
		}
	}
}

// any packs m deterministically.
func pack(t testing.TB, m proto.Message) *anypb.Any {
	t.Helper()
	a := new(anypb.Any)
	if err := anypb.MarshalFrom(a, m, proto.MarshalOptions{Deterministic: true}); err != nil {
		t.Fatal(err)
	}
	return a
}

// listener is a Listener with an Any in an Any, an oneof and a map.
func listener(t testing.TB) *listenerpb.Listener {
	t.Helper()
	hcm := &hcmpb.HttpConnectionManager{
		StatPrefix:     "in",
		RouteSpecifier: &hcmpb.HttpConnectionManager_Rds{Rds: &hcmpb.Rds{RouteConfigName: "shop"}},
	}
	return &listenerpb.Listener{
		Name:     "front",
		Metadata: &corepb.Metadata{TypedFilterMetadata: map[string]*anypb.Any{"b": pack(t, durationpb.New(1)), "a": pack(t, durationpb.New(2))}},
		FilterChains: []*listenerpb.FilterChain{{Filters: []*listenerpb.Filter{{
			Name:       "hcm",
			ConfigType: &listenerpb.Filter_TypedConfig{TypedConfig: pack(t, hcm)},
		}}}},
	}
}

func TestMarshalJSONResolvesNestedAny(t *testing.T) {
	a := pack(t, listener(t))
	got, err := schema.MarshalJSON(a.GetTypeUrl(), a.GetValue())
	if err != nil {
		t.Fatal(err)
	}
	want := `{"@type":"type.googleapis.com/envoy.config.listener.v3.Listener","name":"front",` +
		`"filterChains":[{"filters":[{"name":"hcm","typedConfig":{"@type":"type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",` +
		`"statPrefix":"in","rds":{"routeConfigName":"shop"}}}]}],` +
		`"metadata":{"typedFilterMetadata":{"a":{"@type":"type.googleapis.com/google.protobuf.Duration","value":"0.000000002s"},"b":{"@type":"type.googleapis.com/google.protobuf.Duration","value":"0.000000001s"}}}}`
	if string(got) != want {
		t.Errorf("MarshalJSON:\n got %s\nwant %s", got, want)
	}

	url, value, err := schema.UnmarshalJSON(got)
	if err != nil || url != a.GetTypeUrl() || !bytes.Equal(value, a.GetValue()) {
		t.Errorf("UnmarshalJSON(MarshalJSON(x)) = %q, %x, %v\nwant the bytes of the generated type, %x", url, value, err, a.GetValue())
	}
}

func TestMarshalJSONOfUnknownTypes(t *testing.T) {
	unknown := &anypb.Any{TypeUrl: prefix + "acme.Foo", Value: []byte{1, 2, 3}}
	outer := pack(t, &corepb.TypedExtensionConfig{Name: "x", TypedConfig: unknown})
	for _, a := range []*anypb.Any{unknown, outer} {
		var missing *schema.UnknownTypeError
		if _, err := schema.MarshalJSON(a.GetTypeUrl(), a.GetValue()); !errors.As(err, &missing) || missing.TypeURL != unknown.GetTypeUrl() {
			t.Errorf("MarshalJSON(%v) = %v, want UnknownTypeError of acme.Foo", a, err)
		}
	}
	tests := []struct {
		unknown schema.Unknown
		want    string
	}{
		{schema.UnknownBase64, `{"@type":"type.googleapis.com/acme.Foo","value":"AQID"}`},
		{schema.UnknownDigest, `{"@type":"type.googleapis.com/acme.Foo","value":"3 bytes, sha256 039058c6f2c0cb492c533b0a4d14ef77cc0f78abccced5287d84a1a2011cfb81"}`},
	}
	for _, tt := range tests {
		o := schema.JSONOptions{Unknown: tt.unknown}
		if got, err := o.Marshal(unknown.GetTypeUrl(), unknown.GetValue()); string(got) != tt.want || err != nil {
			t.Errorf("%+v: %s, %v, want %s", o, got, err, tt.want)
		}
		nested := `{"@type":"type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig","name":"x","typedConfig":` + tt.want + `}`
		if got, err := o.Marshal(outer.GetTypeUrl(), outer.GetValue()); string(got) != nested || err != nil {
			t.Errorf("%+v, nested: %s, %v, want %s", o, got, err, nested)
		}
	}
}

func TestMarshalJSONOfRubbish(t *testing.T) {
	url, _ := schema.TypeURLFor("cds")
	if got, err := schema.MarshalJSON(url, []byte("\xff")); err == nil {
		t.Errorf("MarshalJSON(rubbish) = %s, want an error", got)
	}
}

func TestUnmarshalJSON(t *testing.T) {
	want := pack(t, &clusterpb.Cluster{Name: "a", ClusterDiscoveryType: &clusterpb.Cluster_Type{Type: clusterpb.Cluster_EDS}, AltStatName: "b"})
	url, value, err := schema.UnmarshalJSON([]byte(`{"name":"a","type":"EDS","alt_stat_name":"b","@type":"type.googleapis.com/envoy.config.cluster.v3.Cluster"}`))
	if err != nil || url != want.GetTypeUrl() || !bytes.Equal(value, want.GetValue()) {
		t.Errorf("%q %x %v, want %x", url, value, err, want.GetValue())
	}
	for _, bad := range []string{``, `{}`, `[]`, `{"name":"a"}`, `{"@type":"type.googleapis.com/envoy.config.cluster.v3.Cluster","nome":"a"}`} {
		if url, _, err := schema.UnmarshalJSON([]byte(bad)); err == nil {
			t.Errorf("UnmarshalJSON(%s) = %q, want an error", bad, url)
		}
	}
	var missing *schema.UnknownTypeError
	if _, _, err := schema.UnmarshalJSON([]byte(`{"@type":"type.googleapis.com/acme.Foo"}`)); !errors.As(err, &missing) || missing.TypeURL != prefix+"acme.Foo" {
		t.Errorf("UnmarshalJSON(acme.Foo) = %v, want UnknownTypeError", err)
	}
}
