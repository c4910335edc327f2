package grpc_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	xdscreds "google.golang.org/grpc/credentials/xds"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/xds"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
)

func TestMain(m *testing.M) {
	// gRPC-Go (1.85) goes on watching the files of a bootstrap's credentials when its client is gone.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("google.golang.org/grpc/credentials/tls/certprovider/pemfile.(*watcher).run"))
}

// bootstraps are all that there are.
var bootstraps = []string{"bootstrap.json", "fallback.json", "mtls.json"}

// A bootstrap is what gRFC A27, A29, A65 and A71 have in the file.
type bootstrap struct {
	Servers []struct {
		URI         string `json:"server_uri"`
		Credentials []struct {
			Type   string `json:"type"`
			Config files  `json:"config"`
		} `json:"channel_creds"`
		Features []string `json:"server_features"`
	} `json:"xds_servers"`
	Providers map[string]struct {
		Plugin string `json:"plugin_name"`
		Config files  `json:"config"`
	} `json:"certificate_providers"`
	Node struct {
		ID       string `json:"id"`
		Cluster  string `json:"cluster"`
		Locality struct {
			Region string `json:"region"`
			Zone   string `json:"zone"`
		} `json:"locality"`
		Metadata map[string]string `json:"metadata"`
	} `json:"node"`
}

type files struct {
	CA      string `json:"ca_certificate_file"`
	Cert    string `json:"certificate_file"`
	Key     string `json:"private_key_file"`
	Refresh string `json:"refresh_interval"`
}

// read returns a file as it is, which must have nothing that the gRFCs do not have: clients
// pass over what they do not know.
func read(t *testing.T, name string) (text string, b bootstrap) {
	t.Helper()
	raw, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&b); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return string(raw), b
}

// TestBootstrapsAgree holds that the files show one Node, and that there are no others.
func TestBootstrapsAgree(t *testing.T) {
	names, err := filepath.Glob("*.json")
	if err != nil || strings.Join(names, " ") != strings.Join(bootstraps, " ") {
		t.Errorf("files are %v, %v, want %v", names, err, bootstraps)
	}
	_, first := read(t, bootstraps[0])
	for _, name := range bootstraps {
		if _, b := read(t, name); b.Node.ID != first.Node.ID || b.Node.Cluster != first.Node.Cluster || b.Node.Locality != first.Node.Locality {
			t.Errorf("%s has the Node %v, want %v as in %s", name, b.Node, first.Node, bootstraps[0])
		}
	}
}

// A site is a control plane, a relay of it, and a backend.
type site struct {
	t       *testing.T
	origin  *relaytest.Origin
	content *relaytest.Content // of the origin, for the bootstraps' Node
	backend string
}

// newSite starts the control plane, which tells clients of the bootstraps' Node alone where the backend is.
func newSite(t *testing.T, backend string, cluster proto.Message) *site {
	t.Helper()
	s := &site{t: t, backend: backend}
	// One that speaks to gRPC clients themselves too, which have no Delta.
	s.origin = relaytest.NewOrigin(t, relaytest.OriginOptions{Behaviour: relaytest.Behaviour{SotW: true}})
	_, b := read(t, bootstraps[0])
	s.content = s.origin.For(func(n *corepb.Node) bool {
		return n.GetCluster() == b.Node.Cluster && n.GetLocality().GetZone() == b.Node.Locality.Zone &&
			n.GetMetadata().GetFields()["env"].GetStringValue() == b.Node.Metadata["env"]
	})
	s.content.Put(cluster, relaytest.Endpoints("service", s.backend), relaytest.APIListener("api", "route"), relaytest.Route("route", []string{"*"}, "service"))
	return s
}

// relay starts a relay, with further variables.
func (s *site) relay(env ...string) *relaytest.Relay {
	s.t.Helper()
	env = append(env, "TENDER_ORIGIN="+s.origin.Addr(), "TENDER_NODE_GROUP_BY=cluster,locality.zone,metadata.env")
	return relaytest.StartRelay(s.t, relaytest.RelayOptions{Env: env})
}

// client returns gRPC's own client by a bootstrap, with other addresses for those in it.
func (s *site) client(name string, addresses map[string]string) healthpb.HealthClient {
	s.t.Helper()
	text, _ := read(s.t, name)
	for from, to := range addresses {
		if !strings.Contains(text, from) {
			s.t.Fatalf("%s has no %s", name, from)
		}
		text = strings.ReplaceAll(text, from, to)
	}
	if strings.Contains(text, "example") {
		s.t.Fatalf("%s has an address that the test does not know:\n%s", name, text)
	}
	resolver, err := xds.NewXDSResolverWithConfigForTesting([]byte(text))
	if err != nil {
		s.t.Fatalf("%s: %v", name, err)
	}
	// The credentials of the backend are as the control plane says.
	creds, err := xdscreds.NewClientCredentials(xdscreds.ClientOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		s.t.Fatal(err)
	}
	conn, err := grpc.NewClient("xds:///api", grpc.WithResolvers(resolver), grpc.WithTransportCredentials(creds))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return healthpb.NewHealthClient(conn)
}

// reaches has a client call until a call gets to the backend. One may fail on the way: gRPC-Go (1.85) may choose
// a new cluster for it before it can connect to that.
func (s *site) reaches(c healthpb.HealthClient) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), relaytest.Patience)
	defer cancel()
	for {
		var from peer.Peer
		_, err := c.Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Peer(&from), grpc.WaitForReady(true))
		switch {
		case ctx.Err() != nil:
			s.t.Fatalf("the last call went to %v: %v, want %s", from.Addr, err, s.backend)
		case err == nil && from.Addr.String() == s.backend:
			return
		}
	}
}
