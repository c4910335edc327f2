package envoytest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
)

// askEvery is the time between two questions to an admin endpoint, which has no notifications.
const askEvery = 10 * time.Millisecond

// An Envoy is a running Envoy. Its methods may be called from any goroutine, but those that fail the test.
type Envoy struct {
	// Set by Start, read-only afterwards.
	tb    relaytest.TB
	id    string
	admin string // the address of its admin endpoint
	cmd   *exec.Cmd
	http  *http.Client
	ended chan struct{} // closed when the process has ended

	mu  sync.Mutex
	log []string // guarded by mu
}

// Start starts an Envoy and returns when its admin endpoint answers. The Envoy is killed when tb ends; if tb has
// failed by then, its log and its configuration are printed.
func Start(tb relaytest.TB, o Options) *Envoy {
	tb.Helper()
	dir, err := os.MkdirTemp("", "envoy")
	if err != nil {
		tb.Fatalf("start Envoy: %v", err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) }) // a temporary directory that stays does no harm
	admin := filepath.Join(dir, "admin")
	args := append([]string{
		"--config-path", o.bootstrap(tb, dir), "--admin-address-path", admin,
		"--concurrency", "1", "--disable-hot-restart", "--log-level", "warning", "--component-log-level", "config:info,upstream:info",
		"--drain-time-s", "1",
	}, o.Arguments...)
	e := &Envoy{
		tb: tb, id: o.Node.GetId(), cmd: exec.Command(Binary(tb), args...), ended: make(chan struct{}),
		http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: relaytest.Patience},
	}
	e.cmd.SysProcAttr = withParent()
	out, in := io.Pipe()
	e.cmd.Stdout, e.cmd.Stderr = in, in
	if err := e.cmd.Start(); err != nil {
		tb.Fatalf("start Envoy: %v: run `make deps`, or set ENVOY to the path of an Envoy", err)
	}
	go e.read(out)
	go func() { // ends with the process
		_ = in.CloseWithError(e.cmd.Wait()) // the reader tells of the error
	}()
	tb.Cleanup(e.end)
	e.await("its admin endpoint", func() error {
		address, err := os.ReadFile(admin)
		if err != nil {
			return err
		}
		e.admin = string(address)
		_, err = e.Get("/server_info")
		return err
	})
	return e
}

// read keeps what the Envoy writes, until it has ended.
func (e *Envoy) read(out io.Reader) {
	defer close(e.ended)
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		e.mu.Lock()
		e.log = append(e.log, lines.Text())
		e.mu.Unlock()
	}
	_, _ = io.Copy(io.Discard, out) // what is left of a line that is too long
}

// Log returns what the Envoy has written so far.
func (e *Envoy) Log() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Join(e.log, "\n")
}

// ID returns the id of the Envoy's Node, if Options gave it one.
func (e *Envoy) ID() string { return e.id }

// Signal sends a signal to the Envoy's process, such as SIGSTOP and SIGCONT.
func (e *Envoy) Signal(s syscall.Signal) {
	e.tb.Helper()
	if err := e.cmd.Process.Signal(s); err != nil {
		e.tb.Fatalf("Envoy %s: %v", e.id, err)
	}
}

// Stop kills the Envoy and waits for its end. It may be called again.
func (e *Envoy) Stop() {
	_ = e.cmd.Process.Kill() // it may have ended
	<-e.ended
}

// end stops the Envoy, and tells of it if the test has failed.
func (e *Envoy) end() {
	if tb, ok := e.tb.(interface {
		Failed() bool
		Logf(string, ...any)
	}); ok && tb.Failed() {
		state := "has ended"
		select {
		case <-e.ended:
		default:
			config, err := e.config()
			stats, statsErr := e.stats(Judged)
			state = fmt.Sprintf("configuration (error: %v):\n%v\nstatistics (error: %v):\n%v", err, config, statsErr, stats)
		}
		tb.Logf("Envoy %s, %s\nlog:\n%s", e.id, state, e.Log())
	}
	e.Stop()
}

// Get returns what a path of the admin endpoint answers.
func (e *Envoy) Get(path string) ([]byte, error) { return e.ask(http.MethodGet, path) }

// Post sends an empty POST to a path of the admin endpoint, and returns the answer.
func (e *Envoy) Post(path string) ([]byte, error) { return e.ask(http.MethodPost, path) }

func (e *Envoy) ask(method, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(context.Background(), method, "http://"+e.admin+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := e.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, body)
	}
	return body, err
}

// Await waits until met returns nil. It fails the test, with the last error, after relaytest.Patience, or when the
// Envoy has ended.
func (e *Envoy) Await(what string, met func() error) {
	e.tb.Helper()
	e.await(what, met)
}

func (e *Envoy) await(what string, met func() error) {
	e.tb.Helper()
	late := time.NewTimer(relaytest.Patience)
	defer late.Stop()
	again := time.NewTicker(askEvery)
	defer again.Stop()
	for {
		err := met()
		if err == nil {
			return
		}
		select {
		case <-again.C:
		case <-e.ended:
			e.tb.Fatalf("Envoy %s ended; awaited: %s\n%s", e.id, what, e.Log())
		case <-late.C:
			e.tb.Fatalf("Envoy %s: no %s after %v: %v", e.id, what, relaytest.Patience, err)
		}
	}
}

// AwaitReady waits until the Envoy has finished its initialisation and takes traffic.
func (e *Envoy) AwaitReady() {
	e.tb.Helper()
	e.await("readiness", func() error {
		state, err := e.Get("/ready")
		if err == nil && strings.TrimSpace(string(state)) != "LIVE" {
			err = errors.New(string(state))
		}
		return err
	})
}
