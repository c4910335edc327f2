package deploy_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest/certs"
)

// A relayPod is the template of a pod with a relay, from any kind of workload.
type relayPod struct {
	rendering
	workload manifest
	template object // with metadata and spec
	relay    object // its container
	environ  map[string]string
}

// String returns a name of the pod for failure messages.
func (p relayPod) String() string {
	return fmt.Sprintf("%s: %s %s", p.name, p.workload.kind(), p.workload.name())
}

// relayPods calls check for each pod with a relay, in all renderings.
func relayPods(t *testing.T, check func(t *testing.T, p relayPod)) {
	t.Helper()
	for _, r := range renderings(t) {
		found := 0
		for _, w := range r.of("Deployment", "StatefulSet", "DaemonSet") {
			template := at(w.object, "spec", "template").(object)
			for _, c := range slices.Concat(list(template, "spec", "initContainers"), list(template, "spec", "containers")) {
				if text(c, "name") != "tender" {
					continue
				}
				found++
				check(t, relayPod{r, w, template, c.(object), r.environ(t, c.(object))})
			}
		}
		if found != 1 {
			t.Errorf("%s has %d pods with a relay, want 1", r.name, found)
		}
	}
}

// expansion matches a reference of a Kubernetes variable to an earlier one.
var expansion = regexp.MustCompile(`\$\((\w+)\)`)

// environ returns the variables of a container. The value of a variable from a Secret is a valid header.
func (r rendering) environ(t *testing.T, container object) map[string]string {
	t.Helper()
	environ := map[string]string{}
	for _, from := range list(container, "envFrom") {
		for _, m := range r.of("ConfigMap") {
			if m.name() == text(from, "configMapRef", "name") {
				for name := range at(m.object, "data").(object) {
					environ[name] = text(m.object, "data", name)
				}
			}
		}
	}
	for _, variable := range list(container, "env") {
		name, value := text(variable, "name"), text(variable, "value")
		if _, again := environ[name]; again {
			t.Errorf("%s sets %s twice", r.name, name)
		}
		if at(variable, "valueFrom", "secretKeyRef") != nil {
			value = "x-from=secret"
		}
		environ[name] = expansion.ReplaceAllStringFunc(value, func(s string) string { return environ[s[2:len(s)-1]] })
	}
	return environ
}

// config returns the configuration of the relay. It fails the test if the relay would not start with it.
func (p relayPod) config(t *testing.T) relay.Config {
	t.Helper()
	var environ []string
	for _, name := range keys(p.environ) {
		environ = append(environ, name+"="+p.environ[name])
	}
	cfg, err := relay.LoadConfig(environ)
	if err != nil {
		t.Errorf("%v: tender check says: %v", p, err)
	}
	if err := cfg.RequireOrigin(); err != nil {
		t.Errorf("%v: tender check says: %v", p, err)
	}
	return cfg
}

// ports returns the ports on which the relay listens for other hosts, by name.
func (p relayPod) ports(t *testing.T) map[string]int {
	t.Helper()
	cfg, ports := p.config(t), map[string]int{}
	for name, addresses := range map[string][]string{
		"xds": cfg.Listen, "tls": cfg.TLSListen, "rest": cfg.RESTListen, "probe": cfg.ProbeListen, "admin": cfg.AdminListen,
	} {
		for _, address := range addresses {
			host, port, err := net.SplitHostPort(address)
			if err != nil {
				t.Fatalf("%v: %v", p, err)
			}
			if host != "127.0.0.1" {
				ports[name], _ = strconv.Atoi(port)
			}
		}
	}
	return ports
}

// TestChart_RelaysAcceptTheirEnvironment checks that the relay accepts each environment without warnings, and that
// the pod mounts each file in it. It replaces the files by temporary ones with certificates, keys and rules, and the directory of an
// origin by an empty one.
func TestChart_RelaysAcceptTheirEnvironment(t *testing.T) {
	ca := certs.NewCA(t)
	pair := ca.Sign(certs.Leaf{Names: []string{"tender.example"}})
	content := map[string]string{
		"CERT": string(pair.Cert), "KEY": string(pair.Key), "CA": string(ca.PEM), "FILE": "a-token",
		"AUTHZ": "version: 1\nrules: [{name: all, identities: ['dns:**']}]\noperators: ['dns:ops.example']\n",
	}
	relayPods(t, func(t *testing.T, p relayPod) {
		root := t.TempDir()
		for name, value := range p.environ {
			text, isFile := content[name[strings.LastIndex(name, "_")+1:]]
			if !isFile || !strings.HasPrefix(name, "TENDER_") {
				continue
			}
			volume, source := p.volume(value)
			if volume == "" {
				t.Errorf("%v: %s is %s, where nothing is mounted", p, name, value)
			}
			if end := filepath.Base(value); at(source, "secret") != nil && list(source, "secret", "items") == nil &&
				(strings.HasSuffix(name, "_CERT") && end != "tls.crt" || strings.HasSuffix(name, "_KEY") && end != "tls.key") {
				t.Errorf("%v: %s is %s, which is not a file of a TLS Secret", p, name, value)
			}
			for _, m := range p.of("ConfigMap") {
				if rules := at(m.object, "data", filepath.Base(value)); m.name() == at(source, "configMap", "name") && rules != nil {
					text = rules.(string)
				}
			}
			path := filepath.Join(root, value)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			write(t, path, text)
			p.environ[name] = path
		}
		if dir, isDir := strings.CutPrefix(p.environ["TENDER_ORIGIN"], "file://"); isDir {
			if volume, _ := p.volume(dir + "/file"); volume == "" {
				t.Errorf("%v: TENDER_ORIGIN is %s, where nothing is mounted", p, dir)
			}
			p.environ["TENDER_ORIGIN"] = "file://" + root
		}
		cfg := p.config(t)
		if warnings, err := cfg.CheckFiles(); err != nil || len(warnings) > 0 {
			t.Errorf("%v: tender check says: %q, %v", p, warnings, err)
		}
	})
}

// volume returns the name and the source of the volume that contains a path. The name is empty if there is none.
func (p relayPod) volume(path string) (name string, source any) {
	for _, mount := range list(p.relay, "volumeMounts") {
		if !strings.HasPrefix(path, text(mount, "mountPath")+"/") {
			continue
		}
		for _, volume := range list(p.template, "spec", "volumes") {
			if text(volume, "name") == text(mount, "name") {
				return text(mount, "name"), volume
			}
		}
		for _, claim := range list(p.workload.object, "spec", "volumeClaimTemplates") {
			if text(claim, "metadata", "name") == text(mount, "name") {
				return text(mount, "name"), claim
			}
		}
	}
	return "", nil
}

// TestChart_PodsAreConfined checks the security context of each pod, and that pods do not share a volume for snapshots.
func TestChart_PodsAreConfined(t *testing.T) {
	relayPods(t, func(t *testing.T, p relayPod) {
		parts := object{"pod": at(p.template, "spec"), "relay": p.relay}
		for path, want := range map[string]any{
			"pod.automountServiceAccountToken":               false,
			"pod.enableServiceLinks":                         false, // service links would set TENDER_ variables
			"pod.securityContext.runAsNonRoot":               true,
			"pod.securityContext.runAsUser":                  65532,
			"pod.securityContext.seccompProfile.type":        "RuntimeDefault",
			"relay.securityContext.readOnlyRootFilesystem":   true,
			"relay.securityContext.allowPrivilegeEscalation": false,
			"relay.command":                                  nil, // the image has an entrypoint
			"relay.lifecycle":                                nil, // the image has no shell
		} {
			if got := at(parts, strings.Split(path, ".")...); got != want {
				t.Errorf("%v: %s is %v, want %v", p, path, got, want)
			}
		}
		if dropped := list(p.relay, "securityContext", "capabilities", "drop"); !slices.Equal(dropped, []any{"ALL"}) {
			t.Errorf("%v: drops the capabilities %v, want ALL", p, dropped)
		}
		if strings.Contains(p.text, "subPath") {
			t.Errorf("%v: subPath mounts a file; changes of the file do not reach the pod", p)
		}
		if dir := p.environ["TENDER_SNAPSHOT_DIR"]; dir != "" {
			if _, source := p.volume(dir); at(source, "emptyDir") == nil && at(source, "spec", "accessModes") == nil {
				t.Errorf("%v: TENDER_SNAPSHOT_DIR, %s, is in %v; want an emptyDir, or a claim for each pod", p, dir, source)
			}
		}
	})
}

// TestChart_PodsHaveTimeToDrain compares the grace period with TENDER_DRAIN, and GOMEMLIMIT with the memory limit
// of the container.
func TestChart_PodsHaveTimeToDrain(t *testing.T) {
	relayPods(t, func(t *testing.T, p relayPod) {
		drain, grace := p.config(t).Drain.Seconds(), number(p.template, "spec", "terminationGracePeriodSeconds")
		if float64(grace) < drain+5 {
			t.Errorf("%v: terminationGracePeriodSeconds is %d, TENDER_DRAIN %vs", p, grace, drain)
		}
		limits := map[string]float64{"1Gi": 1 << 30, "0.5Gi": 1 << 29, "256Mi": 1 << 28, "128Mi": 1 << 27}
		limit := limits[text(p.relay, "resources", "limits", "memory")]
		if got, err := strconv.ParseFloat(p.environ["GOMEMLIMIT"], 64); err == nil && (got < 0.8*limit || got > 0.95*limit) {
			t.Errorf("%v: GOMEMLIMIT is %v, want nine tenths of %v", p, got, limit)
		}
	})
}
