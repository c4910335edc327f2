package soak

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest"
)

// A process is a relay that is killed and started again at its address.
type process struct {
	t       *testing.T
	binary  string
	env     []string
	address string
	views   string // the directory of its snapshot

	cmd   *exec.Cmd
	log   *tail
	ended chan struct{} // closed once cmd has ended
	idle  usage         // when it listened
}

func newProcess(t *testing.T, env []string) *process {
	t.Helper()
	p := &process{t: t, binary: filepath.Join(t.TempDir(), "tender"), address: freeAddress(t), views: filepath.Join(t.TempDir(), "views")}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", p.binary, "../../cmd/tender").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "TENDER_") {
			p.env = append(p.env, v)
		}
	}
	p.env = append(append(p.env, env...), "TENDER_NODE_ID=tender/process", "TENDER_LISTEN="+p.address, "TENDER_SNAPSHOT_DIR="+p.views, "TENDER_LOG_FORMAT=text")
	p.makeViews()
	p.start()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("the last of the process's log:\n%s", p.log)
		}
	})
	return p
}

// freeAddress returns an address that can be listened on, and that no connection takes as its
// own meanwhile.
func freeAddress(t *testing.T) string {
	t.Helper()
	p := relaytest.NewProxy(t, "127.0.0.1:1")
	p.Set(relaytest.Link{Refuse: true})
	return p.Addr()
}

// start starts the relay, unless it runs, and waits until it listens.
func (p *process) start() {
	p.t.Helper()
	if p.runs() {
		return
	}
	p.cmd, p.ended, p.log = exec.Command(p.binary, "serve"), make(chan struct{}), &tail{said: make(chan struct{})}
	p.cmd.Env, p.cmd.Stderr = p.env, p.log
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	cmd, ended := p.cmd, p.ended
	go func() { // ends with the process
		defer close(ended)
		_ = cmd.Wait() // how it ended is of no interest
	}()
	ctx, cancel := context.WithTimeout(p.t.Context(), relaytest.Patience)
	defer cancel()
	select {
	case <-p.log.said:
		p.idle = usageOf(p.t, p.cmd.Process.Pid)
		return
	case <-p.ended:
	case <-ctx.Done():
	}
	p.t.Fatalf("the relay does not listen:\n%s", p.log)
}

func (p *process) runs() bool {
	if p.ended == nil {
		return false
	}
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
}

// forget removes the snapshot of the relay, which must not run: it will know nothing.
func (p *process) forget() {
	p.t.Helper()
	if err := os.RemoveAll(p.views); err != nil {
		p.t.Fatal(err)
	}
	p.makeViews()
}

func (p *process) makeViews() {
	p.t.Helper()
	if err := os.MkdirAll(p.views, 0o700); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) drain() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	<-p.ended
}

const (
	// moreFiles is how many files a relay without clients may have open that it did not have
	// when it began: connections to origins, and what the runtime needs.
	moreFiles = 16

	maxMemory = 256 << 20 // resident
)

// leaks looks whether the relay, all of whose clients have left, is rid of them.
func (p *process) leaks() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), relaytest.Patience)
	defer cancel()
	for {
		now := usageOf(p.t, p.cmd.Process.Pid)
		if now.files <= p.idle.files+moreFiles && now.memory <= maxMemory {
			p.t.Logf("the relay's process has %v; it began with %v", now, p.idle)
			return
		}
		select {
		case <-time.After(100 * time.Millisecond): // nobody tells of a file that is closed
		case <-ctx.Done():
			p.t.Fatalf("without clients, the relay's process has %v; it began with %v", now, p.idle)
		}
	}
}

// usage is what a process takes.
type usage struct {
	files, threads int
	memory         int // bytes, resident
}

func (u usage) String() string {
	return fmt.Sprintf("%d files, %d threads and %d MiB", u.files, u.threads, u.memory>>20)
}

func usageOf(t *testing.T, pid int) (u usage) {
	t.Helper()
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	files, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		t.Fatal(err)
	}
	u.files = len(files)
	for s := bufio.NewScanner(bytes.NewReader(status)); s.Scan(); {
		field, value, _ := strings.Cut(s.Text(), ":")
		n, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB")) // other lines have none
		switch field {
		case "Threads":
			u.threads = n
		case "VmRSS":
			u.memory = n << 10
		}
	}
	return u
}

// A tail keeps the last of what is written, and tells when a line said that the relay listens.
type tail struct {
	mu    sync.Mutex
	lines []string // guarded by mu
	once  sync.Once
	said  chan struct{}
}

const tailLines = 60

func (l *tail) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, strings.TrimRight(string(b), "\n"))
	l.lines = l.lines[max(0, len(l.lines)-tailLines):]
	if bytes.Contains(b, []byte("msg=listening")) {
		l.once.Do(func() { close(l.said) })
	}
	return len(b), nil
}

func (l *tail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

// inside is a relay in this process, which is drained and started again at its addresses.
type inside struct {
	*relay.Relay
	t                    *testing.T
	cfg                  relay.Config
	log                  *tail
	address, restAddress string

	runs   bool
	cancel context.CancelFunc
	ended  chan error
}

func newInside(t *testing.T, env []string) *inside {
	t.Helper()
	r := &inside{t: t, log: &tail{said: make(chan struct{})}, address: freeAddress(t), restAddress: freeAddress(t)}
	var err error
	r.cfg, err = relay.LoadConfig(append(env, "TENDER_NODE_ID=tender/inside", "TENDER_LISTEN="+r.address, "TENDER_REST_LISTEN="+r.restAddress))
	if err != nil {
		t.Fatal(err)
	}
	r.start()
	t.Cleanup(func() {
		r.stop()
		if t.Failed() {
			t.Logf("the last of the log of the relay in the test:\n%s", r.log)
		}
	})
	return r
}

// start starts the relay, unless it runs.
func (r *inside) start() {
	r.t.Helper()
	if r.runs {
		return
	}
	var err error
	if r.Relay, err = relay.New(r.cfg, relay.Options{Logger: slog.New(slog.NewTextHandler(r.log, nil))}); err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended, running := make(chan error, 1), r.Relay
	r.cancel, r.ended, r.runs = cancel, ended, true
	go func() { ended <- running.Run(ctx) }() // awaited by stop
}

// stop drains the relay and waits for its end. It may be called again.
func (r *inside) stop() {
	r.cancel()
	if err, first := <-r.ended; first {
		close(r.ended)
		r.runs = false
		if err != nil {
			r.t.Errorf("the relay in the test ended: %v", err)
		}
	}
}
