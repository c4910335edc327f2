package envoy_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	bootstrappb "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestB28_EnvoyReadsTheSameFile gives a file to an Envoy by path_config_source, and to one by a relay of its directory. Both have
// the same cluster, with all kinds of YAML scalars.
func TestB28_EnvoyReadsTheSameFile(t *testing.T) {
	for _, version := range envoytest.Versions(t) {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file := filepath.Join(dir, "scalars.yaml")
			check.OK(t, os.WriteFile(file, check.Must(os.ReadFile("../../cache/wire/schema/testdata/scalars.yaml")), 0o600))
			relay := envoytest.NewRelay(t, "file://"+dir)
			reader := envoytest.Start(t, envoytest.Options{
				Binary: envoytest.Installed(t, version), Server: relay.Addr,
				Edit: func(b *bootstrappb.Bootstrap) {
					b.DynamicResources = &bootstrappb.Bootstrap_DynamicResources{CdsConfig: &corepb.ConfigSource{
						ResourceApiVersion: corepb.ApiVersion_V3,
						ConfigSourceSpecifier: &corepb.ConfigSource_PathConfigSource{
							PathConfigSource: &corepb.PathConfigSource{Path: file},
						},
					}}
				},
			})
			below := envoytest.Start(t, envoytest.Options{Binary: envoytest.Installed(t, version), Server: relay.Addr})
			cluster := func(who string, e *envoytest.Envoy) (cluster map[string]any) {
				e.Await(who, func() error {
					return json.Unmarshal([]byte(e.Config()["dynamic_active_clusters/scalars"]), &cluster)
				})
				return cluster
			}
			if diff := cmp.Diff(cluster("the Envoy that reads the file", reader), cluster("the Envoy below the relay", below)); diff != "" {
				t.Errorf("the Envoy below the relay has another cluster (-file +relay):\n%s", diff)
			}
		})
	}
}
