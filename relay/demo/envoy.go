package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// An envoy is an Envoy process that connects to the relay and serves the shop's ingress. The demo sends requests to it.
type envoy struct {
	binary string
	port   int    // of the ingress, on 127.0.0.1
	url    string // of the ingress
	pods   *pods

	ready chan struct{} // closed after the first request that is answered with 200

	answered, failed atomic.Int64 // requests after the first one that was answered
}

const (
	requestEvery   = 100 * time.Millisecond // between requests
	requestTimeout = 5 * time.Second        // of one request
	envoyStop      = 2 * time.Second        // from SIGTERM until the process is killed
)

// openEnvoy returns an Envoy that does not run yet, and starts the pods to which it routes requests. The caller must
// close the pods.
func openEnvoy(binary string) (*envoy, error) {
	port, err := freePort(ingressPort)
	if err != nil {
		return nil, err
	}
	p, err := openPods()
	if err != nil {
		return nil, err
	}
	return &envoy{binary: binary, port: port, url: fmt.Sprintf("http://127.0.0.1:%d/", port), pods: p, ready: make(chan struct{})}, nil
}

// freePort returns the wanted port of 127.0.0.1 if it is free, else another free port. Another process can take the
// port before the Envoy listens on it.
func freePort(wanted int) (int, error) {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(wanted)))
	if errors.Is(err, syscall.EADDRINUSE) {
		l, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		return 0, fmt.Errorf("find a port for the Envoy: %w", err)
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// run runs the Envoy, connected to the relay, until ctx ends. It returns an error if the process cannot be started or
// ends by itself.
func (e *envoy) run(ctx context.Context, relay net.Addr) (err error) {
	dir, err := os.MkdirTemp("", "tender-demo")
	if err != nil {
		return fmt.Errorf("start Envoy: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	config := filepath.Join(dir, "bootstrap.json")
	if err := os.WriteFile(config, bootstrap(relay), 0o600); err != nil {
		return fmt.Errorf("start Envoy: %w", err)
	}
	var log bytes.Buffer
	cmd := exec.CommandContext(ctx, e.binary, "--config-path", config, "--concurrency", "1", "--disable-hot-restart", "--log-level", "error") //nolint:gosec // G204: who runs the demo names the binary
	cmd.Stdout, cmd.Stderr = io.Discard, &log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = envoyStop
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start Envoy: %w", err)
	}
	requests, stop := context.WithCancel(ctx)
	var asking sync.WaitGroup
	asking.Go(func() { e.ask(requests) })
	err = cmd.Wait()
	stop()
	asking.Wait()
	if ctx.Err() != nil {
		return nil // the demo stopped the process
	}
	return fmt.Errorf("%s ended: %w\n%s", e.binary, err, log.Bytes())
}

// ask sends requests to the Envoy until ctx ends. It closes ready after the first one that is answered, and counts the
// later ones.
func (e *envoy) ask(ctx context.Context) {
	client := http.Client{Timeout: requestTimeout}
	defer client.CloseIdleConnections()
	ticker := time.NewTicker(requestEvery)
	defer ticker.Stop()
	for served := false; ; {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		switch ok := e.request(ctx, &client); {
		case ctx.Err() != nil:
			return
		case ok && !served:
			served = true
			close(e.ready)
		case ok:
			e.answered.Add(1)
		case served:
			e.failed.Add(1)
		}
	}
}

// request sends one request and reports whether it was answered with status 200.
func (e *envoy) request(ctx context.Context, client *http.Client) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.url, http.NoBody)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close() // the body was read to its end
	return err == nil && resp.StatusCode == http.StatusOK
}

// bootstrap returns the bootstrap of an Envoy that uses the relay as its Delta ADS server, as
// deploy/envoy/delta-ads.yaml does.
func bootstrap(relay net.Addr) []byte {
	host, port, _ := net.SplitHostPort(relay.String())
	n, _ := strconv.Atoi(port) // a listener's port is always a number
	config := object{"resource_api_version": "V3", "initial_fetch_timeout": "0s", "ads": object{}}
	text, err := json.Marshal(object{
		"node": object{"id": "envoy-demo", "cluster": "demo"},
		"dynamic_resources": object{
			"ads_config": object{
				"api_type": "DELTA_GRPC", "transport_api_version": "V3", "set_node_on_first_message_only": true,
				"grpc_services": []object{{"envoy_grpc": object{"cluster_name": "tender"}}},
			},
			"cds_config": config,
			"lds_config": config,
		},
		"static_resources": object{"clusters": []object{{
			"name": "tender", "type": "STATIC", "connect_timeout": "2s",
			"typed_extension_protocol_options": object{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": object{
				"@type":                typePrefix + "envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
				"explicit_http_config": object{"http2_protocol_options": object{}},
			}},
			"load_assignment": object{"cluster_name": "tender", "endpoints": []object{{"lb_endpoints": []object{{
				"endpoint": object{"address": object{"socket_address": object{"address": host, "port_value": n}}},
			}}}}},
		}}},
	})
	if err != nil {
		panic("encode a bootstrap: " + err.Error())
	}
	return text
}
