package envoy_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"testing"
	"time"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
	"github.com/xdstender/tender/relay/relaytest/proxy"
)

// A referring is an Envoy that serves HTTPS on a listener "edge" and forwards the requests by TLS to its own listener "terminal". The
// certificate, the trusted CAs, the routes and a filter never change. The other fields count changes of the resources that refer to them.
type referring struct {
	*setup
	ca       *certs.CA
	backend  *envoytest.Backend
	terminal string // address of the listener "terminal"
	address  string // of the listener "edge"

	timeouts, certificates, filters, routes, trusted, matches int
}

// A referral is a change of a resource whose references are to unchanged resources.
type referral struct {
	name   string
	change func(f *referring) proto.Message
}

// referrals are the kinds of changes.
var referrals = []referral{
	{"a timeout of a listener", func(f *referring) proto.Message { f.timeouts++; return f.edge() }},
	{"the source of a certificate of a listener", func(f *referring) proto.Message { f.certificates++; return f.edge() }},
	{"the source of a filter of a listener", func(f *referring) proto.Message { f.filters++; return f.edge() }},
	{"the source of the routes of a listener", func(f *referring) proto.Message { f.routes++; return f.edge() }},
	{"a timeout of a cluster", func(f *referring) proto.Message { f.timeouts++; return f.upstream() }},
	{"the source of the trusted CAs of a cluster", func(f *referring) proto.Message { f.trusted++; return f.upstream() }},
	{"the source of those of a match of a cluster", func(f *referring) proto.Message { f.matches++; return f.upstream() }},
}

// fetched returns a ConfigSource that depends on a number of changes. Without an answer, warming ends after about 2s.
func fetched(changes int) *corepb.ConfigSource {
	from := overADS()
	from.ResourceApiVersion = corepb.ApiVersion_V3
	from.InitialFetchTimeout = durationpb.New(2*time.Second + time.Duration(changes)*time.Millisecond)
	return from
}

// edge returns the listener "edge".
func (f *referring) edge() *listenerpb.Listener {
	m := &hcmpb.HttpConnectionManager{
		StatPrefix: "edge", RequestTimeout: durationpb.New(time.Hour + time.Duration(f.timeouts)*time.Second),
		RouteSpecifier: &hcmpb.HttpConnectionManager_Rds{Rds: &hcmpb.Rds{ConfigSource: fetched(f.routes), RouteConfigName: "edge"}},
	}
	l := filtered("edge", m, "filter", fetched(f.filters))
	l.Address = relaytest.ListenerAt("edge", "", f.address).GetAddress()
	l.FilterChains[0].TransportSocket = withSecrets(fetched(f.certificates), "certificate")
	return l
}

// upstream returns the cluster "terminal".
func (f *referring) upstream() *clusterpb.Cluster {
	c := relaytest.StaticCluster("terminal", f.terminal)
	c.ConnectTimeout = durationpb.New(time.Minute + time.Duration(f.timeouts)*time.Millisecond)
	c.TransportSocket = validated(f.trusted)
	c.TransportSocketMatches = []*clusterpb.Cluster_TransportSocketMatch{
		{Name: "none", Match: &structpb.Struct{Fields: map[string]*structpb.Value{"no": structpb.NewBoolValue(true)}}, TransportSocket: validated(100 + f.matches)},
	}
	return c
}

// validated returns the TLS transport socket of a cluster.
func validated(changes int) *corepb.TransportSocket {
	return &corepb.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &corepb.TransportSocket_TypedConfig{
		TypedConfig: relaytest.Pack(&tlspb.UpstreamTlsContext{Sni: "web", CommonTlsContext: &tlspb.CommonTlsContext{
			ValidationContextType: &tlspb.CommonTlsContext_ValidationContextSdsSecretConfig{
				ValidationContextSdsSecretConfig: &tlspb.SdsSecretConfig{Name: "trusted", SdsConfig: fetched(changes)},
			},
		}}),
	}}
}

// world returns the resources before the first change.
func (f *referring) world() []proto.Message {
	terminal := relaytest.ListenerAt("terminal", "terminal", f.terminal)
	terminal.FilterChains[0].TransportSocket = withSecrets(overADS(), "certificate")
	trusted := &tlspb.Secret{Name: "trusted", Type: &tlspb.Secret_ValidationContext{
		ValidationContext: &tlspb.CertificateValidationContext{TrustedCa: inline(f.ca.PEM)},
	}}
	return append(cluster(f.backend), terminal, relaytest.Route("terminal", []string{"*"}, f.backend.Name),
		f.edge(), relaytest.Route("edge", []string{"*"}, "terminal"), f.upstream(), buffer("filter", 0),
		certificate("certificate", f.ca.Sign(certs.Leaf{Names: []string{"web"}})), trusted)
}

// unfinished returns an error if a listener or a cluster of an Envoy is warming.
func unfinished(e *envoytest.Envoy) error {
	if stats := e.Stats(envoytest.Judged); stats.Sum("warming_clusters")+stats.Sum("total_listeners_warming") > 0 {
		return errors.New("still warming")
	}
	return nil
}

// TestB16_C38_EnvoysKeepServingThroughChangesOfReferrers: a listener or a cluster changes, and the Secrets, filters and routes that it
// refers to do not. It is warm at once, and no request and no handshake fails. In the direct run, go-control-plane does not send them
// again: an Envoy waits for the timeout of the initial fetch, and then serves without them.
func TestB16_C38_EnvoysKeepServingThroughChangesOfReferrers(t *testing.T) {
	scenario(t, ads, func(t *testing.T, s *setup) {
		f := &referring{setup: s, ca: certs.NewCA(t), backend: envoytest.NewBackend(t, "one"),
			terminal: proxy.FreeAddress(t), address: proxy.FreeAddress(t)}
		s.origin.Put(f.world()...)
		e := s.envoy(t, "edge-1")
		e.Listener("edge")
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(f.ca.PEM)
		load := envoytest.StartTLSLoad(t, f.address, interval, &tls.Config{RootCAs: roots, ServerName: "web", MinVersion: tls.VersionTLS12})
		f.answers(load, f.backend)
		warm := func() error { return unfinished(e) }
		s.await(e, "first configuration", warm)
		load.Continue(20)
		failed := len(load.Report().Failures)
		for range 2 {
			for _, of := range referrals {
				before, began := modified(e), time.Now()
				s.origin.Put(of.change(f))
				e.Await("update", func() error {
					if modified(e) == before {
						return errors.New("none")
					}
					return nil
				})
				s.await(e, of.name, warm)
				took := time.Since(began).Round(time.Millisecond)
				load.Continue(50)
				now := len(load.Report().Failures)
				t.Logf("%s: warm after %v, %d requests failed", of.name, took, now-failed)
				failed = now
			}
		}
		s.judge(e, load.Stop())
	}, "TENDER_SECRETS=loopback")
}
