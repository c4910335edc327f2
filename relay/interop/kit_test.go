package interop_test

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
)

// What make interop builds.
var (
	envoyGateway  = flag.String("envoy-gateway", "", "the `program` Envoy Gateway")
	exampleServer = flag.String("example", "", "the `program` that go-control-plane has as its example")
	rateLimiter   = flag.String("ratelimit", "", "the `program` envoyproxy/ratelimit")
	mosn          = flag.String("mosn", "", "the `program` MOSN")
)

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	envoytest.Clean()
	os.Exit(code)
}

// need leaves the test out if the flag that it needs is not given. A program that is named and cannot be run
// fails the test.
func need(t *testing.T, program *string) {
	t.Helper()
	if *program == "" {
		t.Skip("make interop runs this test")
	}
	if _, err := exec.LookPath(*program); err != nil {
		t.Fatalf("run `make interop`: %v", err)
	}
}

// interval is the time between two requests of a load.
const interval = 5 * time.Millisecond

// variants are how the Envoys ask the relay: the bootstrap of each.
var variants = map[string]string{"delta": "delta-ads.yaml", "sotw": "sotw-ads.yaml"}

// eachVariant runs a test for one variant after the other: some programs listen at fixed ports.
func eachVariant(t *testing.T, test func(t *testing.T, bootstrap string)) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(variants)) {
		t.Run(name, func(t *testing.T) { test(t, variants[name]) })
	}
}

// A program is a running process that is no Envoy and no relay.
type program struct {
	t     *testing.T
	cmd   *exec.Cmd
	ended chan struct{} // closed when the process has ended

	mu  sync.Mutex
	log bytes.Buffer // guarded by mu
}

// start starts a program with variables and no others of ours. It is killed when the test ends; if the test has failed
// by then, what the program has written is printed.
func start(t *testing.T, path string, env []string, args ...string) *program {
	t.Helper()
	p := &program{t: t, cmd: exec.Command(path, args...), ended: make(chan struct{})}
	home := t.TempDir()
	p.cmd.Dir = home
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home}, env...)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.SysProcAttr = withParent()
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", filepath.Base(path), err)
	}
	go func() { // ends with the process
		defer close(p.ended)
		_ = p.cmd.Wait() // killed, most often
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s has written:\n%s", filepath.Base(path), p)
		}
	})
	return p
}

// Write keeps what the program writes.
func (p *program) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *program) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// says returns an error unless the program has written a text.
func (p *program) says(text string) error {
	if !strings.Contains(p.String(), text) {
		return fmt.Errorf("it has not written %q", text)
	}
	return nil
}

// kill ends the program with SIGKILL, and waits for its end. It may be called again.
func (p *program) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
}

// await waits until met returns nil: what other programs do, they do not announce. It fails the test, with the last
// error, after relaytest.Patience, or when the program has ended.
func (p *program) await(what string, met func() error) {
	p.t.Helper()
	late := time.NewTimer(relaytest.Patience)
	defer late.Stop()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		err := met()
		if err == nil {
			return
		}
		select {
		case <-again.C:
		case <-p.ended:
			p.t.Fatalf("%s ended; awaited: %s", filepath.Base(p.cmd.Path), what)
		case <-late.C:
			p.t.Fatalf("%s: no %s after %v: %v", filepath.Base(p.cmd.Path), what, relaytest.Patience, err)
		}
	}
}

// listens waits until the program takes connections at an address.
func (p *program) listens(address string) {
	p.t.Helper()
	p.await("listener at "+address, func() error {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// free fails the test if something listens at a port that a program cannot be told to leave alone.
func free(t *testing.T, who string, ports ...int) {
	t.Helper()
	for _, port := range ports {
		l, err := net.Listen("tcp", fmt.Sprint(":", port))
		if err != nil {
			t.Fatalf("%s listens at port %d, and has no setting for it: stop what listens there: %v", who, port, err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// replace writes a file under another name and renames it, so that who watches the file never sees a part of it.
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

// answers waits until a backend answers requests of a load, and so many more.
func answers(load *envoytest.Load, b *envoytest.Backend) {
	before := load.Report().Answers[b.Name]
	load.Await("answers of "+b.Name, func(r envoytest.Report) bool { return r.Answers[b.Name] >= before+20 })
}

// served ends a load, of which no request may have failed, and holds that the Envoy has refused nothing.
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
