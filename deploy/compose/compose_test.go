package compose

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/xdstender/tender/relay"
)

// A file is compose.yaml, with the fields of the Compose Specification that it uses: others
// are an error.
type file struct {
	Name     string
	Tender   any `yaml:"x-tender"` // merged into services
	Server   any `yaml:"x-server"`
	Services map[string]service
	Volumes  map[string]struct{}
}

type service struct {
	Image       string
	Command     []string
	Environment map[string]string
	Volumes     []string
	Ports       []string
	DependsOn   map[string]struct{ Condition string } `yaml:"depends_on"`
	Healthcheck struct {
		Test        []string
		Interval    time.Duration
		Timeout     time.Duration
		StartPeriod time.Duration `yaml:"start_period"`
	}
	ReadOnly        bool     `yaml:"read_only"`
	CapDrop         []string `yaml:"cap_drop"`
	SecurityOpt     []string `yaml:"security_opt"`
	Restart         string
	MemLimit        string `yaml:"mem_limit"`
	Ulimits         map[string]int
	StopGracePeriod time.Duration `yaml:"stop_grace_period"`
}

// serves reports whether a service is a relay: what has no command does what the image does.
func (s service) serves() bool { return len(s.Command) == 0 }

// variables returns what is set for a service, as a process has it.
func (s service) variables() (env []string) {
	for name, value := range s.Environment {
		env = append(env, name+"="+value)
	}
	slices.Sort(env)
	return env
}

// load reads compose.yaml.
func load(t *testing.T) file {
	t.Helper()
	text, err := os.ReadFile("compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var f file
	in := yaml.NewDecoder(bytes.NewReader(text))
	in.KnownFields(true)
	if err := in.Decode(&f); err != nil {
		t.Fatalf("compose.yaml: %v", err)
	}
	return f
}

// TestFile holds that the relay takes what services set, and that they have what others name.
func TestFile(t *testing.T) {
	f := load(t)
	volumes := map[string]string{} // by the service that has each
	for name, s := range f.Services {
		if s.Image != "tender:${VERSION:-latest}" || !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) || len(s.SecurityOpt) != 1 {
			t.Errorf("%s lacks what all services have: %+v", name, s)
		}
		for other, how := range s.DependsOn {
			if f.Services[other].Healthcheck.Test == nil || how.Condition != "service_healthy" {
				t.Errorf("%s depends on %s, %s: want a service with a health check", name, other, how.Condition)
			}
		}
		for _, mount := range s.Volumes {
			source, _, _ := strings.Cut(mount, ":")
			if _, declared := f.Volumes[source]; !declared && source != "./xds" || volumes[source] != "" {
				t.Errorf("%s mounts %s, which is not declared, or is that of %s", name, source, volumes[source])
			}
			volumes[source] = name
		}
		if s.serves() {
			checkServer(t, name, s)
		}
	}
	if len(f.Services) != 5 || len(volumes) != 3 {
		t.Errorf("there are %d services and %d volumes, want 5 and 3", len(f.Services), len(volumes))
	}
}

// checkServer holds that a relay starts as a service says, may write where it has to, and is given
// the time to drain.
func checkServer(t *testing.T, name string, s service) {
	t.Helper()
	cfg, err := relay.LoadConfig(s.variables())
	if err != nil {
		t.Errorf("%s: %v", name, err)
	}
	if s.StopGracePeriod < cfg.Drain+5*time.Second {
		t.Errorf("%s has %v to stop, want 5s at least beyond TENDER_DRAIN, %v", name, s.StopGracePeriod, cfg.Drain)
	}
	if s.Ulimits["nofile"] < 2*cfg.MaxConnections || !regexp.MustCompile(`^\d+m$`).MatchString(s.MemLimit) {
		t.Errorf("%s has %d files and %s of memory, want twice TENDER_MAX_CONNECTIONS, and a limit", name, s.Ulimits["nofile"], s.MemLimit)
	}
	if dir := cfg.SnapshotDir; dir != "" && !slices.ContainsFunc(s.Volumes, func(v string) bool { return strings.HasSuffix(v, ":"+dir) }) {
		t.Errorf("%s writes snapshots to %s, for which there is no volume", name, dir)
	}
}
