package tlsfiles

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"github.com/xdstender/tender/downstream/guard"
)

// A TrustDomain is a SPIFFE trust domain, with the CAs that may issue certificates for it.
type TrustDomain struct {
	Name string // such as example.org

	// CA is the file of the CAs for the trust domain. They may issue no other certificates. If the path is empty, the
	// CAs of [ServerConfig.ClientCA] may issue certificates for the trust domain.
	CA File
}

// clientCAs are the CAs of client certificates, with their trust domains. A CA vouches for a client if it may issue a
// certificate with the client's SPIFFE ID. The struct is immutable.
type clientCAs struct {
	pool *x509.CertPool // all CAs

	// general are the CAs of [ServerConfig.ClientCA], by their DER bytes. owned are the trust domains of the SPIFFE IDs
	// in these CAs.
	general map[string]*x509.Certificate
	owned   map[string]bool

	// bound are the CAs of each trust domain in [ServerConfig.TrustDomains], by their DER bytes. A nil value means that
	// the general CAs vouch for the trust domain. The map is nil if TrustDomains is empty.
	bound map[string]map[string]*x509.Certificate
}

// newClientCAs returns the CAs of all files. bound contains the CAs by trust domain; see clientCAs.
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

// add adds CAs to the pool and returns them by their DER bytes. It returns nil if certs is empty.
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

// trustDomain returns the trust domain of the certificate's SPIFFE ID, or "" if it has none. It accepts IDs without a
// path, since the SPIFFE ID of a CA has none.
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

// verify returns an error unless one of the verified chains ends with a CA that may vouch for the client.
func (c *clientCAs) verify(chains [][]*x509.Certificate) error {
	err := errors.New("the client's certificate was not verified")
	for _, chain := range chains {
		if err = c.verifyChain(chain); err == nil {
			return nil
		}
	}
	return err
}

// verifyChain returns an error unless the root of a chain, which the operator configured, may vouch for the client. An
// intermediate certificate cannot give this right: its issuer may choose any SPIFFE ID for it.
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

// verifyBinding returns an error unless the root CA is bound to the trust domain of the client. For a client without a
// SPIFFE ID, the CA must be one of the general CAs.
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

// unbound returns the number of CAs without a SPIFFE ID that may issue certificates of a trust domain. It excludes CAs
// that another CA of the file has signed, and counts CAs with the same key once.
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

// isSubordinate reports whether another CA of the file has signed cert.
func (c *clientCAs) isSubordinate(cert *x509.Certificate) bool {
	for _, by := range c.general {
		if !bytes.Equal(cert.RawSubject, cert.RawIssuer) && bytes.Equal(cert.RawIssuer, by.RawSubject) && cert.CheckSignatureFrom(by) == nil {
			return true
		}
	}
	return false
}

// VouchedBy returns the number of CAs without a SPIFFE ID that may issue certificates of a trust domain; it is zero if
// the domain is bound to CAs. vouched reports whether any CA may issue certificates of the domain.
func (s *Server) VouchedBy(domain string) (unbound int, vouched bool) {
	clients := s.clients.Load()
	if clients == nil {
		return 0, false
	}
	_, listed := clients.bound[domain]
	return clients.unbound(domain), clients.bound == nil || listed
}

// verify returns an error if no CA may vouch for the certificate of a client. The error names both.
func (s *Server) verify(clients *clientCAs, state tls.ConnectionState) error {
	err := clients.verify(state.VerifiedChains)
	if err == nil {
		return nil
	}
	var of string
	if chains := state.VerifiedChains; len(chains) > 0 {
		leaf, root := chains[0][0], chains[0][len(chains[0])-1]
		if len(leaf.URIs) > 0 {
			of = fmt.Sprintf(" identity=%.256s", leaf.URIs[0])
		}
		of += fmt.Sprintf(" ca=%.256q", root.Subject)
	}
	return guard.Denies(guard.DeniedTrustDomain, "%v%s", err, of)
}
