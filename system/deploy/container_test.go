package deploy_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/relay/relaytest"
)

// A container is the container of a relay as a kubelet would start it, with a control plane at the configured address.
// It has its own network namespace and root, so that ports, addresses and paths are those of the pod.
type container struct {
	Root    string // directory on which the root is mounted
	Binary  string
	Args    []string
	Env     []string
	Volumes map[string]map[string]string // files by mount path; nil is an empty writable volume
	Origin  string                       // host:port
	Xds     int                          // port for clients
	Ready   string                       // URL of the readiness probe
	Refused string                       // text of the expected failure of the probe; empty if it must succeed
}

// containerVariable is the environment variable with the container in JSON, for a process that startContainer starts.
const containerVariable = "TEST_CONTAINER"

// A running is a container that is ready.
type running struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.Closer
	lines *bufio.Scanner
	log   *strings.Builder
}

// startContainer starts a container as a process of the test binary in new namespaces, and waits for its readiness
// probe.
func startContainer(t *testing.T, c container) *running {
	t.Helper()
	c.Root = t.TempDir()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), containerVariable+"="+string(text))
	cmd.SysProcAttr = inNamespaces(unix.CLONE_NEWNS | unix.CLONE_NEWNET)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatalf("start a process in new namespaces: %v", err)
	}
	r := &running{t: t, cmd: cmd, stdin: stdin, lines: bufio.NewScanner(stdout), log: &strings.Builder{}}
	for r.lines.Scan() {
		if r.lines.Text() == "ready" {
			return r
		}
		fmt.Fprintln(r.log, r.lines.Text())
	}
	t.Fatalf("the container does not become ready: %v\n%s", cmd.Wait(), r.log)
	return nil
}

// stop stops a container like a kubelet. It fails the test if the test in the container has failed.
func (r *running) stop() {
	r.t.Helper()
	_ = r.stdin.Close() // makes the process stop its relay
	for r.lines.Scan() {
		fmt.Fprintln(r.log, r.lines.Text())
	}
	if err := r.cmd.Wait(); err != nil {
		r.t.Errorf("the container: %v\n%s", err, r.log)
	}
}

// A process is the TB of the process of a container. A failure ends the process, and thereby the relay.
type process struct{ cleanups []func() }

func (*process) Helper()                  {}
func (*process) Context() context.Context { return context.Background() }
func (p *process) Cleanup(f func())       { p.cleanups = append(p.cleanups, f) }

func (p *process) Errorf(format string, args ...any) { p.Fatalf(format, args...) }

func (*process) Fatalf(format string, args ...any) {
	fmt.Printf(format+"\n", args...)
	os.Exit(1)
}

// end calls the cleanups.
func (p *process) end() {
	for _, f := range slices.Backward(p.cleanups) {
		f()
	}
}

// runContainer is the process of a container, which it reads from JSON. It starts the control plane and the relay, and
// stops them at the end of standard input.
func runContainer(text string) {
	p := new(process)
	defer p.end()
	var c container
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		p.Fatalf("container %s: %v", text, err)
	}
	if err := enableLoopback(); err != nil {
		p.Fatalf("enable the loopback interface: %v", err)
	}
	c.mountRoot(p)
	newIstiod(p, c.Origin)
	cmd := exec.Command("/usr/local/bin/tender", c.Args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = "/", c.Env, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: c.Root, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		p.Fatalf("start the relay: %v", err)
	}
	c.awaitProbe(p)
	if c.Refused == "" {
		c.checkServed(p)
	}
	fmt.Println("\nready")
	_, _ = io.Copy(io.Discard, os.Stdin) // until the caller of startContainer stops it
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.Fatalf("stop the relay: %v", err)
	}
	if err := cmd.Wait(); err != nil {
		p.Fatalf("the relay failed: %v", err)
	}
	for path, files := range c.Volumes {
		if kept, err := filepath.Glob(filepath.Join(c.Root, path, "snapshots", "*")); c.Refused == "" && files == nil && len(kept) == 0 {
			p.Fatalf("the volume at %s has no snapshot (%v)", path, err)
		}
	}
}

// mountRoot mounts the root of a container, with the files of the image that the relay needs, /etc/hosts with the
// control plane, and the volumes. Only the volumes are writable. The end of the process unmounts it.
func (c container) mountRoot(p *process) {
	mount := func(source, target, kind string, flags uintptr) {
		if err := unix.Mount(source, target, kind, flags, ""); err != nil {
			p.Fatalf("mount %s %s: %v", kind, target, err)
		}
	}
	place := func(name, content string) string {
		path := filepath.Join(c.Root, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = os.WriteFile(path, []byte(content), 0o600)
		}
		if err != nil {
			p.Fatalf("write a file of the root: %v", err)
		}
		return path
	}
	mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE)
	mount("root", c.Root, "tmpfs", 0)
	host, _, _ := strings.Cut(c.Origin, ":")
	place("etc/hosts", "127.0.0.1 localhost "+host+"\n")
	mount(c.Binary, place("usr/local/bin/tender", ""), "", unix.MS_BIND)
	for path, files := range c.Volumes {
		for name, content := range files {
			place(filepath.Join(path, name), content)
		}
		if files == nil {
			volume := filepath.Join(c.Root, path)
			if err := os.MkdirAll(volume, 0o755); err != nil {
				p.Fatalf("make a volume: %v", err)
			}
			mount("volume", volume, "tmpfs", 0)
		}
	}
	mount("", c.Root, "", unix.MS_REMOUNT|unix.MS_RDONLY)
}

// awaitProbe polls the readiness probe until it succeeds, or fails with the text c.Refused.
func (c container) awaitProbe(p *process) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: relaytest.Patience}
	last := ""
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(relaytest.Patience); time.Now().Before(end); <-tick.C {
		resp, err := client.Get(c.Ready)
		if err != nil {
			last = err.Error()
			continue
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		last = resp.Status + " " + string(body)
		if c.Refused == "" && resp.StatusCode == http.StatusOK || c.Refused != "" && strings.Contains(last, c.Refused) {
			return
		}
	}
	p.Fatalf("%s answers %s", c.Ready, last)
}

// checkServed checks that a client receives the resources of the control plane.
func (c container) checkServed(p *process) {
	conn, err := grpc.NewClient(fmt.Sprintf("127.0.0.1:%d", c.Xds), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.Fatalf("connect to the relay: %v", err)
	}
	defer func() { _ = conn.Close() }()
	client := relaytest.NewClient(p, conn, relaytest.ClientOptions{AutoAck: true})
	defer client.Close()
	client.Subscribe(relaytest.ClusterType)
	client.WaitState(p.Context(), func(s relaytest.State) bool { return s.Has(relaytest.ClusterType, "web") })
}

// newIstiod starts a control plane with one cluster. It checks Nodes like istiod, including those of probes.
func newIstiod(p *process, address string) {
	_, port, _ := strings.Cut(address, ":")
	origin := relaytest.NewOrigin(p, relaytest.OriginOptions{
		Address: "127.0.0.1:" + port, ServerOptions: []grpc.ServerOption{grpc.StreamInterceptor(refuseNodes)},
	})
	origin.Put(relaytest.Cluster("web"))
}

// refuseNodes is an interceptor that ends streams whose Node istiod would reject.
func refuseNodes(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	checked := &checkedStream{ServerStream: stream}
	err := handler(srv, checked)
	if checked.refused != nil {
		return status.Error(codes.InvalidArgument, checked.refused.Error())
	}
	return err
}

// A checkedStream fails at the first request whose Node istiod would reject.
type checkedStream struct {
	grpc.ServerStream
	refused error // owned by the receiving goroutine until the handler has returned
}

// RecvMsg implements grpc.ServerStream.
func (s *checkedStream) RecvMsg(message any) error {
	if err := s.ServerStream.RecvMsg(message); err != nil {
		return err
	}
	if request, ok := message.(interface{ GetNode() *corepb.Node }); ok && request.GetNode() != nil {
		s.refused = checkIstioNode(request.GetNode().GetId())
	}
	return s.refused
}
