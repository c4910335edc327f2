package envoy_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	bootstrappb "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/relay/relaytest"
)

// A site is a control plane and a relay of it, at the addresses that bootstraps have for them.
type site struct {
	t       *testing.T
	origin  *relaytest.Origin
	content *relaytest.Content // of the origin, for Envoys of the bootstraps' Node
	relay   *relaytest.Relay
	files   string // what is /etc/envoy elsewhere
	changes int    // made by resent
}

// newSite starts both, as a bootstrap needs them, and further variables. The origin has something for
// Envoys of the bootstrap's Node alone: the relay must have told it of that.
func newSite(t *testing.T, b *bootstrappb.Bootstrap, env ...string) *site {
	t.Helper()
	s := &site{t: t, files: t.TempDir(), origin: relaytest.NewOrigin(t, relaytest.OriginOptions{
		Register: func(r grpc.ServiceRegistrar) { lrspb.RegisterLoadReportingServiceServer(r, loadService{}) },
	})}
	s.content = s.origin.For(func(n *corepb.Node) bool {
		env := n.GetMetadata().GetFields()["env"]
		return n.GetCluster() == b.GetNode().GetCluster() && proto.Equal(n.GetLocality(), b.GetNode().GetLocality()) && proto.Equal(env, b.GetNode().GetMetadata().GetFields()["env"])
	})
	s.content.Put(world()...)
	env = append(env,
		"TENDER_ORIGIN="+s.origin.Addr(), "TENDER_REST_LISTEN=127.0.0.1:0",
		"TENDER_NODE_GROUP_BY=cluster,locality.region,locality.zone,metadata.env")
	s.relay = relaytest.StartRelay(t, relaytest.RelayOptions{Env: append(env, s.secure(b)...)})
	return s
}

// secure writes the certificates that a bootstrap needs, and returns the relay's variables for its own.
func (s *site) secure(b *bootstrappb.Bootstrap) (env []string) {
	s.t.Helper()
	c := cluster(b, "tender")
	if c.GetTransportSocket() == nil {
		return nil
	}
	dir := filepath.Join(s.files, "tls")
	if err := os.Mkdir(dir, 0o700); err != nil {
		s.t.Fatal(err)
	}
	ca := relaytest.NewCA(s.t)
	clients := relaytest.WriteFile(s.t, dir, "ca.crt", ca.PEM)
	cert, key := ca.Sign(relaytest.Leaf{Names: []string{"tender.example"}}).Write(s.t, s.t.TempDir())
	env = []string{"TENDER_TLS_LISTEN=127.0.0.1:0", "TENDER_TLS_CERT=" + cert, "TENDER_TLS_KEY=" + key}
	if len(security(s.t, c).GetCommonTlsContext().GetTlsCertificateSdsSecretConfigs()) > 0 {
		ca.Sign(relaytest.Leaf{URI: "spiffe://example/edge-1"}).Write(s.t, dir)
		env = append(env, "TENDER_TLS_CLIENT_CA="+clients)
	}
	return env
}

// security returns how a cluster speaks TLS.
func security(t *testing.T, c *clusterpb.Cluster) *tlspb.UpstreamTlsContext {
	t.Helper()
	security := new(tlspb.UpstreamTlsContext)
	if err := c.GetTransportSocket().GetTypedConfig().UnmarshalTo(security); err != nil {
		t.Fatalf("cluster %s: %v", c.GetName(), err)
	}
	return security
}

// world is what an Envoy is told.
func world() []proto.Message {
	return []proto.Message{
		relaytest.StaticCluster("web", "127.0.0.1:80"), relaytest.StaticCluster("api", "127.0.0.1:81"),
		relaytest.Endpoints("web", "127.0.0.1:80"), relaytest.Endpoints("api", "127.0.0.1:81"),
		listener("ingress"), listener("admin"),
	}
}

// listener returns a listener whose routes are part of it and lead to cluster "web", so that it needs no ADS.
func listener(name string) proto.Message {
	l := relaytest.Listener(name, "")
	filter := l.GetFilterChains()[0].GetFilters()[0]
	manager := new(hcmpb.HttpConnectionManager)
	if err := filter.GetTypedConfig().UnmarshalTo(manager); err != nil {
		panic("decode a listener: " + err.Error())
	}
	manager.StatPrefix = name
	manager.RouteSpecifier = &hcmpb.HttpConnectionManager_RouteConfig{RouteConfig: relaytest.Route("routes", []string{"*"}, "web")}
	packed, err := anypb.New(manager)
	if err != nil {
		panic("encode a listener: " + err.Error())
	}
	filter.ConfigType = &listenerpb.Filter_TypedConfig{TypedConfig: packed}
	return l
}

// holdsWorld reports whether a client has all there is of the types that it asks for.
func holdsWorld(types ...string) func(relaytest.State) bool {
	return func(s relaytest.State) bool {
		for _, typeURL := range types {
			if len(s.Names(typeURL)) != 2 {
				return false
			}
		}
		return true
	}
}

// at returns the address that has the place of one in a bootstrap.
func (s *site) at(address *corepb.SocketAddress) string {
	s.t.Helper()
	of := map[string]func() string{
		"tender.example:18000":        func() string { return s.relay.Addrs()[0].String() },
		"tender.example:18443":        func() string { return s.relay.TLSAddrs()[0].String() },
		"control-plane.example:18000": s.origin.Addr,
	}
	name := net.JoinHostPort(address.GetAddress(), strconv.Itoa(int(address.GetPortValue())))
	if of[name] == nil {
		s.t.Fatalf("nobody is at %s", name)
	}
	return of[name]()
}

// file returns the content of a file that a bootstrap names.
func (s *site) file(name string) []byte {
	s.t.Helper()
	below, ok := strings.CutPrefix(name, "/etc/envoy/")
	if !ok {
		s.t.Fatalf("%s is not below /etc/envoy", name)
	}
	text, err := os.ReadFile(filepath.Join(s.files, below))
	if err != nil {
		s.t.Fatal(err)
	}
	return text
}

// secret returns the secret that a bootstrap takes from a file.
func (s *site) secret(from *tlspb.SdsSecretConfig) *tlspb.Secret {
	s.t.Helper()
	secret := readSecret(s.t, path.Base(from.GetSdsConfig().GetPathConfigSource().GetPath()))
	if secret.GetName() != from.GetName() {
		s.t.Fatalf("the file has a secret %q, want %q", secret.GetName(), from.GetName())
	}
	return secret
}

// credentials returns how a cluster's connections are secured.
func (s *site) credentials(c *clusterpb.Cluster) credentials.TransportCredentials {
	s.t.Helper()
	if c.GetTransportSocket() == nil {
		return insecure.NewCredentials()
	}
	upstream := security(s.t, c)
	common := upstream.GetCommonTlsContext()
	validation := common.GetCombinedValidationContext()
	if got := validation.GetDefaultValidationContext().GetMatchTypedSubjectAltNames()[0].GetMatcher().GetExact(); got != upstream.GetSni() {
		s.t.Fatalf("the server's name is to be %q, and %q is asked for", got, upstream.GetSni())
	}
	config := &tls.Config{ServerName: upstream.GetSni(), NextProtos: common.GetAlpnProtocols(), RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	trusted := s.secret(validation.GetValidationContextSdsSecretConfig()).GetValidationContext().GetTrustedCa()
	if !config.RootCAs.AppendCertsFromPEM(s.file(trusted.GetFilename())) {
		s.t.Fatal("no CA was read")
	}
	for _, own := range common.GetTlsCertificateSdsSecretConfigs() {
		files := s.secret(own).GetTlsCertificate()
		pair, err := tls.X509KeyPair(s.file(files.GetCertificateChain().GetFilename()), s.file(files.GetPrivateKey().GetFilename()))
		if err != nil {
			s.t.Fatal(err)
		}
		config.Certificates = append(config.Certificates, pair)
	}
	return credentials.NewTLS(config)
}

// dial connects to a cluster's endpoint of a priority.
func (s *site) dial(c *clusterpb.Cluster, priority uint32) *grpc.ClientConn {
	s.t.Helper()
	for _, group := range c.GetLoadAssignment().GetEndpoints() {
		if group.GetPriority() != priority {
			continue
		}
		address := group.GetLbEndpoints()[0].GetEndpoint().GetAddress().GetSocketAddress()
		conn, err := grpc.NewClient(s.at(address), grpc.WithTransportCredentials(s.credentials(c)))
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	s.t.Fatalf("cluster %s has no endpoint of priority %d", c.GetName(), priority)
	return nil
}

// node returns the Node that an Envoy of the bootstrap shows: it adds who made it.
func node(b *bootstrappb.Bootstrap) *corepb.Node {
	n := proto.CloneOf(b.GetNode())
	n.UserAgentName = "envoy"
	return n
}

// variant returns which one a bootstrap chooses.
func variant(t *testing.T, api *corepb.ApiConfigSource) relaytest.Variant {
	t.Helper()
	of := map[corepb.ApiConfigSource_ApiType]relaytest.Variant{corepb.ApiConfigSource_DELTA_GRPC: relaytest.Delta, corepb.ApiConfigSource_GRPC: relaytest.SotW}
	v, ok := of[api.GetApiType()]
	if !ok || api.GetTransportApiVersion() != corepb.ApiVersion_V3 {
		t.Fatalf("no stream speaks %v of %v", api.GetApiType(), api.GetTransportApiVersion())
	}
	return v
}

// client returns a client that speaks as an api of a bootstrap says, of one type or, for none, by ADS.
func (s *site) client(b *bootstrappb.Bootstrap, api *corepb.ApiConfigSource, typeURL string) *relaytest.Client {
	s.t.Helper()
	return relaytest.NewClient(s.t, s.dial(cluster(b, servers(api)[0]), 0), relaytest.ClientOptions{
		Variant: variant(s.t, api), Node: node(b), NodeAlways: !api.GetSetNodeOnFirstMessageOnly(), TypeURL: typeURL, AutoAck: true,
	})
}

// begin starts the clients of a bootstrap's Envoy, and waits until each has what it asks for.
func (s *site) begin(b *bootstrappb.Bootstrap) {
	s.t.Helper()
	d := b.GetDynamicResources()
	if ads := d.GetAdsConfig(); ads != nil {
		if d.GetCdsConfig().GetAds() == nil || d.GetLdsConfig().GetAds() == nil {
			s.t.Fatal("ADS is there, and not used")
		}
		c := s.client(b, ads, "")
		c.Subscribe(relaytest.ClusterType)
		c.Subscribe(relaytest.ListenerType)
		c.WaitState(s.t.Context(), holdsWorld(relaytest.ClusterType, relaytest.ListenerType))
		return
	}
	for typeURL, from := range map[string]*corepb.ConfigSource{relaytest.ClusterType: d.GetCdsConfig(), relaytest.ListenerType: d.GetLdsConfig()} {
		if from.GetApiConfigSource().GetApiType() == corepb.ApiConfigSource_REST {
			s.poll(b, from.GetApiConfigSource(), typeURL)
			continue
		}
		c := s.client(b, from.GetApiConfigSource(), typeURL)
		c.Subscribe(typeURL)
		c.WaitState(s.t.Context(), holdsWorld(typeURL))
	}
}

// poll asks for a type by REST, over HTTP/2 without TLS.
func (s *site) poll(b *bootstrappb.Bootstrap, api *corepb.ApiConfigSource, typeURL string) {
	s.t.Helper()
	address := cluster(b, servers(api)[0]).GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().GetAddress().GetSocketAddress()
	if address.GetAddress() != "tender.example" || address.GetPortValue() != 18001 {
		s.t.Fatalf("polls go to %v", address)
	}
	if protocol(s.t, cluster(b, "tender")).GetExplicitHttpConfig().GetHttp2ProtocolOptions() == nil {
		s.t.Fatal("polls are not by HTTP/2")
	}
	body, err := protojson.Marshal(&discoverypb.DiscoveryRequest{Node: node(b)})
	if err != nil {
		s.t.Fatal(err)
	}
	kind := map[string]string{relaytest.ClusterType: "clusters", relaytest.ListenerType: "listeners"}[typeURL]
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, "http://"+s.relay.RESTAddrs()[0].String()+"/v3/discovery:"+kind, bytes.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Envoy-Expected-Rq-Timeout-Ms", strconv.FormatInt(api.GetRequestTimeout().AsDuration().Milliseconds(), 10))
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &protocols}
	defer transport.CloseIdleConnections()
	reply, err := transport.RoundTrip(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = reply.Body.Close() }() // it was read
	text, err := io.ReadAll(reply.Body)
	if err != nil || reply.StatusCode != http.StatusOK {
		s.t.Fatalf("poll for %s: %s, %v\n%s", kind, reply.Status, err, text)
	}
	resp := new(discoverypb.DiscoveryResponse)
	if err := protojson.Unmarshal(text, resp); err != nil {
		s.t.Fatal(err)
	}
	if len(resp.GetResources()) != 2 || resp.GetResources()[0].GetTypeUrl() != typeURL {
		s.t.Errorf("poll for %s: %v, want what the control plane has", kind, resp)
	}
}

// TestBootstrapsAreServed has clients do what each bootstrap says, of a relay: its variant and streams, its
// Node, its TLS.
func TestBootstrapsAreServed(t *testing.T) {
	for _, name := range bootstraps(t) {
		t.Run(name, func(t *testing.T) {
			b := readBootstrap(t, name)
			newSite(t, b).begin(b)
		})
	}
}

// loadService answers the first report of a stream: it wants one each second.
type loadService struct {
	lrspb.UnimplementedLoadReportingServiceServer
}

func (loadService) StreamLoadStats(rpc lrspb.LoadReportingService_StreamLoadStatsServer) error {
	if _, err := rpc.Recv(); err != nil {
		return err
	}
	err := rpc.Send(&lrspb.LoadStatsResponse{Clusters: []string{"web"}, LoadReportingInterval: durationpb.New(time.Second)})
	<-rpc.Context().Done()
	return err
}

// TestLoadReportsAreTaken holds that a relay that is told to take them answers an Envoy of load-reports.yaml.
func TestLoadReportsAreTaken(t *testing.T) {
	b := readBootstrap(t, "load-reports.yaml")
	s := newSite(t, b, "TENDER_LRS=aggregate")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	reports, err := lrspb.NewLoadReportingServiceClient(s.dial(cluster(b, servers(b.GetClusterManager().GetLoadStatsConfig())[0]), 0)).StreamLoadStats(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := reports.Send(&lrspb.LoadStatsRequest{Node: node(b)}); err != nil {
		t.Fatal(err)
	}
	resp, err := reports.Recv()
	if err != nil || !slices.Equal(resp.GetClusters(), []string{"web"}) {
		t.Errorf("the answer is %v, %v, want what the control plane asks for", resp, err)
	}
}
