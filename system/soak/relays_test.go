package soak

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// A server is one of the two relays.
type server interface {
	// start starts the relay unless it runs.
	start()
	// drain begins a graceful shutdown. wait blocks until the relay has ended.
	drain() (wait func())
	operator() operator
}

// A process is a relay in a process of its own, which can be killed. It keeps its addresses when it is started again.
type process struct {
	t       *testing.T
	binary  string
	env     []string
	address string
	admin   operator
	views   string // snapshot directory
	clock   clock
	expire  func() // allows clients to lose resources with a TTL

	cmd   *exec.Cmd
	log   *tail
	ended chan struct{} // closed when cmd has ended; nil before the first start
}

// newProcess builds the relay with a settable clock and starts it. The process is killed when the test ends.
func newProcess(t *testing.T, env []string, expire func()) *process {
	t.Helper()
	p := &process{t: t, expire: expire, binary: filepath.Join(t.TempDir(), "tender"), address: proxy.FreeAddress(t), admin: operator(proxy.FreeAddress(t)), views: filepath.Join(t.TempDir(), "views")}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay(t), "-o", p.binary, "../../cmd/tender").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "TENDER_") {
			p.env = append(p.env, v)
		}
	}
	p.env = append(append(p.env, env...), "TENDER_NODE_ID=tender/process", "TENDER_LISTEN="+p.address, "TENDER_ADMIN_LISTEN="+string(p.admin),
		"TENDER_SNAPSHOT_DIR="+p.views, "TENDER_LOG_FORMAT=text")
	p.makeViews()
	p.start()
	t.Cleanup(func() {
		p.kill()
		for _, f := range p.clock.ends {
			_ = f.Close()
		}
		if t.Failed() {
			t.Logf("end of the log of the relay process:\n%s", p.log)
		}
	})
	return p
}

// start starts the relay, unless it runs, and waits until it listens.
func (p *process) start() {
	p.t.Helper()
	if runs(p.ended) {
		return
	}
	if p.clock.moved { // by the new clock, restored resources may have expired
		p.expire()
	}
	p.clock.moved = false
	ends, env, err := p.clock.pipes()
	if err != nil {
		p.t.Fatal(err)
	}
	p.cmd, p.ended, p.log = exec.Command(p.binary, "serve"), make(chan struct{}), &tail{said: make(chan struct{})}
	p.cmd.Env, p.cmd.Stderr, p.cmd.ExtraFiles = append(slices.Clone(p.env), env), p.log, ends
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	for _, f := range ends {
		_ = f.Close() // the process has inherited its own descriptors
	}
	cmd, ended := p.cmd, p.ended
	go func() { // ends with the process
		defer close(ended)
		_ = cmd.Wait() // the process may be killed, so its exit status does not matter
	}()
	ctx, cancel := context.WithTimeout(p.t.Context(), relaytest.Patience)
	defer cancel()
	select {
	case <-p.log.said:
		return
	case <-p.ended:
	case <-ctx.Done():
	}
	p.t.Fatalf("the relay does not listen:\n%s", p.log)
}

// runs reports whether a relay runs. ended is nil before its first start, and closed when it has ended.
func runs(ended chan struct{}) bool {
	select {
	case <-ended:
		return false
	default:
		return ended != nil
	}
}

// kill kills the process and waits until it has ended.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // the process may have ended
	<-p.ended
}

// forget removes the snapshot, so that the relay starts without state. The process must not run.
func (p *process) forget() {
	p.t.Helper()
	if err := os.RemoveAll(p.views); err != nil {
		p.t.Fatal(err)
	}
	p.makeViews()
}

// makeViews creates the snapshot directory.
func (p *process) makeViews() {
	p.t.Helper()
	if err := os.MkdirAll(p.views, 0o700); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) drain() (wait func()) {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // the process may have ended
	ended := p.ended
	return func() { <-ended }
}

func (p *process) operator() operator { return p.admin }

// A tail is a log writer that keeps the last lines and counts some messages of the relay.
type tail struct {
	mu    sync.Mutex
	lines []string // guarded by mu; at most tailLines
	moves int      // guarded by mu; number of changes to another address of an origin
	once  sync.Once
	said  chan struct{} // closed when the relay has logged that it listens
}

// tailLines is the number of lines that a tail keeps.
const tailLines = 60

func (l *tail) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, strings.TrimRight(string(b), "\n"))
	l.lines = l.lines[max(0, len(l.lines)-tailLines):]
	if bytes.Contains(b, []byte("changing to the next address")) {
		l.moves++
	}
	if bytes.Contains(b, []byte("msg=listening")) {
		l.once.Do(func() { close(l.said) })
	}
	return len(b), nil
}

// moved returns how many times the relay changed to another address of an origin.
func (l *tail) moved() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moves
}

func (l *tail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

// inside is a relay in the process of the test, so that the race detector and goleak cover it. It keeps its addresses
// when it is drained and started again.
type inside struct {
	t                    *testing.T
	cfg                  relay.Config
	log                  *tail
	address, restAddress string
	admin                operator

	cancel context.CancelFunc
	ended  chan struct{} // closed when the relay has ended; nil before the first start
}

// newInside starts the relay. It is drained when the test ends.
func newInside(t *testing.T, env []string) *inside {
	t.Helper()
	r := &inside{t: t, log: &tail{said: make(chan struct{})}, address: proxy.FreeAddress(t), restAddress: proxy.FreeAddress(t), admin: operator(proxy.FreeAddress(t))}
	var err error
	r.cfg, err = relay.LoadConfig(append(env, "TENDER_NODE_ID=tender/inside", "TENDER_LISTEN="+r.address, "TENDER_REST_LISTEN="+r.restAddress, "TENDER_ADMIN_LISTEN="+string(r.admin)))
	if err != nil {
		t.Fatal(err)
	}
	r.start()
	t.Cleanup(func() {
		r.drain()()
		if t.Failed() {
			t.Logf("end of the log of the relay in the test:\n%s", r.log)
		}
	})
	return r
}

// start starts the relay unless it runs.
func (r *inside) start() {
	r.t.Helper()
	if runs(r.ended) {
		return
	}
	running, err := relay.New(r.cfg, relay.Options{
		Logger:    slog.New(slog.NewTextHandler(r.log, nil)),
		Listeners: r.listen(r.address), RESTListeners: r.listen(r.restAddress), AdminListeners: r.listen(string(r.admin)),
	})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	r.cancel, r.ended = cancel, ended
	go func() { // awaited by the caller of drain
		defer close(ended)
		if err := running.Run(ctx); err != nil {
			r.t.Errorf("the relay in the test ended: %v", err)
		}
	}()
}

// listen listens on one of the addresses of the relay.
func (r *inside) listen(address string) []net.Listener {
	r.t.Helper()
	l, err := proxy.ListenAgain(address)
	if err != nil {
		r.t.Fatal(err)
	}
	return []net.Listener{l}
}

func (r *inside) drain() (wait func()) {
	r.cancel()
	ended := r.ended
	return func() { <-ended }
}

func (r *inside) operator() operator { return r.admin }
