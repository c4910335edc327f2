package authz

import (
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// A Permission is something that an identity may do on the admin address. Each has a list of identities of its own, and
// none includes another.
type Permission string

// The permissions of the admin address.
const (
	Read Permission = "read"  // status, resources, metrics, profiles: whatever changes nothing
	Act  Permission = "act"   // commands
	Peer Permission = "peers" // a relay of the same tier: its summary, and commands on behalf of an operator
)

// Operator returns the identity, of those of a certificate, that has a permission. The error lists the identities if
// none of them has it.
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
	default:
		return "", fmt.Errorf("%s is not one of the operators that may act", Describe(ids))
	}
}

// HasOperators reports whether anybody may operate the relay, or read its state.
func (p *Policy) HasOperators() bool { return len(p.operators[Read])+len(p.operators[Act]) > 0 }

// HasPeers reports whether other relays may ask this one.
func (p *Policy) HasPeers() bool { return len(p.operators[Peer]) > 0 }

// operators reads the lists of operators. One list without permissions is of operators that have both.
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

// certified reads a list of identities that only certificates prove.
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
