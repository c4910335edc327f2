package compose

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A host runs the services of a file as processes on loopback. It replaces addresses and volumes,
// and uses everything else as the file has it.
type host struct {
	t         *testing.T
	tender    string            // path of the binary
	addresses map[string]string // address in the file to the address on this host
	admin     map[string]string // service to its admin address
	dirs      map[string]string // volume or directory in the file to a directory of this host
	processes map[string]*envoytest.Process
}

// newHost builds the binary, and reserves addresses and directories.
func newHost(t *testing.T, f file) *host {
	t.Helper()
	h := &host{
		t: t, tender: filepath.Join(t.TempDir(), "tender"), addresses: map[string]string{}, admin: map[string]string{},
		dirs: map[string]string{"./xds": t.TempDir()}, processes: map[string]*envoytest.Process{},
	}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", h.tender, "../../cmd/tender").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	if err := os.CopyFS(h.dirs["./xds"], os.DirFS("xds")); err != nil {
		t.Fatal(err)
	}
	for volume := range f.Volumes {
		h.dirs[volume] = t.TempDir()
	}
	for name, s := range f.Services {
		if s.serves() {
			h.addresses[name+":18000"], h.admin[name] = proxy.FreeAddress(t), proxy.FreeAddress(t)
		}
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
	var mapped []string
	for _, mount := range s.Volumes {
		parts := strings.Split(mount, ":")
		mapped = append(mapped, parts[1], h.dirs[parts[0]])
	}
	for of, address := range h.addresses {
		mapped = append(mapped, of, address)
	}
	replace := strings.NewReplacer(append(mapped, ":18081", "127.0.0.1:0")...)
	for _, v := range s.variables() {
		key, value, _ := strings.Cut(v, "=")
		env = append(env, key+"="+replace.Replace(value))
	}
	if s.serves() {
		env = append(env, "TENDER_LISTEN="+h.addresses[name+":18000"], "TENDER_ADMIN_LISTEN="+h.admin[name], "TENDER_DRAIN=1s")
	}
	return env
}

// start starts a service, and waits until its output contains the text until.
func (h *host) start(name string, s service, until string) {
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
	h.processes[name].AwaitLine(0, until)
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

// TestRun runs all services. Clients of both relays receive the resources of the files and their changes. While the
// control plane is down, a new client receives the cached resources.
func TestRun(t *testing.T) {
	f := load(t)
	h := newHost(t, f)
	for started := map[string]bool{}; len(started) < len(f.Services); {
		name := next(t, f, started)
		s := f.Services[name]
		if s.serves() {
			h.start(name, s, `"listening"`)
			h.checkHealth(name, s)
		} else {
			h.start(name, s, "checkout")
		}
		started[name] = true
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
	late := f.Services["client-1"]
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

// next returns a service that is not started and depends on started services only.
func next(t *testing.T, f file, started map[string]bool) string {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(f.Services)) {
		waits := slices.ContainsFunc(slices.Collect(maps.Keys(f.Services[name].DependsOn)), func(other string) bool { return !started[other] })
		if !started[name] && !waits {
			return name
		}
	}
	t.Fatalf("the dependencies of the services form a cycle; started services: %v", started)
	return ""
}
