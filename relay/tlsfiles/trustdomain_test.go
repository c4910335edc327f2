package tlsfiles_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
)

// A presented is a client certificate with the expected result.
type presented struct {
	name   string
	by     *certs.CA
	uri    string // empty for none
	served bool   // the relay accepts the client
}

// dialer returns a function that connects to an address.
func dialer(at net.Addr) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, at.Network(), at.String())
	}
}

// present connects with each certificate, and returns the number of refused connections.
func present(t *testing.T, roots *certs.CA, dial func(context.Context) (net.Conn, error), all []presented) (refused int) {
	t.Helper()
	for _, tt := range all {
		shown := pair(t, tt.by.Sign(certs.Leaf{URI: tt.uri}))
		raw, err := dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		conn := tls.Client(raw, &tls.Config{
			RootCAs: trusting(roots), NextProtos: []string{"h2"}, ServerName: "127.0.0.1",
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &shown, nil },
		})
		if err = conn.HandshakeContext(t.Context()); err == nil {
			_ = conn.SetReadDeadline(time.Now().Add(relaytest.Patience))
			_, _ = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
			_, err = conn.Read(make([]byte, 1)) // the server's settings of HTTP/2, or its alert
		}
		_ = conn.Close()
		if err != nil {
			refused++
		}
		if (err == nil) != tt.served || err != nil && !strings.Contains(err.Error(), "bad certificate") {
			t.Errorf("%s: %v, want accepted: %v", tt.name, err, tt.served)
		}
	}
	return refused
}

// TestB37_TrustDomains checks relays without bindings of trust domains to CAs. A CA with a SPIFFE ID may vouch only for
// its own trust domain, and no other CA may vouch for this domain.
func TestB37_TrustDomains(t *testing.T) {
	one, two, none := certs.NewCAOf(t, "spiffe://one.example"), certs.NewCAOf(t, "spiffe://two.example"), certs.NewCA(t)
	dir := t.TempDir()
	cert, key := none.Sign(certs.Leaf{Names: []string{"127.0.0.1"}}).Write(t, dir)
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	r := start(t, []string{
		"TENDER_ORIGIN=" + o.Addr(), "TENDER_TLS_CERT=" + cert, "TENDER_TLS_KEY=" + key,
		"TENDER_TLS_CLIENT_CA=" + certs.WriteFile(t, dir, "ca.pem", slices.Concat(one.PEM, two.PEM, none.PEM)),
	}...)
	present(t, none, dialer(r.Addrs()[0]), []presented{
		{"trust domain of the CA", one, "spiffe://one.example/envoy", true},
		{"trust domain of the CA, by an intermediate CA", one.Intermediate("spiffe://one.example"), "spiffe://one.example/envoy", true},
		{"trust domain of another CA", one, "spiffe://two.example/envoy", false},
		{"trust domain without a CA, by a CA with a SPIFFE ID", one, "spiffe://three.example/envoy", false},
		{"trust domain with a CA, by a CA without a SPIFFE ID", none, "spiffe://one.example/envoy", false},
		{"trust domain with a CA, by an intermediate CA that claims its SPIFFE ID", none.Intermediate("spiffe://one.example"), "spiffe://one.example/envoy", false},
		{"trust domain without a CA, by a CA without a SPIFFE ID", none, "spiffe://three.example/envoy", true},
		{"without a SPIFFE ID", two, "", true},
	})
}

// A bound is a relay with three client CAs. The CAs of SPIRE and Istio are bound to their trust domains. The company's
// CA may vouch for certificates without a SPIFFE ID, and for one trust domain.
type bound struct {
	*running
	spire, istio, company *certs.CA
	dir                   string
}

// startBound starts the relay on sockets or in memory. env contains more variables.
func startBound(t *testing.T, memory bool, env ...string) *bound {
	t.Helper()
	b := &bound{spire: certs.NewCAOf(t, "spiffe://spire.example"), istio: certs.NewCA(t), company: certs.NewCA(t), dir: t.TempDir()}
	b.running, _ = serveTLS(t, memory, b.company, b.dir, append(env, "TENDER_TLS_TRUST_DOMAINS=company.example;cluster.local="+
		certs.WriteFile(t, b.dir, "istio.pem", b.istio.PEM)+";spire.example="+certs.WriteFile(t, b.dir, "spire.pem", b.spire.PEM))...)
	return b
}

// TestB37_TrustDomainsBoundToCAs checks which clients a relay with bindings of trust domains to CAs accepts. The relay
// logs and counts refused clients.
func TestB37_TrustDomainsBoundToCAs(t *testing.T) {
	t.Parallel()
	b := startBound(t, false, "TENDER_REST_LISTEN=127.0.0.1:0", "TENDER_PROBE_LISTEN=127.0.0.1:0")
	const istio, spire, company = "spiffe://cluster.local/ns/a/sa/b", "spiffe://spire.example/envoy", "spiffe://company.example/envoy"
	all := []presented{
		{"SPIRE, own trust domain", b.spire, spire, true},
		{"SPIRE, trust domain of Istio", b.spire, istio, false},
		{"SPIRE, trust domain of the company", b.spire, company, false},
		{"SPIRE, without a SPIFFE ID", b.spire, "", false},
		{"Istio, own trust domain", b.istio, istio, true},
		{"Istio, own trust domain, by an intermediate CA", b.istio.Intermediate(""), istio, true},
		{"Istio, trust domain of SPIRE", b.istio, spire, false},
		{"Istio, trust domain of SPIRE, by an intermediate CA that claims the SPIFFE ID of SPIRE", b.istio.Intermediate("spiffe://spire.example"), spire, false},
		{"Istio, trust domain of the company", b.istio, company, false},
		{"Istio, without a SPIFFE ID", b.istio, "", false},
		{"Istio, another URI", b.istio, "https://cluster.local/ns/a/sa/b", false},
		{"Istio, invalid SPIFFE ID", b.istio, "spiffe://cluster.local/ns//sa", false},
		{"company, own trust domain", b.company, company, true},
		{"company, trust domain of Istio", b.company, istio, false},
		{"company, trust domain of SPIRE", b.company, spire, false},
		{"company, trust domain that is not listed", b.company, "spiffe://other.example/envoy", false},
		{"company, without a SPIFFE ID", b.company, "", true},
	}
	refused := present(t, b.company, dialer(b.Addrs()[0]), all)
	refused += present(t, b.company, dialer(b.RESTAddrs()[0]), all)
	for _, want := range []string{
		`msg="client TLS handshake failed" peer=127.0.0.1 kind=denial reason=trust_domain`, `identity=` + istio,
		`ca=\"CN=test CA\"`,
		`the CA may not vouch for the trust domain \"cluster.local\": TENDER_TLS_TRUST_DOMAINS binds that to other CAs`,
	} {
		if got := b.Log.String(); !strings.Contains(got, want) {
			t.Errorf("the log does not contain %s:\n%s", want, got)
		}
	}
	reply, err := http.Get("http://" + b.ProbeAddrs()[0].String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := io.ReadAll(reply.Body)
	_ = reply.Body.Close()
	if want := fmt.Sprintf("tender_client_denials_total{reason=\"trust_domain\"} %d\n", refused); err != nil || !strings.Contains(string(metrics), want) {
		t.Errorf("/metrics (error %v) does not contain %s", err, want)
	}
}

// TestB37_BindingsHoldAfterReloads checks that the bindings apply to CAs that are replaced while the relay runs. The
// previous CAs may vouch for no client.
func TestB37_BindingsHoldAfterReloads(t *testing.T) { synctest.Test(t, testBindingsAfterReloads) }

func testBindingsAfterReloads(t *testing.T) {
	b := startBound(t, true)
	const istio, spire = "spiffe://cluster.local/ns/a/sa/b", "spiffe://spire.example/envoy"
	next, company := certs.NewCA(t), certs.NewCA(t)
	certs.WriteFile(t, b.dir, "istio.pem", next.PEM)
	b.Log.Await(t, 0, `files="[TENDER_TLS_TRUST_DOMAINS=cluster.local=`)
	all := []presented{
		{"new CA, own trust domain", next, istio, true},
		{"new CA, another trust domain", next, spire, false},
		{"new CA, without a SPIFFE ID", next, "", false},
		{"SPIRE, own trust domain", b.spire, spire, true},
		{"SPIRE, another trust domain", b.spire, istio, false},
		{"company, trust domain of Istio", b.company, istio, false},
	}
	present(t, b.company, b.Listener.Dial, all)
	certs.WriteFile(t, b.dir, "ca.pem", company.PEM)
	b.Log.Await(t, 0, `files="[TENDER_TLS_CLIENT_CA=`)
	present(t, b.company, b.Listener.Dial, all[:len(all)-1])
	present(t, b.company, b.Listener.Dial, []presented{
		{"new CA of the company, without a SPIFFE ID", company, "", true},
		{"new CA of the company, trust domain of Istio", company, istio, false},
	})
}

// TestB37_CAsThatAreNotBound checks when `tender check` warns that a trust domain of the rules is not bound to a CA. A
// running relay logs the same warning after a reload.
func TestB37_CAsThatAreNotBound(t *testing.T) { synctest.Test(t, testCAsThatAreNotBound) }

func testCAsThatAreNotBound(t *testing.T) {
	ca, other, spire, dir := certs.NewCA(t), certs.NewCA(t), certs.NewCAOf(t, "spiffe://one.example"), t.TempDir()
	cert, key := ca.Sign(certs.Leaf{Names: []string{"127.0.0.1"}}).Write(t, dir)
	const several = `TENDER_TLS_CLIENT_CA: 2 CAs have no SPIFFE ID, so each can issue certificates for the trust domain "one.example" of TENDER_AUTHZ; bind it to its CA with TENDER_TLS_TRUST_DOMAINS`
	const bySPIFFE, byName = "spiffe://one.example/envoy", "dns:envoy.example"
	env := func(identity, domains string, cas ...[]byte) []string {
		vars := []string{
			"TENDER_TLS_CERT=" + cert, "TENDER_TLS_KEY=" + key, "TENDER_TLS_CLIENT_CA=" + certs.WriteFile(t, dir, "ca.pem", slices.Concat(cas...)),
			"TENDER_AUTHZ=" + certs.WriteFile(t, dir, "authz.yaml", []byte("version: 1\nrules:\n- {name: a, identities: [\""+identity+"\"]}\n")),
		}
		if domains != "" {
			vars = append(vars, "TENDER_TLS_TRUST_DOMAINS="+domains)
		}
		return vars
	}
	for _, tt := range []struct {
		name, identity, domains string
		cas                     [][]byte
		want                    string
	}{
		{"one CA", bySPIFFE, "", [][]byte{ca.PEM}, ""},
		{"one CA and a CA that it has signed", bySPIFFE, "", [][]byte{ca.PEM, ca.Intermediate("").PEM}, ""},
		{"one CA, renewed", bySPIFFE, "", [][]byte{ca.PEM, ca.Renewed().PEM}, ""},
		{"two CAs, and a CA of the trust domain", bySPIFFE, "", [][]byte{ca.PEM, other.PEM, spire.PEM}, ""},
		{"two CAs", bySPIFFE, "", [][]byte{ca.PEM, other.PEM}, several},
		{"two CAs, and rules about names", byName, "", [][]byte{ca.PEM, other.PEM}, ""},
		{"two CAs, and a binding", bySPIFFE, "one.example", [][]byte{ca.PEM, other.PEM}, ""},
		{"a binding of another trust domain", bySPIFFE, "two.example", [][]byte{ca.PEM},
			`TENDER_AUTHZ: rules name the trust domain "one.example", which is not in TENDER_TLS_TRUST_DOMAINS; its clients are refused`},
	} {
		cfg, err := relay.LoadConfig(env(tt.identity, tt.domains, tt.cas...))
		if err != nil {
			t.Fatal(err)
		}
		warnings, err := cfg.CheckFiles()
		if got := strings.Join(warnings, "\n"); err != nil || got != tt.want {
			t.Errorf("%s: warnings %q, %v, want %q", tt.name, got, err, tt.want)
		}
	}

	r := startInMemory(t, relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true}), env(bySPIFFE, "", ca.PEM)...)
	if got := r.Log.String(); strings.Contains(got, "can issue certificates") {
		t.Errorf("with one CA, the log contains a warning:\n%s", got)
	}
	certs.WriteFile(t, dir, "ca.pem", slices.Concat(ca.PEM, other.PEM))
	r.Log.Await(t, 0, "2 CAs have no SPIFFE ID")
	certs.WriteFile(t, dir, "authz.yaml", []byte("version: 1\nrules:\n- {name: a, identities: [\"spiffe://three.example/a\"]}\n"))
	r.Log.Await(t, 0, `can issue certificates for the trust domain \"three.example\"`)
}

// TestB37_TrustDomainFilesThatCannotBeUsed checks that a relay does not start if a trust domain is bound to a file
// without CAs.
func TestB37_TrustDomainFilesThatCannotBeUsed(t *testing.T) {
	ca, dir := certs.NewCA(t), t.TempDir()
	cert, key := ca.Sign(certs.Leaf{}).Write(t, dir)
	empty := certs.WriteFile(t, dir, "empty.pem", nil)
	cfg, err := relay.LoadConfig([]string{"TENDER_ORIGIN=a:1", "TENDER_TLS_CERT=" + cert, "TENDER_TLS_KEY=" + key, "TENDER_TLS_CLIENT_CA=" + certs.WriteFile(t, dir, "ca.pem", ca.PEM),
		"TENDER_TLS_TRUST_DOMAINS=a.example=" + empty + ";b.example=" + dir + "/missing.pem"})
	if err != nil {
		t.Fatal(err)
	}
	want := `TENDER_TLS_TRUST_DOMAINS=a.example="` + empty + `": it has no certificate in PEM: a block that begins with -----BEGIN CERTIFICATE-----` + "\n" +
		`TENDER_TLS_TRUST_DOMAINS=b.example="` + dir + `/missing.pem": no such file or directory`
	if _, err := relay.New(cfg, relay.Options{}); err == nil || err.Error() != want {
		t.Errorf("New: %v, want %s", err, want)
	}
}
