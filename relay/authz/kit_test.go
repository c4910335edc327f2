package authz_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A mesh is an origin and a relay with mTLS, over sockets or in memory. Its ca issues all certificates.
type mesh struct {
	*instance.Relay
	t      *testing.T
	memory bool // all clients have certificates
	origin *relaytest.Origin
	ca     *certs.CA
	dir    string // contains the files; the link current is the directory of authz.yaml
}

// newMesh starts a relay with the given rules, or without TENDER_AUTHZ if text is empty. env contains more variables.
func newMesh(t *testing.T, text string, env ...string) *mesh {
	t.Helper()
	return startMesh(t, false, text, append(env, "TENDER_TLS_LISTEN=127.0.0.1:0"))
}

// newMeshInMemory is newMesh in memory, for virtual time.
func newMeshInMemory(t *testing.T, text string, env ...string) *mesh {
	t.Helper()
	return startMesh(t, true, text, env)
}

func startMesh(t *testing.T, memory bool, text string, env []string) *mesh {
	t.Helper()
	m := &mesh{t: t, memory: memory, origin: relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: memory}), ca: certs.NewCA(t), dir: t.TempDir()}
	cert, key := m.ca.Sign(certs.Leaf{Names: []string{"127.0.0.1"}}).Write(t, m.dir)
	env = append(env, "TENDER_TLS_CERT="+cert, "TENDER_TLS_KEY="+key,
		"TENDER_TLS_CLIENT_CA="+certs.WriteFile(t, m.dir, "ca.pem", m.ca.PEM), "TENDER_REST_LISTEN=127.0.0.1:0")
	if text != "" {
		m.rule(text)
		env = append(env, "TENDER_AUTHZ="+m.dir+"/current/authz.yaml")
	}
	m.Relay = instance.Start(t, instance.Options{Origins: []*relaytest.Origin{m.origin}, Env: env})
	return m
}

// rule replaces the rules as Kubernetes does: it changes a link to another directory.
func (m *mesh) rule(text string) {
	m.t.Helper()
	dir, err := os.MkdirTemp(m.dir, "rules")
	if err == nil {
		certs.WriteFile(m.t, dir, "authz.yaml", []byte("version: 1\nrules:\n"+text))
		link := filepath.Join(dir, "link")
		if err = os.Symlink(dir, link); err == nil {
			err = os.Rename(link, filepath.Join(m.dir, "current"))
		}
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// dial connects with a certificate for a SPIFFE ID, or in plaintext if id is empty.
func (m *mesh) dial(id string) *grpc.ClientConn {
	m.t.Helper()
	if m.memory {
		return m.Conn(grpc.WithTransportCredentials(credentials.NewTLS(m.tls(certs.Leaf{URI: id}))))
	}
	address, creds := m.Addrs()[0], insecure.NewCredentials()
	if id != "" {
		address, creds = m.TLSAddrs()[0], credentials.NewTLS(m.tls(certs.Leaf{URI: id}))
	}
	return m.dialAt(address, creds)
}

// dialAt connects to an address of the relay. The connection is closed at the end of the test.
func (m *mesh) dialAt(address net.Addr, creds credentials.TransportCredentials) *grpc.ClientConn {
	m.t.Helper()
	conn, err := grpc.NewClient(address.String(), grpc.WithTransportCredentials(creds))
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// tls returns the configuration of a client with a certificate for leaf.
func (m *mesh) tls(leaf certs.Leaf) *tls.Config {
	m.t.Helper()
	shown := m.ca.Sign(leaf)
	cert, err := tls.X509KeyPair(shown.Cert, shown.Key)
	if err != nil {
		m.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(m.ca.PEM)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}, ServerName: "127.0.0.1"}
}

// client returns a client with a SPIFFE ID whose Node has the given cluster. It connects in plaintext if id is empty.
func (m *mesh) client(id, cluster string, opts relaytest.ClientOptions) *relaytest.Client {
	m.t.Helper()
	opts.AutoAck, opts.Node = true, nodeOf(cluster)
	return relaytest.NewClient(m.t, m.dial(id), opts)
}

// nodeOf returns the Node of an Envoy with a cluster.
func nodeOf(cluster string) *corepb.Node {
	n := relaytest.EnvoyNode("node-" + cluster)
	n.Cluster = cluster
	return n
}

// put sets a Secret of the origin. Its content begins with hush, for tests that search a log for it.
func (m *mesh) put(name, content string) {
	m.origin.Put(&tlspb.Secret{Name: name, Type: &tlspb.Secret_GenericSecret{GenericSecret: &tlspb.GenericSecret{
		Secret: &corepb.DataSource{Specifier: &corepb.DataSource_InlineString{InlineString: "hush " + content}},
	}}})
}

// within returns a context that ends after relaytest.Patience.
func (m *mesh) within() context.Context {
	ctx, cancel := context.WithTimeout(m.t.Context(), relaytest.Patience)
	m.t.Cleanup(cancel)
	return ctx
}

// has waits until a client has received the named resources.
func (m *mesh) has(c *relaytest.Client, typeURL string, names ...string) {
	m.t.Helper()
	c.WaitState(m.within(), func(s relaytest.State) bool { return s.Has(typeURL, names...) })
}

// refused waits until the stream of a client ends with PERMISSION_DENIED and a message that contains text.
func (m *mesh) refused(c *relaytest.Client, text string) {
	m.t.Helper()
	err := c.WaitEnd(m.within())
	if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), text) {
		m.t.Errorf("stream closed with %v, want PERMISSION_DENIED and %q", err, text)
	}
}

// logs waits until the log of the relay contains a text.
func (m *mesh) logs(text string) {
	m.t.Helper()
	m.Log.Await(m.t, 0, text)
}

// asked returns the names of the Secrets that the relay requested from the origin, sorted.
func (m *mesh) asked() string {
	var names []string
	for _, s := range m.origin.State().Streams {
		if of := s.Types[relaytest.SecretType]; of != nil {
			names = slices.AppendSeq(names, maps.Keys(of.Names))
		}
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), " ")
}
