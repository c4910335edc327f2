package conformance_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

// trickle writes one byte per second until the connection fails.
func trickle(conn net.Conn, what []byte) {
	for _, b := range what {
		if _, err := conn.Write([]byte{b}); err != nil {
			return
		}
		time.Sleep(time.Second)
	}
}

// B.35: a connection whose handshake is incomplete is closed after the timeout of the first request, even if it
// makes slow progress. Other connections are not affected.
func TestB35_HandshakeTimeout(t *testing.T) {
	settings := new(bytes.Buffer)
	settings.WriteString(http2.ClientPreface)
	if err := http2.NewFramer(settings,
		nil).WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		input []byte // sent one byte per second
	}{
		{"silence", nil},
		{"preface", []byte(http2.ClientPreface)},
		{"settings", settings.Bytes()},
		{"request", []byte("POST /v3/discovery:clusters HTTP/1.1\r\nHost: relay\r\n\r\n")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			originBubble(t, func(t *testing.T, o *relaytest.Origin) {
				r := start(t, o, "TENDER_FIRST_REQUEST_TIMEOUT=3s")
				check := otherClient(t, o, r.Conn())
				for _, dial := range []func(context.Context) (net.Conn, error){r.Listener.Dial, r.DialREST} {
					conn, err := dial(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					began := time.Now()
					var writer sync.WaitGroup
					writer.Go(func() { trickle(conn, tt.input) }) // returns when the connection is closed
					_, err = io.Copy(io.Discard, conn)
					if took := time.Since(began); took != 3*time.Second {
						t.Errorf("the connection was closed after %v with %v, want 3s", took, err)
					}
					_ = conn.Close() // the relay has closed it
					writer.Wait()
				}
				check()
			})
		})
	}
}

// B.35: connections of both listeners count against one limit. Connections that were reset do not count, nor do those
// that ended during the handshake.
func TestB35_ConnectionsAreBounded(t *testing.T) {
	noLeaks(t)
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	r := start(t, o, "TENDER_MAX_CONNECTIONS=3", "TENDER_FIRST_REQUEST_TIMEOUT=1m")
	check := otherClient(t, o, r.Conn())
	streams, polls := r.Addrs()[0], r.RESTAddrs()[0]
	dial := func(to net.Addr) *net.TCPConn {
		t.Helper()
		conn, err := net.Dial("tcp", to.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn.(*net.TCPConn)
	}
	end := func(conn *net.TCPConn, linger int) { // 0: with a RST
		t.Helper()
		if err := conn.SetLinger(linger); err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
	}
	poll := dial(polls)
	awaitConnections(t, r, 2)
	stream := dial(streams)
	awaitConnections(t, r, 3)
	for _, to := range []net.Addr{streams, polls} {
		if n, err := io.Copy(io.Discard, dial(to)); n != 0 {
			t.Errorf("a connection to %v over the limit got %d bytes and ended with %v, want none", to, n, err)
		}
	}
	end(poll, 0)
	end(stream, 0)
	awaitConnections(t, r, 1)
	for i := range 20 { // during the handshake
		end(dial(streams), i%2*-1)
	}
	// These connections may be counted for a while, so a new one may be over the limit.
	for {
		conn := dial(polls)
		if err := conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
	}
	awaitConnections(t, r, 2)
	check()
}

// awaitConnections waits until the relay has n client connections.
func awaitConnections(t *testing.T, r *running, n int) {
	t.Helper()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for end := time.Now().Add(relaytest.Patience); r.Stats().Connections != n; <-look.C {
		if time.Now().After(end) {
			t.Fatalf("got %d connections, want %d", r.Stats().Connections, n)
		}
	}
}

// B.34: a connection with an incomplete frame is closed like a half-open one: it answers no pings.
func TestB34_IncompleteFrame(t *testing.T) {
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		r := startRelay(t, instance.Options{Origins: []*relaytest.Origin{o}, Pings: true})
		check := otherClient(t, o, r.Conn())
		conn, err := r.Listener.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		f := http2.NewFramer(conn, conn)
		if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
			t.Fatal(err)
		}
		if err := f.WriteSettings(); err != nil {
			t.Fatal(err)
		}
		var writer sync.WaitGroup
		writer.Go(func() {
			trickle(conn, append([]byte{0, 16, 0, byte(http2.FrameHeaders), 0, 0, 0, 0, 1}, make([]byte, 4096)...))
		}) // returns when the connection is closed
		began := time.Now()
		_, err = io.Copy(io.Discard, conn)
		if took := time.Since(began); took < 30*time.Second || took > 70*time.Second {
			t.Errorf("the connection was closed after %v with %v, want 30s to 70s", took, err)
		}
		_ = conn.Close() // the relay has closed it
		writer.Wait()
		check()
	})
}
