package deploy_test

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherpb "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// TestBootstrapRoutes checks that a call with bootstrap.json reaches the backend.
func TestBootstrapRoutes(t *testing.T) {
	s := newGRPCSite(t, relaytest.NewBackend(t), relaytest.Cluster("service"))
	r := s.relay()
	s.reaches(s.client("bootstrap.json", map[string]string{"tender.example:18000": r.Addrs()[0].String()}))
	if r.Streams() != 1 {
		t.Errorf("the relay has %d streams, want only the client's", r.Streams())
	}
}

// TestMTLSRoutes checks that a call with mtls.json reaches the backend. Relay and backend require a client certificate.
func TestMTLSRoutes(t *testing.T) {
	ca := certs.NewCA(t)
	pair := ca.Sign(certs.Leaf{Names: []string{"backend.example"}})
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(ca.PEM)
	backend := serveTLS(t, credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{cert}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12}))

	service := relaytest.Cluster("service")
	held, err := anypb.New(mutual("default", "backend.example"))
	if err != nil {
		t.Fatal(err)
	}
	service.TransportSocket = &corepb.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &corepb.TransportSocket_TypedConfig{TypedConfig: held}}
	s := newGRPCSite(t, backend, service)

	own := t.TempDir() // replaces /etc/grpc/tls
	ca.Sign(certs.Leaf{URI: "spiffe://example/shop"}).Write(t, own)
	trusted := certs.WriteFile(t, own, "ca.crt", ca.PEM)
	shown, key := ca.Sign(certs.Leaf{Names: []string{"127.0.0.1"}}).Write(t, t.TempDir())
	r := s.relay("TENDER_TLS_CERT="+shown, "TENDER_TLS_KEY="+key, "TENDER_TLS_CLIENT_CA="+trusted)
	s.reaches(s.client("mtls.json", map[string]string{"tender.example:18443": r.Addrs()[0].String(), "/etc/grpc/tls": own}))
}

// serveTLS runs a backend with TLS until the test ends, and returns its address.
func serveTLS(t *testing.T, creds credentials.TransportCredentials) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(creds))
	healthpb.RegisterHealthServer(server, health.NewServer())
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }() // awaited below
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Errorf("backend ended: %v", err)
		}
	})
	return l.Addr().String()
}

// mutual returns the configuration with which a control plane makes clients use mTLS (gRFC A29). provider names the
// certificate provider in their bootstrap, and server is the expected DNS name of the server.
func mutual(provider, server string) *tlspb.UpstreamTlsContext {
	instance := &tlspb.CertificateProviderPluginInstance{InstanceName: provider}
	return &tlspb.UpstreamTlsContext{CommonTlsContext: &tlspb.CommonTlsContext{
		TlsCertificateProviderInstance: instance,
		ValidationContextType: &tlspb.CommonTlsContext_ValidationContext{ValidationContext: &tlspb.CertificateValidationContext{
			CaCertificateProviderInstance: instance,
			MatchTypedSubjectAltNames: []*tlspb.SubjectAltNameMatcher{{
				SanType: tlspb.SubjectAltNameMatcher_DNS,
				Matcher: &matcherpb.StringMatcher{MatchPattern: &matcherpb.StringMatcher_Exact{Exact: server}},
			}},
		}},
	}}
}

// TestFallbackRoutes checks calls with fallback.json. The client uses the control plane while the relay is unreachable
// or has no configuration, and the relay once it can serve. The test then points the listener at resources with new
// names. Old names do not move: if gRPC-Go (1.85) requested a name from its second server first, it never requests it
// from its first server.
func TestFallbackRoutes(t *testing.T) {
	for name, begin := range map[string]func(*testing.T, *grpcSite, *proxy.Proxy){
		"no relay": func(_ *testing.T, _ *grpcSite, p *proxy.Proxy) { p.Set(proxy.Link{Refuse: true}) },
		"cold relay": func(_ *testing.T, s *grpcSite, p *proxy.Proxy) {
			p.Forward(s.relay("TENDER_ORIGIN=127.0.0.1:1", "TENDER_COLD_WAIT=100ms").Addrs()[0].String())
		},
	} {
		t.Run(name, func(t *testing.T) {
			one, two := relaytest.NewBackend(t), relaytest.NewBackend(t)
			s := newGRPCSite(t, one, relaytest.Cluster("service"))
			warm := s.relay().Addrs()[0].String()
			place := proxy.New(t, warm)
			begin(t, s, place)
			c := s.client("fallback.json", map[string]string{"tender.example:18000": place.Addr(), "control-plane.example:18000": s.origin.Addr()})
			s.reaches(c)
			s.awaitDirect(1)

			place.Forward(warm)
			place.Set(proxy.Link{})
			place.Cut()
			s.awaitDirect(0)
			s.reaches(c)
			s.backend = two
			s.content.Put(relaytest.Cluster("next"), relaytest.Endpoints("next", two), relaytest.Route("next", []string{"*"}, "next"), relaytest.APIListener("api", "next"))
			s.reaches(c)
			s.awaitDirect(0)
		})
	}
}

// awaitDirect waits until exactly that many clients have a stream directly to the control plane.
func (s *grpcSite) awaitDirect(want int) {
	s.t.Helper()
	s.origin.WaitFor(s.t.Context(), "streams of clients themselves", func(o *relaytest.OriginState) bool {
		n := 0
		for _, st := range o.Streams {
			if !st.Ended && st.Node.GetUserAgentName() == "gRPC Go" {
				n++
			}
		}
		return n == want
	})
}
