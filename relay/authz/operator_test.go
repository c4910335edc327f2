package authz

import (
	"slices"
	"strings"
	"testing"
)

const operated = `
version: 1
rules:
- name: all
  identities: [anonymous, "spiffe://example.org/**"]
operators: ["spiffe://example.org/ns/ops/sa/*", "email:admin@example.org"]
`

// TestOperators checks that only identities in the list of operators are operators. A rule does not make an identity an
// operator, and the list of operators does not allow an identity to connect as a client.
func TestOperators(t *testing.T) {
	p, err := Parse("a.yaml", []byte(operated))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		ids  []Identity
		want Identity // empty for none
	}{
		{[]Identity{"spiffe://example.org/ns/ops/sa/eve"}, "spiffe://example.org/ns/ops/sa/eve"},
		{[]Identity{"dns:eve.example.org", "email:admin@example.org"}, "email:admin@example.org"},
		{[]Identity{"spiffe://example.org/ns/shop/sa/cart"}, ""},
		{[]Identity{"spiffe://example.org/ns/ops/sa/eve/more"}, ""},
		{[]Identity{Anonymous}, ""},
		{nil, ""},
	} {
		got, err := p.Operator(tt.ids, Read)
		if got != tt.want || (err == nil) != (tt.want != "") || err != nil && !strings.HasSuffix(err.Error(), " is not one of the operators") {
			t.Errorf("Operator(%q) = %q, %v, want %q", tt.ids, got, err, tt.want)
		}
	}
	if p.Knows("email:admin@example.org") {
		t.Error("an operator without a rule may connect as a client")
	}
	if without := policy(t); without.HasOperators() || !p.HasOperators() {
		t.Errorf("HasOperators: %t without operators, %t with operators, want false and true", without.HasOperators(), p.HasOperators())
	}
}

// TestOperatorsRefused checks the errors for invalid lists of operators.
func TestOperatorsRefused(t *testing.T) {
	for list, want := range map[string]string{
		"[anonymous]": `operators: "anonymous": an operator needs a client certificate`,
		"[eve]":       `operators: "eve": `,
		"eve":         "operators is not a list",
		"[]":          "operators is empty",

		"{}":                   "operators is empty; allowed: a list of identities, or read and act with one each",
		"{read: []}":           "operators.read is empty",
		"{act: [anonymous]}":   `operators.act: "anonymous": an operator needs a client certificate`,
		"{write: ['dns:eve']}": `operators has no field "write"; allowed: act, read`,
	} {
		_, err := Parse("a.yaml", []byte(strings.Replace(operated, operated[strings.Index(operated, "operators: ")+len("operators: "):], list, 1)))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("operators: %s: %v, want %s", list, err, want)
		}
	}
}

// TestB36_SecretsOfSnapshotsNeedAPermission checks that a list of peers that may take snapshots grants no Secrets, and that
// the permission for these does not include the other.
func TestB36_SecretsOfSnapshotsNeedAPermission(t *testing.T) {
	const operators = "operators: "
	parse := func(text string) (*Policy, error) {
		return Parse("a.yaml", []byte(operated[:strings.Index(operated, operators)]+"snapshots: "+text+"\n"))
	}
	for text, want := range map[string]map[Identity][]Permission{
		"['dns:a']":         {"dns:a": {Take}, "dns:b": nil},
		"{take: ['dns:a']}": {"dns:a": {Take}},
		"{take: ['dns:a', 'dns:b'], secrets: ['dns:b', 'dns:c']}": {
			"dns:a": {Take}, "dns:b": {Take, TakeSecrets}, "dns:c": {TakeSecrets},
		},
	} {
		p, err := parse(text)
		if err != nil {
			t.Fatalf("snapshots: %s: %v", text, err)
		}
		for id, permissions := range want {
			for _, may := range []Permission{Read, Act, Peer, Take, TakeSecrets} {
				if _, err := p.Operator([]Identity{id}, may); (err == nil) != slices.Contains(permissions, may) {
					t.Errorf("snapshots: %s: %s, %s: %v", text, id, may, err)
				}
			}
		}
	}
	for text, want := range map[string]string{
		"[]":                   "snapshots is empty",
		"{}":                   "snapshots has no take",
		"{secrets: ['dns:a']}": "snapshots has no take",
		"{take: [anonymous]}":  "a peer needs a client certificate",
		"{all: ['dns:a']}":     `snapshots has no field "all"; allowed: secrets, take`,
	} {
		if _, err := parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("snapshots: %s: %v, want %s", text, err, want)
		}
	}
}

// TestOperatorsReadAndActApart checks that no permission includes another, except in a list without permissions.
func TestOperatorsReadAndActApart(t *testing.T) {
	p := policy(t)
	if _, err := p.Operator([]Identity{"dns:eve.example.org"}, Peer); err == nil || p.HasPeers() {
		t.Error("a file without peers allows a peer")
	}
	p, err := Parse("a.yaml", []byte(strings.Replace(operated, operated[strings.Index(operated, "operators: "):],
		"operators: {read: ['dns:eye', 'dns:both'], act: ['dns:hand', 'dns:both']}\npeers: ['dns:tender']\n", 1)))
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[Identity]map[Permission]bool{
		"dns:eye":    {Read: true},
		"dns:hand":   {Act: true},
		"dns:both":   {Read: true, Act: true},
		"dns:tender": {Peer: true},
	} {
		for _, may := range []Permission{Read, Act, Peer} {
			if _, err := p.Operator([]Identity{id}, may); (err == nil) != want[may] {
				t.Errorf("%s, %s: %v, want permission %t", id, may, err, want[may])
			}
		}
	}
	if !p.HasOperators() || !p.HasPeers() {
		t.Error("HasOperators or HasPeers is false, want true")
	}
	both, err := Parse("a.yaml", []byte(operated))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := both.Operator([]Identity{"email:admin@example.org"}, Act); err != nil {
		t.Errorf("operator of a list without permissions: %v, want permission to act", err)
	}
}
