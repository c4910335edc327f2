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

// An Envoy is a running Envoy.
type Envoy struct {
	*Process

	// Set by Start, read-only afterwards.
	id    string
	admin string // the address of its admin endpoint
	http  *http.Client
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
		Process: StartProcess(tb, "Envoy "+o.Node.GetId(), exec.Command(Binary(tb), args...)), id: o.Node.GetId(),
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

// ID returns the id of the Envoy's Node, if Options gave it one.
func (e *Envoy) ID() string { return e.id }

// Admin returns the address (host:port) of its admin endpoint.
func (e *Envoy) Admin() string { return e.admin }

// show prints the configuration and the statistics of an Envoy that runs, if the test has failed.
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

// AwaitReady waits until the Envoy has finished its initialisation and takes traffic.
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
