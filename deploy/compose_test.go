package deploy_test

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/xdstender/tender/relay/config"
)

// A service holds the fields of a service of compose.yaml that the test reads.
type service struct {
	Image       string
	Command     []string
	Environment map[string]string
	Volumes     []string
	Ulimits     map[string]int
	MemLimit    string        `yaml:"mem_limit"`
	StopAfter   time.Duration `yaml:"stop_grace_period"`
	ReadOnly    bool          `yaml:"read_only"`
	CapDrop     []string      `yaml:"cap_drop"`
	Networks    map[string]struct{ Aliases []string }
}

// readServices returns the services of a file in compose.
func readServices(t *testing.T, name string) map[string]service {
	t.Helper()
	var f struct{ Services map[string]service }
	if err := yaml.Unmarshal([]byte(readText(t, "compose/"+name)), &f); err != nil || len(f.Services) < 3 {
		t.Fatalf("%s has %d services: %v", name, len(f.Services), err)
	}
	return f.Services
}

// TestComposeLimits checks that all services of compose.yaml are confined and that no two services share a volume. It
// also checks that each relay has the limits of open files, memory and stop time that its configuration needs.
func TestComposeLimits(t *testing.T) {
	mounted := map[string]string{} // volume to service
	for name, s := range readServices(t, "compose.yaml") {
		if !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) {
			t.Errorf("%s has read_only %t and cap_drop %q, want true and ALL", name, s.ReadOnly, s.CapDrop)
		}
		for _, volume := range s.Volumes {
			if source, _, _ := strings.Cut(volume, ":"); mounted[source] != "" {
				t.Errorf("%s and %s share the volume %s", name, mounted[source], source)
			} else {
				mounted[source] = name
			}
		}
		if len(s.Command) > 0 { // without a command, the image runs tender serve
			continue
		}
		var env []string
		for variable, value := range s.Environment {
			env = append(env, variable+"="+value)
		}
		cfg, err := config.Load(env)
		if err != nil || s.StopAfter < cfg.Drain+5*time.Second || s.Ulimits["nofile"] < 2*cfg.MaxConnections || s.MemLimit == "" {
			t.Errorf("%s: %v; stop_grace_period is %v, want TENDER_DRAIN and 5s at least, nofile %d, want twice TENDER_MAX_CONNECTIONS, mem_limit %q, want one",
				name, err, s.StopAfter, s.Ulimits["nofile"], s.MemLimit)
		}
		if dir := string(cfg.SnapshotDir); dir != "" && !slices.ContainsFunc(s.Volumes, func(v string) bool { return strings.HasSuffix(v, ":"+dir) }) {
			t.Errorf("%s writes snapshots to %s, which is in no volume", name, dir)
		}
	}
}

// TestComposeTracing checks that tracing.yaml makes each relay of compose.yaml export its traces to a port on which the
// collector listens, and that its own services are confined, have pinned images and mount files that exist. The Envoy has
// the newest version that the tests run with, and its bootstrap has the name of a relay.
func TestComposeTracing(t *testing.T) {
	relays, traced := readServices(t, "compose.yaml"), readServices(t, "tracing.yaml")
	var collector struct {
		Receivers struct {
			OTLP struct {
				Protocols map[string]struct{ Endpoint string }
			}
		}
		Exporters map[string]struct{ Endpoint string }
	}
	if err := yaml.Unmarshal([]byte(readText(t, "compose/collector.yaml")), &collector); err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(collector.Receivers.OTLP.Protocols["http"].Endpoint, ":")
	for name, s := range relays {
		env, want := traced[name].Environment, "http://collector:"+port+"/v1/traces"
		if len(s.Command) > 0 { // a client
			continue
		}
		if got := env["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"]; got != want || env["OTEL_SERVICE_NAME"] != name {
			t.Errorf("%s exports traces to %q as %q, want to %q as its name", name, got, env["OTEL_SERVICE_NAME"], want)
		}
		if _, err := config.Load([]string{"TENDER_ORIGIN=origin:18000", "TENDER_TRACE_DELIVERIES=" + env["TENDER_TRACE_DELIVERIES"]}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if at := collector.Exporters["otlp"].Endpoint; at != "jaeger:4317" || traced["jaeger"].Environment["JAEGER_LISTEN_HOST"] != "0.0.0.0" {
		t.Errorf("the collector exports to %q, want jaeger:4317, where Jaeger listens on all addresses", at)
	}
	pinned := regexp.MustCompile(`^[a-z]+/[a-z-]+:(distroless-v)?\d+\.\d+\.\d+$`)
	for name, s := range traced {
		if _, ok := relays[name]; ok {
			continue
		}
		if !pinned.MatchString(s.Image) || !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) || s.MemLimit == "" {
			t.Errorf("%s: image %q, read_only %t, cap_drop %q and mem_limit %q, want a version, true, ALL and a limit", name, s.Image,
				s.ReadOnly, s.CapDrop, s.MemLimit)
		}
		for _, volume := range s.Volumes {
			file, _, _ := strings.Cut(volume, ":")
			if readText(t, path.Join("compose", file)) == "" || !strings.HasSuffix(volume, ":ro") {
				t.Errorf("%s mounts %s, want a file with content, and :ro", name, volume)
			}
		}
	}
	if got, want := traced["envoy"].Image, "envoyproxy/envoy:distroless-v"+envoyVersions(t)[0]; got != want {
		t.Errorf("the Envoy has the image %s, want %s", got, want)
	}
	for _, alias := range traced["relay-1"].Networks["default"].Aliases {
		if strings.Contains(readText(t, "envoy/delta-ads.yaml"), "address: "+alias+", port_value: 18000") {
			return
		}
	}
	t.Error("the relay in the bootstrap of the Envoy is no alias of relay-1")
}
