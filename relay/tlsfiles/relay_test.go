package tlsfiles_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

// A running is a relay that serves real sockets.
type running struct {
	*instance.Relay
}

// start runs a relay until the test ends.
func start(t *testing.T, env ...string) *running {
	t.Helper()
	return &running{instance.Start(t, instance.Options{Env: env})}
}

// startInMemory is start in memory, for virtual time.
func startInMemory(t *testing.T, o *relaytest.Origin, env ...string) *running {
	t.Helper()
	opts := instance.Of(o)
	opts.Env = env
	return &running{instance.Start(t, opts)}
}

// client returns a client with credentials. Its connection is closed at the end of the test.
func (r *running) client(t *testing.T, creds credentials.TransportCredentials) *relaytest.Client {
	t.Helper()
	return relaytest.NewClient(t, r.Conn(grpc.WithTransportCredentials(creds)), relaytest.ClientOptions{AutoAck: true})
}

// holds waits until a client has received these clusters.
func holds(t *testing.T, c *relaytest.Client, names ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), relaytest.Patience)
	defer cancel()
	c.WaitState(ctx, func(s relaytest.State) bool { return s.Has(relaytest.ClusterType, names...) })
}

// A secured is an origin that requires client certificates, and records them and the metadata of all streams.
type secured struct {
	*relaytest.Origin

	mu            sync.Mutex
	serials       []string // serial numbers of the client certificates, one per connection
	authorization []string // values of the header authorization, one per stream
	tenants       []string // values of the header x-tenant, one per stream
}

// newSecured starts an origin in memory whose certificate has the SPIFFE ID id.
func newSecured(t *testing.T, ca *certs.CA, id string) *secured {
	s := new(secured)
	server := &tls.Config{
		Certificates: []tls.Certificate{pair(t, ca.Sign(certs.Leaf{URI: id}))},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: trusting(ca),
		VerifyConnection: func(state tls.ConnectionState) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.serials = append(s.serials, serial(state.PeerCertificates[0]))
			return nil
		},
	}
	note := func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		md, _ := metadata.FromIncomingContext(stream.Context())
		s.mu.Lock()
		s.authorization = append(s.authorization, md.Get("authorization")...)
		s.tenants = append(s.tenants, md.Get("x-tenant")...)
		s.mu.Unlock()
		return handle(srv, stream)
	}
	s.Origin = relaytest.NewOrigin(t, relaytest.OriginOptions{
		Memory:        true,
		ServerOptions: []grpc.ServerOption{grpc.Creds(credentials.NewTLS(server)), grpc.ChainStreamInterceptor(note)},
	})
	return s
}

// told returns copies of the recorded serial numbers and headers.
func (s *secured) told() (serials, authorization, tenants []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.serials), slices.Clone(s.authorization), slices.Clone(s.tenants)
}

// serial returns the serial number of a certificate as text.
func serial(cert *x509.Certificate) string { return cert.SerialNumber.String() }

// TestFilesOfAnOrigin checks that a relay connects with a client certificate and a token to an origin with a SPIFFE ID.
// Changed files do not affect the open stream. The next connection and the next stream use the new content.
func TestFilesOfAnOrigin(t *testing.T) { synctest.Test(t, testFilesOfAnOrigin) }

func testFilesOfAnOrigin(t *testing.T) {
	const id = "spiffe://example.org/control-plane"
	ca, dir := certs.NewCA(t), t.TempDir()
	o := newSecured(t, ca, id)
	o.Put(relaytest.Cluster("a"))
	first, second := ca.Sign(certs.Leaf{URI: "spiffe://example.org/tender"}), ca.Sign(certs.Leaf{URI: "spiffe://example.org/tender"})
	cert, key := first.Write(t, dir)
	r := startInMemory(t, o.Origin,
		"TENDER_ORIGIN_TLS_CA="+certs.WriteFile(t, dir, "ca.pem", ca.PEM), "TENDER_ORIGIN_TLS_SERVER_NAME="+id,
		"TENDER_ORIGIN_TLS_CERT="+cert, "TENDER_ORIGIN_TLS_KEY="+key, "TENDER_ADMIN_LISTEN=127.0.0.1:0",
		"TENDER_ORIGIN_TOKEN_FILE="+certs.WriteFile(t, dir, "token", []byte("one")), "TENDER_ORIGIN_HEADERS=X-Tenant=blue",
	)
	c := r.client(t, insecure.NewCredentials())
	c.Subscribe(relaytest.ClusterType)
	holds(t, c, "a")

	second.Write(t, dir)
	certs.WriteFile(t, dir, "token", []byte("two"))
	r.Log.Await(t, 0, `files="[TENDER_ORIGIN_TLS_CERT=`)
	r.Log.Await(t, 0, `files="[TENDER_ORIGIN_TOKEN_FILE=`)
	certs.WriteFile(t, dir, "token", nil)
	r.Log.Await(t, 0, "it has no token")
	r.checkFiles(t, pair(t, second).Leaf)
	o.Put(relaytest.Cluster("b"))
	holds(t, c, "a", "b")
	if streams := len(o.State().Streams); streams != 1 {
		t.Errorf("the relay opened %d streams, want 1", streams)
	}

	o.GoAway()
	o.Stop()
	o.Restart()
	o.Put(relaytest.Cluster("c"))
	holds(t, c, "a", "b", "c")
	serials, authorization, tenants := o.told()
	firstSerial, secondSerial := serial(pair(t, first).Leaf), serial(pair(t, second).Leaf)
	if serials[0] != firstSerial || serials[len(serials)-1] != secondSerial {
		t.Errorf("connections with the certificates %q, want %s first and %s last", serials, firstSerial, secondSerial)
	}
	if authorization[0] != "Bearer one" || authorization[len(authorization)-1] != "Bearer two" || tenants[0] != "blue" {
		t.Errorf("streams with authorization %q and x-tenant %q, want the first token first, the second token last, and blue", authorization, tenants)
	}
}

// checkFiles checks the status and the metrics of the files in [TestFilesOfAnOrigin] after the token file was refused.
func (r *running) checkFiles(t *testing.T, cert *x509.Certificate) {
	t.Helper()
	ask := func(path string) []byte {
		client := http.Client{Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return r.DialAdmin(ctx) },
		}}
		reply, err := client.Get("http://localhost" + path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = reply.Body.Close() }()
		body, err := io.ReadAll(reply.Body)
		if err != nil || reply.StatusCode != http.StatusOK {
			t.Fatalf("GET %s: %s, %v", path, reply.Status, err)
		}
		return body
	}
	var status admin.Status
	if err := json.Unmarshal(ask("/api/v1/status"), &status); err != nil {
		t.Fatal(err)
	}
	if len(status.Files) != 3 {
		t.Fatalf("status of the files: %+v, want entries for the CAs, for the certificate with its key, and for the token", status.Files)
	}
	pair, token := status.Files[1], status.Files[2]
	if len(pair.Files) != 2 || pair.Files[1].Variable != "TENDER_ORIGIN_TLS_KEY" || !pair.NotAfter.Equal(cert.NotAfter) || pair.Error != "" {
		t.Errorf("status of the certificate: %+v, want no error and expiry at %s", pair, cert.NotAfter)
	}
	if token.Error == "" || token.Refused != 1 || !token.NotAfter.IsZero() {
		t.Errorf("status of the token: %+v, want an error and one refused change", token)
	}
	metrics := string(ask("/metrics"))
	for _, want := range []string{
		`tender_tls_expiry_seconds{file="TENDER_ORIGIN_TLS_CERT"} ` + strconv.FormatFloat(float64(cert.NotAfter.Unix()), 'g', -1, 64) + "\n",
		`tender_tls_refusals_total{file="TENDER_ORIGIN_TLS_CERT"} 0` + "\n",
		`tender_tls_refusals_total{file="TENDER_ORIGIN_TOKEN_FILE"} 1` + "\n",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics does not contain %s", want)
		}
	}
	if strings.Contains(metrics, `tender_tls_expiry_seconds{file="TENDER_ORIGIN_TOKEN_FILE"}`) {
		t.Error("/metrics contains an expiry of the token")
	}
}

// TestOriginThatIsAnother checks that a relay opens no stream to an origin with another SPIFFE ID, and logs the reason.
func TestOriginThatIsAnother(t *testing.T) {
	ca, dir := certs.NewCA(t), t.TempDir()
	o := newSecured(t, ca, "spiffe://example.org/impostor")
	cert, key := ca.Sign(certs.Leaf{}).Write(t, dir)
	r := startInMemory(t, o.Origin,
		"TENDER_ORIGIN_TLS_CA="+certs.WriteFile(t, dir, "ca.pem", ca.PEM), "TENDER_ORIGIN_TLS_SERVER_NAME=spiffe://example.org/control-plane",
		"TENDER_ORIGIN_TLS_CERT="+cert, "TENDER_ORIGIN_TLS_KEY="+key,
	)
	r.client(t, insecure.NewCredentials()).Subscribe(relaytest.ClusterType)
	r.Log.Await(t, 0, "the server is spiffe://example.org/impostor, want spiffe://example.org/control-plane")
	if streams := len(o.State().Streams); streams != 0 {
		t.Errorf("the relay opened %d streams, want none", streams)
	}
}

// TestStartWithBadFiles checks that a relay does not start with invalid files, and that the error names all of them.
func TestStartWithBadFiles(t *testing.T) {
	dir := t.TempDir()
	cfg, err := relay.LoadConfig([]string{"TENDER_ORIGIN=a:1", "TENDER_ORIGIN_TLS_CA=" + dir + "/ca.pem", "TENDER_ORIGIN_TOKEN_FILE=" + dir + "/token"})
	if err != nil {
		t.Fatal(err)
	}
	want := `TENDER_ORIGIN_TLS_CA="` + dir + `/ca.pem": no such file or directory` + "\n" + `TENDER_ORIGIN_TOKEN_FILE="` + dir + `/token": no such file or directory`
	if _, err := relay.New(cfg, relay.Options{}); err == nil || err.Error() != want {
		t.Errorf("New: %v, want %s", err, want)
	}
	if _, err := cfg.CheckFiles(); err == nil || err.Error() != want {
		t.Errorf("CheckFiles: %v, want %s", err, want)
	}
}

// all returns the log since the last call of take.
func (l *logged) all() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(bytes.Clone(l.text.Bytes()))
}
