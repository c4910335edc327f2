package tlsfiles_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// A fault is a handshake that fails, with the reason that operators see.
type fault struct {
	reason string
	client func(conn net.Conn) // uses the connection, which is closed afterwards
}

// faults returns handshakes that fail at a relay with mTLS by ca.
func faults(t *testing.T, ca *certs.CA) []fault {
	other := certs.NewCA(t)
	// with returns a client that presents a certificate and trusts a CA.
	with := func(shown *certs.Pair, trusted *certs.CA, change func(*tls.Config)) func(net.Conn) {
		cfg := &tls.Config{RootCAs: trusting(trusted), ServerName: "127.0.0.1", NextProtos: []string{"h2"}}
		if shown != nil {
			presents := pair(t, *shown)
			cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &presents, nil }
		}
		if change != nil {
			change(cfg)
		}
		return func(conn net.Conn) {
			_, _ = tls.Client(conn, cfg).Read(make([]byte, 1)) // until the alert of either side
		}
	}
	now := time.Now()
	return []fault{
		{"no_certificate", with(nil, ca, nil)},
		{"unknown_ca", with(new(other.Sign(certs.Leaf{URI: "spiffe://example.org/envoy"})), ca, nil)},
		{"expired", with(new(ca.Sign(certs.Leaf{NotAfter: now.Add(-time.Minute)})), ca, nil)},
		{"bad_certificate", with(new(ca.Sign(certs.Leaf{Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})), ca, nil)},
		{"unsupported", with(new(ca.Sign(certs.Leaf{})), ca, func(c *tls.Config) {
			c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
		})},
		{"unsupported", with(new(ca.Sign(certs.Leaf{})), ca, func(c *tls.Config) { c.NextProtos = []string{"acme"} })},
		{"rejected_by_client", with(new(ca.Sign(certs.Leaf{})), other, nil)},
		{"plaintext", func(conn net.Conn) {
			_, _ = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
			_, _ = conn.Read(make([]byte, 1))
		}},
		{"closed", func(net.Conn) {}},
	}
}

// get returns a page of the admin address.
func (r *running) get(t *testing.T, path string) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return r.DialAdmin(ctx) },
	}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost"+path, nil)
	check.OK(t, err)
	reply, err := client.Do(req)
	check.OK(t, err)
	text, err := io.ReadAll(reply.Body)
	check.OK(t, err)
	check.OK(t, reply.Body.Close())
	return string(text)
}

// failed returns the failed handshakes of a reason in the status.
func (r *running) failed(t *testing.T, reason string) (found admin.Refusal) {
	t.Helper()
	var status admin.Status
	check.OK(t, json.Unmarshal([]byte(r.get(t, "/api/v1/status")), &status))
	for _, c := range status.Refusals {
		if c.Kind == "handshake" && c.Reason == reason {
			found = c
		}
	}
	return found
}

// awaitFailed waits until the status has so many failed handshakes of a reason.
func (r *running) awaitFailed(t *testing.T, reason string, n int64) admin.Refusal {
	t.Helper()
	for deadline := time.Now().Add(relaytest.Patience); ; time.Sleep(time.Millisecond) { // polls
		got := r.failed(t, reason)
		if got.Count == n {
			return got
		}
		if got.Count > n || time.Now().After(deadline) {
			t.Fatalf("the status has %+v for %s, want %d", got, reason, n)
		}
	}
}

// TestB47_FailedHandshakesAreSeen checks that operators see in the log, in a metric and in the status why TLS
// handshakes fail, and with which peer: those of gRPC clients, of polls and of operators.
func TestB47_FailedHandshakesAreSeen(t *testing.T) {
	t.Parallel()
	ca, dir := certs.NewCA(t), t.TempDir()
	rules := certs.WriteFile(t, dir, "rules", []byte("version: 1\noperators: [\"spiffe://example.org/admin\"]\nrules: [{name: all, identities: [\"spiffe://example.org/*\"]}]\n"))
	r, _ := serveTLS(t, false, ca, dir, "TENDER_REST_LISTEN=127.0.0.1:0", "TENDER_AUTHZ="+rules,
		"TENDER_ADMIN_LISTEN=127.0.0.1:0,0.0.0.0:0")
	_, port, err := net.SplitHostPort(r.AdminAddrs()[1].String())
	check.OK(t, err)
	counts := make(map[string]int64)
	for _, address := range []string{r.Addrs()[0].String(), r.RESTAddrs()[0].String(), "127.0.0.1:" + port} {
		for _, f := range faults(t, ca) {
			mark := r.Log.Len()
			conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
			check.OK(t, err)
			check.OK(t, conn.SetDeadline(time.Now().Add(relaytest.Patience)))
			f.client(conn)
			_ = conn.Close()
			counts[f.reason]++
			got := r.awaitFailed(t, f.reason, counts[f.reason])
			if got.Peer != "127.0.0.1" || got.Error == "" {
				t.Errorf("%s: the status has %+v, want the peer and the error", f.reason, got)
			}
			line := fmt.Sprintf(`msg="client TLS handshake failed" peer=127.0.0.1 kind=handshake reason=%s err=`, f.reason)
			if lines := strings.Count(r.Log.String()[mark:], line); lines != 1 && f.reason != "closed" && counts[f.reason] <= 5 || lines != 0 && f.reason == "closed" {
				t.Errorf("%s: %d lines in the log, want one of the first five, and none of a closed connection", f.reason, lines)
			}
		}
	}
	if want := `identity=spiffe://example.org/envoy issuer="CN=test CA"`; !strings.Contains(r.Log.String(), want) {
		t.Errorf("the log does not contain %s:\n%s", want, r.Log.String())
	}
	metrics := r.get(t, "/metrics")
	for reason, n := range counts {
		if want := fmt.Sprintf("tender_client_handshakes_failed_total{reason=%q} %d\n", reason, n); !strings.Contains(metrics, want) {
			t.Errorf("/metrics does not contain %s", want)
		}
	}
	if want := "tender_client_handshakes_failed_total{reason=\"other\"} 0\n"; !strings.Contains(metrics, want) {
		t.Errorf("/metrics does not contain %s", want)
	}
}

// TestB47_HandshakesThatDoNotComplete checks that operators see clients that send nothing.
func TestB47_HandshakesThatDoNotComplete(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ca := certs.NewCA(t)
		r, _ := serveTLS(t, true, ca, t.TempDir(), "TENDER_REST_LISTEN=127.0.0.1:0", "TENDER_ADMIN_LISTEN=127.0.0.1:0")
		for i, dial := range []func(context.Context) (net.Conn, error){r.Listener.Dial, r.DialREST} {
			conn, err := dial(t.Context())
			check.OK(t, err)
			time.Sleep(time.Minute)
			check.Equal(t, "timeouts", r.failed(t, "timeout").Count, int64(i+1))
			_ = conn.Close()
		}
	})
}
