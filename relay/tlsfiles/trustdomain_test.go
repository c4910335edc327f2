package tlsfiles_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
)

// A presented certificate is a client's, and whether the client is to be served.
type presented struct {
	name   string
	by     *certs.CA
	uri    string
	served bool
}

// check connects with each certificate, and returns how many were refused.
func check(t *testing.T, roots *certs.CA, at net.Addr, all []presented) (refused int) {
	t.Helper()
	for _, tt := range all {
		shown := pair(t, tt.by.Sign(certs.Leaf{URI: tt.uri}))
		conn, err := tls.Dial("tcp", at.String(), &tls.Config{
			RootCAs: trusting(roots), NextProtos: []string{"h2"},
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &shown, nil },
		})
		if err == nil {
			_ = conn.SetReadDeadline(time.Now().Add(relaytest.Patience))
			_, _ = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
			_, err = conn.Read(make([]byte, 1)) // the server's settings of HTTP/2, or its alert
			_ = conn.Close()
		}
		if err != nil {
			refused++
		}
		if (err == nil) != tt.served || err != nil && !strings.Contains(err.Error(), "bad certificate") {
			t.Errorf("%s: %v, want it to be served: %v", tt.name, err, tt.served)
		}
	}
	return refused
}

// TestB37_TrustDomains holds that a CA with a SPIFFE ID vouches for its own trust domain alone, and it alone for that, where no
// trust domain is bound to CAs.
func TestB37_TrustDomains(t *testing.T) {
	one, two, none := certs.NewCAOf(t, "spiffe://one.example"), certs.NewCAOf(t, "spiffe://two.example"), certs.NewCA(t)
	dir := t.TempDir()
	cert, key := none.Sign(certs.Leaf{Names: []string{"127.0.0.1"}}).Write(t, dir)
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	r := start(t, []string{
		"TENDER_ORIGIN=" + o.Addr(), "TENDER_TLS_CERT=" + cert, "TENDER_TLS_KEY=" + key,
		"TENDER_TLS_CLIENT_CA=" + certs.WriteFile(t, dir, "ca.pem", slices.Concat(one.PEM, two.PEM, none.PEM)),
	}...)
	check(t, none, r.Addrs()[0], []presented{
		{"of the CA's trust domain", one, "spiffe://one.example/envoy", true},
		{"of the CA's trust domain, by an intermediate CA", one.Intermediate("spiffe://one.example"), "spiffe://one.example/envoy", true},
		{"of another CA's", one, "spiffe://two.example/envoy", false},
		{"of one that no CA has, by a CA that has one", one, "spiffe://three.example/envoy", false},
		{"of one that a CA has, by a CA that has none", none, "spiffe://one.example/envoy", false},
		{"the same, by an intermediate CA that says it is of that", none.Intermediate("spiffe://one.example"), "spiffe://one.example/envoy", false},
		{"of one that no CA has, by a CA that has none", none, "spiffe://three.example/envoy", true},
		{"without a SPIFFE ID", two, "", true},
	})
}

// bound is a relay of a platform with three CAs: SPIRE's and Istio's are bound to their trust domains, and that of the company
// vouches for what has no SPIFFE ID, and for one trust domain.
type bound struct {
	*running
	spire, istio, company *certs.CA
	dir                   string
}

func startBound(t *testing.T, env ...string) *bound {
	t.Helper()
	b := &bound{spire: certs.NewCAOf(t, "spiffe://spire.example"), istio: certs.NewCA(t), company: certs.NewCA(t), dir: t.TempDir()}
	b.running, _ = serveTLS(t, b.company, b.dir, append(env, "TENDER_TLS_TRUST_DOMAINS=company.example;cluster.local="+
		certs.WriteFile(t, b.dir, "istio.pem", b.istio.PEM)+";spire.example="+certs.WriteFile(t, b.dir, "spire.pem", b.spire.PEM))...)
	return b
}

// TestB37_TrustDomainsBoundToCAs holds who is served by a relay that binds trust domains to CAs, and that refusals are logged and
// counted.
func TestB37_TrustDomainsBoundToCAs(t *testing.T) {
	t.Parallel()
	b := startBound(t, "TENDER_REST_LISTEN=127.0.0.1:0", "TENDER_PROBE_LISTEN=127.0.0.1:0")
	const istio, spire, company = "spiffe://cluster.local/ns/a/sa/b", "spiffe://spire.example/envoy", "spiffe://company.example/envoy"
	all := []presented{
		{"SPIRE's, of its trust domain", b.spire, spire, true},
		{"SPIRE's, of Istio's", b.spire, istio, false},
		{"SPIRE's, of the company's", b.spire, company, false},
		{"SPIRE's, without a SPIFFE ID", b.spire, "", false},
		{"Istio's, of its trust domain", b.istio, istio, true},
		{"Istio's, by an intermediate CA", b.istio.Intermediate(""), istio, true},
		{"Istio's, of SPIRE's", b.istio, spire, false},
		{"Istio's, of SPIRE's, by an intermediate CA that says it is SPIRE's", b.istio.Intermediate("spiffe://spire.example"), spire, false},
		{"Istio's, of the company's", b.istio, company, false},
		{"Istio's, without a SPIFFE ID", b.istio, "", false},
		{"Istio's, of another URI", b.istio, "https://cluster.local/ns/a/sa/b", false},
		{"Istio's, with an ID that is none", b.istio, "spiffe://cluster.local/ns//sa", false},
		{"the company's, of its trust domain", b.company, company, true},
		{"the company's, of Istio's", b.company, istio, false},
		{"the company's, of SPIRE's", b.company, spire, false},
		{"the company's, of one that is not listed", b.company, "spiffe://other.example/envoy", false},
		{"the company's, without a SPIFFE ID", b.company, "", true},
	}
	refused := check(t, b.company, b.Addrs()[0], all)
	refused += check(t, b.company, b.RESTAddrs()[0], all)
	for _, want := range []string{
		`msg="client certificate rejected by trust domain" client=127.0.0.1:`, `identity=` + istio, `ca="CN=test CA"`,
		`the CA may not vouch for the trust domain \"cluster.local\": TENDER_TLS_TRUST_DOMAINS binds that to other CAs`,
	} {
		if got := b.Log.String(); !strings.Contains(got, want) {
			t.Errorf("the log has no %s:\n%s", want, got)
		}
	}
	reply, err := http.Get("http://" + b.ProbeAddrs()[0].String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := io.ReadAll(reply.Body)
	_ = reply.Body.Close()
	if want := fmt.Sprintf("tender_client_denials_total{reason=\"trust_domain\"} %d\n", refused); err != nil || !strings.Contains(string(metrics), want) {
		t.Errorf("the metrics, %v, have no %s", err, want)
	}
}

// TestB37_BindingsHoldAfterReloads holds that CAs that are changed while the relay runs vouch for what their files may vouch for, and
// those that were there before for nothing.
func TestB37_BindingsHoldAfterReloads(t *testing.T) {
	t.Parallel()
	b := startBound(t)
	const istio, spire = "spiffe://cluster.local/ns/a/sa/b", "spiffe://spire.example/envoy"
	next, company := certs.NewCA(t), certs.NewCA(t)
	certs.WriteFile(t, b.dir, "istio.pem", next.PEM)
	b.Log.Await(t, 0, `files="[TENDER_TLS_TRUST_DOMAINS=cluster.local=`)
	all := []presented{
		{"the new CA's, of its trust domain", next, istio, true},
		{"the new CA's, of another one", next, spire, false},
		{"the new CA's, without a SPIFFE ID", next, "", false},
		{"SPIRE's, of its trust domain", b.spire, spire, true},
		{"SPIRE's, of another one", b.spire, istio, false},
		{"the company's, of Istio's", b.company, istio, false},
	}
	check(t, b.company, b.Addrs()[0], all)
	certs.WriteFile(t, b.dir, "ca.pem", company.PEM)
	b.Log.Await(t, 0, `files="[TENDER_TLS_CLIENT_CA=`)
	check(t, b.company, b.Addrs()[0], all[:len(all)-1])
	check(t, b.company, b.Addrs()[0], []presented{
		{"the company's new CA's, without a SPIFFE ID", company, "", true},
		{"the company's new CA's, of Istio's", company, istio, false},
	})
}

// TestB37_CAsThatAreNotBound holds where `tender check` warns that trust domains of the rules are bound to no CA, and that a running
// relay does so once such a file comes.
func TestB37_CAsThatAreNotBound(t *testing.T) {
	t.Parallel()
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
		{"one CA and what it has signed", bySPIFFE, "", [][]byte{ca.PEM, ca.Intermediate("").PEM}, ""},
		{"one CA, renewed", bySPIFFE, "", [][]byte{ca.PEM, ca.Renewed().PEM}, ""},
		{"one CA, and one that is of the trust domain", bySPIFFE, "", [][]byte{ca.PEM, other.PEM, spire.PEM}, ""},
		{"two CAs", bySPIFFE, "", [][]byte{ca.PEM, other.PEM}, several},
		{"two CAs, and rules about names", byName, "", [][]byte{ca.PEM, other.PEM}, ""},
		{"two CAs, and a binding", bySPIFFE, "one.example", [][]byte{ca.PEM, other.PEM}, ""},
		{"a binding of another trust domain", bySPIFFE, "two.example", [][]byte{ca.PEM},
			`TENDER_AUTHZ: rules name the trust domain "one.example", which is not in TENDER_TLS_TRUST_DOMAINS; its clients are rejected`},
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

	r := start(t, append(env(bySPIFFE, "", ca.PEM), "TENDER_ORIGIN=127.0.0.1:1")...)
	if got := r.Log.String(); strings.Contains(got, "can issue certificates") {
		t.Errorf("with one CA, the log has a warning:\n%s", got)
	}
	certs.WriteFile(t, dir, "ca.pem", slices.Concat(ca.PEM, other.PEM))
	r.Log.Await(t, 0, "2 CAs have no SPIFFE ID")
	certs.WriteFile(t, dir, "authz.yaml", []byte("version: 1\nrules:\n- {name: a, identities: [\"spiffe://three.example/a\"]}\n"))
	r.Log.Await(t, 0, `can issue certificates for the trust domain \"three.example\"`)
}

// TestB37_TrustDomainFilesThatCannotBeUsed holds that a relay does not start with a binding to a file without CAs.
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
