package config

import (
	"fmt"

	"github.com/xdstender/tender/relay/tlsfiles"
)

// trustDomainFiles returns trust domains with the files that are read for them. The name of a file has its trust domain: a
// metric has one series for each name.
func trustDomainFiles(domains []TrustDomain) (files []tlsfiles.TrustDomain) {
	for _, d := range domains {
		of := tlsfiles.TrustDomain{Name: d.Name}
		if d.CA != "" {
			of.CA = tlsfiles.File{Variable: "TENDER_TLS_TRUST_DOMAINS=" + d.Name, Path: d.CA}
		}
		files = append(files, of)
	}
	return files
}

// trustWarnings says, a line for each, which trust domains of the rules any of several CAs may vouch for, or none.
func (c *Credentials) trustWarnings(cfg *Config) (lines []string) {
	if c.Clients == nil || cfg.TLSClientCA == "" {
		return nil
	}
	for _, domain := range c.Authorizer.TrustDomains() {
		switch unbound, vouched := c.Clients.VouchedBy(domain); {
		case !vouched:
			lines = append(lines, fmt.Sprintf("TENDER_AUTHZ: there are rules about the trust domain %q, which is not in TENDER_TLS_TRUST_DOMAINS: its clients are refused", domain))
		case unbound > 1:
			lines = append(lines, fmt.Sprintf("TENDER_TLS_CLIENT_CA: %d CAs have no SPIFFE ID, so each of them may vouch for the trust domain %q, which the rules of TENDER_AUTHZ are about: bind it to its CA with TENDER_TLS_TRUST_DOMAINS",
				unbound, domain))
		}
	}
	return lines
}
