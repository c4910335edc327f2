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

// A ClientConfig configures TLS to a server. The zero value verifies the server by the system's CAs and the dialled name.
type ClientConfig struct {
	// CA holds those that the server is verified by. Without a path, the system's do.
	CA File

	// Cert and Key are shown to a server that asks for them. Both have a path or neither.
	Cert, Key File

	// ServerName is the expected SPIFFE ID of the server, which needs CA. Otherwise the server must have the name of the
	// connection's authority (grpc.WithAuthority).
	ServerName string

	// Insecure takes anybody for the server.
	Insecure bool
}

// Client opens files and returns credentials that use them as they are at each
// handshake.
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
	if cfg.Cert.Path != "" {
		errs = append(errs, w.pairOf(cfg.Cert, cfg.Key, c.files.pair.Store))
	}
	return c, errors.Join(errs...)
}

// ClientTLS is Client for servers that do not speak gRPC. It returns the configuration of one handshake with the server at
// a host, which the certificate must be for unless cfg has a ServerName.
func (w *Watch) ClientTLS(cfg ClientConfig) (func(host string) *tls.Config, error) {
	opened, err := w.Client(cfg)
	if err != nil {
		return nil, err
	}
	c := opened.(*client) //nolint:errcheck // which Client returns
	return func(host string) *tls.Config {
		config := c.config()
		if c.id.IsZero() {
			config.ServerName = cmp.Or(cfg.ServerName, host)
		}
		return config
	}, nil
}

// ParseID reads a SPIFFE ID of a workload: one with a path.
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

// cas are those of a file.
type cas struct {
	certs []*x509.Certificate
	pool  *x509.CertPool
}

// clientFiles is what is in force.
type clientFiles struct {
	cas  atomic.Pointer[cas]             // nil for the system's
	pair atomic.Pointer[tls.Certificate] // nil if there is none to show
}

// client makes credentials of gRPC for each handshake.
type client struct {
	credentials.TransportCredentials // of no configuration, for all but the handshake
	files                            *clientFiles
	id                               spiffeid.ID // zero if the server is known by the authority
	insecure                         bool
}

func (c *client) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return credentials.NewTLS(c.config()).ClientHandshake(ctx, authority, raw)
}

// config returns what a handshake needs; its server name is set by gRPC.
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
		// An ID is no host name, which is all that Go verifies: the rest is done here.
		cfg.InsecureSkipVerify = true
		cfg.VerifyConnection = func(s tls.ConnectionState) error { return c.verifyID(s.PeerCertificates, known.certs) }
	}
	return cfg
}

// verifyID reports that the server is not the one with the ID.
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

func (c *client) Clone() credentials.TransportCredentials {
	clone := *c
	return &clone
}
