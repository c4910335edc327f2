package tlsfiles

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/grpc/credentials"
)

// A ClientConfig configures TLS to a server. The zero value verifies the server with the CAs of the system and the name
// that was dialled.
type ClientConfig struct {
	// CA is the file of the CAs that verify the server. If the path is empty, the CAs of the system do.
	CA File

	// Cert and Key are the client certificate for servers that request one. Set both paths or neither.
	Cert, Key File

	// ServerName is the expected SPIFFE ID of the server; CA is required then. If it is not a SPIFFE ID, the server's
	// certificate must contain the authority of the connection (grpc.WithAuthority).
	ServerName string

	// Insecure disables the verification of the server.
	Insecure bool
}

// Client opens the files and returns credentials that use their current content at each handshake. It must not be
// called after [Watch.Run].
func (w *Watch) Client(cfg ClientConfig) (credentials.TransportCredentials, error) {
	c := &client{TransportCredentials: credentials.NewTLS(nil), files: new(clientFiles), insecure: cfg.Insecure}
	if strings.HasPrefix(cfg.ServerName, "spiffe:") {
		id, err := ParseID(cfg.ServerName)
		if err != nil {
			return nil, err
		}
		c.id = id
	}
	var errs []error
	if cfg.CA.Path != "" {
		errs = append(errs, w.casOf(cfg.CA, func(certs []*x509.Certificate) { c.files.cas.Store(&cas{certs, pool(certs)}) }))
	}
	if cfg.Cert.Path != "" || cfg.Key.Path != "" {
		errs = append(errs, w.pairOf(cfg.Cert, cfg.Key, c.files.pair.Store))
	}
	return c, errors.Join(errs...)
}

// ClientTLS is Client for other protocols than gRPC. The function that it returns makes the configuration for one
// handshake with a host. The server's certificate must be valid for this host, unless cfg.ServerName is set.
func (w *Watch) ClientTLS(cfg ClientConfig) (func(host string) *tls.Config, error) {
	opened, err := w.Client(cfg)
	if err != nil {
		return nil, err
	}
	c := opened.(*client) //nolint:errcheck // Client always returns a *client
	return func(host string) *tls.Config {
		config := c.config()
		if c.id.IsZero() {
			config.ServerName = cmp.Or(cfg.ServerName, host)
		}
		return config
	}, nil
}

// ParseID parses the SPIFFE ID of a workload. An ID without a path names a trust domain and is an error.
func ParseID(text string) (spiffeid.ID, error) {
	id, err := spiffeid.FromString(text)
	if err == nil && id.Path() == "" {
		err = errors.New("it has no path, and so is that of a trust domain")
	}
	if err != nil {
		return spiffeid.ID{}, fmt.Errorf("%q is not a SPIFFE ID such as spiffe://example.org/control-plane: %w", text, err)
	}
	return id, nil
}

// cas are the CAs of a file. It is immutable.
type cas struct {
	certs []*x509.Certificate
	pool  *x509.CertPool // of certs
}

// clientFiles is the current content of the files. Clones of a client share it.
type clientFiles struct {
	cas  atomic.Pointer[cas]             // nil for the CAs of the system
	pair atomic.Pointer[tls.Certificate] // nil without a client certificate
}

// client implements credentials.TransportCredentials. It makes a new configuration for each handshake.
type client struct {
	credentials.TransportCredentials // implements the methods other than ClientHandshake and Clone
	files                            *clientFiles
	id                               spiffeid.ID // expected SPIFFE ID; zero if the server is verified by name
	insecure                         bool
}

// ClientHandshake implements credentials.TransportCredentials.
func (c *client) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return credentials.NewTLS(c.config()).ClientHandshake(ctx, authority, raw)
}

// config returns the configuration of one handshake. The caller or gRPC sets the server name.
func (c *client) config() *tls.Config {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, CipherSuites: suites}
	if pair := c.files.pair.Load(); pair != nil {
		// The certificate is sent even if the server names other CAs: it may accept more than it names, and if it does
		// not, its error is more specific.
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair, nil }
	}
	known := c.files.cas.Load()
	if known != nil {
		cfg.RootCAs = known.pool
	}
	switch {
	case c.insecure:
		cfg.InsecureSkipVerify = true
	case !c.id.IsZero():
		// crypto/tls verifies host names only, so it is disabled and VerifyConnection verifies the SPIFFE ID.
		cfg.InsecureSkipVerify = true
		cfg.VerifyConnection = func(s tls.ConnectionState) error { return c.verifyID(s.PeerCertificates, known.certs) }
	}
	return cfg
}

// verifyID returns an error unless the authorities verify the chain of the server and its SPIFFE ID is c.id.
func (c *client) verifyID(chain, authorities []*x509.Certificate) error {
	id, _, err := x509svid.Verify(chain, x509bundle.FromX509Authorities(c.id.TrustDomain(), authorities))
	if err != nil {
		return fmt.Errorf("verify that the server is %s: %w", c.id, err)
	}
	if id != c.id {
		return fmt.Errorf("the server is %s, want %s", id, c.id)
	}
	return nil
}

// Clone implements credentials.TransportCredentials. The clone also uses later content of the files.
func (c *client) Clone() credentials.TransportCredentials {
	clone := *c
	return &clone
}
