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

// A namedBackend is a gRPC server that answers every call with its name.
type namedBackend struct {
	name string
	addr string

	called chan struct{} // receives for each call while isCalled waits
}

// newNamedBackend starts a backend that is stopped when the test ends.
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
	default: // isCalled does not wait
	}
	return call.SendMsg([]byte(b.name))
}

// isCalled waits for a number of further calls.
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

// A grpcProgram is a gRPC client in another language. It sends calls all the time, and prints the name of the backend
// when another one answers.
type grpcProgram struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.Closer
	lines chan string // lines of output; closed when the program has ended
	err   error       // result of cmd.Wait; read only after lines is closed

	mu     sync.Mutex
	stderr bytes.Buffer // guarded by mu
}

// A language returns the command that runs a client. It fails the test if a dependency is missing.
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
		t.Fatalf("system/interop/%s/node_modules does not match package-lock.json: run `make deps`", dir)
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatalf("run `make deps`: %v", err)
	}
	return []string{node, filepath.Join(dir, "client.js")}
}

// python runs the client of Debian's python3-grpcio, which uses the C core of gRPC.
func python(t *testing.T) []string {
	t.Helper()
	const interpreter = "/usr/bin/python3"
	if out, err := exec.CommandContext(t.Context(), interpreter, "-I", "-c", "import grpc").CombinedOutput(); err != nil {
		t.Fatalf("%s cannot import grpc: run `make deps`: %v\n%s", interpreter, err, out)
	}
	return []string{interpreter, "-I", "testdata/grpc-python/client.py"}
}

// newGRPCProgram starts a program that calls xds:///api. It uses the bootstrap in deploy/grpc, with the management
// server at xdsServer. It is killed when the test ends. If the test process dies, its standard input ends, and the
// program exits.
func newGRPCProgram(t *testing.T, lang language, xdsServer, id string) *grpcProgram {
	t.Helper()
	shipped, err := os.ReadFile("../../deploy/grpc/bootstrap.json")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("tender.example:18000", xdsServer, "shop-1", id).Replace(string(shipped))
	if text == string(shipped) {
		t.Fatalf("the bootstrap does not contain the placeholders of this test:\n%s", shipped)
	}
	bootstrap := certs.WriteFile(t, t.TempDir(), "bootstrap.json", []byte(text))
	command := append(lang(t), "xds:///api", "/tender.Test/Who")
	p := &grpcProgram{t: t, cmd: exec.Command(command[0], command[1:]...), lines: make(chan string)}
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "GRPC_XDS_BOOTSTRAP=" + bootstrap} // without proxy settings
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

// read passes lines of output to p.lines until the program ends.
func (p *grpcProgram) read(stdout io.Reader) {
	defer close(p.lines)
	for s := bufio.NewScanner(stdout); s.Scan(); {
		p.lines <- s.Text()
	}
	p.err = p.cmd.Wait()
}

// Write records the standard error of the program.
func (p *grpcProgram) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stderr.Write(b)
}

// moves waits for the next line of output. It must be the name of the backend to; a failed call prints another line.
func (p *grpcProgram) moves(to *namedBackend) {
	p.t.Helper()
	if line, ok := p.next(); !ok || line != to.name {
		p.t.Fatalf("%s: got %q, ended %v, want answers of %q\n%s", p.cmd, line, !ok, to.name, p.errors())
	}
}

// ends makes the program close its channel, and waits until it has exited with status 0.
func (p *grpcProgram) ends() {
	p.t.Helper()
	if err := p.stdin.Close(); err != nil {
		p.t.Fatal(err)
	}
	if line, ok := p.next(); ok || p.err != nil {
		p.t.Fatalf("%s: printed %q, ended with %v, want no output and no error\n%s", p.cmd, line, p.err, p.errors())
	}
}

// next returns the next line of output, or false if the program has ended.
func (p *grpcProgram) next() (string, bool) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), relaytest.Patience)
	defer cancel()
	select {
	case line, ok := <-p.lines:
		return line, ok
	case <-ctx.Done():
		p.t.Fatalf("%s: timeout waiting for output\n%s", p.cmd, p.errors())
		return "", false
	}
}

// errors returns the standard error of the program so far.
func (p *grpcProgram) errors() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.TrimSpace(p.stderr.String())
}
