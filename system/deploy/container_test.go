package deploy_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
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
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v")
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

// runContainer runs the process of a container, from its JSON, and returns the exit code.
func runContainer(text string) int {
	var c container
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	all := func(_, _ string) (bool, error) { return true, nil }
	if !testing.RunTests(all, []testing.InternalTest{{Name: "container", F: c.run}}) {
		return 1
	}
	return 0
}

// run starts the control plane and the relay, and stops them at the end of standard input.
func (c container) run(t *testing.T) {
	if err := enableLoopback(); err != nil {
		t.Fatal(err)
	}
	root := c.mountRoot(t)
	newIstiod(t, c.Origin)
	cmd := exec.Command("/usr/local/bin/tender", c.Args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = "/", c.Env, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.awaitProbe(t)
	if c.Refused == "" {
		c.checkServed(t)
	}
	fmt.Println("\nready")
	_, _ = io.Copy(io.Discard, os.Stdin) // until the caller of startContainer stops it
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the relay failed: %v", err)
	}
	for path, files := range c.Volumes {
		if kept, err := filepath.Glob(filepath.Join(root, path, "snapshots", "*")); c.Refused == "" && files == nil && len(kept) == 0 {
			t.Errorf("the volume at %s has no snapshot (%v)", path, err)
		}
	}
}

// mountRoot mounts the root of a container, with the files of the image that the relay needs, /etc/hosts with the
// control plane, and the volumes. Only the volumes are writable.
func (c container) mountRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	mount := func(source, target, kind string, flags uintptr) {
		if err := unix.Mount(source, target, kind, flags, ""); err != nil {
			t.Fatalf("mount %s %s: %v", kind, target, err)
		}
	}
	place := func(name, content string) string {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, path, content)
		return path
	}
	mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE)
	mount("root", root, "tmpfs", 0)
	host, _, _ := strings.Cut(c.Origin, ":")
	place("etc/hosts", "127.0.0.1 localhost "+host+"\n")
	mount(c.Binary, place("usr/local/bin/tender", ""), "", unix.MS_BIND)
	for path, files := range c.Volumes {
		for name, content := range files {
			place(filepath.Join(path, name), content)
		}
		if files == nil {
			volume := filepath.Join(root, path)
			if err := os.MkdirAll(volume, 0o755); err != nil {
				t.Fatal(err)
			}
			mount("volume", volume, "tmpfs", 0)
		}
	}
	mount("", root, "", unix.MS_REMOUNT|unix.MS_RDONLY)
	t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) }) // if this fails, the end of the process unmounts it
	return root
}

// awaitProbe polls the readiness probe until it succeeds, or fails with the text c.Refused.
func (c container) awaitProbe(t *testing.T) {
	t.Helper()
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
	t.Fatalf("%s answers %s", c.Ready, last)
}

// checkServed checks that a client receives the resources of the control plane.
func (c container) checkServed(t *testing.T) {
	t.Helper()
	conn, err := grpc.NewClient(fmt.Sprintf("127.0.0.1:%d", c.Xds), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	client := relaytest.NewClient(t, conn, relaytest.ClientOptions{AutoAck: true})
	defer client.Close()
	client.Subscribe(relaytest.ClusterType)
	client.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(relaytest.ClusterType, "web") })
}

// newIstiod starts a control plane with one cluster. It checks Nodes like istiod, including those of probes.
func newIstiod(t *testing.T, address string) {
	t.Helper()
	_, port, _ := strings.Cut(address, ":")
	origin := relaytest.NewOrigin(t, relaytest.OriginOptions{
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
