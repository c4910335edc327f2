package config

import (
	"fmt"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/xdstender/tender/relay/humanize"
	"github.com/xdstender/tender/relay/tlsfiles"
)

// A TrustDomain is an entry of TENDER_TLS_TRUST_DOMAINS. Its text form is domain or domain=path.
type TrustDomain struct {
	Name string // such as example.org
	CA   Path   // the PEM file of its CAs; empty for Config.TLSClientCA
}

// MarshalText returns the text.
func (d TrustDomain) MarshalText() ([]byte, error) {
	if d.CA == "" {
		return []byte(d.Name), nil
	}
	return []byte(d.Name + "=" + string(d.CA)), nil
}

// parseTrustDomain reads domain or domain=path.
func parseTrustDomain(item string) (d TrustDomain, err error) {
	name, path, bound := strings.Cut(item, "=")
	d.Name = strings.TrimSpace(name)
	if domain, err := spiffeid.TrustDomainFromString(d.Name); err != nil {
		return d, fmt.Errorf("%s is not a trust domain such as example.org: %w", humanize.Quote(d.Name), err)
	} else if domain.Name() != d.Name {
		return d, fmt.Errorf("%s is not a trust domain; use %s", humanize.Quote(d.Name), humanize.Quote(domain.Name()))
	}
	if path = strings.TrimSpace(path); bound && path == "" {
		return d, fmt.Errorf("the trust domain %s has no path after =", humanize.Quote(d.Name))
	}
	if bound {
		err = d.CA.EnvDecode(path)
	}
	return d, err
}

// TrustDomains are the trust domains of TENDER_TLS_TRUST_DOMAINS.
type TrustDomains []TrustDomain

// EnvDecode reads trust domains, separated by semicolons.
func (d *TrustDomains) EnvDecode(raw string) error {
	return decodeList(d, ";", raw, parseTrustDomain, func(d TrustDomain) string {
		return fmt.Sprintf("trust domain %s; put several CAs into one file", humanize.Quote(d.Name))
	})
}

// trustDomainFiles returns the files of trust domains. The variable of each file includes its trust domain, because a
// metric has one series per variable.
func trustDomainFiles(domains []TrustDomain) (files []tlsfiles.TrustDomain) {
	for _, d := range domains {
		of := tlsfiles.TrustDomain{Name: d.Name}
		if d.CA != "" {
			of.CA = tlsfiles.File{Variable: "TENDER_TLS_TRUST_DOMAINS=" + d.Name, Path: string(d.CA)}
		}
		files = append(files, of)
	}
	return files
}

// trustWarnings returns a warning for each trust domain in the authorization rules for which several CAs, or none, can
// issue certificates.
func (c *Credentials) trustWarnings(cfg *Config) (lines []string) {
	if c.Clients == nil || cfg.TLSClientCA == "" {
		return nil
	}
	for _, domain := range c.Authorizer.TrustDomains() {
		switch unbound, vouched := c.Clients.VouchedBy(domain); {
		case !vouched:
			lines = append(lines, fmt.Sprintf("TENDER_AUTHZ: rules name the trust domain %q, which is not in "+
				"TENDER_TLS_TRUST_DOMAINS; its clients are refused", domain))
		case unbound > 1:
			lines = append(lines, fmt.Sprintf("TENDER_TLS_CLIENT_CA: %d CAs have no SPIFFE ID, so each can issue "+
				"certificates for the trust domain %q of TENDER_AUTHZ; bind it to its CA with TENDER_TLS_TRUST_DOMAINS",
				unbound, domain))
		}
	}
	return lines
}
