package deploy_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

// A world has what commands on pages run beside: a control plane, a relay with a client that rejects a cluster, and the
// binary.
type world struct {
	origin, xds, rest, admin, probe string // addresses
	snapshots                       string // directory that the relay uses
	ca, server, client              []byte // certificates; the others have their keys
	serverKey, clientKey            []byte
	binary, repository              string // paths
}

// newWorld starts a control plane, the relay and its clients.
func newWorld(t *testing.T) *world {
	t.Helper()
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(relaytest.Cluster("web"))
	o.Put(relaytest.Endpoints("web", "127.0.0.1:8080"))
	o.Put(relaytest.Endpoints("my-cluster", "127.0.0.1:8080"))
	o.Put(relaytest.Listener("front", "front"))
	o.Put(relaytest.Route("front", []string{"*"}, "web"))

	authority := certs.NewCA(t)
	server, client := authority.Sign(certs.Leaf{Names: []string{"127.0.0.1"}}), authority.Sign(certs.Leaf{URI: "spiffe://example.org/client"})
	w := &world{
		origin: o.Addr(), ca: authority.PEM, server: server.Cert, serverKey: server.Key, client: client.Cert, clientKey: client.Key,
		binary: envoytest.Command(t),
	}
	var err error
	if w.repository, err = filepath.Abs(root); err != nil {
		t.Fatal(err)
	}
	w.start(t)
	return w
}

// start starts the relay and its clients.
func (w *world) start(t *testing.T) {
	t.Helper()
	w.snapshots = t.TempDir()
	r := instance.Start(t, instance.Options{Env: []string{
		"TENDER_SNAPSHOT_DIR=" + w.snapshots, "TENDER_ORIGIN=" + w.origin, "TENDER_REST_LISTEN=127.0.0.1:0",
		"TENDER_ADMIN_LISTEN=127.0.0.1:0", "TENDER_PROBE_LISTEN=127.0.0.1:0",
	}})
	w.xds, w.rest, w.admin, w.probe = r.Addrs()[0].String(), r.RESTAddrs()[0].String(), r.AdminAddrs()[0].String(), r.ProbeAddrs()[0].String()

	rejects := r.Client(relaytest.ClientOptions{Node: relaytest.EnvoyNode("edge-4")})
	rejects.Subscribe(relaytest.ClusterType)
	rejects.Nack(rejects.Recv(t.Context()), "Error adding/updating cluster(s) web: unknown http filter")
}

// A place is the directory in which the blocks of one page run.
type place struct {
	*world
	dir      string
	replacer *strings.Replacer
}

// newPlace makes the directory of a page, with the files that pages mention.
func (w *world) newPlace(t *testing.T) *place {
	t.Helper()
	p := &place{world: w, dir: t.TempDir()}
	for name, content := range map[string][]byte{
		"etc/tender/tls.crt": w.server, "etc/tender/tls.key": w.serverKey, "etc/tender/ca.crt": w.ca, "etc/tender/origin-ca.crt": w.ca, "etc/tender/istio-root.crt": w.ca,
		"etc/tender/edge/none.yaml": nil, "etc/tender/2026-11/tls.crt": w.server, "etc/tender/2026-11/tls.key": w.serverKey,
		"run/spiffe/bundle.pem": w.ca, "secrets/tokens/origin": []byte("token"), "var/lib/tender/.keep": nil,
		"ca.crt": w.ca, "client.crt": w.client, "client.key": w.clientKey,
		"envoy-1.yaml": []byte(`node: {id: edge-1, cluster: edge, user_agent_name: envoy, metadata: {env: prod}}`),
		"envoy-2.yaml": []byte(`node: {id: edge-2, cluster: edge, user_agent_name: envoy, metadata: {env: prod}, locality: {region: r}}`),
		"bin/tender":   w.wrapper(), "bin/make": fmt.Appendf(nil, "#!/bin/sh\nexec /usr/bin/env PATH=\"%s\" make --dry-run -C '%s' \"$@\"\n", os.Getenv("PATH"), w.repository),
	} {
		p.write(t, name, content)
	}
	p.replacer = strings.NewReplacer(
		"control-plane.example:18000", w.origin, "mesh.example:18000", w.origin, "eds-1.example:18000", w.origin, "eds-2.example:18000", "127.0.0.1:1",
		"a.example:18000", w.origin, "b.example:18000", w.origin, "region.example:18000", w.xds,
		"tender.example:18000", w.xds, "tender.example:18001", w.rest, "127.0.0.1:18000", w.xds, "127.0.0.1:18001", w.rest,
		"127.0.0.1:18080", w.admin, "127.0.0.1:18081", w.probe,
		"=:180", "=127.0.0.1:180", "=:18443", "=127.0.0.1:18443", // of variables; where they are served, by another port
		"file:///tmp/", "file://"+p.dir+"/tmp/", "file:///etc/", "file://"+p.dir+"/etc/",
		"/tmp/", p.dir+"/tmp/", "/etc/tender", p.dir+"/etc/tender", "/run/spiffe", p.dir+"/run/spiffe",
		"/var/run/secrets", p.dir+"/secrets", "/var/lib/tender", p.dir+"/var/lib/tender",
	)
	if err := os.Mkdir(filepath.Join(p.dir, "tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	return p
}

// write writes a file in the directory of the page, whatever its path.
func (p *place) write(t *testing.T, name string, content []byte) {
	t.Helper()
	path := filepath.Join(p.dir, name)
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = os.WriteFile(path, content, 0o700) // scripts are among them
	}
	if err != nil {
		t.Fatal(err)
	}
}

// wrapper returns the script that the commands of pages run as tender. It uses the relay of the world where they use one
// at the default addresses, checks the configuration with the snapshot directory of that relay, and serves on free ports.
func (w *world) wrapper() []byte {
	return fmt.Appendf(nil, `#!/bin/sh
case "$1" in
check) export TENDER_SNAPSHOT_DIR="${TENDER_SNAPSHOT_DIR-%s}" ;;
serve)
	export TENDER_ADMIN_LISTEN="${TENDER_ADMIN_LISTEN-127.0.0.1:0}" TENDER_LISTEN=127.0.0.1:0
	test -z "$TENDER_REST_LISTEN" || export TENDER_REST_LISTEN=127.0.0.1:0
	test -z "$TENDER_PROBE_LISTEN" || export TENDER_PROBE_LISTEN=127.0.0.1:0 ;;
get) shift; set -- get -a '%s' "$@" ;;
*) export TENDER_ADMIN_LISTEN='%s' ;;
esac
exec '%s' "$@"
`, w.snapshots, w.xds, w.admin, w.binary)
}

// environment returns the environment of commands of pages, without variables of Tender except for the control plane.
func (p *place) environment() (env []string) {
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); !strings.HasPrefix(name, "TENDER_") && !strings.HasPrefix(name, "OTEL_") && name != "MAKEFLAGS" && name != "MAKELEVEL" {
			env = append(env, v)
		}
	}
	return append(env, "TENDER_ORIGIN="+p.origin, "HOME="+p.dir, "PATH="+filepath.Join(p.dir, "bin")+":"+os.Getenv("PATH"), "TENDER_LOG_FORMAT=text")
}
