package authz

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// Anonymous is the identity of a client without a certificate.
const Anonymous Identity = "anonymous"

// spiffeScheme is the prefix of SPIFFE IDs. They are the only URI identities without the prefix uri:.
const spiffeScheme = "spiffe://"

// An Identity is a subject alternative name of a client's certificate, prefixed with its type: spiffe://…, uri:…,
// dns:…, ip:… or email:…. A client without a certificate has the identity [Anonymous].
type Identity string

// IsSPIFFE reports whether the identity is a SPIFFE ID.
func (id Identity) IsSPIFFE() bool { return strings.HasPrefix(string(id), spiffeScheme) }

// Identities returns the subject alternative names of a verified certificate, the SPIFFE ID first. It returns
// [Anonymous] for a nil certificate, and nil for one without subject alternative names: the common name is ignored. A
// SPIFFE ID is ignored unless it is valid and the certificate's only URI.
//
// Source: SPIFFE X.509-SVID, 2 and 5.
func Identities(cert *x509.Certificate) (ids []Identity) {
	if cert == nil {
		return []Identity{Anonymous}
	}
	for _, uri := range cert.URIs {
		if !strings.EqualFold(uri.Scheme, "spiffe") {
			ids = append(ids, Identity("uri:"+uri.String()))
		} else if id, err := x509svid.IDFromCert(cert); err == nil {
			ids = append([]Identity{Identity(id.String())}, ids...)
		}
	}
	for _, name := range cert.DNSNames {
		ids = append(ids, Identity("dns:"+strings.ToLower(name)))
	}
	for _, raw := range cert.IPAddresses {
		if address, ok := netip.AddrFromSlice(raw); ok {
			ids = append(ids, Identity("ip:"+address.Unmap().String()))
		}
	}
	for _, address := range cert.EmailAddresses {
		ids = append(ids, Identity("email:"+address))
	}
	return ids
}

// An identityPattern matches identities of one type.
type identityPattern struct {
	pattern                // matches the text after the prefix; empty for ip:
	prefix    string       // type of the identity, such as dns:
	separator string       // separates the parts of the text; a capture matches exactly one part
	network   netip.Prefix // for ip:; invalid for other types
}

var errIdentity = errors.New("an identity is spiffe://…, uri:…, dns:…, ip:…, email:… or anonymous")

// String returns the pattern as it is written in the file.
func (p *identityPattern) String() string { return p.prefix + p.text }

// parseIdentity parses an entry of a list of identities.
func parseIdentity(text string) (p identityPattern, err error) {
	p.separator = "/"
	stops := stops
	kind, rest, _ := strings.Cut(text, ":")
	p.prefix = kind + ":"
	switch {
	case text == string(Anonymous):
		p.prefix = text
		return p, nil
	case strings.HasPrefix(text, spiffeScheme):
		p.prefix, rest = spiffeScheme, text[len(spiffeScheme):]
		err = checkTrustDomain(rest)
	case rest == "":
		err = errIdentity
	case kind == "uri" && strings.HasPrefix(rest, spiffeScheme):
		err = errors.New("a SPIFFE ID has no uri: before it")
	case kind == "dns":
		rest, p.separator, stops = strings.ToLower(rest), ".", stops+"."
	case kind == "ip":
		p.text = rest
		p.network, err = parseNetwork(rest)
		return p, err
	case kind != "uri" && kind != "email":
		err = errIdentity
	}
	if err != nil {
		return p, err
	}
	if p.pattern, err = parsePattern(rest, stops); err != nil {
		return p, err
	}
	return p, p.checkCaptures()
}

// checkTrustDomain returns an error if a SPIFFE pattern has no fixed trust domain.
func checkTrustDomain(rest string) error {
	domain, _, _ := strings.Cut(rest, "/")
	if strings.ContainsAny(domain, "*{}") {
		return errors.New("a trust domain is spelled out")
	}
	if _, err := spiffeid.TrustDomainFromString(domain); err != nil {
		return fmt.Errorf("the trust domain %q is none: %w", domain, err)
	}
	return nil
}

// parseNetwork parses an IP address or a network in CIDR notation. A network with host bits is an error.
func parseNetwork(text string) (netip.Prefix, error) {
	if network, err := netip.ParsePrefix(text); err == nil {
		if network != network.Masked() {
			return network, fmt.Errorf("the network of %s is %s", text, network.Masked())
		}
		return network, nil
	}
	address, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, errors.New("ip: is followed by an address, or by a network such as 10.0.0.0/8")
	}
	return netip.PrefixFrom(address.Unmap(), address.Unmap().BitLen()), nil
}

// checkCaptures returns an error unless each capture matches exactly one part, at a fixed position. Otherwise bind
// could not tell which part of an identity a capture matches.
func (p *identityPattern) checkCaptures() error {
	seen := map[string]bool{}
	before, beyond := "", false
	for i, part := range p.parts {
		if part.kind == across {
			beyond = true
		}
		if part.kind == capture {
			ends := i+1 == len(p.parts) || p.parts[i+1].kind == literal && strings.HasPrefix(p.parts[i+1].text, p.separator)
			switch {
			case !ends || i > 0 && !strings.HasSuffix(before, p.separator):
				return fmt.Errorf("{%s} is not all that stands between two %q", part.text, p.separator)
			case beyond:
				return fmt.Errorf("{%s} comes after **, and could stand for several parts", part.text)
			case seen[part.text]:
				return fmt.Errorf("{%s} comes twice", part.text)
			}
			seen[part.text] = true
		}
		before = part.text
		if part.kind != literal {
			before = ""
		}
	}
	return nil
}

// bind reports whether an identity matches the pattern. bound contains the values of the captures, by name; it is nil
// if the pattern has no captures.
func (p *identityPattern) bind(id Identity) (bound map[string]string, ok bool) {
	rest, ok := strings.CutPrefix(string(id), p.prefix)
	switch {
	case !ok:
		return nil, false
	case p.network.IsValid():
		address, err := netip.ParseAddr(rest)
		return nil, err == nil && p.network.Contains(address)
	case !p.matches(rest, nil):
		return nil, false
	}
	// Parts have the same index in both: the pattern has no ** before a capture (checkCaptures).
	parts := strings.Split(rest, p.separator)
	for i, part := range strings.Split(p.text, p.separator) {
		if strings.HasPrefix(part, "{") {
			if bound == nil {
				bound = make(map[string]string)
			}
			bound[part[1:len(part)-1]] = parts[i]
		}
	}
	return bound, true
}
