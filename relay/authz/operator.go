package authz

import "fmt"

// Operator returns as whom a certificate's holder operates the relay. The error is that it does
// not, with the identities that it has.
func (p *Policy) Operator(ids []Identity) (Identity, error) {
	for i := range p.operators {
		for _, id := range ids {
			if _, ok := p.operators[i].bind(id); ok {
				return id, nil
			}
		}
	}
	return "", fmt.Errorf("%s is not one of the operators", Describe(ids))
}

// HasOperators reports whether anybody may operate the relay.
func (p *Policy) HasOperators() bool { return len(p.operators) > 0 }
