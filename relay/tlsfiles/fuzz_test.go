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

// FuzzPEM: whatever files of TLS hold, an error says which file it is and has nothing of
// a key in it, and what is accepted has a certificate that its key fits.
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
				t.Errorf("%q and its key are taken for %q, which the key does not fit: %v", cert, again, err)
			}
		}
		cas, valid, err := tlsfiles.ParseCAs(tlsfiles.File{Variable: "CA", Path: "ca"}, cert)
		switch {
		case err != nil:
			checkFileError(t, err, key)
		case len(cas) == 0 || len(cas) > bytes.Count(cert, []byte("-----BEGIN CERTIFICATE-----")):
			t.Errorf("%q holds %d CAs", cert, len(cas))
		default:
			for _, ca := range cas {
				if ca.NotAfter.After(valid) {
					t.Errorf("%q is valid until %s, and a CA in it until %s", cert, valid, ca.NotAfter)
				}
			}
		}
	})
}

func read(f *testing.F, name string) []byte {
	content, err := os.ReadFile(name)
	if err != nil {
		f.Fatal(err)
	}
	return content
}

func encode(kind string, blocks [][]byte) (text []byte) {
	for _, b := range blocks {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b})...)
	}
	return text
}

// checkFileError checks an error of files, one of which has a key in it.
func checkFileError(t *testing.T, err error, key []byte) {
	if !strings.HasPrefix(err.Error(), "CERT=") && !strings.HasPrefix(err.Error(), "KEY=") && !strings.HasPrefix(err.Error(), "CA=") {
		t.Errorf("%v: want the file first", err)
	}
	for line := range bytes.Lines(key) {
		if line = bytes.TrimSpace(line); len(line) > 40 && !bytes.HasPrefix(line, []byte("-----")) && strings.Contains(err.Error(), string(line)) {
			t.Errorf("%v quotes the key", err)
		}
	}
}
