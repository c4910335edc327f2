package conformance_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest"
)

// Polls are accepted on each address of TENDER_REST_LISTEN, including Unix sockets; streams are not.
func TestREST_Addresses(t *testing.T) {
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(relaytest.Cluster("a"))
	socket := filepath.Join(t.TempDir(), "rest")
	r := start(t, o, "TENDER_REST_LISTEN=127.0.0.1:0,unix:"+socket)
	if got := r.RESTAddrs(); len(got) != 2 || got[1].String() != socket || len(r.Addrs()) != 1 {
		t.Fatalf("polls are accepted on %v and streams on %v", got, r.Addrs())
	}
	for _, addr := range r.RESTAddrs() {
		r.DialREST = func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, addr.Network(), addr.String())
		}
		restPoller(t, r, false).poll("clusters", "20000", "").expectNames("a")
	}
}

// If an address is in use, the error names its variable, and all other listeners are closed.
func TestREST_AddressInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	socket := filepath.Join(t.TempDir(), "xds")
	cfg, err := relay.LoadConfig([]string{"TENDER_ORIGIN=127.0.0.1:1", "TENDER_LISTEN=unix:" + socket,
		"TENDER_ADMIN_LISTEN=off"})
	if err != nil {
		t.Fatal(err)
	}
	cfg.RESTListen = []string{"127.0.0.1:0", taken.Addr().String()}
	if _, err := relay.New(cfg, relay.Options{}); err == nil ||
		!strings.HasPrefix(err.Error(), "TENDER_REST_LISTEN: listen tcp "+taken.Addr().String()) {
		t.Fatalf("New with %s in use: %v", taken.Addr(), err)
	}
	if conn, err := net.Dial("unix", socket); err == nil {
		t.Error("the listener for streams is still open", conn.Close())
	}
}

// B.35: a poll whose body is not received in time fails. A complete poll that is held does not.
func TestB35_RESTSlowBody(t *testing.T) {
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(relaytest.Cluster("a"))
		r := start(t, o, "TENDER_FIRST_REQUEST_TIMEOUT=3s")
		conn, err := r.DialREST(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		began := time.Now()
		if _, err := fmt.Fprint(conn,
			"POST /v3/discovery:clusters HTTP/1.1\r\nHost: relay\r\nContent-Length: 100\r\n\r\n{"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if took := time.Since(began); resp.StatusCode != http.StatusRequestTimeout || took != 3*time.Second {
			t.Errorf("got status %d after %v, want 408 after 3s", resp.StatusCode, took)
		}
		for _, http2 := range []bool{false, true} {
			c := restPoller(t, r, http2)
			version := c.poll("clusters", "", "").expectNames("a")
			for range 3 {
				c.poll("clusters", "30100", version).expectNotModified().expectDuration(30 * time.Second)
			}
		}
	})
}

// B.12: a connection whose client does not read the reply is closed.
func TestB12_RESTStall(t *testing.T) {
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(relaytest.StaticCluster(strings.Repeat("a", 2*(64<<10))))
		r := start(t, o, "TENDER_SEND_TIMEOUT=5s")
		conn, err := r.DialREST(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		body := restBody(t, "")
		if _, err := fmt.Fprintf(conn, "POST /v3/discovery:clusters HTTP/1.1\r\nHost: relay\r\nContent-Length: %d\r\n\r\n%s",
			len(body), body); err != nil {
			t.Fatal(err)
		}
		time.Sleep(36 * time.Second) // 30s for the longest hold, and the send timeout
		if n := r.Streams(); n != 0 {
			t.Errorf("%d streams are open, want none", n)
		}
		if answer, err := io.ReadAll(conn); err != nil || len(answer) > (64<<10) {
			t.Errorf("the connection was closed after %d bytes of a reply (%v), want only those in flight", len(answer), err)
		}
	})
}
