package access

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/authz"
	"github.com/xdstender/tender/relay/tlsfiles"
)

// Values of TENDER_SECRETS. They determine which clients receive Secrets.
const (
	SecretsMTLS     = "mtls"     // clients with a certificate, if a rule allows the Secret
	SecretsLoopback = "loopback" // also clients on this host
	SecretsOff      = "off"      // no client
)

// An Authorizer applies TENDER_AUTHZ and TENDER_SECRETS to clients. It implements downstream.Authorizer.
type Authorizer struct {
	secrets string // value of TENDER_SECRETS

	// bound reports that trust domains are bound to CAs. A certificate with a SPIFFE ID has no other identity then, since
	// its CA may not vouch for other names.
	bound bool

	// changed is called after the rules were replaced, on the goroutine of tlsfiles.Watch.Run.
	changed func()

	// Grants of clients without a certificate if there are no rules, for clients on this host and on other hosts.
	local, remote *grant

	rules atomic.Pointer[rules] // rules in force; nil without TENDER_AUTHZ
}

// rules are one version of the rules.
type rules struct {
	*authz.Policy
	replaced chan struct{} // closed when a later version is in force
}

// Open reads the file of rules (TENDER_AUTHZ), unless its path is empty, and reloads it after changes. secrets is the
// value of TENDER_SECRETS. bound reports that trust domains are bound to CAs. changed is called after each reload, on
// the goroutine of files.Run.
func Open(path, secrets string, bound bool, files *tlsfiles.Watch, changed func()) (*Authorizer, error) {
	a := &Authorizer{secrets: secrets, bound: bound, changed: changed}
	a.local, a.remote = &grant{by: a, local: true}, &grant{by: a}
	if path == "" {
		return a, nil
	}
	return a, files.File(tlsfiles.File{Variable: "TENDER_AUTHZ", Path: path}, func(content []byte) (func(), error) {
		policy, err := authz.Parse(filepath.Base(path), content)
		return func() { a.use(policy) }, err
	})
}

// use puts a policy in force and closes the channel of the previous one, which streams wait for.
func (a *Authorizer) use(policy *authz.Policy) {
	if before := a.rules.Swap(&rules{policy, make(chan struct{})}); before != nil {
		close(before.replaced)
		a.changed()
	}
}

// TrustDomains returns the trust domains in the rules; nil without rules.
func (a *Authorizer) TrustDomains() []string {
	if r := a.rules.Load(); r != nil {
		return r.TrustDomains()
	}
	return nil
}

// Changed implements downstream.Authorizer. The channel is nil without rules, since these never change.
func (a *Authorizer) Changed() <-chan struct{} {
	if r := a.rules.Load(); r != nil {
		return r.replaced
	}
	return nil
}

// Authorize implements downstream.Authorizer. The error is a gRPC status.
func (a *Authorizer) Authorize(p guard.Peer, n *corepb.Node) (downstream.Grant, error) {
	g := &grant{by: a, certificate: p.Certificate, local: isLocal(p.Host)}
	switch {
	case a.rules.Load() != nil:
	case p.Certificate != nil:
		return g, nil
	case g.local:
		return a.local, nil
	default:
		return a.remote, nil
	}
	var err error
	if g.allowed, err = a.rules.Load().Authorize(g.identities(), n); err != nil {
		return nil, denies(err)
	}
	return g, nil
}

// Warnings returns one line for each respect in which the rules may allow more or less than intended. groupBy are the
// fields of a group's key, hasTLS reports a TLS listener, and remoteAdmin are the admin addresses for other hosts.
func (a *Authorizer) Warnings(groupBy []string, hasTLS bool, remoteAdmin []string) (lines []string) {
	r := a.rules.Load()
	if r == nil {
		return nil
	}
	for _, field := range groupBy {
		if free := r.Unlimited(field); len(free) > 0 && !strings.HasPrefix(field, "user_agent_") {
			lines = append(lines, fmt.Sprintf("TENDER_AUTHZ: TENDER_NODE_GROUP_BY has %s, which the rules %s do not restrict: their clients can join any of these groups and read its resources",
				field, strings.Join(free, ", ")))
		}
	}
	if hasTLS && !r.Knows(authz.Anonymous) {
		lines = append(lines, "TENDER_AUTHZ: no rule matches anonymous: clients of TENDER_LISTEN, which has no TLS, are refused")
	}
	if len(remoteAdmin) > 0 && !r.HasOperators() {
		lines = append(lines, fmt.Sprintf("TENDER_AUTHZ: there are no operators: requests to TENDER_ADMIN_LISTEN=%s are refused", strings.Join(remoteAdmin, ",")))
	}
	return lines
}

// Operator returns the identity of a certificate that has a permission on the admin address. cert is nil for a client
// without a certificate. The error says why the permission is denied.
func (a *Authorizer) Operator(cert *x509.Certificate, may authz.Permission) (who string, err error) {
	r := a.rules.Load()
	if r == nil {
		return "", errors.New("there are no rules (TENDER_AUTHZ)")
	}
	id, err := r.Operator(a.identities(cert), may)
	return string(id), err
}

// A grant determines which resources one client may subscribe to. It is immutable. It implements downstream.Grant.
type grant struct {
	by          *Authorizer
	certificate *x509.Certificate // nil for a client without a certificate
	local       bool              // the client is on this host
	allowed     *authz.Grant      // nil without rules
}

// denies returns the gRPC status for an error of authz.Policy.Authorize.
func denies(err error) error {
	what := guard.DeniedNode
	if refusal, ok := errors.AsType[*authz.Refusal](err); ok && refusal.Reason == authz.NoIdentity {
		what = guard.DeniedIdentity
	}
	return guard.Denies(what, "%v", err)
}

// identities returns the identities of the client.
func (g *grant) identities() []authz.Identity { return g.by.identities(g.certificate) }

// identities returns the identities in a certificate; cert is nil for a client without one. If trust domains are bound
// to CAs, a SPIFFE ID is the only identity.
func (a *Authorizer) identities(cert *x509.Certificate) []authz.Identity {
	ids := authz.Identities(cert)
	if a.bound && len(ids) > 0 && ids[0].IsSPIFFE() {
		return ids[:1]
	}
	return ids
}

// Identity implements downstream.Grant.
func (g *grant) Identity() string { return authz.Describe(g.identities()) }

// Type implements downstream.Grant.
func (g *grant) Type(typeURL string) error {
	if g.allowed == nil || g.allowed.AllowsType(typeURL) {
		return nil
	}
	return guard.Denies(guard.DeniedType, "%s may not have the type %.256q: the rules %q allow %q",
		g.Identity(), typeURL, g.allowed.Rules(), shortNames(g.allowed.Types()))
}

// shortNames returns a copy of type URLs, with short names such as cds in place of known URLs.
func shortNames(typeURLs []string) []string {
	names := slices.Clone(typeURLs)
	for i, url := range names {
		if short, ok := schema.ShortName(url); ok {
			names[i] = short
		}
	}
	return names
}

// RestrictsNames implements downstream.Grant.
func (g *grant) RestrictsNames(typeURL string) bool {
	return wire.IsSecret(typeURL) || g.allowed != nil && g.allowed.RestrictsNames(typeURL)
}

// Name implements downstream.Grant.
func (g *grant) Name(typeURL, name string) error {
	if !wire.IsSecret(typeURL) {
		if g.allowed == nil || g.allowed.Allows(typeURL, name) {
			return nil
		}
		return guard.Denies(guard.DeniedName, "%s may not have %.256q: the rules %q do not list it under xdstp", g.Identity(), name, g.allowed.Rules())
	}
	if why := g.secretDenied(name); why != "" {
		return guard.Denies(guard.DeniedSecret, "%s may not have the Secret %.256q: %s", g.Identity(), name, why)
	}
	return nil
}

// secretDenied returns the reason why the client may not subscribe to a Secret, or "" if it may.
func (g *grant) secretDenied(name string) string {
	local := g.by.secrets == SecretsLoopback && g.local
	switch {
	case g.by.secrets == SecretsOff:
		return "Secrets are not served (TENDER_SECRETS=off)"
	case name == wire.Wildcard || wire.Glob(name):
		return "Secrets can only be requested by name"
	case !local && g.certificate == nil:
		return "Secrets are for clients that show a certificate (TENDER_SECRETS=" + g.by.secrets + ")"
	case g.allowed != nil && !g.allowed.Allows(wire.SecretType, name):
		return fmt.Sprintf("the rules %q do not list it under secrets", g.allowed.Rules())
	case g.allowed == nil && !local:
		return "there are no rules (TENDER_AUTHZ)"
	default:
		return ""
	}
}

// isLocal reports whether a peer is on this host. A host that is not an IP address is that of a Unix domain socket.
func isLocal(host string) bool {
	address, err := netip.ParseAddr(host)
	return err != nil || address.IsLoopback()
}
