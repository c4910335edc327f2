package authz_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

// A farListener accepts connections whose remote address is that of another host.
type farListener struct{ net.Listener }

func (l farListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return farConn{c}, err
}

type farConn struct{ net.Conn }

func (farConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 7} }

// TestB37_ReflectionIsForOperators checks that only clients on this host and operators may use gRPC reflection.
func TestB37_ReflectionIsForOperators(t *testing.T) {
	t.Parallel()
	const ops = "spiffe://example.org/ns/ops/sa/ann"
	ca, dir := certs.NewCA(t), t.TempDir()
	cert, key := ca.Sign(certs.Leaf{Names: []string{"127.0.0.1"}}).Write(t, dir)
	rules := "version: 1\noperators: [\"" + ops + "\"]\nrules: [{name: all, identities: [\"spiffe://example.org/**\"]}]\n"
	for _, tt := range []struct {
		name, id string
		far      bool
		want     codes.Code
	}{
		{"a client on this host", web, false, codes.OK},
		{"a client on another host", web, true, codes.PermissionDenied},
		{"an operator on another host", ops, true, codes.OK},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		address := l.Addr().String()
		if tt.far {
			l = farListener{l}
		}
		instance.Start(t, instance.Options{Options: relay.Options{Listeners: []net.Listener{l}}, Env: []string{
			"TENDER_ORIGIN=" + relaytest.NewOrigin(t, relaytest.OriginOptions{}).Addr(), "TENDER_TLS_CERT=" + cert, "TENDER_TLS_KEY=" + key,
			"TENDER_TLS_CLIENT_CA=" + certs.WriteFile(t, dir, "ca.pem", ca.PEM), "TENDER_AUTHZ=" + certs.WriteFile(t, dir, "authz.yaml", []byte(rules)),
		}})

		shown := ca.Sign(certs.Leaf{URI: tt.id})
		pair, err := tls.X509KeyPair(shown.Cert, shown.Key)
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(ca.PEM)
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}})))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		ctx, cancel := context.WithTimeout(t.Context(), relaytest.Patience)
		t.Cleanup(cancel)
		stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx, grpc.WaitForReady(true))
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}) // Recv returns the error
		if _, err := stream.Recv(); status.Code(err) != tt.want {
			t.Errorf("reflection for %s: %v, want %v", tt.name, err, tt.want)
		}
	}
}
