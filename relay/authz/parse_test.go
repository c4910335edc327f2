package authz

import (
	"strings"
	"testing"
)

// good is a valid file that uses all fields and all kinds of patterns.
const good = `
version: 1
rules:
- name: shop
  identities: ["spiffe://example.org/ns/{ns}/sa/*", "dns:{ns}.mesh.example.org"]
  node:
    id: ["sidecar~*~*.{ns}~*", "{ns}"]
    cluster: &shops [shop, "shop-*"]
    locality.region: ["", eu]
    metadata.env: [prod]
    metadata.owner.team: *shops
  types: [lds, cds, type.googleapis.com/acme.Thing]
  secrets: ["{ns}/*", ca, "xdstp://example.org/envoy.extensions.transport_sockets.tls.v3.Secret/{ns}/*"]
  xdstp: ["xdstp://example.org/*/{ns}/**", "xdstp://**"]
- name: plaintext
  identities: [anonymous, "ip:10.0.0.0/8", "ip:::1", "email:*@example.org", "uri:https://example.org/**"]
`

// TestParse checks that Parse accepts a file with all fields.
func TestParse(t *testing.T) {
	if _, err := Parse("authz.yaml", []byte(good)); err != nil {
		t.Errorf("Parse: %v", err)
	}
}

// TestParseRefuses checks that each error contains the line and the allowed values.
func TestParseRefuses(t *testing.T) {
	const head = "version: 1\nrules:\n- name: a\n  identities: [anonymous]\n"
	tests := []struct{ name, file, want string }{
		{"empty file", "", "f:1: the file is empty"},
		{"only a comment", "# nobody\n", "f:1: the file is empty"},
		{"invalid YAML", "version: [", "f:1: "},
		{"not an object", "- a\n", "f:1:1: the file is not an object"},
		{"two documents", head + "---\na: 1\n", "f:5: a second document begins"},
		{"star without quotes", "version: 1\nrules:\n- name: a\n  identities:\n  - *\n", "has to be in quotes"},
		{"unknown field", head + "rule: []\n", `f:5:1: the file has no field "rule"; allowed: operators, peers, rules, snapshots, version`},
		{"unknown field of a rule", head + "  secret: [a]\n", `f:5:3: rule "a" has no field "secret"; allowed: identities, name, node, secrets, types, xdstp`},
		{"duplicate field", head + "  types: [cds]\n  types: [lds]\n", `f:6:3: rule "a" has types twice`},
		{"no version", "rules:\n- name: a\n  identities: [anonymous]\n", "f:1:1: version is missing"},
		{"other version", strings.Replace(head, "1", "2", 1), `f:1:10: version "2": allowed: 1`},
		{"no rules", "version: 1\n", "f:1:1: rules is missing"},
		{"empty rules", "version: 1\nrules: []\n", "f:2:8: rules is empty"},
		{"null rules", "version: 1\nrules:\n", "f:2:7: rules is not a list"},
		{"rule is not an object", "version: 1\nrules: [a]\n", `f:2:9: rule "" is not an object`},
		{"rule without a name", "version: 1\nrules:\n- identities: [anonymous]\n", "f:3:3: a rule has no name"},
		{"long name", strings.Replace(head, "a\n", strings.Repeat("a", 65)+"\n", 1), "1 to 64 bytes are allowed"},
		{"duplicate name", head + head[len("version: 1\nrules:\n"):], `f:5:3: rule "a": another rule has this name`},
		{"no identities", "version: 1\nrules:\n- name: a\n", `f:3:3: rule "a" has no identities`},
		{"empty identities", "version: 1\nrules:\n- name: a\n  identities: []\n", `f:4:15: rule "a": identities is empty`},
		{"identity is a number", strings.Replace(head, "anonymous", "1", 1), `f:4:16: rule "a": identities: 1 is not text: it has to be in quotes`},
		{"identity without a kind", strings.Replace(head, "anonymous", "web", 1), `identities: "web": an identity is spiffe://…, uri:…`},
		{"identity of an unknown kind", strings.Replace(head, "anonymous", "cn:web", 1), `identities: "cn:web": an identity is spiffe://`},
		{"anonymous with a value", strings.Replace(head, "anonymous", `"anonymous:x"`, 1), "an identity is spiffe://"},
		{"kind without a value", strings.Replace(head, "anonymous", `"dns:"`, 1), "an identity is spiffe://"},
		{"trust domain with a wildcard", strings.Replace(head, "anonymous", `"spiffe://*/a"`, 1), "a trust domain is spelled out"},
		{"invalid trust domain", strings.Replace(head, "anonymous", `"spiffe://Example.org/a"`, 1), `the trust domain "Example.org" is none: `},
		{"SPIFFE ID as URI", strings.Replace(head, "anonymous", `"uri:spiffe://a/b"`, 1), "a SPIFFE ID has no uri: before it"},
		{"network with host bits", strings.Replace(head, "anonymous", `"ip:10.0.0.1/8"`, 1), "the network of 10.0.0.1/8 is 10.0.0.0/8"},
		{"invalid address", strings.Replace(head, "anonymous", `"ip:10.0.*"`, 1), "ip: is followed by an address"},
		{"three stars", strings.Replace(head, "anonymous", `"dns:***"`, 1), "more than two * in a row stand for nothing"},
		{"brace is not closed", strings.Replace(head, "anonymous", `"dns:{ns"`, 1), "a brace begins a name"},
		{"brace is not opened", strings.Replace(head, "anonymous", `"dns:ns}"`, 1), "} ends nothing"},
		{"capture of a piece of a part", strings.Replace(head, "anonymous", `"dns:a-{ns}.b"`, 1), `{ns} is not all that stands between two "."`},
		{"capture twice", strings.Replace(head, "anonymous", `"dns:{ns}.{ns}"`, 1), "{ns} comes twice"},
		{"capture after **", strings.Replace(head, "anonymous", `"spiffe://a/**/{ns}"`, 1), "{ns} comes after **"},
		{"capture unbound", head + `  secrets: ["{ns}/*"]` + "\n", `f:3:3: rule "a": "{ns}/*" has {ns}, and the identity "anonymous" has not`},
		{"node is a list", head + "  node: [a]\n", `f:5:9: rule "a": node is not an object`},
		{"node empty", head + "  node: {}\n", `rule "a": node is empty`},
		{"node with an unknown field", head + "  node: {name: [a]}\n", `rule "a": node has no field "name"; allowed: cluster, id, locality.region, locality.sub_zone, locality.zone, user_agent_name`},
		{"metadata without a path", head + "  node: {metadata.: [a]}\n", `has no field "metadata."`},
		{"invalid pattern in node", head + "  node: {id: [\"***\"]}\n", `rule "a": node.id: "***": more than two`},
		{"types empty", head + "  types: []\n", `rule "a": types is empty`},
		{"unknown short name of a type", head + "  types: [clusters]\n", `types: "clusters": it is neither a short name, such as cds, nor a type URL`},
		{"Secrets by type", head + "  types: [sds]\n", `types: "sds": it is the type of Secrets, which are allowed by their names, in secrets`},
		{"secret without a name", head + "  secrets: [\"\"]\n", "no Secret has an empty name"},
		{"xdstp with another scheme", head + "  xdstp: [\"a/*\"]\n", "it does not begin with xdstp://"},
		{"xdstp without an id", head + "  xdstp: [\"xdstp://a/*\"]\n", "it has no id"},
		{"xdstp not canonical", head + "  xdstp: [\"xdstp://a/b.C/d:e/*\"]\n", `the canonical form is "xdstp://a/b.C/d%3Ae/*"`},
		{"control character", head + "  secrets: [\"a\\n\"]\n", `"a\n" has a control character`},
		{"nested list", head + "  secrets: [[a]]\n", `rule "a": secrets: this is not text`},
		{"long pattern", head + "  secrets: [" + strings.Repeat("a", 4097) + "]\n", "it has 4097 bytes, at most 4096 are allowed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := Parse("f", []byte(tt.file))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Parse(%q) = %v, %v, want %s", tt.file, p, err, tt.want)
			}
		})
	}
}

// TestParseTellsAll checks that one call of Parse reports all errors of a file.
func TestParseTellsAll(t *testing.T) {
	_, err := Parse("f", []byte("version: 1\nrules:\n- name: a\n  identities: [web]\n  types: [sds, x]\n- name: a\n"))
	want := `f:4:16: rule "a": identities: "web": an identity is spiffe://…, uri:…, dns:…, ip:…, email:… or anonymous
f:5:11: rule "a": types: "sds": it is the type of Secrets, which are allowed by their names, in secrets
f:5:16: rule "a": types: "x": it is neither a short name, such as cds, nor a type URL
f:6:3: rule "a" has no identities
f:6:3: rule "a": another rule has this name`
	if err == nil || err.Error() != want {
		t.Errorf("Parse: %v\nwant %s", err, want)
	}
}

// FuzzParse checks that Parse either returns errors with line numbers or a policy that does not panic.
func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("version: 1\nrules:\n- name: a\n  identities: [\"dns:{a}.{b}.*\"]\n  secrets: [\"{a}**{b}*\"]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Parse("f", data)
		if err != nil {
			for line := range strings.SplitSeq(err.Error(), "\n") {
				if !strings.HasPrefix(line, "f:") {
					t.Fatalf("Parse(%q): the error %q contains no position", data, line)
				}
			}
			return
		}
		g, err := p.Authorize([]Identity{"spiffe://example.org/ns/shop/sa/web", "dns:a.b.c", Anonymous}, nil)
		if err == nil {
			g.Allows("type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", "shop/key")
		}
	})
}
