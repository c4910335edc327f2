package faults_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest"
)

// TestMain runs the tests, or the control plane or gRPC client that they start as a process
// of its own.
func TestMain(m *testing.M) {
	var err error
	switch client := os.Getenv(grpcClientEnv); {
	case os.Getenv(controlPlaneEnv) != "":
		err = runControlPlane(os.Stdin, os.Stdout)
	case client != "":
		err = runGRPCClient(client, os.Stdin, os.Stderr)
	default:
		os.Exit(runTests(m))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func runTests(m *testing.M) int {
	code := m.Run()
	http.DefaultClient.CloseIdleConnections()
	if err := goleak.Find(); err != nil && code == 0 { // by no test alone: they run at the same time
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if binary.dir != "" {
		_ = os.RemoveAll(binary.dir) // a temporary directory that stays does no harm
	}
	return code
}

// binary is the command, built once.
var binary struct {
	once sync.Once
	dir  string
	err  error
}

func buildBinary() {
	if binary.dir, binary.err = os.MkdirTemp("", "tender-faults"); binary.err != nil {
		return
	}
	out, err := exec.Command("go", "build", "-o", filepath.Join(binary.dir, "tender"), "../../cmd/tender").CombinedOutput()
	if err != nil {
		binary.err = fmt.Errorf("go build: %w\n%s", err, out)
	}
}

// tender returns the path of the built command.
func tender(t *testing.T) string {
	t.Helper()
	if binary.once.Do(buildBinary); binary.err != nil {
		t.Fatal(binary.err)
	}
	return filepath.Join(binary.dir, "tender")
}

// A process is one that a test started, and what it writes by lines.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	ended chan struct{} // closed once it has

	mu    sync.Mutex
	lines []string      // guarded by mu
	more  chan struct{} // guarded by mu; closed at the next line
}

// newProcess starts a command whose lines are read from its standard output, or its
// standard error. It is killed when the test ends, if it lives then.
func newProcess(t *testing.T, cmd *exec.Cmd, stderr bool) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, ended: make(chan struct{}), more: make(chan struct{})}
	pipe := cmd.StdoutPipe
	if stderr {
		pipe = cmd.StderrPipe
	}
	out, err := pipe()
	if err == nil {
		p.in, err = cmd.StdinPipe()
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	go p.read(out) // ends with the process
	t.Cleanup(p.kill)
	return p
}

func (p *process) read(out io.Reader) {
	defer close(p.ended)
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		p.mu.Lock()
		p.lines = append(p.lines, lines.Text())
		close(p.more)
		p.more = make(chan struct{})
		p.mu.Unlock()
	}
	_ = p.cmd.Wait() // killed, most often
}

// kill ends the process as a power cut does, and waits until it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
}

// mark returns a place in what the process has written: its end.
func (p *process) mark() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.lines)
}

// await waits for a line after mark that holds a text, and returns it.
func (p *process) await(mark int, what string) string {
	p.t.Helper()
	late := time.After(2 * relaytest.Patience)
	for {
		p.mu.Lock()
		lines, more := p.lines, p.more
		p.mu.Unlock()
		for _, line := range lines[mark:] {
			if strings.Contains(line, what) {
				return line
			}
		}
		select {
		case <-more:
		case <-p.ended:
			p.t.Fatalf("%v ended without %q:\n%s", p.cmd.Args, what, strings.Join(lines[mark:], "\n"))
		case <-late:
			p.t.Fatalf("%v did not write %q:\n%s", p.cmd.Args, what, strings.Join(lines[mark:], "\n"))
		}
	}
}

// A relayProcess is a tender serve.
type relayProcess struct {
	*process
	met
}

// met is where a relay is met: by clients, and by operators.
type met struct {
	tb          *testing.T
	addr, admin string
}

// serve starts a relay with these variables and no others of ours.
func serve(t *testing.T, env ...string) *relayProcess {
	t.Helper()
	cmd := exec.Command(tender(t), "serve")
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "TENDER_") && !strings.HasPrefix(v, "OTEL_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "TENDER_LISTEN=127.0.0.1:0", "TENDER_ADMIN_LISTEN=127.0.0.1:0", "TENDER_LOG_FORMAT=json")
	cmd.Env = append(cmd.Env, env...)
	r := &relayProcess{process: newProcess(t, cmd, true)}
	var listening struct {
		Listen string `json:"listen"`
		Admin  string `json:"admin_listen"`
	}
	if err := json.Unmarshal([]byte(r.await(0, `"listening"`)), &listening); err != nil {
		t.Fatal(err)
	}
	r.met = met{t, listening.Listen, listening.Admin}
	return r
}

// run runs a relay in the test itself, with what variables cannot say.
func run(t *testing.T, opts relay.Options, env ...string) (*relay.Relay, met) {
	t.Helper()
	cfg, err := relay.LoadConfig(append([]string{"TENDER_LISTEN=127.0.0.1:0", "TENDER_ADMIN_LISTEN=127.0.0.1:0"}, env...))
	if err != nil {
		t.Fatal(err)
	}
	r, err := relay.New(cfg, opts)
	if err != nil {
		t.Fatal(err)
	}
	relaytest.Run(t, r)
	return r, met{t, r.Addrs()[0].String(), r.AdminAddrs()[0].String()}
}

// client returns a client of the relay on a connection of its own.
func (r met) client(v relaytest.Variant, id string) *relaytest.Client {
	r.tb.Helper()
	return relaytest.NewClient(r.tb, r.conn(), relaytest.ClientOptions{Variant: v, AutoAck: true, Node: relaytest.EnvoyNode(id)})
}

func (r met) conn() *grpc.ClientConn {
	r.tb.Helper()
	return connect(r.tb, r.addr)
}

func connect(t *testing.T, addr string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// page gets a page of the relay's admin address.
func (r met) page(path string) []byte {
	r.tb.Helper()
	resp, err := http.Get("http://" + r.admin + path)
	if err != nil {
		r.tb.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	page, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		r.tb.Fatalf("%s: %v, %v\n%s", path, resp.Status, err, page)
	}
	return page
}

// counts fails the test unless metrics have these values.
func (r met) counts(want ...string) {
	r.tb.Helper()
	page := r.page("/metrics")
	for _, line := range want {
		if !counted(page, line) {
			r.tb.Errorf("the metrics have no %s:\n%s", line, page)
		}
	}
}

// counted reports whether metrics have a line that a regular expression matches.
func counted(page []byte, line string) bool {
	return regexp.MustCompile(`(?m)^` + line + `$`).Match(page)
}

// A controlPlane is a go-control-plane in a process of its own.
type controlPlane struct {
	*process
	addr string
}

func newControlPlane(t *testing.T) *controlPlane {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), controlPlaneEnv+"=1")
	p := &controlPlane{process: newProcess(t, cmd, false)}
	p.addr = strings.TrimPrefix(p.await(0, "serving "), "serving ")
	return p
}

// change has the endpoints of cluster a be of a port, and waits until they are.
func (p *controlPlane) change(port int) {
	p.t.Helper()
	mark := p.mark()
	if _, err := fmt.Fprintln(p.in, port); err != nil {
		p.t.Fatal(err)
	}
	p.await(mark, fmt.Sprint("changed ", port))
}

// within bounds a wait that may take a while.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), d, errors.New("too late"))
	t.Cleanup(cancel)
	return ctx
}

// subscribe asks for all that the control plane has, as an Envoy does.
func subscribe(c *relaytest.Client) {
	c.Subscribe(relaytest.ClusterType)
	c.Subscribe(relaytest.EndpointType, edsNames...)
	c.Subscribe(relaytest.ListenerType)
	c.Subscribe(relaytest.RouteType, "route")
}

// served waits until clients have all that there is, and the endpoints of cluster a are
// of a port.
func served(t *testing.T, port int, clients ...*relaytest.Client) {
	t.Helper()
	want := relaytest.DigestOf(relaytest.Endpoints("a", fmt.Sprint("127.0.0.1:", port)))
	for _, c := range clients {
		c.WaitState(t.Context(), func(s relaytest.State) bool {
			return len(s[relaytest.ClusterType]) == clusters && len(s[relaytest.EndpointType]) == len(edsNames) &&
				len(s[relaytest.ListenerType]) == 1 && len(s[relaytest.RouteType]) == 1 &&
				s.Digest(relaytest.EndpointType, "a") == want
		})
	}
}
