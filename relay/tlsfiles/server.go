package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"sync/atomic"
)

// A ServerConfig configures TLS to clients.
type ServerConfig struct {
	// Cert and Key are the certificate of the relay. Required.
	Cert, Key File

	// ClientCA is the file of the CAs that verify client certificates. If the path is empty, no client certificate is
	// requested. TrustDomains require it.
	ClientCA File

	// TrustDomains are the trust domains that SPIFFE IDs of clients may have. If it is empty, any trust domain is
	// allowed. A CA without a SPIFFE ID may then issue certificates of each trust domain for which ClientCA contains no
	// CA with a SPIFFE ID.
	TrustDomains []TrustDomain

	// ClientCAsChanged is called after the CAs of clients have changed, on the goroutine of [Watch.Run]. It may be nil.
	ClientCAsChanged func()
}

// Server opens the files and returns a server whose configurations use their current content at each handshake. It must
// not be called after [Watch.Run].
func (w *Watch) Server(cfg ServerConfig) (*Server, error) {
	s := new(Server)
	errs := []error{w.pairOf(cfg.Cert, cfg.Key, s.pair.Store)}
	if cfg.ClientCA.Path != "" || len(cfg.TrustDomains) > 0 {
		errs = append(errs, s.openClientCAs(w, cfg)...)
	}
	return s, errors.Join(errs...)
}

// openClientCAs opens the files of client CAs. After a change of any file, all CAs are replaced at once.
func (s *Server) openClientCAs(w *Watch, cfg ServerConfig) (errs []error) {
	var general []*x509.Certificate // general and bound are owned by the goroutine of Run once the files are open
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

// A Server makes TLS configurations from the relay's certificate and the client CAs.
type Server struct {
	// Current content of the files.
	pair    atomic.Pointer[tls.Certificate]
	clients atomic.Pointer[clientCAs] // nil if no client certificate is requested
}

// Config returns a TLS configuration for servers of these ALPN protocols.
//
// Session resumption is disabled: a client that resumes a session does not send its certificate again. With connections
// of half an hour, resumption would save little.
func (s *Server) Config(protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		NextProtos:         protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.now(protocols), nil },
	}
}

// IsNamed reports whether the current certificate is valid for a host, which is a name or an IP address.
func (s *Server) IsNamed(host string) bool { return s.pair.Load().Leaf.VerifyHostname(host) == nil }

// now returns the configuration of one handshake, from the current content of the files.
func (s *Server) now(protocols []string) *tls.Config {
	cfg := &tls.Config{
		MinVersion:             tls.VersionTLS12,
		CipherSuites:           suites,
		NextProtos:             protocols,
		Certificates:           []tls.Certificate{*s.pair.Load()},
		SessionTicketsDisabled: true,
	}
	if clients := s.clients.Load(); clients != nil {
		cfg.ClientAuth, cfg.ClientCAs = tls.RequireAndVerifyClientCert, clients.pool
		cfg.VerifyConnection = func(state tls.ConnectionState) error { return s.verify(clients, state) }
	}
	return cfg
}
