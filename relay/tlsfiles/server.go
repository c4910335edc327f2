package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"sync/atomic"
)

// A ServerConfig says how clients are spoken to.
type ServerConfig struct {
	// Cert and Key are shown to clients. Required.
	Cert, Key File

	// ClientCA holds the CAs that clients' certificates must be by. Without a path, none is
	// asked for.
	ClientCA File

	// MinVersion of TLS. Zero means 1.2.
	MinVersion uint16
}

// Server opens files and returns a configuration that uses them as they are at each handshake.
// protocols are those of ALPN.
func (w *Watch) Server(cfg ServerConfig) (*Server, error) {
	s := &Server{min: max(cfg.MinVersion, tls.VersionTLS12)}
	errs := []error{w.pairOf(cfg.Cert, cfg.Key, s.pair.Store)}
	if cfg.ClientCA.Path != "" {
		errs = append(errs, w.casOf(cfg.ClientCA, func(certs []*x509.Certificate) { s.clients.Store(newClientCAs(certs)) }))
	}
	return s, errors.Join(errs...)
}

// A Server is what clients are shown, and whom of them it lets in.
type Server struct {
	min uint16

	// In force now.
	pair    atomic.Pointer[tls.Certificate]
	clients atomic.Pointer[clientCAs] // nil if no certificate is asked for
}

// Config returns a configuration for servers of these protocols, as ALPN calls them.
//
// Sessions are not resumed. A client that resumes one shows no certificate again, and what it
// saves is little where connections last for half an hour.
func (s *Server) Config(protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion:         s.min,
		NextProtos:         protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.now(protocols), nil },
	}
}

// IsNamed reports whether a host, which is a name or an IP address, is one that the certificate
// is for.
func (s *Server) IsNamed(host string) bool { return s.pair.Load().Leaf.VerifyHostname(host) == nil }

// now returns what a handshake needs.
func (s *Server) now(protocols []string) *tls.Config {
	cfg := &tls.Config{
		MinVersion:             s.min,
		CipherSuites:           suites,
		NextProtos:             protocols,
		Certificates:           []tls.Certificate{*s.pair.Load()},
		SessionTicketsDisabled: true,
	}
	if clients := s.clients.Load(); clients != nil {
		cfg.ClientAuth, cfg.ClientCAs = tls.RequireAndVerifyClientCert, clients.pool
		cfg.VerifyConnection = clients.verifyTrustDomain
	}
	return cfg
}
