package compose

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/xdstender/tender/relay"
)

// A file holds the fields of compose.yaml that the tests read.
type file struct {
	Services map[string]service
	Volumes  map[string]struct{}
}

// A service holds the fields of a service of compose.yaml that the tests read.
type service struct {
	Command     []string
	Environment map[string]string
	Volumes     []string
	DependsOn   map[string]struct{ Condition string } `yaml:"depends_on"`
	Healthcheck struct{ Test []string }
	Ulimits     map[string]int
	MemLimit    string        `yaml:"mem_limit"`
	StopAfter   time.Duration `yaml:"stop_grace_period"`
	ReadOnly    bool          `yaml:"read_only"`
	CapDrop     []string      `yaml:"cap_drop"`
}

// serves reports whether a service is a relay: without a command, the image runs tender serve.
func (s service) serves() bool { return len(s.Command) == 0 }

// variables returns the environment of a service in the format of os.Environ.
func (s service) variables() (env []string) {
	for name, value := range s.Environment {
		env = append(env, name+"="+value)
	}
	slices.Sort(env)
	return env
}

// TestLimits checks that all services are confined and that no two services share a volume. It also checks that each
// relay has the limits of open files, memory and stop time that its configuration needs.
func TestLimits(t *testing.T) {
	f := load(t)
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
		if !s.serves() {
			continue
		}
		cfg, err := relay.LoadConfig(s.variables())
		if err != nil || s.StopAfter < cfg.Drain+5*time.Second || s.Ulimits["nofile"] < 2*cfg.MaxConnections || s.MemLimit == "" {
			t.Errorf("%s: %v; stop_grace_period is %v, want TENDER_DRAIN and 5s at least, nofile %d, want twice TENDER_MAX_CONNECTIONS, mem_limit %q, want one",
				name, err, s.StopAfter, s.Ulimits["nofile"], s.MemLimit)
		}
		if dir := cfg.SnapshotDir; dir != "" && !slices.ContainsFunc(s.Volumes, func(v string) bool { return strings.HasSuffix(v, ":"+dir) }) {
			t.Errorf("%s writes snapshots to %s, which is in no volume", name, dir)
		}
	}
}

// load reads compose.yaml.
func load(t *testing.T) (f file) {
	t.Helper()
	text, err := os.ReadFile("compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &f); err != nil {
		t.Fatalf("compose.yaml: %v", err)
	}
	return f
}
