package deploy_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	bootstrappb "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"sigs.k8s.io/yaml"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
	"github.com/xdstender/tender/relay/relaytest/instance"
	"github.com/xdstender/tender/relay/relaytest/loadserver"
)

// envoyDir has the bootstraps for Envoy, and the files with their Secrets.
const envoyDir = root + "/deploy/envoy/"

// secrets are the YAML files with Secrets; all other YAML files are bootstraps.
var secrets = []string{"secret-ca.yaml", "secret-client.yaml"}

// bootstraps returns the names of the bootstraps.
func bootstraps(t *testing.T) (names []string) {
	t.Helper()
	files, err := filepath.Glob(envoyDir + "*.yaml")
	if err != nil || len(files) <= len(secrets) {
		t.Fatalf("found %d files for Envoy: %v", len(files), err)
	}
	for _, file := range files {
		if name := filepath.Base(file); !slices.Contains(secrets, name) {
			names = append(names, name)
		}
	}
	return names
}

// readBootstrap reads a bootstrap. It does not validate it; TestEnvoy_Bootstraps does so with Envoy.
func readBootstrap(t *testing.T, name string) *bootstrappb.Bootstrap {
	t.Helper()
	b := new(bootstrappb.Bootstrap)
	json, err := yaml.YAMLToJSONStrict([]byte(readText(t, envoyDir+name)))
	if err == nil {
		err = protojson.Unmarshal(json, b)
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return b
}

// relayCluster returns the static cluster "tender", which is the relay.
func relayCluster(t *testing.T, b *bootstrappb.Bootstrap) *clusterpb.Cluster {
	t.Helper()
	for _, c := range b.GetStaticResources().GetClusters() {
		if c.GetName() == "tender" {
			return c
		}
	}
	t.Fatal("the bootstrap has no cluster tender")
	return nil
}

// An envoySite is a control plane, and a relay that connects to it.
type envoySite struct {
	t       *testing.T
	origin  *relaytest.Origin
	content *relaytest.Content // of the origin, for the Node of the bootstrap
	relay   *instance.Relay
	files   string            // directory that replaces /etc/envoy
	changes int               // number of changes that resent has made
	reports loadserver.Server // load reporting service of the origin
}

// newEnvoySite starts a site for a bootstrap, with additional variables for the relay. The origin serves only the Node of
// the bootstrap, so the relay must forward the parts of the Node that it groups clients by.
func newEnvoySite(t *testing.T, b *bootstrappb.Bootstrap, env ...string) *envoySite {
	t.Helper()
	s := &envoySite{t: t, files: t.TempDir()}
	s.origin = relaytest.NewOrigin(t, relaytest.OriginOptions{Register: s.reports.Register})
	s.content = s.origin.For(func(n *corepb.Node) bool {
		env := n.GetMetadata().GetFields()["env"]
		return n.GetCluster() == b.GetNode().GetCluster() && proto.Equal(n.GetLocality(), b.GetNode().GetLocality()) && proto.Equal(env, b.GetNode().GetMetadata().GetFields()["env"])
	})
	s.content.Put(
		relaytest.StaticCluster("web", "127.0.0.1:80"), relaytest.StaticCluster("api", "127.0.0.1:81"),
		relaytest.Endpoints("web", "127.0.0.1:80"), relaytest.Endpoints("api", "127.0.0.1:81"),
		listener("ingress"), listener("admin"),
	)
	env = append(env,
		"TENDER_ORIGIN="+s.origin.Addr(), "TENDER_REST_LISTEN=127.0.0.1:0",
		"TENDER_NODE_GROUP_BY=cluster,locality.region,locality.zone,metadata.env")
	s.relay = instance.Start(t, instance.Options{Env: append(env, s.secure(b)...)})
	return s
}

// secure writes the certificate files that a bootstrap with TLS refers to, and returns the TLS variables of the relay.
func (s *envoySite) secure(b *bootstrappb.Bootstrap) (env []string) {
	s.t.Helper()
	socket := relayCluster(s.t, b).GetTransportSocket()
	if socket == nil {
		return nil
	}
	dir := filepath.Join(s.files, "tls")
	if err := os.Mkdir(dir, 0o700); err != nil {
		s.t.Fatal(err)
	}
	ca := certs.NewCA(s.t)
	clients := certs.WriteFile(s.t, dir, "ca.crt", ca.PEM)
	cert, key := ca.Sign(certs.Leaf{Names: []string{"tender.example"}}).Write(s.t, s.t.TempDir())
	env = []string{"TENDER_TLS_LISTEN=127.0.0.1:0", "TENDER_TLS_CERT=" + cert, "TENDER_TLS_KEY=" + key}
	if strings.Contains(string(socket.GetTypedConfig().GetValue()), "secret-client.yaml") {
		ca.Sign(certs.Leaf{URI: "spiffe://example/edge-1"}).Write(s.t, dir)
		env = append(env, "TENDER_TLS_CLIENT_CA="+clients)
	}
	return env
}

// listener returns a listener with inline routes to cluster "web", so that it needs no RDS.
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
