package tlsfiles_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/xdstender/tender/relay/relaytest/certs"
	"github.com/xdstender/tender/relay/tlsfiles"
)

// named returns a file with its variable.
func named(variable, path string) tlsfiles.File {
	return tlsfiles.File{Variable: variable, Path: path}
}

// pair parses a certificate and its key.
func pair(t *testing.T, p certs.Pair) tls.Certificate {
	t.Helper()
	cert, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// trusting returns a pool that contains one CA.
func trusting(ca *certs.CA) *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca.PEM)
	return pool
}

// shake performs a TLS handshake over a socket. It returns the errors of both sides, and the client's state of the
// connection.
func shake(t *testing.T, client credentials.TransportCredentials, authority string, server *tls.Config) (state tls.ConnectionState, serverErr, clientErr error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	served := make(chan error, 1)
	go func() { // ends before shake returns
		raw, err := l.Accept()
		if err != nil {
			served <- err
			return
		}
		conn := tls.Server(raw, server)
		err = conn.HandshakeContext(ctx)
		if err == nil {
			_, err = conn.Write([]byte("x"))
		}
		_ = conn.Close()
		served <- err
	}()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	conn, info, clientErr := client.ClientHandshake(ctx, authority, raw)
	if clientErr == nil {
		state = info.(credentials.TLSInfo).State
		_, clientErr = io.ReadFull(conn, make([]byte, 1)) // in TLS 1.3, the client receives the server's alert after its handshake
	}
	_ = raw.Close()
	return state, <-served, clientErr
}

// TestWhoTheOriginMustBe checks which server certificates a client accepts.
func TestWhoTheOriginMustBe(t *testing.T) {
	const id = "spiffe://example.org/control-plane"
	ca, other := certs.NewCA(t), certs.NewCA(t)
	caFile := named("CA", certs.WriteFile(t, t.TempDir(), "ca.pem", ca.PEM))
	byName := ca.Sign(certs.Leaf{Names: []string{"origin.example", "127.0.0.1"}})
	byID := ca.Sign(certs.Leaf{URI: id})
	tests := []struct {
		name  string
		cfg   tlsfiles.ClientConfig
		shown certs.Pair
		want  string // part of the client's error; empty for success
	}{
		{"the name that was dialled", tlsfiles.ClientConfig{CA: caFile}, byName, ""},
		{"another name", tlsfiles.ClientConfig{CA: caFile}, ca.Sign(certs.Leaf{Names: []string{"other.example"}}), "not origin.example"},
		{"another CA", tlsfiles.ClientConfig{CA: caFile}, other.Sign(certs.Leaf{Names: []string{"origin.example"}}), "unknown authority"},
		{"a CA that the system does not trust", tlsfiles.ClientConfig{}, byName, "unknown authority"},
		{"expired", tlsfiles.ClientConfig{CA: caFile}, ca.Sign(certs.Leaf{Names: []string{"origin.example"}, NotAfter: time.Now().Add(-time.Minute)}), "expired"},
		{"not valid yet", tlsfiles.ClientConfig{CA: caFile}, ca.Sign(certs.Leaf{Names: []string{"origin.example"}, NotBefore: time.Now().Add(time.Minute)}), "not yet valid"},
		{"for clients only", tlsfiles.ClientConfig{CA: caFile}, ca.Sign(certs.Leaf{Names: []string{"origin.example"}, Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}), "incompatible key usage"},
		{"insecure", tlsfiles.ClientConfig{Insecure: true}, other.Sign(certs.Leaf{}), ""},
		{"a SPIFFE ID, and no name", tlsfiles.ClientConfig{CA: caFile, ServerName: id}, byID, ""},
		{"another SPIFFE ID", tlsfiles.ClientConfig{CA: caFile, ServerName: id}, ca.Sign(certs.Leaf{URI: "spiffe://example.org/other"}), "the server is spiffe://example.org/other, want " + id},
		{"another trust domain", tlsfiles.ClientConfig{CA: caFile, ServerName: id}, ca.Sign(certs.Leaf{URI: "spiffe://example.com/control-plane"}), "verify that the server is " + id},
		{"a name instead of a SPIFFE ID", tlsfiles.ClientConfig{CA: caFile, ServerName: id}, byName, "verify that the server is " + id},
		{"a SPIFFE ID by another CA", tlsfiles.ClientConfig{CA: caFile, ServerName: id}, other.Sign(certs.Leaf{URI: id}), "verify that the server is " + id},
		{"an expired SPIFFE ID", tlsfiles.ClientConfig{CA: caFile, ServerName: id}, ca.Sign(certs.Leaf{URI: id, NotAfter: time.Now().Add(-time.Minute)}), "expired"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			client, err := tlsfiles.New(nil).Client(tt.cfg)
			if err != nil {
				t.Fatal(err)
			}
			server := &tls.Config{Certificates: []tls.Certificate{pair(t, tt.shown)}, NextProtos: []string{"h2"}}
			_, _, err = shake(t, client, "origin.example:443", server)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("ClientHandshake: %v, want %q", err, tt.want)
			}
		})
	}
}

// TestTLSOfOrigins checks which TLS versions and cipher suites a client accepts.
func TestTLSOfOrigins(t *testing.T) {
	ca := certs.NewCA(t)
	client, err := tlsfiles.New(nil).Client(tlsfiles.ClientConfig{CA: named("CA", certs.WriteFile(t, t.TempDir(), "ca.pem", ca.PEM))})
	if err != nil {
		t.Fatal(err)
	}
	shown := pair(t, ca.Sign(certs.Leaf{Names: []string{"origin.example"}}))
	tests := []struct {
		name        string
		least, most uint16
		suites      []uint16
		want        uint16 // TLS version; zero if the handshake fails
	}{
		{"1.3", 0, 0, nil, tls.VersionTLS13},
		{"1.2", 0, tls.VersionTLS12, nil, tls.VersionTLS12},
		{"1.2 without authenticated encryption", 0, tls.VersionTLS12, []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA}, 0},
		{"1.1", tls.VersionTLS10, tls.VersionTLS11, nil, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			server := &tls.Config{Certificates: []tls.Certificate{shown}, NextProtos: []string{"h2"}, MinVersion: tt.least, MaxVersion: tt.most, CipherSuites: tt.suites}
			state, _, err := shake(t, client, "origin.example:443", server)
			if (err == nil) != (tt.want != 0) || state.Version != tt.want {
				t.Errorf("ClientHandshake: %v, %s, want %s", err, tls.VersionName(state.Version), tls.VersionName(tt.want))
			}
		})
	}
}

// TestCertificateForTheOrigin checks that a client sends its certificate to an origin that requires one, and that the
// handshake fails without it.
func TestCertificateForTheOrigin(t *testing.T) {
	ca, dir := certs.NewCA(t), t.TempDir()
	cfg := tlsfiles.ClientConfig{CA: named("CA", certs.WriteFile(t, dir, "ca.pem", ca.PEM))}
	server := &tls.Config{
		Certificates: []tls.Certificate{pair(t, ca.Sign(certs.Leaf{Names: []string{"origin.example"}}))},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: trusting(ca), NextProtos: []string{"h2"},
	}
	without, err := tlsfiles.New(nil).Client(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err, _ := shake(t, without, "origin.example", server); err == nil {
		t.Error("the origin accepts a client without a certificate")
	}
	cert, key := ca.Sign(certs.Leaf{URI: "spiffe://example.org/tender"}).Write(t, dir)
	cfg.Cert, cfg.Key = named("CERT", cert), named("KEY", key)
	with, err := tlsfiles.New(nil).Client(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, serverErr, err := shake(t, with, "origin.example", server); err != nil || serverErr != nil {
		t.Errorf("with a certificate: %v, %v", err, serverErr)
	}
}

// TestFilesThatCannotBeUsed checks that there is one error for each invalid file, which contains its variable and its
// path, but not its content.
func TestFilesThatCannotBeUsed(t *testing.T) {
	ca := certs.NewCA(t)
	good, another := ca.Sign(certs.Leaf{}), ca.Sign(certs.Leaf{})
	encrypted := []byte("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n")
	tests := []struct {
		name          string
		ca, cert, key []byte // nil for a missing file
		want          string // prefixes of the lines of the error, with DIR in place of the directory
	}{
		{"a missing CA", nil, good.Cert, good.Key, `CA="DIR/ca.pem": no such file or directory`},
		{"an empty CA", []byte{}, good.Cert, good.Key, `CA="DIR/ca.pem": it has no certificate in PEM`},
		{"a key for a CA", good.Key, good.Cert, good.Key, `CA="DIR/ca.pem": it has no certificate in PEM`},
		{"a truncated CA", ca.PEM[:len(ca.PEM)/2], good.Cert, good.Key, `CA="DIR/ca.pem": after 0 certificates it has one that is cut off`},
		{"a CA and a truncated one", append(ca.PEM[:len(ca.PEM):len(ca.PEM)], ca.PEM[:len(ca.PEM)/2]...), good.Cert, good.Key, `CA="DIR/ca.pem": after 1 certificates it has one that is cut off`},
		{"a missing key", ca.PEM, good.Cert, nil, `KEY="DIR/tls.key": no such file`},
		{"an empty key", ca.PEM, good.Cert, []byte{}, `KEY="DIR/tls.key": it has no private key in PEM`},
		{"an encrypted key", ca.PEM, good.Cert, encrypted, `KEY="DIR/tls.key": it has no private key in PEM: a block that begins with -----BEGIN … PRIVATE KEY-----, not encrypted`},
		{"the key of another certificate", ca.PEM, good.Cert, another.Key, `KEY="DIR/tls.key": it is not the key of the certificate in CERT="DIR/tls.crt"`},
		{"a key in place of the certificate", ca.PEM, good.Key, good.Key, `CERT="DIR/tls.crt": it has no certificate in PEM`},
		{"nothing", nil, nil, nil, "CA=\"DIR/ca.pem\": no such file\nCERT=\"DIR/tls.crt\": no such file\nKEY=\"DIR/tls.key\": no such file"},
		{"an empty key of a missing certificate", ca.PEM, nil, []byte{}, "CERT=\"DIR/tls.crt\": no such file\nKEY=\"DIR/tls.key\": it has no private key"},
		{"an empty certificate of a missing key", ca.PEM, []byte{}, nil, "KEY=\"DIR/tls.key\": no such file\nCERT=\"DIR/tls.crt\": it has no certificate"},
		{"a certificate and a key that are swapped", ca.PEM, good.Key, good.Cert, "CERT=\"DIR/tls.crt\": it has no certificate\nKEY=\"DIR/tls.key\": it has no private key"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			cfg := tlsfiles.ClientConfig{CA: named("CA", dir+"/ca.pem"), Cert: named("CERT", dir+"/tls.crt"), Key: named("KEY", dir+"/tls.key")}
			for name, content := range map[string][]byte{"ca.pem": tt.ca, "tls.crt": tt.cert, "tls.key": tt.key} {
				if content != nil {
					certs.WriteFile(t, dir, name, content)
				}
			}
			_, err := tlsfiles.New(nil).Client(cfg)
			if err == nil {
				t.Fatal("Client returns no error")
			}
			got, want := strings.Split(strings.ReplaceAll(err.Error(), dir, "DIR"), "\n"), strings.Split(tt.want, "\n")
			if !slices.EqualFunc(got, want, strings.HasPrefix) {
				t.Errorf("Client: %v, want the lines %s", err, tt.want)
			}
		})
	}
}

// TestUnsetFiles checks that there is an error for a certificate without a key, a key without a certificate, and trust
// domains without CAs, beside the errors of the files that are set.
func TestUnsetFiles(t *testing.T) {
	missing := t.TempDir() + "/missing"
	for want, cfg := range map[string]tlsfiles.ServerConfig{
		`CERT="": it is not set|KEY="MISSING": no such file or directory`:                                          {Key: named("KEY", missing)},
		`CERT="MISSING": no such file or directory|KEY="": it is not set`:                                          {Cert: named("CERT", missing)},
		`CERT="": it is not set|KEY="": it is not set|CA="": it is not set|D="MISSING": no such file or directory`: {TrustDomains: []tlsfiles.TrustDomain{{Name: "a", CA: named("D", missing)}}},
	} {
		cfg.Cert.Variable, cfg.Key.Variable, cfg.ClientCA.Variable = "CERT", "KEY", "CA"
		_, err := tlsfiles.New(nil).Server(cfg)
		if got := strings.ReplaceAll(fmt.Sprint(err), missing, "MISSING"); got != strings.ReplaceAll(want, "|", "\n") {
			t.Errorf("Server: %s\nwant %s", got, want)
		}
	}
	if _, err := tlsfiles.New(nil).Client(tlsfiles.ClientConfig{Key: named("KEY", missing)}); err == nil {
		t.Error("Client returns no error for a key without a certificate")
	}
}

// TestFilesThatCanBeUsed checks that an expired certificate and a key that all users may read are used with a warning.
func TestFilesThatCanBeUsed(t *testing.T) {
	dir := t.TempDir()
	cert, key := certs.NewCA(t).Sign(certs.Leaf{NotAfter: time.Now().Add(-time.Minute)}).Write(t, dir)
	if err := os.Chmod(key, 0o644); err != nil {
		t.Fatal(err)
	}
	w := tlsfiles.New(nil)
	if _, err := w.Client(tlsfiles.ClientConfig{Cert: named("CERT", cert), Key: named("KEY", key)}); err != nil {
		t.Fatal(err)
	}
	got := w.Warnings()
	want := []string{`CERT="` + cert + `": the certificate has expired at `, `KEY="` + key + `": every user may read it (mode 0644)`}
	if len(got) != len(want) || !strings.HasPrefix(got[0], want[0]) || !strings.HasPrefix(got[1], want[1]) {
		t.Errorf("warnings %q, want %q", got, want)
	}
}
