// Package certs makes the certificates of tests with TLS.
//
// The package is not a stable API: programs that embed Tender use package relay.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/xdstender/tender/relay/relaytest/wait"
)

// A CA signs certificates for the length of a test.
type CA struct {
	t    wait.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey

	// PEM is its own certificate.
	PEM []byte

	chain []byte // what its clients show beside their certificates
}

// A Leaf describes a certificate. The zero value has no names, and is valid from an hour ago until an hour from now.
type Leaf struct {
	Names []string // DNS names and IP addresses
	URI   string   // such as a SPIFFE ID; empty for none

	// Usage is what it is good for. Empty means both ends of TLS.
	Usage []x509.ExtKeyUsage

	NotBefore, NotAfter time.Time
}

// A Pair is a certificate and its key, in PEM.
type Pair struct{ Cert, Key []byte }

// NewCA returns a new CA.
func NewCA(t wait.TB) *CA { return NewCAOf(t, "") }

// NewCAOf returns a new CA of a SPIFFE trust domain, such as spiffe://example.org. An empty domain means none.
func NewCAOf(t wait.TB, domain string) *CA {
	t.Helper()
	ca := &CA{t: t, key: newKey(t)}
	template := ca.template(domain)
	ca.cert, ca.PEM = create(t, template, template, &ca.key.PublicKey, ca.key)
	return ca
}

// Intermediate returns a CA of a trust domain, or of none, signed by this CA. Its leaf certificates come with the chain.
func (ca *CA) Intermediate(domain string) *CA {
	ca.t.Helper()
	next := &CA{t: ca.t, key: newKey(ca.t)}
	template := next.template(domain)
	template.Subject.CommonName = "test intermediate CA"
	next.cert, next.PEM = create(ca.t, template, ca.cert, &next.key.PublicKey, ca.key)
	next.chain = slices.Concat(next.PEM, ca.chain)
	return next
}

// Renewed returns the CA with another certificate for its key.
func (ca *CA) Renewed() *CA {
	ca.t.Helper()
	next := &CA{t: ca.t, key: ca.key}
	template := next.template("")
	next.cert, next.PEM = create(ca.t, template, template, &next.key.PublicKey, next.key)
	return next
}

func (ca *CA) template(domain string) *x509.Certificate {
	ca.t.Helper()
	return &x509.Certificate{
		SerialNumber:          serial(ca.t),
		Subject:               pkix.Name{CommonName: "test CA"},
		NotBefore:             time.Now().Add(-24 * time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
		URIs:                  uris(ca.t, domain),
	}
}

// uris returns what a certificate with one URI, or with none, has.
func uris(t wait.TB, text string) []*url.URL {
	t.Helper()
	if text == "" {
		return nil
	}
	uri, err := url.Parse(text)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return []*url.URL{uri}
}

// Sign returns a new certificate with a key of its own.
func (ca *CA) Sign(l Leaf) Pair {
	ca.t.Helper()
	template := &x509.Certificate{
		SerialNumber: serial(ca.t),
		NotBefore:    l.NotBefore,
		NotAfter:     l.NotAfter,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  l.Usage,
	}
	if len(l.Usage) == 0 {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	}
	if l.NotBefore.IsZero() {
		template.NotBefore = time.Now().Add(-time.Hour)
	}
	if l.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	for _, name := range l.Names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	template.URIs = uris(ca.t, l.URI)
	key := newKey(ca.t)
	_, cert := create(ca.t, template, ca.cert, &key.PublicKey, ca.key)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		ca.t.Fatalf("%v", err)
	}
	return Pair{slices.Concat(cert, ca.chain), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})}
}

// Write puts the pair into a directory, as tls.crt and tls.key, and returns their paths.
func (p Pair) Write(t wait.TB, dir string) (cert, key string) {
	t.Helper()
	return WriteFile(t, dir, "tls.crt", p.Cert), WriteFile(t, dir, "tls.key", p.Key)
}

// WriteFile writes a file that only its owner may read, and returns its path.
func WriteFile(t wait.TB, dir, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatalf("%v", err)
	}
	return path
}

func create(t wait.TB, template, parent *x509.Certificate, public *ecdsa.PublicKey, key *ecdsa.PrivateKey) (*x509.Certificate, []byte) {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		t.Fatalf("%v", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func newKey(t wait.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return key
}

func serial(t wait.TB) *big.Int {
	t.Helper()
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		t.Fatalf("%v", err)
	}
	return n
}
