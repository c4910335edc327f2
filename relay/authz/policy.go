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
	rules     []rule                           // in the order of the file
	operators map[Permission][]identityPattern // identities by permission
}

// A rule grants resources to clients whose identity and node match. A nil list does not restrict, except secrets, where
// it grants none.
type rule struct {
	name       string
	identities []identityPattern // one must match
	node       []fieldPatterns   // all must match
	types      []string          // type URLs
	secrets    []pattern         // names of Secrets
	xdstp      []pattern         // xdstp names, of any type
}

// fieldPatterns are patterns for a field of a Node. One of them must match.
type fieldPatterns struct {
	field    string // as for [FieldOf]
	patterns []pattern
}

// A met is a rule that matches an identity of a client, with the values of its captures.
type met struct {
	*rule
	bound map[string]string // values of the captures, by name
}

// A Reason tells which check refused a client.
type Reason int

// The reasons for which a client is refused.
const (
	NoIdentity Reason = iota // no rule matches the client's identities
	WrongNode                // rules match the identities, but none of them allows the node
)

// A Refusal is the error for a client whose identity does not permit its node. The text may be sent to the client: it
// shows only rules that match the client's identity.
type Refusal struct {
	Reason Reason
	text   string
}

func (r *Refusal) Error() string { return r.text }

// Unlimited returns the names of the rules that do not restrict a field of the Node.
func (p *Policy) Unlimited(field string) (rules []string) {
	for i := range p.rules {
		if r := &p.rules[i]; !slices.ContainsFunc(r.node, func(f fieldPatterns) bool { return f.field == field }) {
			rules = append(rules, r.name)
		}
	}
	return rules
}

// Knows reports whether a rule matches an identity.
func (p *Policy) Knows(id Identity) bool { return len(p.meet([]Identity{id})) > 0 }

// TrustDomains returns the trust domains of the SPIFFE IDs in rules, operators and peers, sorted.
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

// Authorize returns the grant of a client with these identities and the node n. The error is always a [*Refusal].
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

// meet returns the rules that match one of the identities. A rule is returned once per distinct set of captured values.
func (p *Policy) meet(ids []Identity) (rules []met) {
	for i := range p.rules {
		r := &p.rules[i]
		var before []map[string]string // captured values with which r was already added to rules
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

// admits reports whether the rule allows the client to connect as the node n.
func (m met) admits(n *corepb.Node) bool {
	return !slices.ContainsFunc(m.node, func(f fieldPatterns) bool { return !anyMatches(f.patterns, FieldOf(n, f.field), m.bound) })
}

// allows reports whether the rule allows subscriptions to a type other than Secrets.
func (m met) allows(typeURL string) bool { return m.types == nil || slices.Contains(m.types, typeURL) }

// A Grant determines which resources a client may subscribe to.
type Grant struct{ rules []met }

// AllowsType reports whether the client may subscribe to a type. It is always true for Secrets, which are allowed by
// name; see Allows.
func (g *Grant) AllowsType(typeURL string) bool {
	return wire.IsSecret(typeURL) || slices.ContainsFunc(g.rules, func(m met) bool { return m.allows(typeURL) })
}

// RestrictsNames reports whether Allows must be called for the names of an allowed type. If it is false, the client may
// subscribe to all names of the type.
func (g *Grant) RestrictsNames(typeURL string) bool {
	return wire.IsSecret(typeURL) ||
		!slices.ContainsFunc(g.rules, func(m met) bool { return m.allows(typeURL) && m.xdstp == nil })
}

// Allows reports whether the client may subscribe to a name of a type. The caller must check the type with AllowsType
// first, and pass the name in canonical form. For Secrets, a wildcard or the glob of a collection is never allowed: it
// would include names that no rule allows (B.36).
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

// Types returns the URLs of the types that the client may subscribe to, sorted, without Secrets. Nil means all types.
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

// Rules returns the names of the rules that match the client.
func (g *Grant) Rules() (names []string) {
	for _, m := range g.rules {
		if !slices.Contains(names, m.name) {
			names = append(names, m.name)
		}
	}
	return names
}

// Describe returns the identities of a client for messages: at most four of them.
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

// wrongNode returns the message for a client that may not connect as node n: for each rule, the first field that does
// not match, with its patterns.
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

// list returns the patterns as they are written in the file, quoted.
func list(patterns []pattern) string {
	texts := make([]string, len(patterns))
	for i := range patterns {
		texts[i] = fmt.Sprintf("%q", patterns[i].text)
	}
	return strings.Join(texts, ", ")
}

// nodeFields are the fields of a Node that a rule may restrict, in addition to metadata.
var nodeFields = []string{"id", "cluster", "user_agent_name", "locality.region", "locality.zone", "locality.sub_zone"}

// metadataPrefix is the prefix of a path in the metadata, such as metadata.labels.app.
const metadataPrefix = "metadata."

// FieldOf returns the value of a field of a Node, or "" if the field is not set. A field of the metadata has the prefix
// metadata. and a path; a value that is not a string is returned as JSON.
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
		return fmt.Sprint(value.AsInterface()) // NaN and infinities, which JSON cannot represent
	}
	return string(b)
}
