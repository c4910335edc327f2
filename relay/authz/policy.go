package authz

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/cache/wire"
)

// A Policy is a parsed file of rules. Its methods may be called from any goroutine.
type Policy struct {
	rules     []rule
	operators map[Permission][]identityPattern
}

// A rule grants resources to clients whose identity and node match. A nil list does not restrict, except secrets, where
// it grants none.
type rule struct {
	name       string
	identities []identityPattern
	node       []fieldPatterns
	types      []string // URLs
	secrets    []pattern
	xdstp      []pattern
}

// fieldPatterns are what a field of a node must meet one of.
type fieldPatterns struct {
	field    string
	patterns []pattern
}

// A met rule is one whose identities a client meets, and what captures stand for then.
type met struct {
	*rule
	bound map[string]string
}

// A Reason is why a client was refused.
type Reason int

// Why clients are refused.
const (
	NoIdentity Reason = iota // its identity is in no rule
	WrongNode                // no rule binds its identity to the node
)

// A Refusal is the error for a client whose identity does not permit its node. The text may be sent to the client: it
// shows only rules that match the client's identity.
type Refusal struct {
	Reason Reason
	text   string
}

func (r *Refusal) Error() string { return r.text }

// Unlimited returns the names of the rules that do not restrict a field of the node.
func (p *Policy) Unlimited(field string) (rules []string) {
	for i := range p.rules {
		if r := &p.rules[i]; !slices.ContainsFunc(r.node, func(f fieldPatterns) bool { return f.field == field }) {
			rules = append(rules, r.name)
		}
	}
	return rules
}

// Knows reports whether there is a rule about an identity.
func (p *Policy) Knows(id Identity) bool { return len(p.meet([]Identity{id})) > 0 }

// TrustDomains returns the trust domains of the SPIFFE IDs that rules and operators are about, in order.
func (p *Policy) TrustDomains() (domains []string) {
	var patterns []identityPattern
	for _, listed := range p.operators {
		patterns = append(patterns, listed...)
	}
	for i := range p.rules {
		patterns = append(patterns, p.rules[i].identities...)
	}
	for i := range patterns {
		if patterns[i].prefix == spiffeScheme {
			domain, _, _ := strings.Cut(patterns[i].text, "/")
			domains = append(domains, domain)
		}
	}
	slices.Sort(domains)
	return slices.Compact(domains)
}

// Authorize returns the grant of a client with these identities and the node n. The error is a [*Refusal] if no rule
// permits the node.
func (p *Policy) Authorize(ids []Identity, n *corepb.Node) (*Grant, error) {
	rules := p.meet(ids)
	if len(rules) == 0 {
		return nil, &Refusal{NoIdentity, fmt.Sprintf("%s may not be node %.128q: no rule is about it", Describe(ids), n.GetId())}
	}
	may := slices.DeleteFunc(slices.Clone(rules), func(m met) bool { return !m.admits(n) })
	if len(may) == 0 {
		return nil, &Refusal{WrongNode, wrongNode(ids, rules, n)}
	}
	return &Grant{rules: may}, nil
}

// meet returns the rules that have one of the identities.
func (p *Policy) meet(ids []Identity) (rules []met) {
	for i := range p.rules {
		r := &p.rules[i]
		var before []map[string]string // bindings that r is among rules with
		for j := range r.identities {
			for _, id := range ids {
				bound, ok := r.identities[j].bind(id)
				if ok && !slices.ContainsFunc(before, func(b map[string]string) bool { return maps.Equal(b, bound) }) {
					before = append(before, bound)
					rules = append(rules, met{r, bound})
				}
			}
		}
	}
	return rules
}

// admits reports whether a node is one that the rule is about.
func (m met) admits(n *corepb.Node) bool {
	return !slices.ContainsFunc(m.node, func(f fieldPatterns) bool { return !anyMatches(f.patterns, FieldOf(n, f.field), m.bound) })
}

// allows reports whether the rule is about a type.
func (m met) allows(typeURL string) bool { return m.types == nil || slices.Contains(m.types, typeURL) }

// A Grant is what a client may ask for.
type Grant struct{ rules []met }

// AllowsType reports whether the client may ask for a type. Of Secrets it is their names that
// matter.
func (g *Grant) AllowsType(typeURL string) bool {
	return wire.IsSecret(typeURL) || slices.ContainsFunc(g.rules, func(m met) bool { return m.allows(typeURL) })
}

// RestrictsNames reports whether there may be names of a type that the client must not ask for,
// although it may ask for the type.
func (g *Grant) RestrictsNames(typeURL string) bool {
	return wire.IsSecret(typeURL) ||
		!slices.ContainsFunc(g.rules, func(m met) bool { return m.allows(typeURL) && m.xdstp == nil })
}

// Allows reports whether the client may ask for a name of a type, which it may ask for. The name is
// canonical. Secrets are had by their names alone: not by the wildcard, nor by the glob of
// a collection (B.36).
func (g *Grant) Allows(typeURL, name string) bool {
	secret := wire.IsSecret(typeURL)
	if secret && (name == wire.Wildcard || wire.Glob(name)) {
		return false
	}
	_, xdstp := wire.Authority(name)
	return slices.ContainsFunc(g.rules, func(m met) bool {
		switch {
		case secret:
			return anyMatches(m.secrets, name, m.bound)
		case !m.allows(typeURL):
			return false
		default:
			return !xdstp || m.xdstp == nil || anyMatches(m.xdstp, name, m.bound)
		}
	})
}

// Types returns the types that the client may ask for beside Secrets; nil if those are all.
func (g *Grant) Types() (urls []string) {
	for _, m := range g.rules {
		if m.types == nil {
			return nil
		}
		urls = append(urls, m.types...)
	}
	slices.Sort(urls)
	return slices.Compact(urls)
}

// Rules returns the names of the rules that the client meets.
func (g *Grant) Rules() (names []string) {
	for _, m := range g.rules {
		if !slices.Contains(names, m.name) {
			names = append(names, m.name)
		}
	}
	return names
}

// Describe returns the identities of a client for messages.
func Describe(ids []Identity) string {
	switch {
	case len(ids) == 0:
		return "a certificate without a subject alternative name"
	case len(ids) == 1 && ids[0] == Anonymous:
		return "a client without a certificate (anonymous)"
	case len(ids) > 4:
		return fmt.Sprintf("%q and %d more", ids[:4], len(ids)-4)
	case len(ids) == 1:
		return fmt.Sprintf("%q", ids[0])
	default:
		return fmt.Sprintf("%q", ids)
	}
}

// wrongNode returns the message for a client that may not be n, with the nodes that it may be.
func wrongNode(ids []Identity, rules []met, n *corepb.Node) string {
	const shown = 3
	var b strings.Builder
	fmt.Fprintf(&b, "%s may not be node %.128q:", Describe(ids), n.GetId())
	for i, m := range rules {
		if i == shown {
			fmt.Fprintf(&b, "; and so on for %d rules more", len(rules)-shown)
			break
		}
		if i > 0 {
			b.WriteByte(';')
		}
		for _, f := range m.node {
			if value := FieldOf(n, f.field); !anyMatches(f.patterns, value, m.bound) {
				fmt.Fprintf(&b, " its %s is %.128q, and rule %q has %.256s", f.field, value, m.name, list(f.patterns))
				break
			}
		}
	}
	return b.String()
}

// list returns patterns as they stand in the file.
func list(patterns []pattern) string {
	texts := make([]string, len(patterns))
	for i := range patterns {
		texts[i] = fmt.Sprintf("%q", patterns[i].text)
	}
	return strings.Join(texts, ", ")
}

// nodeFields are the fields of a Node that a rule may be about, beside metadata.
var nodeFields = []string{"id", "cluster", "user_agent_name", "locality.region", "locality.zone", "locality.sub_zone"}

// metadataPrefix begins the name of a field of the metadata, whose path follows.
const metadataPrefix = "metadata."

// FieldOf returns the value of a field of a node; empty if the node does not have it. Values of
// metadata that are no text are as in JSON.
func FieldOf(n *corepb.Node, field string) string {
	switch field {
	case "id":
		return n.GetId()
	case "cluster":
		return n.GetCluster()
	case "user_agent_name":
		return n.GetUserAgentName()
	case "locality.region":
		return n.GetLocality().GetRegion()
	case "locality.zone":
		return n.GetLocality().GetZone()
	case "locality.sub_zone":
		return n.GetLocality().GetSubZone()
	}
	value := structpb.NewStructValue(n.GetMetadata())
	for name := range strings.SplitSeq(strings.TrimPrefix(field, metadataPrefix), ".") {
		if value = value.GetStructValue().GetFields()[name]; value == nil {
			return ""
		}
	}
	if text, ok := value.GetKind().(*structpb.Value_StringValue); ok {
		return text.StringValue
	}
	b, err := json.Marshal(value.AsInterface())
	if err != nil {
		return fmt.Sprint(value.AsInterface()) // numbers that JSON does not have
	}
	return string(b)
}
