package interop_test

import (
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/envoytest"
)

// Programs that make interop builds.
var (
	envoyGateway  = flag.String("envoy-gateway", "", "the `program` Envoy Gateway")
	exampleServer = flag.String("example", "", "the `program` that is the example server of go-control-plane")
	rateLimiter   = flag.String("ratelimit", "", "the `program` envoyproxy/ratelimit")
	mosn          = flag.String("mosn", "", "the `program` MOSN")
)

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	envoytest.Clean()
	os.Exit(code)
}

// need skips the test if the flag for the program is empty. It fails the test if the flag names a program that cannot
// be run.
func need(t *testing.T, program *string) {
	t.Helper()
	if *program == "" {
		t.Skip("only `make interop` runs this test")
	}
	if _, err := exec.LookPath(*program); err != nil {
		t.Fatalf("run `make interop`: %v", err)
	}
}

// interval is the time between two requests of a Load.
const interval = 5 * time.Millisecond

// variants maps the protocol variants of Envoys to their bootstraps.
var variants = map[string]string{"delta": "delta-ads.yaml", "sotw": "sotw-ads.yaml"}

// eachVariant runs a test for one variant after the other, because some programs listen on fixed ports.
func eachVariant(t *testing.T, test func(t *testing.T, bootstrap string)) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(variants)) {
		t.Run(name, func(t *testing.T) { test(t, variants[name]) })
	}
}

// A program is a running program of another project, such as MOSN.
type program struct {
	*envoytest.Process
	t *testing.T
}

// start starts a program in a temporary home directory. Its environment contains only PATH, directories, and env.
func start(t *testing.T, path string, env []string, args ...string) *program {
	t.Helper()
	cmd, home := exec.Command(path, args...), t.TempDir()
	cmd.Dir = home
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home}, env...)
	return &program{envoytest.StartProcess(t, filepath.Base(path), cmd), t}
}

// listens waits until the program accepts connections at an address.
func (p *program) listens(address string) {
	p.t.Helper()
	p.Await("listener at "+address, func() error {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// free fails the test if one of the ports is in use. It is for programs whose ports cannot be configured.
func free(t *testing.T, who string, ports ...int) {
	t.Helper()
	for _, port := range ports {
		l, err := net.Listen("tcp", fmt.Sprint(":", port))
		if err != nil {
			t.Fatalf("%s listens on the fixed port %d: stop the program that uses it: %v", who, port, err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// replace writes a file atomically, so that a program that watches it never reads an incomplete file.
func replace(t *testing.T, path, content string) {
	t.Helper()
	next := filepath.Join(filepath.Dir(filepath.Dir(path)), "next")
	if err := os.WriteFile(next, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
}

// answers waits until a backend has answered 20 further requests of a load.
func answers(load *envoytest.Load, b *envoytest.Backend) {
	before := load.Report().Answers[b.Name]
	load.Await("answers of "+b.Name, func(r envoytest.Report) bool { return r.Answers[b.Name] >= before+20 })
}

// served stops a load. It fails the test if a request failed, or if an Envoy rejected an update or timed out waiting
// for one.
func served(t *testing.T, load *envoytest.Load, envoys ...*envoytest.Envoy) {
	t.Helper()
	if r := load.Stop(); len(r.Failures) > 0 {
		t.Error(r)
	}
	for _, e := range envoys {
		if stats := e.Stats(envoytest.Judged); stats.Sum("update_rejected")+stats.Sum("init_fetch_timeout") > 0 {
			t.Error(stats)
		}
	}
}

// portOf returns the port of an address.
func portOf(address string) string { return address[strings.LastIndex(address, ":")+1:] }
