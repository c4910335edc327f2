package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"sync/atomic"
)

// A ServerConfig configures TLS to clients.
type ServerConfig struct {
	// Cert and Key are shown to clients. Required.
	Cert, Key File

	// ClientCA holds the CAs that clients' certificates must be by. Without a path, none is
	// asked for.
	ClientCA File

	// TrustDomains are the only ones that clients' SPIFFE IDs may be of. If there is none, CAs without a SPIFFE ID
	// vouch for every trust domain that no CA of ClientCA is of.
	TrustDomains []TrustDomain

	// ClientCAsChanged is called after the CAs of clients have changed, by the goroutine of [Watch.Run]. Nil calls
	// nothing.
	ClientCAsChanged func()

	// MinVersion of TLS. Zero means 1.2.
	MinVersion uint16
}

// Server opens files and returns a configuration that uses them as they are at each handshake.
// protocols are those of ALPN.
func (w *Watch) Server(cfg ServerConfig) (*Server, error) {
	s := &Server{min: max(cfg.MinVersion, tls.VersionTLS12), refusals: newRefusals(w.log)}
	errs := []error{w.pairOf(cfg.Cert, cfg.Key, s.pair.Store)}
	if cfg.ClientCA.Path != "" {
		errs = append(errs, s.openClientCAs(w, cfg)...)
	}
	return s, errors.Join(errs...)
}

// openClientCAs opens the files of CAs of clients. Each that changes makes a new set of all.
func (s *Server) openClientCAs(w *Watch, cfg ServerConfig) (errs []error) {
	var general []*x509.Certificate // owned by the watch, as is bound
	bound := make(map[string][]*x509.Certificate)
	opened := false
	changed := func() {
		if !opened {
			return
		}
		s.clients.Store(newClientCAs(general, bound))
		if cfg.ClientCAsChanged != nil {
			cfg.ClientCAsChanged()
		}
	}
	errs = append(errs, w.casOf(cfg.ClientCA, func(certs []*x509.Certificate) { general = certs; changed() }))
	for _, d := range cfg.TrustDomains {
		bound[d.Name] = nil
		if d.CA.Path != "" {
			errs = append(errs, w.casOf(d.CA, func(certs []*x509.Certificate) { bound[d.Name] = certs; changed() }))
		}
	}
	opened = true
	s.clients.Store(newClientCAs(general, bound))
	return errs
}

// A Server is what clients are shown, and whom of them it lets in.
type Server struct {
	min      uint16
	refusals refusals

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
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) { return s.now(protocols, hello.Conn), nil },
	}
}

// IsNamed reports whether a host, which is a name or an IP address, is one that the certificate
// is for.
func (s *Server) IsNamed(host string) bool { return s.pair.Load().Leaf.VerifyHostname(host) == nil }

// now returns what a handshake with a client needs.
func (s *Server) now(protocols []string, client net.Conn) *tls.Config {
	cfg := &tls.Config{
		MinVersion:             s.min,
		CipherSuites:           suites,
		NextProtos:             protocols,
		Certificates:           []tls.Certificate{*s.pair.Load()},
		SessionTicketsDisabled: true,
	}
	if clients := s.clients.Load(); clients != nil {
		cfg.ClientAuth, cfg.ClientCAs = tls.RequireAndVerifyClientCert, clients.pool
		cfg.VerifyConnection = func(state tls.ConnectionState) error { return s.verify(clients, client, state) }
	}
	return cfg
}
