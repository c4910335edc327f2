package lint_test

import (
	"slices"
	"strings"
	"testing"

	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/relay/lint"
)

// encoded returns the encoded resource for the fields of a JSON object, without @type and without the outer braces.
func encoded(t testing.TB, typeURL, json string) []byte {
	t.Helper()
	_, value, err := schema.UnmarshalJSON([]byte(`{"@type":"` + typeURL + `",` + json + `}`))
	if err != nil {
		t.Fatalf("encode %s: %v", json, err)
	}
	return value
}

// hcm returns the JSON of a filter with an HTTP connection manager that has the given fields.
func hcm(fields string) string {
	return `{"name":"hcm","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",` + fields + `}}`
}

// listener returns the JSON fields of a listener with filters.
func listener(filters string) string {
	return `"name":"l","address":{"socket_address":{"address":"::","port_value":80}},"filter_chains":[{"filters":[` + filters + `]}]`
}

// routes returns the JSON fields of a route configuration with one route per action.
func routes(actions ...string) string {
	list := make([]string, len(actions))
	for i, action := range actions {
		list[i] = `{"match":{"prefix":"/"},` + action + `}`
	}
	return `"name":"r","virtual_hosts":[{"name":"v","domains":["*"],"routes":[` + strings.Join(list, ",") + `]}]`
}

// TestInspect_References checks the references of valid resources, and whether clients fetch clusters on demand.
func TestInspect_References(t *testing.T) {
	tests := []struct {
		name, typeURL, json string
		want                []lint.Reference
		onDemand            bool
	}{
		{"a route refers to a cluster, weighted clusters and mirrors, without duplicates", wire.RouteType, routes(
			`"route":{"cluster":"a"}`, `"route":{"cluster":"a"}`, `"redirect":{}`, `"route":{"cluster_header":"x"}`,
			`"route":{"weighted_clusters":{"clusters":[{"name":"b","weight":1},{"cluster_header":"h","weight":1}]},"request_mirror_policies":[{"cluster":"c"}]}`),
			[]lint.Reference{{wire.ClusterType, "a"}, {wire.ClusterType, "b"}, {wire.ClusterType, "c"}}, false},
		{"a virtual host", wire.VirtualHostType, `"name":"v","domains":["*"],"routes":[{"match":{"prefix":"/"},"route":{"cluster":"a"}}]`,
			[]lint.Reference{{wire.ClusterType, "a"}}, false},
		{"a listener refers to a route configuration", wire.ListenerType, listener(hcm(`"stat_prefix":"s","rds":{"route_config_name":"r","config_source":{"ads":{}}}`)),
			[]lint.Reference{{wire.RouteType, "r"}}, false},
		{"routes from a file are not a reference", wire.ListenerType, listener(hcm(`"stat_prefix":"s","rds":{"route_config_name":"r","config_source":{"path":"/r"}}`)), nil, false},
		{"routes in a listener", wire.ListenerType, listener(hcm(`"stat_prefix":"s","route_config":{` + routes(`"route":{"cluster":"a"}`) + `}`)),
			[]lint.Reference{{wire.ClusterType, "a"}}, false},
		{"an extension that is not checked", wire.ListenerType, listener(hcm(`"stat_prefix":"s","route_config":{` + routes(`"route":{"cluster":"a"}`) + `},
			"http_filters":[{"name":"o","typed_config":{"@type":"type.googleapis.com/xds.type.v3.TypedStruct"}}]`)),
			[]lint.Reference{{wire.ClusterType, "a"}}, false},
		{"a TCP proxy", wire.ListenerType, listener(`{"name":"t","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
			"stat_prefix":"s","weighted_clusters":{"clusters":[{"name":"a","weight":1}]}}}`), []lint.Reference{{wire.ClusterType, "a"}}, false},
		{"a TCP proxy on demand", wire.ListenerType, listener(`{"name":"t","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
			"stat_prefix":"s","cluster":"a","on_demand":{"odcds_config":{"ads":{}}}}}`), []lint.Reference{{wire.ClusterType, "a"}}, true},
		{"a scoped route", wire.ScopedRouteType, `"name":"s","route_configuration_name":"r","key":{"fragments":[{"string_key":"k"}]}`,
			[]lint.Reference{{wire.RouteType, "r"}}, false},
		{"endpoints by the name of the cluster", wire.ClusterType, `"name":"c","type":"EDS","eds_cluster_config":{"eds_config":{"ads":{}}}`,
			[]lint.Reference{{wire.EndpointType, "c"}}, false},
		{"endpoints by another name", wire.ClusterType, `"name":"c","type":"EDS","eds_cluster_config":{"service_name":"s","eds_config":{"self":{}}}`,
			[]lint.Reference{{wire.EndpointType, "s"}}, false},
		{"a cluster without EDS", wire.ClusterType, `"name":"c","type":"STRICT_DNS"`, nil, false},
		{"a type that is not checked", "type.googleapis.com/envoy.config.accesslog.v3.AccessLog", `"name":"x"`, nil, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			facts := lint.Inspect(tt.typeURL, encoded(t, tt.typeURL, tt.json))
			if !slices.Equal(facts.References, tt.want) || facts.OnDemand != tt.onDemand || len(facts.Findings) > 0 {
				t.Errorf("%+v, want references %v, on demand %t and no findings", facts, tt.want, tt.onDemand)
			}
		})
	}
}

// TestInspect_Findings checks the kind and the detail of findings, and their maximum number.
func TestInspect_Findings(t *testing.T) {
	field := func(b []byte, number protowire.Number, value []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), value)
	}
	deep := encoded(t, wire.ExtensionConfigType, `"name":"x","typed_config":{"@type":"type.googleapis.com/google.protobuf.Empty"}`)
	for range 40 {
		extension := field(field(nil, 1, []byte(wire.ExtensionConfigType)), 2, deep)
		deep = field(field(nil, 1, []byte("x")), 2, extension)
	}
	many := `"name":"c","health_checks":[{}` + strings.Repeat(`,{}`, 30) + `]`
	tests := []struct {
		name, typeURL string
		value         []byte
		want          []lint.Finding // Detail is a part of the finding's detail
		number        int            // number of findings; zero for len(want)
	}{
		{"valid", wire.ClusterType, encoded(t, wire.ClusterType, `"name":"c","connect_timeout":"1s"`), nil, 0},
		{"empty", wire.RuntimeType, nil, []lint.Finding{{Kind: lint.Invalid, Detail: "Name: value length must be at least 1"}}, 0},
		{"truncated", wire.ClusterType, []byte{0x0a, 0x05, 'c'}, []lint.Finding{{Kind: lint.Undecodable, Detail: "not of type envoy.config.cluster.v3.Cluster"}}, 0},
		{"invalid UTF-8", wire.ClusterType, []byte{0x0a, 0x01, 0xff}, []lint.Finding{{Kind: lint.Undecodable, Detail: "UTF-8"}}, 0},
		{"a truncated extension", wire.ListenerType, withExtension(t, "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy", []byte{0x0a, 0x05}),
			[]lint.Finding{{Kind: lint.Undecodable, Detail: "filter_chains[0].filters[0].typed_config: not of type envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"}}, 0},
		{"an extension that is not checked", wire.ListenerType, withExtension(t, "example.Filter", []byte{0x0a, 0x05}), nil, 0},
		{"a validator rejects a value", wire.ClusterType, encoded(t, wire.ClusterType, `"connect_timeout":"0s"`),
			[]lint.Finding{{Kind: lint.Invalid, Detail: "Name: value length"}, {Kind: lint.Invalid, Detail: "ConnectTimeout: value must be greater"}}, 0},
		{"a validator rejects a value in an extension", wire.ListenerType, encoded(t, wire.ListenerType, listener(hcm(`"route_config":{"virtual_hosts":[{"domains":["*"]}]}`))),
			[]lint.Finding{
				{Kind: lint.Invalid, Detail: "filter_chains[0].filters[0].typed_config.StatPrefix: value length"},
				{Kind: lint.Invalid, Detail: "filter_chains[0].filters[0].typed_config.RouteConfig.VirtualHosts[0].Name: value length"},
			}, 0},
		{"an unknown field, twice", wire.ClusterType, field(field(field(nil, 1, []byte("c")), 9999, nil), 9999, nil),
			[]lint.Finding{{Kind: lint.Unknown, Detail: "field 9999 of envoy.config.cluster.v3.Cluster"}}, 0},
		{"an unknown enum value", wire.ClusterType, protowire.AppendVarint(protowire.AppendTag(field(nil, 1, []byte("c")), 26, protowire.VarintType), 99),
			[]lint.Finding{{Kind: lint.Unknown, Detail: "protocol_selection: value 99 of enum envoy.config.cluster.v3.Cluster.ClusterProtocolSelection"}}, 0},
		{"too many nested extensions", wire.ExtensionConfigType, deep, []lint.Finding{{Kind: lint.Unchecked, Detail: "nested"}}, 0},
		{"too many findings", wire.ClusterType, encoded(t, wire.ClusterType, many), []lint.Finding{{Kind: lint.Invalid, Detail: "HealthChecks[0].Timeout"}}, 20},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := lint.Inspect(tt.typeURL, tt.value).Findings
			if n := len(got); n != max(tt.number, len(tt.want)) {
				t.Fatalf("%d findings, want %d: %q", n, max(tt.number, len(tt.want)), got)
			}
			for _, want := range tt.want {
				if !slices.ContainsFunc(got, func(f lint.Finding) bool { return f.Kind == want.Kind && strings.Contains(f.Detail, want.Detail) }) {
					t.Errorf("no finding %v in %q", want, got)
				}
			}
		})
	}
}

// withExtension returns an encoded listener with a filter of the given type and content.
func withExtension(t *testing.T, name string, value []byte) []byte {
	t.Helper()
	filter := &listenerpb.Filter{Name: "f", ConfigType: &listenerpb.Filter_TypedConfig{TypedConfig: &anypb.Any{TypeUrl: "type.googleapis.com/" + name, Value: value}}}
	b, err := proto.Marshal(&listenerpb.Listener{Name: "l", FilterChains: []*listenerpb.FilterChain{{Filters: []*listenerpb.Filter{filter}}}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestInspect_OnDemand checks that Inspect recognises the on-demand filter, whose generated package is not linked.
func TestInspect_OnDemand(t *testing.T) {
	if facts := lint.Inspect(wire.ListenerType, withExtension(t, "envoy.extensions.filters.http.on_demand.v3.OnDemand", nil)); !facts.OnDemand {
		t.Errorf("facts %+v, want OnDemand", facts)
	}
}

// TestB36_FindingsHaveNoValues checks that a finding about an invalid key does not contain the key.
func TestB36_FindingsHaveNoValues(t *testing.T) {
	value := encoded(t, wire.SecretType, `"name":"s","session_ticket_keys":{"keys":[{"inline_string":"tweedledum"},{"environment_variable":""}]}`)
	facts := lint.Inspect(wire.SecretType, value)
	if len(facts.Findings) == 0 {
		t.Fatal("no findings, want at least one")
	}
	for _, f := range facts.Findings {
		if strings.Contains(f.Detail, "tweedle") {
			t.Errorf("finding contains a key: %s", f.Detail)
		}
	}
}

// FuzzInspect checks that Inspect accepts arbitrary bytes, does not change them, and returns the same number of facts
// for the same bytes.
func FuzzInspect(f *testing.F) {
	f.Add(uint8(0), []byte{0x0a, 0x05, 'c'})
	f.Add(uint8(1), encoded(f, wire.ClusterType, `"name":"c","type":"EDS","eds_cluster_config":{"eds_config":{"ads":{}}}`))
	f.Add(uint8(2), encoded(f, wire.ListenerType, listener(hcm(`"stat_prefix":"s","route_config":{`+routes(`"route":{"cluster":"a"}`)+`}`))))
	types := []string{wire.EndpointType, wire.ClusterType, wire.ListenerType, wire.RouteType, wire.SecretType, wire.ExtensionConfigType, wire.RuntimeType}
	f.Fuzz(func(t *testing.T, typ uint8, value []byte) {
		typeURL, before := types[int(typ)%len(types)], slices.Clone(value)
		facts := lint.Inspect(typeURL, value)
		again := lint.Inspect(typeURL, value)
		if !slices.Equal(value, before) {
			t.Fatal("Inspect changed the bytes")
		}
		if len(facts.Findings) != len(again.Findings) || len(facts.References) != len(again.References) {
			t.Fatalf("two calls with the same bytes return %+v and %+v", facts, again)
		}
		for _, r := range facts.References {
			if r.Name == "" || !lint.Checks(r.TypeURL) {
				t.Fatalf("reference without a name or of an unchecked type: %+v", r)
			}
		}
	})
}

// BenchmarkInspect measures the cost of a cluster, and of a route configuration with 100 routes.
func BenchmarkInspect(b *testing.B) {
	hundred := slices.Repeat([]string{`"route":{"cluster":"a"}`}, 100)
	for _, bb := range []struct{ name, typeURL, json string }{
		{"cluster", wire.ClusterType, `"name":"c","connect_timeout":"1s","type":"EDS","eds_cluster_config":{"eds_config":{"ads":{}}},"circuit_breakers":{"thresholds":[{"max_requests":5}]}`},
		{"routes", wire.RouteType, routes(hundred...)},
	} {
		value := encoded(b, bb.typeURL, bb.json)
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				lint.Inspect(bb.typeURL, value)
			}
		})
	}
}
