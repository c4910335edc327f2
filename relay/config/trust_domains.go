package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/xdstender/tender/relay/humanize"
	"github.com/xdstender/tender/relay/tlsfiles"
)

// A TrustDomain is one of TENDER_TLS_TRUST_DOMAINS. As text it is domain or domain=path.
type TrustDomain struct {
	Name string // such as example.org
	CA   string // a file; empty for Config.TLSClientCA
}

// MarshalText returns the text.
func (d TrustDomain) MarshalText() ([]byte, error) {
	if d.CA == "" {
		return []byte(d.Name), nil
	}
	return []byte(d.Name + "=" + d.CA), nil
}

// parseTrustDomain reads a trust domain, and its file if there is one.
func parseTrustDomain(item string) (d TrustDomain, err error) {
	name, path, bound := strings.Cut(item, "=")
	d.Name = strings.TrimSpace(name)
	if domain, err := spiffeid.TrustDomainFromString(d.Name); err != nil {
		return d, fmt.Errorf("%s is not a trust domain such as example.org: %w", humanize.Quote(d.Name), err)
	} else if domain.Name() != d.Name {
		return d, fmt.Errorf("the trust domain of %s is %s", humanize.Quote(d.Name), humanize.Quote(domain.Name()))
	}
	if path = strings.TrimSpace(path); bound && path == "" {
		return d, fmt.Errorf("the trust domain %s has no path after =", humanize.Quote(d.Name))
	}
	if bound {
		d.CA, err = parseFile(path)
	}
	return d, err
}

// parseTrustDomains reads TENDER_TLS_TRUST_DOMAINS.
func parseTrustDomains(raw string) ([]TrustDomain, error) {
	var names []string
	return listOf(";", func(item string) (TrustDomain, error) {
		d, err := parseTrustDomain(item)
		if err == nil && slices.Contains(names, d.Name) {
			err = fmt.Errorf("the trust domain %s comes twice: one file may hold several CAs", humanize.Quote(d.Name))
		}
		names = append(names, d.Name)
		return d, err
	})(raw)
}

// checkTrustDomains returns what is wrong with trust domains that are good by themselves.
func (c *Config) checkTrustDomains(wrong, found map[string]error) {
	if len(c.TLSTrustDomains) == 0 || c.TLSClientCA != "" || wrong["TLS_TRUST_DOMAINS"] != nil || wrong["TLS_CLIENT_CA"] != nil {
		return
	}
	found["TLS_TRUST_DOMAINS"] = errors.New("clients show no certificates, since TENDER_TLS_CLIENT_CA is not set")
	c.TLSTrustDomains = nil
}

// trustDomainFiles returns trust domains with the files that are read for them. The name of a file has its trust
// domain: a metric has one series for each name.
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
