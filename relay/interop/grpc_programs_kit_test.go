package interop_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
	"github.com/xdstender/tender/relay/relaytest/codec"
)

// A namedBackend is a gRPC server that answers every call by its name.
type namedBackend struct {
	name string
	addr string

	called chan struct{} // a call was answered while somebody waited for one
}

// newNamedBackend starts a backend that lives until the test ends.
func newNamedBackend(t *testing.T, name string) *namedBackend {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &namedBackend{name: name, addr: l.Addr().String(), called: make(chan struct{})}
	s := grpc.NewServer(grpc.ForceServerCodecV2(codec.Bytes{}), grpc.UnknownServiceHandler(b.answer))
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }() // awaited below
	t.Cleanup(func() {
		s.Stop()
		if err := <-served; err != nil {
			t.Errorf("backend %s ended: %v", name, err)
		}
	})
	return b
}

func (b *namedBackend) answer(_ any, call grpc.ServerStream) error {
	var question []byte
	if err := call.RecvMsg(&question); err != nil {
		return err
	}
	select {
	case b.called <- struct{}{}:
	default: // nobody waits
	}
	return call.SendMsg([]byte(b.name))
}

// isCalled waits for some more calls.
func (b *namedBackend) isCalled(t *testing.T, times int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), relaytest.Patience)
	defer cancel()
	for i := range times {
		select {
		case <-b.called:
		case <-ctx.Done():
			t.Fatalf("backend %s was called %d times, want %d", b.name, i, times)
		}
	}
}

// A grpcProgram is a gRPC client in another language, which calls all the time and
// says when another backend answers.
type grpcProgram struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.Closer
	lines chan string // closed when it has ended
	err   error       // how it ended; to be read after lines was closed

	mu     sync.Mutex
	stderr bytes.Buffer // guarded by mu
}

// A language is how to run a program: what it needs must be there.
type language func(t *testing.T) (command []string)

// nodeJS runs the client of @grpc/grpc-js-xds.
func nodeJS(t *testing.T) []string {
	t.Helper()
	const dir = "testdata/grpc-js"
	want, err := os.ReadFile(filepath.Join(dir, "package-lock.json"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "node_modules", ".installed")); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("relay/%s/node_modules is not what package-lock.json says: run `make deps`", dir)
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatalf("run `make deps`: %v", err)
	}
	return []string{node, filepath.Join(dir, "client.js")}
}

// python runs the client of Debian's python3-grpcio: gRPC's core in C.
func python(t *testing.T) []string {
	t.Helper()
	const interpreter = "/usr/bin/python3"
	if out, err := exec.CommandContext(t.Context(), interpreter, "-I", "-c", "import grpc").CombinedOutput(); err != nil {
		t.Fatalf("%s cannot import grpc: run `make deps`: %v\n%s", interpreter, err, out)
	}
	return []string{interpreter, "-I", "testdata/grpc-python/client.py"}
}

// newGRPCProgram starts a program that calls xds:///api, by the bootstrap that we ship and whose
// management server is at xdsServer. It is killed when the test ends; and it ends by itself if the test
// process dies, for then its input ends.
func newGRPCProgram(t *testing.T, lang language, xdsServer, id string) *grpcProgram {
	t.Helper()
	shipped, err := os.ReadFile("../../deploy/grpc/bootstrap.json")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("tender.example:18000", xdsServer, "shop-1", id).Replace(string(shipped))
	if text == string(shipped) {
		t.Fatalf("the bootstrap has other addresses than this test knows:\n%s", shipped)
	}
	bootstrap := certs.WriteFile(t, t.TempDir(), "bootstrap.json", []byte(text))
	command := append(lang(t), "xds:///api", "/tender.Test/Who")
	p := &grpcProgram{t: t, cmd: exec.Command(command[0], command[1:]...), lines: make(chan string)}
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "GRPC_XDS_BOOTSTRAP=" + bootstrap} // no proxies
	p.cmd.Stderr = p
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdin = stdin
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.read(stdout) // awaited by the cleanup
	t.Cleanup(func() {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // an error means that it has ended
		for range p.lines {
		}
	})
	return p
}

func (p *grpcProgram) read(stdout io.Reader) {
	defer close(p.lines)
	for s := bufio.NewScanner(stdout); s.Scan(); {
		p.lines <- s.Text()
	}
	p.err = p.cmd.Wait()
}

// Write keeps what the program says on its standard error.
func (p *grpcProgram) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stderr.Write(b)
}

// moves waits until another backend answers, which must be this one, without a
// failed call before.
func (p *grpcProgram) moves(to *namedBackend) {
	p.t.Helper()
	if line, ok := p.next(); !ok || line != to.name {
		p.t.Fatalf("%s: got %q, ended %v, want answers of %q\n%s", p.cmd, line, !ok, to.name, p.errors())
	}
}

// ends has the program close its channel, and waits until it has ended well.
func (p *grpcProgram) ends() {
	p.t.Helper()
	if err := p.stdin.Close(); err != nil {
		p.t.Fatal(err)
	}
	if line, ok := p.next(); ok || p.err != nil {
		p.t.Fatalf("%s: said %q, ended with %v, want it to end in silence\n%s", p.cmd, line, p.err, p.errors())
	}
}

// next returns the next line, or false if the program has ended.
func (p *grpcProgram) next() (string, bool) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), relaytest.Patience)
	defer cancel()
	select {
	case line, ok := <-p.lines:
		return line, ok
	case <-ctx.Done():
		p.t.Fatalf("%s says nothing\n%s", p.cmd, p.errors())
		return "", false
	}
}

func (p *grpcProgram) errors() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.TrimSpace(p.stderr.String())
}
