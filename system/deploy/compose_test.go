package deploy_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"

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

// A spanCollector receives spans by OTLP over HTTP. It keeps the names of the spans of each trace.
type spanCollector struct {
	mu     sync.Mutex
	traces map[string][]string // guarded by mu; "SERVICE SPAN NODE" by trace ID
}

// ServeHTTP implements http.Handler.
func (c *spanCollector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	request := new(collectorpb.ExportTraceServiceRequest)
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, request) != nil {
		http.Error(w, "want spans at /v1/traces", http.StatusBadRequest)
		return
	}
	value := func(attributes []*commonpb.KeyValue, key string) string {
		for _, kv := range attributes {
			if kv.GetKey() == key {
				return kv.GetValue().GetStringValue()
			}
		}
		return ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, from := range request.GetResourceSpans() {
		service := value(from.GetResource().GetAttributes(), "service.name")
		for _, scope := range from.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				name := strings.TrimSpace(service + " " + s.GetName() + " " + value(s.GetAttributes(), "tender.node"))
				c.traces[string(s.GetTraceId())] = append(c.traces[string(s.GetTraceId())], name)
			}
		}
	}
}

// awaits returns an error unless one trace has spans of all names.
func (c *spanCollector) awaits(names ...string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, trace := range c.traces {
		if !slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(trace, name) }) {
			return nil
		}
	}
	return fmt.Errorf("no trace has all of %q, of %q", names, slices.Collect(maps.Values(c.traces)))
}

// TestComposeTracing runs the relays of both files, and the Envoy of tracing.yaml with its bootstrap. A change of the files
// is one trace, from the control plane to the Envoy.
func TestComposeTracing(t *testing.T) {
	h := newHost(t)
	var tracing composition
	if err := yaml.Unmarshal([]byte(readText(t, root+"/deploy/compose/tracing.yaml")), &tracing); err != nil {
		t.Fatalf("tracing.yaml: %v", err)
	}
	spans := &spanCollector{traces: make(map[string][]string)}
	server := httptest.NewServer(spans)
	t.Cleanup(server.Close)
	h.addresses["collector:4318"] = server.Listener.Addr().String()
	for _, name := range []string{"origin", "relay-1"} {
		s := h.Services[name]
		s.Environment = maps.Clone(s.Environment)
		maps.Copy(s.Environment, tracing.Services[name].Environment)
		s.Environment["OTEL_BSP_SCHEDULE_DELAY"] = "50" // the test is shorter than the default
		h.startRelay(name, s)
	}
	bootstrap, _, _ := strings.Cut(tracing.Services["envoy"].Volumes[0], ":")
	e := envoytest.Start(t, envoytest.Options{Bootstrap: filepath.Base(bootstrap), Server: h.addresses["relay-1:18000"]})
	e.Await("both clusters", func() error {
		if got := e.Config().Names("dynamic_active_clusters"); !slices.Equal(got, []string{"cart", "checkout"}) {
			return fmt.Errorf("the clusters are %q", got)
		}
		return nil
	})
	spans.mu.Lock()
	clear(spans.traces) // those of first responses
	spans.mu.Unlock()
	shop := filepath.Join(h.dirs["./xds"], "shop.yaml")
	changed := strings.Replace(readText(t, shop), "connect_timeout: 1s", "connect_timeout: 2s", 1)
	if err := os.WriteFile(shop, []byte(changed), 0o644); err != nil {
		t.Fatal(err)
	}
	e.Await("trace of the change", func() error {
		return spans.awaits("origin origin.receive", "origin cache.apply", "origin fanout", "relay-1 origin.receive",
			"relay-1 cache.apply", "relay-1 fanout", "relay-1 deliver edge-1")
	})
}
