package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
)

// clientCAs are those that clients' certificates must be by, and the SPIFFE trust domains that they are of.
type clientCAs struct {
	pool    *x509.CertPool
	domains map[string]bool
}

func newClientCAs(certs []*x509.Certificate) *clientCAs {
	c := &clientCAs{pool: pool(certs), domains: make(map[string]bool)}
	for _, cert := range certs {
		if domain := trustDomain(cert); domain != "" {
			c.domains[domain] = true
		}
	}
	return c
}

// trustDomain returns that of the certificate's SPIFFE ID; empty if it has none. The one of a CA has no path.
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

// verifyTrustDomain refuses a client with a SPIFFE ID that the CAs which it was verified by are not to vouch for: one of them is of
// another trust domain, or there are CAs of that trust domain and it is by none of them.
func (c *clientCAs) verifyTrustDomain(s tls.ConnectionState) error {
	err := errors.New("tls: the client's certificate was not verified")
	for _, chain := range s.VerifiedChains {
		if err = c.verifyChain(chain); err == nil {
			return nil
		}
	}
	return err
}

func (c *clientCAs) verifyChain(chain []*x509.Certificate) error {
	domain := trustDomain(chain[0])
	if domain == "" {
		return nil
	}
	vouched := false
	for _, ca := range chain[1:] {
		of := trustDomain(ca)
		if of != "" && of != domain {
			return fmt.Errorf("tls: a certificate of the trust domain %q is by a CA of %q", domain, of)
		}
		vouched = vouched || of == domain
	}
	if c.domains[domain] && !vouched {
		return fmt.Errorf("tls: a certificate of the trust domain %q is by a CA that is not of it, and others are", domain)
	}
	return nil
}
