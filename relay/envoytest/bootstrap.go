package envoytest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	bootstrappb "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3" // to decode Any in bootstraps
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"        // to decode Any in bootstraps
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	"github.com/xdstender/tender/relay/relaytest"
)

// Placeholder addresses of the relay and of its control plane in the bootstraps of deploy/envoy.
const (
	relayAddress        = "tender.example:18000"
	relayTLSAddress     = "tender.example:18443"
	relayRESTAddress    = "tender.example:18001"
	controlPlaneAddress = "control-plane.example:18000"
)

// Options configure an Envoy.
type Options struct {
	// Binary is the path of the program. Empty means that of [Binary].
	Binary string

	// Bootstrap is a file of deploy/envoy. Empty means delta-ads.yaml.
	Bootstrap string

	// Server is the address (host:port) of the management server. It replaces the relay's addresses in the bootstrap.
	Server string

	// ControlPlane is the address (host:port) of the control plane. It replaces the fallback address in the bootstrap.
	ControlPlane string

	// Files is the directory that replaces /etc/envoy in the bootstrap. It contains certificates and files of Secrets.
	Files string

	// Node is the Node that the Envoy presents. Nil means the one in the bootstrap.
	Node *corepb.Node

	// Edit, if set, changes the bootstrap before the Envoy is started.
	Edit func(*bootstrappb.Bootstrap)

	// Arguments are appended to the command line.
	Arguments []string
}

// bootstrap writes the bootstrap of these options to dir and returns the path of the file.
func (o Options) bootstrap(tb relaytest.TB, dir string) string {
	tb.Helper()
	name := o.Bootstrap
	if name == "" {
		name = "delta-ads.yaml"
	}
	b, err := o.read(filepath.Join(root(tb), "deploy/envoy", name))
	if err != nil {
		tb.Fatalf("bootstrap %s: %v", name, err)
	}
	if o.Node != nil {
		b.Node = o.Node
	}
	b.Admin.GetAddress().GetSocketAddress().PortSpecifier = &corepb.SocketAddress_PortValue{}
	if o.Edit != nil {
		o.Edit(b)
	}
	text, err := protojson.Marshal(b)
	if err != nil {
		tb.Fatalf("bootstrap %s: %v", name, err)
	}
	path := filepath.Join(dir, "bootstrap.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		tb.Fatalf("bootstrap %s: %v", name, err)
	}
	return path
}

// read reads a bootstrap and replaces its addresses and files by those of the options.
func (o Options) read(path string) (*bootstrappb.Bootstrap, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var pairs []string
	for _, name := range []string{relayAddress, relayTLSAddress, relayRESTAddress} {
		pairs = append(pairs, socketAddress(name), socketAddress(o.Server))
	}
	if o.ControlPlane != "" {
		pairs = append(pairs, socketAddress(controlPlaneAddress), socketAddress(o.ControlPlane))
	}
	if o.Files != "" {
		pairs = append(pairs, "/etc/envoy", o.Files)
	}
	js, err := yaml.YAMLToJSONStrict([]byte(strings.NewReplacer(pairs...).Replace(string(text))))
	if err != nil {
		return nil, err
	}
	b := new(bootstrappb.Bootstrap)
	return b, protojson.Unmarshal(js, b)
}

// socketAddress returns an address (host:port) in the form of the YAML bootstraps. Other text is returned unchanged.
func socketAddress(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return fmt.Sprintf("address: %s, port_value: %s}", host, port)
}
