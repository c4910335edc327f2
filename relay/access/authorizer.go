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

// Values of TENDER_SECRETS.
const (
	SecretsMTLS     = "mtls"     // to clients with a certificate, by a rule
	SecretsLoopback = "loopback" // to clients on this host too
	SecretsOff      = "off"      // to no client
)

// An Authorizer applies TENDER_AUTHZ and TENDER_SECRETS to clients. It implements downstream.Authorizer.
type Authorizer struct {
	secrets string

	// bound is that trust domains are bound to CAs: a certificate with a SPIFFE ID has no other identity, since its CA
	// may vouch for nothing else.
	bound bool

	// changed is called once other rules are in force, by the goroutine that reads files.
	changed func()

	// The grants of clients without a certificate if there are no rules: on this host, and on others.
	local, remote *grant

	rules atomic.Pointer[rules] // nil without TENDER_AUTHZ
}

// rules are in force until others are.
type rules struct {
	*authz.Policy
	replaced chan struct{} // closed then
}

// Open reads the file of rules (TENDER_AUTHZ), unless its path is empty, and follows it; secrets is TENDER_SECRETS, and
// bound is set if trust domains are bound to CAs. changed is called once other rules are in force.
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

// use puts a policy in force. Streams learn of it by the channel of the one before.
func (a *Authorizer) use(policy *authz.Policy) {
	if before := a.rules.Swap(&rules{policy, make(chan struct{})}); before != nil {
		close(before.replaced)
		a.changed()
	}
}

// TrustDomains returns the trust domains that the rules name; none without rules.
func (a *Authorizer) TrustDomains() []string {
	if r := a.rules.Load(); r != nil {
		return r.TrustDomains()
	}
	return nil
}

// Changed implements downstream.Authorizer.
func (a *Authorizer) Changed() <-chan struct{} {
	if r := a.rules.Load(); r != nil {
		return r.replaced
	}
	return nil
}

// Authorize implements downstream.Authorizer.
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

// Warnings returns a line for each place where the rules allow more, or less, than they seem to, given the fields of a
// node group, whether there is a TLS listener, and the addresses for operators on other hosts.
func (a *Authorizer) Warnings(groupBy []string, hasTLS bool, remoteAdmin []string) (lines []string) {
	r := a.rules.Load()
	if r == nil {
		return nil
	}
	for _, field := range groupBy {
		if free := r.Unlimited(field); len(free) > 0 && !strings.HasPrefix(field, "user_agent_") {
			lines = append(lines, fmt.Sprintf("TENDER_AUTHZ: TENDER_NODE_GROUP_BY tells groups apart by %s, which may be anything by the rules %s: their clients may read what any of these groups gets",
				field, strings.Join(free, ", ")))
		}
	}
	if hasTLS && !r.Knows(authz.Anonymous) {
		lines = append(lines, "TENDER_AUTHZ: no rule is about anonymous: who comes by TENDER_LISTEN, which has no TLS, is refused")
	}
	if len(remoteAdmin) > 0 && !r.HasOperators() {
		lines = append(lines, fmt.Sprintf("TENDER_AUTHZ: there are no operators: nobody is served at TENDER_ADMIN_LISTEN=%s", strings.Join(remoteAdmin, ",")))
	}
	return lines
}

// Operator returns as whom the holder of a certificate has a permission on the admin address, or why it does not.
func (a *Authorizer) Operator(cert *x509.Certificate, may authz.Permission) (who string, err error) {
	r := a.rules.Load()
	if r == nil {
		return "", errors.New("there are no rules (TENDER_AUTHZ)")
	}
	id, err := r.Operator(a.identities(cert), may)
	return string(id), err
}

// A grant is what one client may ask for.
type grant struct {
	by          *Authorizer
	certificate *x509.Certificate // nil if it has shown none
	local       bool              // it is on this host
	allowed     *authz.Grant      // nil without rules
}

// denies returns the gRPC status of a refusal.
func denies(err error) error {
	what := guard.DeniedNode
	if refusal, ok := errors.AsType[*authz.Refusal](err); ok && refusal.Reason == authz.NoIdentity {
		what = guard.DeniedIdentity
	}
	return guard.Denies(what, "%v", err)
}

func (g *grant) identities() []authz.Identity { return g.by.identities(g.certificate) }

// identities returns the identities of a client with a certificate, or without one if it is nil.
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
		return guard.Denies(guard.DeniedName, "%s may not have %.256q: it is in no xdstp of the rules %q", g.Identity(), name, g.allowed.Rules())
	}
	if why := g.secretDenied(name); why != "" {
		return guard.Denies(guard.DeniedSecret, "%s may not have the Secret %.256q: %s", g.Identity(), name, why)
	}
	return nil
}

// secretDenied returns why the client may not have a Secret; nothing if it may.
func (g *grant) secretDenied(name string) string {
	local := g.by.secrets == SecretsLoopback && g.local
	switch {
	case g.by.secrets == SecretsOff:
		return "Secrets are not served (TENDER_SECRETS=off)"
	case name == wire.Wildcard || wire.Glob(name):
		return "Secrets are had by their names alone"
	case !local && g.certificate == nil:
		return "Secrets are for clients that show a certificate (TENDER_SECRETS=" + g.by.secrets + ")"
	case g.allowed != nil && !g.allowed.Allows(wire.SecretType, name):
		return fmt.Sprintf("it is in no secrets of the rules %q", g.allowed.Rules())
	case g.allowed == nil && !local:
		return "there are no rules (TENDER_AUTHZ)"
	default:
		return ""
	}
}

// isLocal reports whether a peer is on this host: one without an IP address has come by a
// socket of the file system.
func isLocal(host string) bool {
	address, err := netip.ParseAddr(host)
	return err != nil || address.IsLoopback()
}
