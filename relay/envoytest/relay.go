package envoytest

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/instance"
	"github.com/xdstender/tender/relay/relaytest/logs"
)

// A Relay is a relay that runs in the test process.
type Relay struct {
	*relay.Relay

	// Addresses (host:port). Addr accepts plaintext gRPC, Admin is the admin address. REST and TLS are empty if they
	// are off.
	Addr, Admin, REST, TLS string

	tb  relaytest.TB
	log *logs.Log
}

// NewRelay starts a relay of the control plane at origin, a gRPC target. It is stopped when tb ends. env are further
// variables, such as TENDER_DRAIN=2s.
func NewRelay(tb relaytest.TB, origin string, env ...string) *Relay {
	tb.Helper()
	return NewRelayWith(tb, relay.Options{}, origin, env...)
}

// variables returns the variables of a relay. Variables in env override the defaults, and later ones override earlier
// ones.
func variables(origin string, env []string) []string {
	all := []string{
		"TENDER_ORIGIN=" + origin, "TENDER_LISTEN=127.0.0.1:0", "TENDER_ADMIN_LISTEN=127.0.0.1:0", "TENDER_NODE_ID=tender/test",
	}
	last := make(map[string]string)
	for _, v := range append(all, env...) {
		name, _, _ := strings.Cut(v, "=")
		last[name] = v
	}
	return slices.Sorted(maps.Values(last))
}

// NewRelayWith is [NewRelay] with options. It replaces their logger.
func NewRelayWith(tb relaytest.TB, opts relay.Options, origin string, env ...string) *Relay {
	tb.Helper()
	started := instance.Start(tb, instance.Options{Env: variables(origin, env), Options: opts})
	r := &Relay{Relay: started.Relay, tb: tb, log: &started.Log}
	r.Addr, r.Admin = r.Addrs()[0].String(), r.AdminAddrs()[0].String()
	if addrs := r.RESTAddrs(); len(addrs) > 0 {
		r.REST = addrs[0].String()
	}
	if addrs := r.TLSAddrs(); len(addrs) > 0 {
		r.TLS = addrs[0].String()
	}
	return r
}

// Log returns the log of the relay so far.
func (r *Relay) Log() string { return r.log.String() }

// Get returns the response body of a GET of the admin address. It fails the test if the status is not 200.
func (r *Relay) Get(path string) []byte {
	r.tb.Helper()
	return Page(r.tb, nil, r.Admin, path)
}

// Page returns the response body of a GET of an admin address by an HTTP client; by one that closes its connection if the
// client is nil. It fails the test if the status is not 200.
func Page(tb relaytest.TB, client *http.Client, admin, path string) []byte {
	tb.Helper()
	if client == nil {
		client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: relaytest.Patience}
	}
	resp, err := client.Get("http://" + admin + path)
	if err != nil {
		tb.Fatalf("relay: %v", err)
	}
	defer func() { _ = resp.Body.Close() }() // the body was read to its end
	page, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		tb.Fatalf("relay: %s: %s, %v\n%s", path, resp.Status, err, page)
	}
	return page
}

// A RelayProcess is a relay in a process of its own, which can be killed.
type RelayProcess struct {
	*Process

	// Addr (host:port) accepts gRPC clients; Admin is the admin address.
	Addr, Admin string
}

// StartRelay starts a relay process of the control plane at origin with further variables, and returns when it
// listens. It is killed when tb ends. The binary is that of [Command].
func StartRelay(tb relaytest.TB, origin string, env ...string) *RelayProcess {
	tb.Helper()
	return StartRelayOf(tb, Command(tb), origin, env...)
}

// StartRelayOf is [StartRelay] with another binary.
func StartRelayOf(tb relaytest.TB, binary, origin string, env ...string) *RelayProcess {
	tb.Helper()
	cmd := exec.Command(binary, "serve")
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "TENDER_") && !strings.HasPrefix(v, "OTEL_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(append(cmd.Env, variables(origin, env)...), "TENDER_LOG_FORMAT=json")
	p := &RelayProcess{Process: StartProcess(tb, "relay", cmd)}
	var listening struct {
		Listen string `json:"listen"`
		Admin  string `json:"admin_listen"`
	}
	if err := json.Unmarshal([]byte(p.AwaitLine(0, `"msg":"listening"`)), &listening); err != nil {
		tb.Fatalf("relay: %v", err)
	}
	p.Addr, p.Admin = listening.Listen, listening.Admin
	return p
}

// Get returns the response body of a GET of the admin address. It fails the test if the status is not 200.
func (p *RelayProcess) Get(path string) []byte {
	p.tb.Helper()
	return Page(p.tb, nil, p.Admin, path)
}

// built is the result of Command, which builds the binary once per test process.
var built struct {
	once sync.Once
	path string
	err  error
}

// Command builds cmd/tender from the working tree, with the flags of make build, and returns the path of the binary. So
// the packages that make build or make previous has compiled are not compiled again, and the binary is static. A package
// that calls Command must call [Clean] in its TestMain.
func Command(tb relaytest.TB) string {
	tb.Helper()
	dir := root(tb)
	built.once.Do(func() {
		built.path = filepath.Join(dir, ".bin", fmt.Sprint("tender-test-", os.Getpid()))
		if built.err = os.MkdirAll(filepath.Dir(built.path), 0o750); built.err != nil {
			return
		}
		build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", built.path, "./cmd/tender")
		build.Dir, build.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if built.err != nil {
		tb.Fatalf("build the relay: %v", built.err)
	}
	return built.path
}

// Clean removes the binary that [Command] built. A TestMain must call it after all tests.
func Clean() {
	if built.path != "" {
		_ = os.Remove(built.path) // a leftover file in .bin is harmless
	}
}

// Tender runs tender with arguments, such as status, and the admin address of the relay. It returns the output, and
// fails the test if the command fails.
func (r *Relay) Tender(args ...string) string {
	r.tb.Helper()
	return operate(r.tb, r.Admin, args)
}

// Tender is [Relay.Tender] for a relay process.
func (p *RelayProcess) Tender(args ...string) string {
	p.tb.Helper()
	return operate(p.tb, p.Admin, args)
}

func operate(tb relaytest.TB, admin string, args []string) string {
	tb.Helper()
	out, err := exec.Command(Command(tb), append(args, "--admin", admin)...).CombinedOutput()
	if err != nil {
		tb.Fatalf("tender %v: %v\n%s", args, err, out)
	}
	return string(out)
}
