package deploy_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/xdstender/tender/relay/config"
)

// A service holds the fields of a service of compose.yaml that the test reads.
type service struct {
	Command     []string
	Environment map[string]string
	Volumes     []string
	Ulimits     map[string]int
	MemLimit    string        `yaml:"mem_limit"`
	StopAfter   time.Duration `yaml:"stop_grace_period"`
	ReadOnly    bool          `yaml:"read_only"`
	CapDrop     []string      `yaml:"cap_drop"`
}

// TestComposeLimits checks that all services of compose.yaml are confined and that no two services share a volume. It
// also checks that each relay has the limits of open files, memory and stop time that its configuration needs.
func TestComposeLimits(t *testing.T) {
	var f struct{ Services map[string]service }
	if err := yaml.Unmarshal([]byte(readText(t, "compose/compose.yaml")), &f); err != nil || len(f.Services) < 3 {
		t.Fatalf("compose.yaml has %d services: %v", len(f.Services), err)
	}
	mounted := map[string]string{} // volume to service
	for name, s := range f.Services {
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
