package envoy_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	bootstrappb "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httppb "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
	"sigs.k8s.io/yaml"

	"github.com/xdstender/tender/relay"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// secrets are the files of secrets; all others are bootstraps.
var secrets = []string{"secret-ca.yaml", "secret-client.yaml"}

// bootstraps returns the names of the bootstraps.
func bootstraps(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob("*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(secrets, name) })
}

// read reads a file into a message as Envoy does: what is twice, or unknown, is an error, and so is
// what the message's rules do not allow, or those of a message within it.
func read(t *testing.T, name string, into proto.Message) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	json, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if err := protojson.Unmarshal(json, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if err := validate(into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// validate holds a message, and each that an Any in it has, to the rules of Envoy's definitions.
func validate(m proto.Message) error {
	if err := m.(rules).ValidateAll(); err != nil {
		return err
	}
	return protorange.Range(m.ProtoReflect(), func(p protopath.Values) error {
		held, ok := p.Index(-1).Value.Interface().(protoreflect.Message)
		if !ok {
			return nil
		}
		extension, ok := held.Interface().(*anypb.Any)
		if !ok {
			return nil
		}
		body, err := extension.UnmarshalNew()
		if err != nil {
			return err
		}
		if err := body.(rules).ValidateAll(); err != nil {
			return fmt.Errorf("%s: %w", extension.GetTypeUrl(), err)
		}
		return nil
	})
}

// rules are what protoc-gen-validate makes of the rules in the definitions.
type rules interface{ ValidateAll() error }

// readBootstrap reads a bootstrap, whose clusters for its servers must be there.
func readBootstrap(t *testing.T, name string) *bootstrappb.Bootstrap {
	t.Helper()
	b := new(bootstrappb.Bootstrap)
	read(t, name, b)
	for _, api := range apis(b) {
		for _, server := range servers(api) {
			if cluster(b, server) == nil {
				t.Fatalf("%s: no static cluster is called %q", name, server)
			}
		}
	}
	return b
}

// apis returns all that says where something comes from.
func apis(b *bootstrappb.Bootstrap) (all []*corepb.ApiConfigSource) {
	d := b.GetDynamicResources()
	for _, api := range []*corepb.ApiConfigSource{
		d.GetAdsConfig(), d.GetCdsConfig().GetApiConfigSource(), d.GetLdsConfig().GetApiConfigSource(), b.GetClusterManager().GetLoadStatsConfig(),
	} {
		if api != nil {
			all = append(all, api)
		}
	}
	return all
}

// servers returns the clusters of the servers, the first choice first.
func servers(api *corepb.ApiConfigSource) []string {
	names := slices.Clone(api.GetClusterNames())
	for _, s := range api.GetGrpcServices() {
		names = append(names, s.GetEnvoyGrpc().GetClusterName())
	}
	return names
}

// cluster returns a static cluster; nil if there is none of that name, or none that is
// there before the first answer of a server.
func cluster(b *bootstrappb.Bootstrap, name string) *clusterpb.Cluster {
	for _, c := range b.GetStaticResources().GetClusters() {
		if c.GetName() == name && c.GetType() == clusterpb.Cluster_STRICT_DNS {
			return c
		}
	}
	return nil
}

// protocol returns how a cluster speaks HTTP.
func protocol(t *testing.T, c *clusterpb.Cluster) *httppb.HttpProtocolOptions {
	t.Helper()
	options := new(httppb.HttpProtocolOptions)
	const name = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
	if err := c.GetTypedExtensionProtocolOptions()[name].UnmarshalTo(options); err != nil {
		t.Fatalf("cluster %s: %s: %v", c.GetName(), name, err)
	}
	return options
}

// TestBootstrapsAreValid holds each file to Envoy's definitions: fields, extensions and rules.
func TestBootstrapsAreValid(t *testing.T) {
	names := bootstraps(t)
	if len(names) != 9 {
		t.Errorf("%d bootstraps, want 9: %v", len(names), names)
	}
	for _, name := range names {
		readBootstrap(t, name)
	}
	for _, name := range secrets {
		readSecret(t, name)
	}
}

// TestBadBootstrapsAreFound holds that the test before finds what is wrong.
func TestBadBootstrapsAreFound(t *testing.T) {
	b := readBootstrap(t, "mtls.yaml")
	c := cluster(b, "tender")
	tls := security(t, c)
	tls.Sni = string(make([]byte, 256)) // of which its rule allows 255
	held, err := anypb.New(tls)
	if err != nil {
		t.Fatal(err)
	}
	c.GetTransportSocket().ConfigType = &corepb.TransportSocket_TypedConfig{TypedConfig: held}
	if err := validate(b); err == nil || !strings.Contains(err.Error(), "Sni") {
		t.Errorf("validate = %v, want an error of a field in an extension", err)
	}
	held.TypeUrl = "type.googleapis.com/envoy.Unknown"
	if err := validate(b); err == nil {
		t.Error("validate = nil, want an error of an extension that is unknown")
	}
}

// TestBootstrapsAgree holds that the files differ only in what they are for.
func TestBootstrapsAgree(t *testing.T) {
	common := func(name string) *bootstrappb.Bootstrap {
		b := readBootstrap(t, name)
		c := cluster(b, "tender")
		c.TransportSocket, c.HealthChecks, c.LoadAssignment = nil, nil, nil
		b.StaticResources.Clusters = []*clusterpb.Cluster{c}
		b.DynamicResources, b.LayeredRuntime, b.ClusterManager = nil, nil, nil
		return b
	}
	want := common("delta-ads.yaml")
	for _, name := range bootstraps(t) {
		if diff := cmp.Diff(want, common(name), protocmp.Transform()); diff != "" {
			t.Errorf("%s differs from delta-ads.yaml:\n%s", name, diff)
		}
	}
}

// TestBootstrapsFitTheRelay holds the limits to those of a relay that nobody has configured.
func TestBootstrapsFitTheRelay(t *testing.T) {
	cfg, err := relay.LoadConfig(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range bootstraps(t) {
		b := readBootstrap(t, name)
		for _, c := range b.GetStaticResources().GetClusters() {
			alive := protocol(t, c).GetExplicitHttpConfig().GetHttp2ProtocolOptions().GetConnectionKeepalive()
			if got := alive.GetInterval().AsDuration(); got <= 10*time.Second { // TestB34_ClientsMayPing
				t.Errorf("%s: %s is pinged every %v; who pings a relay more often than every 10s is sent away", name, c.GetName(), got)
			}
			if got := int(c.GetCircuitBreakers().GetThresholds()[0].GetMaxRequests().GetValue()); got != cfg.MaxStreamsPerConnection {
				t.Errorf("%s: %s takes %d streams, want %d as the relay does", name, c.GetName(), got, cfg.MaxStreamsPerConnection)
			}
		}
		d := b.GetDynamicResources()
		for _, first := range []*corepb.ConfigSource{d.GetCdsConfig(), d.GetLdsConfig()} {
			if limit := first.GetInitialFetchTimeout(); limit == nil || limit.AsDuration() != 0 {
				t.Errorf("%s: initial_fetch_timeout is %v, want 0s: a relay says nothing while its control plane was never there", name, limit)
			}
		}
		for _, api := range apis(b) {
			limit := api.GetRateLimitSettings()
			if api.GetApiType() == corepb.ApiConfigSource_REST || api == b.GetClusterManager().GetLoadStatsConfig() {
				continue // which have none
			}
			if got := int(limit.GetFillRate().GetValue()); got != cfg.MaxRequestRate || int(limit.GetMaxTokens().GetValue()) != 10*got {
				t.Errorf("%s: rate_limit_settings are %v, want %d and ten times that as the relay has it", name, limit, cfg.MaxRequestRate)
			}
		}
	}
}

// readSecret reads a file of one secret.
func readSecret(t *testing.T, name string) *tlspb.Secret {
	t.Helper()
	resp := new(discoverypb.DiscoveryResponse)
	read(t, name, resp)
	secret := new(tlspb.Secret)
	if len(resp.GetResources()) != 1 || resp.GetResources()[0].UnmarshalTo(secret) != nil {
		t.Fatalf("%s: want one secret", name)
	}
	return secret
}
