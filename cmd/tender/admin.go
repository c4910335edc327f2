package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/xdstender/tender/cmd/tender/cli"
	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/admin"
)

// adminVariable is the variable with the admin addresses of a relay. tender serve listens on them, and operator
// commands connect to the first one.
const adminVariable = "TENDER_ADMIN_LISTEN"

// An adminFlag holds the flags for the connection of a command to the admin address of a relay.
type adminFlag struct {
	address string       // --admin; if empty, the first address of adminVariable
	tls     cli.TLSFlags // the zero value is plaintext
	host    host
}

// addAdminFlag adds --admin and the TLS flags to a command.
func addAdminFlag(cmd *cobra.Command, h host) *adminFlag {
	a := &adminFlag{host: h}
	cmd.Flags().StringVar(&a.address, "admin", "", "the relay's admin address: `host:port` or unix:path (default that of "+adminVariable+")")
	a.tls.Add(cmd, "admin")
	return a
}

// run sets cmd.RunE to a function that calls do with a client for the admin API.
func (a *adminFlag) run(cmd *cobra.Command, do func(cmd *cobra.Command, args []string, client *adminClient) error) {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client, err := a.client()
		if err != nil {
			return err
		}
		return do(cmd, args, client)
	}
}

// client returns a client for the admin API. It returns an error if there is no valid address, or if a TLS file cannot
// be used. It does not connect.
func (a *adminFlag) client() (*adminClient, error) {
	if err := a.tls.Check(); err != nil {
		return nil, cli.UsageError{Cause: err}
	}
	config, err := a.tls.Config()
	if err != nil {
		return nil, err
	}
	address := a.address
	if address == "" {
		if address, err = adminAddress(a.host.environ()); err != nil {
			return nil, err
		}
	}
	return newAdminClient(address, config, a.host.dial)
}

// adminAddress returns the first address in adminVariable, or its default. Errors of other variables do not stop a command.
func adminAddress(environ []string) (string, error) {
	cfg, err := relay.LoadConfig(environ)
	for _, e := range relay.ConfigErrors(err) {
		if e.Variables[0] == adminVariable {
			return "", e
		}
	}
	if len(cfg.AdminListen) == 0 {
		return "", cli.UsageError{Cause: fmt.Errorf("%s is off: set --admin to the admin address of the relay", adminVariable)}
	}
	return cfg.AdminListen[0], nil
}

// An adminClient sends requests to the admin API of a relay. Each request opens a new connection.
type adminClient struct {
	address string // as in --admin, for errors
	base    string // scheme and host of URLs
	host    string // Host header; if empty, the host of base
	http    *http.Client
}

// newAdminClient returns a client for the relay at address, host:port or unix:path. It connects with connect, and uses
// TLS unless config is nil; a Unix socket allows only nil. A request times out after 30 seconds, which callers may change.
func newAdminClient(address string, config *tls.Config, connect dialer) (*adminClient, error) {
	network, dialled, base := "tcp", address, "http://"+address
	if config != nil {
		base = "https://" + address
	}
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		if config != nil {
			return nil, cli.UsageError{Cause: fmt.Errorf("--admin=%s: a Unix socket has no TLS", address)}
		}
		network, dialled, base = "unix", strings.TrimPrefix(path, "//"), "http://localhost"
	} else if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, cli.UsageError{Cause: fmt.Errorf("--admin=%s: want host:port or unix:path", address)}
	}
	host := "" // the host of base
	if config != nil {
		host = config.ServerName
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := connect(ctx, network, dialled)
		if err != nil {
			return nil, err
		}
		return &requestFirst{Conn: conn, written: make(chan struct{})}, nil
	}
	return &adminClient{
		address: address,
		base:    base,
		host:    host,
		http:    &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true, TLSClientConfig: config}, Timeout: 30 * time.Second},
	}, nil
}

// get requests path, and decodes the JSON of the response into into.
func (c *adminClient) get(ctx context.Context, path string, into any) error {
	return c.do(ctx, http.MethodGet, path, nil, into)
}

// command sends a command with args as JSON, and decodes the JSON of the response into into. See [admin.Command].
func (c *adminClient) command(ctx context.Context, name string, args, into any) error {
	body, err := json.Marshal(args)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return c.do(ctx, http.MethodPost, "/api/v1/"+name, body, into)
}

// do sends a request with an optional JSON body, and decodes the JSON of the response into into.
func (c *adminClient) do(ctx context.Context, method, path string, body []byte, into any) error {
	text, err := c.ask(ctx, method, path, body)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s is not the admin address of a relay: %w", c.address, err)
	}
	return nil
}

// A requestFirst is a connection on which Read blocks until the first Write or Close. A gRPC server sends its SETTINGS
// frame as soon as it accepts a connection. Without the delay, [net/http] would sometimes read the frame before it
// sends the request, and return an error without the text in http2Answer.
type requestFirst struct {
	net.Conn
	once    sync.Once
	written chan struct{} // closed by the first Write, or by Close
}

// Read implements [net.Conn].
func (c *requestFirst) Read(b []byte) (int, error) {
	<-c.written
	return c.Conn.Read(b)
}

// Write implements [net.Conn].
func (c *requestFirst) Write(b []byte) (int, error) {
	defer c.once.Do(func() { close(c.written) })
	return c.Conn.Write(b)
}

// Close implements [net.Conn]. It unblocks Read.
func (c *requestFirst) Close() error {
	defer c.once.Do(func() { close(c.written) })
	return c.Conn.Close()
}

// http2Answer is the start of the error of [net/http] if a gRPC server responds to an HTTP/1 request. The response is a
// SETTINGS frame, which begins with its length in 3 bytes.
const http2Answer = `malformed HTTP response "\x00\x00`

// ask sends a request, and returns the body of the response. If the status is not 200, it returns the error in the
// body.
func (c *adminClient) ask(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("request to the relay at %s: %w", c.address, err)
	}
	r.Host = cmp.Or(c.host, r.Host)
	r.Header.Set("Accept", admin.JSON)
	if body != nil {
		r.Header.Set("Content-Type", admin.JSON)
	}
	resp, err := c.http.Do(r)
	if err != nil {
		if strings.Contains(err.Error(), http2Answer) {
			return nil, fmt.Errorf("wrong port: %s is the xDS port of a relay, or another server of gRPC; set --admin or %s to the relay's admin address", c.address, adminVariable)
		}
		return nil, fmt.Errorf("request to the relay: %w; set --admin or %s to its admin address", errors.Unwrap(err), adminVariable)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("read the answer of %s: %w", c.address, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the relay at %s: %s", c.address, refusalText(resp, text))
	}
	return text, nil
}

// refusalText returns the error in the JSON of a response. Without one, it returns the status and the first 200
// characters of text.
func refusalText(resp *http.Response, text []byte) string {
	var refused struct{ Error string }
	if json.Unmarshal(text, &refused) == nil && refused.Error != "" {
		return refused.Error
	}
	return fmt.Sprintf("%s: %.200s", resp.Status, bytes.TrimSpace(text))
}
