package compose

import (
	"os"
	"slices"
	"testing"

	"go.yaml.in/yaml/v3"
)

// A file is the part of compose.yaml that TestRun needs.
type file struct {
	Services map[string]service
	Volumes  map[string]struct{}
}

type service struct {
	Command     []string
	Environment map[string]string
	Volumes     []string
	DependsOn   map[string]struct{ Condition string } `yaml:"depends_on"`
	Healthcheck struct{ Test []string }
}

// serves reports whether a service is a relay: without a command, the image runs tender serve.
func (s service) serves() bool { return len(s.Command) == 0 }

// variables returns the environment of a service in the form of os.Environ.
func (s service) variables() (env []string) {
	for name, value := range s.Environment {
		env = append(env, name+"="+value)
	}
	slices.Sort(env)
	return env
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
