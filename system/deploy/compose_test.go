package deploy_test

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/xdstender/tender/relay/envoytest"
)

// A composition holds the fields of compose.yaml that the test reads.
type composition struct {
	Services map[string]service
	Volumes  map[string]struct{}
}

// A service holds the fields of a service of compose.yaml that the test reads.
type service struct {
	Command     []string
	Environment map[string]string
	Volumes     []string
	DependsOn   map[string]struct{ Condition string } `yaml:"depends_on"`
	Healthcheck struct{ Test []string }
}

// serves reports whether a service is a relay: without a command, the image runs tender serve.
func (s service) serves() bool { return len(s.Command) == 0 }

// A host runs the services of compose.yaml as processes on loopback. It replaces addresses and volumes, and uses
// everything else as the file has it.
type host struct {
	composition
	t         *testing.T
	tender    string            // path of the binary
	addresses map[string]string // address in the file to the address on this host, of relays that have started
	admin     map[string]string // service to its admin address
	dirs      map[string]string // volume or directory in the file to a directory of this host
	processes map[string]*envoytest.Process
}

// newHost reads compose.yaml, and makes a directory for each volume.
func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{
		t: t, tender: envoytest.Command(t), addresses: map[string]string{}, admin: map[string]string{},
		dirs: map[string]string{"./xds": t.TempDir()}, processes: map[string]*envoytest.Process{},
	}
	if err := yaml.Unmarshal([]byte(readText(t, root+"/deploy/compose/compose.yaml")), &h.composition); err != nil {
		t.Fatalf("compose.yaml: %v", err)
	}
	if err := os.CopyFS(h.dirs["./xds"], os.DirFS(root+"/deploy/compose/xds")); err != nil {
		t.Fatal(err)
	}
	for volume := range h.Volumes {
		h.dirs[volume] = t.TempDir()
	}
	return h
}

// environment returns the environment of a service, with the addresses and directories of this host.
func (h *host) environment(name string, s service) []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "TENDER_") {
			env = append(env, v)
		}
	}
	mapped := []string{":18081", "127.0.0.1:0"}
	for _, mount := range s.Volumes {
		parts := strings.Split(mount, ":")
		mapped = append(mapped, parts[1], h.dirs[parts[0]])
	}
	for of, address := range h.addresses {
		mapped = append(mapped, of, address)
	}
	replace := strings.NewReplacer(mapped...)
	for key, value := range s.Environment {
		env = append(env, key+"="+replace.Replace(value))
	}
	if s.serves() {
		admin := h.admin[name]
		if admin == "" {
			admin = "127.0.0.1:0"
		}
		env = append(env, "TENDER_LISTEN=127.0.0.1:0", "TENDER_ADMIN_LISTEN="+admin, "TENDER_DRAIN=1s")
	}
	return env
}

// start starts a service, and waits until its output contains the text until. It returns that line.
func (h *host) start(name string, s service, until string) string {
	h.t.Helper()
	args := slices.Clone(s.Command)
	if s.serves() {
		args = []string{"serve"} // CMD of the image
	}
	for i, arg := range args {
		for of, address := range h.addresses {
			arg = strings.ReplaceAll(arg, of, address)
		}
		args[i] = arg
	}
	cmd := exec.Command(h.tender, args...)
	cmd.Env = h.environment(name, s)
	h.processes[name] = envoytest.StartProcess(h.t, name, cmd)
	return h.processes[name].AwaitLine(0, until)
}

// startRelay starts a relay, and reads its addresses from its log.
func (h *host) startRelay(name string, s service) {
	h.t.Helper()
	var listening struct {
		Listen string `json:"listen"`
		Admin  string `json:"admin_listen"`
	}
	if err := json.Unmarshal([]byte(h.start(name, s, `"msg":"listening"`)), &listening); err != nil {
		h.t.Fatalf("%s: %v", name, err)
	}
	h.addresses[name+":18000"], h.admin[name] = listening.Listen, listening.Admin
}

// checkHealth runs the health check of a service, which must succeed.
func (h *host) checkHealth(name string, s service) {
	h.t.Helper()
	test := s.Healthcheck.Test
	if len(test) < 2 || test[0] != "CMD" || test[1] != "/usr/local/bin/tender" {
		h.t.Fatalf("the health check of %s is %q", name, test)
	}
	cmd := exec.CommandContext(h.t.Context(), h.tender, test[2:]...)
	cmd.Env = h.environment(name, s)
	if out, err := cmd.CombinedOutput(); err != nil {
		h.t.Errorf("the health check of %s: %v\n%s", name, err, out)
	}
}

// stop stops a service with SIGTERM, as Compose does, and returns its exit code.
func (h *host) stop(name string) (code int) {
	h.t.Helper()
	h.processes[name].Signal(syscall.SIGTERM)
	return h.processes[name].Wait() // ends within TENDER_DRAIN
}

// TestCompose runs all services. Clients of both relays receive the resources of the files and their changes. While the
// control plane is down, a new client receives the cached resources.
func TestCompose(t *testing.T) {
	h := newHost(t)
	for len(h.processes) < len(h.Services) {
		name := h.next()
		s := h.Services[name]
		if s.serves() {
			h.startRelay(name, s)
			h.checkHealth(name, s)
		} else {
			h.start(name, s, "checkout")
		}
	}
	const added = "- \"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\n  name: payment\n"
	if err := os.WriteFile(filepath.Join(h.dirs["./xds"], "payment.yaml"), []byte(added), 0o644); err != nil {
		t.Fatal(err)
	}
	h.processes["client-1"].AwaitLine(0, "payment")
	h.processes["client-2"].AwaitLine(0, "payment")
	if code := h.stop("origin"); code != 0 {
		t.Errorf("origin ended with %d, want 0", code)
	}
	late := h.Services["client-1"]
	late.Command = []string{"get", "--output=name", "--address=relay-1:18000", "cds"}
	h.start("late", late, "payment")
	if code, got := h.processes["late"].Wait(), h.processes["late"].Log(); code != 0 || got != "cart\ncheckout\npayment" {
		t.Errorf("a client that starts while the control plane is down exited with %d, and received %q", code, got)
	}
	for _, name := range []string{"client-1", "client-2", "relay-1", "relay-2"} {
		if code := h.stop(name); code != 0 && strings.HasPrefix(name, "relay") {
			t.Errorf("%s ended with %d, want 0", name, code)
		}
	}
}

// next returns a service that has not started and depends only on services that have.
func (h *host) next() string {
	h.t.Helper()
	for _, name := range slices.Sorted(maps.Keys(h.Services)) {
		waits := slices.ContainsFunc(slices.Collect(maps.Keys(h.Services[name].DependsOn)), func(other string) bool { return h.processes[other] == nil })
		if h.processes[name] == nil && !waits {
			return name
		}
	}
	h.t.Fatalf("the dependencies of the services form a cycle; started services: %v", slices.Sorted(maps.Keys(h.processes)))
	return ""
}
