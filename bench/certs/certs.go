// Package certs makes the certificates for benchmarks with mutual TLS, and TLS configurations with them.
package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/xdstender/tender/bench/bound"
	"github.com/xdstender/tender/relay/relaytest/certs"
)

// A Set holds a CA certificate, and the certificate and key of servers and of clients, in PEM. All keys are ECDSA
// P-256. All clients use the same certificate.
type Set struct {
	CA                    []byte
	ServerCert, ServerKey []byte
	ClientCert, ClientKey []byte
}

// host is the IP address of all servers, for which their certificate is valid.
const host = "127.0.0.1"

// New returns a new set, which is valid for an hour.
func New() (*Set, error) {
	tb := bound.New()
	s := &Set{}
	err := tb.Do(func() {
		ca := certs.NewCA(tb)
		server, client := ca.Sign(certs.Leaf{Names: []string{host}}), ca.Sign(certs.Leaf{URI: "spiffe://bench/client"})
		*s = Set{ca.PEM, server.Cert, server.Key, client.Cert, client.Key}
	})
	if err := errors.Join(err, tb.End()); err != nil {
		return nil, fmt.Errorf("make certificates: %w", err)
	}
	return s, nil
}

// Environ writes the certificate files for Tender into dir, and returns the variables with their paths.
func (s *Set) Environ(dir string) (environ []string, err error) {
	for _, file := range []struct {
		variable, name string
		content        []byte
	}{
		{"TENDER_TLS_CERT", "tls.crt", s.ServerCert}, {"TENDER_TLS_KEY", "tls.key", s.ServerKey}, {"TENDER_TLS_CLIENT_CA", "ca.crt", s.CA},
	} {
		path := filepath.Join(dir, file.name)
		if err := os.WriteFile(path, file.content, 0o600); err != nil {
			return nil, fmt.Errorf("write certificates: %w", err)
		}
		environ = append(environ, file.variable+"="+path)
	}
	return environ, nil
}

// Server returns the configuration of a gRPC server that requires client certificates. resume enables session tickets.
func (s *Set) Server(resume bool) (*tls.Config, error) {
	config, err := s.config(s.ServerCert, s.ServerKey)
	if err != nil {
		return nil, err
	}
	config.ClientAuth, config.ClientCAs, config.SessionTicketsDisabled = tls.RequireAndVerifyClientCert, config.RootCAs, !resume
	return config, nil
}

// Client returns the configuration of a gRPC client, with the client certificate.
func (s *Set) Client() (*tls.Config, error) {
	config, err := s.config(s.ClientCert, s.ClientKey)
	if err != nil {
		return nil, err
	}
	config.ServerName = host
	return config, nil
}

func (s *Set) config(cert, key []byte) (*tls.Config, error) {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("read certificates: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(s.CA) {
		return nil, errors.New("read certificates: the CA has none")
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{pair}, RootCAs: pool}, nil
}
