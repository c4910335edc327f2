package authz

import (
	"crypto/x509"
	"errors"
	"net"
	"net/url"
	"reflect"
	"strings"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/cache/wire"
)

// TestPatterns checks the matching of patterns in which {ns} is bound to shop and {no} is not bound.
func TestPatterns(t *testing.T) {
	tests := []struct {
		pattern, text string
		want          bool
	}{
		{"a", "a", true},
		{"a", "ab", false},
		{"", "", true},
		{"", "a", false},
		{"*", "", true},
		{"*", "a.b", true},
		{"*", "a/b", false},
		{"*", "a~b", false},
		{"a/*", "a/b", true},
		{"a/*", "a/", true},
		{"a/*", "a", false},
		{"a/*", "a/b/c", false},
		{"a/**", "a/b/c", true},
		{"**", "a/b~c", true},
		{"*a*a*a*b", strings.Repeat("a", 4000), false},
		{"sidecar~*~*.shop~*", "sidecar~10.0.0.1~web-1.shop~shop.svc", true},
		{"sidecar~*~*.shop~*", "sidecar~10.0.0.1~web.other~x.shop~y", false},
		{"**/x*y/**", "a/b/xy/c", true},
		{"**/x*y/**", "a/b/x/y/c", false},
		{"{ns}/*", "shop/a", true},
		{"{ns}/*", "shops/a", false},
		{"{no}/*", "x/a", true},
		{"{no}/*", "/a", false},
	}
	for _, tt := range tests {
		p, err := parsePattern(tt.pattern, stops)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.matches(tt.text, map[string]string{"ns": "shop"}); got != tt.want {
			t.Errorf("%q matches %.80q = %v, want %v", tt.pattern, tt.text, got, tt.want)
		}
	}
}

// TestIdentityPatterns checks which identities a pattern matches, and the values of its captures.
func TestIdentityPatterns(t *testing.T) {
	tests := []struct {
		pattern string
		id      Identity
		bound   map[string]string
		want    bool
	}{
		{"anonymous", Anonymous, nil, true},
		{"anonymous", "dns:anonymous", nil, false},
		{"spiffe://a.b/ns/{ns}/sa/*", "spiffe://a.b/ns/shop/sa/web", map[string]string{"ns": "shop"}, true},
		{"spiffe://a.b/ns/{ns}/sa/*", "spiffe://a.b/ns/shop/sa/web/x", nil, false},
		{"spiffe://a.b/ns/{ns}/sa/*", "spiffe://a.bc/ns/shop/sa/web", nil, false},
		{"spiffe://a.b/ns/{ns}/sa/*", "uri:spiffe://a.b/ns/shop/sa/web", nil, false},
		{"spiffe://a.b/ns/{ns}/sa/{sa}/**", "spiffe://a.b/ns/shop/sa/web/x/y", map[string]string{"ns": "shop", "sa": "web"}, true},
		{"spiffe://a.b/**", "spiffe://a.b/ns/shop", nil, true},
		{"spiffe://a.b/**", "spiffe://a.b", nil, false},
		{"dns:{ns}.Example.org", "dns:shop.example.org", map[string]string{"ns": "shop"}, true},
		{"dns:*.example.org", "dns:a.b.example.org", nil, false},
		{"dns:**.example.org", "dns:a.b.example.org", nil, true},
		{"ip:10.0.0.0/8", "ip:10.1.2.3", nil, true},
		{"ip:10.0.0.0/8", "ip:11.1.2.3", nil, false},
		{"ip:::ffff:10.0.0.1", "ip:10.0.0.1", nil, true},
		{"email:*@example.org", "email:a@example.org", nil, true},
		{"uri:https://example.org/*", "uri:https://example.org/a", nil, true},
	}
	for _, tt := range tests {
		p, err := parseIdentity(tt.pattern)
		if err != nil {
			t.Fatal(err)
		}
		if bound, got := p.bind(tt.id); got != tt.want || !reflect.DeepEqual(bound, tt.bound) {
			t.Errorf("%q binds %q = %v, %v, want %v, %v", tt.pattern, tt.id, bound, got, tt.bound, tt.want)
		}
	}
}

// TestIdentities checks which names of a certificate are identities.
func TestIdentities(t *testing.T) {
	uri := func(text string) *url.URL {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	tests := []struct {
		name string
		cert *x509.Certificate
		want []Identity
	}{
		{"no certificate", nil, []Identity{Anonymous}},
		{"no names", &x509.Certificate{}, nil},
		{"names of all kinds", &x509.Certificate{
			URIs: []*url.URL{uri("spiffe://a.b/c")}, DNSNames: []string{"Web.example.org"},
			IPAddresses: []net.IP{net.ParseIP("10.0.0.1")}, EmailAddresses: []string{"a@b"},
		}, []Identity{"spiffe://a.b/c", "dns:web.example.org", "ip:10.0.0.1", "email:a@b"}},
		{"a SPIFFE ID among URIs", &x509.Certificate{URIs: []*url.URL{uri("spiffe://a.b/c"), uri("https://d")}}, []Identity{"uri:https://d"}},
		{"two SPIFFE IDs", &x509.Certificate{URIs: []*url.URL{uri("spiffe://a.b/c"), uri("spiffe://a.b/d")}}, nil},
		{"an invalid SPIFFE ID", &x509.Certificate{URIs: []*url.URL{uri("SPIFFE://a.b//c")}}, nil},
	}
	for _, tt := range tests {
		if got := Identities(tt.cert); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

const file = `
version: 1
rules:
- name: tenants
  identities: ["spiffe://example.org/ns/{ns}/sa/*"]
  node: {cluster: ["{ns}"], metadata.env.name: [prod, "7"]}
  types: [cds, eds]
  secrets: ["{ns}/*"]
  xdstp: ["xdstp://*/*/{ns}/**"]
- name: web
  identities: ["spiffe://example.org/ns/shop/sa/web"]
  types: [lds]
  secrets: [ca, "xdstp://a/envoy.extensions.transport_sockets.tls.v3.Secret/*"]
- name: plain
  identities: [anonymous]
  node: {id: [guest]}
`

// policy returns the policy of file.
func policy(t testing.TB) *Policy {
	t.Helper()
	p, err := Parse("f", []byte(file))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// nodeOf returns a Node with a cluster, and with env as metadata.env.name.
func nodeOf(t *testing.T, cluster string, env any) *corepb.Node {
	t.Helper()
	metadata, err := structpb.NewStruct(map[string]any{"env": map[string]any{"name": env}})
	if err != nil {
		t.Fatal(err)
	}
	return &corepb.Node{Id: "id", Cluster: cluster, Metadata: metadata}
}

// TestB37_WhoMayBeWhom checks which identities may connect as which nodes. The error contains the refused field of the
// Node, and only rules that match the identity.
func TestB37_WhoMayBeWhom(t *testing.T) {
	tests := []struct {
		name  string
		ids   []Identity
		node  *corepb.Node
		rules string
		text  string
	}{
		{"cluster of the identity", []Identity{"spiffe://example.org/ns/a/sa/x"}, nodeOf(t, "a", "prod"), "tenants", ""},
		{"number in the metadata", []Identity{"spiffe://example.org/ns/a/sa/x"}, nodeOf(t, "a", 7), "tenants", ""},
		{"cluster of another identity", []Identity{"spiffe://example.org/ns/a/sa/x"}, nodeOf(t, "b", "prod"), "",
			`"spiffe://example.org/ns/a/sa/x" may not be node "id": its cluster is "b", and rule "tenants" has "{ns}"`},
		{"other metadata", []Identity{"spiffe://example.org/ns/a/sa/x"}, nodeOf(t, "a", "test"), "",
			`its metadata.env.name is "test", and rule "tenants" has "prod", "7"`},
		{"two rules", []Identity{"spiffe://example.org/ns/shop/sa/web"}, nodeOf(t, "shop", "prod"), "tenants web", ""},
		{"only the second rule", []Identity{"spiffe://example.org/ns/shop/sa/web"}, nil, "web", ""},
		{"another trust domain", []Identity{"spiffe://example.com/ns/a/sa/x"}, nodeOf(t, "a", "prod"), "",
			`"spiffe://example.com/ns/a/sa/x" may not be node "id": no rule is about it`},
		{"several names", []Identity{"dns:a", "dns:b", "dns:c", "dns:d", "dns:e"}, nil, "", `["dns:a" "dns:b" "dns:c" "dns:d"] and 1 more may not be node "": no rule is about it`},
		{"certificate without names", nil, nil, "", `a certificate without a subject alternative name may not be node ""`},
		{"no certificate", []Identity{Anonymous}, &corepb.Node{Id: "guest"}, "plain", ""},
		{"no certificate, another node", []Identity{Anonymous}, nil, "", `a client without a certificate (anonymous) may not be node "": its id is "", and rule "plain" has "guest"`},
	}
	for _, tt := range tests {
		g, err := policy(t).Authorize(tt.ids, tt.node)
		switch refusal, _ := errors.AsType[*Refusal](err); {
		case tt.text == "" && err == nil:
			if got := strings.Join(g.Rules(), " "); got != tt.rules {
				t.Errorf("%s: rules %q, want %q", tt.name, got, tt.rules)
			}
		case refusal == nil || tt.text == "" || !strings.Contains(err.Error(), tt.text):
			t.Errorf("%s: %v, want %q", tt.name, err, tt.text)
		case (refusal.Reason == NoIdentity) != strings.HasSuffix(err.Error(), "no rule is about it"):
			t.Errorf("%s: reason %d for %v", tt.name, refusal.Reason, err)
		}
	}
}

// TestB36_WhoMayHaveWhat checks which resources a client may subscribe to. Secrets are allowed only by the name in a
// rule. For other types, xdstp names must match a rule that allows the type.
func TestB36_WhoMayHaveWhat(t *testing.T) {
	tenant, err := policy(t).Authorize([]Identity{"spiffe://example.org/ns/shop/sa/web"}, nodeOf(t, "shop", "prod"))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := policy(t).Authorize([]Identity{Anonymous}, &corepb.Node{Id: "guest"})
	if err != nil {
		t.Fatal(err)
	}
	const secrets = "xdstp://a/envoy.extensions.transport_sockets.tls.v3.Secret/"
	tests := []struct {
		of       *Grant
		typeURL  string
		name     string
		ofType   bool
		wantName bool
	}{
		{tenant, wire.ClusterType, "anything", true, true},
		{tenant, wire.ClusterType, "xdstp://a/envoy.config.cluster.v3.Cluster/shop/x/y", true, true},
		{tenant, wire.ClusterType, "xdstp://a/envoy.config.cluster.v3.Cluster/shop/*", true, true},
		{tenant, wire.ClusterType, "xdstp://a/envoy.config.cluster.v3.Cluster/other/x", true, false},
		{tenant, wire.ListenerType, "xdstp://a/envoy.config.listener.v3.Listener/other/x", true, true},
		{tenant, wire.RouteType, "a", false, false},
		{tenant, wire.SecretType, "shop/key", true, true},
		{tenant, wire.SecretType, "ca", true, true},
		{tenant, wire.SecretType, "other/key", true, false},
		{tenant, wire.SecretType, "*", true, false},
		{tenant, "types.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", "ca", true, true},
		{tenant, "types.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", "other/key", true, false},
		{tenant, "envoy.extensions.transport_sockets.tls.v3.Secret", "other/key", true, false},
		{tenant, "/a/b/envoy.extensions.transport_sockets.tls.v3.Secret", "*", true, false},
		{tenant, "type.googleapis.com/envoy.api.v2.auth.Secret", "other/key", true, false},
		{plain, "type.googleapis.com/envoy.api.v2.auth.Secret", "ca", true, false},
		{tenant, wire.SecretType, secrets + "x", true, true},
		{tenant, wire.SecretType, secrets + "*", true, false},
		{plain, wire.SecretType, "ca", true, false},
		{plain, wire.RouteType, "a", true, true},
	}
	for _, tt := range tests {
		if got := tt.of.AllowsType(tt.typeURL); got != tt.ofType {
			t.Errorf("%v allows the type %q = %v, want %v", tt.of.Rules(), tt.typeURL, got, tt.ofType)
		}
		if got := tt.of.Allows(tt.typeURL, tt.name); got != tt.wantName {
			t.Errorf("%v allows %q of %q = %v, want %v", tt.of.Rules(), tt.name, tt.typeURL, got, tt.wantName)
		}
		if !tt.wantName && tt.ofType && !tt.of.RestrictsNames(tt.typeURL) {
			t.Errorf("%v does not allow %q of %q, but RestrictsNames is false", tt.of.Rules(), tt.name, tt.typeURL)
		}
	}
	if tenant.RestrictsNames(wire.ListenerType) || plain.RestrictsNames(wire.ClusterType) {
		t.Error("RestrictsNames is true for a type of which all names are allowed")
	}
}

// FuzzAllowsSecrets checks that no spelling of the type URL of Secrets bypasses the rules. Control planes find the
// message type by the part after the last slash, so all spellings need a rule about Secrets.
func FuzzAllowsSecrets(f *testing.F) {
	for _, url := range []string{wire.SecretType, "types.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", "a//envoy.extensions.transport_sockets.tls.v3.Secret", "Secret", wire.ClusterType} {
		f.Add(url, "other/key")
	}
	guest, err := policy(f).Authorize([]Identity{Anonymous}, &corepb.Node{Id: "guest"})
	if err != nil {
		f.Fatal(err)
	}
	secret := new(tlspb.Secret).ProtoReflect().Descriptor().FullName()
	f.Fuzz(func(t *testing.T, typeURL, name string) {
		resolved, err := protoregistry.GlobalTypes.FindMessageByURL(typeURL)
		if err == nil && resolved.Descriptor().FullName() == secret && guest.Allows(typeURL, name) {
			t.Errorf("%q of the type %q is allowed to a client without a rule about Secrets", name, typeURL)
		}
	})
}
