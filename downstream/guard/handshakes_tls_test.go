package guard_test

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"runtime"
	"testing"

	"google.golang.org/grpc/credentials"

	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/relaytest/certs"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestB35_TLSHandshakesReleaseTheirTurn: a TLS handshake releases its turn, whether it succeeds or fails.
func TestB35_TLSHandshakesReleaseTheirTurn(t *testing.T) {
	ca := certs.NewCA(t)
	pair := ca.Sign(certs.Leaf{Names: []string{"relay"}})
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	check.OK(t, err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca.PEM)
	g := guard.New(guard.Config{Limits: guard.WithDefaults(guard.Limits{}), Logger: slog.New(slog.DiscardHandler)})
	creds := g.Credentials(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"},
	}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check.OK(t, err)
	defer func() { _ = l.Close() }()
	shake := func(name string) error {
		far, err := net.Dial("tcp", l.Addr().String())
		check.OK(t, err)
		near, err := l.Accept()
		check.OK(t, err)
		defer func() { _ = near.Close() }()
		shaken := make(chan error, 1)
		go func() { // ends after the handshake
			defer func() { _ = far.Close() }()
			conn := tls.Client(far, &tls.Config{ServerName: name, RootCAs: pool, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12})
			err := conn.HandshakeContext(t.Context())
			if err == nil {
				_, err = conn.Write([]byte("x"))
			}
			shaken <- err
		}()
		conn, _, err := creds.ServerHandshake(near)
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
			check.OK(t, <-shaken)
		}
		return err
	}
	for range 2 * runtime.GOMAXPROCS(0) { // exceeds the number of turns
		check.OK(t, shake("relay"))
		if err := shake("another"); err == nil {
			t.Error("the handshake of a client that expects another server name succeeded")
		}
	}
}
