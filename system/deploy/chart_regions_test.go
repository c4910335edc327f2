package deploy_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/deploy/docs"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
)

// regionsVariable has the path of the binary in the process in which TestChart_TwoRegions runs its relays.
const regionsVariable = "TEST_TENDER"

// TestChart_TwoRegions installs the relays of both tiers as the page on two regions does, and runs the commands of the
// page in their pods. The chart is rendered with the values and the commands on the page. Each pod runs as a process with
// the environment, the certificates and the volumes of its container. Zone relays connect to region relays by mTLS, an
// Envoy receives its resources through both tiers, and commands with --tier reach all relays of a tier.
//
// The pods share a network in which no other program runs, so each has an address there.
func TestChart_TwoRegions(t *testing.T) {
	need(t)
	if os.Getenv(regionsVariable) == "" {
		cmd := alone(t.Context(), t, nil, os.Args[0], "-test.run=^"+t.Name()+"$", "-helm="+*helmTool, "-kustomize="+*kustomize,
			"-kubectl-validate="+*validateTool, "-definitions="+*definitions)
		cmd.Env = append(cmd.Env, regionsVariable+"="+envoytest.Command(t), "PATH="+os.Getenv("PATH"), "HOME="+t.TempDir())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	r := newRegions(t)
	scripts := r.scripts()
	for _, script := range scripts["helm"] {
		r.install(script)
	}
	content := r.start()
	envoy := r.envoy("tender-zone-a-1", "spiffe://example.org/ns/shop/sa/web")
	envoy.Subscribe(relaytest.ClusterType)
	envoy.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(relaytest.ClusterType, "web") })

	frozen := 0
	for _, script := range scripts["kubectl"] {
		output := r.exec(script)
		switch {
		case strings.Contains(script, "tender freeze"):
			frozen = 2
		case strings.Contains(script, "tender thaw"):
			frozen = 0
		case strings.Contains(script, "tender history") && (!strings.Contains(output, "lea: control plane restarted empty") || !strings.Contains(output, "lea: database restored")):
			t.Errorf("the history has no freeze or no thaw:\n%s", output)
		}
		if got := r.frozen("tender-region-1"); got != frozen {
			t.Errorf("%s: %d region relays are frozen, want %d", script, got, frozen)
		}
	}
	content.Put(relaytest.Cluster("late"))
	envoy.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(relaytest.ClusterType, "late", "web") })
}

// regions are the releases of the page, and the CAs that issue their certificates.
type regions struct {
	t               *testing.T
	dir             string // with the files of the page
	mesh, planes    *certs.CA
	secrets, config map[string]map[string]string // files of Secrets and ConfigMaps, by name
	releases        []relayPod
	pods            []*pod
	hosts           strings.Builder // /etc/hosts of all pods
}

// A pod is a pod of a StatefulSet.
type pod struct {
	relayPod
	name    string
	number  int // in its address
	root    string
	process *envoytest.Process
}

// address returns the address of a pod.
func (p *pod) address() string { return fmt.Sprintf("10.77.0.%d", p.number) }

// newRegions makes the CAs, and the ConfigMaps that the page names.
func newRegions(t *testing.T) *regions {
	t.Helper()
	r := &regions{t: t, dir: t.TempDir(), mesh: certs.NewCA(t), planes: certs.NewCA(t), secrets: map[string]map[string]string{}}
	r.config = map[string]map[string]string{"mesh-ca": {"ca.crt": string(r.mesh.PEM)}, "control-plane-ca": {"ca.crt": string(r.planes.PEM)}}
	fmt.Fprintln(&r.hosts, "127.0.0.1 localhost")
	return r
}

// scripts returns the commands of the page by their program, and writes the files of the page.
func (r *regions) scripts() (all map[string][]string) {
	r.t.Helper()
	const page = "deploy/docs/two-regions.md"
	blocks, err := docs.Blocks(page, readText(r.t, root+"/"+page))
	if err != nil {
		r.t.Fatal(err)
	}
	all = map[string][]string{}
	for _, b := range blocks {
		if name := b.Marks["file"]; name != "" {
			write(r.t, filepath.Join(r.dir, name), strings.Join(b.Lines, "\n"))
		}
		if !b.Command() {
			continue
		}
		scripts, err := b.Scripts()
		if err != nil {
			r.t.Fatal(err)
		}
		for _, script := range scripts {
			program, _, _ := strings.Cut(script, " ")
			all[program] = append(all[program], script)
		}
	}
	if len(all["helm"]) != 2 || len(all["kubectl"]) < 8 || len(all) != 2 {
		r.t.Fatalf("the page has the commands %q, want two of helm, 8 of kubectl at least, and no others", all)
	}
	return all
}

// arguments returns the arguments of a command, split like in a shell.
func (r *regions) arguments(script string) []string {
	r.t.Helper()
	program, _, _ := strings.Cut(script, " ")
	out, err := exec.Command("sh", "-euc", program+"() { printf '%s\\0' \"$@\"; }\n"+script).Output()
	if err != nil {
		r.t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
}

// install renders a release, and issues its certificates as cert-manager does.
func (r *regions) install(script string) {
	r.t.Helper()
	args := inRepository(r.t, r.arguments(script))
	args[0] = "template"
	values := slices.Index(args, "--values") + 1
	args[values] = filepath.Join(r.dir, args[values])
	printed, err := run(r.t, *helmTool, args...)
	if err != nil {
		r.t.Fatal(err)
	}
	release := onlyRelay(r.t, decode(r.t, args[1], printed))
	r.releases = append(r.releases, release)
	for _, m := range release.of("Certificate") {
		leaf := certs.Leaf{Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
		if slices.Contains(list(m.object, "spec", "usages"), any("client auth")) {
			leaf.Usage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		}
		for _, name := range list(m.object, "spec", "dnsNames") {
			leaf.Names = append(leaf.Names, name.(string))
		}
		for _, uri := range list(m.object, "spec", "uris") {
			leaf.URI = uri.(string)
		}
		pair := r.mesh.Sign(leaf)
		r.secrets[text(m.object, "spec", "secretName")] = map[string]string{"tls.crt": string(pair.Cert), "tls.key": string(pair.Key), "ca.crt": string(r.mesh.PEM)}
	}
	for n := range number(release.workload.object, "spec", "replicas") {
		p := &pod{relayPod: release, name: fmt.Sprintf("%s-%d", release.workload.name(), n), number: len(r.pods) + 10, root: r.t.TempDir()}
		r.pods = append(r.pods, p)
		for _, service := range release.of("Service") {
			fmt.Fprintf(&r.hosts, "%s %s.%s.svc\n", p.address(), service.name(), text(service.object, "metadata", "namespace"))
		}
	}
}

// start starts the control plane of region 1 and all pods, and returns the resources of the namespace shop once all pods
// are ready.
func (r *regions) start() *relaytest.Content {
	r.t.Helper()
	const plane, at = "control-plane.region-1.example:18000", "10.77.0.1"
	addAddress(r.t, 1, at)
	host, port, _ := net.SplitHostPort(plane)
	fmt.Fprintln(&r.hosts, at, host)
	server, trusted := r.planes.Sign(certs.Leaf{Names: []string{"control-plane.example"}}), x509.NewCertPool()
	trusted.AppendCertsFromPEM(r.mesh.PEM)
	config := &tls.Config{
		Certificates: []tls.Certificate{keyPair(r.t, server)}, ClientCAs: trusted, ClientAuth: tls.RequireAndVerifyClientCert,
		VerifyConnection: func(state tls.ConnectionState) error {
			if uris := state.PeerCertificates[0].URIs; len(uris) != 1 || uris[0].String() != "spiffe://example.org/ns/tender/sa/tender-region" {
				return fmt.Errorf("client is %v, want a region relay", uris)
			}
			return nil
		},
	}
	origin := relaytest.NewOrigin(r.t, relaytest.OriginOptions{
		Address: net.JoinHostPort(at, port), ServerOptions: []grpc.ServerOption{grpc.Creds(credentials.NewTLS(config))},
	})
	content := origin.For(func(n *corepb.Node) bool { return n.GetCluster() == "shop" })
	content.Put(relaytest.Cluster("web"))
	for _, p := range r.pods {
		addAddress(r.t, p.number, p.address())
		r.mount(p)
		p.process = envoytest.StartProcess(r.t, p.name, r.command(p, list(p.relay, "args")...))
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: relaytest.Patience}
	for _, p := range r.pods {
		p.process.Await("readiness", func() error {
			resp, err := client.Get(p.readiness(r.t))
			if err != nil {
				return err
			}
			if err := resp.Body.Close(); err != nil || resp.StatusCode == http.StatusOK {
				return err
			}
			return errors.New(resp.Status)
		})
	}
	return content
}

// readiness returns the URL of the readiness probe of a pod.
func (p *pod) readiness(t *testing.T) string {
	t.Helper()
	get := at(p.relay, "readinessProbe", "httpGet")
	return fmt.Sprintf("http://%s:%d%s", p.address(), p.ports(t)[text(get, "port")], text(get, "path"))
}

// mount makes the root of a pod: the binary, /etc/hosts, and the volumes.
func (r *regions) mount(p *pod) {
	r.t.Helper()
	files := map[string]string{"etc/hosts": r.hosts.String(), "usr/local/bin/tender": ""}
	for _, mount := range list(p.relay, "volumeMounts") {
		path := text(mount, "mountPath")
		_, source := p.volume(path + "/")
		var content map[string]string
		switch secret, config := text(source, "secret", "secretName"), text(source, "configMap", "name"); {
		case secret != "":
			content = r.secrets[secret]
		case config != "" && r.config[config] != nil:
			content = r.config[config]
		case config != "":
			content = p.files(config)
		default: // a claim
			files[filepath.Join(path, ".mounted")] = ""
			continue
		}
		if len(content) == 0 {
			r.t.Fatalf("%s: nobody makes the volume %v", p.name, source)
		}
		for name, text := range content {
			files[filepath.Join(path, name)] = text
		}
	}
	for name, text := range files {
		path := filepath.Join(p.root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			r.t.Fatal(err)
		}
		write(r.t, path, text)
	}
	binary := filepath.Join(p.root, "usr/local/bin/tender")
	if err := unix.Mount(os.Getenv(regionsVariable), binary, "", unix.MS_BIND, ""); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { // after the relay has ended
		if err := unix.Unmount(binary, unix.MNT_DETACH); err != nil {
			r.t.Error(err)
		}
	})
}

// command returns a command in the container of a pod. The pods share a network, so each listens on its own addresses
// where the rendered environment has all addresses, or loopback.
func (r *regions) command(p *pod, args ...any) *exec.Cmd {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), "chroot", p.root, "/usr/local/bin/tender")
	for _, arg := range args {
		cmd.Args = append(cmd.Args, arg.(string))
	}
	cmd.Env = []string{}
	for _, name := range keys(p.environ) {
		value := p.environ[name]
		if strings.HasSuffix(name, "_LISTEN") {
			addresses := strings.Split(value, ",")
			for i, address := range addresses {
				host, port, _ := strings.Cut(address, ":")
				addresses[i] = p.address() + ":" + port
				if host != "" {
					addresses[i] = fmt.Sprintf("127.0.0.%d:%s", p.number, port)
				}
			}
			value = strings.Join(addresses, ",")
		}
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	return cmd
}

// pod returns the pod with a name.
func (r *regions) pod(name string) *pod {
	r.t.Helper()
	i := slices.IndexFunc(r.pods, func(p *pod) bool { return p.name == name })
	if i < 0 {
		r.t.Fatalf("there is no pod %s", name)
	}
	return r.pods[i]
}

// exec runs a command of the page in a pod, and returns its output. The command must succeed.
func (r *regions) exec(script string) (output string) {
	r.t.Helper()
	args := r.arguments(script)
	if len(args) < 7 || !slices.Equal(args[:3], []string{"-n", "tender", "exec"}) || !slices.Equal(args[4:6], []string{"--", "tender"}) {
		r.t.Fatalf("%s: want kubectl -n tender exec POD -- tender …", script)
	}
	var rest []any
	for _, arg := range args[6:] {
		rest = append(rest, arg)
	}
	out, err := r.command(r.pod(args[3]), rest...).CombinedOutput()
	if err != nil || strings.Contains(string(out), "FAILED") || strings.Contains(string(out), "UNREACHABLE") {
		r.t.Errorf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

// frozen returns the number of frozen relays in the tier of a pod. All relays of the tier must be reachable.
func (r *regions) frozen(name string) (n int) {
	r.t.Helper()
	out, err := r.command(r.pod(name), "status", "--tier", "-o", "json").Output()
	var fleet admin.TierStatus
	if err == nil {
		err = json.Unmarshal(out, &fleet)
	}
	if err != nil || len(fleet.Relays) != 2 {
		r.t.Fatalf("status of the tier of %s: %v, %s", name, err, out)
	}
	for _, relay := range fleet.Relays {
		if relay.TierSummary == nil {
			r.t.Fatalf("%s cannot reach %s: %s", name, relay.Address, relay.Error)
		}
		if len(relay.Frozen) > 0 {
			n++
		}
	}
	return n
}

// envoy returns a client of a pod, with a certificate for an identity and the Node of a canary in the namespace shop.
func (r *regions) envoy(name, uri string) *relaytest.Client {
	r.t.Helper()
	p, trusted := r.pod(name), x509.NewCertPool()
	trusted.AppendCertsFromPEM(r.mesh.PEM)
	config := &tls.Config{RootCAs: trusted, ServerName: "tender.example", Certificates: []tls.Certificate{keyPair(r.t, r.mesh.Sign(certs.Leaf{URI: uri}))}}
	conn, err := grpc.NewClient(fmt.Sprintf("%s:%d", p.address(), p.ports(r.t)["xds"]), grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	node := relaytest.EnvoyNode("edge-1")
	node.Cluster = "shop"
	node.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{"canary": structpb.NewBoolValue(true)}}
	return relaytest.NewClient(r.t, conn, relaytest.ClientOptions{Node: node, AutoAck: true})
}

// keyPair returns a certificate with its key.
func keyPair(t *testing.T, pair certs.Pair) tls.Certificate {
	t.Helper()
	parsed, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// addAddress adds an address to the loopback interface of the network of this process, under a number of its own.
func addAddress(t *testing.T, number int, address string) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	request, err := unix.NewIfreq(fmt.Sprintf("lo:%d", number))
	if err == nil {
		err = request.SetInet4Addr(net.ParseIP(address).To4())
	}
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCSIFADDR, request)
	}
	if err != nil {
		t.Fatalf("add the address %s: %v", address, err)
	}
}
