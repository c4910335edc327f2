package tlsfiles_test

import (
	"bytes"
	"crypto/tls"
	"encoding/pem"
	"os"
	"strings"
	"testing"

	"github.com/xdstender/tender/relay/relaytest/certs"
	"github.com/xdstender/tender/relay/tlsfiles"
)

// FuzzPEM parses arbitrary certificates and keys. An error must name the file and must not contain a part of the key.
// An accepted certificate must match its key.
func FuzzPEM(f *testing.F) {
	ca, dir := certs.NewCA(f), f.TempDir()
	certFile, keyFile := ca.Sign(certs.Leaf{}).Write(f, dir)
	cert, key := read(f, certFile), read(f, keyFile)
	_, other := ca.Sign(certs.Leaf{}).Write(f, f.TempDir())
	f.Add(cert, key)
	f.Add(bytes.Repeat(cert, 3), append([]byte("text\n"), key...))
	f.Add(cert, read(f, other))
	f.Add(cert[:len(cert)/2], key[:len(key)/2])
	f.Add(key, cert)
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"), []byte("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"))
	f.Fuzz(func(t *testing.T, cert, key []byte) {
		pair, err := tlsfiles.ParsePair(tlsfiles.File{Variable: "CERT", Path: "c"}, tlsfiles.File{Variable: "KEY", Path: "k"}, cert, key)
		if err != nil {
			checkFileError(t, err, key)
		} else {
			again := encode("CERTIFICATE", pair.Certificate)
			if _, err := tls.X509KeyPair(again, key); err != nil {
				t.Errorf("%q and its key are parsed as %q, which does not match the key: %v", cert, again, err)
			}
		}
		cas, valid, err := tlsfiles.ParseCAs(tlsfiles.File{Variable: "CA", Path: "ca"}, cert)
		switch {
		case err != nil:
			checkFileError(t, err, key)
		case len(cas) == 0 || len(cas) > bytes.Count(cert, []byte("-----BEGIN CERTIFICATE-----")):
			t.Errorf("%q: parsed %d CAs, want at least one, and at most one per block", cert, len(cas))
		default:
			for _, ca := range cas {
				if ca.NotAfter.After(valid) {
					t.Errorf("%q: expires at %s, but one of its CAs at %s", cert, valid, ca.NotAfter)
				}
			}
		}
	})
}

// read returns the content of a file.
func read(f *testing.F, name string) []byte {
	content, err := os.ReadFile(name)
	if err != nil {
		f.Fatal(err)
	}
	return content
}

// encode returns PEM blocks of the given type.
func encode(kind string, blocks [][]byte) (text []byte) {
	for _, b := range blocks {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b})...)
	}
	return text
}

// checkFileError checks that an error begins with a file and does not contain a line of the key.
func checkFileError(t *testing.T, err error, key []byte) {
	if !strings.HasPrefix(err.Error(), "CERT=") && !strings.HasPrefix(err.Error(), "KEY=") && !strings.HasPrefix(err.Error(), "CA=") {
		t.Errorf("error %v does not begin with the file", err)
	}
	for line := range bytes.Lines(key) {
		if line = bytes.TrimSpace(line); len(line) > 40 && !bytes.HasPrefix(line, []byte("-----")) && strings.Contains(err.Error(), string(line)) {
			t.Errorf("error %v contains a part of the key", err)
		}
	}
}
