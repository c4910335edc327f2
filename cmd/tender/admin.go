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
)

// adminVariable has the admin address of a relay: serve listens on it, and commands connect to it.
const adminVariable = "TENDER_ADMIN_LISTEN"

// An adminFlag is where and how a command finds the relay.
type adminFlag struct {
	address string
	tls     cli.TLSFlags
	environ func() []string
}

// addAdminFlag adds --admin, and how to speak TLS there, to a command.
func addAdminFlag(cmd *cobra.Command, environ func() []string) *adminFlag {
	a := &adminFlag{environ: environ}
	cmd.Flags().StringVar(&a.address, "admin", "", "the relay's admin address: `host:port` or unix:path (default that of "+adminVariable+")")
	a.tls.Add(cmd, "admin")
	return a
}

// run has a command run with a client of the relay.
func (a *adminFlag) run(cmd *cobra.Command, do func(cmd *cobra.Command, args []string, client *adminClient) error) {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client, err := a.client()
		if err != nil {
			return err
		}
		return do(cmd, args, client)
	}
}

// client returns a client of the relay. Errors: no address, or one that cannot be; files that
// cannot be used.
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
		if address, err = adminAddress(a.environ()); err != nil {
			return nil, err
		}
	}
	return newAdminClient(address, config)
}

// adminAddress returns the first address that the environment has for operators.
func adminAddress(environ []string) (string, error) {
	var ours []string
	for _, entry := range environ {
		if name, _, _ := strings.Cut(entry, "="); name == adminVariable || strings.HasPrefix(name, "TENDER_TLS_") || name == "TENDER_AUTHZ" {
			ours = append(ours, entry)
		}
	}
	cfg, err := relay.LoadConfig(ours)
	if err != nil {
		return "", err
	}
	if len(cfg.AdminListen) == 0 {
		return "", cli.UsageError{Cause: fmt.Errorf("%s is off: set --admin to the admin address of the relay", adminVariable)}
	}
	return cfg.AdminListen[0], nil
}

// An adminClient is a client of a relay's admin API.
type adminClient struct {
	address string
	base    string // of URLs
	host    string // that is asked for, if that is not in base
	http    *http.Client
}

// newAdminClient returns a client of the relay at an address, by TLS if there is a
// configuration.
func newAdminClient(address string, config *tls.Config) (*adminClient, error) {
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
	host := "" // that of the address
	if config != nil {
		host = config.ServerName
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, dialled)
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

// get reads what is at a path, as JSON.
func (c *adminClient) get(ctx context.Context, path string, into any) error {
	return c.do(ctx, http.MethodGet, path, nil, into)
}

// command has the relay do something, and reads its answer; see [admin.Command].
func (c *adminClient) command(ctx context.Context, name string, args, into any) error {
	body, err := json.Marshal(args)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return c.do(ctx, http.MethodPost, "/api/v1/"+name, body, into)
}

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

// A requestFirst is a connection whose answers are read once a request was written, or it was closed. A gRPC server
// sends its SETTINGS frame at once, and [net/http] reports what comes before a request in another way than an answer.
type requestFirst struct {
	net.Conn
	once    sync.Once
	written chan struct{} // closed by the first Write, or by Close
}

func (c *requestFirst) Read(b []byte) (int, error) {
	<-c.written
	return c.Conn.Read(b)
}

func (c *requestFirst) Write(b []byte) (int, error) {
	defer c.once.Do(func() { close(c.written) })
	return c.Conn.Write(b)
}

func (c *requestFirst) Close() error {
	defer c.once.Do(func() { close(c.written) })
	return c.Conn.Close()
}

// http2Answer is the start of the error of [net/http] where a gRPC server answers an HTTP/1 request: its SETTINGS frame,
// which begins with its length.
const http2Answer = `malformed HTTP response "\x00\x00`

// ask returns what the relay answers.
func (c *adminClient) ask(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("ask the relay at %s: %w", c.address, err)
	}
	r.Host = cmp.Or(c.host, r.Host)
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(r)
	if err != nil {
		if strings.Contains(err.Error(), http2Answer) {
			return nil, fmt.Errorf("wrong port: %s is the xDS port of a relay, or another server of gRPC; set --admin or %s to the relay's admin address", c.address, adminVariable)
		}
		return nil, fmt.Errorf("ask the relay: %w; set --admin or %s to its admin address", errors.Unwrap(err), adminVariable)
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

// refusalText returns the error of a response other than 200.
func refusalText(resp *http.Response, text []byte) string {
	var refused struct{ Error string }
	if json.Unmarshal(text, &refused) == nil && refused.Error != "" {
		return refused.Error
	}
	return fmt.Sprintf("%s: %.200s", resp.Status, bytes.TrimSpace(text))
}
