package tlsfiles_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

// serveTLS starts a relay with mTLS, and an origin with one cluster, on sockets or in memory. env contains more variables.
func serveTLS(t *testing.T, memory bool, ca *certs.CA, dir string, env ...string) (r *running, o *relaytest.Origin) {
	t.Helper()
	cert, key := ca.Sign(certs.Leaf{Names: []string{"127.0.0.1"}}).Write(t, dir)
	o = relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: memory})
	o.Put(relaytest.Cluster("a"))
	env = append(env, "TENDER_TLS_CERT="+cert, "TENDER_TLS_KEY="+key, "TENDER_TLS_CLIENT_CA="+certs.WriteFile(t, dir, "ca.pem", ca.PEM))
	return &running{instance.Start(t, instance.Options{Origins: []*relaytest.Origin{o}, Env: env})}, o
}

// TestWhoIsServed checks which clients a relay with mTLS accepts, on the gRPC and the REST address.
func TestWhoIsServed(t *testing.T) {
	ca, other := certs.NewCA(t), certs.NewCA(t)
	r, _ := serveTLS(t, false, ca, t.TempDir(), "TENDER_REST_LISTEN=127.0.0.1:0")
	tests := []struct {
		name  string
		shown *certs.Pair
		most  uint16
		want  string // part of the error; empty for success
	}{
		{"a certificate with a SPIFFE ID", new(ca.Sign(certs.Leaf{URI: "spiffe://example.org/envoy"})), 0, ""},
		{"no certificate", nil, 0, "certificate required"},
		{"a certificate by another CA", new(other.Sign(certs.Leaf{})), 0, "unknown certificate authority"},
		{"an expired certificate", new(ca.Sign(certs.Leaf{NotAfter: time.Now().Add(-time.Minute)})), 0, "expired certificate"},
		{"TLS 1.1", new(ca.Sign(certs.Leaf{})), tls.VersionTLS11, "protocol version not supported"},
	}
	for _, tt := range tests {
		cfg := &tls.Config{RootCAs: trusting(ca), NextProtos: []string{"h2"}, MinVersion: tt.most, MaxVersion: tt.most}
		if tt.shown != nil {
			shown := pair(t, *tt.shown)
			cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &shown, nil }
		}
		for where, address := range map[string]net.Addr{"streams": r.Addrs()[0], "REST": r.RESTAddrs()[0]} {
			conn, err := tls.Dial("tcp", address.String(), cfg)
			if err == nil {
				_ = conn.SetReadDeadline(time.Now().Add(relaytest.Patience))
				_, _ = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00") // which no settings follow
				_, err = conn.Read(make([]byte, 1))                                                                 // the server's settings of HTTP/2, or its alert
				_ = conn.Close()
			}
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s, %s: %v, want %q", where, tt.name, err, tt.want)
			}
		}
	}
}

// TestCertificateOfTheRelay checks that a new certificate closes no stream and is used for new connections, of streams and
// of polls.
func TestCertificateOfTheRelay(t *testing.T) { synctest.Test(t, testCertificateOfTheRelay) }

func testCertificateOfTheRelay(t *testing.T) {
	ca, dir := certs.NewCA(t), t.TempDir()
	r, o := serveTLS(t, true, ca, dir, "TENDER_REST_LISTEN=127.0.0.1:0")
	seen := ""
	cfg := &tls.Config{
		RootCAs: trusting(ca), Certificates: []tls.Certificate{pair(t, ca.Sign(certs.Leaf{}))}, ServerName: "127.0.0.1",
		VerifyConnection: func(s tls.ConnectionState) error { seen = serial(s.PeerCertificates[0]); return nil },
	}
	c := r.client(t, credentials.NewTLS(cfg))
	c.Subscribe(relaytest.ClusterType)
	holds(t, c, "a")
	next := ca.Sign(certs.Leaf{Names: []string{"127.0.0.1"}})
	next.Write(t, dir)
	r.Log.Await(t, 0, "credential file reloaded")
	o.Put(relaytest.Cluster("b"))
	holds(t, c, "a", "b")
	want := serial(pair(t, next).Leaf)
	another := r.client(t, credentials.NewTLS(cfg))
	another.Subscribe(relaytest.ClusterType)
	if holds(t, another, "a", "b"); seen != want {
		t.Errorf("a new stream received the certificate %s, want the new one, %s", seen, want)
	}

	for _, major := range []int{1, 2} {
		seen = ""
		poll := &http.Client{Transport: &http.Transport{
			TLSClientConfig: cfg.Clone(), DisableKeepAlives: true, ForceAttemptHTTP2: major == 2,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return r.DialREST(ctx) },
		}}
		resp, err := poll.Post("https://127.0.0.1/v3/discovery:clusters", "application/json", strings.NewReader(`{"node":{"id":"n"}}`))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if _ = resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK || resp.ProtoMajor != major || !strings.Contains(string(body), `"b"`) {
			t.Errorf("REST over HTTP/%d: %s %s %s, %v, want the clusters", major, resp.Proto, resp.Status, body, err)
		}
		if seen != want {
			t.Errorf("REST over HTTP/%d: certificate %s, want the new one, %s", major, seen, want)
		}
	}
}

// TestPlaintextIsSaid checks that one warning lists the addresses on which traffic can be intercepted. There is none if
// all traffic is encrypted or local.
func TestPlaintextIsSaid(t *testing.T) {
	tests := []struct {
		env  []string
		want string
	}{
		{[]string{"TENDER_ORIGIN=192.0.2.1:1", "TENDER_REST_LISTEN=0.0.0.0:0"}, `listen=0.0.0.0:0 origin=192.0.2.1:1`},
		{[]string{"TENDER_ORIGIN=192.0.2.1:1", "TENDER_ORIGIN_TLS=on"}, ""},
		{[]string{"TENDER_ORIGIN=127.0.0.1:1"}, ""},
	}
	for _, tt := range tests {
		got := start(t, tt.env...).Log.String()
		if strings.Count(got, "without TLS") != min(1, len(tt.want)) || !strings.Contains(got, tt.want) {
			t.Errorf("%q: log is %q, want one warning with %q, or none if that is empty", tt.env, got, tt.want)
		}
	}
}
