package tlsfiles

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"golang.org/x/time/rate"
)

// A TrustDomain is a SPIFFE trust domain, and the CAs that vouch for it.
type TrustDomain struct {
	Name string // such as example.org

	// CA holds the CAs that vouch for the trust domain, and for nothing else. Without a path, the CAs of
	// [ServerConfig.ClientCA] vouch for it.
	CA File
}

// clientCAs are the CAs that vouch for clients. It is immutable.
type clientCAs struct {
	pool *x509.CertPool // all CAs

	// general are the CAs of [ServerConfig.ClientCA], by their bytes, and owned the trust domains that the
	// SPIFFE IDs of these CAs are of.
	general map[string]*x509.Certificate
	owned   map[string]bool

	// bound are the CAs of each trust domain that has a binding, by their bytes; nil where general are the CAs of
	// it. The map is nil if no trust domain has a binding.
	bound map[string]map[string]*x509.Certificate
}

func newClientCAs(general []*x509.Certificate, bound map[string][]*x509.Certificate) *clientCAs {
	c := &clientCAs{pool: x509.NewCertPool(), owned: make(map[string]bool)}
	c.general = c.add(general)
	for _, cert := range general {
		if domain := trustDomain(cert); domain != "" {
			c.owned[domain] = true
		}
	}
	for domain, certs := range bound {
		if c.bound == nil {
			c.bound = make(map[string]map[string]*x509.Certificate)
		}
		c.bound[domain] = c.add(certs)
	}
	return c
}

// add adds CAs to the pool, and returns them by their bytes; nil for none.
func (c *clientCAs) add(certs []*x509.Certificate) map[string]*x509.Certificate {
	if len(certs) == 0 {
		return nil
	}
	set := make(map[string]*x509.Certificate, len(certs))
	for _, cert := range certs {
		c.pool.AddCert(cert)
		set[string(cert.Raw)] = cert
	}
	return set
}

// trustDomain returns the trust domain of the certificate's SPIFFE ID; empty if it has none. The ID of a CA has no
// path.
//
// Source: SPIFFE X.509-SVID, 3.1 and 4.1.
func trustDomain(cert *x509.Certificate) string {
	for _, uri := range cert.URIs {
		if uri.Scheme == "spiffe" {
			return uri.Host
		}
	}
	return ""
}

// verify returns an error if no CA that a client's certificate was verified by may vouch for it.
func (c *clientCAs) verify(chains [][]*x509.Certificate) error {
	err := errors.New("the client's certificate was not verified")
	for _, chain := range chains {
		if err = c.verifyChain(chain); err == nil {
			return nil
		}
	}
	return err
}

// verifyChain decides by the CA that the chain ends with, which is in a file of the operator's: an intermediate
// certificate may have any SPIFFE ID that its issuer chose.
func (c *clientCAs) verifyChain(chain []*x509.Certificate) error {
	leaf, root := chain[0], chain[len(chain)-1]
	domain := trustDomain(leaf)
	if c.bound == nil && domain == "" {
		return nil
	}
	if c.bound != nil {
		if err := c.verifyBinding(leaf, root); err != nil || domain == "" {
			return err
		}
	}
	for _, ca := range chain[1:] {
		if of := trustDomain(ca); of != "" && of != domain {
			return fmt.Errorf("a CA of the trust domain %q may not vouch for %q", of, domain)
		}
	}
	if c.bound[domain] == nil && c.owned[domain] && trustDomain(root) != domain {
		return fmt.Errorf("a CA without a SPIFFE ID may not vouch for the trust domain %q, since other CAs are of that", domain)
	}
	return nil
}

// verifyBinding returns an error if the bindings do not let a CA vouch for a client.
func (c *clientCAs) verifyBinding(leaf, root *x509.Certificate) error {
	domain := trustDomain(leaf)
	if domain == "" {
		if c.general[string(root.Raw)] == nil {
			return errors.New("a CA of a trust domain may not vouch for a certificate without a SPIFFE ID; one of TENDER_TLS_CLIENT_CA may")
		}
		return nil
	}
	if _, err := x509svid.IDFromCert(leaf); err != nil {
		return fmt.Errorf("the certificate has no valid SPIFFE ID: %w", err)
	}
	cas, listed := c.bound[domain]
	if cas == nil {
		cas = c.general
	}
	switch {
	case !listed:
		return fmt.Errorf("the trust domain %q is not in TENDER_TLS_TRUST_DOMAINS (%s)", domain, strings.Join(slices.Sorted(maps.Keys(c.bound)), ", "))
	case cas[string(root.Raw)] == nil:
		return fmt.Errorf("the CA may not vouch for the trust domain %q: TENDER_TLS_TRUST_DOMAINS binds that to other CAs", domain)
	}
	return nil
}

// unbound returns the number of CAs without a trust domain that may issue certificates of this domain. CAs that another CA
// of the file has signed do not count, and CAs with the same key count once.
func (c *clientCAs) unbound(domain string) int {
	if c.bound != nil || c.owned[domain] {
		return 0
	}
	keys := make(map[string]bool)
	for _, cert := range c.general {
		if trustDomain(cert) == "" && !c.isSubordinate(cert) {
			keys[string(cert.RawSubjectPublicKeyInfo)] = true
		}
	}
	return len(keys)
}

// isSubordinate reports whether another CA of the file has signed the one given.
func (c *clientCAs) isSubordinate(cert *x509.Certificate) bool {
	for _, by := range c.general {
		if !bytes.Equal(cert.RawSubject, cert.RawIssuer) && bytes.Equal(cert.RawIssuer, by.RawSubject) && cert.CheckSignatureFrom(by) == nil {
			return true
		}
	}
	return false
}

// VouchedBy returns the number of CAs without a SPIFFE ID that may issue certificates of a trust domain that is not bound
// to CAs, and whether any CA may.
func (s *Server) VouchedBy(domain string) (unbound int, vouched bool) {
	clients := s.clients.Load()
	if clients == nil {
		return 0, false
	}
	_, listed := clients.bound[domain]
	return clients.unbound(domain), clients.bound == nil || listed
}

// Refused returns how many certificates were refused that a CA vouched for which may not.
func (s *Server) Refused() int64 { return s.refusals.n.Load() }

// refusals counts and logs clients whose certificates are by CAs that may not vouch for them.
type refusals struct {
	log   *slog.Logger
	limit *rate.Limiter

	n, skipped atomic.Int64 // skipped were not logged
}

// A client that is refused connects again, and a fleet of them would fill the log.
func newRefusals(log *slog.Logger) refusals {
	return refusals{log: log, limit: rate.NewLimiter(1, 10)}
}

// verify refuses a client, whose address is from, if no CA may vouch for its certificate.
func (s *Server) verify(clients *clientCAs, from net.Conn, state tls.ConnectionState) error {
	err := clients.verify(state.VerifiedChains)
	if err == nil {
		return nil
	}
	s.refusals.n.Add(1)
	if !s.refusals.limit.Allow() {
		s.refusals.skipped.Add(1)
		return fmt.Errorf("tls: %w", err)
	}
	attrs := []any{slog.String("client", from.RemoteAddr().String())}
	if chains := state.VerifiedChains; len(chains) > 0 {
		leaf, root := chains[0][0], chains[0][len(chains[0])-1]
		for _, uri := range leaf.URIs {
			attrs = append(attrs, slog.String("identity", fmt.Sprintf("%.256s", uri)))
			break
		}
		attrs = append(attrs, slog.String("ca", fmt.Sprintf("%.256s", root.Subject)))
	}
	s.refusals.log.Warn("client certificate rejected by trust domain", append(attrs, slog.Any("err", err), slog.Int64("others_left_out", s.refusals.skipped.Swap(0)))...)
	return fmt.Errorf("tls: %w", err)
}
