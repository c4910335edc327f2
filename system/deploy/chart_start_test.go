package deploy_test

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/xdstender/tender/deploy/docs"
	"github.com/xdstender/tender/relay/envoytest"
)

// checkIstioNode returns the error with which istiod rejects the id of a Node, or nil. The id must have the form
// type~address~name~domain.
//
// Source: https://github.com/istio/istio, pkg/model/proxy.go, ParseServiceNodeWithMetadata; without INSTANCE_IPS.
func checkIstioNode(id string) error {
	parts := strings.Split(id, "~")
	if len(parts) != 4 {
		return fmt.Errorf("missing parts in the service node %q", id)
	}
	if !slices.Contains([]string{"sidecar", "router", "waypoint", "ztunnel"}, parts[0]) {
		return fmt.Errorf("invalid node type in the service node %q", id)
	}
	if _, err := netip.ParseAddr(parts[1]); err != nil {
		return fmt.Errorf("no valid IP address in the service node %q", id)
	}
	// istiod takes the namespace from the domain if the metadata does not contain it.
	if name, namespace, ok := strings.Cut(parts[2], "."); !ok || name == "" || !strings.HasPrefix(parts[3], namespace+".svc.") {
		return fmt.Errorf("the service node %q has no name.namespace, or another namespace in its domain", id)
	}
	return nil
}

// TestChart_IstiodAcceptsNodes checks the Node id in each rendering whose control plane is istiod.
func TestChart_IstiodAcceptsNodes(t *testing.T) {
	found := 0
	relayPods(t, func(t *testing.T, p relayPod) {
		if !strings.HasPrefix(p.environ["TENDER_ORIGIN"], "istiod.") {
			return
		}
		found++
		if err := checkIstioNode(string(p.config(t).NodeID)); err != nil {
			t.Errorf("%v: %v", p, err)
		}
	})
	if found == 0 {
		t.Error("no rendering is for istiod")
	}
}

// documented matches the command on a page that installs the chart.
var documented = regexp.MustCompile(`(?m)^\$ (helm install (?s:.*?[^\\]))$`)

// documentedInstall returns the arguments of the install command on the page for Kubernetes, split like in a shell.
func documentedInstall(t *testing.T) []string {
	t.Helper()
	command := documented.FindStringSubmatch(readText(t, root+"/deploy/docs/kubernetes.md"))
	if command == nil {
		t.Fatal("the page has no helm install")
	}
	out, err := exec.CommandContext(t.Context(), "sh", "-euc", "helm() { printf '%s\\0' \"$@\"; }\n"+command[1]).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
}

// inRepository replaces the path of the chart in args, which pages give relative to the root of the repository.
func inRepository(t *testing.T, args []string) []string {
	t.Helper()
	i := slices.Index(args, "deploy/helm/tender")
	if i < 0 {
		t.Fatalf("%q installs no chart of this repository", args)
	}
	args = slices.Clone(args)
	args[i] = chartDir
	return args
}

// TestChart_DocumentedInstall renders the chart with the command on the page. It starts the relay with exactly the
// arguments, the environment, the ports and the volumes of its container. The readiness probe succeeds, a client is
// served, and the volume contains a snapshot after the relay has stopped. Without node.id, istiod rejects the relay and
// the probe fails.
func TestChart_DocumentedInstall(t *testing.T) {
	need(t)
	args := inRepository(t, documentedInstall(t))
	args[0] = "template"
	printed, err := run(t, *helmTool, args...)
	if err != nil {
		t.Fatal(err)
	}
	p := onlyRelay(t, decode(t, "documented", printed))
	c := p.container(t)
	c.Binary = envoytest.Command(t)
	startContainer(t, c).stop()

	c.Env = slices.DeleteFunc(c.Env, func(v string) bool { return strings.HasPrefix(v, "TENDER_NODE_ID=") })
	c.Refused = "missing parts in the service node"
	startContainer(t, c).stop()
}

// onlyRelay returns the only pod with a relay in a rendering.
func onlyRelay(t *testing.T, r rendering) relayPod {
	t.Helper()
	workloads := r.of("Deployment", "StatefulSet", "DaemonSet")
	if len(workloads) != 1 {
		t.Fatalf("%s has %d workloads, want 1", r.name, len(workloads))
	}
	template := at(workloads[0].object, "spec", "template").(object)
	relay := list(template, "spec", "containers")[0].(object)
	return relayPod{r, workloads[0], template, relay, r.environ(t, relay)}
}

// container returns the container of the relay as a kubelet would start it.
func (p relayPod) container(t *testing.T) container {
	t.Helper()
	c := container{Origin: p.environ["TENDER_ORIGIN"], Volumes: map[string]map[string]string{}}
	for _, arg := range list(p.relay, "args") {
		c.Args = append(c.Args, arg.(string))
	}
	for _, name := range keys(p.environ) {
		c.Env = append(c.Env, name+"="+p.environ[name])
	}
	for _, mount := range list(p.relay, "volumeMounts") {
		path := text(mount, "mountPath")
		_, source := p.volume(path + "/")
		c.Volumes[path] = p.files(text(source, "configMap", "name"))
	}
	ports := p.ports(t)
	get := at(p.relay, "readinessProbe", "httpGet")
	c.Xds = ports["xds"]
	c.Ready = fmt.Sprintf("http://127.0.0.1:%d%s", ports[text(get, "port")], text(get, "path"))
	return c
}

// files returns the content of a ConfigMap of the rendering, or nil if there is none of that name.
func (p relayPod) files(name string) map[string]string {
	for _, m := range p.of("ConfigMap") {
		if m.name() != name {
			continue
		}
		files := map[string]string{}
		for key := range at(m.object, "data").(object) {
			files[key] = text(m.object, "data", key)
		}
		return files
	}
	return nil
}

// TestChart_IstioAgent renders the relays of the recipe for istio-agent. The agent of the gateway on the page would accept
// their certificate: the relay serves TLS at discoveryAddress, with a name that is the host there, and requires no
// certificate of clients. istiod would accept the Node. The file in XDS_ROOT_CA is mounted.
func TestChart_IstioAgent(t *testing.T) {
	need(t)
	const page = "deploy/docs/control-planes/istio.md"
	blocks, err := docs.Blocks(page, readText(t, root+"/"+page))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, b := range blocks {
		files[b.Marks["file"]] = strings.Join(b.Lines, "\n")
	}
	values := filepath.Join(t.TempDir(), "values.yaml")
	write(t, values, files["relay.yaml"])
	printed, err := run(t, *helmTool, "template", "tender", chartDir, "--namespace", "istio-ingress", "--values", values)
	if err != nil {
		t.Fatal(err)
	}
	p := onlyRelay(t, decode(t, "istio", printed))
	cfg := p.config(t)
	if err := checkIstioNode(string(cfg.NodeID)); err != nil {
		t.Error(err)
	}
	if cfg.TLSCert == "" || cfg.TLSClientCA != "" || len(cfg.TLSListen) > 0 {
		t.Errorf("the relay serves with the certificate %q, clients by the CA %q, and further addresses %q; want TLS without client certificates", cfg.TLSCert, cfg.TLSClientCA, cfg.TLSListen)
	}

	gateway := decode(t, "gateway", files["gateway.yaml"]).objects[0]
	var config object
	if err := yaml.Unmarshal([]byte(text(gateway.object, "spec", "template", "metadata", "annotations", "proxy.istio.io/config")), &config); err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(text(config, "discoveryAddress"))
	if err != nil || port != strconv.Itoa(p.ports(t)["xds"]) {
		t.Errorf("discoveryAddress has the port %q (%v), the relay listens on %v", port, err, p.ports(t))
	}
	certificates := p.of("Certificate")
	if len(certificates) != 1 || !slices.Contains(list(certificates[0].object, "spec", "dnsNames"), any(host)) {
		t.Errorf("the certificates are %v, want one for %s", certificates, host)
	}
	spec := at(gateway.object, "spec", "template", "spec").(object)
	agent := relayPod{workload: gateway, template: object{"spec": spec}, relay: list(spec, "containers")[0].(object)}
	if name, source := agent.volume(text(config, "proxyMetadata", "XDS_ROOT_CA")); text(source, "configMap", "name") != "relays-ca" {
		t.Errorf("XDS_ROOT_CA is in the volume %q, want that of the ConfigMap relays-ca", name)
	}
}
