package authz

import (
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// A Permission allows an identity to use a part of the admin address. Each permission has its own list of identities,
// and no permission includes another.
type Permission string

// The permissions of the admin address.
const (
	Read Permission = "read"  // requests without side effects: status, resources, metrics, profiles
	Act  Permission = "act"   // commands
	Peer Permission = "peers" // for relays of the same tier: read the summary; read clients and send commands on behalf of an operator

	Take        Permission = "snapshots" // for relays of the same tier: take the state, without sensitive content
	TakeSecrets Permission = "secrets"   // with Take: also take sensitive content and Secrets
)

// Operator returns an identity of a certificate that matches the list of a permission. If none matches, the error lists
// the identities.
func (p *Policy) Operator(ids []Identity, may Permission) (Identity, error) {
	listed := p.operators[may]
	for i := range listed {
		for _, id := range ids {
			if _, ok := listed[i].bind(id); ok {
				return id, nil
			}
		}
	}
	switch may {
	case Read:
		return "", fmt.Errorf("%s is not one of the operators", Describe(ids))
	case Peer:
		return "", fmt.Errorf("%s is not one of the peers", Describe(ids))
	case Take, TakeSecrets:
		return "", fmt.Errorf("%s is not one of the peers that may take %s", Describe(ids), may)
	default:
		return "", fmt.Errorf("%s is not one of the operators that may act", Describe(ids))
	}
}

// HasOperators reports whether the file lists an operator, with either permission.
func (p *Policy) HasOperators() bool { return len(p.operators[Read])+len(p.operators[Act]) > 0 }

// HasPeers reports whether the file lists a peer.
func (p *Policy) HasPeers() bool { return len(p.operators[Peer]) > 0 }

// snapshots parses the field snapshots. A list in place of an object grants no Secrets.
func (r *reader) snapshots(n *yaml.Node, into map[Permission][]identityPattern) {
	if n.Kind != yaml.MappingNode {
		into[Take] = r.certified(n, string(Take), "a peer")
		return
	}
	found := r.mapping(n, string(Take), map[string]func(*yaml.Node){
		"take": func(n *yaml.Node) { into[Take] = r.certified(n, "snapshots.take", "a peer") },
		"secrets": func(n *yaml.Node) {
			into[TakeSecrets] = r.certified(n, "snapshots.secrets", "a peer")
		},
	})
	if n.Kind == yaml.MappingNode && !found["take"] {
		r.fail(n, "snapshots has no take: allowed: a list of identities, or take and secrets with one each")
	}
}

// operators parses the field operators. A list in place of an object grants both permissions.
func (r *reader) operators(n *yaml.Node, into map[Permission][]identityPattern) {
	if n.Kind != yaml.MappingNode {
		into[Read] = r.certified(n, "operators", "an operator")
		into[Act] = into[Read]
		return
	}
	found := r.mapping(n, "operators", map[string]func(*yaml.Node){
		string(Read): func(n *yaml.Node) { into[Read] = r.certified(n, "operators.read", "an operator") },
		string(Act):  func(n *yaml.Node) { into[Act] = r.certified(n, "operators.act", "an operator") },
	})
	if len(n.Content) == 0 && len(found) == 0 {
		r.fail(n, "operators is empty; allowed: a list of identities, or read and act with one each")
	}
}

// certified parses a list of identities and refuses [Anonymous]. The field (what) and the role (who) are for errors.
func (r *reader) certified(n *yaml.Node, what, who string) (patterns []identityPattern) {
	r.texts(n, what, func(text string) error {
		if text == string(Anonymous) {
			return errors.New(who + " needs a client certificate")
		}
		p, err := parseIdentity(text)
		patterns = append(patterns, p)
		return err
	})
	return patterns
}
