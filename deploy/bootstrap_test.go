package deploy_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	bootstrappb "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3" // registers a type that the files use
	httppb "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/config"
)

// bootstraps returns the paths of the bootstraps for Envoy.
func bootstraps(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob("envoy/*.yaml")
	if err != nil || len(names) < 8 {
		t.Fatalf("found %d files for Envoy: %v", len(names), err)
	}
	return slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(filepath.Base(name), "secret-") })
}

// readBootstrap reads a bootstrap. It does not validate it; TestEnvoy_Bootstraps in system/deploy does so with Envoy.
func readBootstrap(t *testing.T, name string) *bootstrappb.Bootstrap {
	t.Helper()
	b := new(bootstrappb.Bootstrap)
	json, err := yaml.YAMLToJSONStrict([]byte(readText(t, name)))
	if err == nil {
		err = protojson.Unmarshal(json, b)
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return b
}

// relayCluster returns the static cluster "tender", which is the relay.
func relayCluster(t *testing.T, b *bootstrappb.Bootstrap) *clusterpb.Cluster {
	t.Helper()
	for _, c := range b.GetStaticResources().GetClusters() {
		if c.GetName() == "tender" {
			return c
		}
	}
	t.Fatal("the bootstrap has no cluster tender")
	return nil
}

// TestBootstrapsFitTheRelay compares the limits of each bootstrap with the defaults of the relay.
func TestBootstrapsFitTheRelay(t *testing.T) {
	cfg, err := config.Load(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range bootstraps(t) {
		b := readBootstrap(t, name)
		c, options := relayCluster(t, b), new(httppb.HttpProtocolOptions)
		if err := c.GetTypedExtensionProtocolOptions()["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"].UnmarshalTo(options); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		alive := options.GetExplicitHttpConfig().GetHttp2ProtocolOptions().GetConnectionKeepalive()
		if got := alive.GetInterval().AsDuration(); got <= 10*time.Second { // TestB34_ClientsMayPing
			t.Errorf("%s: pings every %v; the relay closes connections with more than one ping in 10s", name, got)
		}
		if got := int(c.GetCircuitBreakers().GetThresholds()[0].GetMaxRequests().GetValue()); got != guard.MaxStreamsPerConnection {
			t.Errorf("%s: max_requests is %d, want %d, as many streams as the relay accepts on one connection", name, got, guard.MaxStreamsPerConnection)
		}
		d := b.GetDynamicResources()
		for _, source := range []*corepb.ConfigSource{d.GetCdsConfig(), d.GetLdsConfig()} {
			if limit := source.GetInitialFetchTimeout(); limit == nil || limit.AsDuration() != 0 {
				t.Errorf("%s: initial_fetch_timeout is %v, want 0s: a relay without configuration sends no response", name, limit)
			}
		}
		for _, api := range []*corepb.ApiConfigSource{d.GetAdsConfig(), d.GetCdsConfig().GetApiConfigSource(), d.GetLdsConfig().GetApiConfigSource()} {
			if api == nil || api.GetApiType() == corepb.ApiConfigSource_REST { // REST polls have no rate limit settings
				continue
			}
			limit := api.GetRateLimitSettings()
			if got := int(limit.GetFillRate().GetValue()); got != cfg.MaxRequestRate || int(limit.GetMaxTokens().GetValue()) != 10*got {
				t.Errorf("%s: rate_limit_settings are %v, want TENDER_MAX_REQUEST_RATE, %d, and a burst of ten times that", name, limit, cfg.MaxRequestRate)
			}
		}
	}
}
