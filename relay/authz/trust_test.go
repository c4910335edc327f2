package authz_test

import (
	"testing"

	"google.golang.org/grpc/credentials"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
)

// TestB37_ABoundCertificateIsOneIdentity checks that a client with a SPIFFE ID has no other identity if trust domains
// are bound to CAs. A CA can then give its clients no DNS name that the rules allow. Without bindings, all names count.
func TestB37_ABoundCertificateIsOneIdentity(t *testing.T) {
	t.Parallel()
	const rules = `
- {name: gateways, identities: ["dns:gateway.example"]}
- {name: guests, identities: ["` + guest + `"], types: [eds]}
`
	for _, domains := range []string{"", "example.org"} {
		var env []string
		if domains != "" {
			env = append(env, "TENDER_TLS_TRUST_DOMAINS="+domains)
		}
		m := newMesh(t, rules, env...)
		m.origin.Put(relaytest.Cluster("a"))
		creds := credentials.NewTLS(m.tls(certs.Leaf{URI: guest, Names: []string{"gateway.example"}}))
		c := relaytest.NewClient(t, m.dialAt(m.TLSAddrs()[0], creds), relaytest.ClientOptions{AutoAck: true, Node: nodeOf("shop")})
		c.Subscribe(relaytest.ClusterType)
		if domains == "" {
			m.has(c, relaytest.ClusterType, "a")
			continue
		}
		m.refused(c, `"`+guest+`" may not have the type "`+relaytest.ClusterType+`": the rules ["guests"] allow ["eds"]`)
	}
}
