package envoytest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/xdstender/tender/relay/relaytest"
)

// An Envoy is an Envoy process that [Start] started.
type Envoy struct {
	*Process

	// Immutable after Start.
	id    string // Node.id, or empty if the options have no Node
	admin string // address (host:port) of the admin endpoint
	http  *http.Client
}

// Start starts an Envoy and returns when its admin endpoint answers. The Envoy is killed when tb ends. If tb has
// failed, its log and its configuration are printed first.
func Start(tb relaytest.TB, o Options) *Envoy {
	tb.Helper()
	dir, err := os.MkdirTemp("", "envoy")
	if err != nil {
		tb.Fatalf("start Envoy: %v", err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) }) // a leftover temporary directory is harmless
	admin := filepath.Join(dir, "admin")
	args := append([]string{
		"--config-path", o.bootstrap(tb, dir), "--admin-address-path", admin,
		"--concurrency", "1", "--disable-hot-restart", "--log-level", "warning", "--component-log-level", "config:info,upstream:info",
		"--drain-time-s", "1",
	}, o.Arguments...)
	binary := o.Binary
	if binary == "" {
		binary = Binary(tb)
	}
	e := &Envoy{
		Process: StartProcess(tb, "Envoy "+o.Node.GetId(), exec.Command(binary, args...)), id: o.Node.GetId(),
		http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: relaytest.Patience},
	}
	tb.Cleanup(e.show)
	e.Await("admin endpoint", func() error {
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

// ID returns the Node.id of the options, or "" if they have no Node.
func (e *Envoy) ID() string { return e.id }

// Admin returns the address (host:port) of the admin endpoint.
func (e *Envoy) Admin() string { return e.admin }

// show prints the configuration and the statistics of a running Envoy if the test has failed.
func (e *Envoy) show() {
	log := logger(e.tb)
	select {
	case <-e.ended:
		return
	default:
	}
	if log == nil {
		return
	}
	config, err := e.config()
	stats, statsErr := e.stats(Judged)
	log("Envoy %s, configuration (error: %v):\n%v\nstatistics (error: %v):\n%v", e.id, err, config, statsErr, stats)
}

// Get returns the response body of a GET of the admin endpoint. A status other than 200 is an error.
func (e *Envoy) Get(path string) ([]byte, error) { return e.ask(http.MethodGet, path) }

// Post returns the response body of an empty POST to the admin endpoint. A status other than 200 is an error.
func (e *Envoy) Post(path string) ([]byte, error) { return e.ask(http.MethodPost, path) }

// ask sends an empty request to the admin endpoint and returns the response body.
func (e *Envoy) ask(method, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(context.Background(), method, "http://"+e.admin+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := e.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // the body was read to its end
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, body)
	}
	return body, err
}

// AwaitReady waits until the Envoy has finished its initialization and accepts traffic.
func (e *Envoy) AwaitReady() {
	e.tb.Helper()
	e.Await("readiness", func() error {
		state, err := e.Get("/ready")
		if err == nil && strings.TrimSpace(string(state)) != "LIVE" {
			err = errors.New(string(state))
		}
		return err
	})
}
